"""E4-hosts: how long tasks stand still that are split over warmed containers of two hosts, on a real broker."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.broker import bootstrap, fresh_name
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from operators.core.base import Batch
from operators.partition_by import bucket_of
from runtime.job.job_model import job_of
from runtime.model.assignment import Scale
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment

FACTORS = (2, 4, 1)
"""The factors to which the tasks are split in turn; the last one merges them."""
HOSTS = ("here", "there")
PROBE_S, LOOK_S, SETTLED_S, PATIENCE_S = 0.01, 0.5, 5.0, 900.0
"""How often a record is sent whose way is timed, and looks are; how long a step's end is watched, and waited for."""
MOST_PAUSE_MS = 2_000
"""The bar: the ms that a task may stand still as it is split to a warmed container of another host."""
PROGRAM = """
from samza_dsl import App, Options

app = App("{name}", Options(commit_interval_ms=100))
numbers = app.input("{name}-numbers", value=int, key=str)
sums = numbers.scan(lambda total, number: (total or 0) + number, op_id="sum")
sums.filter(lambda total: total < 0).send_to(app.output("{name}-probes", value=int))
"""
"""Keeps an entry for each key, and tells of those that are below zero: each probe has a key of its own."""


class SplitOnHosts(Shape):
    """Two hosts with two containers each; records come all the time, and each one's arrival is noted."""

    description = ShapeDescription(
        "E4-hosts",
        "a split of 3,000,000 entries over two hosts on Kafka, --standby 1: the longest pause of a key ÷ 2 s",
        1.0,
        rounds=1,
        begins_slowly=True,
    )

    def figures(self) -> Figures:
        name, entries = fresh_name("hosts"), self.scaled(3_000_000)
        (self.scratch / "app.py").write_text(PROGRAM.format(name=name))
        hosts: list[subprocess.Popen[bytes]] = []
        with closing(KafkaEnvironment(KafkaCluster(f"kafka://{bootstrap()}"), self.scratch / "writer")) as environment:
            environment.create_stream(f"{name}-numbers", StreamConfig(partitions=1))
            environment.create_stream(f"{name}-probes", StreamConfig(partitions=1))
            for first in range(0, entries, 50_000):
                numbers = [b"%d" % number for number in range(first, min(first + 50_000, entries))]
                environment.append([Append(f"{name}-numbers", 0, Batch(numbers, numbers))])
            try:
                steps = asyncio.run(self._steps(name, environment, hosts))
            finally:
                for host in hosts:
                    host.send_signal(signal.SIGTERM)
                for host in hosts:
                    host.wait(60)
        curve = {"entries": float(entries)}
        for factor, probes in steps.items():
            curve |= {f"to {factor}: {said}": number for said, number in probes.items()}
        worst = max(probes["ms of pause at most"] for probes in steps.values())
        return Figures(worst / MOST_PAUSE_MS, curve)

    async def _steps(
        self, name: str, environment: KafkaEnvironment, hosts: list[subprocess.Popen[bytes]]
    ) -> dict[int, dict[str, float]]:
        """Return what is found of the probes of each step."""
        probes = Probes()
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(one) for one in (probes.send(f"{name}-numbers"), probes.hear(f"{name}-probes"))]
            for host in HOSTS:
                hosts.append(self._begin(host))
                await self._calm(probes, hosts)
            found = {}
            for factor in FACTORS:
                began = monotonic()
                await asyncio.to_thread(environment.ask_scale, name, Scale(factor))
                while (await asyncio.to_thread(job_of, environment, name)).factor != factor:
                    if monotonic() > began + PATIENCE_S:
                        raise AssertionError(f"tasks are not split into {factor} parts\n{self._said()}")
                    await asyncio.sleep(LOOK_S)
                took = monotonic() - began
                await self._calm(probes, hosts)
                found[factor] = {"seconds until it is done": took, **probes.between(began, monotonic())}
            for one in work:
                one.cancel()
        return found

    async def _calm(self, probes: Probes, hosts: list[subprocess.Popen[bytes]]) -> None:
        """Wait until outputs have come in time for a while; raises where a host has ended, or they stay late."""
        until = monotonic() + PATIENCE_S
        await asyncio.sleep(SETTLED_S)
        while not probes.are_in_time(SETTLED_S):
            if monotonic() > until or any(host.poll() is not None for host in hosts):
                raise AssertionError(f"a host has ended, or outputs stay late\n{self._said()}")
            await asyncio.sleep(LOOK_S)

    def _said(self) -> str:
        """Return the end of what the hosts have said."""
        return "\n".join(f"{log}: {log.read_text()[-3_000:]}" for log in self.scratch.glob("*.log"))

    def _begin(self, host: str) -> subprocess.Popen[bytes]:
        program, where = Path(sys.executable).with_name("samza-dsl"), ["--environment", f"kafka://{bootstrap()}"]
        how = ["--data", host, "--host-id", host, "--containers", "2", "--standby", "1"]
        with (self.scratch / f"{host}.log").open("wb") as log:
            return subprocess.Popen([program, "run", "app.py", *where, *how], cwd=self.scratch, stdout=log, stderr=log)


class Probes:
    """Records that are sent all the time: when each was, and when it came out of the run."""

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._came: dict[int, float] = {}

    async def send(self, topic: str) -> None:
        """Send one after the other, until cancelled."""
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap())
        await producer.start()
        try:
            while True:
                number = -1 - len(self._sent)
                self._sent[number] = monotonic()
                await producer.send(topic, b"%d" % number, key=b"%d" % number)
                await asyncio.sleep(PROBE_S)
        finally:
            await producer.stop()

    async def hear(self, topic: str) -> None:
        """Note when each is committed, until cancelled."""
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap(), isolation_level="read_committed")
        await consumer.start()
        try:
            while True:
                record = await consumer.getone()
                number = int(record.value)
                if number in self._came:
                    raise AssertionError(f"the record {number} came out twice")
                self._came[number] = monotonic()
        finally:
            await consumer.stop()

    def are_in_time(self, lately_s: float) -> bool:
        """Whether each that was sent lately, but for the last second, has come out within a second."""
        now = monotonic()
        lately = [number for number, at in self._sent.items() if now - 1 - lately_s <= at <= now - 1]
        return bool(lately) and all(self._came.get(number, now) - self._sent[number] <= 1 for number in lately)

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Return how late probes were that were sent meanwhile, and how long nothing came of a bucket of keys."""
        late_ms = sorted(
            1_000 * (self._came[number] - at) for number, at in self._sent.items() if began <= at <= ended - 1
        )
        return {
            "ms of pause at most": self._longest_ms(began, ended),
            "ms late at most": late_ms[-1],
            "ms late, p99": late_ms[len(late_ms) * 99 // 100],
            "ms late, median": median(late_ms),
        }

    def _longest_ms(self, began: float, ended: float) -> float:
        """Return the longest time in which nothing came of a bucket of keys: each part of a task pauses by itself."""
        times: dict[int, list[float]] = defaultdict(list)
        for number, at in self._came.items():  # in the order in which they came
            if began <= at <= ended:
                times[bucket_of(b"%d" % number, 0, max(FACTORS))].append(at)
        return 1_000 * max(later - earlier for came in times.values() for earlier, later in pairwise(came))
