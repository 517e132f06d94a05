"""Whatever the pipeline, the batches, the schedule and the crashes: what a run comes to is what its records say."""

import random
from dataclasses import dataclass, fields, replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.levers import Levers
from samza_dsl import Options
from tests.building import build
from tests.scale import examples
from tests.simulation.check import Outcome
from tests.simulation.crash import CrashPoint, fill, memory, run_through
from tests.strategies import Event, Pipeline, pipelines, records, stored, tables


@dataclass
class World:
    """A drawn pipeline, its records, and the environment in which it runs."""

    pipeline: Pipeline
    parts: list[list[Event]]
    seed: int
    options: Options

    def __post_init__(self):
        self.environment = memory()
        self.outcome = Outcome(self.pipeline, self.parts, self.environment)
        for stream, parts in self.pipeline.split(self.parts).items():
            fill(self.environment, stream, stored(parts), random.Random(self.seed))
        for stream, rows in tables(self.pipeline).items():
            fill(self.environment, stream, rows)

    def run(self, crashes=(), on_commit=None, **how):
        def app():
            return build(self.pipeline, self.options, self.seed, on_sink=see)

        def see(place, event):
            self.outcome.sunk[place, event] += 1

        def note(commit):
            self.outcome.note(commit)
            if on_commit is not None:
                on_commit(commit)

        return run_through(app, self.environment, crashes, self.seed, note, **how)


@st.composite
def worlds(draw, kinds=(), guarantee="exactly_once", commit_by=(None, "container", "task")):
    pipeline = draw(pipelines(kinds=kinds))
    options = Options(
        guarantee=guarantee,
        batch_records=draw(st.sampled_from((1, 3, 2_000))),
        max_uncommitted=draw(st.sampled_from((1, 5, 100_000))),
        max_in_flight=draw(st.sampled_from((1, 4, 1_000))),
        commit_interval_ms=draw(st.sampled_from((5, 1_000))),
        cache_entries=draw(st.sampled_from((0, 1, 100))),
        commit_by=draw(st.sampled_from(commit_by)),
    )
    return World(pipeline, draw(records(pipeline.partitions, nulls=pipeline.nulls)), draw(st.integers(0, 999)), options)


crash_points = st.builds(
    CrashPoint, st.sampled_from(("before_commit", "after_commit", "turn")), st.integers(1, 12)
) | st.builds(CrashPoint, st.just("turn"), st.integers(10, 200))


@given(worlds())
def test_a_run_comes_to_what_its_records_say_whatever_the_batches_and_the_schedule(world):
    assert world.run() == 0
    world.outcome.check_end()


@given(worlds(), st.lists(crash_points, min_size=1, max_size=4))
@settings(max_examples=examples(60, 20_000))
def test_a_restart_after_crashes_gives_what_an_undisturbed_run_gives(world, crashes):
    world.run(crashes)
    world.outcome.check_end()


@given(worlds(), st.lists(crash_points, max_size=3))
@settings(max_examples=examples(150, 20_000))
def test_no_commit_holds_an_effect_of_what_lies_beyond_its_cut_nor_lacks_one_before_it(world, crashes):
    world.run(crashes, lambda commit: world.outcome.check_cut())


LEVERS = st.builds(Levers, **{lever.name: st.booleans() for lever in fields(Levers)})


@given(worlds(), st.lists(crash_points, max_size=2), LEVERS)
@settings(max_examples=examples(60, 20_000))
def test_whatever_lever_is_left_out_commits_and_the_end_are_those_of_the_records(world, crashes, levers):
    world.run(crashes, lambda commit: world.outcome.check_cut(), levers=levers)
    world.outcome.check_end()


@given(
    worlds(("filter", "flat_map", "async", "async", "branch", "partition_by", "process"), "at_least_once"), crash_points
)
def test_at_least_once_loses_nothing(world, crash):
    world.run([crash])
    world.outcome.check_nothing_lost()


@given(worlds(), st.integers(1, 40))
@settings(max_examples=examples(20, 2_000))
def test_a_seed_replays_a_run_exactly(world, turn):
    def ends(crashes):
        again = replace(world)
        commits = []
        again.run(crashes, commits.append)
        return [(commit.generation, commit.checkpoints, commit.state) for commit in commits]

    crashes = [CrashPoint("turn", turn)]
    assert ends(crashes) == ends(crashes)


@pytest.mark.parametrize("kinds", [("window",), ("partition_by", "window"), ("window", "async"), ("process", "async")])
@given(data=st.data())
@settings(max_examples=examples(16, 2_000))
def test_the_end_of_the_streams_fires_everything(kinds, data):
    world = data.draw(worlds(kinds))
    world.run()
    world.outcome.check_end()


@given(worlds(("process", "async", "async"), "at_least_once"), st.lists(crash_points, min_size=1, max_size=3))
def test_at_least_once_loses_nothing_that_is_in_flight_below_a_stateful_operator(world, crashes):
    world.run(crashes)
    world.outcome.check_nothing_lost()


@pytest.mark.parametrize("kinds", [("window",), ("window", "partition_by", "window"), ("process", "window", "async")])
@given(st.data(), st.sampled_from((1, 2, 5)), st.lists(crash_points, max_size=4))
@settings(max_examples=examples(20, 5_000))
def test_a_firing_that_commits_and_crashes_cut_comes_to_what_an_undisturbed_one_does(kinds, data, most, crashes):
    world = data.draw(worlds(kinds))
    with patch("runtime.task.lane.MOST_FIRED", most):
        world.run(crashes)
    world.outcome.check_end()


@given(worlds(("window", "sink")), st.lists(crash_points, max_size=3))
@settings(max_examples=examples(100, 5_000))
def test_windows_keep_nothing_of_what_a_sink_below_takes_back(world, crashes):
    """A sink fails when all that its records do is in the stores: a rollback behind that leaves no trace."""
    world.run(crashes)
    world.outcome.check_end()
