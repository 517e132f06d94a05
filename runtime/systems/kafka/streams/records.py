"""A stream's rows, and what producers say beside them, as records of a topic."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial

import msgspec

from operators.core.base import Batch, Headers
from operators.core.wording import shown
from runtime.model.errors import Damaged, command
from runtime.ports.streams import Control, Read

OURS = "samza-"
CONTROL, STAMP, SIGN, TIME = f"{OURS}control", f"{OURS}stamp", f"{OURS}sign", f"{OURS}time"
"""The headers of what a producer says, of what rows between stages carry, and of times that Kafka has none for.

Records of others may have headers of these names. What lies between stages is ours alone, and elsewhere only what is
exactly as it is written here.
"""
CARRIED = f"{OURS}carried-"
"""Between stages, the beginning of the names of headers of others whose names begin as ours do."""
_NUMBER = struct.Struct(">q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Control).decode


def as_records(batch: Batch, control: Control | None, between: bool) -> Batch:
    """Return rows as records: plain ones, with stamps and signs as headers `between` stages, then the control."""
    none = [None] * len(batch)
    numbers: dict[str, list[int | None] | list[int] | None]
    headers, times = batch.headers, batch.timestamps
    if between and headers is not None:
        headers = [*map(_set_apart, headers)]
    numbers = {STAMP: batch.stamps, SIGN: batch.signs} if between else {}
    if times is not None and min(times, default=0) < 0:  # before 1970
        numbers[TIME] = [at if at < 0 else None for at in times]
        times = [max(at, 0) for at in times]
    for name, column in numbers.items():
        if column is not None:
            headers = list(map(partial(_with, name), headers or none, column))
    records = Batch(list(batch.values), batch.keys, times, headers=headers)
    if control is not None:
        said = Batch([_encode(control)], [_key_of(control)], headers=[{CONTROL: b""}])
        records = records.copy()
        records.extend(said)
    return records


def as_reads(rows: Batch, position: int, stream_id: int, between: str | None = None) -> list[Read]:
    """Return records as rows, each read with what was said after it; the last leads on to `position`.

    `between` names a partition that lies between stages. Raises `Damaged` there for a record that no stage has written.
    """
    reads: list[Read] = []
    first = 0
    for row, headers in enumerate(rows.headers or ()):
        if headers is not None and CONTROL in headers and (said := control_of(rows, row, between)) is not None:
            assert rows.offsets is not None
            reads.append(Read(_plain(rows.slice(first, row), between), said, rows.offsets[row] + 1, stream_id))
            first = row + 1
    if first < len(rows) or not reads:
        left = rows.slice(first, len(rows)) if first else rows
        reads.append(Read(_plain(left, between), None, position, stream_id))
    # Behind the last record there may be a marker, or what was rolled back: the reader goes on behind these, too.
    reads[-1] = reads[-1]._replace(next_offset=position)
    return reads


def control_of(rows: Batch, row: int, between: str | None = None) -> Control | None:
    """Return what a producer has said by a record; None where that is a row.

    It is a row of others where its header has the name of ours, and header, key or value are not as we write them.
    """
    headers = rows.headers[row] if rows.headers is not None else None
    if headers is None or CONTROL not in headers:
        return None
    said = None
    # Whatever bytes of others lead to is no error: they are a row's.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError):
        said = _decode(rows.values[row])
    if said is not None and headers == {CONTROL: b""} and rows.keys is not None and rows.keys[row] == _key_of(said):
        return said
    if between is not None:
        raise _damaged_error(rows, row, CONTROL, between)
    return None


def _key_of(control: Control) -> bytes:
    """Return a key of its own for each that speaks, so that compaction keeps what each has said last."""
    return b"".join(b"\0" + one.producer.encode() for one in control.words)


def _with(name: str, headers: Headers | None, number: int | None) -> Headers | None:
    return headers if number is None else {**(headers or {}), name: _NUMBER.pack(number)}


def _set_apart(headers: Headers | None) -> Headers | None:
    """Return the headers that a row carries, none of them with a name of ours."""
    if headers is None or not any(name.startswith(OURS) for name in headers):
        return headers
    return {f"{CARRIED}{name}" if name.startswith(OURS) else name: content for name, content in headers.items()}


def _given_back(headers: dict[str, bytes | None]) -> Headers | None:
    """Return the headers that a row carries as they were before `_set_apart`."""
    return {name.removeprefix(CARRIED): content for name, content in headers.items()} or None


def _plain(rows: Batch, between: str | None) -> Batch:
    """Return records as rows: what headers say of them in columns, and no column that says nothing."""
    offsets, keys, timestamps = rows.offsets or [], rows.keys or [], list(rows.timestamps or ())
    # A range in the place of a list: nothing is held per row where offsets have no gaps.
    if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
        offsets = range(offsets[0], offsets[-1] + 1)
    batch = Batch(rows.values, None if keys.count(None) == len(keys) else keys, timestamps, offsets=offsets)
    if rows.headers is not None and any(rows.headers):
        headers = [dict(one or {}) for one in rows.headers]
        if between is not None:
            for name, column in ((STAMP, "stamps"), (SIGN, "signs")):
                if any(name in one for one in headers):
                    setattr(batch, column, _numbers(rows, name, headers, between))
        for row, one in enumerate(headers):
            if TIME in one and (between is not None or _is_early(timestamps[row], one[TIME])):
                timestamps[row] = _numbers(rows.row(row), TIME, [one], between or "")[0] or 0
        if any(headers):
            batch.headers = [_given_back(one) if between is not None else one or None for one in headers]
    return batch


def _is_early(timestamp: int, said: bytes | None) -> bool:
    """Whether a header tells the time of a record before 1970, as we write it where Kafka has none."""
    return timestamp == 0 and said is not None and len(said) == _NUMBER.size and _NUMBER.unpack(said)[0] < 0


def _numbers(rows: Batch, name: str, headers: list[dict[str, bytes | None]], where: str) -> list[int | None]:
    """Take a header of ours off rows; return its numbers, None where a row has none."""
    try:
        return [_NUMBER.unpack(one.pop(name))[0] if name in one else None for one in headers]  # type: ignore[arg-type]
    except (struct.error, TypeError):
        for row, had in enumerate(rows.headers or ()):
            if had is not None and name in had and len(had[name] or b"") != _NUMBER.size:
                raise _damaged_error(rows, row, name, where) from None
        raise


def _damaged_error(rows: Batch, row: int, name: str, where: str) -> Damaged:
    assert rows.offsets is not None and rows.headers is not None
    said = (rows.headers[row] or {}).get(name)
    return Damaged(
        f"{where} at {rows.offsets[row]:,}: the record lies between the stages of an application, and no stage writes "
        f"the header {name!r} as {shown(said)} beside such a key and value: others wrote there, or it is damaged. "
        f"Let nobody else write there, and begin anew: {command('reset APP')}."
    )
