"""History that units recompute between shuffles, and the rest that runs live, come to what one live run comes to."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.history import HistorySpan
from runtime.reprocessing.recomputation import take_over
from runtime.systems.files.archive import archive_stream
from tests.building import build
from tests.runtime.test_handover import drawn_cuts
from tests.runtime.test_laws import worlds
from tests.sample import sample
from tests.scale import examples
from tests.spark.shuffling import run_here
from tests.strategies import SEVERAL_STAGES


def check_handed_over(world, cuts, seed, bind=None):
    """Run history as Spark would, take it over, run the rest live, and compare with what the records say."""
    app = build(world.pipeline, world.options, world.seed)
    with tempfile.TemporaryDirectory() as scratch, patch("runtime.units.shuffle_rows.BLOCK", 1 + seed % 3):
        directory = Path(scratch) / "handover"
        run_here(app, world.environment, bind, seed, HistorySpan(until=cuts, hands_over=True), directory)
        assert [file.name for file in Path(scratch).iterdir()] == ["handover"]
        take_over(app.pipeline(), world.environment, directory)
    assert world.run() == 0
    world.outcome.check_results()
    assert world.outcome.ends().items() <= world.outcome.positions().items()


@given(worlds(), st.data(), st.integers(0, 999))
@settings(max_examples=examples(40, 10_000))
def test_history_that_units_hand_over_and_the_rest_come_to_what_the_records_say(world, data, seed):
    check_handed_over(world, drawn_cuts(data, world), seed)


@pytest.mark.parametrize("kinds", sample(SEVERAL_STAGES), ids="-".join)
@given(st.data(), st.integers(0, 999))
@settings(max_examples=examples(16, 5_000))
def test_operators_that_keep_state_are_handed_over_by_units(kinds, data, seed):
    world = data.draw(worlds(kinds))
    check_handed_over(world, drawn_cuts(data, world), seed)


@given(worlds(), st.data(), st.integers(0, 999))
@settings(max_examples=examples(20, 5_000))
def test_units_read_history_from_archives(world, data, seed):
    with tempfile.TemporaryDirectory() as scratch:
        bind = {stream: Path(scratch) / stream for stream in world.pipeline.inputs().values()}
        for stream, path in bind.items():
            archive_stream(world.environment, stream, path, "jsonl", rows_per_file=3)
        check_handed_over(world, drawn_cuts(data, world), seed, bind)
