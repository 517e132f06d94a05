"""Values to bytes and back: JSON, MessagePack, strings, bytes, and a self-describing default between stages."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import msgspec

from operators.base import Serde
from runtime.errors import SerdeError
from runtime.lines import ObjectLines

REMEMBERED_KEYS = 100_000
REFUSALS = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError, OverflowError, KeyError)
"""What the decoders raise on hostile bytes: msgspec alone raises three unrelated kinds."""


@dataclasses.dataclass(frozen=True)
class Json:
    """JSON of `type` (a msgspec Struct, a dataclass, or plain types).

    >>> Json(list[int]).decode(b"[1, 2]")
    [1, 2]
    """

    type: Any = Any

    def __post_init__(self) -> None:
        decoder = msgspec.json.Decoder(self.type)
        _freeze(self, msgspec.json.Encoder().encode, decoder.decode)
        object.__setattr__(self, "_decode_lines", decoder.decode_lines)

    def decode_lines(self, lines: ObjectLines) -> list[Any]:
        """Return the value of each line; raises `SerdeError` or what `decode` raises, where one is no single value."""
        if self._keeps_bytes:  # one value that is kept would keep all lines
            return list(map(self.decode, lines))
        values = self._decode_lines(lines.data)
        if len(values) != len(lines):
            raise SerdeError("a line is to hold one value")
        return values

    @cached_property
    def _keeps_bytes(self) -> bool:
        return _keeps_bytes(self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type,)

    encode: Callable[[Any], bytes] = dataclasses.field(init=False, repr=False, compare=False)
    decode: Callable[[bytes], Any] = dataclasses.field(init=False, repr=False, compare=False)
    _decode_lines: Callable[[bytes], list[Any]] = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class MessagePack:
    """MessagePack of `type`.

    >>> MessagePack(dict).decode(MessagePack().encode({"a": 1}))
    {'a': 1}
    """

    type: Any = Any

    def __post_init__(self) -> None:
        _freeze(self, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(self.type).decode)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type,)

    encode: Callable[[Any], bytes] = dataclasses.field(init=False, repr=False, compare=False)
    decode: Callable[[bytes], Any] = dataclasses.field(init=False, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class String:
    r"""Text as UTF-8.

    >>> String().encode("é")
    b'\xc3\xa9'
    """

    type: Any = str

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

    type: Any = bytes

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
    """What others would expect of a key: text as UTF-8, bytes as they are, and anything else as JSON.

    It only writes: what it wrote does not tell which of these it was.

    >>> Natural().encode("AA"), Natural().encode(7)
    (b'AA', b'7')
    """

    type: Any = Any

    def encode(self, value: Any) -> bytes:
        """Return the bytes of `value`."""
        return value if type(value) is bytes else str.encode(value) if type(value) is str else _to_json(value)

    def decode(self, data: bytes) -> Any:
        """Return `data` as it is."""
        return data


@dataclasses.dataclass(frozen=True)
class NoKey:
    """The key of messages that were brought together whatever theirs was: no bytes, and None as a value.

    >>> NoKey().decode(b"") is None
    True
    """

    type: Any = None

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
PAIR = b"\x92"
"""How MessagePack begins an array of two."""
SEQUENCES: dict[bytes, Callable[..., Any]] = {TUPLE: tuple, LIST: list, SET: set, FROZEN_SET: frozenset}
TAG_OF_SEQUENCE = {kind: tag for tag, kind in SEQUENCES.items()}
SCALARS = frozenset({type(None), bool, int, float, str, bytes})


@dataclasses.dataclass(frozen=True)
class Tagged:
    """MessagePack that remembers types: what intermediate streams and state use where no type is declared.

    Plain values cost one byte more than MessagePack. Structs, dataclasses, named tuples and enums carry the name of
    their class, which must be importable by it in a module that the reader has already loaded: bytes never make the
    reader import anything, and never make anything but such values.

    >>> Tagged().decode(Tagged().encode((1, "a", None)))
    (1, 'a', None)
    """

    type: Any = Any

    def encode(self, value: Any) -> bytes:
        """Return the bytes of `value`; raises SerdeError for a type that needs a declared serde."""
        try:
            return PLAIN + _pack(value) if type(value) in SCALARS else self._encode(value, piecemeal=False)
        except OverflowError:  # an int of more than 64 bits somewhere inside
            return self._encode(value, piecemeal=True)

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return the bytes of each of many values."""
        if SCALARS.issuperset(map(type, values)):
            with suppress(OverflowError):
                return [*map(PLAIN.__add__, map(_pack, values))]
        elif (start := _same_start(values)) is not None:
            with suppress(OverflowError):
                return [*map(start.__add__, map(_pack, values))]
        return list(map(self.encode, values))

    def _encode(self, value: Any, piecemeal: bool) -> bytes:
        kind: Any = type(value)
        if piecemeal and kind is int:
            return BIG + str(value).encode()
        if kind in SCALARS:
            return PLAIN + _pack(value)
        if kind in TAG_OF_SEQUENCE:
            if kind is list and not piecemeal and SCALARS.issuperset(map(type, value)):
                return PLAIN + _pack(value)
            parts = [self.encode(part) for part in value]
            return TAG_OF_SEQUENCE[kind] + _pack(sorted(parts) if kind in (set, frozenset) else parts)
        if kind is dict:
            plain = SCALARS.issuperset(map(type, value.values())) and all(type(key) is str for key in value)
            if plain and not piecemeal:
                return PLAIN + _pack(value)
            return MAPPING + _pack([part for pair in value.items() for part in map(self.encode, pair)])
        if isinstance(value, Enum):
            return ENUM + _pack((_name_of(kind), self.encode(value.value)))
        if _is_whole(kind) and not piecemeal:
            return WHOLE + _pack((_name_of(kind), value))
        return FIELDS + _pack((_name_of(kind), [self.encode(field) for field in _field_values(value)]))

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`; raises SerdeError when this serde did not write it."""
        tag, body = data[:1], data[1:]
        if tag == PLAIN:
            return _unpack(body)
        if tag in SEQUENCES:
            return SEQUENCES[tag](map(self.decode, _unpack(body)))
        if tag == MAPPING:
            parts = map(self.decode, _unpack(body))
            return dict(zip(parts, parts, strict=True))
        if tag == WHOLE:
            name, _ = _whole_decoder.decode(body)
            return _decoder_of(name).decode(body)[1]
        if tag == BIG:
            return int(body)
        if tag in (ENUM, FIELDS):
            name, payload = _unpack(body)
            if tag == ENUM:
                return _class_of(name)(self.decode(payload))
            return _rebuild(_class_of(name), [self.decode(field) for field in payload])
        raise SerdeError(f"bytes that start with {data[:8]!r} were not written by Tagged()")

    def decode_all(self, column: Sequence[bytes]) -> list[Any]:
        """Return the value of each of many bytes."""
        start = column[0][:1] if column else b""
        if start == PLAIN and all(map(bytes.startswith, column, repeat(PLAIN))):
            return [_unpack(data[1:]) for data in column]
        if start == WHOLE:
            name, _ = _whole_decoder.decode(column[0][1:])
            start = WHOLE + PAIR + _pack(name)
            if all(map(bytes.startswith, column, repeat(start))):
                decode, skipped = _decoder_behind(name).decode, len(start)
                return [decode(data[skipped:]) for data in column]
        return list(map(self.decode, column))


@dataclasses.dataclass(frozen=True)
class Unread:
    """The serde of values that nobody reads: all of them come back as None.

    >>> Unread().decode(Unread().encode("a value"))
    """

    type: Any = Any

    def encode(self, value: Any) -> bytes:
        """Return no bytes."""
        return b""

    def encode_all(self, values: list[Any]) -> list[bytes]:
        """Return no bytes for each of many values."""
        return [b""] * len(values)

    def decode(self, data: bytes) -> Any:
        """Return None."""
        return None

    def decode_all(self, column: Sequence[bytes]) -> list[Any]:
        """Return None for each of many values."""
        return [None] * len(column)


def serde_of(declared: Any) -> Serde:
    """Return the serde for what a user may write: a serde, a type, or None for JSON of anything.

    >>> serde_of(str), serde_of(bytes), serde_of(None)
    (String(type=<class 'str'>), Bytes(type=<class 'bytes'>), Json(type=typing.Any))
    """
    if declared is None:
        return Json()
    if not isinstance(declared, type) and hasattr(declared, "encode") and hasattr(declared, "decode"):
        return declared  # type: ignore[no-any-return]
    if declared is str:
        return String()
    if declared is bytes:
        return Bytes()
    return Json(declared)


def remembering(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that remembers its results, where nobody can change these; None stays None.

    Its arguments are bytes, or ints and strings: never two that Python takes for equal, as it does 1 and True.

    >>> decode = remembering(Tagged().decode)
    >>> decode(Tagged().encode("AA")), decode(None)
    ('AA', None)
    """
    return _Remembered(lambda data: None if data is None else function(data)).__getitem__


class _Remembered(dict[Any, Any]):
    """What a function returned, of the arguments met since it was last full."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, argument: Any) -> Any:
        result = self._function(argument)
        if type(result) in SCALARS:
            if len(self) >= REMEMBERED_KEYS:
                self.clear()
            self[argument] = result
        return result


def encode_all(serde: Serde, values: list[Any]) -> list[bytes | None]:
    """Encode a column; None stays None (a tombstone, or no key)."""
    if getattr(serde, "unchanged", False):
        return values
    if type(serde) is String:
        try:
            return list(map(str.encode, values))
        except TypeError:
            pass
    if None in values:
        encode = serde.encode
        return [None if value is None else encode(value) for value in values]
    return [*encoded(serde, values)]


def _same_start(values: list[Any]) -> bytes | None:
    """Return what the bytes of all values begin with, where they are records of one class that msgspec brings back."""
    kinds: set[Any] = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not _is_record(kind) or issubclass(kind, Enum) or not _is_whole(kind):
        return None
    return WHOLE + PAIR + _pack(_name_of(kind))


def encoded(serde: Serde, values: list[Any]) -> list[bytes]:
    """Encode values; None is one of them."""
    return serde.encode_all(values) if isinstance(serde, Tagged | Unread) else list(map(serde.encode, values))


def decoded(serde: Serde, column: Sequence[bytes]) -> list[Any]:
    """Decode a column, none of which is None."""
    if isinstance(column, ObjectLines):
        return serde.decode_lines(column) if isinstance(serde, Json) else list(map(serde.decode, column.rows))
    return serde.decode_all(column) if isinstance(serde, Tagged | Unread) else list(map(serde.decode, column))


def _freeze(serde: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
    object.__setattr__(serde, "encode", encode)
    object.__setattr__(serde, "decode", decode)


def _keeps_bytes(kind: Any) -> bool:
    """Whether values of a type hold a part of the bytes that they were decoded from, as `msgspec.Raw` does."""
    from msgspec import inspect  # which few programs need

    known = inspect.type_info(kind)
    met, left = set(), [known]
    while left:
        one: Any = left.pop()
        if isinstance(one, inspect.RawType):
            return True
        if id(one) in met:
            continue
        met.add(id(one))
        if isinstance(one, tuple):
            left += one
        elif isinstance(one, msgspec.Struct):
            left += (getattr(one, name) for name in one.__struct_fields__)
    return False


_to_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_whole_decoder = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


_known: dict[str, Any] = {}
_known_names: dict[Any, str] = {}


def know(kind: Any, name: str) -> None:
    """Take a class that came to this process as a value for the one of its name, "module:class"."""
    _known_names.pop(_known.get(name), None)
    _known[name], _known_names[kind] = kind, name
    for remembered in (_name_of, _class_of, _decoder_of, _decoder_behind):
        remembered.cache_clear()


@cache
def _name_of(kind: Any) -> str:
    if kind in _known_names:
        return _known_names[kind]
    module = name_of_main() if kind.__module__ == "__main__" else kind.__module__
    name = f"{module}:{kind.__qualname__}"
    if "<locals>" in name or _find(name) is not kind:
        raise SerdeError(
            f"a {kind.__qualname__} has no serde here: it is not a class that its module {kind.__module__} names; "
            "declare one, e.g. partition_by(..., value=MyStruct), or move the class to the top of its module"
        )
    return name


def name_of_main() -> str:
    """Return what the program would be called if it were imported, so that its classes are found however it is run."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(file).stem if file else "__main__"


def _find(name: str) -> Any:
    if name in _known:
        return _known[name]
    module, _, path = name.partition(":")
    found: Any = sys.modules.get("__main__" if module == name_of_main() else module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # plainly: a module may import what getattr asks for
    return found


@cache
def _class_of(name: str) -> Any:
    found = _find(name)
    if not isinstance(found, type) or not (_is_record(found) or issubclass(found, Enum)):
        raise SerdeError(f"stored bytes name the class {name}, which this program has not loaded")
    return found


@cache
def _decoder_of(name: str) -> msgspec.msgpack.Decoder[Any]:
    declared: Any = tuple.__class_getitem__((str, _class_of(name)))
    return msgspec.msgpack.Decoder(declared)


@cache
def _decoder_behind(name: str) -> msgspec.msgpack.Decoder[Any]:
    """Return what decodes what comes behind the name of a class."""
    return msgspec.msgpack.Decoder(_class_of(name))


def _is_record(kind: type) -> bool:
    return (
        issubclass(kind, msgspec.Struct)
        or dataclasses.is_dataclass(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def _is_whole(kind: Any) -> bool:
    """Whether msgspec alone brings back exactly what was encoded: every field's declared type says all."""
    inside = _records_inside(kind)
    return inside is not None and not any(one.__subclasses__() for one in inside)


@cache
def _records_inside(kind: Any) -> tuple[type, ...] | None:
    """Return the records that the fields of `kind` may hold; None where their declared types do not say all."""
    if not _is_record(kind):
        raise SerdeError(
            f"a {kind.__qualname__} can't be carried between stages or kept in state: return a msgspec Struct, a "
            "dataclass or plain types, or declare a serde"
        )
    inside: dict[type, None] = {}
    try:
        says_all = _fields_say_all(kind, inside)
        msgspec.msgpack.Decoder(kind)
    except (NameError, TypeError):  # a type that is not there while the program runs, or a union nobody can tell apart
        return None
    return tuple(inside) if says_all else None


def _fields_say_all(kind: Any, inside: dict[type, None]) -> bool:
    if dataclasses.is_dataclass(kind) and not all(field.init for field in dataclasses.fields(kind)):
        return False
    hints = get_type_hints(kind)
    return all(name in hints and _says_all(hints[name], inside) for name in _field_names(kind))


def _says_all(hint: Any, inside: dict[type, None]) -> bool:
    if hint in (int, float, str, bytes, bool, type(None)):
        return True
    if hasattr(hint, "__args__"):
        of_record = isinstance(get_origin(hint), type) and _is_record(get_origin(hint))
        return not of_record and all(part is ... or _says_all(part, inside) for part in hint.__args__)
    if not isinstance(hint, type) or not _is_record(hint):
        return False
    if hint in inside:
        return True
    inside[hint] = None
    return _fields_say_all(hint, inside)


def _field_names(kind: Any) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(kind._fields)


def _field_values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [getattr(value, name) for name in _field_names(type(value))]


def _rebuild(kind: Any, values: list[Any]) -> Any:
    fields = dict(zip(_field_names(kind), values, strict=True))
    late = [one.name for one in dataclasses.fields(kind) if not one.init] if dataclasses.is_dataclass(kind) else []
    found = kind(**{name: value for name, value in fields.items() if name not in late})
    for name in late:
        object.__setattr__(found, name, fields[name])
    return found
