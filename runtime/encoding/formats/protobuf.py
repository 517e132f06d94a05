"""Protobuf as bytes of messages of generated classes, or of values of a type with the same fields."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from operators.core.sites import here
from operators.io import without_none
from planner.model.errors import refuse
from runtime.encoding.formats.avro_shapes import NotHeld, name_of
from runtime.encoding.formats.extras import needs_extra
from runtime.encoding.formats.registry import (
    HEAD,
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    head_of,
    split_head,
)
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.model.errors import SamzaError, SerdeError

OWN_FILES = ("google/protobuf/", "google/type/", "confluent/")
"""The files that every registry has."""


@dataclass(frozen=True)
class Protobuf:
    """Protobuf of `message`, a generated class or a descriptor.

    Values are such messages; or with a `type`, a Struct, dataclass or model whose fields have the names of the
    message's, values of that: a Timestamp is a datetime, a Duration a timedelta, a wrapper a value or None, an enum a
    name or a number. A field of the message that the type has not is left out. With a `registry` values lie as
    Confluent's serialisers write them, and the file of the message is registered under the `subject`. In a stream with
    records without a value say so: `Protobuf(Order | None)`, or `Protobuf(OrderMessage, Order | None)`.

    Raises PlanError where the type has a field that the message can't hold. It needs
    `pip install 'samza-dsl[protobuf]'`.

    >>> from google.protobuf.timestamp_pb2 import Timestamp
    >>> Protobuf(Timestamp).decode(Protobuf(Timestamp).encode(Timestamp(seconds=7))).seconds
    7
    >>> from msgspec import Struct
    >>> class Moment(Struct):
    ...     seconds: int
    ...     nanos: int = 0
    >>> Protobuf(Timestamp, Moment).decode(Timestamp(seconds=7).SerializeToString())
    Moment(seconds=7, nanos=0)
    """

    message: Any
    type: object = None
    registry: SchemaRegistry | None = None
    subject: str | None = None
    place: SubjectPlace | None = field(default=None, repr=False, compare=False)
    """The stream that it writes, which a run fills in."""
    _made: Any = field(init=False, repr=False, compare=False)
    _take: Callable[[Any], Any] = field(init=False, repr=False, compare=False)
    _give: Callable[[Any], Any] = field(init=False, repr=False, compare=False)
    _nests: bool = field(init=False, repr=False, compare=False)
    _head: list[bytes] = field(init=False, repr=False, compare=False, default_factory=list)
    _known: set[bytes] = field(init=False, repr=False, compare=False, default_factory=set)
    """What was in front of values that were seen to be such messages."""

    def __post_init__(self) -> None:
        with needs_extra("Protobuf", "google.protobuf", "protobuf"):
            from google.protobuf import descriptor, message, message_factory
        made = without_none(self.message)
        if isinstance(made, descriptor.Descriptor):
            made = message_factory.GetMessageClass(made)
        if not (isinstance(made, type) and issubclass(made, message.Message)):
            raise refuse(
                here(), f"Protobuf({self.message!r}) is no message", "Protobuf(OrderMessage), a generated class"
            )
        take: Callable[[Any], Any] = self._same
        give: Callable[[Any], Any] = self._same
        if self.type is not None:
            from runtime.encoding.formats.protobuf_fields import MessageFields

            try:
                fields = MessageFields(made, without_none(self.type))
            except NotHeld as not_held:
                wrong = (
                    f"Protobuf({made.DESCRIPTOR.full_name}, {name_of(self.type)}): {not_held.where} {not_held.wrong}"
                )
                raise refuse(here(), wrong, not_held.instead) from None
            take, give = fields.message, fields.value
        held = {"_made": made, "_take": take, "_give": give, "_nests": _nests(made.DESCRIPTOR)}
        for name, value in held.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        told = "" if self.type is None else f", {name_of(self.type)}"
        told += "" if self.subject is None else f", subject={self.subject!r}"
        return (
            f"Protobuf({self._made.DESCRIPTOR.full_name}{told}{', registry=...' if self.registry is not None else ''})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        if not isinstance(without_none(self.message), type):
            raise SamzaError(f"{self!r} goes to no other process by its descriptor: give it the generated class")
        return type(self), (self.message, self.type, self.registry, self.subject, self.place)

    def placed(self, place: SubjectPlace) -> Protobuf:
        """Return it as it writes to a stream."""
        return self if self.registry is None or self.place == place else replace(self, place=place)

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError for what is no such message, or has no place in one."""
        from google.protobuf.message import DecodeError, EncodeError

        try:
            message = self._take(value)
            if not isinstance(message, self._made):
                raise SerdeError(f"{self!r} got a {type(value).__name__}: write a {self._made.DESCRIPTOR.full_name}")
            # The same bytes for the same message, as those of keys have to be.
            data: bytes = message.SerializeToString(deterministic=True)
            if self._nests:
                # Messages may be written at depths at which no client reads them any more.
                self._made.FromString(data)
        except (EncodeError, DecodeError) as error:
            raise SerdeError(f"{self!r} can't be written: {error}") from error
        return self._start() + data

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`; raises SerdeError for what is no such message."""
        from google.protobuf.message import DecodeError

        at = 0 if self.registry is None else self._behind_head(self.registry, data)
        try:
            found = self._made.FromString(data[at:])
        except (DecodeError, RuntimeError) as error:
            raise SerdeError(f"bytes are no {self._made.DESCRIPTOR.full_name}: {error}") from error
        return self._give(found)

    def _same(self, value: Any) -> Any:
        return value

    def _start(self) -> bytes:
        if self.registry is None:
            return b""
        if not self._head:
            schema = _registered_file(self.registry, self._made.DESCRIPTOR.file)
            names = self.place, str(self._made.DESCRIPTOR.full_name), self.subject
            self._head.append(head_of(self.registry, schema, names, self) + _index_of(self._made.DESCRIPTOR))
        return self._head[0]

    def _behind_head(self, registry: SchemaRegistry, data: bytes) -> int:
        """Return where the message begins, behind the number of its file and its place there."""
        id = split_head(data)
        places, at = _places(data, HEAD.size)
        head = data[:at]
        if head not in self._known:
            written = _message_in(registry.schema(id, serialized=True), places)
            if written is not None and written != self._made.DESCRIPTOR.full_name:
                raise SerdeError(f"a {written} was written, and {self._made.DESCRIPTOR.full_name} is read")
            self._known.add(head)
        return at


def _nests(descriptor: Any) -> bool:
    """Whether a message may be within one of its kind, or has one within it that may be."""
    met = set[str]()
    left: list[tuple[Any, tuple[str, ...]]] = [(descriptor, ())]
    while left:
        one, within = left.pop()
        if one.full_name in within:
            return True
        if one.full_name not in met:
            met.add(one.full_name)
            left += [(part.message_type, (*within, one.full_name)) for part in one.fields if part.message_type]
    return False


def _registered_file(registry: SchemaRegistry, file: Any) -> RegisteredSchema:
    """Return the file of a message as a registry has it, with those that it imports registered."""
    references = []
    for other in file.dependencies:
        if not other.name.startswith(OWN_FILES):
            version = registry.version_of(other.name, _registered_file(registry, other)).version
            references.append(SchemaReference(other.name, other.name, version))
    return RegisteredSchema(b64encode(file.serialized_pb).decode(), "PROTOBUF", tuple(references))


def _index_of(descriptor: Any) -> bytes:
    """Return the place of a message in its file as Confluent writes it: how deep, and which one at each depth."""
    places: list[int] = []
    while descriptor is not None:
        within = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if within is None else within.nested_types
        places.insert(0, [one.name for one in siblings].index(descriptor.name))
        descriptor = within
    # The first message of a file is by far the most frequent, and takes one byte.
    return b"\x00" if places == [0] else b"".join(map(_varint, [len(places), *places]))


def _places(data: bytes, at: int) -> tuple[list[int], int]:
    """Return the place of a message in its file, and where the message begins."""
    count, at = _read_varint(data, at)
    places = []
    for _ in range(count):
        place, at = _read_varint(data, at)
        places.append(place)
    return places or [0], at


def _varint(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        found |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            if found & 1:
                break
            return found >> 1, at
    raise SerdeError(f"bytes that begin with {data[:12]!r} do not say which message of a file they are")


def _message_in(schema: RegisteredSchema, places: list[int]) -> str | None:
    """Return the full name of a message of a registered file; None where the registry tells that as text alone."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    if schema.written_in != "PROTOBUF":
        raise SerdeError(f"the schema of a value is {schema.written_in}, and this stream is read as Protobuf")
    try:
        file = FileDescriptorProto.FromString(b64decode(schema.schema, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    names, siblings = [file.package] * bool(file.package), cast(Any, file.message_type)
    for place in places:
        if place >= len(siblings):
            raise SerdeError(f"a value is of message {places} of {file.name}, which has no such one")
        names.append(siblings[place].name)
        siblings = siblings[place].nested_type
    return ".".join(names)
