"""S1: what the start takes of the processor: the import, the help of the commands, and a run to its first record."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from select import select
from statistics import median
from time import perf_counter

import msgspec

from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import produce

LATE = {"pyspark", "aiokafka", "lmdb", "networkx", "asyncio"}
"""What is imported where it is used."""
MOST_MS = {"import samza_dsl": 150.0, "samza-dsl --help": 250.0, "run, to its first record": 500.0}
"""The bars: of the processor, in ms."""
IMPORTED = """
import json, sys
import samza_dsl
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""
PROGRAM = """
from samza_dsl import App

app = App("starting")
app.input("numbers", value=int).map(lambda number: number + 1).send_to(app.output("next", value=int))
"""
PATIENCE_S = 60.0


class StartUp(Shape):
    """Each in fresh processes, with all that Python does; the bytecode lies there."""

    description = ShapeDescription(
        name="S1",
        title="CPU to import, over 150 ms, for --help, over 250 ms, and to the first record, over 500 ms: at worst",
        bar=1.0,
        rounds=15,
        quick_scale=1,
    )

    def figures(self) -> Figures:
        shown = subprocess.run([sys.executable, "-c", IMPORTED], stdout=subprocess.PIPE, check=True).stdout
        if too_early := LATE.intersection(msgspec.json.decode(shown, type=list[str])):
            raise AssertionError(f"import samza_dsl imports {', '.join(sorted(too_early))}")
        took: dict[str, list[float]] = {name: [] for name in MOST_MS}
        first_ms = []
        for number in range(self.rounds):
            imported, helped, run = took.values()
            imported.append(cpu_ms("-c", "import samza_dsl"))
            helped.append(cpu_ms("-m", "samza_dsl", "--help"))
            cpu, clock = first_record(self.scratch / f"{number}")
            run.append(cpu)
            first_ms.append(clock)
        medians = {name: median(found) for name, found in took.items()}
        curve = {f"{name}: ms of CPU": found for name, found in medians.items()}
        curve["run, to its first record: ms by the clock"] = median(first_ms)
        return Figures(max(found / MOST_MS[name] for name, found in medians.items()), curve)


def cpu_ms(*arguments: str) -> float:
    """Return the ms of the processor that Python takes from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def first_record(scratch: Path) -> tuple[float, float]:
    """Run the command until the output of one record is committed; return ms of the processor, and by the clock."""
    scratch.mkdir()
    data, program = scratch / "data", scratch / "starting.py"
    program.write_text(PROGRAM)
    produce("numbers", [1], data=data)
    log = LogEnvironment(data)
    ear = log.listener()
    assert ear is not None, "this is measured where the system has inotify"
    command = [sys.executable, "-m", "samza_dsl", "run", str(program), "--data", str(data)]
    began = perf_counter()
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while "next" not in log.streams() or not log.offsets("next", 0).end:
            assert select([ear], [], [], PATIENCE_S)[0], "the run wrote nothing"
            ear.take()
        clock = (perf_counter() - began) * 1e3
        return cpu_seconds(run.pid) * 1e3, clock
    finally:
        run.terminate()
        run.wait()
        ear.close()
        log.close()


def cpu_seconds(process: int) -> float:
    """Return the seconds of the processor that a process has taken."""
    found = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")
