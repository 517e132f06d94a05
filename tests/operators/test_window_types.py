"""Windows cover the time line; days are those of the calendar, daylight saving included."""

import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import EARLIEST_MS, LATEST_MS
from operators.windows.window_types import Daily, Hopping, Tumbling, daily, duration_ms, hopping, tumbling

HOUR_MS = 3_600_000
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe"]
ZONES += ["Asia/Kathmandu", "Pacific/Apia", "Africa/Cairo", "America/Los_Angeles"]

moments = st.integers(-(10**15), 10**15)
this_century = st.integers(946_684_800_000, 2_500_000_000_000)
windows = st.one_of(
    st.builds(Tumbling, st.integers(1, 10**9), st.integers(-(10**9), 10**9)), st.sampled_from(ZONES).map(daily)
)


@given(windows, this_century)
def test_every_moment_is_in_exactly_one_window_of_those_that_tile(windows, at):
    low, high, found = windows.cell(at)
    assert found == ((low, high),)
    assert low <= at < high
    assert windows.cell(low) == windows.cell(high - 1) == windows.cell(at)
    assert windows.cell(high).low == high and windows.cell(low - 1).high == low


@given(windows, this_century, st.lists(this_century, max_size=5))
def test_a_window_does_not_depend_on_what_was_asked_before(windows, at, before):
    fresh = Daily(windows.tz) if isinstance(windows, Daily) else windows
    for other in before:
        windows.cell(other)
    assert windows.cell(at) == fresh.cell(at)


@given(st.integers(1, 10**9), st.integers(-(10**6), 10**6), moments)
def test_tumbling_windows_are_aligned_to_the_epoch_and_the_offset(size, offset, at):
    start, end, _ = Tumbling(size, offset).cell(at)
    assert (start - offset) % size == 0 and end - start == size


@given(st.integers(1, 60), st.integers(1, 60), st.integers(-100, 100), st.integers(-200, 200))
def test_hopping_windows_are_all_that_hold_a_moment(size, every, offset, at):
    windows = Hopping(max(size, every), min(size, every), offset)
    found = windows.cell(at)
    starts = range(offset - 1_000 * windows.every_ms, offset + 1_000 * windows.every_ms, windows.every_ms)
    assert found.windows == tuple((s, s + windows.size_ms) for s in starts if s <= at < s + windows.size_ms)
    assert found.low <= at < found.high <= found.windows[0][1]
    for other in range(found.low, found.high):
        assert windows.cell(other) == found
    assert windows.cell(found.low - 1).windows != found.windows != windows.cell(found.high).windows


@pytest.mark.parametrize("every_ms", [0, -1, 60_001, 1.5, True])
def test_hopping_windows_between_which_values_fall_are_refused(every_ms):
    with pytest.raises(Exception, match=r"in no window|whole number"):
        hopping(minutes=1, every_ms=every_ms)


def date_of(at, zone):
    return datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).date()


@given(st.sampled_from(ZONES), this_century, st.integers(0, 30 * HOUR_MS))
def test_a_day_holds_the_moments_of_one_date(zone, at, later):
    windows = daily(zone)
    start, end, _ = windows.cell(at)
    date = date_of(at, zone)
    assert date_of(start, zone) == date == date_of(end - 1, zone)
    assert date_of(start - 1, zone) < date < date_of(end, zone)
    assert (start <= at + later < end) == (date_of(at + later, zone) == date)


@pytest.mark.parametrize(
    ("zone", "year", "lengths"),
    [
        ("America/New_York", 2013, {23: 1, 24: 363, 25: 1}),
        ("America/Sao_Paulo", 2017, {23: 1, 24: 363, 25: 1}),
        ("Australia/Lord_Howe", 2020, {23.5: 1, 24: 364, 24.5: 1}),
        ("Asia/Kathmandu", 2020, {24: 366}),
        ("Pacific/Apia", 2011, {23: 1, 24: 362, 25: 1}),
    ],
)
def test_a_year_has_its_short_and_long_days(zone, year, lengths):
    first, last = (datetime(y, 1, 1, tzinfo=ZoneInfo(zone)).timestamp() * 1_000 for y in (year, year + 1))
    starts = [int(first)]
    while starts[-1] < last:
        starts.append(daily(zone).cell(starts[-1]).high)
    hours = [(end - start) / HOUR_MS for start, end in pairwise(starts)]
    assert {length: hours.count(length) for length in set(hours)} == lengths


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9_999))
def test_durations_add_up(days, hours, minutes, seconds, milliseconds):
    given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
    assert duration_ms(**given) == timedelta(**given) // timedelta(milliseconds=1)


@pytest.mark.parametrize("how", [{}, {"hours": 0}, {"seconds": -1}, {"milliseconds": -0.0}])
def test_windows_without_length_are_refused(how):
    with pytest.raises(Exception, match="no windows"):
        tumbling(**how)


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "../etc/passwd"])
def test_a_zone_that_is_not_known_is_refused(zone):
    with pytest.raises(Exception, match="zone"):
        daily(zone)


def test_days_before_the_epoch():
    at = int(datetime(1965, 6, 1, 3, tzinfo=UTC).timestamp()) * 1_000 - 1
    assert daily().cell(at).low == int(datetime(1965, 6, 1, tzinfo=UTC).timestamp()) * 1_000


@pytest.mark.parametrize("zone", [*ZONES, "Pacific/Kiritimati"])
@pytest.mark.parametrize("at", [EARLIEST_MS, LATEST_MS])
def test_days_reach_to_the_ends_of_the_years_that_times_may_lie_in(zone, at):
    windows = daily(zone)
    cell = windows.cell(at)
    assert cell.low <= at < cell.high and cell.high - cell.low == 86_400_000
    inside = cell.high if at == EARLIEST_MS else cell.low - 1
    assert inside in (windows.cell(inside).low, windows.cell(inside).high - 1)


def test_one_time_far_away_takes_no_days_between_into_memory():
    windows = daily("America/New_York")
    tracemalloc.start()
    windows.cell(0), windows.cell(LATEST_MS), windows.cell(EARLIEST_MS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000
