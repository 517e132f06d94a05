"""B18: micro-batches on Spark from the embedded log, with two cores, over the loop that one process runs by hand."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.on_spark import (
    CHUNK,
    FILES,
    WINDOW_MS,
    Counted,
    OnSpark,
    Tick,
    counted,
    decode,
    encode,
    is_kept,
    is_positive,
    moved,
    sync,
    ticks,
)
from benchmarks.workload import Description
from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Spark, count, tumbling

STREAM = "ticks"


class StatelessStream(OnSpark):
    """filter → map → filter from a stream of four partitions to JSON lines, until the input ends."""

    description = Description(
        name="B18",
        title="micro-batches, embedded log → JSON lines, on Spark with two cores over one process",
        messages=2_000_000,
        quick_scale=0.002,
        bar=round(1 / 0.5, 2),
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        self.data = self.scratch / "data"
        with closing(LogEnvironment(self.data)) as log:
            log.create_stream(STREAM, StreamConfig(partitions=FILES))
            for number in range(FILES):
                made = ticks(messages // FILES, number)
                while chunk := list(islice(made, CHUNK)):
                    log.append([Append(STREAM, number, Batch([*map(encode.encode, chunk)]))])

    def ready(self) -> None:
        self.written, self.checkpoint = self.scratch / "out.jsonl", self.scratch / "checkpoint"
        for left in (self.written, self.checkpoint):
            shutil.rmtree(left, ignore_errors=True)
        self.written.mkdir()

    def read(self) -> Iterator[Tick]:
        with closing(LogEnvironment(self.data)) as log:
            for number in range(FILES):
                offset = 0
                while (read := log.read(STREAM, number, offset)) is not None:
                    yield from map(decode, read.batch.values)
                    offset = read.next_offset

    def baseline(self) -> Path:
        with (self.written / "part.jsonl").open("wb") as file:
            passing = (after for tick in self.read() if is_kept(tick) and is_positive(after := moved(tick)))
            while chunk := list(islice(passing, CHUNK)):
                file.write(encode.encode_lines(chunk))
        sync(self.written / "part.jsonl")
        return self.written

    def ours(self) -> Path:
        app = App("stateless-stream")
        kept = app.input(STREAM, value=Tick).filter(is_kept).map(moved).filter(is_positive)
        kept.send_to(app.output("out", value=Tick))
        return self.ran(app)

    def ran(self, app: App) -> Path:
        """Run to the end of the input, all of it in a few micro-batches."""
        spark = Spark(self.spark.session, checkpoint=self.checkpoint, end=True)
        app.run(self.data, on=spark, bind={"out": self.written})
        return self.written

    def outcome(self, result: Path) -> list[bytes]:
        return sorted(line for file in result.glob("part*") for line in file.read_bytes().splitlines())


class KeyedStream(StatelessStream):
    """A tumbling count by key, through the shuffle."""

    description = replace(
        StatelessStream.description,
        name="B18k",
        title="the same with a keyed tumbling count, 10,000 keys",
        bar=round(1 / 0.25, 2),
    )

    def baseline(self) -> Path:
        found: Counter[tuple[str, int]] = Counter()
        for tick in self.read():
            found[tick.key, tick.at // WINDOW_MS * WINDOW_MS] += 1
        with (self.written / "part.jsonl").open("wb") as file:
            rows = (Counted(key, start, number) for (key, start), number in found.items())
            while chunk := list(islice(rows, CHUNK)):
                file.write(encode.encode_lines(chunk))
        sync(self.written / "part.jsonl")
        return self.written

    def ours(self) -> Path:
        app = App("keyed-stream")
        keyed = app.input(STREAM, value=Tick, timestamp=lambda tick: tick.at).partition_by(
            lambda tick: tick.key, partitions=FILES, op_id="by-key"
        )
        panes = keyed.window(tumbling(milliseconds=WINDOW_MS), count(), op_id="counting")
        panes.map(counted).send_to(app.output("out", value=Counted))
        return self.ran(app)
