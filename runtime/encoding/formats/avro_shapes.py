"""The Avro schema of a Python type, and the change of its plain values into data of Avro and back."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from runtime.encoding.formats.plain_values import plain_default
from runtime.encoding.formats.rows import ANY_KEY, Columns
from runtime.encoding.record_types import hints_of, is_pydantic
from runtime.encoding.value_types import SPELLED
from runtime.model.errors import SerdeError

Datum: TypeAlias = Any
"""A plain value, or what Avro's libraries take and give: dicts, lists and scalars."""
Schema: TypeAlias = Any
"""A schema of Avro as JSON has it: a text, a dict, or a list of such."""
Change = Callable[[Datum], Datum]
"""Turns a plain value into a datum of Avro, or back."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MICROSECONDS = "duration-micros"
"""The logical type of a timedelta: a long, to whoever does not know it."""
MICROSECOND = dt.timedelta(microseconds=1)
INT64 = range(-(2**63), 2**63)
EMPTY = (list, dict, set, frozenset, tuple)
"""The factories of defaults that always make the same."""
_CLASSES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int, dt.date),
    "long": (int, dt.datetime, dt.time),
    "double": (float, int),
    "string": (str, UUID),
    "enum": (str,),
    "bytes": (bytes, Decimal),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}
"""The classes of data, by the type of Avro that they are of."""


class NotHeld(Exception):
    """A part of a type that a format has no way to hold, with what to write instead."""

    def __init__(self, where: str, wrong: str, instead: str) -> None:
        super().__init__(where, wrong, instead)
        self.where, self.wrong, self.instead = where, wrong, instead


@dataclass
class AvroShape:
    """The schema of a type, and how its plain values become data of Avro and are made of them; None where they are it.

    `plain` and `datum` are the classes of the two, by which members of a union are told apart.
    """

    schema: Schema
    plain: tuple[type, ...]
    datum: tuple[type, ...]
    write: Change | None = None
    read: Change | None = None
    tag: tuple[str, object] | None = None
    """The field of a record that says which one of a union it is, and what it says there."""

    @property
    def base(self) -> str:
        """The type that a union tells it by: two of one are none in Avro, but for records by their names."""
        kind = self.schema if isinstance(self.schema, str) else self.schema["type"]
        return kind if kind not in ("record", "enum") else self.name

    @property
    def name(self) -> str:
        """The full name of a record or enum."""
        if isinstance(self.schema, str):
            return self.schema
        space = self.schema.get("namespace")
        return f"{space}.{self.schema['name']}" if space else str(self.schema["name"])


def digits(precision: int, scale: int) -> msgspec.Meta:
    """Return what says of a Decimal how many digits it has in all, and how many of them behind the point.

    It is written `Annotated[Decimal, digits(12, 2)]`. Raises ValueError for numbers that can't be meant.

    >>> digits(12, 2).extra
    {'precision': 12, 'scale': 2}
    """
    if not 0 <= scale <= precision or precision < 1:
        raise ValueError(
            f"digits({precision}, {scale}): write the digits in all, and those behind the point: digits(12, 2)"
        )
    return msgspec.Meta(extra={"precision": precision, "scale": scale})


def shape_of(kind: object, namespace: str | None = None, given: Mapping[str, str] | None = None) -> AvroShape:
    """Return how values of a type are held in Avro; raises NotHeld for what Avro can't hold.

    `given` has the full names of what a given schema names, by their last parts: by these it tells records of a union.

    >>> shape_of(dict[str, int | None]).schema
    {'type': 'map', 'values': ['null', 'long']}
    """
    return _Deriving(namespace, given).of(inspect.type_info(kind), name_of(kind))


def name_of(kind: object) -> str:
    """Return a type's name as Avro takes it.

    >>> name_of(dict[str, int])
    'dict_str_int'
    """
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else re.sub(r"\b(?:\w+\.)+", "", str(kind))
    return re.sub(r"\W+", "_", text).strip("_") or "value"


class _RecordPart(NamedTuple):
    """A field of a record: its name in Avro, its type, and its default as a plain value."""

    name: str
    kind: inspect.Type
    default: Callable[[], object] | None
    in_schema: bool = True
    """Whether the default is told in the schema."""


class _Record(NamedTuple):
    """A record: its parts, and what it is found by where it comes again, its class or its place."""

    name: str
    parts: list[_RecordPart]
    of: object
    in_order: bool = False
    """Whether its plain value is a list."""
    tag: tuple[str, object] | None = None
    omitted: bool = False
    """Whether fields that have their defaults are not in its plain value."""


_PLAIN_SCALARS: dict[type[inspect.Type], tuple[str, type]] = {
    inspect.NoneType: ("null", type(None)),
    inspect.BoolType: ("boolean", bool),
    inspect.FloatType: ("double", float),
    inspect.StrType: ("string", str),
    inspect.BytesType: ("bytes", bytes),
    inspect.ByteArrayType: ("bytes", bytearray),
}


_OF_PYDANTIC: dict[str, object] = {
    "AwareDatetime": Annotated[dt.datetime, msgspec.Meta(tz=True)],
    "NaiveDatetime": Annotated[dt.datetime, msgspec.Meta(tz=False)],
    **dict.fromkeys(("PastDatetime", "FutureDatetime"), dt.datetime),
    **dict.fromkeys(("PastDate", "FutureDate"), dt.date),
    **dict.fromkeys(("EmailStr", "AnyUrl", "AnyHttpUrl", "HttpUrl"), str),
}
"""Types of pydantic by their names, and what they hold."""


@dataclass
class _Deriving:
    """One derivation: the named types that were met, which a schema defines once."""

    namespace: str | None
    given: Mapping[str, str] | None
    named: dict[str, object] = field(default_factory=dict)
    records: dict[object, AvroShape] = field(default_factory=dict)
    whole: set[object] = field(default_factory=set)
    """The records all of whose parts are known."""

    def of(self, kind: inspect.Type, where: str) -> AvroShape:
        """Return the shape of a part; `where` it is serves errors and names."""
        if isinstance(kind, inspect.Metadata):
            if isinstance(kind.type, inspect.DecimalType):
                return self._decimal(kind.extra or {}, where)
            return self.of(kind.type, where)
        if isinstance(kind, inspect.UnionType):
            return self._union(kind.types, where)
        if type(kind) in _PLAIN_SCALARS:
            name, plain = _PLAIN_SCALARS[type(kind)]
            return AvroShape(
                name, (plain,), (bytes if plain is bytearray else plain,), bytes if plain is bytearray else None
            )
        if isinstance(kind, inspect.IntType):
            return AvroShape("long", (int,), (int,))
        if (found := self._of_time(kind, where)) is not None:
            return found
        if isinstance(kind, inspect.UUIDType):
            return AvroShape({"type": "string", "logicalType": "uuid"}, (UUID,), (UUID,))
        if isinstance(kind, inspect.DecimalType):
            return self._decimal({}, where)
        if isinstance(kind, inspect.EnumType):
            return self._enum(kind, where)
        if isinstance(kind, inspect.LiteralType):
            return self._literal(kind, where)
        if isinstance(kind, inspect.CustomType) and kind.cls is not object:
            return self._custom(kind, where)
        return self._nested(kind, where)

    def _of_time(self, kind: inspect.Type, where: str) -> AvroShape | None:
        if isinstance(kind, inspect.DateTimeType):
            if kind.tz is False:
                return _logical("long", "local-timestamp-micros", dt.datetime)
            return _logical("long", "timestamp-micros", dt.datetime, None if kind.tz else partial(_instant, where))
        if isinstance(kind, inspect.DateType):
            return _logical("int", "date", dt.date)
        if isinstance(kind, inspect.TimeType):
            if kind.tz:
                raise NotHeld(
                    where, "is a time with a time zone, which Avro has not", "a datetime, or a time without one"
                )
            return _logical("long", "time-micros", dt.time, partial(_zoneless, where) if kind.tz is None else None)
        if isinstance(kind, inspect.TimeDeltaType):
            schema = {"type": "long", "logicalType": MICROSECONDS}
            return AvroShape(schema, (dt.timedelta,), (int,), partial(_microseconds, where), _timedelta)
        return None

    def _nested(self, kind: inspect.Type, where: str) -> AvroShape:
        if isinstance(kind, inspect.CollectionType):
            return self._array(self.of(kind.item_type, f"{where}[]"))
        if isinstance(kind, inspect.TupleType):
            parts = [_RecordPart(f"_{place}", one, None) for place, one in enumerate(kind.item_types, 1)]
            return self._record(_Record(_inner(where, "tuple"), parts, where, in_order=True), where)
        if isinstance(kind, inspect.NamedTupleType):
            return self._record(_Record(name_of(kind.cls), _parts(kind.fields), kind.cls, in_order=True), where)
        if isinstance(kind, inspect.DictType):
            return self._dict(kind, where)
        if isinstance(kind, inspect.StructType):
            config = (get_origin(kind.cls) or kind.cls).__struct_config__
            tag = None if kind.tag is None or kind.tag_field is None else (kind.tag_field, kind.tag)
            record = _Record(
                name_of(kind.cls), _parts(kind.fields), kind.cls, kind.array_like, tag, config.omit_defaults
            )
            return self._record(record, where)
        if isinstance(kind, inspect.DataclassType):
            return self._record(_Record(name_of(kind.cls), _parts(kind.fields), kind.cls), where)
        if isinstance(kind, inspect.TypedDictType):
            return self._typed_dict(kind, where)
        if isinstance(kind, inspect.AnyType) or (isinstance(kind, inspect.CustomType) and kind.cls is object):
            raise NotHeld(where, "may hold anything, and Avro needs to know what", "its type, as in dict[str, int]")
        raise NotHeld(where, f"is a {told(kind)}, which Avro can't hold", "a Struct, a dataclass, or a plain type")

    def _decimal(self, said: dict[str, Datum], where: str) -> AvroShape:
        precision, scale = said.get("precision"), said.get("scale", 0)
        if precision is None:
            wrong = "is a Decimal, of which Avro needs to know how many digits it has"
            raise NotHeld(
                where, wrong, "Annotated[Decimal, formats.digits(12, 2)]: twelve, of which two behind the point"
            )
        schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        return AvroShape(schema, (Decimal,), (Decimal,), partial(_fitting, where, precision, scale))

    def _enum(self, kind: inspect.EnumType, where: str) -> AvroShape:
        values = [member.value for member in kind.cls]
        if values and all(isinstance(value, str) and NAME.fullmatch(value) for value in values):
            return self._named(kind.cls, name_of(kind.cls), where, {"type": "enum", "symbols": list(map(str, values))})
        return self._literals(values, where, f"the enum {kind.cls.__name__}")

    def _literal(self, kind: inspect.LiteralType, where: str) -> AvroShape:
        return self._literals(list(kind.values), where, "a Literal")

    def _literals(self, values: Sequence[object], where: str, what: str) -> AvroShape:
        found = self._values(values, where, what)
        return found[0] if len(found) == 1 else self._of_members(found, where)

    def _values(self, values: Iterable[object], where: str, what: str) -> list[AvroShape]:
        names: dict[type, str] = {type(None): "null", str: "string", int: "long"}
        kinds = {next((base for base in names if isinstance(value, base)), None) for value in values}
        if not kinds or None in kinds or any(isinstance(value, bool) for value in values):
            raise NotHeld(where, f"is {what} of other values than text and whole numbers", "such values")
        return [AvroShape(names[one], (one,), (one,)) for one in names if one in kinds]

    def _named(self, cls: object, name: str, where: str, schema: dict[str, Schema]) -> AvroShape:
        """Return a named type without parts: whole where it is met first, and then by its name."""
        plain: tuple[type, ...] = (str,)
        if self._known(cls, name, where):
            return AvroShape(self._full(name), plain, plain)
        return AvroShape({**schema, **self._names(name)}, plain, plain)

    def _known(self, cls: object, name: str, where: str) -> bool:
        if not NAME.fullmatch(name):
            raise NotHeld(
                where, f"has the name {name!r}, which is none in Avro", "a name of ASCII letters, digits and _"
            )
        if name in self.named and self.named[name] != cls:
            raise NotHeld(where, f"is a second type with the name {name}", "another name for one of the classes")
        return name in self.named or bool(self.named.update({name: cls}))

    def _names(self, name: str) -> dict[str, str]:
        if self.given and name in self.given:
            return {"name": self.given[name]}
        return {"name": name, "namespace": self.namespace} if self.namespace else {"name": name}

    def _full(self, name: str) -> str:
        found = self._names(name)
        return f"{found['namespace']}.{name}" if "namespace" in found else found["name"]

    def _array(self, item: AvroShape) -> AvroShape:
        write = None if item.write is None else partial(_each, item.write)
        read = None if item.read is None else partial(_each, item.read)
        return AvroShape({"type": "array", "items": item.schema}, (list, tuple), (list,), write, read)

    def _dict(self, kind: inspect.DictType, where: str) -> AvroShape:
        value = self.of(kind.value_type, f"{where}[]")
        if _is_text(kind.key_type):
            write = None if value.write is None else partial(_each_value, value.write)
            read = None if value.read is None else partial(_each_value, value.read)
            return AvroShape({"type": "map", "values": value.schema}, (dict,), (dict,), write, read)
        # Keys of maps are text in Avro: others lie beside their values, as Kafka Connect has them.
        key = self.of(kind.key_type, f"{where}{{}}")
        name = _inner(where, "entry")
        self._known(where, name, where)
        fields = [{"name": "key", "type": key.schema}, {"name": "value", "type": value.schema}]
        schema = {"type": "array", "items": {"type": "record", **self._names(name), "fields": fields}}
        return AvroShape(
            schema, (dict,), (list,), partial(_entries, key.write, value.write), partial(_mapping, key.read, value.read)
        )

    def _typed_dict(self, kind: inspect.TypedDictType, where: str) -> AvroShape:
        absent = []
        parts = []
        for each in kind.fields:
            if each.required:
                parts.append(_RecordPart(each.encode_name, each.type, None))
                continue
            if any(isinstance(one, inspect.NoneType) for one in members_of(each.type)):
                wrong = "may be None or not be there, and Avro has null for both"
                raise NotHeld(f"{where}.{each.name}", wrong, "a key that is required")
            absent.append(each.encode_name)
            parts.append(_RecordPart(each.encode_name, inspect.UnionType((each.type, inspect.NoneType())), _none))
        found = self._record(_Record(name_of(kind.cls), parts, kind.cls, omitted=True), where)
        found.read = partial(_without_none, absent, found.read) if absent else found.read
        return found

    def _record(self, said: _Record, where: str) -> AvroShape:
        plain: tuple[type, ...] = (list, tuple) if said.in_order else (dict,)
        first = self.records.get(said.of)
        if first is not None:
            if said.of in self.whole:
                return AvroShape(first.name, plain, (dict,), first.write, first.read, said.tag)
            # Within itself a record is told by its name, and by what is known of it once it is whole.
            return AvroShape(
                first.name, plain, (dict,), partial(_written_by, first), partial(_read_by, first), said.tag
            )
        self._known(said.of, said.name, where)
        fields: list[dict[str, Datum]] = []
        schema = {"type": "record", **self._names(said.name), "fields": fields}
        found = self.records[said.of] = AvroShape(schema, plain, (dict,), tag=said.tag)
        writes: dict[str, Change] = {}
        reads: dict[str, Change] = {}
        fills: dict[str, Callable[[], Datum]] = {}
        for part in said.parts:
            at = f"{where}.{part.name}"
            if not NAME.fullmatch(part.name):
                wrong = f"is {part.name!r} in the data, which is no name in Avro"
                raise NotHeld(at, wrong, "a name of ASCII letters, digits and _")
            if part.default is not None and part.in_schema and part.default() is msgspec.UNSET:
                raise NotHeld(at, "may be UNSET, which Avro can't hold", "None for what is not known")
            one = self.of(part.kind, at)
            if part.default is not None:
                fills[part.name] = partial(plain_default, part.default)
            fields.append(_schema_of_field(part, one))
            if one.write is not None:
                writes[part.name] = one.write
            if one.read is not None:
                reads[part.name] = one.read
        if said.in_order:
            names = [part.name for part in said.parts]
            found.write = partial(_laid_out, names, writes, said.tag is not None)
            found.read = partial(_in_order, names, reads, fills, said.tag)
        else:
            if writes or said.omitted:
                found.write = partial(_changed, writes, fills if said.omitted else {})
            if said.tag is not None and self.given is not None:
                # The name of the record tells what the tag does, and a given schema has no field for it.
                found.write = partial(_untagged, said.tag[0], found.write)
            if reads:
                found.read = partial(_changed, reads, {})
        self.whole.add(said.of)
        return found

    def _union(self, kinds: Sequence[inspect.Type], where: str) -> AvroShape:
        members: list[AvroShape] = []
        for kind in kinds:
            found = self._values(kind.values, where, "a Literal") if isinstance(kind, inspect.LiteralType) else None
            members += [self.of(kind, where)] if found is None else found
        nulls = [one for one in members if one.schema == "null"]
        # Null first, which is what a default of None asks for.
        return self._of_members([*nulls[:1], *(one for one in members if one.schema != "null")], where)

    def _of_members(self, members: list[AvroShape], where: str) -> AvroShape:
        bases = [one.base for one in members]
        twice = sorted({base for base in bases if bases.count(base) > 1})
        data = [kind for one in members if one.tag is None for kind in one.datum]
        if twice or len(data) > len(set(data)) or (dict in data and any(one.tag for one in members)):
            wrong = f"is a union with two of {twice[0] if twice else 'one kind'}, which Avro can't tell apart"
            raise NotHeld(where, wrong, "one of them, or a Struct around each")
        # An int before a float, as whoever picks the first that fits would make an int a float.
        members = sorted(members, key=lambda one: one.schema == "double")
        for one in members:
            if list in one.plain and one.write is None:
                one.write = list  # fastavro takes a tuple in a union for a name and a datum
        schema = [one.schema for one in members]
        if len(members) == 2 and members[0].schema == "null":
            one = members[1]
            write = one.write and partial(_unless_none, one.write)
            read = one.read and partial(_unless_none, one.read)
            return AvroShape(schema, (type(None), *one.plain), (type(None), *one.datum), write, read)
        return AvroShape(
            schema,
            tuple(kind for one in members for kind in one.plain),
            tuple(kind for one in members for kind in one.datum),
            _Choosing([*members], writes=True),
            _Choosing([*members], writes=False),
        )

    def _custom(self, kind: inspect.CustomType, where: str) -> AvroShape:
        origin = get_origin(kind.cls) or kind.cls
        if is_pydantic(origin):
            return self._record(_Record(name_of(origin), _pydantic_parts(origin), origin), where)
        if origin is deque:
            # What is in it msgspec does not say of a type that it does not know.
            raise NotHeld(where, "is a deque, of which Avro can't know what is in it", "list[int]")
        if (found := _OF_PYDANTIC.get(name_of(origin))) is not None and _is_of_pydantic(origin):
            return self.of(inspect.type_info(found), where)
        if isinstance(origin, type) and issubclass(origin, SPELLED):
            return AvroShape("string", (str,), (str,))
        raise NotHeld(
            where,
            f"is a {name_of(origin)}, which Avro can't hold",
            "a Struct, a dataclass, or a plain type",
        )


class _Choosing:
    """Turns a value of a union by the member that it is of."""

    def __init__(self, members: Iterable[AvroShape], writes: bool) -> None:
        self._writes = writes
        self._by_class: dict[type, AvroShape] = {}
        self._by_tag: dict[object, AvroShape] = {}
        self._by_name: dict[str, AvroShape] = {}
        self._tag_field: str | None = None
        for one in members:
            if one.tag is not None:
                self._tag_field = one.tag[0]
                self._by_tag[one.tag[1]] = one
                self._by_name[one.name.rpartition(".")[2]] = one
            for kind in one.plain if writes else one.datum:
                self._by_class.setdefault(kind, one)

    def __call__(self, value: Datum) -> Datum:
        return self._written(value) if self._writes else self._read(value)

    def _written(self, value: Datum) -> Datum:
        kind = type(value)
        if self._by_tag and isinstance(value, dict | list):
            one = self._by_tag[value[self._tag_field] if isinstance(value, dict) else value[0]]
            return one.name, value if one.write is None else one.write(value)
        if kind is int and int in self._by_class and value not in INT64:
            raise SerdeError(f"{value} has more than 64 bits, and Avro's long has no more")
        found = self._by_class[kind]
        return value if found.write is None else found.write(value)

    def _read(self, value: Datum) -> Datum:
        if type(value) is tuple:
            name, datum = value
            one = self._by_name.get(name.rpartition(".")[2])
            if one is None:
                raise SerdeError(f"a record {name} is none of {', '.join(self._by_name)}")
            made = datum if one.read is None else one.read(datum)
            if isinstance(made, dict) and one.tag is not None:
                made[one.tag[0]] = one.tag[1]
            return made
        found = self._by_class.get(type(value))
        return value if found is None or found.read is None else found.read(value)


def _is_of_pydantic(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pydantic"


def members_of(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types of a union, or the type alone."""
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def told(kind: inspect.Type) -> str:
    """Return what to call a type in an error.

    >>> told(inspect.RawType())
    'Raw'
    """
    return type(kind).__name__.removesuffix("Type")


def _is_text(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _is_text(kind.type)
    if isinstance(kind, inspect.EnumType):
        return all(isinstance(member.value, str) for member in kind.cls)
    if isinstance(kind, inspect.LiteralType):
        return all(isinstance(value, str) for value in kind.values)
    return isinstance(kind, inspect.StrType)


def _inner(where: str, what: str) -> str:
    """Return the name of a record that no class names, by where it is."""
    return re.sub(r"\W+", "_", where).strip("_") + f"_{what}"


def _parts(fields: Iterable[inspect.Field]) -> list[_RecordPart]:
    return [*map(_part, fields)]


def _part(each: inspect.Field) -> _RecordPart:
    default: Callable[[], object] | None = None
    if each.default is not msgspec.NODEFAULT:
        default = partial(_itself, each.default)
    elif each.default_factory is not msgspec.NODEFAULT:
        default = each.default_factory
    elif not each.required:
        default = partial(_itself, msgspec.UNSET)
    # A factory may make another value each time, which is none for a schema; an empty collection is one.
    is_known = each.default_factory in (msgspec.NODEFAULT, *EMPTY)
    return _RecordPart(each.encode_name, each.type, default, is_known)


def _pydantic_parts(kind: Datum) -> list[_RecordPart]:
    hints, found = hints_of(kind), []
    for name, each in kind.model_fields.items():
        alias = each.serialization_alias or each.alias or name
        hint = hints.get(name, each.annotation)
        default = None if each.is_required() else partial(each.get_default, call_default_factory=True)
        found.append(_RecordPart(alias, inspect.type_info(hint), default, each.default_factory in (None, *EMPTY)))
    return found


def _schema_of_field(part: _RecordPart, one: AvroShape) -> dict[str, Datum]:
    """Return a field of a schema, with its default where the schema can say it; its member of a union goes first."""
    if part.default is None or not part.in_schema:
        return {"name": part.name, "type": one.schema}
    plain = plain_default(part.default)
    schemas = [one.schema] if not isinstance(one.schema, list) else one.schema
    try:
        datum = plain if one.write is None else one.write(plain)
        if isinstance(one.schema, list) and isinstance(datum, tuple):  # the name of a member, ahead of what is of it
            datum = datum[1]
        first = next(schema for schema in schemas if _is_of(schema, datum))
        default = _in_json(first, datum)
    except (StopIteration, ValueError, TypeError, SerdeError):
        return {"name": part.name, "type": one.schema}
    rest = [schema for schema in schemas if schema is not first]
    return {"name": part.name, "type": [first, *rest] if rest else one.schema, "default": default}


def _is_of(schema: Schema, datum: object) -> bool:
    base = schema if isinstance(schema, str) else schema["type"]
    return isinstance(datum, _CLASSES.get(base, ())) and isinstance(datum, bool) == (base == "boolean")


def _in_json(schema: Schema, datum: Datum) -> object:
    """Return a datum as the default of a schema says it; raises ValueError for what can't be said."""
    if isinstance(datum, float) and not math.isfinite(datum):
        raise ValueError("JSON has no such number")
    if isinstance(datum, bytes):
        return datum.decode("latin-1")
    if isinstance(datum, Decimal):
        unscaled = int(Fraction(datum) * 10 ** schema["scale"])
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True).decode("latin-1")
    if isinstance(datum, dt.datetime):
        return (datum - dt.datetime(1970, 1, 1, tzinfo=datum.tzinfo and dt.UTC)) // MICROSECOND
    if isinstance(datum, dt.date):
        return (datum - dt.date(1970, 1, 1)).days
    if isinstance(datum, dt.time):
        return ((datum.hour * 60 + datum.minute) * 60 + datum.second) * 1_000_000 + datum.microsecond
    if isinstance(datum, UUID):
        return str(datum)
    if isinstance(datum, list | dict) and datum:
        # The parts of a record or a collection may be unions, of whose members a default can name the first alone.
        raise ValueError("a default with parts is not said")
    return datum


def _itself(value: object) -> object:
    return value


def _none() -> None:
    return None


def _logical(base: str, name: str, kind: type, write: Change | None = None) -> AvroShape:
    return AvroShape({"type": base, "logicalType": name}, (kind,), (kind,), write)


def _instant(where: str, value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        raise SerdeError(
            f"{where} is {value}, a time without a time zone, and the schema has instants: give it one, as "
            "datetime.now(UTC) has, or declare Annotated[datetime, msgspec.Meta(tz=False)]"
        )
    return value


def _zoneless(where: str, value: dt.time) -> dt.time:
    if value.tzinfo is not None:
        raise SerdeError(f"{where} is {value}, a time with a time zone, which Avro has not: use a datetime")
    return value


def _microseconds(where: str, value: dt.timedelta) -> int:
    found = value // MICROSECOND
    if found not in INT64:
        raise SerdeError(f"{where} is {value}, more than 64 bits of microseconds")
    return found


def _timedelta(value: Datum) -> object:
    return value * MICROSECOND if type(value) is int else value


def _fitting(where: str, precision: int, scale: int, value: Decimal) -> Decimal:
    _, found, exponent = value.as_tuple()
    if not isinstance(exponent, int) or -exponent > scale or (value and len(found) + exponent + scale > precision):
        raise SerdeError(f"{where} is {value}, and the schema has {precision} digits, {scale} of them behind the point")
    return value


def _unless_none(change: Change, value: Datum) -> Datum:
    return None if value is None else change(value)


def _each(change: Change, values: Iterable[Datum]) -> list[Datum]:
    return list(map(change, values))


def _each_value(change: Change, values: dict[str, Datum]) -> dict[str, Datum]:
    return {name: change(value) for name, value in values.items()}


def _entries(key: Change | None, value: Change | None, held: dict[Datum, Datum]) -> list[dict[str, Datum]]:
    return [{"key": _by(key, one), "value": _by(value, other)} for one, other in held.items()]


def _mapping(key: Change | None, value: Change | None, held: Datum) -> dict[Datum, Datum]:
    if isinstance(held, dict):  # a map, whose keys are text
        return {_by(key, one): _by(value, other) for one, other in held.items()}
    return {_by(key, one["key"]): _by(value, one["value"]) for one in held}


def _by(change: Change | None, value: Datum) -> Datum:
    return value if change is None else change(value)


def _changed(
    changes: dict[str, Change], fills: dict[str, Callable[[], Datum]], held: dict[str, Datum]
) -> dict[str, Datum]:
    for name, fill in fills.items():
        if name not in held:
            held[name] = fill()
    for name, change in changes.items():
        if name in held:
            held[name] = change(held[name])
    return held


def _untagged(tag: str, change: Change | None, held: dict[str, Datum]) -> Datum:
    del held[tag]
    return _by(change, held)


def _laid_out(names: list[str], changes: dict[str, Change], tagged: bool, values: Sequence[Datum]) -> dict[str, Datum]:
    found = dict(zip(names, values[1:] if tagged else values, strict=True))
    return _changed(changes, {}, found)


def _in_order(
    names: list[str],
    changes: dict[str, Change],
    fills: dict[str, Callable[[], Datum]],
    tag: tuple[str, object] | None,
    held: Datum,
) -> Datum:
    if not isinstance(held, dict):  # an array
        return held
    found = _changed(changes, {}, held)
    missing = [name for name in names if name not in found and name not in fills]
    if missing:
        raise SerdeError(f"what was read has no {missing[0]}")
    values = [found[name] if name in found else fills[name]() for name in names]
    return values if tag is None else [tag[1], *values]


def _without_none(names: list[str], read: Change | None, held: dict[str, Datum]) -> dict[str, Datum]:
    found = held if read is None else read(held)
    return {name: value for name, value in found.items() if value is not None or name not in names}


def _written_by(shape: AvroShape, value: Datum) -> Datum:
    return value if shape.write is None else shape.write(value)


def _read_by(shape: AvroShape, value: Datum) -> Datum:
    return value if shape.read is None else shape.read(value)


def columns_in(schema: Schema) -> Columns:
    """Return the names of a record's fields, and of those within them; of a type that is named alone none.

    >>> columns_in({"type": "record", "name": "Order", "fields": [{"name": "Id", "type": ["null", "long"]}]})
    {'Id': {}}
    """
    if isinstance(schema, list):
        return {name: within for one in schema for name, within in columns_in(one).items()}
    if not isinstance(schema, dict):
        return {}
    if "fields" in schema:
        return {field["name"]: columns_in(field["type"]) for field in schema["fields"]}
    if "values" in schema:
        return {ANY_KEY: columns_in(schema["values"])}
    return columns_in(schema["items"]) if "items" in schema else columns_in(schema.get("type"))
