"""Seeds bugs into copies of the source, and shows whether the tests bite: what catches each, and after how much."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bite.bugs import BUGS
from tests.bite.seeded import Bug, Simulated

ROOT = Path(__file__).parents[2]
COPIED = ("operators", "planner", "runtime", "samza_dsl", "tests", "pyproject.toml")
PATIENCE_S = 600


@dataclass(frozen=True)
class Finding:
    """Whether a bug was caught, by what, and after how much."""

    caught: bool
    by: str
    after: str


def look_for(bug: Bug) -> Finding:
    """Seed a bug into a copy of the source, and let loose on it what shall catch it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                # With what is compiled already, which Python takes by the times of files: else each bug compiles all.
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copy(ROOT / name, root / name)
        bug.seed(root)
        return _simulated(root, bug.caught_by) if isinstance(bug.caught_by, Simulated) else _tested(root, bug)


def _simulated(root: Path, how: Simulated) -> Finding:
    arguments = ["tests.simulation", "--kind", how.kind, "--seeds", str(how.seeds), "--first", "--brief"]
    out = _run(root, arguments).stdout
    told = re.search(r"^seed \d+ fails: (\w+)", out, re.MULTILINE)
    played = re.search(r"^(\d+) seeds, (\d+) failed$", out, re.MULTILINE)
    assert played, f"the simulation did not come to its end:\n{out}"
    after = f"{int(played[1]):,} seeds"
    return Finding(played[2] != "0", f"simulation, {how.kind}" + (f": {told[1]}" if told else ""), after)


def _tested(root: Path, bug: Bug) -> Finding:
    assert not isinstance(bug.caught_by, Simulated)
    how = ["-q", "-x", "--hypothesis-seed=0", "--hypothesis-profile=unshrunk", "-p", "no:cacheprovider"]
    process = _run(root, ["pytest", *how, bug.caught_by.tests])
    assert process.returncode in (0, 1), f"the tests did not come to their end:\n{process.stdout}{process.stderr}"
    failed = re.search(r"^FAILED \S+::(\S+)", process.stdout, re.MULTILINE)
    return Finding(process.returncode == 1, failed[1] if failed else bug.caught_by.tests, "one run")


def _run(root: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "SAMZA_TESTS_SCALE": "ci"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def main(arguments: list[str] | None = None) -> int:
    """Look for all bugs, or those whose names have a word in them; return how many were not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.bite", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only bugs with this in their name")
    asked = parser.parse_args(arguments)
    table = Table("bug", "caught by", "after", "seconds")
    missed = tried = 0
    for bug in BUGS:
        if asked.word in bug.name:
            began = time.monotonic()
            found = look_for(bug)
            tried += 1
            missed += not found.caught
            by = found.by if found.caught else f"[bold red]nothing[/] ({found.by})"
            table.add_row(bug.name, by, found.after, f"{time.monotonic() - began:.1f}")
            print(f"{'caught' if found.caught else 'MISSED'}: {bug.name}", file=sys.stderr, flush=True)
    Console(width=160).print(table)
    print(f"{tried} bugs, {missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
