"""Apache Samza on its in-memory system: a job in a JVM of its own, which reads a file before and writes one after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.case import Case, emitted
from benchmarks.running import Timed

BUILT = Path(sys.prefix)
"""Where the environment is: beside Python it has what Maven and javac have put there."""
HEAP = "-Xmx3g"

Pairs = list[list[str]]


def job(store: str) -> Callable[[Any], Timed]:
    """Return what runs a workload with its counts in such a store."""

    def run(workload: Any) -> Timed:
        source, target = workload.scratch / "input", workload.scratch / "output"
        rows = workload.lines if hasattr(workload, "lines") else map(row, workload.messages)
        source.write_text("".join(f"{line}\n" for line in rows))
        classes = f"{BUILT / 'classes'}:{BUILT / 'jars'}/*"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        name = workload.description.name
        command = ["java", HEAP, quiet, "-cp", classes, "Job", name, store, str(source), str(target)]
        shown = subprocess.run(command, cwd=workload.scratch, stdout=subprocess.PIPE, text=True, check=True).stdout
        return Timed(float(shown.splitlines()[-1]), [line.split("\t") for line in target.read_text().splitlines()])

    return run


def row(message: dict[str, Any]) -> str:
    return f"{message['id']}\t{message['v']!r}\t{message['tag']}"


def weights(pairs: Pairs) -> list[Any]:
    return [(int(number), float(weight)) for number, weight in pairs]


def counts(pairs: Pairs) -> list[Any]:
    return [(int(key), int(count)) for key, count in pairs]


def words(pairs: Pairs) -> list[Any]:
    return [(word, int(count)) for word, count in pairs]


IN_MEMORY = "Java, in-memory system, from the first message to the last result"

CASES = {
    "B1": Case(job("memory"), 300_000, IN_MEMORY, results=weights),
    "B3": Case(job("memory"), 300_000, f"{IN_MEMORY}; counts in its store in memory", results=counts),
    "B3d": Case(
        job("rocksdb"),
        200_000,
        f"{IN_MEMORY}; RocksDB, not synced and without a changelog, which needs a broker",
        results=counts,
        expected=emitted,
    ),
    "B4": Case(
        job("memory"),
        100_000,
        f"{IN_MEMORY}; `flatMapAsync`, 1,000 in flight",
        results=lambda pairs: sorted(counts(pairs)),
    ),
    "B5": Case(job("memory"), 10_000, f"{IN_MEMORY}; counts in its store in memory", results=words),
}
