"""Values made of whole columns, and columns of values, where that is the same row by row; import it late: pyarrow."""

from __future__ import annotations

import datetime as dt
import logging
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, chain, count
from keyword import iskeyword
from numbers import Number
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from runtime.encoding.formats.rows import alternatives, fields_wanted
from runtime.encoding.record_types import fields_of, is_pydantic, is_record

_log = logging.getLogger("samza_dsl")
_PLAIN = {
    "int": inspect.IntType(),
    "float": inspect.FloatType(),
    "str": inspect.StrType(),
    "bool": inspect.BoolType(),
    "bytes": inspect.BytesType(),
    "date": inspect.DateType(),
    "duration": inspect.TimeDeltaType(),
    "time": inspect.DateTimeType(),
    "instant": inspect.DateTimeType(tz=True),
    "local": inspect.DateTimeType(tz=False),
}
"""What msgspec knows of types that are no more than their name says: a limit or a pattern is looked at row by row."""


class PlainField(NamedTuple):
    """A field of a Struct whose values are those of a column: of one plain type, or None as well."""

    column: str
    type: str
    optional: bool

    def array(self, column: Sequence[Any]) -> pa.Array:
        """Return values as a column; raises UnlikeDeclared."""
        try:
            _pack(column)  # which takes no value of a subclass, as it takes none in a row
        except (TypeError, OverflowError, ValueError) as error:
            raise UnlikeDeclared from error
        for kind, held in _HELD[self.type]:
            declared = list[held | None] if self.optional else list[held]  # type: ignore[valid-type]
            # What msgspec takes here, it takes of a row's bytes, and makes the same of it, in one call for the column.
            with suppress(msgspec.ValidationError):
                values = msgspec.convert(column, declared, builtin_types=(bytes,))
                try:
                    return _of_declared(values, kind, self.optional)
                except (pa.ArrowException, OverflowError, ValueError):  # an int too large, or text that is none
                    break
        raise UnlikeDeclared


def values_in(table: pa.RecordBatch | pa.Table, kind: object) -> list[Any] | None:
    """Return the values of rows; None where their columns may not hold just what a type says, or say more.

    Structs are made by their own constructor, of fields that are int, float, str or bool, or one of these or None.
    Where any JSON object will do, rows are dicts.
    """
    names, types = table.schema.names, [type_of(one) for one in table.schema.types]
    if len(set(names)) < len(names):
        return None
    if kind in (Any, dict, dict[str, Any]):
        return table.to_pylist() if None not in types else None
    fields = _fields_of(kind)
    if fields is None or not {field.column for field in fields} <= set(names):
        return None
    columns = []
    for field in fields:
        column, found = table.column(field.column), types[names.index(field.column)]
        if found == "int" and field.type == "float":
            try:
                column = column.cast(pa.float64())
            except pa.ArrowInvalid:  # an int that is no float: what msgspec makes of it is not Arrow's to say
                return None
        elif found != field.type:
            return None
        if column.null_count and not field.optional:
            return None
        columns.append(column.to_pylist())
    assert isinstance(kind, type)
    return list(map(kind, *columns))


_finer_told: set[str] = set()
"""The columns of which this process has told that their nanoseconds are dropped."""


def tell_finer(name: str, what: str) -> None:
    """Tell once of a column that its times are finer than Python's, and lose what is beyond."""
    if name not in _finer_told:
        _finer_told.add(name)
        _log.warning(
            "the column %r holds times in nanoseconds, and Python's end at microseconds: the last three digits are "
            "dropped (%s). Where they count, write the column as whole numbers (int64)",
            name,
            what,
        )


def in_microseconds(column: pa.Array, finer: Callable[[str], None] = lambda what: None) -> pa.Array:
    """Return a column whose times end at microseconds, as Python's do: pyarrow makes finer ones pandas objects.

    Where some end at nanoseconds, `finer` is called with what Arrow says of one that loses these.
    """
    if pa.types.is_dictionary(column.type) and pa.types.is_temporal(column.type.value_type):
        column = column.dictionary_decode()
    kind = _without_nanoseconds(column.type)
    if kind == column.type:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        finer(str(error))
        return column.cast(kind, safe=False)


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type with the times in it, also nested ones, in microseconds where they are in nanoseconds."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_nanoseconds(field.type)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_without_nanoseconds(kind.key_type), _without_nanoseconds(kind.item_type))
    if pa.types.is_nested(kind) and hasattr(kind, "value_field"):
        within = kind.value_field.with_type(_without_nanoseconds(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(within, kind.list_size)
        return pa.large_list(within) if pa.types.is_large_list(kind) else pa.list_(within)
    return pa.time64("us") if kind == pa.time64("ns") else kind


_DAYS, _SPAN_DAYS = (-719_162, 2_932_896), (-999_999_998, 999_999_998)
"""The first and last day since 1970 of Python's dates, and those that its lengths of time have."""
_OF_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def times_within(column: pa.Array) -> pa.Array | None:
    """Return which of a column's times Python has; None where these are no times, or it has all that there can be."""
    kind = column.type
    if pa.types.is_date(kind):
        return _within(column, _DAYS, 1 if pa.types.is_date32(kind) else 86_400_000)
    if pa.types.is_timestamp(kind):
        inside = _within(column, _DAYS, _OF_A_DAY[kind.unit])
        # Python makes a time of UTC first, and then what clocks show in the zone.
        return inside if kind.tz in (None, "UTC") else pc.and_(inside, _within_zone(column, _OF_A_DAY[kind.unit]))
    if pa.types.is_duration(kind) and kind.unit != "us":
        return _within(column, _SPAN_DAYS, _OF_A_DAY[kind.unit])
    return None


def times_beyond(column: pa.Array) -> dict[int, str]:
    """Return as ISO text the times of a column that Python has not, by their places: those of a zone in UTC."""
    inside = times_within(column)
    if inside is None or pc.all(inside).as_py() is not False:
        return {}
    places = pc.indices_nonzero(pc.invert(inside)).to_pylist()
    found, kind = column.take(pa.array(places)), column.type
    is_in_zone = pa.types.is_timestamp(kind) and kind.tz is not None
    try:
        texts = (found.view(pa.timestamp(kind.unit)) if is_in_zone else found).cast(pa.string()).to_pylist()
    except pa.ArrowException:
        texts = [""] * len(found)
    numbers = found.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return {
        # Of what is too far even for Arrow the number is left.
        place: f"{_NO_FRACTION.sub('', text).replace(' ', 'T')}{'Z' if is_in_zone else ''}"
        if text and not text.startswith("<")
        else f"{number} {kind}"
        for place, text, number in zip(places, texts, numbers, strict=True)
    }


_NO_FRACTION = re.compile(r"\.0+$")


def _within(column: pa.Array, days: tuple[int, int], of_a_day: int) -> pa.Array:
    """Return which times of a column lie from the beginning of one day to the end of another."""
    numbers = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return pc.and_(pc.greater_equal(numbers, days[0] * of_a_day), pc.less(numbers, (days[1] + 1) * of_a_day))


def _within_zone(column: pa.Array, of_a_day: int) -> pa.Array:
    try:
        return _within(pc.local_timestamp(column), _DAYS, of_a_day)
    except pa.ArrowException:  # Arrow does not know the zone: those that Python has in any
        return _within(column, (_DAYS[0] + 1, _DAYS[1] - 1), of_a_day)


def type_of(kind: pa.DataType) -> str | None:
    """Return what Python reads of a column, where that is plain."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    return "bool" if pa.types.is_boolean(kind) else None


@lru_cache
def _fields_of(kind: object) -> tuple[PlainField, ...] | None:
    """Return the fields of a Struct in the order of its constructor, where its making is msgspec's work alone."""
    if type(kind) is not type(msgspec.Struct) or kind.__struct_config__.tag is not None:
        return None
    info = inspect.type_info(kind)
    if not isinstance(info, inspect.StructType) or info.forbid_unknown_fields or info.array_like:
        return None
    if len(kind.__match_args__) != len(info.fields) or not info.fields:
        return None
    fields = [_plain(field.encode_name, field.type) for field in info.fields]
    return None if None in fields else tuple(field for field in fields if field is not None)


def _plain(column: str, info: inspect.Type) -> PlainField | None:
    kinds = [*info.types] if isinstance(info, inspect.UnionType) else [info]
    plain = [one for one in kinds if not isinstance(one, inspect.NoneType)]
    if len(plain) != 1:
        return None
    name = next((name for name, known in _PLAIN.items() if known == plain[0]), None)
    return None if name is None else PlainField(column, name, len(kinds) > 1)


_pack = msgspec.msgpack.Encoder().encode
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INSTANT = (pa.timestamp("us", "UTC"), Annotated[dt.datetime, msgspec.Meta(tz=True)])
_LOCAL = (pa.timestamp("us"), Annotated[dt.datetime, msgspec.Meta(tz=False)])
_HELD: dict[str, tuple[tuple[pa.DataType, Any], ...]] = {
    "int": ((pa.int64(), int),),
    "float": ((pa.float64(), float),),
    "str": ((pa.string(), str),),
    "bool": ((pa.bool_(), bool),),
    "bytes": ((pa.binary(), bytes),),
    "date": ((pa.date32(), dt.date),),
    "duration": ((pa.duration("us"), dt.timedelta),),
    # Where a type says nothing of zones, its times are instants if all of them have one.
    "time": (_INSTANT, _LOCAL),
    "instant": (_INSTANT,),
    "local": (_LOCAL,),
}
"""By plain type, those that its column may have, each with what msgspec calls it."""
_KINDS = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    dt.datetime: _INSTANT[0],
}
"""By the type of all values of a column, what the column is of where nothing is declared."""
AT_ONCE = 8_192
"""The records that become columns at once: what is made of them on the way stays in the processor's caches."""


class RecordColumns(NamedTuple):
    """The fields of a Struct or dataclass, by which records become columns, or None as well where they are a field."""

    kind: type
    attributes: tuple[str, ...]
    names: tuple[str, ...]
    fields: tuple[FieldColumns, ...]
    optional: bool = False

    def batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        """Return records as columns; raises UnlikeDeclared where one holds something else."""
        return pa.RecordBatch.from_arrays(self._arrays(records), names=[*self.names])

    def array(self, column: Sequence[Any]) -> pa.Array:
        """Return the records of a field as its column; raises UnlikeDeclared."""
        some = [record for record in column if record is not None] if self.optional else column
        array = pa.StructArray.from_arrays(self._arrays(some), names=[*self.names])
        if len(some) == len(column):
            return array
        places = count()
        return array.take(pa.array([None if record is None else next(places) for record in column], pa.int64()))

    def _arrays(self, records: Sequence[Any]) -> list[pa.Array]:
        if [*map(type, records)].count(self.kind) < len(records):
            raise UnlikeDeclared
        try:
            columns = _getter(self.attributes)(records)
        except AttributeError as error:  # a field that was never set
            raise UnlikeDeclared from error
        return [field.array(column) for field, column in zip(self.fields, columns, strict=True)]


class ListColumns(NamedTuple):
    """A field of lists or tuples of any length, whose parts lie in a column of their own."""

    parts: FieldColumns
    optional: bool

    def array(self, column: Sequence[Any]) -> pa.Array:
        """Return lists as a column; raises UnlikeDeclared."""
        some, offsets = _parts(column, (list, tuple), self.optional)
        return pa.ListArray.from_arrays(offsets, self.parts.array([*chain.from_iterable(some)]))


class MapColumns(NamedTuple):
    """A field of dicts of any keys, which lie in a column, and their values in another one."""

    keys: PlainField
    parts: FieldColumns
    optional: bool

    def array(self, column: Sequence[Any]) -> pa.Array:
        """Return dicts as a column; raises UnlikeDeclared."""
        some, offsets = _parts(column, (dict,), self.optional)
        keys, parts = chain.from_iterable(some), chain.from_iterable(map(dict.values, some))
        return pa.MapArray.from_arrays(offsets, self.keys.array([*keys]), self.parts.array([*parts]))


FieldColumns: TypeAlias = PlainField | RecordColumns | ListColumns | MapColumns


class DictColumns(NamedTuple):
    """The fields of dicts, by which those of equal keys become columns: named ones, or any, of one type or any."""

    named: Mapping[str, FieldColumns] | None
    """What a TypedDict says; None where any key will do."""
    each: FieldColumns | None = None
    """The type of each value where any key will do; None where the values say it."""

    def batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        """Return dicts as columns; raises UnlikeDeclared where their keys differ, or one holds something else."""
        names = [*(records[0] if self.named is None and type(records[0]) is dict else self.named or ())]
        if not names or {*map(type, names)} != {str} or [*map(type, records)].count(dict) < len(records):
            raise UnlikeDeclared
        # Dicts of as many keys that all have those of the first one have no other.
        if {*map(len, records)} != {len(names)}:
            raise UnlikeDeclared
        try:
            arrays = [self._array(name, [record[name] for record in records]) for name in names]
            return pa.RecordBatch.from_arrays(arrays, names=names)
        except (KeyError, UnicodeEncodeError) as error:
            raise UnlikeDeclared from error

    def _array(self, name: str, column: list[Any]) -> pa.Array:
        field = self.each if self.named is None else self.named[name]
        return _array_of_any(column) if field is None else field.array(column)


RowColumns: TypeAlias = RecordColumns | DictColumns


@lru_cache
def row_columns(kind: object) -> RowColumns | None:
    """Return the columns of rows of a type; None where these are more than plain fields.

    >>> row_columns(dict[str, int]), row_columns(list[int])
    (DictColumns(named=None, each=PlainField(column='', type='int', optional=False)), None)
    """
    info = inspect.type_info(kind)
    if isinstance(info, inspect.AnyType):
        return DictColumns(None)
    if isinstance(info, inspect.DictType):
        if not isinstance(info.key_type, inspect.AnyType) and info.key_type != _PLAIN["str"]:
            return None
        each = _field_columns("", info.value_type, ())
        return DictColumns(None, each) if each or isinstance(info.value_type, inspect.AnyType) else None
    if isinstance(info, inspect.TypedDictType):
        fields = {field.encode_name: _field_columns(field.encode_name, field.type, ()) for field in info.fields}
        found = {name: field for name, field in fields.items() if field is not None}
        return DictColumns(found) if found and len(found) == len(fields) else None
    return _columns_of(info)


def batches_of(
    columns: RowColumns, rows: Sequence[Any], read: Callable[[Sequence[Any]], Sequence[Any]] | None = None
) -> list[pa.RecordBatch]:
    """Return rows as columns, which `read` returns of what holds them; raises UnlikeDeclared where one is not plain."""
    parts = (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))
    return [columns.batch(part if read is None else read(part)) for part in parts]


def fields_in(records: Sequence[Any], kind: object) -> dict[str, list[Any]] | None:
    """Return what each field of records holds; None where they are not just records of one kind, without a tag."""
    if not records or [*map(type, records)].count(kind) < len(records):  # type: ignore[arg-type]  # Any is no type
        return None
    if type(kind) is type(msgspec.Struct) and kind.__struct_config__.tag is None:
        attributes, names = kind.__struct_fields__, kind.__struct_encode_fields__
    elif is_record(kind) and not is_pydantic(kind) and type(kind) is not type(msgspec.Struct):
        wanted = fields_wanted(kind) or []  # whose order is that of columns, as where records are not of one kind
        found = [field.name for field in fields_of(kind)]
        attributes = names = tuple(name for name in dict.fromkeys((*wanted, *found)) if name in found)
    else:
        return None
    with suppress(AttributeError):  # a field that was never set
        return dict(zip(names, _getter(attributes)(records), strict=True))
    return None


class UnlikeDeclared(Exception):
    """A value is not just what its field says: what becomes of it is for msgspec to say, row by row."""


def _parts(column: Sequence[Any], kinds: tuple[type, ...], optional: bool) -> tuple[Sequence[Any], pa.Array]:
    """Return what is not None of a column of `kinds`, and where the parts of each begin; raises UnlikeDeclared."""
    some = [one for one in column if one is not None] if optional else column
    if not {*map(type, some)}.issubset(kinds):
        raise UnlikeDeclared
    if len(some) == len(column):
        return some, pa.array([0, *accumulate(map(len, some))], pa.int32())
    ends = accumulate(0 if one is None else len(one) for one in column)
    # None at the place of a start says that there is none.
    starts = [0, *ends]
    marked = [None if one is None else start for one, start in zip(column, starts, strict=False)]
    return some, pa.array([*marked, starts[-1]], pa.int32())


def _array_of_any(column: list[Any]) -> pa.Array:
    """Return a column of values that say their type themselves; of a subclass none has bytes."""
    kinds = {*map(type, column)}
    optional = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return pa.nulls(len(column))
    kind = _KINDS.get(kinds.pop())
    if kind is None or kinds:
        raise UnlikeDeclared
    try:
        return _since(column, kind, _EPOCH) if kind == _INSTANT[0] else _of_declared(column, kind, optional)
    # An int too large, text that is none, or a time without a zone: what these come to the bytes of a row say.
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise UnlikeDeclared from error


MIXED = "some have a time zone, and some have none"


def check_one_kind(values: Iterable[object]) -> None:
    """Raise ValueError where values are of several kinds in one place, of which Arrow would make one without a word.

    It takes bools for floats, text for bytes, a time for its day, and one without a zone for one of UTC.
    """
    types = {*map(type, values)} - {type(None)}
    if len(types) < 2 and types.issubset(_ONE_KIND):
        return
    met: dict[tuple[object, ...], str] = {}
    for value in values:
        for path, kind in _kinds(value, ()):
            if (other := met.setdefault(path, kind)) != kind:
                is_zone = {kind, other} == {"times", "times with a zone"}
                raise ValueError(MIXED if is_zone else f"some are {other}, and some {kind}")


def column_of(values: Sequence[object], kind: pa.DataType | None) -> pa.Array:
    """Return values as a column; raises ValueError for a time of day with a zone, which Arrow would leave out."""
    column = pa.array(values, type=kind)
    if _has_times(column.type) and (found := next(_zoned(values), None)) is not None:
        raise ValueError(f"{found} is a time with a time zone, which columns have not: write a datetime, or its text")
    return column


def _has_times(kind: pa.DataType) -> bool:
    return pa.types.is_time(kind) or any(_has_times(kind.field(place).type) for place in range(kind.num_fields))


def _zoned(values: Iterable[object]) -> Iterator[dt.time]:
    """Yield the times of day that have a time zone, at any depth."""
    for value in values:
        if isinstance(value, dt.time) and value.tzinfo is not None:
            yield value
        elif isinstance(value, dict):
            yield from _zoned((*value, *value.values()))
        elif isinstance(value, list | tuple):
            yield from _zoned(value)


def _kinds(value: object, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield what lies in each place of a value; nothing where that is None."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _kinds(one, (*path, name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _kinds(one, (*path, ...))
    elif isinstance(value, dt.datetime):
        if value == value:  # of pandas, NaT is one
            yield path, "times" if value.tzinfo is None else "times with a zone"
    elif value is not None:
        known = ((bool, "bools"), (Number, "numbers"), (str, "text"), (bytes, "bytes"), (dt.date, "dates"))
        yield path, next((name for kind, name in known if isinstance(value, kind)), "others")


_ONE_KIND = {int, float, str, bool, bytes, dt.date, dt.time, dt.timedelta, Decimal}
"""Types of which all values are of one kind."""


def _of_declared(values: list[Any], kind: pa.DataType, optional: bool) -> pa.Array:
    """Return a column of values of its type; what takes Arrow longest is done in less."""
    if kind == pa.int64() and not optional:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])
    if pa.types.is_timestamp(kind) and values and getattr(values[0], "tzinfo", dt.UTC) in (dt.UTC, None):
        return _since(values, kind, _EPOCH if kind.tz else _EPOCH.replace(tzinfo=None))
    return pa.array(values, kind)


def _since(values: list[Any], kind: pa.DataType, epoch: dt.datetime) -> pa.Array:
    """Return times counted from 1970; raises TypeError for one that has a zone where the epoch has none, or none."""
    since = pa.array([None if value is None else value - epoch for value in values], pa.duration("us"))
    return since.view(pa.int64()).view(kind)


@lru_cache
def _getter(names: tuple[str, ...]) -> Callable[[Sequence[Any]], tuple[list[Any], ...]]:
    """Return what reads the fields of records, each by a loop of its own: half of what `attrgetter` takes."""
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        return lambda records: tuple([getattr(record, name) for record in records] for name in names)
    lists = (f"[record.{name} for record in records]," for name in names)
    return cast("Callable[[Sequence[Any]], tuple[list[Any], ...]]", eval(f"lambda records: ({''.join(lists)})"))


def _columns_of(info: inspect.Type, within: tuple[type, ...] = (), optional: bool = False) -> RecordColumns | None:
    """Return the columns of a record that lies `within` others; None where there are none for all of its fields."""
    if isinstance(info, inspect.StructType):
        if info.array_like or info.tag is not None or type(info.cls) is not type(msgspec.Struct):
            return None
    elif not isinstance(info, inspect.DataclassType):
        return None
    # What a class makes of its values as it begins, it would make of those that bytes bring back; and records of any
    # depth are no column.
    if hasattr(info.cls, "__post_init__") or info.cls in within:
        return None
    found: list[FieldColumns] = []
    for field in info.fields:
        one = _field_columns(field.encode_name, field.type, (*within, info.cls))
        if one is None:
            return None
        found.append(one)
    attributes, names = (tuple(getattr(field, name) for field in info.fields) for name in ("name", "encode_name"))
    return RecordColumns(info.cls, attributes, names, tuple(found), optional) if names else None


def _field_columns(name: str, info: inspect.Type, within: tuple[type, ...]) -> FieldColumns | None:
    """Return the columns of a field of a record that lies `within` others; None where it has none."""
    plain = _plain(name, info)
    if plain is not None:
        return plain
    kinds = [one for one in alternatives(info) if not isinstance(one, inspect.NoneType)]
    if len(kinds) != 1 or isinstance(info, inspect.Metadata):
        return None
    (kind,), optional = kinds, isinstance(info, inspect.UnionType)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and _is_of_any_length(kind):
        parts = _field_columns(name, kind.item_type, within)
        return None if parts is None else ListColumns(parts, optional)
    if isinstance(kind, inspect.DictType) and _is_of_any_length(kind):
        keys, parts = _plain(name, kind.key_type), _field_columns(name, kind.value_type, within)
        is_said = keys is not None and keys.type in ("str", "int") and not keys.optional
        return MapColumns(keys, parts, optional) if keys and is_said and parts else None
    return _columns_of(kind, within, optional)


def _is_of_any_length(kind: inspect.ListType | inspect.VarTupleType | inspect.DictType) -> bool:
    return kind.min_length is None and kind.max_length is None
