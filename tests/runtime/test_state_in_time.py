"""Keyed state end to end: timers and alarms, what expires, lists and maps, duplicates, and a pace."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.clock import LoopClock
from samza_dsl import App, Options, PlanError, count, dead_letter, testing, tumbling
from tests.runtime.test_event_time import crashes, numbers_in
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_through
from tests.strategies import Event, records, stored


def stamped(part, disorder):
    """Yield the records of a partition, each with its stamp, told apart from the product."""
    highest = None
    for event in part:
        yield event, None if highest is None else highest - disorder
        highest = event.at if highest is None else max(highest, event.at)


def run(app, parts, crashes):
    environment = memory()
    fill(environment, "in", stored(parts))
    run_through(app, environment, crashes)
    return numbers_in(environment)


@given(records(2, most=40), crashes, st.integers(0, 60), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(60, 10_000))
def test_a_timer_finds_the_messages_whose_source_had_not_come_to_its_time(parts, crashes, disorder, batch_records):
    def app():
        def on_message(event, context):
            context.state = [*context.state, event.number]
            context.set_timer(event.at // 50 * 50 + 50)
            return []

        def on_timer(at_ms, context):
            return [[context.key, at_ms, context.state]]

        app = App("timers", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        stream.process(on_message, on_timer=on_timer, init=list).send_to(app.output("out", value=list))
        return app

    expected = []
    for part in parts:
        seen, timers = defaultdict(list), defaultdict(set)
        for event, stamp in stamped(part, disorder):
            due = sorted(at for at in timers[event.key] if stamp is not None and at <= stamp)
            expected += [[event.key, at, list(seen[event.key])] for at in due]
            timers[event.key].difference_update(due)
            seen[event.key].append(event.number)
            timers[event.key].add(event.at // 50 * 50 + 50)
        for key in timers:  # at a watermark that no message was behind, or at the end, where nothing more comes
            expected += [[key, at, list(seen[key])] for at in timers[key]]
    assert sorted(run(app, parts, crashes)) == sorted(expected)


@given(records(2, most=40), crashes, st.integers(0, 60), st.integers(1, 200), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(60, 10_000))
def test_state_lives_on_until_its_source_is_that_far_past_its_last_message(
    parts, crashes, disorder, ttl, batch_records
):
    def app():
        def on_message(event, context):
            context.state += 1
            context.list("numbers").append(event.number)
            context.map("times")[event.at] = event.number
            return [[event.number, context.state, [*context.list("numbers")], dict(context.map("times"))]]

        app = App("ttl", Options(batch_records=batch_records, max_uncommitted=4))
        how = {"timestamp": lambda e: e.at, "max_disorder_ms": disorder, "partitioned_by_key": True}
        stream = app.input("in", value=Event, key=lambda e: e.key, **how)
        stream.process(on_message, init=int, ttl_ms=ttl).map(lambda row: [*row[:3], sorted(row[3])]).send_to(
            app.output("out", value=list)
        )
        return app

    expected = []
    for part in parts:
        alive = {}
        for event, stamp in stamped(part, disorder):
            last, held = alive.get(event.key, (None, []))
            if last is None or (stamp is not None and last + ttl <= stamp):
                last, held = event.at, []
            held = [*held, event]
            alive[event.key] = max(last, event.at), held
            expected.append([event.number, len(held), [e.number for e in held], sorted({e.at for e in held})])
    assert sorted(run(app, parts, crashes)) == sorted(expected)


class Alarmed:
    """A pipeline in which a key rings a minute after its last message."""

    def __init__(self):
        def on_message(n, context):
            if context.state is not None:
                context.delete_alarm(context.state)
            context.state = context.now_ms + 60_000
            context.set_alarm(context.state)
            return []

        def on_alarm(at_ms, context):
            context.state = None
            return [[context.key, at_ms, context.now_ms]]

        self.app = App("alarms")
        numbers = self.app.input("in", value=int, key=lambda n: n % 2, timestamp=lambda n: n)
        numbers.process(on_message, on_alarm=on_alarm, op_id="ring").send_to(self.app.output("out", value=list))


def test_alarms_go_off_by_the_clock_also_after_a_crash():
    with testing.running(Alarmed().app) as run:
        run.send("in", 1, 2)
        run.advance_time(seconds=30)
        run.send("in", 3)
        run.advance_time(seconds=29)
        assert run.read("out") == []
        run.crash()
        run.restart()
        run.advance_time(seconds=2)
        assert [key for key, _, _ in run.read("out")] == [0]
        run.advance_time(seconds=60)
        ((key, at_ms, now_ms),) = run.read("out")
        assert key == 1 and at_ms <= now_ms < at_ms + 100
        run.advance_time(minutes=10)
        assert run.read("out") == []


def test_at_the_end_of_the_input_alarms_go_off_at_once():
    out = testing.run(Alarmed().app, {"in": [1, 2]})["out"]
    assert sorted(key for key, _, _ in out) == [0, 1]


def test_what_alarms_emit_is_in_time_for_a_window_below():
    def on_message(n, context):
        context.set_alarm(context.now_ms + n)
        return []

    app = App("alarms")
    numbers = app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: 10**9)
    rung = numbers.process(on_message, on_alarm=lambda at_ms, context: [at_ms])
    panes = rung.partition_by(lambda at: 0, partitions=1).window(tumbling(days=1), count(), late=dead_letter("late"))
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    with testing.running(app, start_ms=0) as run:
        run.send("in", *range(1, 50))
        run.advance_time(seconds=1)
        run.send("in", *range(1, 50))
        run.end()
        assert run.read("out") == [98] and run.dead_letters("late") == []


def test_the_end_of_the_inputs_is_told_behind_all_that_alarms_emit():
    def on_message(n, context):
        context.set_alarm(context.now_ms + n)
        return []

    app = App("alarms", Options(max_uncommitted=3))
    numbers = app.input("in", value=int, key=lambda n: n, timestamp=lambda n: n)
    rung = numbers.process(on_message, on_alarm=lambda at_ms, context: [context.key])
    panes = rung.partition_by(lambda n: 0, partitions=1).window(tumbling(days=1), count(), late=dead_letter("late"))
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    results = testing.run(app, {"in": [*range(1, 2_000)]})
    assert results == {"out": [1_999], "late": []}


@pytest.mark.parametrize("policy", [None, "letters"])
def test_a_timer_that_fails_before_a_message_is_dealt_with_by_itself(policy):
    def on_message(n, context):
        context.state += 1
        if n == 1:
            context.set_timer(50)
        return [context.state]

    def on_timer(at_ms, context):
        raise ValueError("no")

    app = App("failing", Options(batch_records=100))
    numbers = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n)
    how = {"on_error": dead_letter(policy)} if policy else {}
    numbers.process(on_message, on_timer=on_timer, init=int, op_id="it", **how).send_to(app.output("out", value=int))
    if policy is None:
        with pytest.raises(Exception, match=r"process 'it' at .*: ValueError: no, on "):
            testing.run(app, {"in": [1, 100, 101, 102]})
        return
    with testing.running(app, {"in": [1, 100, 101, 102]}) as run:
        assert run.read("out") == [1, 2, 3, 4]
        (letter,) = run.dead_letters("letters")
        assert letter.value.endswith(b"2") and letter.operator == letter.stream == "it"


@pytest.mark.parametrize("what", ["now", "alarm"])
def test_the_clock_is_told_where_there_are_alarms(what):
    app = App("clock")

    def on_message(n, context):
        return [context.now_ms] if what == "now" else context.set_alarm(5)

    app.input("in", value=int, key=lambda n: 0, timestamp=lambda n: n).process(on_message).sink(print)
    with pytest.raises(Exception, match=r"process\(..., on_alarm="):
        testing.run(app, {"in": [1]})


@given(st.lists(st.tuples(st.sampled_from("alcd"), st.integers(-3, 3), st.booleans()), max_size=60))
def test_lists_and_maps_of_a_key_are_those_of_python(steps):
    def on_message(step, context):
        what, n, _ = step
        values, counts = context.list("values"), context.map("counts")
        if what == "a":
            values.append(n)
            counts[n] = counts.get(n, 0) + 1
        elif what == "l":
            values.drop(abs(n))
            counts.pop(n, None)
        elif what == "c":
            values.clear()
        elif what == "d":
            counts.clear()
        return [[[*values], sorted(counts.items()), len(values), len(counts), values[-1] if len(values) else None]]

    app = App("collections", Options(cache_entries=4))
    stream = app.input("in", value=tuple[str, int, bool], key=lambda step: step[2], timestamp=lambda step: 0)
    stream.process(on_message).send_to(app.output("out", value=list))
    out = testing.run(app, {"in": steps}, partitions={"in": 1})["out"]
    lists, maps, expected = defaultdict(list), defaultdict(dict), []
    for what, n, key in steps:
        if what == "a":
            lists[key].append(n)
            maps[key][n] = maps[key].get(n, 0) + 1
        elif what == "l":
            del lists[key][: abs(n)]
            maps[key].pop(n, None)
        elif what in "cd":
            (lists if what == "c" else maps)[key].clear()
        values, counts = lists[key], maps[key]
        rows = [[k, v] for k, v in sorted(counts.items())]
        expected.append([[*values], rows, len(values), len(counts), values[-1] if values else None])
    assert out == expected


def test_process_has_several_outputs():
    app = App("sides")

    def on_message(n, context):
        yield "all", n
        if n < 0:
            yield "negative", str(n)

    sides = app.input("in", value=int, key=abs, timestamp=abs).process(on_message, into=("all", "negative"))
    sides["all"].send_to(app.output("out", value=int))
    sides["negative"].send_to(app.output("negative", value=str))
    found = testing.run(app, {"in": [1, -2, 3]})
    assert found["out"] == [1, -2, 3] and found["negative"] == ["-2"]


@pytest.mark.ci
def test_a_sample_has_its_share_and_smaller_ones_within_it():
    def kept(share, by=None):
        app = App("sample")
        app.input("in", value=int).sample(share, by=by).send_to(app.output("out", value=int))
        return testing.run(app, {"in": range(10_000)})["out"]

    some, more = kept(0.1), kept(0.3)
    assert 850 < len(some) < 1_150 and 2_800 < len(more) < 3_200 and set(some) < set(more)
    assert kept(0) == [] and kept(1) == [*range(10_000)]
    by_tens = kept(0.5, by=lambda n: n // 10)
    assert all((n // 10 * 10 + 5) in set(by_tens) for n in by_tens)


def test_a_throttle_lets_so_many_go_on_in_a_second():
    app = App("pace")
    slowed = app.input("in", value=int).throttle(20)
    slowed.map(lambda n: [n, LoopClock().elapsed_ms()]).send_to(app.output("out", value=list))
    with testing.running(app, {"in": [*range(100)]}) as run:
        run.advance_time(seconds=10)
        times = [at for _, at in run.read("out")]
        assert [n for n, _ in run.received("out")] == [*range(100)]
    assert all(49.9 < later - at < 50.1 for at, later in pairwise(times))


@pytest.mark.parametrize("wrong", [0, -1, True, "10"])
def test_what_is_no_rate_or_share_or_time_is_refused(wrong):
    numbers = App("wrong").input("in", value=int, timestamp=lambda n: n)
    with pytest.raises(PlanError, match=r"throttle\(100\)"):
        numbers.throttle(wrong)
    with pytest.raises(PlanError, match=r"within_ms"):
        numbers.deduplicate(abs, within_ms=wrong)
    if wrong != 0:
        with pytest.raises(PlanError, match=r"sample\(0.01\)"):
            numbers.sample(wrong)
