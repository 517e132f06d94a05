"""B11: what a second container brings to the ReadWrite job and to the word count, on four partitions."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import ClassVar

import msgspec

from benchmarks.durable import committing
from benchmarks.messages import Padded, id_of, increased, itself, lines, padded_messages, to_count, words_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from benchmarks.workload import COMMIT_EVERY
from operators.core.base import Batch
from planner.model.levers import Levers
from runtime.containers.supervisor import Containers
from runtime.job.pipeline import Pipeline
from runtime.ports.streams import Append, StreamConfig
from runtime.run.settings import CrewSettings, RunSettings
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options
from samza_dsl.application.container import PROGRAM
from samza_dsl.application.loading import whereabouts

PARTITIONS = 4
PADDING = 100


def _read_write() -> App:
    app = App("read-write")
    keyed = app.input("messages", value=Padded, key=id_of, partitioned_by_key=True)
    keyed.scan(increased, emit=to_count, op_id="counting").send_to(app.output("counts", partitions=PARTITIONS))
    return app


def _word_count() -> App:
    app = App("word-count")
    words = app.input("lines", value=str).flat_map(words_of)
    by_word = words.partition_by(itself, partitions=PARTITIONS, op_id="by-word")
    by_word.scan(increased, emit=to_count, op_id="counting").send_to(app.output("counts", partitions=PARTITIONS))
    return app


read_write, word_count = _read_write(), _word_count()


class TwoContainers(Shape):
    """The same stream, and an empty state, for one container and for two in turn; one has a process of its own, too."""

    app: ClassVar[App]
    stream: ClassVar[str]
    messages: ClassVar[int]

    def options(self) -> Options:
        """Return how often a container commits."""
        return Options()

    def values(self, number: int) -> list[list[bytes]]:
        """Return the messages, partition by partition."""
        raise NotImplementedError

    def figures(self) -> Figures:
        number = self.scaled(self.messages)
        preloaded = self.scratch / "preloaded"
        _preload(preloaded, self.stream, self.values(number))
        taken: dict[int, list[float]] = {1: [], 2: []}
        expected = self._run(preloaded, 1)[1]
        for _ in range(self.rounds):
            for containers, seconds in taken.items():
                took, found = self._run(preloaded, containers)
                assert found == expected, f"{containers} containers came to something else than one"
                seconds.append(took)
        gains = [one / two for one, two in zip(taken[1], taken[2], strict=True)]
        curve = {
            "times the throughput of one container": median(gains),
            "times at least": min(gains),
            "times at most": max(gains),
            "messages a second in one container": number / median(taken[1]),
            "messages a second in two containers": number / median(taken[2]),
        }
        return Figures(1 / median(gains), curve)

    def _run(self, preloaded: Path, containers: int) -> tuple[float, list[tuple[int, bytes, bytes]]]:
        """Return how long it took, from when all had loaded the application, and what is stored."""
        data = self.scratch / "copy"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(preloaded, data)
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
        app, options = self.app, self.options()
        levers = Levers(relays=containers > 1)  # the bar is over one that hands nothing on in memory
        crew = CrewSettings(number=containers, command=command, found=whereabouts(app))
        run = Containers(Pipeline(app.graph(), options, app.around), data, crew, RunSettings(levers=levers))
        asyncio.run(run.drive())
        seconds = (run.metrics().elapsed_ms - run.start_up_ms) / 1_000
        log = LogEnvironment(data)
        found = [(task, *entry) for task in range(PARTITIONS) for entry in log.state_range(app.name, "counting", task)]
        log.close()
        return seconds, found


def _preload(path: Path, stream: str, partitions: list[list[bytes]]) -> None:
    log = LogEnvironment(path)
    log.create_stream(stream, StreamConfig(partitions=PARTITIONS))
    for partition, values in enumerate(partitions):
        for first in range(0, len(values), COMMIT_EVERY):
            log.append([Append(stream, partition, Batch(values[first : first + COMMIT_EVERY]))])
    log.end_stream(stream)
    log.close()


class TwoReadWrite(TwoContainers):
    app = read_write
    stream = "messages"
    most: ClassVar[int]

    def options(self) -> Options:
        """Return what has a container commit after every 10,000 messages, as many as are read at once."""
        return committing(COMMIT_EVERY, COMMIT_EVERY)

    def values(self, number: int) -> list[list[bytes]]:
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for message in padded_messages(number, self.most, PADDING):
            found[message.id % PARTITIONS].append(msgspec.json.encode(message))
        return found


def _described(name: str, title: str, gain: float) -> ShapeDescription:
    return ShapeDescription(f"B11-{name}", f"time of two containers over that of one: {title}", round(1 / gain, 3), 5)


class TwoReadWrite4(TwoReadWrite):
    description = _described("4", "the paper's ReadWrite, 10,000 ids", 1.6)
    messages, most = 500_000, 10**4


class TwoReadWrite5(TwoReadWrite):
    description = _described("5", "the paper's ReadWrite, 100,000 ids", 1.6)
    messages, most = 500_000, 10**5


class TwoReadWrite6(TwoReadWrite):
    description = _described("6", "the paper's ReadWrite, 1,000,000 ids", 1.3)
    messages, most = 500_000, 10**6


class TwoWordCount(TwoContainers):
    description = _described("w", "the word count", 1.6)
    app = word_count
    stream = "lines"
    messages = 100_000

    def values(self, number: int) -> list[list[bytes]]:
        found = [line.encode() for line in lines(number)]
        return [found[partition::PARTITIONS] for partition in range(PARTITIONS)]
