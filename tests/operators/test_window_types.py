"""Windows tile the time line; days are those of the calendar, daylight saving included."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.window_types import Daily, Tumbling, daily, duration_ms, tumbling

HOUR_MS = 3_600_000
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe"]
ZONES += ["Asia/Kathmandu", "Pacific/Apia", "Africa/Cairo", "America/Los_Angeles"]

moments = st.integers(-(10**15), 10**15)
this_century = st.integers(946_684_800_000, 2_500_000_000_000)
windows = st.one_of(
    st.builds(Tumbling, st.integers(1, 10**9), st.integers(-(10**9), 10**9)), st.sampled_from(ZONES).map(daily)
)


@given(windows, st.lists(this_century, max_size=20))
def test_every_moment_is_in_exactly_one_window(windows, moments):
    starts = windows.starts(moments)
    for at, start in zip(moments, starts, strict=True):
        end = windows.end(start)
        assert start <= at < end
        assert windows.starts([start, end - 1, end]) == [start, start, end]


@given(windows, st.lists(this_century, max_size=20), st.lists(this_century, max_size=5))
def test_a_window_does_not_depend_on_what_was_asked_before(windows, moments, before):
    fresh = Daily(windows.tz) if isinstance(windows, Daily) else windows
    windows.starts(before)
    assert windows.starts(moments) == [fresh.starts([at])[0] for at in moments]


@given(st.integers(1, 10**9), st.integers(-(10**6), 10**6), moments)
def test_tumbling_windows_are_aligned_to_the_epoch_and_the_offset(size, offset, at):
    windows = Tumbling(size, offset)
    (start,) = windows.starts([at])
    assert (start - offset) % size == 0 and windows.end(start) - start == size


def date_of(at, zone):
    return datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).date()


@given(st.sampled_from(ZONES), this_century, st.integers(0, 30 * HOUR_MS))
def test_a_day_holds_the_moments_of_one_date(zone, at, later):
    windows = daily(zone)
    (start,) = windows.starts([at])
    end = windows.end(start)
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
        starts.append(daily(zone).end(starts[-1]))
    hours = [(end - start) / HOUR_MS for start, end in pairwise(starts)]
    assert {length: hours.count(length) for length in set(hours)} == lengths


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9_999))
def test_durations_add_up(days, hours, minutes, seconds, milliseconds):
    given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "milliseconds": milliseconds}
    assert duration_ms(**given) == timedelta(**given) // timedelta(milliseconds=1)


@pytest.mark.parametrize("how", [{}, {"hours": 0}, {"seconds": -1}, {"milliseconds": 0.4}])
def test_windows_without_length_are_refused(how):
    with pytest.raises(Exception, match="no windows"):
        tumbling(**how)


@pytest.mark.parametrize("zone", ["Nowhere/Land", "", "../etc/passwd"])
def test_a_zone_that_is_not_known_is_refused(zone):
    with pytest.raises(Exception, match="zone"):
        daily(zone)


def test_days_before_the_epoch():
    at = int(datetime(1965, 6, 1, 3, tzinfo=UTC).timestamp()) * 1_000 - 1
    assert daily().starts([at]) == [int(datetime(1965, 6, 1, tzinfo=UTC).timestamp()) * 1_000]
