"""Applications on lists, under schedules: what comes out is what the records say."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from samza_dsl import App, laws, retry, skip, testing
from samza_dsl.testing import CrashPoint, Record, Schedule
from tests.building import build
from tests.simulation.reference import Reference
from tests.strategies import TABLE, partition_of, pipelines, records


def tables(pipeline):
    found = {}
    for place, node in enumerate(pipeline.nodes):
        if node.kind in ("join", "lookup"):
            number = pipeline.partitions_of(place) if node.kind == "join" else 1
            rows = [testing.Record(row, row.key) for row in TABLE]
            parts = [[row for row in rows if partition_of(row.key, number) == part] for part in range(number)]
            found[f"table-{place}"] = parts if number > 1 else parts[0]
    return found


@given(st.data(), st.none() | laws.schedules(), st.integers(0, 999))
def test_any_application_comes_to_what_its_records_say_under_any_schedule(data, schedule, seed):
    pipeline = data.draw(pipelines())
    parts = data.draw(records(pipeline.partitions, nulls=pipeline.nulls))
    streams = pipeline.split(parts)
    events = {stream: each if len(each) > 1 else each[0] for stream, each in streams.items()}
    count_of = dict.fromkeys(streams, pipeline.partitions)
    results = testing.run(build(pipeline, pace=seed), {**events, **tables(pipeline)}, schedule, partitions=count_of)
    expected = {name: Counter() for name in pipeline.outputs()}
    for (place, event), number in Reference(pipeline).run(parts).sent.items():
        expected[f"out-{place}"][event] += number
    assert {name: Counter(results[name]) for name in expected} == expected


def test_a_schedule_of_a_seed_is_the_same_again():
    schedules = [testing.schedule(seed) for seed in range(100)]
    assert schedules == [testing.schedule(seed) for seed in range(100)]
    assert {point.when for each in schedules for point in each.crashes} == {"before_commit", "after_commit", "turn"}
    assert {len(each.crashes) for each in schedules} == {0, 1, 2, 3}


def seen_by(schedule):
    """Return in which order two partitions are seen, and how often the process began."""
    app, seen, begun = App("seen"), [], []

    class Seeing:
        def open(self, context):
            begun.append(context.task)

        def __call__(self, n):
            seen.append(n)
            return n

        def __deepcopy__(self, memo):
            return self

    app.input("numbers", value=int, partitions=2).map(Seeing()).send_to(app.output("out", value=int))
    results = testing.run(app, {"numbers": [list(range(10)), list(range(10, 20))]}, schedule)
    assert sorted(results["out"]) == list(range(20))
    return tuple(seen), begun.count(0)


def test_schedules_differ_and_crash():
    orders = {seen_by(Schedule(seed))[0] for seed in range(10)}
    assert len(orders) > 5
    crashes = (CrashPoint("before_commit", 2), CrashPoint("after_commit"), CrashPoint("turn", 9))
    assert seen_by(Schedule(0, crashes))[1] == 4
    assert seen_by(Schedule(7, crashes)) == seen_by(Schedule(7, crashes))


def test_a_law_is_broken_by_what_depends_on_the_schedule():
    def running_number(n, context):
        context.state += 1
        return [(n, context.state)]

    app = App("unlawful")
    numbers = app.input("numbers", value=int, partitions=2).partition_by(lambda n: "all")
    numbers.process(running_number, init=int, op_id="number").send_to(app.output("out", value=tuple[int, int]))
    given_numbers = {"numbers": [[1, 2, 3], [4, 5, 6]]}
    undisturbed = testing.unordered(testing.run(app, given_numbers))
    others = [testing.unordered(testing.run(app, given_numbers, Schedule(seed))) for seed in range(20)]
    assert any(other != undisturbed for other in others)


def test_a_failure_is_raised_under_a_schedule_too():
    app = App("failing")
    app.input("numbers", value=int).map(lambda n: 1 // n).send_to(app.output("out", value=int))
    for schedule in (None, Schedule(3, (CrashPoint("turn", 5),))):
        with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
            testing.run(app, {"numbers": [1, 1, 0]}, schedule)


def test_a_backoff_takes_no_time():
    app, tries = App("patient"), []

    async def fail(n):
        tries.append(n)
        raise OSError("never")

    fails = app.input("numbers", value=int).async_flat_map(fail, on_error=retry(3, backoff_ms=1_000, then=skip))
    fails.send_to(app.output("out"))
    assert testing.run(app, {"numbers": [1]}) == {"out": []}
    assert len(tries) == 4


def reading(**how):
    app = App("reading")
    app.input("numbers", value=int, **how).send_to(app.output("out", value=int))
    return app


def reading_words(**how):
    app = App("reading")
    app.input("numbers", value=str, **how).send_to(app.output("out", value=str))
    return app


REFUSED = {
    "a list too many": (
        reading(partitions=2),
        {"numbers": [[1], [2], [3]]},
        "'numbers' has 2 partitions, and there are 3 lists; give one for each",
    ),
    "one list for two partitions": (
        reading(partitions=2),
        {"numbers": [1, 2]},
        "'numbers' has 2 partitions; give a list for each of them, not 1",
    ),
    "text for a partition": (
        reading_words(partitions=2),
        {"numbers": ["hello", "you"]},
        "give a list for each of them, not 'hello'",
    ),
    "pairs for partitions": (
        reading(key=str, partitions=2),
        {"numbers": [("a", 1), ("b", 2)]},
        r"give a list for each of them, not \('a', 1\)",
    ),
    "text for a list": (reading_words(), {"numbers": "abc"}, "'numbers' is given 'abc'; give a list"),
    "a number for a list": (reading(), {"numbers": 7}, "'numbers' is given 7; give a list"),
    "a dict for a list": (reading(key=str), {"numbers": {"a": 1}}, "'numbers' is given {'a': 1}; give a list"),
    "values without keys": (
        reading(key=str),
        {"numbers": [1]},
        r"'numbers' carries keys; give \(key, value\) pairs or testing.Record\(value, key=...\), not 1",
    ),
    "text of two letters for a pair": (
        reading_words(key=str),
        {"numbers": ["ab"]},
        "'numbers' carries keys; .*not 'ab'",
    ),
    "three for a pair": (reading(key=str), {"numbers": [("a", 1, 2)]}, r"carries keys; .*not \('a', 1, 2\)"),
    "a record of another partition": (
        reading(partitions=2),
        {"numbers": [[Record(1, partition=1)], []]},
        "'numbers' has in the list of its partition 0 Record",
    ),
    "a stream that is not read": (reading(), {"letters": []}, "the app reads no letters; it reads numbers"),
}


@pytest.mark.parametrize("schedule", [None, Schedule(1)], ids=["in order", "under a schedule"])
@pytest.mark.parametrize(("app", "inputs", "told"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_with_what_does(app, inputs, told, schedule):
    with pytest.raises(ValueError, match=told):
        testing.run(app, inputs, schedule)


def copying_all(pattern="orders-*"):
    app = App("copying")
    app.input(pattern, value=int).send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("schedule", [None, Schedule(1)], ids=["in order", "under a schedule"])
def test_a_pattern_needs_a_stream_to_come_to_an_end(schedule):
    told = r"no stream matches 'orders-\*'; give one, such as {'orders-1': \[...\]}"
    with pytest.raises(ValueError, match=told):
        testing.run(copying_all(), {}, schedule)
    assert testing.run(copying_all(), {"orders-eu": [], "orders-us": [1]}, schedule) == {"out": [1]}


@given(st.permutations([1, "one", (1, 2), {"a": 1}, None, object]))
def test_unordered_depends_on_the_values_alone(values):
    first = testing.unordered({"out": [1, "one", (1, 2), {"a": 1}, None, object]})
    assert testing.unordered({"out": values}) == first
