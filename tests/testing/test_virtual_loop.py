"""The event loop of a test: time, order, threads, and what never ends."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_dsl.testing import virtual_loop
from samza_dsl.testing.virtual_loop import NETWORK, VirtualLoop


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 10)))
def test_timers_fire_in_order_of_time_and_then_of_asking(delays, steps):
    loop, fired, until = VirtualLoop(), [], 0
    for place, delay in enumerate(delays):
        loop.call_later(delay / 10, lambda place=place: fired.append((loop.time(), place)))
    due = sorted((delay / 10, place) for place, delay in enumerate(delays))
    for step in steps:
        until += step / 10
        loop.proceed(until)
        assert loop.time() == pytest.approx(until, abs=1e-6)
        expected = [place for at, place in due if at <= until + 1e-9]
        assert [place for _, place in fired] == expected
    assert [at for at, _ in fired] == pytest.approx([at for at, _ in due[: len(fired)]], abs=1e-6)
    loop.close()


def test_time_stands_still_while_something_is_ready(loop):
    seen = []

    async def step():
        for _ in range(100):
            seen.append(loop.time())
            await asyncio.sleep(0)

    task = loop.create_task(step())
    loop.proceed(7)
    assert task.done()
    assert seen == [0] * 100


def test_what_is_ready_runs_in_the_order_that_is_drawn():
    def run(seed):
        loop, seen = VirtualLoop(None if seed is None else random.Random(seed)), []
        for n in range(10):
            loop.call_soon(seen.append, n)
        loop.proceed()
        loop.close()
        return seen

    assert run(None) == list(range(10))
    assert run(1) == run(1) != run(2)
    assert sorted(run(1)) == run(None)


def test_so_many_turns_and_no_more(loop):
    turns = []

    def turn():
        turns.append(loop.turns)
        loop.call_soon(turn)

    loop.call_soon(turn)
    loop.proceed(turns=5)
    assert len(turns) == 5
    loop.proceed(turns=3)
    assert len(turns) == 8


def test_what_runs_on_and_on_is_told(loop, monkeypatch):
    monkeypatch.setattr(virtual_loop, "MOST_TURNS", 1_000)

    def turn():
        loop.call_soon(turn)

    turn()
    with pytest.raises(RuntimeError, match="something runs on and on: 1,000 turns"):
        loop.proceed()


def test_what_would_run_in_a_thread_runs_on_the_loop(loop):
    async def main():
        done = await loop.run_in_executor(None, divmod, 7, 2)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 7, 0)
        given_up = loop.run_in_executor(None, divmod, 7, 0)
        given_up.cancel()
        return done

    assert loop.run_until_complete(main()) == (3, 1)
    loop.proceed()


@pytest.mark.parametrize("name", NETWORK)
def test_nothing_outside_can_be_reached(loop, name):
    with pytest.raises(RuntimeError, match=f"{name}: a test on virtual time has no network"):
        loop.run_until_complete(getattr(loop, name)(None, None))
