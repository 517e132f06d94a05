"""Stored bytes as plain values that JSON can have, and back: nothing of them is lost, and no class need be loaded."""

from __future__ import annotations

import datetime as dt
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any

import msgspec

from runtime.encoding.nested_tuples import NESTED, SCALARS, decoder_of, structure_in
from runtime.encoding.serdes import (
    BIG,
    ENUM,
    FIELDS,
    FROZEN_SET,
    LIST,
    MAPPING,
    OTHER,
    PLAIN,
    RECORD,
    SET,
    SUBTYPE,
    TUPLE,
    WHOLE,
    Evolving,
    Tagged,
)
from runtime.encoding.value_types import value_type_named
from runtime.model.errors import SerdeError

WORD, OF, CLASS = "$", "of", "class"
"""The names in an object that stands for what JSON has no form for: a word for what it is, its content, its class."""
LEAST, MOST = -(2**63), 2**64 - 1
"""The ints that MessagePack has a form for."""
_FLOAT = struct.Struct(">d")
_USUAL_NAN = _FLOAT.pack(float("nan"))
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def plain_of(data: bytes) -> object:
    """Return what `Tagged` or `Evolving` wrote as a plain value; raises SerdeError for other bytes.

    What JSON has is itself. Anything else is an object with a word under "$", and its content under "of".

    >>> plain_of(Evolving().encode({"at": (1, b"AA")}))
    {'at': {'$': 'tuple', 'of': [1, {'$': 'bytes', 'of': 'QUE='}]}}
    """
    tag, body = data[:1], data[1:]
    try:
        return _plain(tag, body)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise SerdeError(f"bytes that start with {data[:8]!r} are no stored value: {error}") from error


def bytes_of(plain: object, serde: Tagged) -> bytes:
    """Return the bytes that `serde` writes for the value that `plain_of` has shown; raises SerdeError for any other.

    >>> bytes_of({"$": "tuple", "of": [1, "a"]}, Tagged()) == Tagged().encode((1, "a"))
    True
    """
    try:
        return _bytes(plain, serde)
    except SerdeError:
        raise
    except (AttributeError, TypeError, ValueError, KeyError, OverflowError, struct.error) as error:
        raise SerdeError(f"{plain!r} is no stored value: {error}") from error


def escaped(word: str, of: object) -> dict[str, object]:
    """Return the object for something that JSON has no form for."""
    return {WORD: word, OF: of}


def packed(value: Any) -> object:
    """Return a value of MessagePack as a plain one."""
    if type(value) is float and not isfinite(value):
        # There are many NaNs; one that is not the usual one is told by its bits.
        bits = _FLOAT.pack(value)
        return escaped("float", f"nan {bits.hex()}" if isnan(value) and bits != _USUAL_NAN else str(value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return escaped("bytes", b64encode(value).decode())
    if type(value) is list:
        return [packed(part) for part in value]
    if type(value) is dict:
        if all(type(key) is str for key in value) and WORD not in value:
            return {key: packed(part) for key, part in value.items()}
        return escaped("map", [[packed(key), packed(part)] for key, part in value.items()])
    if type(value) is dt.datetime:
        return escaped("timestamp", value.isoformat())
    if type(value) is msgspec.msgpack.Ext:
        return escaped("extension", [value.code, b64encode(bytes(value.data)).decode()])
    raise TypeError(f"a {type(value).__qualname__} is nothing that MessagePack has")


def unpacked(plain: Any) -> object:
    """Return the value of MessagePack that `packed` has shown."""
    if type(plain) is list:
        return [unpacked(part) for part in plain]
    if type(plain) is not dict:
        return plain
    if WORD not in plain:
        return {key: unpacked(part) for key, part in plain.items()}
    word, of = plain[WORD], plain[OF]
    if word == "map":
        return {_hashable(unpacked(key)): unpacked(part) for key, part in of}
    if word == "timestamp":
        return dt.datetime.fromisoformat(of)
    if word == "extension":
        return msgspec.msgpack.Ext(of[0], b64decode(of[1], validate=True))
    return _scalar(word, of)


def _plain(tag: bytes, body: bytes) -> object:
    if tag == PLAIN:
        return packed(_unpack(body))
    if tag == NESTED:
        structure, end = structure_in(body)
        return _nested(decoder_of(structure)(body[end:]))
    if tag == BIG:
        return escaped("int", str(int(body)))
    if tag in _SEQUENCES:
        parts = [plain_of(part) for part in _unpack(body)]
        return parts if tag == LIST else escaped(_SEQUENCES[tag], parts)
    if tag == MAPPING:
        found = iter(map(plain_of, _unpack(body)))
        pairs = list(zip(found, found, strict=True))
        if all(type(key) is str and key != WORD for key, _ in pairs):
            return dict(pairs)
        return escaped("dict", [list(pair) for pair in pairs])
    if tag not in (WHOLE, FIELDS, RECORD, ENUM, SUBTYPE, OTHER):
        raise ValueError("they begin with no tag")
    name, payload = _unpack(body)
    if tag == OTHER:
        return escaped(name, plain_of(payload))
    if tag == WHOLE:
        return {WORD: "record", CLASS: name, OF: packed(payload)}
    if tag == FIELDS:
        return {WORD: "fields", CLASS: name, OF: [plain_of(part) for part in payload]}
    if tag == RECORD:
        return {WORD: "fields", CLASS: name, OF: {field: plain_of(part) for field, part in payload.items()}}
    return {WORD: "enum" if tag == ENUM else "subclass", CLASS: name, OF: plain_of(payload)}


def _bytes(plain: Any, serde: Tagged) -> bytes:
    if type(plain) is list:
        return _list_bytes(LIST, plain, serde)
    if type(plain) is not dict:
        return PLAIN + _pack(plain)
    if WORD not in plain:
        return _mapping_bytes([*plain.items()], serde)
    word, of = plain[WORD], plain[OF]
    if word in _TAGS:
        return _list_bytes(_TAGS[word], of, serde)
    if word == "dict":
        return _mapping_bytes(of, serde)
    if word == "int":
        return BIG + str(int(of)).encode()
    if word in ("bytes", "float"):
        return PLAIN + _pack(_scalar(word, of))
    if word in ("map", "timestamp", "extension"):
        return PLAIN + _pack(unpacked(plain))
    if word == "record":
        return WHOLE + _pack((plain[CLASS], unpacked(of)))
    if word == "fields":
        parts: object = (
            [_bytes(part, serde) for part in of]
            if type(of) is list
            else {field: _bytes(part, serde) for field, part in of.items()}
        )
        return (FIELDS if type(of) is list else RECORD) + _pack((plain[CLASS], parts))
    if word in ("enum", "subclass"):
        return (ENUM if word == "enum" else SUBTYPE) + _pack((plain[CLASS], _bytes(of, serde)))
    return OTHER + _pack((value_type_named(word).name, _bytes(of, serde)))


def _list_bytes(tag: bytes, parts: list[object], serde: Tagged) -> bytes:
    # As the serdes do it, so that what is written again is what was there, byte for byte.
    if tag == LIST and all(map(_is_scalar, parts)):
        return PLAIN + _pack([unpacked(part) for part in parts])
    if tag == TUPLE and isinstance(serde, Evolving) and _is_nested(parts):
        return serde.encode(_tuple(parts))
    found = [_bytes(part, serde) for part in parts]
    return tag + _pack(sorted(found) if tag in (SET, FROZEN_SET) else found)


def _mapping_bytes(pairs: list[tuple[object, object]], serde: Tagged) -> bytes:
    if all(type(key) is str and _is_scalar(part) for key, part in pairs):
        return PLAIN + _pack({key: unpacked(part) for key, part in pairs})
    return MAPPING + _pack([_bytes(part, serde) for pair in pairs for part in pair])


def _nested(value: Any) -> object:
    """Return a tuple of scalars and such tuples as a plain value."""
    return escaped("tuple", [_nested(part) for part in value]) if type(value) is tuple else packed(value)


def _is_nested(parts: list[Any]) -> bool:
    return all(_is_scalar(part) or (_is_a(part, "tuple") and _is_nested(part[OF])) for part in parts)


def _tuple(parts: list[Any]) -> tuple[object, ...]:
    return tuple(_tuple(part[OF]) if _is_a(part, "tuple") else unpacked(part) for part in parts)


def _is_scalar(plain: object) -> bool:
    if _is_a(plain, "bytes") or _is_a(plain, "float"):
        return True
    return type(plain) in SCALARS and not (type(plain) is int and not LEAST <= plain <= MOST)


def _is_a(plain: Any, word: str) -> bool:
    return type(plain) is dict and plain.get(WORD) == word


def _scalar(word: object, of: Any) -> object:
    if word == "bytes":
        return b64decode(of, validate=True)
    if word == "float":
        name, _, bits = of.partition(" ")
        return _FLOAT.unpack(bytes.fromhex(bits))[0] if name == "nan" and bits else float(of)
    raise ValueError(f"{word!r} stands for nothing here")


def _hashable(key: Any) -> object:
    return tuple(map(_hashable, key)) if type(key) is list else key


_SEQUENCES: Mapping[bytes, str] = {TUPLE: "tuple", LIST: "list", SET: "set", FROZEN_SET: "frozenset"}
_TAGS: Mapping[str, bytes] = {word: tag for tag, word in _SEQUENCES.items() if tag != LIST}
