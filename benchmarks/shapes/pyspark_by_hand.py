"""B21: our time on Spark over that of PySpark by hand, for the same Python functions: the quickest way that we know."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.messages import Message, look_up
from benchmarks.on_spark import (
    CHUNK,
    FILES,
    WINDOW_MS,
    Counted,
    KeyedOnSpark,
    OnSpark,
    ParquetOnSpark,
    StatelessOnSpark,
    Tick,
    decode,
    encode,
    is_kept,
    is_positive,
    moved,
    sync,
)
from benchmarks.on_spark_calls import IN_FLIGHT, CallsOnSpark
from benchmarks.on_spark_calls import decode as decode_message
from benchmarks.on_spark_join import AFTER_MS, BEFORE_MS, JoinOnSpark, met
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription

Way = Callable[[Any, Path], None]
"""Does a workload's work by hand, and leaves files in a directory."""


def rdd(workload: OnSpark, directory: Path, do: Callable[[str, Path], None]) -> None:
    """Have Python open each file in a task of its own, and write what comes of it."""
    paths = [str(path) for path in sorted(directory.iterdir())]
    context: Any = workload.spark.session.sparkContext  # type: ignore[union-attr]
    context.parallelize(paths, len(paths)).foreach(do)


def write_lines(rows: Iterable[Any], path: Path) -> None:
    made = iter(rows)
    with path.open("wb") as file:
        while chunk := list(islice(made, CHUNK)):
            file.write(encode.encode_lines(chunk))
    sync(path)


def chained(lines: Iterable[Any]) -> Iterator[Tick]:
    return filter(is_positive, map(moved, filter(is_kept, map(decode, lines))))


def chain_file(out: Path, path: str) -> None:
    with open(path, "rb") as file:
        write_lines(chained(file), out / f"{Path(path).stem}.jsonl")


def chain_batches(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        rows = [encode.encode(tick).decode() for tick in chained(batch.column(0).to_pylist())]
        yield pa.RecordBatch.from_arrays([pa.array(rows)], names=["value"])


def stateless(workload: StatelessOnSpark, out: Path) -> None:
    rdd(workload, workload.files, partial(chain_file, out))


def stateless_in_arrow(workload: StatelessOnSpark, out: Path) -> None:
    session: Any = workload.spark.session
    found = session.read.text(str(workload.files)).mapInArrow(chain_batches, "value string")
    found.write.mode("overwrite").text(str(out))


def parquet_file(out: Path, path: str) -> None:
    from pyarrow import parquet

    name = out / f"{Path(path).stem}.parquet"
    with parquet.ParquetFile(path) as file, parquet.ParquetWriter(name, file.schema_arrow) as writer:
        for batch in file.iter_batches(CHUNK):
            writer.write_batch(moved_columns(batch))
    sync(name)


def moved_columns(batch: Any) -> Any:
    import pyarrow as pa

    ticks = map(Tick, *(column.to_pylist() for column in batch.columns))
    kept = [tick for tick in map(moved, filter(is_kept, ticks)) if is_positive(tick)]
    columns = [[tick.key for tick in kept], [tick.at for tick in kept], [tick.number for tick in kept]]
    return pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=batch.schema)


def parquet_batches(batches: Iterable[Any]) -> Iterator[Any]:
    return map(moved_columns, batches)


def stateless_parquet(workload: ParquetOnSpark, out: Path) -> None:
    rdd(workload, workload.files, partial(parquet_file, out))


def parquet_in_arrow(workload: ParquetOnSpark, out: Path) -> None:
    session: Any = workload.spark.session
    found = session.read.parquet(str(workload.files))
    found.mapInArrow(parquet_batches, found.schema).write.mode("overwrite").parquet(str(out))


def counts_in(path: str) -> list[tuple[tuple[str, int], int]]:
    with open(path, "rb") as file:
        return [*Counter((tick.key, tick.at // WINDOW_MS * WINDOW_MS) for tick in map(decode, file)).items()]


def write_counts(out: Path, number: int, rows: Iterable[tuple[tuple[str, int], int]]) -> Iterator[int]:
    write_lines((Counted(key, start, count) for (key, start), count in rows), out / f"{number}.jsonl")
    yield 0


def keyed(workload: KeyedOnSpark, out: Path) -> None:
    paths = [str(path) for path in sorted(workload.files.iterdir())]
    context: Any = workload.spark.session.sparkContext  # type: ignore[union-attr]
    counts = context.parallelize(paths, FILES).flatMap(counts_in).reduceByKey(add, FILES)
    counts.mapPartitionsWithIndex(partial(write_counts, out)).count()


def sided(side: int, path: str) -> Iterator[tuple[tuple[str, int, int], int]]:
    with open(path, "rb") as file:
        for tick in map(decode, file):
            yield (tick.key, tick.at, side), tick.number


def place_of(key: tuple[str, int, int]) -> int:
    from zlib import crc32

    return crc32(key[0].encode())


def write_pairs(out: Path, number: int, rows: Iterable[tuple[tuple[str, int, int], int]]) -> Iterator[int]:
    write_lines(pairs_of(rows), out / f"{number}.jsonl")
    yield 0


def pairs_of(rows: Iterable[tuple[tuple[str, int, int], int]]) -> Iterator[Any]:
    """Join rows that come sorted by key and time: what is kept of a key goes with it."""
    kept: tuple[list[Tick], list[Tick]] = ([], [])
    last = ""
    for (key, at, side), value in rows:
        if key != last:
            kept, last = ([], []), key
        tick = Tick(key, at, value)
        if side == 0:
            yield from (met(tick, other) for other in kept[1] if at - BEFORE_MS <= other.at)
        else:
            yield from (met(other, tick) for other in kept[0] if at <= other.at + AFTER_MS)
        mine = kept[side]
        while mine and mine[0].at + AFTER_MS < at:
            del mine[0]
        mine.append(tick)


def joined(workload: JoinOnSpark, out: Path) -> None:
    context: Any = workload.spark.session.sparkContext  # type: ignore[union-attr]
    sides = [
        context.parallelize([str(path) for path in sorted(directory.iterdir())], FILES).flatMap(partial(sided, side))
        for side, directory in enumerate((workload.files, workload.others))
    ]
    in_order = context.union(sides).repartitionAndSortWithinPartitions(FILES, place_of)
    in_order.mapPartitionsWithIndex(partial(write_pairs, out)).count()


def call_file(out: Path, run: Callable[[Any], list[Message]], path: str) -> None:
    async def work(messages: Iterator[Message], results: list[Message]) -> None:
        for message in messages:
            results.extend(await look_up(message))

    async def work_all(messages: Iterator[Message]) -> list[Message]:
        results: list[Message] = []
        await asyncio.gather(*(work(messages, results) for _ in range(IN_FLIGHT)))
        return results

    with open(path, "rb") as file:
        write_lines(run(work_all(map(decode_message, file))), out / f"{Path(path).stem}.jsonl")


def calls(workload: CallsOnSpark, out: Path) -> None:
    rdd(workload, workload.files, partial(call_file, out, asyncio.run))


def run_on_uvloop(work: Any) -> list[Message]:
    import uvloop

    return uvloop.run(work)


def calls_on_uvloop(workload: CallsOnSpark, out: Path) -> None:
    rdd(workload, workload.files, partial(call_file, out, run_on_uvloop))


WAYS: dict[type[OnSpark], dict[str, Way]] = {
    StatelessOnSpark: {"RDD": stateless, "mapInArrow": stateless_in_arrow},
    ParquetOnSpark: {"RDD": stateless_parquet, "mapInArrow": parquet_in_arrow},
    KeyedOnSpark: {"RDD": keyed},
    JoinOnSpark: {"RDD": joined},
    CallsOnSpark: {"RDD": calls, "RDD on uvloop": calls_on_uvloop},
}
SHOWN = {"B17 ÷ RDD on uvloop"}
"""What no bar is for: the baselines of calls are tasks on Python's own event loop."""


class PySparkByHand(Shape):
    """Each of our workloads in turn with each way by hand, which leaves its parts as they are and syncs nothing."""

    description = ShapeDescription(
        name="B21",
        title="our time on Spark over that of the best PySpark by hand, at worst",
        rounds=3,
        quick_scale=0.002,
        bar=1.0,
        begins_slowly=True,
    )

    def figures(self) -> Figures:
        curve = {}
        for kind, ways in WAYS.items():
            name = kind.description.name
            scratch = self.scratch / name
            scratch.mkdir()
            workload = kind(kind.description.scaled(self.scale), scratch)
            ratios = {way: self._ratio(workload, by_hand) for way, by_hand in ways.items()}
            curve |= {f"{name} ÷ {way}": ratio for way, ratio in ratios.items()}
        return Figures(max(ratio for name, ratio in curve.items() if name not in SHOWN), curve)

    def _ratio(self, workload: Any, by_hand: Way) -> float:
        out = workload.scratch / f"by-hand{'.parquet' if isinstance(workload, ParquetOnSpark) else ''}"
        ratios = []
        for number in range(self.rounds + 1):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            began = perf_counter()
            by_hand(workload, out)
            between = perf_counter()
            workload.ready()
            begun = perf_counter()
            result = workload.ours()
            ratio = (perf_counter() - begun) / (between - began)
            if number:
                ratios.append(ratio)
            elif workload.outcome(out) != workload.outcome(result):
                raise AssertionError(f"{workload.description.name} by hand comes to something else")
        return median(ratios)
