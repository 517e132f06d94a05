"""B13: the ReadWrite job of Samza's paper from a topic of a real Kafka broker, with and without a changelog."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from benchmarks.broker import PARTITIONS, bootstrap, filled_topic, fresh_name
from benchmarks.messages import increased, to_count
from benchmarks.workload import Description, Workload
from operators.state.keyed_state import STATE
from planner.model.virtual_tasks import VirtualTask
from runtime.encoding.serdes import Tagged
from runtime.ports.commits import Commit
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App

PADDING = bytes(100)
STORE = "counting"
_NUMBER = struct.Struct(">i")


class FourBytes:
    """A number as Java's producers write it."""

    type: Any = int

    def encode(self, value: int) -> bytes:
        return _NUMBER.pack(value)

    def decode(self, data: bytes) -> int:
        number: int = _NUMBER.unpack(data)[0]
        return number


class Unlogged(KafkaEnvironment):
    """State that is nowhere but here, to measure what it costs that it is elsewhere as well."""

    def commit(self, commit: Commit) -> None:
        super().commit(commit._replace(state=[]))
        written = [(VirtualTask(one.task), one) for one in commit.state]
        for task, _ in written:
            self._here(commit.app, task)
        self._state.write(commit.app, written, {(one.store, task): {} for task, one in written})


class ReadWriteOnKafka(Workload):
    """Keys of four bytes, values of 100; a durable count for each key, in LMDB; the counts themselves go nowhere."""

    most: ClassVar[int]

    def prepare(self, messages: int) -> None:
        draw = Random(42)
        ids = [draw.randint(1, self.most) for _ in range(messages)]
        partitions: list[list[tuple[bytes, bytes]]] = [[] for _ in range(PARTITIONS)]
        for id in ids:
            partitions[id % PARTITIONS].append((_NUMBER.pack(id), PADDING))
        self.counts = sorted(Counter(ids).items())
        self.source = filled_topic("read-write", partitions)

    def ready(self) -> None:
        self.data = self.scratch / "data"
        shutil.rmtree(self.data, ignore_errors=True)

    def baseline(self) -> str:
        return self._run(Unlogged)

    def ours(self) -> str:
        return self._run(KafkaEnvironment)

    def outcome(self, result: str) -> list[Any]:
        """Return the counts that are stored, which have to be those of the input."""
        found = sorted(count for task in range(PARTITIONS) for count in counts_of(self.data, result, task))
        if found != self.counts:
            raise AssertionError(f"{len(found):,} counts are stored, which are not those of the input")
        return found

    def _run(self, kind: type[KafkaEnvironment]) -> str:
        name = fresh_name("read-write-app")
        app = App(name)
        keyed = app.input(self.source, key=FourBytes(), value=bytes)
        keyed.scan(increased, emit=to_count, op_id=STORE).sink(forgotten)
        with closing(kind(KafkaCluster(f"kafka://{bootstrap()}"), self.data)) as environment:
            run_blocking(app.pipeline(), environment, RunSettings(until_now=True, levers=self.levers))
        return name


def forgotten(count: tuple[int, int]) -> None:
    pass


def counts_of(data: Path, app: str, task: int) -> list[tuple[int, int]]:
    """Return the counts by number that a task has stored."""
    decode = Tagged().decode
    with closing(LogEnvironment(data / "state" / app / f"{task}")) as local:
        return [
            (_NUMBER.unpack(place[len(STATE) :])[0], decode(entry))
            for place, entry in local.state_range(app, STORE, task)
        ]


def _described(digits: int) -> Description:
    return Description(
        name=f"B13-{digits}",
        title=f"the paper's ReadWrite on Kafka, {10**digits:,} ids, with a changelog over without one",
        messages=1_000_000,
        quick_scale=0.004,
        bar=1.2,
        pairs=5,
        with_server=True,
    )


class ReadWriteOnKafka5(ReadWriteOnKafka):
    description = _described(5)
    most = 10**5


class ReadWriteOnKafka6(ReadWriteOnKafka):
    description = _described(6)
    most = 10**6
