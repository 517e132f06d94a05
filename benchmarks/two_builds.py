"""Two builds of the library on one workload, in turn in processes of their own: what changed between two commits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RUNS = 3
"""How often a process runs the workload; the least of them counts, as neighbours only add."""
ONCE = f"""
import sys, tempfile
from pathlib import Path
from benchmarks import WORKLOADS
from benchmarks.running import run
kind = WORKLOADS[sys.argv[1]]
with tempfile.TemporaryDirectory() as scratch:
    workload = kind(kind.description.scaled(float(sys.argv[2])), Path(scratch))
    print(min(run(workload, workload.ours).cpu_seconds for _ in range({RUNS})))
"""
"""What a process of either build does: only names that builds of long ago have, too."""


class Change(NamedTuple):
    """The processor time of this build ÷ that of another one: the median of pairs, and the middle half of them."""

    ratio: float
    low: float
    high: float


@contextmanager
def build_of(commit: str) -> Iterator[Path]:
    """Check a commit out beside this one while it is needed; raises ValueError where the repository has no such commit.

    Only what is committed is there; packages are those of this environment.
    """
    with TemporaryDirectory(prefix="samza-dsl-build-") as scratch:
        build = Path(scratch) / "build"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run([*git, "add", "--detach", "--quiet", str(build), commit], capture_output=True, text=True)
        if made.returncode:
            raise ValueError(f"{commit} can't be checked out beside this build: {made.stderr.strip()}")
        try:
            yield build
        finally:
            subprocess.run([*git, "remove", "--force", str(build)], check=True)


def change(name: str, build: Path, scale: float, pairs: int) -> Change:
    """Return what a workload takes in this build over another one, a pair of processes at a time."""
    ratios = []
    for pair in range(pairs):
        took = {one: _seconds(name, one, scale) for one in ((build, ROOT) if pair % 2 else (ROOT, build))}
        ratios.append(took[ROOT] / took[build])
    ratios.sort()
    quarter = len(ratios) // 4
    return Change(median(ratios), ratios[quarter], ratios[-1 - quarter])


def _seconds(name: str, build: Path, scale: float) -> float:
    environment = {**os.environ, "PYTHONPATH": str(build), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", ONCE, name, str(scale)]
    return float(subprocess.run(command, cwd=build, env=environment, stdout=subprocess.PIPE, check=True).stdout)
