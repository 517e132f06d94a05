"""What goes from stage to stage through Spark's shuffle: rows of few Arrow columns, in runs of one task and stream."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from operators.base import MIN_TIMESTAMP, Batch
from runtime.checkpoint import Position
from runtime.handover import StateFile
from runtime.metrics import RunMetrics
from runtime.spark.micro_batch import Snapshot

SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("watermark", pa.int64()),
        ("stream", pa.int32()),
        ("producer", pa.int32()),
        ("sequence", pa.int64()),
        ("timestamp", pa.int64()),
        ("stamp", pa.int64()),
        ("sign", pa.int8()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""`target` is the unit that reads a row, and `watermark` what its producer had told before it.

Every row of that producer still to come has a stamp of at least that: so rows in the order of `ORDER` close windows as
they go.
"""
COLUMNS = SCHEMA.names
CONSTANTS = {"target": "i", "stream": "i", "watermark": "q"}
"""The columns that have one value in a block, each with the code of its type in an `array`."""
ORDER = ("target", "watermark", "stream", "producer", "sequence")
SPARK_SCHEMA = (
    "target int, watermark bigint, stream int, producer int, sequence bigint, timestamp bigint, stamp bigint, "
    "sign tinyint, key binary, value binary"
)

BLOCK = 1_000
"""Rows of which one watermark tells how far event time has come: the next stage fires what that makes due."""
FOR_DRIVER = -1
"""The target of what is for nobody but the driver."""
BEGIN = -1
"""The stream of a row that only has its target begin."""
TOLD = -2
"""The stream of a row by which a producer says, ahead of its other rows, what it tells of event time behind them."""
LAST = -3
"""The stream of a row by which a producer says how far event time came in its first stream, and so on downwards."""


class Part(msgspec.Struct, frozen=True, tag=True):
    """Rows of an output, as they are stored."""

    unit: int
    stream: str
    partition: int
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps: list[int] | None = None
    headers: list[dict[str, bytes] | None] | None = None

    def batch(self) -> Batch:
        """Return the rows."""
        return Batch(self.values, self.keys, self.timestamps, headers=self.headers)  # type: ignore[arg-type]


class Report(msgspec.Struct, frozen=True, tag=True):
    """What an attempt to run a unit has come to, said once it is through: the files that it wrote, by output.

    Where history is handed over it has positions, and the files of state, too.
    """

    unit: int
    files: dict[str, str]
    metrics: RunMetrics
    positions: tuple[Position, ...] = ()
    state: tuple[StateFile, ...] = ()
    snapshot: Snapshot | None = None
    """What the next micro-batch goes on from."""


ToDriver = Part | Report
encode_told = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(ToDriver).decode


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How far event time comes in a stream by the end of a micro-batch, as one of its producers says."""

    stream: int
    watermark: int
    idle: bool = False


_decode_reached = msgspec.msgpack.Decoder(Reached).decode


class Run(NamedTuple):
    """Rows that lie together, of one target, stream and watermark."""

    target: int
    stream: int
    watermark: int
    rows: pa.RecordBatch

    def batch(self) -> Batch:
        """Return them as columns; what no row has is None."""
        found = {name: self.rows.column(name) for name in ("timestamp", "stamp", "sign", "key")}
        timestamps, stamps, signs, keys = (
            None if column.null_count == len(column) else column.to_pylist() for column in found.values()
        )
        batch = Batch(self.rows.column("value").to_pylist(), keys, timestamps, stamps, signs=signs)
        if stamps is not None and None in stamps:  # of streams that are merged, only some may be stamped
            batch.stamps = [at if own is None else own for own, at in zip(stamps, timestamps or stamps, strict=True)]
        return batch

    def reached(self) -> list[tuple[str, Reached]]:
        """Return what producers say in rows of the stream `TOLD`, each with who says it."""
        columns = (self.rows.column(name).to_pylist() for name in ("producer", "value"))
        return [(str(producer), _decode_reached(value)) for producer, value in zip(*columns, strict=True)]


def runs_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Run]:
    """Cut what is sorted by `ORDER` into runs."""
    for batch in batches:
        places = [batch.column(name) for name in ("target", "watermark", "stream")]
        start, end = 0, batch.num_rows
        while start < end:
            target, watermark, stream = (column[start].as_py() for column in places)
            stop = end
            if any(
                column[end - 1].as_py() != own for column, own in zip(places, (target, watermark, stream), strict=True)
            ):
                here = (target, watermark, stream)
                stop = bisect_right(
                    range(start, end), here, key=lambda row: tuple(column[row].as_py() for column in places)
                )
                stop += start
            yield Run(target, stream, watermark, batch.slice(start, stop - start))
            start = stop


def producers_of(run: Run) -> list[int]:
    """Return the units that wrote the rows of a run."""
    return list(run.rows.column("producer").to_pylist())


class Shuffled:
    """Rows for the next stage on their way out, block by block."""

    def __init__(self) -> None:
        self._blocks: list[Batch] = []
        self._constants: dict[str, array[int]] = {name: array(kind) for name, kind in CONSTANTS.items()}

    def __len__(self) -> int:
        return len(self._constants["target"])

    def add(self, target: int, stream: int, watermark: int, batch: Batch) -> None:
        """Take rows on."""
        self._blocks.append(batch)
        for name, value in (("target", target), ("stream", stream), ("watermark", watermark)):
            self._constants[name] += array(CONSTANTS[name], [value]) * len(batch)

    def rows(self, producer: int, first: int) -> pa.RecordBatch:
        """Return them as Arrow columns, numbered from `first`."""
        number = len(self)
        found = {name: _integers(column) for name, column in self._constants.items()}
        found["producer"] = _integers(array("i", [producer]) * number)
        found["sequence"] = _integers(array("q", range(first, first + number)))
        held = {"timestamp": "timestamps", "stamp": "stamps", "sign": "signs", "key": "keys", "value": "values"}
        for name, column in held.items():
            found[name] = self._column([getattr(block, column) for block in self._blocks], SCHEMA.field(name).type)
        return pa.RecordBatch.from_arrays([found[name] for name in COLUMNS], schema=SCHEMA)

    def _column(self, columns: list[Any], kind: pa.DataType) -> pa.Array:
        """Return one column of all blocks, of which some may not have it."""
        if all(column is None for column in columns):
            return pa.nulls(len(self), kind)
        rows: list[Any] = []
        for column, block in zip(columns, self._blocks, strict=True):
            rows += [None] * len(block) if column is None else column
        return pa.array(rows, kind)


def _integers(column: array[int]) -> pa.Array:
    kind = pa.int32() if column.typecode == "i" else pa.int64()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def marked(batch: Batch, before: int, after: int, size: int = 0) -> Iterator[tuple[int, Batch]]:
    """Yield a batch in blocks, each with a watermark that none of its rows, nor any behind them, is stamped below.

    `before` and `after` are what the producer tells of event time ahead of the batch and behind it. A block has up to
    `size` rows, or as many as are usual.
    """
    stamps, size = batch.stamps, size or BLOCK
    if stamps is None or len(batch) <= size or None in stamps:
        yield before, batch
        return
    starts = range(0, len(batch), size)
    lowest = [*accumulate((min(stamps[start : start + size]) for start in reversed(starts)), min, initial=after)]
    for start, watermark in zip(starts, reversed(lowest[1:]), strict=True):
        yield max(watermark, before), batch.slice(start, start + size)


def beginnings(targets: Iterable[int]) -> pa.RecordBatch:
    """Return a row for each target, by which it begins though nothing may come for it."""
    rows = Shuffled()
    for target in targets:
        rows.add(target, BEGIN, MIN_TIMESTAMP, Batch([None]))
    return rows.rows(-1, 0)


def telling(reached: Iterable[tuple[int, Reached]], producer: int) -> pa.RecordBatch:
    """Return what a producer says of event time as rows, one for each target that is to hear it."""
    rows = Shuffled()
    for target, one in reached:
        rows.add(target, TOLD, MIN_TIMESTAMP, Batch([msgspec.msgpack.encode(one)]))
    return rows.rows(producer, 0)


def to_bytes(rows: pa.RecordBatch) -> bytes:
    """Return rows in Arrow's format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def from_bytes(parts: Iterable[bytes]) -> pa.Table:
    """Return the rows of which `to_bytes` made these."""
    batches = [batch for part in parts for batch in pa.ipc.open_stream(part)]
    return pa.Table.from_batches(batches, schema=SCHEMA)


def for_driver(told: ToDriver, sequence: int) -> pa.RecordBatch:
    """Return what is told to the driver as a row, which every later stage hands on; the sequence is its unit's."""
    rows = Shuffled()
    rows.add(FOR_DRIVER, BEGIN, MIN_TIMESTAMP, Batch([encode_told(told)]))
    return rows.rows(told.unit, sequence)
