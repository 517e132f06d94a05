"""Runs on a cluster whose workers share nothing with the driver but the data, and what befalls them."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.source import ROOT
from tests.spark.cluster import bare_python, cluster

ROWS = 3_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Return the one directory that all processes see, with the input."""
    directory = tmp_path_factory.mktemp("shared")
    (directory / "in").mkdir()
    for number in range(4):
        rows = (msgspec.json.encode({"key": f"k{row % 7}", "at": row * 4 - number}) for row in range(ROWS))
        (directory / "in" / f"{number}.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    return directory


@pytest.fixture(scope="module")
def master(shared, tmp_path_factory):
    """A cluster of two workers."""
    with cluster(shared, tmp_path_factory.mktemp("logs")) as address:
        yield address


@pytest.fixture(scope="module")
def bare(shared):
    return bare_python(shared)


def run(shared, master, bare, tmp_path, *runs):
    """Run the program, and return how many micro-batches each run took; each was tried again where it was to be."""
    program = shutil.copy(Path(__file__).with_name("driver.py"), tmp_path / "program.py")
    for what in runs:
        (shared / what).mkdir()
    own = {**os.environ, "PYSPARK_PYTHON": str(bare), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, program, shared, master, *runs]
    done = subprocess.run(command, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    for what in runs:
        for flag in ("befallen", "again"):
            (shared / what / flag).unlink()  # it was there: it was tried again
    return [int(line) for line in done.stdout.splitlines()]


def check(lines):
    """See that each tick was counted once."""
    times = [(f"k{row % 7}", row * 4 - number) for number in range(4) for row in range(ROWS)]
    found = [msgspec.json.decode(line) for line in lines]
    assert {(key, start): number for key, start, number in found} == Counter(
        (key, at // 1_000 * 1_000) for key, at in times
    )
    assert len(found) == len({(key, start) for key, start, _ in found})


def check_bounded(place):
    check((place / "out.jsonl").read_bytes().splitlines())
    assert [path.name for path in place.iterdir()] == ["out.jsonl"], "nothing of an attempt is left"


def check_micro_batches(place):
    parts = sorted((place / "out.jsonl").glob("part-*"))
    check(line for part in parts for line in part.read_bytes().splitlines())
    kept = json.loads((place / "checkpoint" / "manifest.json").read_bytes())
    files = {name for unit in kept["units"].values() for name, _ in unit["files"]}
    assert {file.name for file in (place / "checkpoint" / "state").iterdir()} == files, "nothing of an attempt is left"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "into", ["folder", pytest.param("table", marks=pytest.mark.long)], ids=["folder", "table of files"]
)
def test_outputs_are_whole_where_executors_and_workers_are_killed_alone(into, tmp_path):
    command = [sys.executable, "-m", "tests.spark.lost_workers", "--kills", "2", "--each", "2", "--into", into]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told and all(line.endswith("rows: each once") for line in told)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bounded", "going_on"),
    [("executor", "slow-on"), pytest.param("slow", "executor-on", marks=pytest.mark.long)],
)
def test_counts_are_right_whatever_befalls_workers_that_had_none_of_our_code(
    shared, master, bare, bounded, going_on, tmp_path
):
    """One application after the other, in one session: a bounded run, and one in micro-batches."""
    _, batches = run(shared, master, bare, tmp_path, bounded, going_on)
    check_bounded(shared / bounded)
    assert batches > 3
    check_micro_batches(shared / going_on)
