"""S1: how long the import takes, over that of the two packages which it can't do without."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import msgspec

from benchmarks.shapes.shape import Figures, Shape, ShapeDescription

LATE = {"pyspark", "aiokafka", "lmdb"}
"""What is imported where it is used."""
PROGRAM = """
import json, sys, time
began = time.perf_counter()
import {modules}
print(json.dumps([time.perf_counter() - began, sorted(name for name in sys.modules if "." not in name)]))
"""


class StartUp(Shape):
    """Each import in a fresh process, in turn; the start of Python is not timed."""

    description = ShapeDescription(
        name="S1", title="import samza_dsl ÷ import msgspec, networkx", bar=3.0, rounds=15, quick_scale=1
    )

    def figures(self) -> Figures:
        seconds: dict[str, list[float]] = {"msgspec, networkx": [], "samza_dsl": []}
        for _ in range(self.rounds):
            for modules, found in seconds.items():
                took, imported = imports(modules)
                found.append(took)
                if too_early := LATE.intersection(imported):
                    raise AssertionError(f"import {modules} imports {', '.join(sorted(too_early))}")
        theirs, ours = seconds.values()
        ratio = median(one / other for other, one in zip(theirs, ours, strict=True))
        return Figures(ratio, {f"ms for {modules}": median(found) * 1e3 for modules, found in seconds.items()})


def imports(modules: str) -> tuple[float, list[str]]:
    """Return the seconds that an import takes in a process of its own, and all modules that it has then."""
    command = [sys.executable, "-c", PROGRAM.format(modules=modules)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return msgspec.json.decode(shown, type=tuple[float, list[str]])
