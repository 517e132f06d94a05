"""Records from clocks that are ahead, or in another unit: refused, told, and counted."""

import logging
import re
from datetime import UTC, datetime
from itertools import accumulate
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from operators.core.base import EARLIEST_MS, MIN_TIMESTAMP
from runtime.model.errors import OperatorFailure
from runtime.reading.event_times import NAMES, PER_SECOND, EventTimes, rise_of
from samza_dsl import (
    App,
    Options,
    PlanError,
    SamzaError,
    collect,
    count,
    dead_letter,
    produce,
    session,
    skip,
    testing,
    tumbling,
)

BASE, MINUTE, HOUR, DAY = 1_750_000_000_000, 60_000, 3_600_000, 86_400_000
AHEAD = [BASE + DAY, BASE + 400 * DAY, 253_300_000_000_000, BASE * 1_000, BASE * 10**6]


class Reading(Struct, frozen=True):
    meter: str
    at: int


def readings(number=30, apart_ms=20_000):
    return [Reading(f"m{one % 3}", BASE + one * apart_ms) for one in range(number)]


def with_one(bad, place=5):
    good = readings()
    return [*good[:place], Reading("m9", bad), *good[place:]]


MINUTES = tumbling(minutes=1)


def windowed(windows=MINUTES, repartitions=False, **how):
    """Return an application that counts readings by minute; without a key of its own it does so in one loop."""
    app = App("fleet")
    how = {"timestamp": lambda r: r.at, "max_disorder_ms": MINUTE} | how
    stream = app.input("r", value=Reading, **({} if repartitions else {"key": lambda r: r.meter}), **how)
    stream = stream.partition_by(lambda r: r.meter, op_id="by-meter") if repartitions else stream
    panes = stream.window(windows, count(), late=dead_letter("late"), op_id="panes")
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("bad", AHEAD)
@pytest.mark.parametrize("repartitions", [False, True])
@pytest.mark.parametrize("windows", [MINUTES, session(minutes=5)])
def test_what_is_too_far_ahead_meets_the_policy_and_moves_nothing(bad, repartitions, windows):
    app = windowed(windows, repartitions, max_ahead_ms=HOUR, on_error=dead_letter("bad"))
    found = testing.run(app, {"r": with_one(bad)})
    assert (sum(found["out"]), found["late"], len(found["bad"])) == (30, [], 1)


@pytest.mark.parametrize("place", [0, 15, 30])
def test_it_is_skipped_and_counted(place):
    with testing.running(windowed(max_ahead_ms=HOUR, on_error=skip), start_ms=BASE) as run:
        run.send("r", *with_one(BASE + DAY, place))
        run.end()
        assert sum(run.received("out")) == 30
        (metrics,) = [one for one in run.metrics().operators if one.operator == "r"]
        assert (metrics.skipped, metrics.received) == (1, 30)


def test_the_error_says_which_record_and_what_is_wrong():
    with (
        testing.running(windowed(max_ahead_ms=HOUR), start_ms=BASE) as run,
        pytest.raises(
            OperatorFailure,
            match=r"input 'r' at .*test_far_ahead.py.*2025-06-16 15:06:40 is more than "
            r"max_ahead_ms=3_600_000 ahead of the clock, which is 2025-06-15 15:06:40.* r/0 at 5",
        ),
    ):
        run.send("r", *with_one(BASE + DAY))


def test_the_clock_is_that_of_the_moment_and_the_limit_is_included():
    app = windowed(max_ahead_ms=HOUR, on_error=dead_letter("bad"))
    with testing.running(app, start_ms=BASE) as run:
        run.send("r", Reading("m", BASE + HOUR), Reading("m", BASE + HOUR + 1))
        assert len(run.dead_letters("bad")) == 1
        run.advance_time(milliseconds=1)
        run.send("r", Reading("m", BASE + HOUR + 1))
        assert len(run.dead_letters("bad")) == 1
        assert run.watermark("r") == BASE + HOUR + 1 - MINUTE


@given(st.lists(st.tuples(st.integers(-3 * HOUR, HOUR), st.sampled_from([0, 0, 0, DAY, 400 * DAY])), max_size=40))
def test_the_others_come_to_what_they_come_to_alone(found):
    records = [Reading("m", BASE + at + ahead) for at, ahead in found]
    alone = [one for one in records if one.at <= BASE + HOUR]
    app = windowed(max_ahead_ms=HOUR, on_error=skip)
    assert testing.run(app, {"r": records}, start_ms=BASE) == testing.run(app, {"r": alone}, start_ms=BASE)


def test_a_watermark_that_a_function_tells_is_held_to_it_as_well():
    app = windowed(watermark=lambda r: r.at, timestamp=lambda r: BASE, max_ahead_ms=HOUR, on_error=dead_letter("bad"))
    found = testing.run(app, {"r": [Reading("m", BASE), Reading("m", BASE + DAY), Reading("m", BASE)]}, start_ms=BASE)
    assert (found["out"], found["late"], len(found["bad"])) == ([2], [], 1)


@pytest.mark.parametrize("how", [{}, {"max_ahead_ms": HOUR}])
def test_a_watermark_that_a_producer_tells_is_held_to_it_as_well(how, caplog):
    with testing.running(windowed(**how), start_ms=BASE) as run:
        run.send("r", Reading("m", BASE))
        run.advance_watermark("r", BASE + 2 * DAY)
        run.send("r", Reading("m", BASE + MINUTE))
        assert run.watermark("r") == (BASE if how else BASE + 2 * DAY)
        assert [one.jumps for one in run.metrics().inputs] == [1]
    assert ("is not heeded" if how else "its producer moved event time") in caplog.messages[0]


def test_the_record_s_own_time_is_held_to_it_as_well():
    app = App("own")
    stream = app.input("r", value=int, max_ahead_ms=HOUR, on_error=dead_letter("bad"))
    stream.map(abs).send_to(app.output("out", value=int))
    records = [testing.Record(1, timestamp=BASE), testing.Record(2, timestamp=BASE + DAY)]
    assert testing.run(app, {"r": records}, start_ms=BASE)["out"] == [1]


def test_a_version_of_a_table_is_held_to_it_as_well():
    app = App("versions")
    prices = app.table(
        "prices", value=int, key=str, retention_ms=HOUR, timestamp=lambda p: p, max_ahead_ms=HOUR, on_error=skip
    )
    stream = app.input("r", value=Reading, key=str, timestamp=lambda r: r.at)
    stream.join(prices, lambda r, price: price).send_to(app.output("out", value=int))
    rows = [("m0", BASE), ("m0", BASE + DAY)]
    given_ = {"prices": rows, "r": [("m0", Reading("m0", BASE + 1)), ("m0", Reading("m0", BASE + 2))]}
    assert testing.run(app, given_, start_ms=BASE)["out"] == [BASE, BASE]


def test_a_jump_is_told_once_with_the_ways_out_and_counted(caplog):
    caplog.set_level(logging.WARNING, "samza_dsl")
    with testing.running(windowed()) as run:
        run.send("r", *with_one(BASE + 2 * DAY))
        run.send("r", Reading("m9", BASE + 5 * DAY))
        (found,) = [one for one in run.metrics().inputs if one.stream == "r"]
    (told,) = caplog.messages
    assert told.startswith("input 'r' at ")
    assert "r/0 at 5, moved event time from 2025-06-15 15:07:00 to 2025-06-17 15:05:40" in told
    assert "max_ahead_ms=" in told
    assert "checkpoint set fleet r:0 --watermark '2025-06-15 15:07:00'" in told
    assert (found.jumps, found.warning) == (2, told)


@pytest.mark.parametrize("apart_ms", [20_000, DAY, 12 * HOUR])
def test_no_jump_is_told_where_no_record_alone_moved_event_time_by_more_than_a_day(apart_ms, caplog):
    testing.run(windowed(), {"r": readings(200, apart_ms)})
    assert not caplog.messages


def at_times(*times, **more):
    """Run windows over records with these ms after the beginning, and return what was told."""
    app = windowed(**more)
    testing.run(app, {"r": [Reading("m", BASE + at) for at in times]}, start_ms=BASE)


SECONDS = [*range(0, 40_000, 1_000)]


def jumping(by_ms, after=20):
    return [*SECONDS[:after], SECONDS[after] + by_ms, *SECONDS[after + 1 :]]


@pytest.mark.parametrize("by_ms", [10 * 60_000, HOUR, 2 * HOUR, 23 * HOUR])
@pytest.mark.parametrize("disorder_ms", [0, 60_000])
def test_a_record_that_is_ahead_by_less_than_a_day_is_told_where_most_that_follow_lie_behind_it(
    by_ms, disorder_ms, caplog
):
    with testing.running(windowed(max_disorder_ms=disorder_ms), start_ms=BASE) as run:
        run.send("r", *(Reading("m", BASE + at) for at in jumping(by_ms)))
        (found,) = [one for one in run.metrics().inputs if one.stream == "r"]
    (told,) = caplog.messages
    assert "one record, r/0 at 20, moved event time from 2025-06-15 15:0" in told
    assert "5 of the 5 that came next lie before that" in told
    limit_ms = int(re.search(r"max_ahead_ms=([0-9_]+)", told)[1])
    assert 0 < limit_ms < by_ms
    assert (found.jumps, found.warning) == (1, told)


@given(st.lists(st.sampled_from([1_000, 60_000, 10 * 60_000, 10 * HOUR]), min_size=1, max_size=60))
def test_gaps_of_a_sparse_stream_are_no_jumps(steps):
    with testing.running(windowed(), start_ms=BASE) as run:
        run.send("r", *(Reading("m", BASE + at) for at in accumulate(steps)))
        assert [one.warning for one in run.metrics().inputs] == [""]


@given(
    st.sampled_from([[2 * DAY], [2 * DAY, 9 * DAY], [HOUR, 2 * DAY]]).flatmap(
        lambda steps: st.lists(st.lists(st.sampled_from(steps), min_size=1, max_size=9), min_size=2, max_size=4)
    ),
    st.booleans(),
)
def test_records_that_are_days_apart_come_through_in_any_batches(batches, is_crashed):
    with testing.running(windowed(), start_ms=BASE) as run:
        at = BASE
        for steps in batches:
            times = [at := at + step for step in steps]
            run.send("r", *(Reading("m", one) for one in times))
            if is_crashed:
                run.crash()
                run.restart()
        (found,) = [one for one in run.metrics().inputs if one.stream == "r"]
        assert found.offset == sum(map(len, batches))


def test_batches_of_a_stream_that_rests_each_night_are_not_all_looked_at():
    times = EventTimes(
        windowed().graph().inputs["r"], "fleet", ("r", 0), SimpleNamespace(now_ms=lambda: BASE + 400 * DAY), set()
    )
    day = [at * 60_000 for at in range(390)]
    minutes = [BASE + number * DAY + at for number in range(60) for at in day]
    looked = 0
    for first in range(0, len(minutes), 1_000):
        batch = minutes[first : first + 1_000]
        before = minutes[first - 1] if first else MIN_TIMESTAMP
        stamps = [before, *batch]
        begun = max(before, batch[0])
        is_unusual = times.are_unusual(batch[-1], begun, batch[-1])
        if is_unusual and not times.are_of_history(batch[-1], begun, rise_of(batch, before)):
            looked += 1
            times.note(stamps, None, batch)
    assert looked <= 4


def test_a_clock_that_is_half_the_time_ahead_is_told(caplog):
    at_times(*(at + 2 * HOUR * (at % 2_000 == 0) for at in SECONDS))
    assert "moved event time" in caplog.text


def test_a_jump_after_a_night_of_rest_is_told_as_well(caplog):
    days = [day * 20 * HOUR + at for day in range(4) for at in SECONDS]
    at_times(*days, *(80 * HOUR + at for at in jumping(2 * HOUR)))
    assert "r/0 at 180, moved event time" in caplog.text


@pytest.mark.parametrize("lateness_ms", [3 * HOUR, 2 * HOUR + 60_000])
def test_what_the_plan_has_lateness_for_is_no_jump(lateness_ms, caplog):
    app = App("fleet")
    stream = app.input("r", value=Reading, key=lambda r: r.meter, timestamp=lambda r: r.at)
    stream.window(tumbling(minutes=1), count(), allowed_lateness_ms=lateness_ms).send_to(app.output("out"))
    testing.run(app, {"r": [Reading("m", BASE + at) for at in jumping(2 * HOUR)]}, start_ms=BASE)
    assert not caplog.messages


def test_a_jump_is_told_where_batches_are_folded_as_well(tmp_path, caplog):
    app = App("fleet")
    stream = app.input("r", value=Reading, key=lambda r: r.meter, timestamp=lambda r: r.at)
    stream.window(tumbling(minutes=1), count(), op_id="w").map(lambda pane: pane.value).send_to(app.output("out"))
    many = [BASE + at for at in range(0, 20_000_000, 1_000)]
    produce("r", [Reading("m", at) for at in many], data=tmp_path)
    app.run(tmp_path, until_now=True)
    assert not caplog.messages
    many = [BASE + at for at in range(20_000_000, 40_000_000, 1_000)]
    many[10_000] += 12 * HOUR
    produce("r", [Reading("m", at) for at in many], data=tmp_path)
    app.run(tmp_path, until_now=True)
    assert "r/0 at 30000, moved event time" in caplog.text


MEANT = [("us", "ms"), ("us", "s"), ("ns", "us"), ("ns", "ms"), ("ns", "s")]


@pytest.mark.parametrize(("said", "meant"), MEANT)
def test_times_in_a_larger_unit_than_was_said_are_refused(said, meant):
    found = [Reading("m", BASE * PER_SECOND[meant] // 1_000 + one) for one in range(5)]
    with pytest.raises(PlanError) as ended:
        testing.run(windowed(unit=said), {"r": found})
    assert f"unit={meant!r} in the place of unit={said!r}" in str(ended.value)
    assert "2025-06-15 15:0" in str(ended.value)


@pytest.mark.parametrize(("said", "meant"), MEANT)
def test_watermarks_in_a_larger_unit_than_was_said_are_refused(said, meant):
    app = windowed(
        unit=said,
        timestamp=lambda r: datetime.fromtimestamp(r.at / 1_000, UTC),
        watermark=lambda r: r.at * PER_SECOND[meant] // 1_000,
    )
    with pytest.raises(PlanError, match=f"unit={meant!r}"):
        testing.run(app, {"r": readings(5)})


@pytest.mark.parametrize(("said", "meant"), [("s", "ms"), ("s", "us"), ("ms", "us"), ("us", "ns")])
def test_times_in_a_smaller_unit_than_was_said_are_refused(said, meant):
    with pytest.raises(SamzaError, match=f"unit={meant!r}"):
        testing.run(windowed(unit=said), {"r": [Reading("m", BASE * PER_SECOND[meant] // 1_000)]})


def test_a_table_s_times_are_looked_at_as_well():
    app = App("fleet")
    rows = app.table("prices", value=Reading, key=str, timestamp=lambda r: r.at, retention_ms=DAY)
    stream = app.input("r", value=Reading, key=str, timestamp=lambda r: r.at)
    stream.join(rows, lambda r, row: r.at).send_to(app.output("out"))
    given_ = {"prices": [("m", Reading("m", BASE // 1_000)), ("n", None)], "r": [("m", Reading("m", BASE))]}
    with pytest.raises(PlanError, match="unit='s'"):
        testing.run(app, given_, start_ms=BASE)


@pytest.mark.parametrize("meant", ["s", "ms"])
def test_times_are_not_written_in_a_larger_unit_than_was_said(meant, tmp_path):
    with pytest.raises(PlanError, match=f"unit={meant!r} in the place of unit='us'"):
        produce(
            "r",
            readings(3),
            timestamp=lambda r: r.at * PER_SECOND[meant] // 1_000,
            unit="us",
            data=tmp_path,
        )


def test_the_first_record_of_all_is_compared_with_a_real_clock(caplog):
    with testing.running(windowed(), start_ms=BASE) as run:
        run.send("r", Reading("m", BASE + 2 * DAY))
    (told,) = caplog.messages
    assert "moved event time from 2025-06-15 15:06:40 to" in told


@pytest.mark.parametrize("how", [{}, {"max_disorder_ms": 0}, {"timestamp": None}])
def test_seconds_that_are_taken_as_ms_are_refused(how, tmp_path):
    app = windowed(**{"timestamp": lambda r: r.at} | how)
    found = [testing.Record(Reading("m", BASE // 1_000 + one), timestamp=BASE // 1_000) for one in range(5)]
    with pytest.raises(
        PlanError, match=r"input 'r' at .*1_750_000_000, which as ms is 1970-01-21.*2025-06-15.*unit='s'"
    ):
        testing.run(app, {"r": found}, start_ms=BASE)


@pytest.mark.parametrize("unit_s", [1, 10**3])
@pytest.mark.parametrize("missing", [[0], [-1], [0, 0, -1, 0]])
@pytest.mark.parametrize("together", [True, False])
def test_times_that_stand_for_none_hide_no_seconds(unit_s, missing, together):
    seconds = [Reading("m", BASE // 1_000 + one) for one in range(5)]
    none = [Reading("m", at) for at in missing]
    app = windowed(**({} if unit_s == 1 else {"unit": "us", "timestamp": lambda r: r.at * unit_s}))
    with testing.running(app, start_ms=BASE) as run:
        if not together:
            run.send("r", *none)
        with pytest.raises(PlanError, match=r"750_000_000.*unit='(s|ms)'"):
            run.send("r", *(none * together), *seconds)


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize(("called", "clock"), [("set_timer", BASE), ("set_alarm", BASE), ("set_timer", 0)])
def test_timers_and_alarms_in_seconds_meet_the_policy(called, clock, late):
    def ask(reading, context):
        seconds = reading.at // 1_000 + 60
        getattr(context, called)(seconds if reading.at % 2 else seconds * 1_000)
        return [reading.at]

    at = {"on_timer": lambda at, context: [], "on_alarm": lambda at, context: []}
    app = App("asking")
    stream = app.input("r", value=Reading, key=lambda r: r.meter, timestamp=lambda r: r.at)
    stream.process(ask, on_error=dead_letter("bad"), **at).send_to(app.output("out"))
    odd = [Reading("m", BASE + 2 * one + (one == late)) for one in range(4)]
    found = testing.run(app, {"r": odd}, start_ms=clock)
    assert (found["out"], len(found["bad"])) == ([one.at for one in odd if not one.at % 2], 1)
    small = [Reading("m", at) for at in (1_001, 2_001)]
    assert testing.run(app, {"r": small})["out"] == [1_001, 2_001]


def test_nobody_minds_the_records_own_times_where_nothing_asks_for_event_time():
    app = App("untimed")
    app.input("r", value=int).map(abs).send_to(app.output("out", value=int))
    assert testing.run(app, {"r": [testing.Record(1, timestamp=BASE // 1_000)]}, start_ms=BASE)["out"] == [1]


@pytest.mark.parametrize(
    "times",
    [
        range(300),
        range(-300, 0),
        range(EARLIEST_MS, EARLIEST_MS + 5),
        [0, BASE // 1_000],
        [999_999_999],
        [2025_06_15, 2025_06_31],
    ],
)
def test_small_times_and_those_before_1970_are_taken(times):
    found = testing.run(windowed(), {"r": [Reading("m", at) for at in times]})
    assert sum(found["out"]) + len(found["late"]) == len(times)


@pytest.mark.parametrize("written", ["%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
@given(days=st.lists(st.datetimes(datetime(2001, 1, 1), datetime(2099, 12, 31)), min_size=1, max_size=5))
def test_dates_written_as_one_number_are_refused(written, days):
    found = [Reading("m", int(day.strftime(written))) for day in days]
    with pytest.raises(PlanError, match=r"and as a date 20.*strptime.*unit='ms'"):
        testing.run(windowed(), {"r": found}, start_ms=BASE)
    meant = testing.run(windowed(unit="ms"), {"r": found}, start_ms=BASE)
    assert sum(meant["out"]) + len(meant["late"]) == len(days)


@pytest.mark.parametrize(("name", "seconds"), [("days", 86_400), ("hours", 3_600), ("minutes", 60)])
def test_other_counts_since_1970_are_told_once(name, seconds, caplog):
    found = [Reading("m", BASE // 1_000 // seconds + one) for one in range(5)]
    assert testing.run(windowed(), {"r": found}, start_ms=BASE)["out"] == [5]
    (told,) = caplog.messages
    assert f"as {name} since 1970 it is 2025-06-15" in told
    assert "unit='ms'" in told
    caplog.clear()
    testing.run(windowed(unit="ms"), {"r": found}, start_ms=BASE)
    testing.run(windowed(), {"r": found})  # a test's own clock of 1970
    assert not caplog.messages


@pytest.mark.parametrize("per_second", [10**6, 10**9])
def test_what_is_no_time_in_ms_is_told_with_what_it_probably_is(per_second):
    unit = {10**6: "us", 10**9: "ns"}[per_second]
    with pytest.raises(OperatorFailure, match=f"2025-06-15 15:06:40: unit='{unit}'"):
        testing.run(windowed(), {"r": [Reading("m", BASE // 1_000 * per_second)]})


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)])
def test_times_are_taken_in_the_unit_that_is_said(unit, per_second):
    app = App("units")
    stream = app.input("r", value=int, key=lambda at: 0, timestamp=lambda at: at, unit=unit)
    stream.window(tumbling(seconds=10), collect()).map(lambda pane: pane.start).send_to(app.output("out", value=int))
    assert testing.run(app, {"r": [BASE * per_second // 1_000]})["out"] == [BASE]
    with pytest.raises(OperatorFailure, match="not in the years"):
        testing.run(app, {"r": [10**30]})


def test_seconds_told_as_watermarks_are_refused():
    app = windowed(timestamp=lambda r: r.at, watermark=lambda r: r.at // 1_000)
    with pytest.raises(PlanError, match="watermark= returned 1_750_000_000, which as ms is"):
        testing.run(app, {"r": readings()})


def test_a_number_with_a_fraction_is_told_to_be_seconds():
    with pytest.raises(OperatorFailure, match="as seconds it is 2025-06-15 15:06:40: unit='s' on the input"):
        testing.run(windowed(timestamp=lambda r: r.at / 1_000), {"r": readings()})


def test_the_clock_of_a_test_is_told():
    with (
        testing.running(windowed(max_ahead_ms=HOUR)) as run,
        pytest.raises(OperatorFailure, match=r"which is 1970-01-01 00:00:00 \(a test's begins at its start_ms=\)"),
    ):
        run.send("r", *readings())


def test_parts_of_seconds_and_datetimes_are_taken_as_well():
    app = App("units")
    stream = app.input("r", value=float, key=lambda at: 0, unit="s", timestamp=lambda at: at)
    stream.window(tumbling(milliseconds=1), collect()).map(lambda pane: pane.start).send_to(
        app.output("out", value=int)
    )
    assert testing.run(app, {"r": [1_750_000_000.25]})["out"] == [BASE + 250]
    app = windowed(timestamp=lambda r: datetime.fromtimestamp(r.at // 1_000, UTC), unit="s")
    assert sum(testing.run(app, {"r": readings()})["out"]) == 30


def test_a_unit_is_one_of_four():
    with pytest.raises(PlanError, match="unit='minutes' is no unit of time; write instead: unit='s'"):
        windowed(unit="minutes")


def test_seconds_are_not_written_as_ms_either(tmp_path):
    with pytest.raises(Exception, match="2025-06-15 15:06:40"):
        produce("r", [1], data=tmp_path, timestamp=lambda _: BASE // 1_000)
    assert produce("r", [1], data=tmp_path, timestamp=lambda _: BASE // 1_000, unit="s") == 1
    assert produce("r", [1], data=tmp_path, timestamp=lambda _: BASE // 1_000, unit="ms") == 1


def late_at(app, operator, *inputs):
    with testing.running(app) as run:
        for stream, records in inputs:
            run.send(stream, *records)
        run.end()
        return sum(one.late for one in run.metrics().operators if one.operator == operator)


def fleet():
    app = App("fleet")
    how = {"timestamp": lambda r: r.at, "max_disorder_ms": MINUTE}
    return app, app.input("r", value=Reading, key=lambda r: r.meter, **how)


@pytest.mark.parametrize(("bad", "late"), [(BASE + DAY, 25), (BASE + MINUTE, 0)])
def test_state_in_time_counts_what_came_after_its_time(bad, late):
    app, stream = fleet()
    stream.process(lambda r, context: [r.meter], init=int, ttl_ms=HOUR, op_id="seen").sink(str)
    assert late_at(app, "seen", ("r", with_one(bad))) == late


@pytest.mark.parametrize(("bad", "late"), [(BASE + DAY, 25), (BASE + MINUTE, 0)])
def test_a_deduplication_counts_what_it_can_not_know(bad, late):
    app, stream = fleet()
    stream.deduplicate(lambda r: r.at, within_ms=HOUR, op_id="once").sink(str)
    assert late_at(app, "once", ("r", with_one(bad))) == late


@pytest.mark.parametrize(("bad", "late"), [(BASE + DAY, 25), (BASE + MINUTE, 0)])
def test_timers_that_are_due_as_they_are_set_are_counted(bad, late):
    app, stream = fleet()

    def on_message(r, context):
        context.set_timer(r.at + 5 * MINUTE)

    def on_timer(at_ms, context):
        if at_ms < BASE + 6 * MINUTE:
            context.set_timer(at_ms + MINUTE)
        return [at_ms]

    stream.process(on_message, on_timer=on_timer, op_id="later").sink(str)
    assert late_at(app, "later", ("r", with_one(bad))) == late


@pytest.mark.parametrize(
    ("unit", "make"),
    [
        ("ms", lambda at: np.int64(at)),
        ("s", lambda at: np.int32(at // 1_000)),
        ("s", lambda at: np.float64(at / 1_000)),
        ("us", lambda at: np.uint64(at * 1_000)),
    ],
)
def test_numbers_of_numpy_are_times_as_any_other(unit, make):
    app = windowed(timestamp=lambda r: make(r.at), unit=unit)
    assert testing.run(app, {"r": readings()}) == testing.run(windowed(), {"r": readings()})


def test_numbers_of_numpy_in_another_unit_are_told():
    with pytest.raises(OperatorFailure, match=r"as seconds it is 2025-06-15 15:06:40\.500: unit='s'"):
        testing.run(windowed(timestamp=lambda r: np.float64(BASE / 1_000 + 0.5)), {"r": readings()})
    with pytest.raises(OperatorFailure, match=r"returned .*nan"):
        testing.run(windowed(timestamp=lambda r: np.float64("nan"), unit="s"), {"r": readings()})


@pytest.mark.parametrize("by_ms", [HOUR, 23 * HOUR, 2 * DAY])
@pytest.mark.parametrize("repartitions", [False, True])
@pytest.mark.parametrize("batches", [[41], [1, 40], [3, 3, 35]])
@pytest.mark.parametrize("start_ms", [None, BASE + 400 * DAY], ids=["a test's clock", "history"])
def test_a_first_record_that_is_ahead_of_those_that_follow_is_told(by_ms, repartitions, batches, start_ms, caplog):
    times = iter([by_ms, *SECONDS])
    with testing.running(windowed(repartitions=repartitions), **({"start_ms": start_ms} if start_ms else {})) as run:
        for size in batches:
            run.send("r", *(Reading("m", BASE + next(times)) for _ in range(size)))
        (found,) = [one for one in run.metrics().inputs if one.stream == "r"]
    (told,) = caplog.messages
    assert "the first record, r/0 at 0, began event time with 2025-06-" in told
    assert re.search(r"5 of the 5 that came next lie before that, up to 2025-06-15 15:06:4", told)
    assert f"checkpoint set fleet r:0 --watermark '{'2025-06-15 15:05'}" in told
    assert ("max_ahead_ms=" in told) == (start_ms is None)
    assert (found.jumps, found.warning) == (1, told)


def test_it_is_told_where_batches_are_folded_as_well(tmp_path, caplog):
    app = App("fleet")
    stream = app.input("r", value=Reading, key=lambda r: r.meter, timestamp=lambda r: r.at)
    stream.window(tumbling(minutes=1), count(), op_id="w").map(lambda pane: pane.value).send_to(app.output("out"))
    produce("r", [Reading("m", BASE + at) for at in (2 * HOUR, *range(0, 2_000_000, 1_000))], data=tmp_path)
    app.run(tmp_path, until_now=True)
    assert "the first record, r/0 at 0, began event time" in caplog.text


@given(st.lists(st.integers(-200_000, 200_000), min_size=1, max_size=30), st.integers(0, HOUR))
def test_a_first_record_that_is_among_those_that_follow_is_none(steps, apart_ms):
    times = [BASE, *(BASE + number * apart_ms + step for number, step in enumerate(steps))]
    with testing.running(windowed(max_disorder_ms=0), start_ms=BASE) as run:
        run.send("r", *(Reading("m", at) for at in times))
        assert not [one.warning for one in run.metrics().inputs if "first record" in one.warning]


def test_a_run_that_goes_on_has_no_first_record(tmp_path, caplog):
    for times in (range(20), [2 * HOUR + at for at in range(20)], range(20)):
        with caplog.at_level(logging.WARNING):
            produce("r", [Reading("m", BASE + at * 1_000) for at in times], data=tmp_path)
            windowed().run(tmp_path, until_now=True)
    assert "first record" not in caplog.text


SMALLER = {("s", "ms"): 1_000, ("s", None): 1_000, ("ms", "us"): 1_000, ("s", "us"): 10**6}
"""By the unit that times get later, and the one that an input says: how many times as small numbers are then."""


@pytest.mark.parametrize(("later", "unit"), SMALLER)
@pytest.mark.parametrize("batch_records", [1, 50, 1_000])
@pytest.mark.parametrize("repartitions", [False, True])
def test_times_that_are_of_a_larger_unit_from_some_record_on_are_told_once(
    later, unit, batch_records, repartitions, caplog
):
    scale, less = PER_SECOND[unit or "ms"] // 1_000, SMALLER[later, unit]
    good = [Reading(f"m{one % 3}", (BASE + one * 1_000) * scale) for one in range(200)]
    bad = [Reading(one.meter, one.at // less) for one in good]
    app = windowed(MINUTES, repartitions, unit=unit) if unit else windowed(MINUTES, repartitions)
    app.options = msgspec.structs.replace(app.options, batch_records=batch_records)
    found = testing.run(app, {"r": [*good, *bad]}, start_ms=BASE + HOUR)
    assert (sum(found["out"]), len(found["late"])) == (200, 200)
    (told,) = [line for line in caplog.messages if "another unit" in line]
    assert re.search(r"input 'r' at .*test_far_ahead.py:\d+: timestamp= returned 1_750_0\d\d", told)
    assert f"as {NAMES[later]} 2025-06-15 15:0" in told


@pytest.mark.parametrize(
    ("old", "is_told"),
    [(0, True), (5, True), (-1, True), (86_400_000, True), (BASE - 400 * DAY, False), (365 * DAY, False)],
)
@pytest.mark.parametrize("repartitions", [False, True])
def test_a_record_of_early_1970_among_those_of_our_time_is_told_and_no_other_of_the_past(
    old, is_told, repartitions, caplog
):
    found = testing.run(
        windowed(repartitions=repartitions), {"r": [*readings(), Reading("m1", old)]}, start_ms=BASE + HOUR
    )
    assert len(found["late"]) == 1
    assert any(f"timestamp= returned {old:_}, which" in line for line in caplog.messages) == is_told


@given(
    st.integers(1, 599),
    st.sampled_from([1_000, 10**6, None]),
    st.sampled_from([50, 1_000]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=30)
def test_one_time_of_another_unit_among_thousands_is_told_wherever_it_lies(place, less, batch, repartitions, folds):
    times = [BASE + one * 20 for one in range(600)]
    times[place] = 0 if less is None else times[place] // less
    app = App("fleet", Options(batch_records=batch))
    stream = app.input("r", value=Reading, key=lambda r: r.meter, timestamp=lambda r: r.at)
    if repartitions:
        stream = stream.partition_by(lambda r: r.meter)
    panes = stream.window(tumbling(minutes=1) if folds else session(minutes=1), count())
    panes.map(lambda pane: pane.key).send_to(app.output("out"))
    with testing.running(app, start_ms=BASE + HOUR) as run:
        run.send("r", *(Reading("m", at) for at in times))
        (found,) = [one for one in run.metrics().inputs if one.stream == "r"]
    assert f"timestamp= returned {times[place]:_}, which" in found.warning


@pytest.mark.parametrize(
    ("disorder_ms", "lateness_ms", "is_told"),
    [(3 * DAY, 0, False), (DAY, 0, True), (MINUTE, 0, True), (0, 3 * DAY, False), (DAY, 2 * DAY, False)],
)
def test_a_jump_that_makes_nothing_late_by_what_input_and_windows_allow_is_not_told(
    disorder_ms, lateness_ms, is_told, caplog
):
    app = App("fleet")
    how = {"timestamp": lambda r: r.at, "key": lambda r: r.meter, "max_disorder_ms": disorder_ms}
    panes = app.input("r", value=Reading, **how).window(
        MINUTES, count(), late=dead_letter("late"), allowed_lateness_ms=lateness_ms
    )
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    found = testing.run(app, {"r": with_one(BASE + 2 * DAY)}, start_ms=BASE + HOUR)
    assert (bool(found["late"]), any("moved event time" in line for line in caplog.messages)) == (is_told, is_told)


def test_the_command_that_sets_event_time_back_says_where(tmp_path, caplog):
    produce("r", [*with_one(BASE + 2 * DAY)], value=Reading, data=tmp_path)
    windowed().run(tmp_path, until_now=True)
    assert f"--watermark '2025-06-15 15:07:00' --data {tmp_path} sets event time back" in caplog.text
