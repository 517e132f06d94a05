"""JSON lines as bound inputs and outputs: one JSON value per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import msgspec

from operators.core.base import Batch, Serde, has_none
from runtime.encoding.json_text import to_json_lines
from runtime.encoding.lines import NULL, Lines, ObjectLines, rows_in
from runtime.encoding.serdes import Json, MessagePack, String, Tagged
from runtime.encoding.storable import ReadBack
from runtime.model.errors import SerdeError
from runtime.ports.sink import Sink
from runtime.systems.files.places.locations import DataFile
from runtime.systems.files.record_files import AppendedFile, RecordSource

VISIBLE = b"!"
"""The least line that does not begin with white space."""


class JsonlSource(RecordSource):
    """A bounded input of JSON lines, one file per partition; blank lines are no records.

    Values are the bytes of the line without its line break; keys are None.
    """

    name = "jsonl"

    def __init__(self, files: Sequence[DataFile]) -> None:
        super().__init__(files, lines_in)
        self._kind: object = Any

    def serde(self, declared: Serde) -> Serde:
        """Return JSON of the declared type; Bytes, or a serde of the user's own, reads the line itself."""
        found = json_of(declared)
        self._kind = Any if found is None else found.type
        return found or declared

    def completed(self, partition: int, records: Sequence[bytes]) -> list[bytes]:
        """Return JSON objects with the fields that their folders give, of the declared types."""
        return self.folders.with_json(partition, self._kind, records)


class JsonlSink(Sink):
    """An output of JSON lines: one line per value, keys are not written, a tombstone is the line `null`.

    Its position is the file's length in bytes. Creating it changes nothing on disk.
    """

    name = "jsonl"
    columns = frozenset[str]()
    partitions = 1

    def __init__(self, path: Path, lasting: bool = True) -> None:
        self._file = AppendedFile(path, lasting)

    def serde(self, declared: Serde) -> Serde:
        """Return JSON of the declared type; what Bytes or a serde of the user's own makes is checked to be JSON."""
        return json_of(declared) or JsonLine(declared)

    def together(self, serde: Serde) -> Callable[[list[object]], list[object]] | None:
        """Return what encodes values as JSON of their own, whatever they are: each comes to what it does by itself."""
        if not isinstance(serde, ReadBack):
            return _lines if isinstance(serde, Json) else None

        def lines(values: list[object]) -> list[object]:
            data = to_json_lines(values)
            serde.check(values, lambda: data.split(b"\n")[:-1])
            return [Lines.of(len(values), data)]

        return lines if isinstance(serde.declared, Json) else None

    def recover(self, position: int) -> None:
        """Cut the file back to `position`; raises `Damaged` when it is shorter."""
        self._file.cut(position)

    def write(self, batch: Batch) -> None:
        """Take rows, in order; raises `SerdeError` when a value is not one line."""
        values: list[bytes] = batch.values
        if not values:
            return
        if has_none(values):
            values = [NULL if value is None else value for value in values]
        lines = b"\n".join([*values, b""])
        # One count in C over all of them, and not a look at each value.
        if lines.count(b"\n") not in (len(values), sum(map(rows_in, values))):
            raise SerdeError(f"a value for {self._file.path} contains a line break; encode it as JSON on one line")
        self._file.append(lines)

    def flush(self) -> int:
        """Make all rows durable and return the file's length."""
        return self._file.flush()

    def close(self) -> None:
        """Drop what was not flushed; a second call does nothing."""
        self._file.forget()


def _lines(values: list[object]) -> list[object]:
    return [Lines.of(len(values), to_json_lines(values))]


@dataclass(frozen=True)
class JsonLine:
    """Another serde whose bytes are JSON, put on one line.

    >>> from runtime.encoding.serdes import Bytes
    >>> JsonLine(Bytes()).encode(b'{"a": 1}')
    b'{"a":1}'
    """

    declared: Serde

    def encode(self, value: object) -> bytes:
        """Return the line of `value`; raises SerdeError when the serde does not make JSON."""
        data = self.declared.encode(value)
        try:
            data.decode()
            return msgspec.json.format(data, indent=-1)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SerdeError(
                f"{self.declared!r} makes bytes that are not JSON ({error}), so they can't be a JSON line; "
                "declare the output's value type, e.g. value=dict, or bind it to a stream"
            ) from error

    def decode(self, data: bytes) -> object:
        """Return the value of a line."""
        return self.declared.decode(data)


def lines_in(data: bytes, last: bool) -> tuple[Sequence[bytes], int]:
    r"""Find the lines in `data` that are not blank, and leave them together where they seem to be JSON objects.

    >>> lines_in(b'{"a": 1}\n{"a": 2}\n{"a', last=False)[0].data
    b'{"a": 1}\n{"a": 2}'
    >>> lines_in(b"1\n2\n", last=True)
    ([b'1', b'2'], 4)
    """
    used = len(data) if last else data.rfind(b"\n") + 1
    found = ObjectLines.of(data[: used - data.endswith(b"\n", 0, used)])
    return (found, used) if found is not None else split_lines(data, last)


def split_lines(data: bytes, last: bool) -> tuple[list[bytes], int]:
    r"""Cut `data` into lines that are not blank, without their line breaks.

    >>> split_lines(b"1\r\n\n2\n3", last=False)
    ([b'1', b'2'], 6)
    """
    lines = data.split(b"\n")
    used = len(data) if last else len(data) - len(lines.pop())
    if b"\r" in data:
        lines = [line.removesuffix(b"\r") for line in lines]
    if min(lines, default=VISIBLE) < VISIBLE:  # few files have blank lines, and to look at each takes longer
        lines = list(filterfalse(bytes.isspace, filter(None, lines)))
    return lines, used


def json_of(declared: Serde) -> Json | None:
    """Return the serde of the same values as JSON, where the declared one says no more than their type."""
    if isinstance(declared, Json):
        return declared
    return Json(declared.type) if isinstance(declared, MessagePack | String | Tagged) else None
