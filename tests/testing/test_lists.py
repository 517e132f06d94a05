"""Applications on lists, under schedules: what comes out is what the records say."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import OperatorFailure
from samza_dsl import App, laws, retry, skip, testing
from samza_dsl.testing import CrashPoint, Schedule
from tests.simulation.reference import Reference
from tests.strategies import SOURCE, TABLE, build, partition_of, pipelines, records


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
    given_events = parts if pipeline.partitions > 1 else parts[0]
    count_of = {SOURCE: pipeline.partitions}
    results = testing.run(
        build(pipeline, pace=seed), {SOURCE: given_events, **tables(pipeline)}, schedule, partitions=count_of
    )
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


def test_lists_that_do_not_fit_are_refused():
    app = App("fitting")
    app.input("numbers", value=int, partitions=2).send_to(app.output("out", value=int))
    with pytest.raises(ValueError, match="'numbers' has 2 partitions, and there are 3 lists; give one for each"):
        testing.run(app, {"numbers": [[1], [2], [3]]})
    with pytest.raises(ValueError, match="the app reads no letters; it reads numbers"):
        testing.run(app, {"letters": []})


@given(st.permutations([1, "one", (1, 2), {"a": 1}, None, object]))
def test_unordered_depends_on_the_values_alone(values):
    first = testing.unordered({"out": [1, "one", (1, 2), {"a": 1}, None, object]})
    assert testing.unordered({"out": values}) == first
