"""The fields of messages of Protobuf beside those of a type, as plain values."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from msgspec import NODEFAULT, UNSET, inspect

from operators.core.wording import shown
from runtime.encoding.formats.avro_shapes import NotHeld, members_of, name_of, told
from runtime.encoding.formats.plain_values import PlainValues, plain_default
from runtime.encoding.record_types import hints_of, is_pydantic
from runtime.model.errors import SerdeError

Message: TypeAlias = Any
"""A message of a generated class, or what a field of one holds."""
Change = Callable[[Message], Message]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
LONGEST = dt.timedelta(seconds=315_576_000_000)
"""The longest Duration that clients of other languages take."""
LARGEST_SINGLE = (2 - 2**-24) * 2.0**127
"""From here on a float of 32 bits is an infinity, as it is rounded."""
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
}
UNNAMED = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any", "FieldMask")}
"""The messages that hold values of any kind, or only names."""
_TEXT = (
    *(inspect.StrType, inspect.EnumType, inspect.LiteralType, inspect.UUIDType, inspect.DecimalType),
    *(inspect.DateTimeType, inspect.DateType, inspect.TimeType),
)
_WHOLE = (inspect.IntType, inspect.EnumType, inspect.LiteralType)
_HELD: dict[int, tuple[type[inspect.Type], ...]] = {
    FieldDescriptor.CPPTYPE_BOOL: (inspect.BoolType,),
    **dict.fromkeys(
        (
            *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64),
            *(FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64),
        ),
        _WHOLE,
    ),
    FieldDescriptor.CPPTYPE_FLOAT: (inspect.FloatType,),
    FieldDescriptor.CPPTYPE_DOUBLE: (inspect.FloatType,),
    FieldDescriptor.CPPTYPE_ENUM: (inspect.StrType, *_WHOLE),
}
"""The types whose values a field may hold, by what it is in C++."""


class _Held(NamedTuple):
    """A field: how its plain value gets into a message and out of one; None where it is as it is."""

    name: str
    write: Change | None
    read: Change | None
    tracked: bool
    """Whether a message knows if it was set."""
    nullable: bool


class MessageFields:
    """Messages of a class as values of a type, whose fields have the same names; raises NotHeld where it can't be."""

    def __init__(self, message: type[Message], kind: object) -> None:
        self._message = message
        self._plain = PlainValues(kind)
        self._shapes: dict[tuple[str, str], _Shape] = {}
        self._shape = self._of(message.DESCRIPTOR, inspect.type_info(kind), name_of(kind))

    def message(self, value: object) -> Message:
        """Return the message of a value; raises SerdeError for what does not fit."""
        try:
            return self._shape.written(self._plain.taken_one(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise SerdeError(
                f"{shown(value)} has no place in a {self._message.DESCRIPTOR.full_name}: {error}"
            ) from error

    def value(self, message: Message) -> Message:
        """Return the value of a message; raises SerdeError for what does not fit."""
        return self._plain.made_one(self._shape.read(message))

    def _of(self, descriptor: Descriptor, kind: inspect.Type, where: str) -> _Shape:
        key = descriptor.full_name, repr(kind.cls) if hasattr(kind, "cls") else where
        if key in self._shapes:
            return self._shapes[key]
        fields = _fields(kind, where)
        shape = self._shapes[key] = _Shape(descriptor)
        named, absent = descriptor.fields_by_name, _absent(kind)
        shape.omitted = {name: make for name, make in _omitted(kind).items() if name not in absent}
        for name, one in fields.items():
            at = f"{where}.{name}"
            if name not in named:
                raise NotHeld(at, f"is no field of {descriptor.full_name}", f"one of {', '.join(named)}")
            if name in absent and not named[name].has_presence:
                raise NotHeld(at, "may be absent, and the field has a value always", "`optional` in the message")
            shape.fields.append(self._field(named[name], one, at))
        return shape

    def _field(self, of: FieldDescriptor, kind: inspect.Type, where: str) -> _Held:
        kinds = [one for one in members_of(_bare(kind)) if not isinstance(one, inspect.NoneType)]
        nullable = len(kinds) < len(members_of(_bare(kind)))
        if len(kinds) != 1:
            raise NotHeld(where, "is a union, of which Protobuf has one field each", "a oneof, with a field for each")
        if nullable and not of.has_presence:
            wrong = "may be None, and the field has a value always"
            raise NotHeld(where, wrong, "`optional` in the message, or a default in the type")
        (kind,) = map(_bare, kinds)
        if of.is_repeated:
            write, read = self._many(of, kind, where)
        else:
            write, read = self._one(of, kind, where)
        # What was not set has the default that the message says, where it says one.
        tracked = of.has_presence and (nullable or not of.has_default_value)
        return _Held(of.name, write, read, tracked, nullable)

    def _many(self, of: FieldDescriptor, kind: inspect.Type, where: str) -> tuple[Change | None, Change | None]:
        entry = of.message_type
        if entry is not None and entry.GetOptions().map_entry:
            if not isinstance(kind, inspect.DictType):
                raise NotHeld(where, f"is a {told(kind)}, and the field is a map", "a dict")
            _, key = self._one(entry.fields_by_name["key"], _bare(kind.key_type), f"{where}{{}}")
            write, read = self._one(entry.fields_by_name["value"], _bare(kind.value_type), f"{where}[]")
            return partial(_mapped, None, write), partial(_mapped, key, read)
        if not isinstance(kind, inspect.CollectionType):
            raise NotHeld(where, f"is a {told(kind)}, and the field is repeated", "a list")
        write, read = self._one(of, _bare(kind.item_type), f"{where}[]")
        return partial(_each, write), partial(_each, read)

    def _one(self, of: FieldDescriptor, kind: inspect.Type, where: str) -> tuple[Change | None, Change | None]:
        if isinstance(kind, inspect.UnionType):
            raise NotHeld(where, "may be None or of several types within a list or map", "one type")
        if of.message_type is not None:
            return self._within(of.message_type, kind, where)
        if of.enum_type is not None:
            return _of_enum(of.enum_type, kind, where)
        if of.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            is_text = of.type == FieldDescriptor.TYPE_STRING
            if not isinstance(kind, _TEXT if is_text else (inspect.BytesType, inspect.ByteArrayType)):
                raise NotHeld(
                    where, f"is a {told(kind)}, and the field is {'text' if is_text else 'bytes'}", "that type"
                )
            return (_spelled, None) if is_text else (bytes, None)
        if not isinstance(kind, _HELD[of.cpp_type]):
            raise NotHeld(where, f"is a {told(kind)}, and the field is another type", "the type of the field")
        return partial(_single, where) if of.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else None, None

    def _within(self, message: Descriptor, kind: inspect.Type, where: str) -> tuple[Change | None, Change | None]:
        name = message.full_name
        if name == "google.protobuf.Timestamp":
            if not isinstance(kind, inspect.DateTimeType) or kind.tz is False:
                raise NotHeld(where, f"is a {told(kind)}, and the field is a Timestamp", "a datetime")
            return partial(_timestamp, GetMessageClass(message), where), _datetime
        if name == "google.protobuf.Duration":
            if not isinstance(kind, inspect.TimeDeltaType):
                raise NotHeld(where, f"is a {told(kind)}, and the field is a Duration", "a timedelta")
            return partial(_duration, GetMessageClass(message), where), _timedelta
        if name in WRAPPERS:
            write, read = self._one(message.fields_by_name["value"], kind, where)
            return partial(_wrapped, GetMessageClass(message), write), partial(_unwrapped, read)
        if name in UNNAMED and not _has_fields(kind):
            # Their own fields are no names of the values that they hold, and advice by these would mislead.
            raise NotHeld(
                where,
                f"is a {told(kind)}, and the field is a {name}, which holds values of any kind, and no type tells them",
                "no such field in the type, or let the values be the messages themselves: Protobuf(Message)",
            )
        shape = self._of(message, kind, where)
        return shape.written, shape.read


class _Shape:
    """The fields of one message that a type has."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.fields: list[_Held] = []
        self.omitted: dict[str, Callable[[], Message]] = {}
        """What makes the plain values of fields that a plain value lacks where they have their defaults."""
        self._made = GetMessageClass(descriptor)
        self._choices = [
            (one.name, [each.name for each in one.fields]) for one in descriptor.oneofs if len(one.fields) > 1
        ]

    def written(self, plain: Mapping[str, Message]) -> Message:
        """Return the message of a plain value."""
        if self.omitted:
            # The message would have the zeros of its types in place of defaults.
            plain = {name: make() for name, make in self.omitted.items() if name not in plain} | dict(plain)
        for name, fields in self._choices:
            chosen = [each for each in fields if plain.get(each) is not None]
            if len(chosen) > 1:
                raise SerdeError(f"{' and '.join(chosen)} are set, of which {name} can have one")
        held = {}
        for name, write, _, _, _ in self.fields:
            value = plain.get(name)
            if value is not None:
                held[name] = value if write is None else write(value)
        return self._made(**held)

    def read(self, message: Message) -> dict[str, Message]:
        """Return a message as a plain value; a field that is not set is None, or takes the default of the type."""
        found: dict[str, Message] = {}
        for name, _, read, tracked, nullable in self.fields:
            if tracked and not message.HasField(name):
                if nullable:
                    found[name] = None
                continue
            value = getattr(message, name)
            found[name] = value if read is None else read(value)
        return found


def _fields(kind: inspect.Type, where: str) -> dict[str, inspect.Type]:
    """Return the types of a record's fields by name; raises NotHeld for what is no record."""
    kind = _bare(kind)
    if isinstance(kind, inspect.CustomType) and is_pydantic(kind.cls):
        hints = hints_of(kind.cls)
        fields: Mapping[str, Message] = kind.cls.model_fields
        return {one.alias or name: inspect.type_info(hints.get(name, one.annotation)) for name, one in fields.items()}
    in_order = isinstance(kind, inspect.StructType) and kind.array_like
    if isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType) and not in_order:
        return {one.encode_name: one.type for one in kind.fields}
    raise NotHeld(where, f"is a {told(kind)}, and the message has named fields", "a Struct or a dataclass")


def _absent(kind: inspect.Type) -> set[str]:
    """Return the fields that a record may lack, for which it has no default."""
    kind = _bare(kind)
    if not isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        return set()
    return {
        one.encode_name
        for one in kind.fields
        if not one.required and one.default in (NODEFAULT, UNSET) and one.default_factory is NODEFAULT
    }


def _omitted(kind: inspect.Type) -> dict[str, Callable[[], Message]]:
    """Return what makes the plain defaults of fields that a record leaves out where they have these."""
    kind = _bare(kind)
    if not isinstance(kind, inspect.StructType) or not kind.cls.__struct_config__.omit_defaults:
        return {}
    return {
        one.encode_name: partial(
            plain_default, partial(_itself, one.default) if one.default is not NODEFAULT else one.default_factory
        )
        for one in kind.fields
        if not one.required
    }


def _itself(value: Message) -> Message:
    return value


def _has_fields(kind: inspect.Type) -> bool:
    try:
        _fields(kind, "")
    except NotHeld:
        return False
    return True


def _bare(kind: inspect.Type) -> inspect.Type:
    return _bare(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _of_enum(enum: EnumDescriptor, kind: inspect.Type, where: str) -> tuple[Change | None, Change | None]:
    if not isinstance(kind, _HELD[FieldDescriptor.CPPTYPE_ENUM]):
        raise NotHeld(where, f"is a {told(kind)}, and the field is an enum", "an Enum, text or an int")
    numbers = {one.name: one.number for one in enum.values}
    values: list[object] = []
    if isinstance(kind, inspect.EnumType):
        values = [one.value for one in kind.cls]
    elif isinstance(kind, inspect.LiteralType):
        values = list(kind.values)
    odd = [value for value in values if isinstance(value, str) and value not in numbers]
    if odd:
        raise NotHeld(where, f"may be {odd[0]!r}, which is none of {enum.name}", f"one of {', '.join(numbers)}")
    if not isinstance(kind, inspect.StrType) and not any(isinstance(value, str) for value in values):
        return None, None
    # Of several names of one number the first is meant.
    return partial(_number, numbers), partial(_name, {one.number: one.name for one in reversed(enum.values)})


def _number(numbers: Mapping[str, int], name: str) -> int:
    if name not in numbers:
        raise SerdeError(f"{name!r} is none of {', '.join(numbers)}")
    return numbers[name]


def _name(names: Mapping[int, str], number: int) -> str:
    if number not in names:
        raise SerdeError(f"the number {number} has no name among {', '.join(names.values())}")
    return names[number]


def _each(change: Change | None, values: Message) -> list[Message]:
    return list(values) if change is None else list(map(change, values))


def _mapped(key: Change | None, change: Change | None, held: Message) -> dict[Message, Message]:
    return {one if key is None else key(one): value if change is None else change(value) for one, value in held.items()}


def _spelled(value: Message) -> str:
    if isinstance(value, str):
        return value
    return str(value.isoformat()) if isinstance(value, dt.date | dt.time) else str(value)


def _timestamp(made: type[Message], where: str, value: dt.datetime) -> Message:
    if value.tzinfo is None:
        raise SerdeError(f"{where} is {value}, a time without a time zone, and a Timestamp is an instant: give it one")
    micros = (value - EPOCH) // MICROSECOND
    return made(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def _datetime(message: Message) -> dt.datetime:
    try:
        return EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError as error:
        raise SerdeError(f"a Timestamp of {message.seconds} seconds is none of the years 1 to 9999") from error


def _single(where: str, value: float) -> float:
    # Beyond it the message would hold an infinity.
    if not -LARGEST_SINGLE < value < LARGEST_SINGLE and math.isfinite(value):
        raise SerdeError(f"{where} is {value}, more than a float of 32 bits holds: make the field a double")
    return value


def _duration(made: type[Message], where: str, value: dt.timedelta) -> Message:
    if abs(value) > LONGEST:
        raise SerdeError(f"{where} is {value}, and a Duration is at most 10,000 years: make the field an int64")
    micros = abs(value) // MICROSECOND
    sign = -1 if value < dt.timedelta() else 1
    return made(seconds=sign * (micros // 1_000_000), nanos=sign * (micros % 1_000_000) * 1000)


def _timedelta(message: Message) -> dt.timedelta:
    try:
        return dt.timedelta(seconds=message.seconds, microseconds=int(message.nanos / 1000))
    except OverflowError as error:
        raise SerdeError(f"a Duration of {message.seconds} seconds is more than a timedelta has") from error


def _wrapped(made: type[Message], write: Change | None, value: Message) -> Message:
    return made(value=value if write is None else write(value))


def _unwrapped(read: Change | None, message: Message) -> Message:
    return message.value if read is None else read(message.value)
