"""The rows that go through Spark's shuffle from stage to stage: in blocks, and these in runs of one task and stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, islice
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa

from operators.core.base import MIN_TIMESTAMP, Batch
from operators.windows.partials import Partials
from operators.windows.window_groups import Slot
from runtime.encoding.columns import AlikeRecords
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.serdes import LAST_TAG, Evolving, start_of_records
from runtime.job.key_kinds import Sample
from runtime.model.checkpoint import Position
from runtime.model.metrics import RunMetrics
from runtime.reprocessing.handover import StoreFile
from runtime.units.micro_batch import Snapshot

SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("watermark", pa.int64()),
        ("stream", pa.int32()),
        ("producer", pa.int32()),
        ("sequence", pa.int64()),
        ("value", pa.binary()),
    ]
)
"""One block: `target` is the unit that reads it, and `watermark` what its producer had told before it.

Every row of that producer still to come has a stamp of at least that: so blocks in the order of `ORDER` close windows
as they go. What Spark sorts and copies it need not look into, and what a block costs there is shared by its rows.
"""
ORDER = ("target", "watermark", "stream", "producer", "sequence")
SPARK_SCHEMA = "target int, watermark bigint, stream int, producer int, sequence bigint, value binary"

BLOCK = 1_000
"""Rows of which one watermark tells how far event time has come: the next stage fires what that makes due."""
BLOCK_BYTES = 1 << 20
"""No block, and nothing that is told in a file, is longer where it has more than one row."""
BLOCKS_AT_ONCE = 10
"""The most blocks that are read at a time."""
FOR_DRIVER = -1
"""The target of what is for nobody but the driver."""
BEGIN = -1
"""The stream of a row that only has its target begin."""
TOLD = -2
"""The stream of a row by which a producer says, ahead of its other rows, what it tells of event time behind them."""
LAST = -3
"""The stream of a row by which a producer says how far event time came in its first stream, and so on downwards."""


class OutputRows(msgspec.Struct, frozen=True, tag=True):
    """Rows of an output, as they are stored."""

    unit: int
    stream: str
    partition: int
    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps: list[int] | None = None
    headers: list[dict[str, bytes | None] | None] | None = None

    def batch(self) -> Batch:
        """Return the rows."""
        return Batch(self.values, self.keys, self.timestamps, headers=self.headers)  # type: ignore[arg-type]

    def slice(self, start: int, stop: int) -> OutputRows:
        """Return some of the rows."""
        columns = {"values": self.values, "keys": self.keys, "timestamps": self.timestamps, "headers": self.headers}
        some = {name: column[start:stop] for name, column in columns.items() if column is not None}
        return msgspec.structs.replace(self, **some)


class AttemptReport(msgspec.Struct, frozen=True, tag=True):
    """The report of an attempt to run a unit, once it is through: the files that it wrote, by output.

    Where history is handed over it has positions, and the files of state, too; `keys` are the kinds of keys under which
    that lies, as a task's checkpoint notes them.
    """

    unit: int
    files: dict[str, str]
    metrics: RunMetrics
    positions: tuple[Position, ...] = ()
    state: tuple[StoreFile, ...] = ()
    keys: dict[str, str] = {}
    seen: dict[str, Sample] = {}
    """The keys that were looked at, by operator, to be compared with those of other units."""
    snapshot: Snapshot | None = None
    """The snapshot that the next micro-batch goes on from."""
    rows: str | None = None
    """The file of rows that the driver is to put where they belong, where these are not told as parts."""


ToDriver = OutputRows | AttemptReport
encode_told = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(ToDriver).decode


def in_frames(part: OutputRows) -> Iterator[bytes]:
    """Yield a part as pieces that are not too long: whoever reads them has one in memory at a time."""
    found = encode_told(part)
    if len(found) <= BLOCK_BYTES or len(part.values) == 1:
        yield found
        return
    half = len(part.values) // 2
    yield from in_frames(part.slice(0, half))
    yield from in_frames(part.slice(half, len(part.values)))


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """The event time of a stream at the end of a micro-batch, as one of its producers says."""

    stream: int
    watermark: int
    idle: bool = False


_decode_reached = msgspec.msgpack.Decoder(Reached).decode


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Rows, as they are held on their way."""

    values: list[bytes | None] | bytes
    keys: list[bytes | None] | None
    timestamps: list[int] | None
    stamps: list[int | None] | None
    signs: list[int | None] | None
    headers: list[dict[str, bytes | None] | None] | None = None
    start: bytes | None = None
    """What all values begin with, where they are records of one class: what follows is then one array of all."""

    def batch(self) -> Batch:
        """Return them as columns."""
        values: Any = self.values if self.start is None else AlikeRecords(self.start, [cast(bytes, self.values)])
        found = Batch(values, self.keys, self.timestamps, self.stamps, signs=self.signs)  # type: ignore[arg-type]
        found.headers = self.headers  # type: ignore[assignment]
        return found


_decode_block = msgspec.msgpack.Decoder(Block).decode
_encode_block = msgspec.msgpack.Encoder().encode


def packed(batch: Batch, evolving: bool = False) -> Iterator[bytes]:
    """Yield a batch as blocks that are not too long; `evolving` says that its values are bytes of `Evolving`."""
    for start in range(0, len(batch), BLOCK):
        yield from _packed(batch.slice(start, start + BLOCK) if len(batch) > BLOCK else batch, evolving)


def _packed(batch: Batch, evolving: bool) -> Iterator[bytes]:
    keys, *columns = map(_some, (batch.keys, batch.timestamps, batch.stamps, batch.signs, batch.headers))
    # The name and the definition of a class are as long as a small record, and are said once.
    start = start_of_records(batch.values) if evolving else None
    values = batch.values if start is None else AlikeRecords.joined(start, batch.values)
    timestamps, stamps, signs, headers = columns
    found = _encode_block(Block(values, keys, timestamps, stamps, signs, headers, start))
    if len(found) <= BLOCK_BYTES or len(batch) == 1:
        yield found
        return
    # Cut in the middle until it fits: how long rows are is known only once they are encoded.
    half = len(batch) // 2
    yield from _packed(batch.slice(0, half), evolving)
    yield from _packed(batch.slice(half, len(batch)), evolving)


def _some(column: list[Any] | None) -> list[Any] | None:
    """Return a column in which there is something."""
    return None if column and column[0] is None and column.count(None) == len(column) else column


IN_COLUMNS = b"\x7f"
"""The first byte of partial results of which all parts lie in columns; others begin as `Evolving` has it."""
assert IN_COLUMNS > LAST_TAG, "a tag of the values' own would be taken for it"
_evolving = Evolving()


@dataclass(frozen=True)
class PartialsSerde:
    """Encodes what is folded for windows: the parts of all accumulators as columns, each in one go.

    It is for the shuffle alone, and what it writes is read by the same version.

    >>> partials = Partials([Slot(10, 0, 10)], ["a", "b"], [(1, 2.5), (2, 0.5)], 3)
    >>> PartialsSerde().decode(PartialsSerde().encode(partials)) == partials
    True
    """

    def encode(self, value: Partials) -> bytes:
        """Return the bytes of partial results."""
        if SCALARS.issuperset(map(type, value.keys)):
            with suppress(OverflowError):  # an int of more than 64 bits
                if (columns := _apart(value.accumulators)) is not None:
                    row = value.slots, value.keys, columns, value.values, value.late
                    return IN_COLUMNS + encode_told(row)
        return _evolving.encode(value)

    def decode(self, data: bytes) -> Partials:
        """Return the partial results of these bytes."""
        if data[:1] != IN_COLUMNS:
            found: Partials = _evolving.decode(data)
            return found
        slots, keys, columns, values, late = msgspec.msgpack.decode(memoryview(data)[1:])
        return Partials([Slot(*slot) for slot in slots], keys, [*_together(columns)], values, late)


def _apart(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return scalars as they are, and tuples as the columns of their parts; None where there is anything else."""
    kinds = set(map(type, values))
    if SCALARS.issuperset(kinds):
        return (values,)
    if kinds != {tuple}:
        return None
    lengths = [*map(len, values)]
    if min(lengths) == max(lengths) > 0:
        columns = [*map(_apart, zip(*values, strict=True))]
        return None if None in columns else ("columns", columns)
    parts = [*chain.from_iterable(values)]  # as exact sums of floats, which are as long as they need to be
    return (lengths, parts) if SCALARS.issuperset(map(type, parts)) else None


def _together(apart: list[Any]) -> Iterable[Any]:
    """Return the values that were taken apart."""
    match apart:
        case [values]:
            found: list[Any] = values
            return found
        case ["columns", columns]:
            return zip(*map(_together, columns), strict=True)
    lengths, parts = apart
    left = iter(parts)
    return [tuple(islice(left, length)) for length in lengths]


class BlockRun(NamedTuple):
    """Blocks that lie together, of one target, stream and watermark."""

    target: int
    stream: int
    watermark: int
    rows: pa.RecordBatch

    def batch(self) -> Batch:
        """Return their rows as columns; what no row has is None."""
        blocks = [_decode_block(value) for value in self.rows.column("value").to_pylist()]
        first, *others = (block.batch() for block in blocks)
        if len({block.start for block in blocks}) > 1:
            for batch in (first, *others):
                batch.values = [*batch.values]
        for other in others:
            first.extend(other)
        stamps, timestamps = first.stamps, first.timestamps
        if stamps is not None and None in stamps:  # of streams that are merged, only some may be stamped
            first.stamps = [at if own is None else own for own, at in zip(stamps, timestamps or stamps, strict=True)]
        return first

    def reached(self) -> list[tuple[str, Reached]]:
        """Return what producers say in rows of the stream `TOLD`, each with who says it."""
        columns = (self.rows.column(name).to_pylist() for name in ("producer", "value"))
        return [(str(producer), _decode_reached(value)) for producer, value in zip(*columns, strict=True)]


def runs_of(batches: Iterable[pa.RecordBatch]) -> Iterator[BlockRun]:
    """Cut what is sorted by `ORDER` into runs."""
    for batch in batches:
        places = zip(*(batch.column(name).to_pylist() for name in ("target", "watermark", "stream")), strict=True)
        start = 0
        last: tuple[int, int, int] | None = None
        for place, blocks in groupby(places):
            assert last is None or last < place, "blocks come sorted by target, watermark and stream"
            target, watermark, stream = last = place
            stop = start + sum(1 for _ in blocks)
            for first in range(start, stop, BLOCKS_AT_ONCE):
                rows = batch.slice(first, min(BLOCKS_AT_ONCE, stop - first))
                yield BlockRun(target, stream, watermark, rows)
            start = stop


def producers_of(run: BlockRun) -> list[int]:
    """Return the units that wrote the rows of a run."""
    return list(run.rows.column("producer").to_pylist())


class Shuffled:
    """Blocks for the next stage on their way out."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, int, bytes | None]] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, target: int, stream: int, watermark: int, block: bytes | None = None) -> None:
        """Take a block on."""
        self._blocks.append((target, watermark, stream, block))

    def rows(self, producer: int, first: int) -> pa.RecordBatch:
        """Return them as Arrow columns, numbered from `first`."""
        number = len(self._blocks)
        targets, watermarks, streams, blocks = zip(*self._blocks, strict=True) if number else ((), (), (), ())
        columns = [targets, watermarks, streams, [producer] * number, range(first, first + number), blocks]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


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
    # From the end: the least stamp of a block and of all behind it. So the blocks of all producers, sorted by that,
    # close windows as they go.
    lowest = [*accumulate((min(stamps[start : start + size]) for start in reversed(starts)), min, initial=after)]
    for start, watermark in zip(starts, reversed(lowest[1:]), strict=True):
        yield max(watermark, before), batch.slice(start, start + size)


def beginnings(targets: Iterable[int]) -> pa.RecordBatch:
    """Return a row for each target, by which it begins though nothing may come for it."""
    rows = Shuffled()
    for target in targets:
        rows.add(target, BEGIN, MIN_TIMESTAMP)
    return rows.rows(-1, 0)


def telling(reached: Iterable[tuple[int, Reached]], producer: int) -> pa.RecordBatch:
    """Return what a producer says of event time as rows, one for each target that is to hear it."""
    rows = Shuffled()
    for target, one in reached:
        rows.add(target, TOLD, MIN_TIMESTAMP, msgspec.msgpack.encode(one))
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
    rows.add(FOR_DRIVER, BEGIN, MIN_TIMESTAMP, encode_told(told))
    return rows.rows(told.unit, sequence)
