"""B14 and B15, of files and to files, on Spark with two cores, over the loop that one process runs by hand."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from benchmarks.workload import Description, Workload
from samza_dsl import Aggregation, App, Pane, Spark, count, fold, hash_, tumbling

FILES = 4
KEYS = 10_000
WINDOW_MS = 60_000
CHUNK = 10_000
"""How many records the loop by hand encodes at a time."""
PART = 100_000
"""How many rows it makes a group of in Parquet."""


class Tick(Struct):
    """What the files hold."""

    key: str
    at: int
    number: int


class Counted(Struct):
    """How many ticks of a key there were in a window."""

    key: str
    start: int
    ticks: int


encode = msgspec.json.Encoder()
decode = msgspec.json.Decoder(Tick).decode


def is_kept(tick: Tick) -> bool:
    return tick.number % 25 != 0


def moved(tick: Tick) -> Tick:
    return Tick(tick.key, tick.at + 1, tick.number * 2)


def is_positive(tick: Tick) -> bool:
    return tick.number >= 0


def one_more(counted: int, tick: Tick) -> int:
    return counted + 1


def chosen(key: str, partitions: int) -> int:
    return int(key[1:]) % partitions


def counted(pane: Pane[str, int]) -> Counted:
    return Counted(pane.key, pane.start, pane.value)


def ticks(messages: int, file: int) -> Iterator[Tick]:
    """Make the ticks of a file, in the order of time: some three of a key in a window."""
    draw, at = Random(file), 0
    for number in range(messages):
        at += draw.randint(0, 16)
        yield Tick(f"k{draw.randint(0, KEYS - 1)}", at, number)


def sync(path: Path) -> None:
    """Have on the disk what was written by hand, as what we write is."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def chained() -> App:
    """Return the application of what is stateless."""
    app = App("stateless")
    kept = app.input("ticks", value=Tick).filter(is_kept).map(moved).filter(is_positive)
    kept.send_to(app.output("moved", value=Tick))
    return app


def chain_by_hand(ticks: Iterable[Tick], path: Path) -> None:
    """Do the same by hand."""
    with path.open("wb") as file:
        chunk = []
        for tick in ticks:
            if is_kept(tick):
                tick = moved(tick)
                if is_positive(tick):
                    chunk.append(tick)
                    if len(chunk) == CHUNK:
                        file.write(encode.encode_lines(chunk))
                        chunk.clear()
        file.write(encode.encode_lines(chunk))
    sync(path)


class OnSpark(Workload):
    """The files are written, and the session begun, before a time counts."""

    def prepare(self, messages: int) -> None:
        self.files = self.scratch / "in"
        self.make(messages)
        options = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
        self.spark = Spark(Spark(master="local[2]", options=options).opened())

    def make(self, messages: int) -> None:
        """Make the input."""
        self.write(self.files, lambda number: ticks(messages // FILES, number))

    def write(self, directory: Path, made: Callable[[int], Iterator[Any]]) -> None:
        """Write files of what is made for each."""
        directory.mkdir()
        for number in range(FILES):
            with (directory / f"{number}.jsonl").open("wb") as file:
                rows = made(number)
                while chunk := list(islice(rows, CHUNK)):
                    file.write(encode.encode_lines(chunk))

    def ready(self) -> None:
        self.written = self.scratch / "out.jsonl"
        shutil.rmtree(self.written, ignore_errors=True)
        self.written.mkdir()
        self.by_hand = self.scratch / "by-hand.jsonl"

    def read(self) -> Iterator[Tick]:
        for path in sorted(self.files.iterdir()):
            with path.open("rb") as file:
                yield from map(decode, file)

    def outcome(self, result: Path) -> list[bytes]:
        files = [file for file in result.iterdir() if file.name[0] not in "._"] if result.is_dir() else [result]
        return sorted(line for file in files for line in file.read_bytes().splitlines())


class StatelessOnSpark(OnSpark):
    """filter → map → filter, JSON lines to JSON lines."""

    description = Description(
        name="B14",
        title="stateless, JSON lines → JSON lines, on Spark with two cores over one process",
        messages=2_000_000,
        quick_scale=0.002,
        bar=round(1 / 1.5, 3),
        pairs=5,
        on_spark=True,
    )

    def baseline(self) -> Path:
        chain_by_hand(self.read(), self.by_hand)
        return self.by_hand

    def ours(self) -> Path:
        chained().run(on=self.spark, bind={"ticks": self.files, "moved": self.written})
        return self.written


class ParquetOnSpark(StatelessOnSpark):
    """The same of Parquet and to it, by columns; by hand, records are made of columns, and columns of records."""

    description = Description(
        name="B14p",
        title="stateless, Parquet → Parquet, by columns, on Spark with two cores over one process",
        messages=2_000_000,
        quick_scale=0.002,
        bar=round(1 / 1.5, 3),
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        super().make(messages)
        in_parquet(self.files)

    def ready(self) -> None:
        self.written = self.scratch / "out.parquet"
        shutil.rmtree(self.written, ignore_errors=True)
        self.by_hand = self.scratch / "by-hand.parquet"

    def read(self) -> Iterator[Tick]:
        return ticks_in_parquet(self.files)

    def baseline(self) -> Path:
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema([("key", pa.string()), ("at", pa.int64()), ("number", pa.int64())])
        kept = filter(is_positive, map(moved, filter(is_kept, self.read())))
        with parquet.ParquetWriter(self.by_hand, schema) as writer:
            while chunk := list(islice(kept, PART)):
                columns = [[tick.key for tick in chunk], [tick.at for tick in chunk], [tick.number for tick in chunk]]
                writer.write_table(pa.table([*map(pa.array, columns)], schema=schema))
        sync(self.by_hand)
        return self.by_hand

    def outcome(self, result: Path) -> list[bytes]:
        from pyarrow import parquet

        return sorted(repr(row).encode() for row in parquet.read_table(result).to_pylist())


class KeyedOnSpark(OnSpark):
    """A tumbling count by key, of which each task folds its part before the shuffle."""

    description = Description(
        name="B15",
        title="keyed tumbling count, 10,000 keys, folded before the shuffle, on Spark with two cores over one process",
        messages=2_500_000,
        quick_scale=0.002,
        bar=1.0,
        pairs=5,
        on_spark=True,
    )

    aggregation: ClassVar[Aggregation[Tick, int]] = count()
    by: ClassVar[Any] = hash_

    def counts(self) -> dict[tuple[str, int], int]:
        """Count by hand, by key and window."""
        found: Counter[tuple[str, int]] = Counter()
        for tick in self.read():
            found[tick.key, tick.at // WINDOW_MS * WINDOW_MS] += 1
        return found

    def baseline(self) -> Path:
        with self.by_hand.open("wb") as file:
            rows = (Counted(key, start, number) for (key, start), number in self.counts().items())
            while chunk := list(islice(rows, CHUNK)):
                file.write(encode.encode_lines(chunk))
        sync(self.by_hand)
        return self.by_hand

    def ours(self) -> Path:
        app = App("keyed-on-spark")
        keyed = app.input("ticks", value=Tick, timestamp=lambda tick: tick.at).partition_by(
            lambda tick: tick.key, partitions=FILES, by=self.by, op_id="by-key"
        )
        panes = keyed.window(tumbling(milliseconds=WINDOW_MS), self.aggregation, op_id="counting")
        panes.map(counted).send_to(app.output("counts", value=Counted))
        app.run(on=self.spark, bind={"ticks": self.files, "counts": self.written})
        return self.written


class UnfoldedOnSpark(KeyedOnSpark):
    """The same count where a function of one's own chooses the partition, so that each message goes to our operator."""

    description = Description(
        name="B15u",
        title="the same count with all messages through the shuffle",
        messages=2_500_000,
        quick_scale=0.002,
        bar=round(1 / 0.55, 3),
        pairs=5,
        on_spark=True,
    )
    by = staticmethod(chosen)


class OwnFoldOnSpark(KeyedOnSpark):
    """The same with a fold of one's own, which may ask for the order: messages are shuffled with their values."""

    description = Description(
        name="B15f",
        title="the same with a fold of one's own, all messages and their values through the shuffle",
        messages=2_500_000,
        quick_scale=0.002,
        bar=None,
        pairs=5,
        on_spark=True,
    )
    aggregation = fold(int, one_more)

    def counts(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for tick in self.read():
            place = tick.key, tick.at // WINDOW_MS * WINDOW_MS
            found[place] = one_more(found.get(place, 0), tick)
        return found


class NativeOnSpark(KeyedOnSpark):
    """The same of Parquet, which is read and folded as columns; by hand, records are made of columns side by side."""

    description = Description(
        name="B15n",
        title="the same of Parquet, folded as columns, on Spark with two cores over one process",
        messages=2_500_000,
        quick_scale=0.002,
        bar=round(1 / 1.6, 3),
        pairs=5,
        on_spark=True,
    )

    def make(self, messages: int) -> None:
        super().make(messages)
        in_parquet(self.files)

    def read(self) -> Iterator[Tick]:
        return ticks_in_parquet(self.files)


def in_parquet(directory: Path) -> None:
    """Put Parquet in the place of JSON lines."""
    import pyarrow as pa
    from pyarrow import parquet

    for file in [*directory.iterdir()]:
        ticks = map(decode, file.read_bytes().splitlines())
        table = pa.Table.from_pylist([msgspec.structs.asdict(tick) for tick in ticks])
        parquet.write_table(table, file.with_suffix(".parquet"))
        file.unlink()


def ticks_in_parquet(directory: Path) -> Iterator[Tick]:
    """Read the ticks of a directory, making records of columns side by side."""
    from pyarrow import parquet

    for path in sorted(directory.iterdir()):
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(CHUNK):
                yield from map(Tick, *(column.to_pylist() for column in batch.columns))
