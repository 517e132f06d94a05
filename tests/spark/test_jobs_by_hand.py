"""What the benchmark measures on Spark comes to the same by all ways: ours, in DataFrames, and in Python by hand."""

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from benchmarks.figures import SparkFigure
from benchmarks.programs.kit.on_spark import measured, tree_cpu_s
from benchmarks.programs.spark_programs import JOBS

LARGE = {"files", "partitions"}
"""The jobs that are of so many files or partitions that a test has no time for them."""
LIKE_OTHERS = {"skewed", "wide", "flights"}
"""The jobs that do what others do, to other rows: a year of flights is computed on Spark elsewhere as well."""
RECORDS = 1_500


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LIKE_OTHERS else []) for name in sorted({*JOBS} - LARGE)],
)
def test_a_job_comes_to_what_both_programs_by_hand_do(name, session, tmp_path):
    figure = measured(JOBS[name], session, RECORDS, 0, tmp_path)
    assert set(figure.cpu_s) == set(JOBS[name].sides) and min(figure.cpu_s.values()) > 0
    assert msgspec.json.decode(msgspec.json.encode(figure), type=SparkFigure) == figure


def test_a_difference_is_told(session, tmp_path):
    job = JOBS["window"]

    def other(spark, inputs):
        return {name: frame.where("ticks > 1") for name, frame in job.frames(spark, inputs).items()}

    with pytest.raises(AssertionError, match=r"window, found: .* rows of ours, .* of frames, which differ"):
        measured(replace(job, frames=other, python=None), session, RECORDS, 0, tmp_path)


def test_processors_seconds_are_those_of_a_child_that_is_over_as_well():
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert tree_cpu_s() - before >= 0.05
