"""Recomputing history up to any cut, handing over, and going on live comes to what one live run comes to."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.assembly.history import beside
from runtime.model.clock import LoopClock
from runtime.model.history import HistorySpan
from runtime.opening.rewind import begin_anew
from runtime.reprocessing.handover import hand_over
from runtime.reprocessing.recomputation import take_over
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from tests.building import build
from tests.runtime.test_laws import crash_points, worlds
from tests.sample import sample
from tests.scale import examples
from tests.simulation.crash import NOW_MS, Crash, Watched
from tests.simulation.loop import simulate
from tests.strategies import SEVERAL_STAGES

NAME = "recomputing"


def recompute(world, cuts, crashes=(), directory=None, bind=None):
    """Run a world's application over history up to `cuts`, and hand over to `directory`."""
    world.outcome.sunk.clear()
    span = HistorySpan(until=cuts, hands_over=True)
    for number, crash in enumerate([*crashes, None]):
        environment = Watched(world.environment, crash)
        try:
            run = simulate(lambda: run_of(world, environment, span, bind), world.seed + number, environment.at_turn)  # noqa: B023
        except Crash:
            continue
        hand_over(world.environment, beside(graph_of(world), NAME), run.plan, "law", directory)
        begin_anew(world.environment, f"law.{NAME}", run.plan)
        return


async def run_of(world, environment, span, bind):
    app = build(world.pipeline, world.options, world.seed, on_sink=lambda place, event: see(world, place, event))
    run = Run(
        app.pipeline().of(beside(app.graph(), NAME)),
        environment,
        RunSettings(clock=LoopClock(NOW_MS), span=span, bind=bind),
    )
    await run.drive()
    return run


def see(world, place, event):
    world.outcome.sunk[place, event] += 1


def graph_of(world):
    return build(world.pipeline, world.options, world.seed).graph()


def drawn_cuts(data, world):
    return {
        f"{stream}:{partition}": data.draw(st.integers(0, end), label=f"{stream}:{partition}")
        for (stream, partition), end in world.outcome.ends().items()
    }


def check_handed_over(world, cuts, crashes=()):
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "handover"
        recompute(world, cuts, crashes, directory)
        assert world.environment.state_stats(f"law.{NAME}") == {}
        app = build(world.pipeline, world.options, world.seed)
        take_over(app.pipeline(), world.environment, directory)
    before = world.outcome.sunk.copy()
    assert world.run() == 0
    world.outcome.sunk += before
    world.outcome.check_end()


@given(worlds(), st.data())
@settings(max_examples=examples(60, 20_000))
def test_history_that_is_handed_over_and_the_rest_come_to_what_the_records_say(world, data):
    check_handed_over(world, drawn_cuts(data, world))


@pytest.mark.parametrize("kinds", sample(SEVERAL_STAGES), ids="-".join)
@given(st.data())
@settings(max_examples=examples(20, 5_000))
def test_operators_that_keep_state_are_handed_over(kinds, data):
    world = data.draw(worlds(kinds))
    check_handed_over(world, drawn_cuts(data, world))


@given(worlds(), st.data(), st.lists(crash_points, min_size=1, max_size=3))
@settings(max_examples=examples(30, 5_000))
def test_history_may_crash_before_it_is_handed_over(world, data, crashes):
    check_handed_over(world, drawn_cuts(data, world), crashes)
