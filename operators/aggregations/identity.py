"""The identity of values: their bytes, since Python's own equality confuses 1, 1.0 and True."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec

from operators.core.wording import words_of

NO_MESSAGEPACK = b"\xc1"
"""A byte with which no MessagePack begins."""
STORED = 1
"""The code of an extension of MessagePack that has a value as the store keeps it."""
_FLOAT = 0xCB
"""The first byte of a float, as a number: to look for bytes in bytes takes five times as long."""
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_stored: list[Callable[[Any], bytes]] = []


def tell_by(stored: Callable[[Any], bytes]) -> None:
    """Tell values of types that MessagePack does not know apart by the bytes that the runtime stores of them."""
    _stored[:] = [stored]


def _plain(value: Any) -> Any:
    """Return the plain value by which one that MessagePack does not know is told from others."""
    if getattr(getattr(value, "dtype", None), "kind", "") in ("b", "i", "u", "f", "U", "S") and not value.shape:
        return value.item()  # a scalar of NumPy
    if isinstance(value, Fraction):
        return value.numerator, value.denominator
    if hasattr(type(value), "model_construct") and hasattr(value, "__pydantic_extra__"):
        # As pydantic compares them: it does not matter which fields were given.
        held = {name: getattr(value, name) for name in type(value).model_fields}
        return {**held, **(value.__pydantic_extra__ or {})}
    return msgspec.msgpack.Ext(STORED, _as_stored(value))


def _as_stored(value: Any) -> bytes:
    for stored in _stored:
        try:
            return stored(value)
        except Exception as error:
            raise TypeError(words_of(error)) from error
    raise TypeError(f"MessagePack knows no {type(value).__qualname__}")


def _built_in(value: Any) -> Any:
    plain = _plain(value)
    return (plain.code, bytes(plain.data)) if isinstance(plain, msgspec.msgpack.Ext) else plain


_encoder = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain)
_pack = _encoder.encode
_pack_plain = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def identity(value: Any) -> bytes:
    """Return bytes that are equal where values are the same: their MessagePack.

    NaN is the same as NaN, whatever its sign, at every depth. Raises TypeError for what no state can keep.

    >>> len({identity(1), identity(1.0), identity(True), identity("1")})
    4
    """
    # inf - inf has a sign where 0 * inf has none, and so other bytes: one NaN stands for all.
    if type(value) is float and value != value:
        value = math.nan
    try:
        found = _pack(value)
    except OverflowError:  # an int of more than 64 bits somewhere inside
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic", enc_hook=_built_in)
        # Behind a byte with which no MessagePack begins, so that it equals the bytes of no other value.
        return NO_MESSAGEPACK + repr(with_one_nan(plain)).encode()
    except TypeError as error:
        try:  # a set of things that have no order, or an Enum of objects
            return NO_MESSAGEPACK + _as_stored(value)
        except TypeError:
            wrong = f"a {type(value).__qualname__} can't be told from another one ({words_of(error)})"
            raise TypeError(f"{wrong}; return a plain value, a tuple of them, a Struct or a dataclass") from error
    return _pack_plain(with_one_nan(_unpack(found))) if may_be_infinite(found) else found


def may_be_infinite(packed: bytes) -> bool:
    """Whether a NaN or an infinity may lie in a value, given as MessagePack: few values are to be walked through."""
    return _FLOAT in packed and _NOT_FINITE.search(packed) is not None


def with_one_nan(value: Any, of_other: Callable[[Any], Any] = lambda other: other) -> Any:
    """Return a value whose NaNs, in collections at every depth, are one; `of_other` says what a record becomes.

    >>> math.copysign(1, with_one_nan((-math.nan, 1))[0])
    1.0
    """
    kind = type(value)
    if kind is float:
        return math.nan if value != value else value
    if kind in (list, tuple, set, frozenset):
        return kind(with_one_nan(part, of_other) for part in value)
    if kind is dict:
        return {with_one_nan(key, of_other): with_one_nan(part, of_other) for key, part in value.items()}
    return of_other(value)
