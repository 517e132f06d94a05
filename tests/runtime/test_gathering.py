"""Calls that return within a moment of each other go on together, and one that returns alone goes on at once."""

import asyncio
import itertools
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.loop.loop import GATHER_MS, HAND_ON_MS
from runtime.task.task import Task
from samza_dsl import App
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once
from tests.simulation.loop import rest

WAYS = (True, False)
"""Messages go on as columns, or each as a unit by itself."""
LIMIT = 100


def pipeline(took_ms, behind, ended_ms):
    """Return an application whose n-th call takes so long, with a stage behind it or without one."""
    app = App("flights")

    async def call(number):
        await rest(took_ms[number])
        ended_ms.append(asyncio.get_running_loop().time() * 1_000)
        return [number]

    found = app.input("in", value=int).async_flat_map(call, max_in_flight=LIMIT, timeout_ms=10_000, op_id="call")
    if behind:
        found = found.partition_by(lambda number: number % 3, partitions=2, op_id="by").map(lambda number: number)
    found.send_to(app.output("out", value=int))
    return app


def run(took_ms, behind, **levers):
    """Run it in virtual time to its end; return what came out, when calls ended, and when a task was at work."""
    environment, ended_ms, worked_ms, do = memory(), [], [], Task.do
    fill(environment, "in", [[(None, b"%d" % number, 0) for number in range(len(took_ms))]])

    def noting(task, work):
        worked_ms.append((asyncio.get_running_loop().time() * 1_000, getattr(work, "__qualname__", "")))
        return do(task, work)

    with patch.object(Task, "do", noting):
        run_once(pipeline(took_ms, behind, ended_ms), environment, levers=Levers(**levers))
    out = sorted(int(value) for part in rows_of(environment, "out") for _, value, _ in part)
    return out, ended_ms, [at for at, work in worked_ms if work == "Task.advance"]


@pytest.mark.parametrize("columns", WAYS, ids=["columns", "units"])
@given(st.lists(st.floats(0, 50), min_size=1, max_size=LIMIT), st.booleans())
@settings(max_examples=examples(40, 5_000))
def test_what_calls_come_to_is_taken_in_within_a_moment_and_not_one_by_one(columns, took_ms, behind):
    out, ended_ms, went_on_ms = run(took_ms, behind, flights=columns)
    assert out == [*range(len(took_ms))]
    for ended in ended_ms:
        assert any(ended <= at <= ended + GATHER_MS + 1e-3 for at in went_on_ms), "nothing waits longer"
    moments = sorted({*went_on_ms})
    assert all(later - at >= GATHER_MS - 1e-3 for at, later in itertools.pairwise(moments))


@pytest.mark.parametrize("columns", WAYS, ids=["columns", "units"])
def test_one_that_returns_alone_goes_on_at_once(columns):
    took_ms = [10.0, 30.0, 60.0]
    _, ended_ms, went_on_ms = run(took_ms, False, flights=columns)
    assert [*dict.fromkeys(went_on_ms)] == ended_ms


@pytest.mark.parametrize("columns", WAYS, ids=["columns", "units"])
def test_what_is_handed_on_waits_for_more_while_calls_are_in_flight(columns):
    """A stage behind takes in what some ms leave at once: in each step a few rows would cost as much as many."""
    took_ms = [float(number) for number in range(LIMIT)]
    fed = []
    feed = Task.feed

    def noting(task, lane, reader, limit):
        if reader.later:
            fed.append(asyncio.get_running_loop().time() * 1_000)
        return feed(task, lane, reader, limit)

    with patch.object(Task, "feed", noting):
        out, _, _ = run(took_ms, True, flights=columns)
    assert out == [*range(LIMIT)]
    assert len({*fed}) <= LIMIT / HAND_ON_MS + 3
