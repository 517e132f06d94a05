"""History that units recompute between shuffles, and the rest that runs live, come to what one live run comes to."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from operators.core.base import Batch
from runtime.model.history import HistorySpan
from runtime.opening.rescaling import factor_of
from runtime.ports.streams import Append, StreamConfig
from runtime.reprocessing.recomputation import take_over
from runtime.systems.files.archive import archive_stream
from samza_dsl import App, count, tumbling
from tests.building import build
from tests.runtime.test_elasticity import can_be_split
from tests.runtime.test_handover import drawn_cuts
from tests.runtime.test_laws import worlds
from tests.sample import sample
from tests.scale import examples
from tests.simulation.crash import memory
from tests.spark.shuffling import run_here
from tests.strategies import APP, SEVERAL_STAGES

OPERATORS_BY_KEY = {
    "scan": lambda keyed: keyed.scan(lambda total, n: total + n, init=int),
    "window": lambda keyed: keyed.window(tumbling(seconds=5), count()).map(lambda pane: pane.value),
    "deduplicate": lambda keyed: keyed.deduplicate(lambda n: n, within_ms=1_000).scan(lambda total, n: n, init=int),
    "process": lambda keyed: keyed.process(lambda n, context: [context.list("all").append(n)] and [n]),
    "join": lambda keyed: keyed.join(keyed, lambda one, other: one, within=(-5, 5)),
}
"""An operator of each kind that keeps state by the keys of its messages."""


def by_key(kept, key):
    app = App("by-key")
    keyed = app.input("numbers", value=int).partition_by(key, partitions=2, op_id="by")
    kept(keyed).send_to(app.output("told", value=int))
    return app


def check_handed_over(world, cuts, seed, bind=None, factor=None):
    """Run history as Spark would, take it over, run the rest live, and compare with what the records say.

    With a factor the tasks of the live run are split.
    """
    app = build(world.pipeline, world.options, world.seed)
    with tempfile.TemporaryDirectory() as scratch, patch("runtime.units.shuffle_rows.BLOCK", 1 + seed % 3):
        directory = Path(scratch) / "handover"
        run_here(app, world.environment, bind, seed, HistorySpan(until=cuts, hands_over=True), directory)
        assert [file.name for file in Path(scratch).iterdir()] == ["handover"]
        take_over(app.pipeline(), world.environment, directory)
    if factor is not None:
        world.options, world.outcome.is_split = replace(world.options, elasticity=factor), True
    assert world.run() == 0
    world.outcome.check_results()
    assert world.outcome.ends().items() <= world.outcome.positions().items()


@given(worlds(), st.data(), st.integers(0, 999))
@settings(max_examples=examples(40, 10_000))
def test_history_that_units_hand_over_and_the_rest_come_to_what_the_records_say(world, data, seed):
    check_handed_over(world, drawn_cuts(data, world), seed)


@given(worlds(("partition_by", "window", "scan")), st.data(), st.integers(0, 999), st.sampled_from((2, 4)))
@settings(max_examples=examples(20, 5_000))
def test_who_takes_over_may_split_the_tasks_that_units_did_not(world, data, seed, factor):
    assume(can_be_split(world))
    check_handed_over(world, drawn_cuts(data, world), seed, factor=factor)
    assert factor_of(world.environment.checkpoints(APP)) == factor


@pytest.mark.parametrize("kinds", sample(SEVERAL_STAGES), ids="-".join)
@given(st.data(), st.integers(0, 999))
@settings(max_examples=examples(16, 5_000))
def test_operators_that_keep_state_are_handed_over_by_units(kinds, data, seed):
    world = data.draw(worlds(kinds))
    check_handed_over(world, drawn_cuts(data, world), seed)


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("operator", OPERATORS_BY_KEY)
def test_the_kinds_of_keys_are_handed_over_with_the_state(operator, is_changed, caplog):
    """A key that is made otherwise since finds none of the state that units have computed, which a live run tells."""
    environment, kept = memory(), OPERATORS_BY_KEY[operator]
    environment.create_stream("numbers", StreamConfig(partitions=1))
    environment.append([Append("numbers", 0, Batch([b"1", b"2"], timestamps=[1, 2]))])
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "handover"
        run_here(by_key(kept, lambda n: n), environment, None, 0, HistorySpan(hands_over=True), directory)
        take_over(by_key(kept, lambda n: n).pipeline(), environment, directory)
    environment.append([Append("numbers", 0, Batch([b"1"], timestamps=[3]))])
    by_key(kept, str if is_changed else lambda n: n).run(environment, until_now=True)
    assert ("keys were int in the runs before, and one is str now" in caplog.text) == is_changed


@given(worlds(), st.data(), st.integers(0, 999))
@settings(max_examples=examples(20, 5_000))
def test_units_read_history_from_archives(world, data, seed):
    with tempfile.TemporaryDirectory() as scratch:
        bind = {stream: Path(scratch) / stream for stream in world.pipeline.inputs().values()}
        for stream, path in bind.items():
            archive_stream(world.environment, stream, path, "jsonl", rows_per_file=3)
        check_handed_over(world, drawn_cuts(data, world), seed, bind)
