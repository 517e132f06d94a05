"""Event time end to end: late records, ends, timers, and what a checkpoint keeps of them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.process import ProcessOperator
from runtime.ports.streams import OUTSIDE, Append, Control, StreamConfig
from runtime.reading.watermarks import to_ms
from runtime.stage.chain import Chain
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options, SamzaError, collect, count, dead_letter, every, testing, tumbling
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import CrashPoint, fill, memory, rows_of, run_once, run_through
from tests.simulation.loop import rest
from tests.strategies import Event, records, stored

crashes = crashing()


def numbers_in(environment, stream="out"):
    return [msgspec.json.decode(value) for part in rows_of(environment, stream) for _, value, _ in part]


def numbers(values):
    return [(None, msgspec.json.encode(value), 0) for value in values]


@given(records(2), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)), st.booleans())
@settings(max_examples=examples(60, 20_000))
def test_what_is_late_depends_on_its_source_partition_alone(parts, crashes, disorder, batch_records, repartition):
    def app():
        app = App("late", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        if repartition:
            stream = stream.partition_by(lambda event: event.key, partitions=3)
        panes = stream.window(tumbling(milliseconds=50), collect(), late=dead_letter("late"))
        panes.map(lambda pane: [event.number for event in pane.value]).send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    in_time, late = Counter(), Counter()
    for part in parts:
        highest = None
        for event in part:
            end = event.at - event.at % 50 + 50
            is_late = highest is not None and end <= highest - disorder
            (late if is_late else in_time)[event.number] += 1
            highest = event.at if highest is None else max(highest, event.at)
    assert Counter(number for pane in numbers_in(environment) for number in pane) == in_time
    assert sum(len(part) for part in rows_of(environment, "late")) == sum(late.values())


said = st.tuples(st.sampled_from(("record", "watermark")), st.integers(0, 300))


@given(st.lists(said, max_size=20), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(120, 20_000))
def test_what_a_producer_says_of_event_time_holds_for_what_comes_after_it(events, crashes, disorder, batch_records):
    def app():
        app = App("told", Options(batch_records=batch_records, max_uncommitted=2))
        stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n, max_disorder_ms=disorder)
        panes = stream.window(tumbling(milliseconds=50), collect(), late=dead_letter("late"))
        panes.map(lambda pane: pane.value).send_to(app.output("out", value=list))
        return app

    environment = memory()
    environment.create_stream("in", StreamConfig())
    in_time, late, watermark = Counter(), Counter(), 0
    for kind, at in events:
        if kind == "watermark":
            environment.append([Append("in", 0, Batch([]), Control(OUTSIDE, at))])
            watermark = max(watermark, at)
            continue
        environment.append([Append("in", 0, Batch([msgspec.json.encode(at)]))])
        (late if at - at % 50 + 50 <= watermark else in_time)[at] += 1
        watermark = max(watermark, at - disorder)
    environment.end_stream("in")
    run_through(app, environment, crashes)
    assert Counter(number for pane in numbers_in(environment) for number in pane) == in_time
    assert sum(map(len, rows_of(environment, "late"))) == sum(late.values())


@given(st.lists(st.lists(st.integers(0, 99), max_size=8), min_size=1, max_size=4), crashes)
def test_the_end_of_inputs_is_told_downstream_even_of_empty_ones(parts, crashes):
    def app():
        app = App("ends")
        stream = app.input("in", value=int, key=lambda n: n, timestamp=lambda n: n, max_disorder_ms=100)
        panes = stream.partition_by(lambda n: n % 3, partitions=2).window(tumbling(milliseconds=10), count())
        panes.map(lambda pane: pane.value).partition_by(lambda n: 0, partitions=3).send_to(app.output("out", value=int))
        return app

    sink, environment = ListSink(), memory()
    shape = parts if len(parts) > 1 else parts[0]
    bind = {"in": ListSource(shape, partitions=len(parts)), "out": sink}
    run_through(app, environment, crashes, bind=bind)
    assert sum(sink.values) == sum(map(len, parts))


@given(records(1), crashes, st.sampled_from((1, 4, 2_000)))
def test_timers_are_called_once_per_key_and_time_in_order(parts, crashes, batch_records):
    def app():
        app = App("timers", Options(batch_records=batch_records, max_uncommitted=3))

        def on_message(event, context):
            context.set_timer(event.at // 100 * 100 + 1_000)
            return []

        stream = app.input("in", value=Event, key=lambda e: e.key, timestamp=lambda e: e.at, max_disorder_ms=500)
        fired = stream.process(on_message, on_timer=lambda at, context: [[at, context.key, context.timestamp]])
        fired.send_to(app.output("out", value=list))
        return app

    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    fired = numbers_in(environment)
    due = {(event.at // 100 * 100 + 1_000, event.key) for event in parts[0]}
    assert [at for at, _, _ in fired] == [timestamp for _, _, timestamp in fired]
    for key in {key for _, key in due}:
        assert [at for at, one, _ in fired if one == key] == sorted(at for at, one in due if one == key)
    assert Counter((at, key) for at, key, _ in fired) == Counter(due)


def test_what_a_timer_sees_does_not_depend_on_batches():
    def fired(batch_records):
        app = App("timers", Options(batch_records=batch_records))

        def on_message(n, context):
            context.state += 1
            context.set_timer(100)
            return []

        stream = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n)
        stream.process(on_message, on_timer=lambda at, context: [context.state], init=int).send_to(
            app.output("out", value=int)
        )
        environment = memory()
        fill(environment, "in", [numbers([50, 150, 160])])
        run_once(app, environment)
        return numbers_in(environment)

    assert fired(1) == fired(2_000)


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_at_least_once_restarts_with_the_event_time_of_its_position(when, number):
    def app():
        app = App("again", Options(guarantee="at_least_once", commit_interval_ms=20))

        async def slow(n):
            await rest(1 if n < 2 else 400)
            return [n]

        stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n).partition_by(lambda n: 0)
        panes = stream.async_flat_map(slow, order="none", timeout_ms=2_000).window(tumbling(milliseconds=10), count())
        panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
        return app

    environment = memory()
    fill(environment, "in", [numbers([1, 5, 15, 25, 35])])
    run_through(app, environment, [CrashPoint(when, number)])
    assert sorted(numbers_in(environment)) == [1, 1, 1, 2]


@pytest.mark.parametrize("number", range(1, 5))
def test_at_least_once_keeps_what_is_in_flight_below_a_stateful_operator(number):
    def app():
        app = App("below", Options(guarantee="at_least_once", commit_interval_ms=50))

        async def quick(n):
            await rest(1)
            return [n]

        async def slow(n):
            await rest(500 if n else 10)
            return [n]

        both = app.input("a", value=int, key=lambda n: n).merge(app.input("b", value=int, key=lambda n: n))
        emitted = both.async_flat_map(quick, order="none").process(lambda n, context: [n])
        emitted.async_flat_map(slow, order="none").send_to(app.output("out", value=int))
        return app

    environment = memory()
    fill(environment, "a", [numbers([0])])
    fill(environment, "b", [numbers([1])])
    run_through(app, environment, [CrashPoint("after_commit", number)])
    assert set(numbers_in(environment)) == {0, 1}


def test_a_task_may_await_below_a_window():
    app = App("panes")
    out = app.output("out", value=list)

    async def process(envelope, context):
        context.send(out, [envelope.value.value, envelope.stream])

    panes = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n).window(
        tumbling(milliseconds=10), count(), op_id="counts"
    )
    app.task(panes, process, outputs=[out], op_id="task")
    environment = memory()
    fill(environment, "in", [numbers([1, 5, 15])])
    run_once(app, environment)
    assert numbers_in(environment) == [[2, "counts"], [1, "counts"]]


@pytest.mark.parametrize("at", [2**62, -(2**62), 2**63, -(2**64), 10**30])
def test_a_time_that_no_store_can_hold_is_malformed(at):
    app = App("times")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n, on_error=dead_letter("letters"))
    stream.window(tumbling(milliseconds=10), count()).map(lambda pane: pane.value).send_to(app.output("out", value=int))
    environment = memory()
    fill(environment, "in", [[(None, str(n).encode(), 0) for n in (1, at, 5, 15)]])
    run_once(app, environment)
    assert numbers_in(environment) == [2, 1] and numbers_in(environment, "letters") == [at]


@pytest.mark.parametrize("said", ["timestamp", "watermark"])
@pytest.mark.parametrize(
    ("at", "wrong"), [("noon", "'noon'"), (datetime(2026, 1, 1), "without a time zone"), (10**30, "not in the years")]
)
def test_what_is_no_time_is_refused_by_the_name_of_what_said_it(said, at, wrong):
    app = App("times")
    stream = app.input("in", value=int, key=lambda n: 0, **{said: lambda n: at})
    stream.window(tumbling(milliseconds=10), count()).send_to(app.output("out"))
    with pytest.raises(SamzaError, match=f"ValueError: {said}= returned .*{wrong}"):
        testing.run(app, {"in": [1]})


@given(st.integers(0, 99), st.integers(1, 5), crashes)
@settings(max_examples=examples(40, 5_000))
def test_a_task_never_has_process_window_and_commit_at_once(seed, most, crashes):
    running, seen = set(), Counter()

    def app():
        app = App("alone", Options(commit_interval_ms=30))
        running.clear()

        async def process(envelope, context):
            running.add(envelope.offset)
            await rest((envelope.offset * 7 + seed) % 20)
            running.discard(envelope.offset)
            context.put(envelope.offset, True)

        def window(context):
            assert not running, "a window beside a message"
            seen["window"] += 1

        app.task(
            app.input("in", value=int),
            process,
            window=every(window, seconds=0.025),
            max_in_flight=most,
            timeout_ms=5_000,
            op_id="task",
        )
        return app

    def on_commit(commit):
        assert not running, "a commit beside a message"
        seen["commit"] += 1

    environment = memory()
    fill(environment, "in", [numbers(range(40))])
    run_through(app, environment, crashes, seed, on_commit)
    assert seen["window"] and seen["commit"] > 1
    assert len(list(environment.state_range("alone", "task", 0))) == 40


def test_streams_with_and_without_event_time_are_merged(tmp_path):
    async def ignore(message, context):
        """Await nothing."""

    app = App("merging")
    timed, plain = (app.input(name, value=int, timestamp=lambda n: n) for name in ("timed", "plain"))
    app.task(timed, ignore, op_id="ignoring")
    timed.filter(bool).merge(plain).send_to(app.output("out", value=int))
    assert sorted(app.run(tmp_path, bind={"timed": [1, 2], "plain": [3]}).received("out")) == [1, 2, 3]


def test_how_far_event_time_has_come_is_asked_of_each_operator_once_for_each_below(monkeypatch):
    asked, depth = Counter(), 12
    lowest = ProcessOperator.lowest_stamp

    def counted(operator):
        asked["lowest"] += 1
        return lowest(operator)

    looked = Chain.is_due

    def is_due(chain, watermark):
        asked["due"] += 1
        return looked(chain, watermark)

    monkeypatch.setattr(ProcessOperator, "lowest_stamp", counted)
    monkeypatch.setattr(Chain, "is_due", is_due)
    app = App("deep")
    stream = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n)
    for number in range(depth):
        stream = stream.process(lambda n, context: [n], op_id=f"process-{number}")
    stream.send_to(app.output("out", value=int))
    assert testing.run(app, {"in": [1, 2, 3]})["out"] == [1, 2, 3]
    assert asked["lowest"] <= 2 * asked["due"] * depth**2


@given(
    st.datetimes(
        datetime(1901, 1, 1), datetime(2099, 12, 31), timezones=st.sampled_from([UTC, ZoneInfo("Europe/Oslo")])
    )
)
def test_a_datetime_counts_in_the_ms_that_it_lies_in(at):
    (found,) = to_ms([at])
    assert 0 <= (at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1) - found < 1


@given(st.integers(10**15, 4 * 10**15))
def test_seconds_with_a_fraction_count_in_the_ms_that_they_lie_in(micros):
    assert to_ms([micros / 10**6], unit="s") == [micros // 1_000] == to_ms([micros], unit="us")


class OthersDatetime(datetime):
    """A datetime whose differences are of a class of its own, as those of some libraries are."""

    def __sub__(self, other):
        raise AssertionError("its differences are not looked at")


def test_a_datetime_with_differences_of_its_own_counts_as_any():
    assert to_ms([OthersDatetime(2025, 6, 15, 0, 0, 0, 999, tzinfo=UTC)]) == to_ms([datetime(2025, 6, 15, tzinfo=UTC)])


def test_the_last_moment_of_a_day_is_of_that_day():
    app = App("days")
    times = app.input("in", value=str, key=lambda at: "k", timestamp=datetime.fromisoformat)
    panes = times.window(tumbling(days=1), collect(), late=dead_letter("late"))
    panes.map(lambda pane: pane.value).send_to(app.output("out"))
    given_ = ["2025-06-15T23:59:59.999600+00:00", "2025-06-15T23:59:59.999900+00:00", "2025-06-16T00:00:00+00:00"]
    assert testing.run(app, {"in": given_})["out"] == [given_[:2], given_[2:]]
