"""Runs on a cluster whose workers share nothing with the driver but the data, and what befalls them."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.spark.cluster import cluster

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


def run(shared, master, what, tmp_path, *how):
    """Run the program, and return how many micro-batches it took; see that it was tried again where it was to be."""
    program = shutil.copy(Path(__file__).with_name("driver.py"), tmp_path / "program.py")
    (shared / what).mkdir()
    done = subprocess.run([sys.executable, program, shared, what, master, *how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for flag in ("befallen", "again"):
        (shared / flag).unlink()  # it was there: it was tried again
    return int(done.stdout)


def check(lines):
    """See that each tick was counted once."""
    times = [(f"k{row % 7}", row * 4 - number) for number in range(4) for row in range(ROWS)]
    found = [msgspec.json.decode(line) for line in lines]
    assert {(key, start): number for key, start, number in found} == Counter(
        (key, at // 1_000 * 1_000) for key, at in times
    )
    assert len(found) == len({(key, start) for key, start, _ in found})


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["executor", pytest.param("slow", marks=pytest.mark.long)])
def test_counts_are_right_whatever_befalls_the_workers(shared, master, what, tmp_path):
    run(shared, master, what, tmp_path)
    check((shared / what / "out.jsonl").read_bytes().splitlines())
    assert [path.name for path in (shared / what).iterdir()] == ["out.jsonl"], "nothing of an attempt is left"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", [pytest.param("executor", marks=pytest.mark.long), "slow"])
def test_micro_batches_count_once_whatever_befalls_the_workers(shared, master, what, tmp_path):
    place = shared / f"on-{what}"
    assert run(shared, master, place.name, tmp_path, "on") > 3
    parts = sorted((place / "out.jsonl").glob("part-*"))
    check(line for part in parts for line in part.read_bytes().splitlines())
    kept = json.loads((place / "checkpoint" / "manifest.json").read_bytes())
    files = {name for unit in kept["units"].values() for name, _ in unit["files"]}
    assert {file.name for file in (place / "checkpoint" / "state").iterdir()} == files, "nothing of an attempt is left"
