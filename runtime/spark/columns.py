"""The columns of a DataFrame beside the types that the inputs declare which read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import available_timezones

import pyarrow as pa
from msgspec import inspect

from operators.core.base import Serde
from operators.io import Input
from runtime.encoding.formats.rows import (
    alternatives,
    check_names,
    column_types,
    columns_of,
    fields_wanted,
    has_columns,
    row_of,
    row_type,
)
from runtime.encoding.serdes import Bytes
from runtime.model.errors import SamzaError
from runtime.spark.own_code import keep_daemon_quiet
from runtime.systems.files.jsonl import json_of
from runtime.systems.files.schemas import (
    ColumnType,
    FieldDifference,
    arrow_type,
    columns_in,
    differences,
    differences_of_value,
    without_names,
)
from runtime.systems.files.table_files import KEY, OF_ARCHIVE, TIMES, VALUE, WATERMARK, PackedJson

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    **dict.fromkeys(("string", "varchar", "char"), pa.string()),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "daytimeinterval": pa.duration("us"),
    "void": pa.null(),
}
"""What Arrow calls Spark's types that have no parts. Those that are not here have no counterpart in Python."""


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a frame, by name, and those who read them; `given` are fields that its folders give."""

    stream: str
    types: Mapping[str, ColumnType]
    reads: Sequence[Input]
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, stream: str, frame: DataFrame, reads: Sequence[Input], given: tuple[str, ...] = ()) -> FrameColumns:
        """Return those of a frame; raises SamzaError where two have one name."""
        # Spark looks columns up by their names in small letters, unless it was told otherwise.
        is_exact = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        found = [name if is_exact else name.lower() for name in frame.columns]
        twice = [name for name, spelled in zip(frame.columns, found, strict=True) if found.count(spelled) > 1]
        if twice:
            raise SamzaError(
                f"bind={{{stream!r}: ...}}: the frame has several columns {', '.join(dict.fromkeys(twice))}: rename or "
                "drop them"
            )
        return cls(stream, {one.name: read_type(one.dataType) for one in frame.schema.fields}, reads, given)

    @staticmethod
    def declared(reads: Sequence[Input]) -> dict[str, pa.DataType | None] | None:
        """Return the columns that are declared; None for one whose type the values must say, and where none is."""
        kind = kind_of(reads[0].value)
        names = None if kind is None else columns_of(kind)
        if names is None:
            return None
        return {name: arrow_type(info) for name, info in column_types(row_type(kind), names).items()}

    @property
    def of_stream(self) -> dict[str, str]:
        """The columns that say what a record had in a stream beside its place, by what they say, where somebody asks.

        Its key, its own time, and of an archive its bytes, and what its producer told of event time.
        """
        wanted = {one for spec in self.reads for one in fields_wanted(kind_of(spec.value)) or ()}
        found = {}
        if KEY in self.types and KEY not in wanted and any(spec.key and not spec.key_of for spec in self.reads):
            found[KEY] = KEY
        time = next((name for name in TIMES if name in self.types and name not in wanted), None)
        if time is not None and any(spec.timestamp_of is None for spec in self.reads):
            found[TIMES[0]] = time
        if self.are_archived:
            found |= {name: name for name in (VALUE, WATERMARK) if name in self.types}
            found |= {} if time is None or WATERMARK not in found else {TIMES[0]: time}
        return found

    @property
    def are_archived(self) -> bool:
        """Whether rows are those of an archive, whose records are bytes."""
        kind = self.types.get(VALUE)
        own = self.types.keys() - {*self.given}
        return kind is not None and not isinstance(kind, str) and pa.types.is_binary(kind) and own <= OF_ARCHIVE

    @property
    def are_values(self) -> bool:
        """Whether the only column is the record itself."""
        if self.are_archived:
            return False
        kinds = [kind_of(spec.value) for spec in self.reads]
        return all(kind is not None and not has_columns(kind) for kind in kinds)

    @property
    def kept(self) -> list[str]:
        """The columns that are read: of a Struct its fields, of which one at least."""
        if self.are_archived:
            return []
        own = [name for name in self.types if name not in self.given]
        if self.are_values:
            return self._values
        wanted: set[str] = set()
        for spec in self.reads:
            kind = kind_of(spec.value)
            names = None if kind is None else fields_wanted(kind)
            wanted |= {*own} if names is None else {*names}
        return [name for name in own if name in wanted] or own[:1]

    @property
    def by_field(self) -> dict[str, str]:
        """The columns by what functions of the application call them: fields of a Struct may be written otherwise."""
        kinds = [kind_of(spec.value) for spec in self.reads]
        fields = (one for kind in kinds if kind is not None for one in getattr(inspect.type_info(kind), "fields", ()))
        renamed = {field.name: field.encode_name for field in fields}
        return {name: name for name in self.types} | {name: one for name, one in renamed.items() if one in self.types}

    def check(self) -> None:
        """Raise SamzaError that lists all fields which these columns can't give."""
        self._check_of_stream()
        if self.are_archived:
            return
        own = {name: kind for name, kind in self.types.items() if name not in OF_ARCHIVE | {*self.given}}
        for spec in self.reads:
            kind = kind_of(spec.value)
            found = [*self._differences(kind)]
            if found:
                listed = "; ".join(map(str, found))
                raise SamzaError(
                    f"{spec.kind} {spec.op_id!r} at {spec.site}: what {self.stream!r} is bound to has other columns "
                    f"than its type has fields: {listed}. Select, rename and cast columns, or declare what there is"
                )
            if kind is not None and has_columns(kind):
                check_names(kind, columns_in(own), f"{spec.kind} {spec.op_id!r} at {spec.site}: what is bound")

    def check_known(self, what: str, names: Iterable[str]) -> None:
        """Raise SamzaError where columns are named that are not there."""
        absent = [name for name in names if name not in self.types]
        if absent:
            raise SamzaError(
                f"bind={{{self.stream!r}: SparkTable({what}=...)}}: there is no column {', '.join(absent)}; there are "
                f"{', '.join(self.types)}"
            )

    def check_whole(self, name: str) -> None:
        """Raise SamzaError where a column that numbers rows holds no whole numbers."""
        kind = self.types[name]
        if isinstance(kind, str) or not pa.types.is_integer(kind):
            raise self._refused(name, "where a row lay in a stream, as a whole number", kind)

    def _check_of_stream(self) -> None:
        """Raise SamzaError where columns that say what a record had in a stream are of other types than that has."""
        for what, name in self.of_stream.items():
            kind = self.types[name]
            is_whole = not isinstance(kind, str) and pa.types.is_integer(kind)
            if what == KEY and not is_whole and kind not in (pa.binary(), pa.string()):
                raise self._refused(name, "the key of a record, as bytes, text or a whole number", kind)
            if what == TIMES[0] and not is_whole and kind != pa.timestamp("us", "UTC"):
                raise self._refused(name, "the time of a record, as ms or a timestamp", kind)
            if what == WATERMARK and not is_whole:
                raise self._refused(name, "how far event time has come, as ms", kind)

    def _refused(self, name: str, says: str, kind: ColumnType) -> SamzaError:
        return SamzaError(
            f"bind={{{self.stream!r}: ...}}: the column {name} says {says}, and is {kind}: cast it, or rename it"
        )

    def schema(self, kept: Sequence[str]) -> pa.Schema:
        """Return the columns that are laid down."""
        return pa.schema([(name, kind) for name in kept if not isinstance(kind := self.types[name], str)])

    def _differences(self, kind: object) -> Iterable[FieldDifference]:
        if kind is None or has_columns(kind):
            if kind is not None:
                yield from (one for one in differences(kind, self.types) if one.field not in self.given)
            odd = [(name, found) for name in self.kept if isinstance(found := self.types[name], str)]
            if kind is None or fields_wanted(kind) is None:
                yield from (FieldDifference(name, "a type that Python has", found) for name, found in odd)
        elif len(self._values) == 1:
            yield from differences_of_value(kind, self._values[0], self.types[self._values[0]])
        else:
            names = ", ".join(self._values) or "none"
            yield FieldDifference("(the record)", getattr(kind, "__name__", str(kind)), f"several columns: {names}")

    @property
    def _values(self) -> list[str]:
        return [name for name in self.types if name not in {*OF_ARCHIVE - {VALUE}, *self.given}]


class Shape(NamedTuple):
    """The shape of a declared type's values: the fields of a record, or what all items of a list or dict are."""

    fields: Mapping[str, Shape] = MappingProxyType({})
    items: Shape | None = None
    by_place: bool = False
    """Whether records are lists of what their fields hold."""

    @classmethod
    def of(cls, info: inspect.Type, within: tuple[type, ...] = ()) -> Shape:
        """Return that of a type; what holds itself has none below."""
        kinds = [one for one in alternatives(info) if not isinstance(one, inspect.NoneType)]
        (kind,) = kinds if len(kinds) == 1 else (None,)
        if isinstance(kind, inspect.CollectionType):
            return cls(items=cls.of(kind.item_type, within))
        if isinstance(kind, inspect.DictType):
            return cls(items=cls.of(kind.value_type, within))
        if isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False):
            return cls(by_place=True)
        found: Sequence[inspect.Field] = getattr(kind, "fields", ())
        own: type | None = getattr(kind, "cls", None)
        if own is None or own in within:
            return cls()
        return cls({one.encode_name: cls.of(one.type, (*within, own)) for one in found})

    def fitted(self, value: object) -> object:
        """Return a value whose rows, which are tuples, are their fields by name at any depth."""
        if isinstance(value, tuple) and not self.by_place:
            value = _by_name(value, self.fields)
        if isinstance(value, dict):
            return {name: self.fields.get(name, self.items or _OTHER).fitted(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [*map((self.items or _OTHER).fitted, value)]
        return value


_OTHER = Shape()


def _by_name(row: tuple[object, ...], places: Iterable[str]) -> object:
    """Return a tuple as its fields by name, its own names or else those of its places; itself where there are none."""
    names = getattr(row, "__fields__", None) or getattr(row, "_fields", None)  # of a Row of Spark's; of a NamedTuple
    if names is None and not (names := [*places][: len(row)]):
        return row
    if len(names) != len(row):
        raise SamzaError(f"a row of an RDD has {len(row)} values, and there are fields {', '.join(names)}: name them")
    return dict(zip(names, row, strict=True))


@dataclass(frozen=True)
class PackedRows:
    r"""The rows of an RDD as the bytes that an input's serde reads them of, each beside the values of some columns.

    Spark's own columns would change values without a word: a whole number among texts becomes one, a number beyond 64
    bits null, and a time without a zone that of the machine.

    >>> from samza_dsl import Json
    >>> [*PackedRows(Json(int), Shape()).of([5])]
    [(bytearray(b'\x05'),)]
    """

    serde: Serde
    shape: Shape
    has_places: bool = False
    """Whether rows that are tuples have names of their places, as those of Spark have."""
    columns: tuple[str, ...] = ()

    @classmethod
    def declared(cls, serde: Serde, columns: Iterable[str]) -> PackedRows:
        """Return those of an input."""
        found = json_of(serde)
        if found is None:
            return cls(serde, Shape(), columns=tuple(columns))
        has_places = has_columns(found.type) and fields_wanted(found.type) is None
        return cls(serde, Shape.of(inspect.type_info(found.type)), has_places, tuple(columns))

    def of(self, rows: Iterable[object]) -> Iterator[tuple[object, ...]]:
        """Yield rows as they are packed."""
        keep_daemon_quiet()
        packed = json_of(self.serde) is not None
        encode = PackedJson().encode if packed else self.serde.encode
        for row in rows:
            value = self.shape.fitted(row) if packed else row
            if self.has_places and isinstance(row, list | tuple) and isinstance(value, list):
                value = {f"_{place}": one for place, one in enumerate(value, 1)}
            asked = row_of(value) if self.columns else {}
            yield (bytearray(encode(value)), *map(asked.get, self.columns))


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it, whatever letters that has.

    >>> quoted("a.b"), quoted("`")
    ('`a.b`', '````')
    """
    return "`" + name.replace("`", "``") + "`"


def quoted_text(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_type(kind: Any) -> str:
    """Return a type as SQL has it, with names of fields as they are written."""
    match kind.typeName():
        case "array":
            return f"ARRAY<{sql_type(kind.elementType)}>"
        case "map":
            return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
        case "struct":
            return f"STRUCT<{', '.join(f'{quoted(one.name)}: {sql_type(one.dataType)}' for one in kind.fields)}>"
        case "timestamp":
            return "TIMESTAMP_LTZ"  # the other name is that of what spark.sql.timestampType says
        case _:
            return str(kind.simpleString())


_WITHOUT_ZONE = ("timestamp_ntz", "timestamp[us]")


def times_advice(session: SparkSession, found: Iterable[FieldDifference]) -> str:
    """Return what to write for a time where just one, it or its column, has a zone; Spark has two answers to that.

    Its SQL would take a time for one of the session's zone, its Python for one of this machine's.
    """
    zone = session.conf.get("spark.sql.session.timeZone", None)
    known = f'ZoneInfo("{zone if zone in available_timezones() else "UTC"}")'
    told = []
    for one in found:
        if not one.found.startswith("timestamp") or not one.wanted.startswith(("datetime", "timestamp")):
            continue
        value = one.field.rpartition(".")[2]
        if one.found in _WITHOUT_ZONE:
            fits = f"{value}.astimezone({known}).replace(tzinfo=None)", "TIMESTAMP"
        else:
            fits = f"{value}.replace(tzinfo={known})", "TIMESTAMP_NTZ"
        told.append(f"{one.field} could be {fits[0]}, in the session's or another time zone, or its column {fits[1]}")
    return "".join(f". {one}" for one in told)


def named(column: str) -> Column:
    """Return the column of a name, whatever letters that has."""
    from pyspark.sql import functions

    return functions.col(quoted(column))


def kept_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by which Spark can have what a column of Arrow holds.

    >>> kept_type(pa.list_(pa.uint16())), kept_type(pa.large_string())
    (ListType(list<item: int32>), DataType(string))
    """
    types = pa.types
    if types.is_dictionary(kind):
        return kept_type(kind.value_type)
    if types.is_map(kind):
        return pa.map_(kept_type(kind.key_type), kept_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([one.with_type(kept_type(one.type)) for one in kind])
    if types.is_nested(kind) and hasattr(kind, "value_type"):
        return pa.list_(kept_type(kind.value_type))
    if types.is_decimal(kind):
        return pa.decimal128(min(kind.precision, 38), kind.scale)
    return next((to for holds, to in _NOT_OF_SPARK if holds(kind)), kind)


_NOT_OF_SPARK = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_unsigned_integer, pa.int64()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
    (lambda one: pa.types.is_large_string(one) or pa.types.is_string_view(one), pa.string()),
    (
        lambda one: pa.types.is_large_binary(one) or pa.types.is_binary_view(one) or pa.types.is_fixed_size_binary(one),
        pa.binary(),
    ),
)
"""The types of Arrow that Spark has not, each with one that holds the same values."""


def kind_of(declared: Serde) -> object:
    """Return the type of the records of an input; None where its serde says more than that."""
    if isinstance(declared, Bytes):
        return bytes
    found = json_of(declared)
    return None if found is None else found.type


def type_of(kind: DataType) -> ColumnType:
    """Return the type of a column as Arrow has it, with its points in time in UTC; else what Spark calls it."""
    try:
        return _arrow_of(kind)
    except KeyError:
        return kind.simpleString()


def read_type(kind: DataType) -> ColumnType:
    """Return the same; what Spark calls it also where no record could have its values."""
    found = type_of(kind)
    return found if isinstance(found, str) or not without_names(found) else kind.simpleString()


def _arrow_of(kind: DataType) -> pa.DataType:
    """Return what Arrow calls a type; raises KeyError for what Python has not."""
    parts: Any = kind  # each class of Spark's has other ones
    match kind.typeName():
        case "decimal":
            return pa.decimal128(parts.precision, parts.scale)
        case "array":
            return pa.list_(_arrow_of(parts.elementType))
        case "map":
            return pa.map_(_arrow_of(parts.keyType), _arrow_of(parts.valueType))
        case "struct":
            return pa.struct([(one.name, _arrow_of(one.dataType)) for one in parts.fields])
        case name:
            return PLAIN[name]
