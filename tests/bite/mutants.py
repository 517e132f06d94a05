"""Changes the tracker and the commit in every small way that mutmut knows, and counts the changes that tests notice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.bite.__main__ import COPIED, ROOT

LEAST_KILLED = 0.85


def run(root: Path, *arguments: str) -> str:
    """Run mutmut in a copy of the project, and return what it prints; raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(root / "mutants"), "SAMZA_TESTS_SCALE": "quick"}
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def copy(root: Path) -> None:
    """Copy what mutmut needs of the project, for it leaves its mutants beside the source."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(ROOT / name, root / name)
    (root / "mutants").mkdir()  # Python does not look again for a folder on its path that was not there


def main() -> int:
    """Print the mutants that no test notices, and how many there are; return 1 when that are too many."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy(root)
        run(root, "run", *sys.argv[1:])
        found = re.findall(r"^\s*(\S+__mutmut_\d+): (.+)$", run(root, "results", "--all", "true"), re.MULTILINE)
        for name, outcome in found:
            if outcome != "killed":
                print(f"{outcome}: {run(root, 'show', name)}")
    outcomes = Counter(outcome for _, outcome in found)
    killed = (outcomes["killed"] + outcomes["timeout"]) / len(found)
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common()))
    print(f"{len(found)} mutants, {killed:.1%} killed; at least {LEAST_KILLED:.0%} must be")
    return int(killed < LEAST_KILLED)


if __name__ == "__main__":
    sys.exit(main())
