"""How a stream's rows, and what producers say beside them, are records of a topic."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from operators.base import Batch
from runtime.systems.base import Control, Read

CONTROL, STAMP, SIGN, TIME = "samza-control", "samza-stamp", "samza-sign", "samza-time"
"""The headers of what a producer says, of what rows between stages carry, and of times that Kafka has none for."""
_NUMBER = struct.Struct(">q")
_headers = attrgetter("headers")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Control).decode


def as_records(batch: Batch, control: Control | None, between: bool) -> Batch:
    """Return rows as records: plain ones, with stamps and signs as headers `between` stages, then the control."""
    none: list[Any] = [None] * len(batch)
    numbers: dict[str, list[int | None] | list[int] | None]
    headers, times = batch.headers, batch.timestamps
    numbers = {STAMP: batch.stamps, SIGN: batch.signs} if between else {}
    if times is not None and min(times, default=0) < 0:  # before 1970
        numbers[TIME] = [at if at < 0 else None for at in times]
        times = [max(at, 0) for at in times]
    for name, column in numbers.items():
        if column is not None:
            headers = list(map(partial(_with, name), headers or none, column))
    records = Batch(list(batch.values), batch.keys, times, headers=headers)
    if control is not None:
        said = Batch([_encode(control)], [b"\0" + control.producer.encode()], headers=[{CONTROL: b""}])
        records = records.copy()
        records.extend(said)
    return records


def as_reads(records: Sequence[Any], position: int, stream_id: int) -> list[Read]:
    """Return records as rows, each read with what was said after it; the last leads on to `position`."""
    if not any(map(_headers, records)):
        return [Read(_rows(records), None, position, stream_id)]
    reads: list[Read] = []
    rows: list[Any] = []
    for record in records:
        if record.headers and is_said(record):
            reads.append(Read(_rows(rows), _decode(record.value), record.offset + 1, stream_id))
            rows = []
        else:
            rows.append(record)
    if rows or not reads:
        reads.append(Read(_rows(rows), None, position, stream_id))
    reads[-1] = reads[-1]._replace(next_offset=position)
    return reads


def is_said(record: Any) -> bool:
    """Whether a record is no row, but what a producer has said."""
    return any(name == CONTROL for name, _ in record.headers)


def _with(name: str, headers: Mapping[str, bytes] | None, number: int | None) -> Mapping[str, bytes] | None:
    return headers if number is None else {**(headers or {}), name: _NUMBER.pack(number)}


def _rows(records: Sequence[Any]) -> Batch:
    offsets: Sequence[int]
    if records and records[-1].offset - records[0].offset + 1 == len(records):
        offsets = range(records[0].offset, records[-1].offset + 1)
    else:
        offsets = [record.offset for record in records]
    batch = Batch(
        [record.value for record in records],
        keys=[record.key for record in records],
        timestamps=[record.timestamp for record in records],
        offsets=offsets,
    )
    if any(map(_headers, records)):
        headers = [dict(record.headers) for record in records]
        for name, column in ((STAMP, "stamps"), (SIGN, "signs")):
            if any(name in one for one in headers):
                said = [one.pop(name, None) for one in headers]
                setattr(batch, column, [None if one is None else _NUMBER.unpack(one)[0] for one in said])
        for row, one in enumerate(headers):
            if TIME in one and batch.timestamps is not None:
                batch.timestamps[row] = _NUMBER.unpack(one.pop(TIME))[0]
        if any(headers):
            batch.headers = [one or None for one in headers]
    if batch.keys is not None and batch.keys.count(None) == len(batch.keys):
        batch.keys = None
    return batch
