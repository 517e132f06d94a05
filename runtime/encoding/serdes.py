"""The serdes of values: JSON, MessagePack, text, bytes, and MessagePack with types as the default between stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import msgspec

from operators.aggregations.identity import tell_by
from operators.core.base import Copies, Serde, has_none
from operators.core.declared_types import has_sets, has_types
from operators.core.protocols import CheckedProtocol
from runtime.encoding.classes import find, is_current, name_of
from runtime.encoding.columns import AlikeRecords, Columns, TableSerde
from runtime.encoding.conformity import conforms
from runtime.encoding.copies import COPIED, copied, with_sets_in_order
from runtime.encoding.evolution import (
    as_it_was,
    by_position,
    check_record_keys,
    check_tags,
    exchanged_tags,
    explained,
    fitted,
    fitted_record,
    in_order,
    member,
    record_named,
    revived_record,
    said_in,
    tags_told,
)
from runtime.encoding.json_text import ONLY_TEXT, all_json, to_json, to_key_json
from runtime.encoding.lines import ObjectLines
from runtime.encoding.nested_tuples import NESTED, SCALARS, decoder_of, start_of, start_of_all, structure_in
from runtime.encoding.record_types import (
    ABOUT,
    built_in_base,
    check_attributes,
    check_declared,
    description_of,
    has_sets_inside,
    holds_sets,
    is_by_name,
    is_described,
    is_pydantic,
    is_readable_whole,
    is_record,
    is_written_whole,
    made,
    records_inside,
    stand_in_for,
    values_of,
)
from runtime.encoding.value_types import (
    BASES,
    as_plain,
    has_attributes,
    json_decoder,
    made_of_plain,
    model_reader,
    plain_of_subtype,
    subtype,
    value_type_named,
    value_type_of,
)
from runtime.model.errors import SerdeError

Encode = Callable[[object], bytes]
Class = type
"""A class of values, for where a field is called `type`."""
REFUSALS = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError, OverflowError, KeyError)
"""The exceptions that decoders raise on hostile bytes: msgspec alone raises three unrelated kinds."""


@dataclasses.dataclass(frozen=True)
class Json:
    """JSON of `type` (a msgspec Struct, a dataclass, a model of attrs or pydantic, or plain types).

    JSON has no NaN and no infinity, which most writers make null. They are refused with SerdeError, with a declared
    type and without one: null is another value.

    >>> Json(list[int]).decode(b"[1, 2]")
    [1, 2]
    >>> Json(float).encode(float("nan"))
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: nan has no JSON, ...
    """

    type: object = Any

    def __post_init__(self) -> None:
        check_declared(self.type)
        decoder = json_decoder(self.type)
        decode = model_reader(self.type) if is_pydantic(self.type) else decoder.decode
        _freeze(self, to_json, decode)
        object.__setattr__(self, "_decode_lines", decoder.decode_lines)

    def decode_lines(self, lines: ObjectLines) -> list[object]:
        """Return the value of each line; raises `SerdeError` or what `decode` raises, where one is no single value."""
        # A value that holds a slice of the bytes it came from would keep all lines in memory as long as it lives.
        if self._keeps_bytes:
            return list(map(self.decode, lines))
        values = self._decode_lines(lines.data)
        if len(values) != len(lines):
            raise SerdeError("a line is to hold one value")
        return values

    @cached_property
    def _keeps_bytes(self) -> bool:
        """Whether values hold a part of the bytes that they were decoded from, as `msgspec.Raw` does."""
        return has_types(self.type, msgspec.inspect.RawType)

    def __reduce__(self) -> tuple[object, ...]:
        # The decoders of msgspec can't be pickled, as they would be on the way to a worker: they are made anew there.
        return _made_again, (type(self), self.type, self.encode is to_key_json)

    encode: Encode = dataclasses.field(init=False, repr=False, compare=False)
    decode: Callable[[bytes], Any] = dataclasses.field(init=False, repr=False, compare=False)
    _decode_lines: Callable[[bytes], list[object]] = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class MessagePack:
    """MessagePack of `type`.

    >>> MessagePack(dict).decode(MessagePack().encode({"a": 1}))
    {'a': 1}
    """

    type: object = Any

    def __post_init__(self) -> None:
        check_declared(self.type)
        decoder = msgspec.msgpack.Decoder(self.type, dec_hook=made_of_plain)
        _freeze(self, msgspec.msgpack.Encoder(enc_hook=as_plain).encode, decoder.decode)

    def __reduce__(self) -> tuple[object, ...]:
        return _made_again, (type(self), self.type, self.encode is _key_as_messagepack)

    encode: Encode = dataclasses.field(init=False, repr=False, compare=False)
    decode: Callable[[bytes], Any] = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class String:
    r"""Text as UTF-8.

    >>> String().encode("é")
    b'\xc3\xa9'
    """

    type: object = str

    def encode(self, value: str) -> bytes:
        """Return the UTF-8 bytes of `value`."""
        return str.encode(value)

    def decode(self, data: bytes) -> str:
        """Return the text of `data`."""
        return bytes.decode(data)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes as they are.

    >>> Bytes().decode(b"abc")
    b'abc'
    """

    type: object = bytes

    def encode(self, value: bytes) -> bytes:
        """Return `value`; raises TypeError when it is not bytes."""
        if type(value) is not bytes:
            raise TypeError(f"Bytes() got a {type(value).__name__}; convert it, or choose another serde")
        return value

    def decode(self, data: bytes) -> bytes:
        """Return `data`."""
        return data


@dataclasses.dataclass(frozen=True)
class Natural:
    """Writes a key as other programs expect it: text as UTF-8, bytes as they are, and anything else as JSON.

    It only writes: from the bytes alone nobody can tell which of these the key was.

    >>> Natural().encode("AA"), Natural().encode(7)
    (b'AA', b'7')
    """

    type: object = Any

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`."""
        if type(value) is bytes:
            return value
        if type(value) is str:
            return str.encode(value)
        return to_key_json(value) if holds_sets(value) else to_json(value)

    def decode(self, data: bytes) -> object:
        """Return `data` as it is."""
        return data


@dataclasses.dataclass(frozen=True)
class NoKey:
    """The serde of the one key that all messages share when they go to one task: no bytes, read as None.

    >>> NoKey().decode(b"") is None
    True
    """

    type: object = None

    def encode(self, value: object) -> bytes:
        """Return no bytes."""
        return b""

    def decode(self, data: bytes) -> None:
        """Return None."""


PLAIN = b"\x00"
TUPLE = b"\x01"
LIST = b"\x02"
MAPPING = b"\x03"
WHOLE = b"\x04"
FIELDS = b"\x05"
ENUM = b"\x06"
SET = b"\x07"
FROZEN_SET = b"\x08"
BIG = b"\x09"
RECORD = b"\x0a"
OTHER = b"\x0b"
SUBTYPE = b"\x0c"
PAIR = b"\x92"
"""The first byte of an array of two in MessagePack."""
SHORT_TEXT = 0xD9
"""The first byte of text of 32 to 255 bytes in MessagePack."""
LONG_TEXT = 0xDA
"""The first byte of text of 256 to 65,535 bytes in MessagePack."""
SEQUENCES: dict[bytes, Callable[..., object]] = {TUPLE: tuple, LIST: list, SET: set, FROZEN_SET: frozenset}
TAG_OF_SEQUENCE = {kind: tag for tag, kind in SEQUENCES.items()}
LAST_TAG = NESTED
"""The bytes of Tagged() begin with a byte up to this one, and JSON with a later one."""
assert LAST_TAG[0] < min(b'"-0123456789[fnt{'), "a tag would be taken for the first byte of JSON"


@dataclasses.dataclass(frozen=True)
class Tagged:
    """MessagePack that remembers types: the serde of ids, and of keys whose type is not declared.

    The bytes of a value never change from version to version, because stored entries are found by them; so the fields
    of a record go by their order. The serde is frozen, and any thread may use it. Plain values cost one byte more than
    MessagePack. Structs, dataclasses, named tuples, models of attrs and pydantic, and enums carry the name of their
    class, which must be importable by it in a module that the reader has already loaded: bytes never make the reader
    import anything, and never make anything but such values.

    >>> Tagged().decode(Tagged().encode((1, "a", None)))
    (1, 'a', None)
    """

    type: object = Any

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError for a type that needs a declared serde."""
        # Exactly these types, and no subclasses: MessagePack writes a subclass as its base, and the type would be lost.
        if type(value) in SCALARS:
            try:
                return PLAIN + _pack(value)
            except OverflowError:
                return BIG + str(value).encode()
        # First all at once by msgspec, which is the fast way and fits nearly every value.
        try:
            return self._encode(value, piecemeal=False)
        except (OverflowError, TypeError):  # an int of more than 64 bits somewhere inside, or what only we encode
            return self._encode(value, piecemeal=True)

    def encode_all(self, values: list[object]) -> list[bytes]:
        """Return the bytes of each of many values."""
        if SCALARS.issuperset(map(type, values)):
            with suppress(OverflowError):
                return [*map(PLAIN.__add__, map(_pack, values))]
        elif (start := self._same_start(values)) is not None:
            with suppress(OverflowError, TypeError):
                return [*map(start.__add__, map(_pack, values))]
        elif set(map(type, values)) == {list}:
            with suppress(OverflowError, TypeError):
                return self._encode_lists(values)
        return list(map(self.encode, values))

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`; raises SerdeError for what it did not write, or fits its class no more."""
        tag, body = data[:1], data[1:]
        if tag == PLAIN:
            return _unpack(body)
        if tag == WHOLE:
            return _whole(data)
        try:
            return self._decode(tag, body)
        except SerdeError:
            raise
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError) as error:
            raise SerdeError(f"bytes that start with {data[:8]!r} do not make a value: {error}") from error

    def decode_all(self, column: Sequence[bytes]) -> list[object]:
        """Return the value of each of many bytes."""
        if isinstance(column, AlikeRecords):
            found = _read_together(column)
            return self.decode_all(column.rows()) if found is None else found
        start = column[0][:1] if column else b""
        if start == PLAIN and all(map(bytes.startswith, column, repeat(PLAIN))):
            return [_unpack(data[1:]) for data in column]
        if start == NESTED:
            structure, end = structure_in(column[0][1:])
            start = column[0][: 1 + end]
            if all(map(bytes.startswith, column, repeat(start))):
                with suppress(*REFUSALS):
                    decode = decoder_of(structure)
                    return [decode(data[1 + end :]) for data in column]
        if start == WHOLE:
            # The values of a column are mostly of one class: its name is read, and its class looked for, only once.
            name, _ = _whole_decoder.decode(column[0][1:])
            start = WHOLE + PAIR + _pack(name)
            if all(map(bytes.startswith, column, repeat(start))):
                skipped, read = len(start), _reader_named(name).read
                with suppress(*REFUSALS):
                    return [read(data[skipped:]) for data in column]
        return list(map(self.decode, column))

    def copy(self, value: object) -> object:
        """Return a copy of a value, as its bytes would be decoded: the two share no part that can be changed.

        >>> Tagged().copy({"a": [1]})
        {'a': [1]}
        """
        if type(value) not in COPIED:  # of records msgspec makes copies no slower than anybody can look at their fields
            return self.decode(self.encode(value))
        return copied(value, self.copy)

    def _encode(self, value: Any, piecemeal: bool) -> bytes:
        kind: type = type(value)
        if kind in TAG_OF_SEQUENCE:
            if kind is list and not piecemeal and SCALARS.issuperset(map(type, value)):
                return PLAIN + _pack(value)
            parts = [self.encode(part) for part in value] if piecemeal else self._parts(value)
            # Python orders a set by hashes, which differ from process to process: equal sets need equal bytes.
            return TAG_OF_SEQUENCE[kind] + _pack(sorted(parts) if kind in (set, frozenset) else parts)
        if kind is dict:
            if not piecemeal and ONLY_TEXT.issuperset(map(type, value)) and {*map(type, value.values())} <= SCALARS:
                return PLAIN + _pack(value)
            flat = chain.from_iterable(value.items())
            return MAPPING + _pack([*map(self.encode, flat)] if piecemeal else self._parts(flat))
        if isinstance(value, Enum):
            return ENUM + _pack((self._name_of_member(value), self.encode(value.value)))
        if is_record(kind):
            return self._encode_record(value, kind, piecemeal)
        if (found := value_type_of(kind)) is not None:
            return OTHER + _pack((found.name, self.encode(found.take(value))))
        base = next((base for base in BASES if isinstance(value, base)), None)
        if base is None or has_attributes(value):
            raise SerdeError(
                f"a {kind.__qualname__} can't be carried between stages or kept in state: return a msgspec Struct, a "
                "dataclass or plain types, or declare a serde"
            )
        return SUBTYPE + _pack((name_of(kind), self.encode(plain_of_subtype(base, value))))

    def _encode_lists(self, values: Any) -> list[bytes]:
        """Return the bytes of lists; raises OverflowError or TypeError for what is encoded piece by piece."""
        # Mostly all are of one shape, which is told place by place and not of each.
        if len({*map(len, values)}) == 1:
            kinds = [{*map(type, column)} for column in zip(*values, strict=True)]
            if all(len(each) == 1 for each in kinds):
                return self._encode_alike(tuple(map(type, values[0])), values)
        shapes = [tuple(map(type, value)) for value in values]
        # Those of one shape go together, so that what is at one place of all of them is encoded at once.
        alike: dict[tuple[Class, ...], list[Any]] = {}
        for shape, value in zip(shapes, values, strict=True):
            alike.setdefault(shape, []).append(value)
        encoded = {shape: iter(self._encode_alike(shape, found)) for shape, found in alike.items()}
        return [next(encoded[shape]) for shape in shapes]

    def _encode_alike(self, shape: tuple[Class, ...], values: list[Any]) -> list[bytes]:
        """Return the bytes of lists whose parts have the same types, in their order."""
        if SCALARS.issuperset(shape):
            return [*map(PLAIN.__add__, map(_pack, values))]
        tag = TAG_OF_SEQUENCE[list]
        if len(values) <= len(shape):
            return [tag + _pack(self._parts(value)) for value in values]
        columns = [self.encode_all([*column]) for column in zip(*values, strict=True)]
        return [*map(tag.__add__, map(_pack, zip(*columns, strict=True)))]

    def _parts(self, values: Iterable[Any]) -> list[bytes]:
        """Return the bytes of each part; raises OverflowError or TypeError for what is encoded piece by piece."""
        # Most parts are plain: their encoding is written out, to spare three calls for each.
        return [
            PLAIN + _pack(part)
            if (kind := type(part)) in SCALARS
            or (kind is list and SCALARS.issuperset(map(type, part)))
            or (kind is dict and ONLY_TEXT.issuperset(map(type, part)) and SCALARS.issuperset(map(type, part.values())))
            else self.encode(part)
            for part in values
        ]

    def _name_of_member(self, value: Enum) -> str:
        return name_of(type(value))

    def _encode_record(self, value: object, kind: Class, piecemeal: bool) -> bytes:
        if _is_whole(kind) and not piecemeal:
            # Equal keys need equal bytes, and Python orders sets otherwise in each process.
            held = with_sets_in_order(value, _pack) if has_sets_inside(kind) else value
            return WHOLE + _pack((name_of(kind), held))
        check_attributes(value)
        values = values_of(value)
        # Only pydantic's models have ABOUT. Which fields of one were set is stored by name, and takes no position.
        if ABOUT in values:
            return RECORD + _pack((name_of(kind), {name: self.encode(values[name]) for name in sorted(values)}))
        return FIELDS + _pack((name_of(kind), list(map(self.encode, values.values()))))

    def _same_start(self, values: list[object]) -> bytes | None:
        """Return the bytes that all values begin with, if they are records of one class that msgspec brings back."""
        kinds: set[type] = set(map(type, values))
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or not is_record(kind) or issubclass(kind, Enum) or not _is_whole(kind):
            return None
        return self._start(kind, values)

    def _start(self, kind: Class, values: list[object]) -> bytes | None:
        return None if has_sets_inside(kind) else WHOLE + PAIR + _pack(name_of(kind))

    def _decode(self, tag: bytes, body: bytes) -> object:
        if tag in SEQUENCES:
            return SEQUENCES[tag](map(self.decode, _unpack(body)))
        if tag == NESTED:
            structure, end = structure_in(body)
            try:
                return decoder_of(structure)(body[end:])
            except msgspec.MsgspecError as error:
                raise ValueError(str(error)) from error
        if tag == MAPPING:
            parts = map(self.decode, _unpack(body))
            return dict(zip(parts, parts, strict=True))
        if tag == BIG:
            return int(body)
        if tag not in (ENUM, FIELDS, RECORD, OTHER, SUBTYPE):
            raise SerdeError(f"bytes that start with {(tag + body[:7])!r} were not written by Tagged()")
        name, payload = _unpack(body)
        if tag == OTHER:
            return value_type_named(name).make(self.decode(payload))
        if tag == ENUM:
            return member(name, self.decode(payload))
        if tag == SUBTYPE:
            return subtype(name, self.decode(payload))
        path, _, written = name.partition("#")
        kind = record_named(path)
        if tag == FIELDS:
            return by_position(kind, list(map(self.decode, payload)))
        values = {field: self.decode(data) for field, data in payload.items()}
        if not written or is_described(kind, written):
            return made(kind, values)
        with explained(kind):
            return fitted_record(kind, values)


@dataclasses.dataclass(frozen=True)
class Evolving(Tagged):
    """The serde of state and of streams between stages: `Tagged` by the names of fields, so that classes may change.

    A class may be given more fields with defaults, lose some, have them in another order, and be widened (`int` to
    `float`, `T` to `T | None`); what was stored before is read by the names of its fields.

    >>> Evolving().decode(Evolving().encode({"at": [1.5, float("inf")]}))
    {'at': [1.5, inf]}
    """

    def encode(self, value: object) -> bytes:
        # Only classes without records inside are in `_starts`: of others a class inside may be defined again, as by a
        # notebook's cell, and that is looked at each time.
        if type(value) is tuple:
            start = start_of(value)
        else:
            start, fits = _starts.get(type(value), _NO_START)
            start = start if start is not None and fits(value) else None
        if start is not None:
            try:  # not suppress(), which takes longer than the rest
                return start + _pack(value)
            except (OverflowError, TypeError):
                pass
        return super().encode(value)

    def encode_all(self, values: list[Any]) -> list[bytes]:
        kinds = set(map(type, values))
        if tuple not in kinds:
            return super().encode_all(values)
        by_parts = super().encode
        # Mostly an operator keeps tuples of one form, such as a list's entries and its bounds.
        shared = start_of_all(values if len(kinds) == 1 else [value for value in values if type(value) is tuple])
        with suppress(OverflowError, TypeError):
            if len(kinds) > 1:  # as in a store with several kinds of entries
                return self._parts(values, shared)
            if shared is not None:
                return [shared + _pack(value) for value in values]
            return [by_parts(value) if (start := start_of(value)) is None else start + _pack(value) for value in values]
        return list(map(self.encode, values))

    def _parts(self, values: Iterable[Any], shared: bytes | None = None) -> list[bytes]:
        """Return each value as bytes; all tuples among them begin with what is `shared`, if anything is."""
        starts = _starts
        return [
            PLAIN + _pack(part)
            if (kind := type(part)) in SCALARS
            or (kind is list and SCALARS.issuperset(map(type, part)))
            or (kind is dict and ONLY_TEXT.issuperset(map(type, part)) and SCALARS.issuperset(map(type, part.values())))
            else starts[kind][0] + _pack(part)
            if kind in starts and starts[kind][1](part)
            else start + _pack(part)
            if kind is tuple and (start := shared or start_of(part)) is not None
            else self.encode(part)
            for part in values
        ]

    def _name_of_member(self, value: Enum) -> str:
        return f"{name_of(type(value))}#{value.name or ''}"  # no name: flags of which none is set, or some unknown

    def _encode_record(self, value: object, kind: Class, piecemeal: bool) -> bytes:
        # What a field holds that is not of its declared type would be read as another value, or not at all.
        if not piecemeal and _is_whole_by_name(kind) and conforms(kind)(value):
            if not is_by_name(kind):
                return _start_of(kind) + _pack(dict(values_of(value)))
            if not records_inside(kind):
                _starts[kind] = _start_of(kind), conforms(kind)
            return _start_of(kind) + _pack(value)
        check_attributes(value)
        parts = {name: self.encode(part) for name, part in values_of(value).items()}
        return RECORD + _pack((f"{name_of(kind)}#{description_of(kind)}", parts))

    def _start(self, kind: Class, values: list[object]) -> bytes | None:
        is_whole = is_by_name(kind) and _is_whole_by_name(kind) and all(map(conforms(kind), values))
        return _start_of(kind) if is_whole else None


_evolving = Evolving()
tell_by(Tagged().encode)


@dataclasses.dataclass(frozen=True)
class Declared(Evolving):
    """`Evolving` of a declared type: values are read as that type, and JSON is read too, as earlier versions wrote it.

    >>> Declared(list[int]).decode(Declared(list[int]).encode((1, 2)))
    [1, 2]
    """

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`; raises SerdeError when nobody wrote it, or it fits its class no more."""
        # Earlier versions wrote JSON here, and what they wrote is still in streams and state: the first byte tells.
        return self._of_type(_evolving.decode(data) if data[:1] <= LAST_TAG else _json_of(self.type).decode(data))

    def decode_all(self, column: Sequence[bytes]) -> list[object]:
        if not isinstance(column, AlikeRecords) and max(column, default=b"")[:1] > LAST_TAG:  # some of it is JSON
            return list(map(self.decode, column))
        values = _evolving.decode_all(column)
        kinds = set(map(type, values))
        return values if kinds == {self.type} else list(map(self._of_type, values))

    def copy(self, value: object) -> object:
        """Return a copy of a value, as its bytes would be decoded: the two share no part that can be changed."""
        return self._of_type(_evolving.copy(value))

    def _of_type(self, value: object) -> object:
        return value if type(value) is self.type else fitted(value, self.type, "a value")


@dataclasses.dataclass(frozen=True)
class Unread:
    """The serde of values that nobody reads: all of them come back as None.

    >>> Unread().decode(Unread().encode("a value"))
    """

    type: object = Any

    def encode(self, value: object) -> bytes:
        """Return no bytes."""
        return b""

    def encode_all(self, values: list[object]) -> list[bytes]:
        """Return no bytes for each of many values."""
        return [b""] * len(values)

    def decode(self, data: bytes) -> object:
        """Return None."""
        return None

    def decode_all(self, column: Sequence[bytes]) -> list[object]:
        """Return None for each of many values."""
        return [None] * len(column)


@runtime_checkable
class BulkSerde(Protocol, metaclass=CheckedProtocol):
    """A serde that does many values at once in less time than one by one."""

    def encode_all(self, values: list[object], /) -> list[bytes]:
        """Return the bytes of each of many values; None is one of them."""

    def decode_all(self, column: Sequence[bytes], /) -> list[object]:
        """Return the value of each of many bytes."""


def serde_of(declared: object) -> Serde:
    """Return the serde for what a user may write: a serde, a type, or None for JSON of anything.

    >>> serde_of(str), serde_of(bytes), serde_of(None)
    (String(type=<class 'str'>), Bytes(type=<class 'bytes'>), Json(type=typing.Any))
    """
    if declared is None:
        return Json()
    if not isinstance(declared, type) and hasattr(declared, "encode") and hasattr(declared, "decode"):
        return declared
    if declared is str:
        return String()
    if declared is bytes:
        return Bytes()
    return Json(declared)


def of_keys(serde: Serde) -> Serde:
    """Return a serde as it is of keys: it writes sets in the order of their members' bytes, so that equal keys are one.

    >>> of_keys(Json(set[str])).encode({"b", "c", "a"})
    b'["a","b","c"]'
    """
    if not isinstance(serde, Json | MessagePack) or not has_sets(serde.type):
        return serde
    return _made_again(type(serde), serde.type, True)


def _made_again(kind: type[Json] | type[MessagePack], of: object, is_of_keys: bool) -> Json | MessagePack:
    found = kind(of)
    if is_of_keys:
        object.__setattr__(found, "encode", to_key_json if isinstance(found, Json) else _key_as_messagepack)
    return found


def kept(declared: Serde) -> Serde:
    """Return the serde that state keeps values with, given the one that reads them: JSON is kept as `Declared`.

    >>> kept(Json(float)), kept(MessagePack(float))
    (Declared(type=<class 'float'>), MessagePack(type=<class 'float'>))
    """
    return Declared(declared.type) if type(declared) is Json else declared


def copying(serde: Serde) -> Copies:
    """Return the maker of copies for values of a serde: by their bytes, or without bytes where the serde can.

    >>> copying(String()).copy("a")
    'a'
    """
    return serde if isinstance(serde, Tagged) else _ThroughBytes(serde)


@dataclasses.dataclass(frozen=True)
class _ThroughBytes:
    """Makes copies with a serde that says no other way."""

    serde: Serde

    def copy(self, value: object) -> object:
        """Return the value that the bytes of `value` are decoded to."""
        return self.serde.decode(self.serde.encode(value))


def encode_all(serde: Serde, values: list[Any]) -> list[bytes | None]:
    """Encode a column; None stays None (a tombstone, or no key)."""
    if getattr(serde, "unchanged", False):
        return values
    if type(serde) is Json and serde.encode is to_json:
        return all_json(values)
    if type(serde) is String:
        # Text alone goes in one pass in C; a None among it raises, and only then is it looked for.
        try:
            return list(map(str.encode, values))
        except TypeError:
            pass
    if has_none(values):
        encode = serde.encode
        return [None if value is None else encode(value) for value in values]
    return [*encoded(serde, values)]


def encoded(serde: Serde, values: list[object]) -> list[bytes]:
    """Encode values; None is one of them."""
    if isinstance(serde, Tagged | Unread | BulkSerde):
        return serde.encode_all(values)
    return list(map(serde.encode, values))


def decoded(serde: Serde, column: Sequence[bytes]) -> list[object]:
    """Decode a column, none of which is None."""
    if isinstance(column, ObjectLines):
        return serde.decode_lines(column) if isinstance(serde, Json) else list(map(serde.decode, column.rows))
    if isinstance(column, Columns):
        rows = column.rows
        return serde.decode_table(column) if isinstance(serde, TableSerde) else list(map(serde.decode, rows()))
    if isinstance(serde, Tagged | Unread | BulkSerde):
        return serde.decode_all(column)
    return list(map(serde.decode, column))


def _freeze(serde: object, encode: Encode, decode: Callable[[bytes], object]) -> None:
    object.__setattr__(serde, "encode", encode)
    object.__setattr__(serde, "decode", decode)


def _key_as_messagepack(value: object) -> bytes:
    return _pack_key(with_sets_in_order(value, _pack_key))


_pack_key: Encode = msgspec.msgpack.Encoder(enc_hook=lambda one: with_sets_in_order(as_plain(one), _pack_key)).encode
_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
_whole_decoder = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


@cache
def _json_of(kind: object) -> Serde:
    return serde_of(kind)


_starts: dict[type, tuple[bytes, Callable[[Any], bool]]] = {}
"""The first bytes of values by their class, if it has no records inside, and what tells that one conforms."""
_NO_START: tuple[None, Callable[[Any], bool]] = None, bool


@cache
def _start_of(kind: type) -> bytes:
    """Return the first bytes of each value of a class that msgspec brings back."""
    # Which of several classes a part is of its tag says alone: by it nobody could tell two that were exchanged.
    told = tags_told(kind)
    return WHOLE + PAIR + _pack(f"{name_of(kind)}#{description_of(kind)}" + ("" if told is None else f"#{told}"))


def _is_whole(kind: type) -> bool:
    """Whether msgspec alone brings back exactly what was encoded: every field's declared type says all."""
    inside = records_inside(kind)
    if not inside:
        return inside is not None
    # A field that is declared as a base class may hold a subclass, whose further fields msgspec would drop. And a class
    # that was defined again since would be read as the new one.
    return not any(one.__subclasses__() or not is_current(one) for one in inside)


def _is_whole_by_name(kind: type) -> bool:
    """Whether msgspec alone brings back exactly what was encoded, by the names of fields at every depth."""
    return _is_whole(kind) and is_written_whole(kind)


@cache
def _reader_of(kind: type, by_name: bool) -> Callable[[bytes], object]:
    """Return the function that reads whole values of a class; msgspec checks all of their fields."""
    if built_in_base(kind) is not None or (by_name and not is_readable_whole(kind)):
        return _refuse
    # Of keys, whose bytes are what they ever were: a second `__post_init__` would make other ones of them.
    if any(hasattr(one, "__post_init__") for one in records_inside(kind) or ()):
        return _refuse
    if is_by_name(kind) or not (by_name or hasattr(kind, "__post_init__")):
        return msgspec.msgpack.Decoder(kind).decode
    decode = msgspec.msgpack.Decoder(stand_in_for(kind, by_name)).decode

    def read(data: bytes) -> object:
        held = msgspec.structs.asdict(decode(data))
        return made(kind, {name: value for name, value in held.items() if value is not msgspec.UNSET})

    return read


def _refuse(data: bytes) -> NoReturn:
    raise ValueError("it is read field by field")


class _Reader(NamedTuple):
    """A reader of values of the class that a name stood for; the name may stand for another class by now."""

    name: str
    kind: type
    read: Callable[[bytes], object]


_readers: dict[bytes, _Reader] = {}
"""The readers by the first bytes of their values."""


def _whole(data: bytes) -> object:
    """Return the record of bytes that begin with its class."""
    # The name of the class is cut out by its length byte and found as bytes, so that it is seldom decoded.
    # MessagePack begins text of less than 32 bytes with one byte, of less than 256 with two, and longer with three.
    size = data[2] if len(data) > 3 else 0
    end = 4 + data[3] if size == SHORT_TEXT else 3 + (size & 31)
    if size == LONG_TEXT:
        end = 5 + int.from_bytes(data[3:5])
    reader = _readers.get(data[:end])
    if reader is not None and find(reader.name) is reader.kind:
        try:
            return reader.read(data[end:])
        except REFUSALS:
            pass
    name, raw = _whole_decoder.decode(data[1:])
    reader = _reader_named(name)
    # Only where the cut was right.
    if data[:end] == WHOLE + PAIR + _pack(name):
        _readers[data[:end]] = reader
    return _read_whole(reader, name, raw)


def start_of_records(rows: Sequence[bytes | None]) -> bytes | None:
    """Return the bytes that all of these values of `Evolving` begin with, where they are whole records of one class."""
    first = rows[0] if rows else None
    if first is None or first[:1] != WHOLE:
        return None
    name, _ = _whole_decoder.decode(first[1:])
    start = WHOLE + PAIR + _pack(name)
    return start if None not in rows and all(map(bytes.startswith, cast("list[bytes]", rows), repeat(start))) else None


def _read_together(column: AlikeRecords) -> list[object] | None:
    """Return records that lie in arrays; None where msgspec alone does not bring them back."""
    reader = _reader_named(_unpack(column.start[len(WHOLE + PAIR) :]))
    if not isinstance(getattr(reader.read, "__self__", None), msgspec.msgpack.Decoder):
        return None
    with suppress(*REFUSALS):
        return [*chain.from_iterable(map(_reader_of_many(reader.kind), column.arrays))]
    return None


@cache
def _reader_of_many(kind: type) -> Callable[[bytes], list[object]]:
    read: Callable[[bytes], list[object]] = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]
    return read


def _reader_named(name: str) -> _Reader:
    """Return the reader of whole values of a class, which name it and its definition as it was."""
    path, by_name, written, tags = said_in(name)
    kind = record_named(path)
    # What another definition wrote is read part by part: msgspec would make other values of some parts, and not refuse
    # them. It rounds an int to a float, reads text as Base64, and drops one of two that are equal from a set.
    is_same = not written or (is_described(kind, written) and not exchanged_tags(kind, tags))
    return _Reader(path, kind, _reader_of(kind, by_name) if is_same else _refuse)


def _read_whole(reader: _Reader, name: str, raw: bytes) -> object:
    kind, (_, by_name, written, tags) = reader.kind, said_in(name)
    try:
        return reader.read(raw)
    except REFUSALS as error:
        check_record_keys(kind, error)
        held = _unpack(raw)
    if not isinstance(held, dict):  # msgspec has refused it, or was not asked
        held = in_order(kind, held if reader.read is _refuse and not by_name else None)
    check_tags(kind, tags, held)
    # The description tells two cases apart that look alike: a value that never was of its declared type comes back as
    # it was, and a value whose type the class no longer declares is refused.
    with explained(kind):
        if is_described(kind, written):
            return as_it_was(kind, held)
        return revived_record(kind, held, by_name, was_described=bool(written))
