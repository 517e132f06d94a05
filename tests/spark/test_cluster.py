"""Runs on a cluster whose workers share nothing with the driver but the data, and what befalls them."""

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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["nothing", "executor", "slow"])
def test_counts_are_right_whatever_befalls_the_workers(shared, master, what, tmp_path):
    program = shutil.copy(Path(__file__).with_name("driver.py"), tmp_path / "program.py")
    (shared / what).mkdir()
    done = subprocess.run([sys.executable, program, shared, what, master], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    times = [(f"k{row % 7}", max(row * 4 - number, -number)) for number in range(4) for row in range(ROWS)]
    expected = Counter((key, at // 1_000 * 1_000) for key, at in times)
    found = [msgspec.json.decode(line) for line in (shared / what / "out.jsonl").read_bytes().splitlines()]
    assert {(key, start): number for key, start, number in found} == expected
    assert len(found) == len(expected)
    assert (shared / "befallen").exists() is (what != "nothing")
    assert (shared / "again").exists() is (what != "nothing"), "it was tried again"
    assert [path.name for path in (shared / what).iterdir()] == ["out.jsonl"], "nothing of an attempt is left"
    for flag in ("befallen", "again"):
        (shared / flag).unlink(missing_ok=True)
