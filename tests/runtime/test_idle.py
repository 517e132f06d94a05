"""Event time that goes on without inputs of which nothing comes, and inputs that wait for each other."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from runtime.ports.streams import Control
from runtime.reading.watermarks import ProducerWatermarks
from samza_dsl import App, Options, PlanError, collect, dead_letter, testing, tumbling

SECOND = 1_000


def windows(pace=None, merges=False):
    """Return an application that gathers numbers by ten seconds of event time, after a stage that reads them."""
    app = App("idle")
    how = {"timestamp": lambda n: n * SECOND, "key": lambda n: 0}
    stream = app.input("in", value=int, partitions=2, **how, **(pace or {}))
    if merges:
        stream = stream.merge(app.input("other", value=int, partitions=1, **how))
    keyed = stream.partition_by(lambda n: 0, partitions=1, op_id="gathered")
    panes = keyed.window(tumbling(seconds=10), collect(), late=dead_letter("late"), op_id="panes")
    panes.map(lambda pane: sorted(pane.value)).send_to(app.output("out", value=list))
    return app


def send(run, partition, *numbers):
    for number in numbers:
        run.send_bytes("in", str(number).encode(), partition=partition)


def late(run):
    return [letter.value for letter in run.dead_letters("late")]


def test_a_partition_of_which_nothing_comes_holds_back_nobody_after_half_a_minute():
    with testing.running(windows()) as run:
        send(run, 0, 1, 12, 25)
        send(run, 1, 3)
        assert run.read("out") == []
        run.advance_time(seconds=29)
        send(run, 0, 26)
        assert run.read("out") == []
        run.advance_time(seconds=3)
        assert run.read("out") == [[1, 3], [12]]
        assert [one.idle for one in run.metrics().inputs if one.stream == "in"] == [False, True]


def test_what_a_partition_sends_that_was_idle_is_late_where_others_went_on():
    with testing.running(windows()) as run:
        send(run, 0, 1, 12, 25)
        send(run, 1, 3)
        run.advance_time(seconds=20)
        send(run, 0, 26)
        run.advance_time(seconds=15)
        assert run.read("out") == [[1, 3], [12]]
        send(run, 1, 4, 21, 29)
        assert len(late(run)) == 1
        send(run, 0, 35)
        assert run.read("out") == []  # it holds event time back again
        send(run, 1, 41)
        assert run.read("out") == [[21, 25, 26, 29]]


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("when", ["idle", "back"])
def test_what_fired_without_a_partition_stays_fired_after_a_crash(when, point):
    with testing.running(windows()) as run:
        send(run, 0, 1, 12, 25)
        send(run, 1, 3)
        run.advance_time(seconds=20)
        send(run, 0, 26)
        run.advance_time(seconds=15)
        assert run.read("out") == [[1, 3], [12]]
        if when == "back":
            send(run, 1, 21)
            run.read("out")
        run.crash()
        run.restart()
        send(run, 1, 4, 5, 13)
        assert run.read("out") == [] and len(late(run)) == 3
        send(run, 1, 41)
        send(run, 0, 42)
        assert run.read("out") == [[21, 25, 26] if when == "back" else [25, 26]]


def test_an_input_that_is_idle_holds_back_no_other_in_one_stage():
    with testing.running(windows(merges=True)) as run:
        run.send("other", 2)
        send(run, 0, 1, 12, 25)
        send(run, 1, 15, 26)
        assert run.read("out") == []
        run.advance_time(seconds=20)
        send(run, 0, 27)
        send(run, 1, 28)
        run.advance_time(seconds=15)
        assert run.read("out") == [[1, 2], [12, 15]]
        run.send("other", 3, 29)
        assert run.read("out") == [] and len(late(run)) == 1


@pytest.mark.parametrize("closes", [False, True])
def test_where_all_are_idle_the_clock_closes_what_is_open_if_it_may(closes):
    with testing.running(windows({"idle_after_ms": 1_000, "close_on_idle": closes})) as run:
        send(run, 0, 1, 12)
        send(run, 1, 3, 14)
        assert run.read("out") == [[1, 3]]
        run.advance_time(seconds=5)
        assert run.read("out") == []
        run.advance_time(seconds=5)
        assert run.read("out") == ([[12, 14]] if closes else [])
        send(run, 0, 16)
        assert len(late(run)) == closes
        assert run.read("out") == []


def test_without_idleness_nothing_goes_on():
    with testing.running(windows({"idle_after_ms": None})) as run:
        send(run, 0, 1, 12, 25)
        run.advance_time(hours=1)
        assert run.read("out") == []


@pytest.mark.parametrize("first", [0, 1])
def test_the_end_of_one_partition_does_not_close_what_an_idle_one_may_still_send(first):
    with testing.running(windows({"idle_after_ms": 1_000})) as run:
        send(run, first, 1)
        run.advance_time(seconds=5)
        send(run, 1 - first, 2)
        assert run.read("out") == []
        run.advance_time(seconds=5)
        send(run, first, 3)
        assert run.read("out") == []
        run.end()
        assert run.read("out") == [[1, 2, 3]] and late(run) == []


heard = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=30)


@given(heard)
def test_event_time_never_goes_back_nor_past_what_an_active_producer_has_told(steps):
    watermarks, told, idle = ProducerWatermarks("abc", {}), dict.fromkeys("abc", MIN_TIMESTAMP), set()
    before = watermarks.value
    for producer, at, is_idle in steps:
        watermarks.take(Control(producer, at, idle=is_idle))
        told[producer] = max(told[producer], at)
        (idle.add if is_idle else idle.discard)(producer)
        active = [told[one] for one in told if one not in idle]
        ahead = watermarks.floor if not active else max(min(active), watermarks.floor)
        assert before <= watermarks.value <= max(ahead, *told.values()) < MAX_TIMESTAMP
        if active:
            assert watermarks.value == max(min(active), before)
        before = watermarks.value
        again = ProducerWatermarks("abc", watermarks.by_producer, watermarks.idle, watermarks.floor)
        assert again.value == watermarks.value and again.is_idle == watermarks.is_idle == (not active)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=40))
def test_who_was_never_idle_has_stamps_as_they_were(steps):
    watermarks = ProducerWatermarks("ab", {})
    for producer, at in steps:
        watermarks.take(Control(producer, at))
        assert watermarks.raise_stamps([0, 5]) == [0, 5]


@pytest.mark.parametrize("drift", [None, 5_000])
def test_an_input_that_is_far_ahead_waits_for_one_that_is_behind(drift):
    app = App("aligned", Options(batch_records=10))
    pace = {} if drift is None else {"max_drift_ms": drift}
    one, two = (
        app.input(name, value=int, timestamp=lambda n: n * SECOND, key=lambda n: n, priority=priority, **pace)
        for name, priority in (("behind", 0), ("ahead", 1))
    )
    seen = []
    merged = one.map(lambda n: ("behind", n)).merge(two.map(lambda n: ("ahead", n)))
    merged.map(lambda pair: seen.append(pair) or pair).process(lambda pair, context: []).sink(print)
    testing.run(app, {"behind": [*range(300)], "ahead": [*range(300)]})
    assert Counter(name for name, _ in seen) == {"behind": 300, "ahead": 300}
    reached, furthest = {"behind": 0, "ahead": 0}, 0
    for name, n in seen:
        reached[name] = n
        furthest = max(furthest, reached["ahead"] - reached["behind"])
    assert furthest > 100 if drift is None else furthest <= 5 + 10


def test_event_time_is_what_records_say_of_it():
    app = App("punctuated")
    stream = app.input(
        "in",
        value=dict[str, int],
        key=lambda row: 0,
        timestamp=lambda row: row["at"],
        watermark=lambda row: row.get("until"),
        on_error=dead_letter("letters"),
    )
    panes = stream.window(tumbling(seconds=10), collect(), late=dead_letter("late"))
    panes.map(lambda pane: [row["at"] for row in pane.value]).send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("in", {"at": 1}, {"at": 50_000}, {"at": 2})
        assert run.read("out") == []
        run.send("in", {"at": 9_999, "until": 10_000}, {"at": 3}, {"at": 10_001, "until": 5})
        assert run.read("out") == [[1, 2, 9_999]] and len(run.dead_letters("late")) == 1
        run.send("in", {"at": 10_002, "until": 10**30})
        assert len(run.dead_letters("letters")) == 1
        run.end()
        assert run.read("out") == [[10_001], [50_000]]


@pytest.mark.parametrize(
    ("pace", "told"),
    [
        ({"idle_after_ms": 0}, "idle_after_ms=0"),
        ({"max_drift_ms": -1}, "max_drift_ms=-1"),
        ({"close_on_idle": 1}, "close_on_idle"),
        ({"close_on_idle": True, "idle_after_ms": None}, "it never is"),
        ({"idle_after": 3}, "knows no idle_after"),
    ],
)
def test_a_pace_that_cannot_be_meant_is_refused(pace, told):
    with pytest.raises(PlanError, match=told):
        App("wrong").input("in", value=int, **pace)
