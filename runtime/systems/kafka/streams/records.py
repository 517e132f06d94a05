"""A stream's rows, and what producers say beside them, as records of a topic."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial

import msgspec

from operators.core.base import Batch
from runtime.ports.streams import Control, Read

CONTROL, STAMP, SIGN, TIME = "samza-control", "samza-stamp", "samza-sign", "samza-time"
"""The headers of what a producer says, of what rows between stages carry, and of times that Kafka has none for."""
_NUMBER = struct.Struct(">q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Control).decode


def as_records(batch: Batch, control: Control | None, between: bool) -> Batch:
    """Return rows as records: plain ones, with stamps and signs as headers `between` stages, then the control."""
    none = [None] * len(batch)
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
        # A key of its own for each that speaks, so that compaction keeps what each has said last.
        key = b"".join(b"\0" + one.producer.encode() for one in control.words)
        said = Batch([_encode(control)], [key], headers=[{CONTROL: b""}])
        records = records.copy()
        records.extend(said)
    return records


def as_reads(rows: Batch, position: int, stream_id: int) -> list[Read]:
    """Return records as rows, each read with what was said after it; the last leads on to `position`."""
    reads: list[Read] = []
    first = 0
    for row, headers in enumerate(rows.headers or ()):
        if is_said(headers):
            assert rows.offsets is not None
            said = _decode(rows.values[row])
            reads.append(Read(_plain(rows.slice(first, row)), said, rows.offsets[row] + 1, stream_id))
            first = row + 1
    if first < len(rows) or not reads:
        reads.append(Read(_plain(rows.slice(first, len(rows)) if first else rows), None, position, stream_id))
    # Behind the last record there may be a marker, or what was rolled back: the reader goes on behind these, too.
    reads[-1] = reads[-1]._replace(next_offset=position)
    return reads


def is_said(headers: Mapping[str, bytes] | None) -> bool:
    """Whether a record of such headers is no row, but what a producer has said."""
    return headers is not None and CONTROL in headers


def _with(name: str, headers: Mapping[str, bytes] | None, number: int | None) -> Mapping[str, bytes] | None:
    return headers if number is None else {**(headers or {}), name: _NUMBER.pack(number)}


def _plain(rows: Batch) -> Batch:
    """Return records as rows: what headers say of them in columns, and no column that says nothing."""
    offsets, keys, timestamps = rows.offsets or [], rows.keys or [], list(rows.timestamps or ())
    # A range in the place of a list: nothing is held per row where offsets have no gaps.
    if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
        offsets = range(offsets[0], offsets[-1] + 1)
    batch = Batch(rows.values, None if keys.count(None) == len(keys) else keys, timestamps, offsets=offsets)
    if rows.headers is not None and any(rows.headers):
        headers = [dict(one or {}) for one in rows.headers]
        for name, column in ((STAMP, "stamps"), (SIGN, "signs")):
            if any(name in one for one in headers):
                said = [one.pop(name, None) for one in headers]
                setattr(batch, column, [None if one is None else _NUMBER.unpack(one)[0] for one in said])
        for row, one in enumerate(headers):
            if TIME in one:
                timestamps[row] = _NUMBER.unpack(one.pop(TIME))[0]
        if any(headers):
            batch.headers = [one or None for one in headers]
    return batch
