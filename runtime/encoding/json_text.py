"""JSON of values, which refuses those that its readers would take for others."""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect

from operators.aggregations.identity import may_be_infinite
from operators.core.base import has_none
from operators.core.declared_types import types_in
from operators.core.wording import shown
from runtime.encoding.copies import with_sets_in_order
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import fields_of, hints_of, is_by_position, is_pydantic, is_record
from runtime.encoding.value_types import as_plain, json_plain
from runtime.model.errors import SerdeError

ONLY_TEXT = frozenset({str})
LISTS = (list, tuple, set, frozenset, deque)
_MINUTE = dt.timedelta(minutes=1)
_OFFSET = re.compile(rb"T..:..:(?:..|.{9})[+-]")
"""A time with an offset from UTC, as msgspec writes it; one that looks for digits takes twice as long.

Offsets within 30 seconds of none, or of a whole day, which no zone ever had, are written as UTC.
"""


def to_json(value: Any) -> bytes:
    """Return the JSON of a value; raises SerdeError for one of which JSON would have another.

    It has no NaN and no infinity, and no two entries of one name. Offsets from UTC are whole minutes there: a time at
    another one, as of a zone before standard time, is written at the next such, and is the same moment.

    >>> to_json({"a": None})
    b'{"a":null}'
    >>> to_json({1: "a", "1": "b"})
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: {1: 'a', '1': 'b'} has several entries that JSON has under one name, '1': ...
    """
    data = _to_json(value)
    kind: type = type(value)
    # Most have nothing that may be amiss, and one value is told of that by less than several.
    if data.find(b"null") < 0 and not _has_offset(data):
        is_one_object = kind is not dict and data.find(b"{", 1) < 0 and _is_flat(kind)
        if is_one_object or _are_names_text(value):
            return data
    return _exact(data, [value], _to_json)


def to_key_json(value: object) -> bytes:
    """Return what `to_json` does, with sets in the order of their members' bytes."""
    held = with_sets_in_order(value, _to_key_json)
    return _exact(_to_key_json(held), [held], _to_key_json)


def to_json_lines(values: list[object]) -> bytes:
    r"""Return the JSON of each of some values and a line break behind it; raises SerdeError where `to_json` does.

    >>> to_json_lines([1, None])
    b'1\nnull\n'
    """
    return _exact(_to_json_lines(values), values, lambda one: _to_json(one) + b"\n")


def all_json(values: list[object]) -> list[bytes | None]:
    """Return what `to_json` does of each of a column; None stays None."""
    if has_none(values):
        return [None if value is None else to_json(value) for value in values]
    found = list(map(_to_json, values))
    # One search through all bytes costs less than one call for each value.
    joined = b"".join(found)
    return [*found] if _exact(joined, values, _to_json) is joined else [*map(to_json, values)]


def check_finite(value: object) -> None:
    """Refuse a value with a NaN or an infinity anywhere in it: JSON makes null of these."""
    # MessagePack keeps NaN, so a search through its bytes clears nearly every value at once; walking through a value
    # in Python is left for the few that the search suspects, or that have an int of more than 64 bits.
    try:
        if not may_be_infinite(_pack_plain(value)):
            return
    except OverflowError:
        pass
    left = [msgspec.to_builtins(value, enc_hook=as_plain)]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, LISTS):
            left += one
        elif isinstance(one, float) and not isfinite(one):
            raise SerdeError(
                f"{one} has no JSON, and null would be read back as another value: drop it with .filter(lambda v: "
                "math.isfinite(...)), make it None, or write what has such numbers: value=MessagePack(MyType) to a "
                "stream, or a file of Parquet"
            )


def check_entries(values: Sequence[object]) -> None:
    """Refuse values in which a dict has several entries that are one in JSON, as of the keys 1 and "1"."""
    for level in _levels(values, _fields_with_names):
        for kind, some in level.items():
            if issubclass(kind, dict):
                _check_dicts(some)


def _are_names_text(value: object) -> bool:
    """Whether all dicts in a value have texts as keys, as most do; False also where a class tells nothing of it.

    Loops over the parts: to gather the types of one small dict in C, as for many values, takes four times as long.
    """
    left: list[Any] = [value]
    scalars, add = SCALARS, left.append
    for one in left:  # which grows meanwhile
        kind: type = type(one)
        if kind is dict:
            for name, part in one.items():
                if type(name) is not str:
                    return False
                if type(part) not in scalars:
                    add(part)
        elif kind is list or kind is tuple:
            for part in one:
                if type(part) not in scalars:
                    add(part)
        elif kind not in scalars:
            if is_pydantic(kind) or not is_record(kind):
                return False
            left += [getattr(one, name, None) for name in _fields_with_names(kind)]
    return True


def _levels(values: Sequence[object], fields: Callable[[type], tuple[str, ...]]) -> Iterator[dict[type, list[Any]]]:
    """Yield values by their classes, then what lies in these, and so on; of records in some of their fields."""
    left: list[Any] = [*values]
    while left:
        kinds = {*map(type, left)}
        level = {kind: left if len(kinds) == 1 else [one for one in left if type(one) is kind] for kind in kinds}
        yield level
        left = []
        for kind, some in level.items():
            parts = [*_parts(kind, some, fields)]
            # The types of all in C first: mostly nothing lies deeper.
            if not SCALARS.issuperset(map(type, parts)):
                left += [part for part in parts if type(part) not in SCALARS]


def _parts(kind: type, values: list[Any], fields: Callable[[type], tuple[str, ...]]) -> Iterable[object]:
    """Return what lies in values of a class; of a dict its values."""
    if issubclass(kind, dict):
        return chain.from_iterable(map(dict.values, values))
    if is_pydantic(kind):
        return [one.model_dump(by_alias=True) for one in values]
    if is_record(kind):
        return [getattr(one, name, None) for name in fields(kind) for one in values]
    return chain.from_iterable(values) if issubclass(kind, LISTS) else ()


@cache
def _fields_with_names(kind: type) -> tuple[str, ...]:
    """Return the fields of a record in which JSON may have several entries under one name, as far as types tell."""
    hints = hints_of(kind)
    return tuple(one.name for one in fields_of(kind) if _may_have_names(hints.get(one.name, Any)))


def _may_have_names(hint: object) -> bool:
    try:
        return any(
            isinstance(one, inspect.AnyType | inspect.CustomType)
            or (isinstance(one, inspect.DictType) and not isinstance(one.key_type, inspect.StrType | inspect.IntType))
            for one in types_in(hint)
        )
    except Exception:  # a type that msgspec does not know
        return True


def _all_fields(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields_of(kind))


def _has_offset(data: bytes) -> bool:
    return data.find(b"T") >= 0 and _OFFSET.search(data) is not None


def _exact(data: bytes, values: Sequence[object], encode: Callable[[object], bytes]) -> bytes:
    """Return the JSON of values, or where it has moved a time, that of the same moments at offsets that JSON has.

    msgspec has written `data`. Each look is a search through all of its bytes in C, and only what that suspects is
    looked at again.
    """
    # msgspec writes NaN as null. Few values have a null; `in` takes twice as long.
    if data.find(b"null") >= 0:
        check_finite(values)
    kinds = {*map(type, values)}
    # A dict within another value begins with a brace of its own.
    if data.count(b"{") > (len(values) if all(map(_is_flat, kinds)) else 0):
        check_entries(values)
    elif dict in kinds:
        _check_dicts(values if len(kinds) == 1 else [one for one in values if type(one) is dict])
    if _has_offset(data) and any(map(_are_between_minutes, _levels(values, _all_fields))):
        plain = msgspec.to_builtins([*values], builtin_types=(dt.datetime,), enc_hook=_plain)
        return b"".join(encode(_at_whole_minutes(one)) for one in plain)
    return data


@cache
def _is_flat(kind: type) -> bool:
    """Whether values of a class are one object of JSON, but for what else lies in them, or have none."""
    is_object = is_record(kind) and not is_by_position(kind) and not getattr(kind, "__pydantic_root_model__", False)
    return kind in SCALARS or kind is dict or is_object


def _check_dicts(dicts: Sequence[Any]) -> None:
    # All their names at once, which takes a third of what JSON does: an exact dict's have their hashes.
    names_of_all = set[object]().union(*dicts)
    if ONLY_TEXT.issuperset(map(type, names_of_all)) or all(isinstance(name, str) for name in names_of_all):
        return
    for one in dicts:
        if not {*map(type, one)} <= {str} and not {*map(type, one)} <= {int}:
            names = [_name(key) for key in one]
            if len({*names}) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise SerdeError(
                    f"{shown(one)} has several entries that JSON has under one name, {twice!r}: make all keys text "
                    "that differs, or write what has keys of any type: value=MessagePack(MyType)"
                )


def _name(key: object) -> str:
    """Return the name of an entry in JSON."""
    (name,) = msgspec.to_builtins({key: None}, str_keys=True, enc_hook=as_plain)
    return str(name)


def _plain(value: object) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else json_plain(value)


def _are_between_minutes(level: dict[type, list[Any]]) -> bool:
    """Whether an offset from UTC of some times, or of keys of dicts that are times, is no whole minutes."""
    times = chain.from_iterable(some for kind, some in level.items() if issubclass(kind, dt.datetime))
    names = set[object]().union(*chain.from_iterable(some for kind, some in level.items() if issubclass(kind, dict)))
    offsets = {one.utcoffset() for one in chain(times, names) if isinstance(one, dt.datetime)}
    return any(offset is not None and offset % _MINUTE for offset in offsets)


def _at_whole_minutes(plain: Any) -> Any:
    """Return a plain value in which all times have offsets of whole minutes."""
    if isinstance(plain, dt.datetime):
        offset = plain.utcoffset()
        if offset is None or not offset % _MINUTE:
            return plain
        try:
            return plain.astimezone(dt.timezone(int(offset / _MINUTE) * _MINUTE))
        except OverflowError as error:
            raise SerdeError(f"{plain} has no JSON at an offset of whole minutes: write it .astimezone(UTC)") from error
    if type(plain) is dict:
        return {_at_whole_minutes(key): _at_whole_minutes(part) for key, part in plain.items()}
    return [*map(_at_whole_minutes, plain)] if isinstance(plain, LISTS) else plain


_to_json_encoder = msgspec.json.Encoder(enc_hook=json_plain)
_to_json, _to_json_lines = _to_json_encoder.encode, _to_json_encoder.encode_lines
_to_key_json: Callable[[object], bytes] = msgspec.json.Encoder(
    enc_hook=lambda one: with_sets_in_order(json_plain(one), _to_key_json)
).encode
_pack_plain = msgspec.msgpack.Encoder(enc_hook=as_plain).encode
