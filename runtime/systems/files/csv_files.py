"""CSV as bound inputs and outputs, of any dialect: commas, UTF-8 and a header, if nothing else is said."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import inspect

from operators.aggregations.identity import may_be_infinite
from operators.core.base import Batch, Serde, has_none
from runtime.encoding.formats.rows import (
    Columns,
    RowSerde,
    alternatives,
    check_names,
    column_types,
    converted,
    has_columns,
    misnamed,
    nested_in,
    row_of,
    rows_of,
    type_of_rows,
)
from runtime.encoding.json_text import ONLY_TEXT, check_entries, check_finite
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import is_pydantic
from runtime.encoding.value_types import json_decoder, json_plain, json_row
from runtime.model.errors import SamzaError, SerdeError
from runtime.ports.sink import Sink
from runtime.systems.files.places.locations import DataFile, RemoteFile
from runtime.systems.files.record_files import AppendedFile, RecordFile, RecordSource

Found: TypeAlias = tuple[list[bytes], int]
"""Records, and how many bytes they took."""
KEPT_EMPTY = (inspect.StrType, inspect.BytesType, inspect.EnumType, inspect.LiteralType)


@dataclass(frozen=True)
class CsvFiles:
    """Files of CSV of some dialect, to which an input or output is bound: `bind={"trips": CsvFiles("t.csv", ";")}`.

    Fields lie between `delimiter`s, in `quote`s where they need them (None has none), in which an `escape` stands
    before a quote, or else a second one. Texts are in an `encoding`. Without a line of names in
    front, the `header` says them, and none is written. Cells that are one of `nulls` are None where the type allows it;
    None is written as the first. With `skip_spaces` those behind a delimiter are no part of what is read.
    Raises SamzaError for what no dialect has.

    >>> CsvFiles("trips.csv", delimiter=";", nulls=("", "NA")).delimiter
    ';'
    """

    path: str | Path
    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    encoding: str = "utf-8"
    header: Sequence[str] | None = None
    nulls: Sequence[str] = ("",)
    skip_spaces: bool = False

    def __post_init__(self) -> None:
        signs = [self.delimiter, *(one for one in (self.quote, self.escape) if one is not None)]
        if any(not isinstance(one, str) or len(one) != 1 or one in "\r\n" for one in signs) or len(set(signs)) < len(
            signs
        ):
            raise SamzaError(
                f"{self!r}: delimiter, quote and escape are different single characters, and no line break"
            )
        if self.skip_spaces and self.delimiter == " ":
            raise SamzaError(f"{self!r}: a delimiter that is a space is not skipped: leave skip_spaces= out")
        if isinstance(self.nulls, str) or not self.nulls:
            raise SamzaError(f'{self!r}: write the texts that stand for None: nulls=("NA",)')
        try:
            object.__setattr__(self, "encoding", codecs.lookup(self.encoding).name)
        except LookupError as error:
            raise SamzaError(f'{self!r}: there is no encoding {self.encoding!r}: write one as "latin-1"') from error
        header = None if self.header is None else tuple(self.header)
        if header is not None and (not header or len(set(header)) < len(header)):
            raise SamzaError(f"{self!r}: a header names each column once")
        object.__setattr__(self, "header", header)
        object.__setattr__(self, "nulls", tuple(self.nulls))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def form(self) -> dict[str, Any]:
        """The dialect as Python's csv module takes it."""
        said = {
            "delimiter": self.delimiter,
            "escapechar": self.escape,
            "doublequote": self.escape is None,
            "skipinitialspace": self.skip_spaces,
        }
        if self.quote is None:
            return {**said, "quoting": csv.QUOTE_NONE, "quotechar": None, "doublequote": False}
        return {**said, "quotechar": self.quote}


OTHER_DELIMITERS = ";\t|,"
"""Those that files have whose delimiter is another one than was said."""
_MARKS = {"utf-16": codecs.BOM_UTF16_LE, "utf-32": codecs.BOM_UTF32_LE}
_UNMARKED = {"utf-16": "utf-16-le", "utf-32": "utf-32-le", "utf-8-sig": "utf-8"}
PLAIN = CsvFiles("")
"""The dialect of RFC 4180, in UTF-8."""


class CsvSource(RecordSource):
    """A bounded input of CSV, one file per partition, all with the same header; empty lines are no records.

    Values are the bytes of the record, which quoted line breaks spread over several lines; keys are None. Other readers
    may have the files that these are `among`, whose rows one serde reads. Raises SamzaError when headers differ, or
    when one names a column twice.
    """

    name = "csv"

    def __init__(self, files: Sequence[DataFile], dialect: CsvFiles = PLAIN, among: Iterable[DataFile] = ()) -> None:
        super().__init__(files, _splitting(dialect), dialect.encoding)
        self._dialect = dialect
        self._kind: object = Any
        self.skipped = 0 if dialect.header is not None else 1
        if dialect.header is not None:
            self.folders.told_of(0, dialect.header)
            self.header = (*dialect.header, *self.folders.names)
            return
        example = next((file for file in among if _header_of(file.path, dialect) is not None), None)
        told = [*files] if example is None else [example, *files]
        headers = {header: file.path for file in told if (header := _header_of(file.path, dialect)) is not None}
        if len(headers) > 1:
            (first, one), (second, other) = list(headers.items())[:2]
            raise SamzaError(f"{one} has the columns {first} and {other} has {second}; bind files with one header")
        # Where a file has a column of that name itself, what its folder says comes behind, and holds.
        self.folders.told_of(0, next(iter(headers), ()))
        self.header = (*next(iter(headers), ()), *self.folders.names)

    def serde(self, declared: Serde) -> Serde:
        """Return the serde of rows with the declared type; String, Bytes or one of the user's reads the text itself."""
        kind = type_of_rows(declared)
        if kind is None:
            return declared
        self._kind = kind
        quote = self._dialect.quote or ""
        columns: Columns = {key: {} for key in self.header}
        for name, found in misnamed(inspect.type_info(kind), columns):
            # Behind a space a quote is a part of the name.
            if found != found.strip() and found.strip().strip(quote) == name:
                # Else the field would take its default in each row, without a word.
                raise SamzaError(
                    f"the header of {self._files[0].path} names {found!r}, with spaces, and {name!r} is read: say "
                    "CsvFiles(path, skip_spaces=True) where they stand behind each delimiter, or mend that line"
                )
        check_names(kind, columns, f"the header of {self._files[0].path}")
        return CsvRow(self.header, kind, self._dialect)

    def completed(self, partition: int, records: Sequence[bytes]) -> list[bytes]:
        """Return records with the fields that their folders give."""
        return self.folders.with_cells(partition, records, self._kind, self._dialect.form, self._dialect.nulls[0])


class CsvSink(Sink):
    """An output of CSV with the columns of the first record; keys are not written.

    None is an empty field, true and false are written so, dates as ISO 8601, and nested values as JSON; lines end as
    RFC 4180 says. Its position is the file's length in bytes. Creating it changes nothing on disk.
    """

    name = "csv"
    columns = frozenset[str]()
    partitions = 1

    def __init__(self, path: Path, lasting: bool = True, dialect: CsvFiles = PLAIN) -> None:
        self._file = AppendedFile(path, lasting)
        self._rows = CsvRows()
        self._dialect = dialect
        self._header: tuple[str, ...] | None = None

    def serde(self, declared: Serde) -> Serde:
        """Return the serde of rows with the declared type; raises SamzaError when that can't be rows."""
        self._rows = CsvRows(rows_of(declared, self._file.path).type)
        return self._rows

    def recover(self, position: int) -> None:
        """Cut the file back to `position`; raises `Damaged` when it is shorter."""
        self._file.cut(position)
        self._header = None

    def write(self, batch: Batch) -> None:
        """Take rows, in order; raises SerdeError for a tombstone, and for a field that the header has not."""
        if has_none(batch.values):
            raise SerdeError(
                f"CSV has no way to write a tombstone (a value of None) to {self._file.path}: filter it out, or bind "
                "the output to JSON lines"
            )
        rows = [_as_row(self._rows.decode(value)) for value in batch.values]
        if not rows:
            return
        header = self._header
        is_new = header is None and not self._file.length
        # Of a file that goes on the header is already there: only a new one gets the first record's columns.
        if header is None and self._dialect.header is None and self._file.length:
            header = _header_of(self._file.path, self._dialect)
        lines = []
        if self._dialect.header is not None:
            header = tuple(self._dialect.header)
        elif header is None:
            header = self._rows.header or tuple(rows[0])
            lines.append(_text([header], self._dialect))
        lines.append(_text((_cells(header, row, self._file.path, self._dialect) for row in rows), self._dialect))
        mark = _MARKS.get(self._dialect.encoding, b"") if is_new else b""
        self._file.append(mark + _encoded("".join(lines), self._dialect))
        self._header = header

    def flush(self) -> int:
        """Make all rows durable and return the file's length."""
        return self._file.flush()

    def close(self) -> None:
        """Drop what was not flushed; a second call does nothing."""
        self._file.forget()


@dataclass(frozen=True)
class CsvRows(RowSerde):
    """Rows whose nested values are JSON in their cells, which has no NaN and no infinity.

    >>> CsvRows().encode({"all": [float("nan")]})
    Traceback (most recent call last):
        ...
    runtime.model.errors.SerdeError: nan has no JSON, ...
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        found = alternatives(inspect.type_info(self.type)) if has_columns(self.type) else ()
        fields = [field for one in found for field in getattr(one, "fields", ())]
        kinds = {field.encode_name: alternatives(field.type) for field in fields}
        mixed = {name for name, of in kinds.items() if _any_of(of, inspect.StrType) and _any_of(of, *_NUMBERS)}
        may_lack = any(isinstance(one, inspect.TypedDictType) for one in found)
        absent = {field.encode_name for field in fields if may_lack and not field.required}
        told = {name for name in absent if _any_of(kinds[name], *KEPT_EMPTY, inspect.NoneType, inspect.AnyType)}
        object.__setattr__(self, "_mixed", sorted(mixed))
        object.__setattr__(self, "_told", told)
        object.__setattr__(self, "header", tuple(kinds) if absent else None)

    header: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    """The columns of dicts that may lack some; None where the first record has them all."""
    _mixed: Sequence[str] = field(init=False, repr=False, compare=False)
    """The fields that may be text, or a number."""
    _told: set[str] = field(init=False, repr=False, compare=False)
    """The keys that a dict may lack, and whose value an empty cell would be."""

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError when it has no named fields, or a nested one no JSON.

        Also for what would be read as another value.
        """
        row = _as_row(value)
        if not row:
            raise SerdeError("a record without fields has no line in CSV: filter it out, or bind JSON lines")
        for name in self._mixed:
            if isinstance(row.get(name), int | float):
                wrong = f"the field {name!r} may be text as well, as which {row[name]!r} is read from CSV"
                raise SerdeError(f"{wrong}, whose cells have no types: make it text, or bind JSON lines")
        for name in sorted(self._told - row.keys()):
            wrong = f"the key {name!r} is not there, and an empty cell of CSV is read as a value"
            raise SerdeError(f"{wrong}, as empty text or None: give it one, or bind JSON lines")
        data = super().encode(row)
        if may_be_infinite(data):
            plain = msgspec.to_builtins(row, enc_hook=json_plain)
            check_finite([cell for cell in plain.values() if type(cell) is not float])
        if not (ONLY_TEXT.issuperset(map(type, row)) and _PLAIN.issuperset(map(type, row.values()))):
            if odd := [name for name in row if not isinstance(name, str | int)]:
                raise SerdeError(
                    f"a row has the key {odd[0]!r}, and the names of columns are text: give it text as keys"
                )
            check_entries([row])
        return data


_NUMBERS = (inspect.BoolType, inspect.IntType, inspect.FloatType)


@dataclass(frozen=True)
class CsvRow:
    """One CSV record under a known header, as a value of `type`.

    An empty field is None where the type allows it, else empty text; where it is neither, it counts as left out, so
    that a default applies. Where nested values are expected, the field is JSON.

    >>> CsvRow(("carrier", "delay"), dict[str, int | str | None]).decode(b'"A,A",')
    {'carrier': 'A,A', 'delay': None}
    """

    header: tuple[str, ...]
    type: object = Any
    dialect: CsvFiles = PLAIN
    _form: dict[str, Any] = field(init=False, repr=False, compare=False)
    _nullable: frozenset[str] = field(init=False, repr=False, compare=False)
    _droppable: frozenset[str] = field(init=False, repr=False, compare=False)
    _nested: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _decode: Callable[[bytes], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        columns = {name: alternatives(info) for name, info in column_types(self.type, self.header).items()}
        nullable = {name for name, kinds in columns.items() if any(map(_may_be_none, kinds))}
        kept = {name for name, kinds in columns.items() if _any_of(kinds, *KEPT_EMPTY)}
        object.__setattr__(self, "_form", self.dialect.form)
        object.__setattr__(self, "_nullable", frozenset(nullable))
        object.__setattr__(self, "_droppable", frozenset(self.header) - nullable - kept)
        object.__setattr__(self, "_nested", nested_in(self.type, self.header))
        object.__setattr__(self, "_decode", json_decoder(self.type, strict=False).decode)

    def encode(self, value: object) -> bytes:
        """Return the record of `value` without its line break."""
        cells = _cells(self.header, _as_row(value), "a CSV record", self.dialect)
        return _text([cells], self.dialect).removesuffix("\r\n").encode()

    def decode(self, data: bytes) -> object:
        """Return the value of a record; raises SerdeError when it is not CSV or has other fields than the header."""
        # Python's reader refuses fields of more than 128 KiB unless it is told to take them.
        if len(data) > csv.field_size_limit():
            csv.field_size_limit(len(data))
        try:
            cells = next(csv.reader((data.decode(),), strict=True, **self._form), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise SerdeError(f"a CSV record is malformed: {error}") from error
        if len(cells) != len(self.header):
            raise SerdeError(f"a CSV record has {len(cells)} fields where the header names {len(self.header)}")
        row: dict[str, object] = dict(zip(self.header, cells, strict=True))
        nulls = self.dialect.nulls
        if any(null in cells for null in nulls):
            row = {
                name: None if cell in nulls and name in self._nullable else cell
                for name, cell in row.items()
                if cell not in nulls or name not in self._droppable
            }
        nested = {name: cell for name in self._nested if isinstance(cell := row.get(name), str)}
        if not nested:
            return converted(row, self.type, [row], strict=False)
        # JSON as a whole, in which the digits of numbers are those of their types: what a cell says is one value of it.
        row |= {name: msgspec.json.decode(cell, type=msgspec.Raw) for name, cell in nested.items()}
        return self._decode(msgspec.json.encode(row))


def split_rows(data: bytes, last: bool, quote: bytes = b'"', field: re.Pattern[bytes] | None = None) -> Found:
    r"""Cut `data` into CSV records that are not empty, without their line breaks.

    >>> split_rows(b'a,"b\nc"\r\n\n1,2\n"3', last=False)
    ([b'a,"b\nc"', b'1,2'], 14)
    """
    records = data.split(b"\n")
    used = len(data) if last else len(data) - len(records.pop())
    if quote and quote in data:
        # Lines first, in C, which is right for most records; only where there are quotes are they looked at.
        records, unfinished = _join_quoted(records, quote, field or _FIELD)
        if last:
            records.append(b"\n".join(unfinished))
        else:
            used -= sum(len(line) + 1 for line in unfinished)
    if b"\r" in data:
        records = [record.removesuffix(b"\r") for record in records]
    return list(filter(None, records)), used


def _splitting(dialect: CsvFiles) -> Callable[[bytes, bool], Found]:
    """Return what cuts bytes of a dialect into records."""
    if dialect.quote is None:
        return partial(split_rows, quote=b"")
    said = dialect.delimiter, dialect.quote, dialect.escape, dialect.skip_spaces
    if said == (PLAIN.delimiter, PLAIN.quote, PLAIN.escape, PLAIN.skip_spaces):
        return split_rows
    quote = dialect.quote.encode()
    spaces = b" *" if dialect.skip_spaces else b""
    return partial(split_rows, quote=quote, field=_field_of(dialect.delimiter.encode(), quote, dialect.escape, spaces))


def _field_of(delimiter: bytes, quote: bytes, escape: str | None, spaces: bytes) -> re.Pattern[bytes]:
    """Return what finds the fields of a line: whether one begins with a quote, and the quote that ends it."""
    start, sign = re.escape(delimiter), re.escape(quote)
    within = rb"(?:(?!%s).)*(?:%s%s(?:(?!%s).)*)*" % (sign, sign, sign, sign)
    outside = rb"(?:(?!%s).)*" % start
    if escape is not None:
        mark = re.escape(escape.encode())
        within = rb"(?:%s.|(?!%s|%s).)*" % (mark, sign, mark)
        outside = rb"(?:%s.|(?!%s|%s).)*" % (mark, start, mark)
    parts = start, spaces, sign, within, sign, outside, outside
    return re.compile(rb"(?:\A|%s)%s(?:(%s)%s((?:%s)?)%s|%s)" % parts, re.DOTALL)


_FIELD = re.compile(rb'(?:\A|,)(?:(")[^"]*(?:""[^"]*)*("?)[^,]*|[^,]*)')


def _join_quoted(lines: list[bytes], quote: bytes, field: re.Pattern[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Put lines together whose line break is quoted; the second list has those of a record that goes on."""
    records: list[bytes] = []
    unfinished: list[bytes] = []
    unclosed = (quote, b"")
    for line in lines:
        if unfinished or quote in line:
            is_open = unclosed in field.findall(quote + line if unfinished else line)
            unfinished.append(line)
            if not is_open:
                records.append(b"\n".join(unfinished))
                unfinished = []
        else:
            records.append(line)
    return records, unfinished


def _header_of(path: Path | RemoteFile, dialect: CsvFiles) -> tuple[str, ...] | None:
    first = RecordFile(path, _splitting(dialect), dialect.encoding).read(0, 1)
    if not first:
        return None
    try:
        header = tuple(next(csv.reader((first[0].decode(),), strict=True, **dialect.form)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise SamzaError(
            f"the first line of {path} is no CSV header: {error}; write it as UTF-8 with commas, or say the dialect: "
            'formats.CsvFiles(path, delimiter=";", encoding="latin-1")'
        ) from error
    other = next((one for one in OTHER_DELIMITERS if len(header) == 1 and one in header[0]), None)
    if other is not None and first[0].decode().strip() == header[0].strip():
        # Else each row would be one field, or all of its fields their defaults, without a word.
        raise SamzaError(
            f"the header of {path} is one name, {header[0]!r}, where fields lie between {dialect.delimiter!r}: say "
            f"CsvFiles(path, delimiter={other!r}); or put that name in quotes, if the file has one column"
        )
    if len(set(header)) < len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise SamzaError(f"the header of {path} names {', '.join(twice)} more than once; rename the columns")
    return header


_PLAIN = SCALARS | {dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID}
"""The types whose values are no JSON in their cells."""


def _as_row(value: object) -> Mapping[str, object]:
    return json_row(value) if is_pydantic(type(value)) else row_of(value)


def _cells(header: tuple[str, ...], row: Mapping[str, object], where: object, dialect: CsvFiles) -> list[object]:
    null = dialect.nulls[0] or None
    plain = msgspec.to_builtins(row, enc_hook=json_plain)
    if tuple(plain) == header:
        return [null if value is None else _cell(value) for value in plain.values()]
    unknown = [str(name) for name in plain if name not in header]
    if unknown:
        raise SerdeError(
            f"{where} has the columns {', '.join(header)}, and a record also {', '.join(unknown)}: declare the "
            "output's value type so that every record has the same fields"
        )
    values = map(plain.get, header)
    return [null if value is None else _cell(value) for value in values]


def _cell(value: object) -> object:
    if type(value) in (str, int, float):
        return value
    return msgspec.json.encode(value).decode()


def _text(rows: Iterable[Sequence[object]], dialect: CsvFiles) -> str:
    text = io.StringIO()
    form = dialect.form
    if dialect.skip_spaces:
        # Spaces in front of a text are its own within quotes alone.
        if dialect.quote is None:
            rows = map(_without_spaces, rows)
        else:
            form["quoting"] = csv.QUOTE_ALL
    try:
        csv.writer(text, **form).writerows(rows)
    except csv.Error as error:
        raise SerdeError(f"a value can't be written as CSV without quotes: {error}; say quote= or escape=") from error
    return text.getvalue()


def _without_spaces(row: Sequence[object]) -> Sequence[object]:
    """Return a row; raises SerdeError for a text that would be read without the spaces that it begins with."""
    if odd := next((cell for cell in row if isinstance(cell, str) and cell[:1] == " "), None):
        raise SerdeError(f"{odd!r} begins with a space, which is skipped where no quote is in front of it: say quote=")
    return row


def _encoded(text: str, dialect: CsvFiles) -> bytes:
    try:
        # A mark of the order of bytes would be in front of each part of a file.
        return text.encode(_UNMARKED.get(dialect.encoding, dialect.encoding))
    except UnicodeEncodeError as error:
        raise SerdeError(f"a text can't be written as {dialect.encoding}: {error}; say another encoding=") from error


def _may_be_none(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.LiteralType):
        return None in kind.values
    return isinstance(kind, inspect.NoneType | inspect.AnyType)


def _any_of(kinds: tuple[inspect.Type, ...], *wanted: type) -> bool:
    return any(isinstance(kind, wanted) for kind in kinds)
