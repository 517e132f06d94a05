"""I1: what containers on Kafka take while nothing comes, and how long they take to close then."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter

from benchmarks.broker import PARTITIONS, bootstrap
from benchmarks.messages import increased, itself, to_count
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from operators.core.base import Batch
from runtime.containers.supervisor import Containers
from runtime.ports.streams import Append, StreamConfig
from runtime.run.settings import CrewSettings, RunSettings
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App
from samza_dsl.application.container import PROGRAM
from samza_dsl.application.loading import whereabouts

CONTAINERS = 2
IDLE_S = 30.0
POLL_S = 0.1
WORDS = 1_000
MOST_SHARE, MOST_S = 0.01, 2.0
"""The bars: of a core, for each container, and to close."""


def _counting() -> App:
    app = App("idle-counting")
    words = app.input("idle-words", value=str)
    counts = words.partition_by(itself, partitions=PARTITIONS, op_id="by-word")
    counts.scan(increased, emit=to_count, op_id="counting").send_to(app.output("idle-counts", partitions=PARTITIONS))
    return app


counting = _counting()


class IdleContainers(Shape):
    """They count some words, and then nothing comes; the last round's are asked to stop."""

    description = ShapeDescription(
        name="I1",
        title="two idle containers on Kafka, over 1 % of a core each, and 2 s to close: at worst",
        bar=1.0,
        quick_scale=0.02,
    )

    def figures(self) -> Figures:
        cluster = KafkaCluster(f"kafka://{bootstrap()}")
        data = self.scratch / "data"
        with closing(KafkaEnvironment(cluster, data)) as environment:
            environment.create_stream("idle-words", StreamConfig(partitions=PARTITIONS))
            words = Batch([b'"word-%d"' % number for number in range(WORDS)])
            environment.append([Append("idle-words", partition, words) for partition in range(PARTITIONS)])
        rounds = [asyncio.run(self._round(cluster, data)) for _ in range(self.rounds)]
        share, seconds = max(share for share, _ in rounds), max(seconds for _, seconds in rounds)
        curve = {"of a core, for each container": share, "seconds to close": seconds}
        return Figures(max(share / MOST_SHARE, seconds / MOST_S), curve)

    async def _round(self, cluster: KafkaCluster, data: Path) -> tuple[float, float]:
        """Return how much of a core each container took while it was idle, and how long closing took."""
        command, others = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)], _children()
        crew = CrewSettings(number=CONTAINERS, command=command, found=whereabouts(counting))
        run = Containers(counting.pipeline(), data, crew, RunSettings(environment=cluster))
        driving = asyncio.create_task(run.drive())
        while not _has_read_all(run):
            assert not driving.done(), "the run has ended before it was idle"
            await asyncio.sleep(POLL_S)
        containers = _children() - others
        assert len(containers) == CONTAINERS, f"{len(containers)} processes, and not {CONTAINERS}"
        idle_s = max(IDLE_S * self.scale, 1.0)
        await asyncio.sleep(idle_s / 3)  # what the last words have begun is done
        began, taken = perf_counter(), sum(map(_cpu_seconds, containers))
        await asyncio.sleep(idle_s)
        share = (sum(map(_cpu_seconds, containers)) - taken) / (perf_counter() - began) / CONTAINERS
        began = perf_counter()
        run.stop()
        await driving
        return share, perf_counter() - began


def _has_read_all(run: Containers) -> bool:
    inputs = run.metrics().inputs
    read = [one for one in inputs if one.stream == "idle-words"]
    return len(read) == PARTITIONS and not any(one.lag for one in inputs) and all(one.offset for one in read)


def _children() -> set[int]:
    """Return the processes that this one has started and that live."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {number for number in numbers if (found := _stat(number)) and int(found[1]) == os.getpid()}


def _cpu_seconds(process: int) -> float:
    found = _stat(process)
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")


def _stat(process: int) -> list[str]:
    """Return what the system says of a process behind its name; nothing where it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
