"""The machine's clocks: setting the wall clock moves it alone."""

import time

import pytest

from runtime.model.clock import SystemClock, monotonic_ms, wall_clock_ms

HOUR_S = 3_600


@pytest.mark.parametrize("by_s", [-HOUR_S, 0, HOUR_S])
def test_what_has_passed_does_not_follow_the_wall_clock(by_s, monkeypatch):
    now_s = 1_700_000_000 + by_s
    monkeypatch.setattr(time, "time", lambda: float(now_s))
    monkeypatch.setattr(time, "time_ns", lambda: now_s * 10**9)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5 * 10**9)
    clock = SystemClock()
    assert clock.elapsed_ms() == monotonic_ms() == 5_000
    assert clock.now_ms() == wall_clock_ms() == now_s * 1_000
