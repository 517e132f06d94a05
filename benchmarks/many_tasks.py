"""The command `python -m benchmarks.many_tasks`: what so many tasks with state cost one process, at start and idle."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks import broker
from benchmarks.memory import anonymous_mib
from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, KafkaCluster, Options, String

APP, WORDS, COUNTS = "many", "many-words", "many-counts"
SETTLE_S, IDLE_S = 5.0, 10.0
"""How long is waited until what was read is committed, and for how long it is then looked at."""


class Cost(msgspec.Struct, frozen=True):
    """What a run has cost: until each task had read one record, and then, when all that is committed."""

    tasks: int
    start_s: float
    start_cpu_s: float
    committed_s: float
    descriptors: int
    sockets: int
    idle_core: float
    anonymous_mib: float


def main() -> int:
    """Measure as the arguments say: once as the application begins, and once as it goes on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tasks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--on", choices=("log", "kafka"), default="log")
    parser.add_argument("--commit-by", choices=("task", "container"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.child:
        sys.stdout.buffer.write(msgspec.json.encode(_run(said)) + b"\n")
        return 0
    with TemporaryDirectory(prefix="samza-dsl-many-tasks-") as directory:
        said.bootstrap = broker.bootstrap() if said.on == "kafka" else None
        for began in (True, False):
            with closing(_environment(said, Path(directory) / "outside")) as outside:
                if began:
                    outside.create_stream(COUNTS, StreamConfig(partitions=1))
                    outside.create_stream(WORDS, StreamConfig(partitions=said.tasks))
                outside.append(Append(WORDS, task, Batch([b"%d" % task])) for task in range(said.tasks))
            cost = msgspec.json.decode(_child(said, directory), type=Cost)
            print(f"{'begins ' if began else 'goes on'} {cost}", flush=True)
    return 0


def _child(said: argparse.Namespace, directory: str) -> bytes:
    """Run in a process of its own, and return what it has said."""
    how = ["--tasks", f"{said.tasks}", "--on", said.on, "--child", directory]
    how += ["--commit-by", said.commit_by] if said.commit_by else []
    how += ["--bootstrap", said.bootstrap] if said.bootstrap else []
    run = subprocess.run([sys.executable, "-m", "benchmarks.many_tasks", *how], stdout=subprocess.PIPE, check=True)
    return run.stdout


def _environment(said: argparse.Namespace, own: Path) -> Any:
    """Return what the run's streams are in; on Kafka with a directory of `own`, as any other process has."""
    if said.on == "kafka":
        return KafkaEnvironment(KafkaCluster(f"kafka://{said.bootstrap}"), own)
    return LogEnvironment(own.parent / "data")


def _run(said: argparse.Namespace) -> Cost:
    """Run until each task has read a record, then for a while; return what it has cost."""
    app, seen, found, have_all = App(APP, Options(commit_by=said.commit_by)), 0, list[Cost](), asyncio.Event()

    def count(total: int | None, word: str) -> int:
        nonlocal seen
        seen += 1
        if seen == said.tasks:
            have_all.set()  # on the thread of the loop, which runs all tasks
        return (total or 0) + 1

    words = app.input(WORDS, value=String(), key=lambda word: word, partitioned_by_key=True)
    counts = words.scan(count, emit=lambda word, total: f"{word}: {total}", op_id="count")
    counts.send_to(app.output(COUNTS, value=String(), partitions=1))
    began, began_cpu = time.monotonic(), time.process_time()

    async def watch(run: Any) -> None:
        await have_all.wait()
        start_s, start_cpu_s = time.monotonic() - began, time.process_time() - began_cpu
        await run.settled()
        committed_s = time.monotonic() - began
        await asyncio.sleep(SETTLE_S)
        spent, at = time.process_time(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle = (time.process_time() - spent) / (time.monotonic() - at)
        took = (round(one, 1) for one in (start_s, start_cpu_s, committed_s))
        found.append(Cost(said.tasks, *took, *_descriptors(), round(idle, 3), round(anonymous_mib() or 0)))
        os.kill(os.getpid(), signal.SIGTERM)

    environment = KafkaCluster(f"kafka://{said.bootstrap}") if said.on == "kafka" else None
    app.run(Path(said.child) / "data", environment=environment, watch=watch)
    return found[0]


def _descriptors() -> tuple[int, int]:
    """Return how many descriptors this process has open, and how many of them are connections."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(os.readlink(descriptor))
    return len(names), sum(name.startswith("socket:") for name in names)


if __name__ == "__main__":
    sys.exit(main())
