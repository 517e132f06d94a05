"""The files of an archive as JSON lines."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from runtime.model.errors import Damaged
from runtime.systems.files.archive import ROWS_AT_ONCE, ArchiveRows
from runtime.systems.files.jsonl import split_lines
from runtime.systems.files.record_files import RecordFile


class JsonRow(msgspec.Struct, omit_defaults=True, rename=lambda name: f"_{name}"):
    """One record as a JSON line: values that are JSON are as they are, and what is no text is base64."""

    partition: int
    offset: int
    timestamp: int | None = None
    key: str | None = None
    value: msgspec.Raw = msgspec.Raw()
    watermark: int | None = None
    key_base64: str | None = None
    value_base64: str | None = None


_decode_line = msgspec.json.Decoder(JsonRow).decode


def write_jsonl(path: Path, partition: int, found: Iterable[ArchiveRows]) -> None:
    """Write rows as JSON lines, and make them durable."""
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for rows in found:
            file.writelines(encode(_line(partition, *row)) + b"\n" for row in zip(*rows, strict=True))
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path) -> Iterator[ArchiveRows]:
    """Yield the rows of a file of JSON lines; raises `Damaged` where it has another line."""
    file, number = RecordFile(path, split_lines), 0
    while lines := file.read(number, ROWS_AT_ONCE):
        number += len(lines)
        try:
            found = [_decode_line(line) for line in lines]
        except msgspec.MsgspecError as error:
            raise Damaged(f"{path} has a line that was not written there: {error}; restore it") from error
        yield ArchiveRows(
            [row.offset for row in found],
            [row.timestamp for row in found],
            [_bytes(row.key, row.key_base64) for row in found],
            [bytes(row.value) or _bytes(None, row.value_base64) for row in found],
            [row.watermark for row in found],
        )


def _line(
    partition: int, offset: int, timestamp: int | None, key: bytes | None, value: bytes | None, watermark: int | None
) -> JsonRow:
    row = JsonRow(partition, offset, timestamp, watermark=watermark)
    if key is not None:
        try:
            row.key = key.decode()
        except UnicodeDecodeError:
            row.key_base64 = b64encode(key).decode()
    if value is not None and _is_one_json_line(value):
        row.value = msgspec.Raw(value)
    elif value is not None:
        row.value_base64 = b64encode(value).decode()
    return row


def _is_one_json_line(value: bytes) -> bool:
    try:
        value.decode()
        msgspec.json.decode(value)
    except ValueError:
        return False
    # Only what reads back as the very same bytes may lie there as JSON.
    return b"\n" not in value and value == value.strip()


def _bytes(text: str | None, base64: str | None) -> bytes | None:
    if base64 is not None:
        return b64decode(base64)
    return None if text is None else text.encode()
