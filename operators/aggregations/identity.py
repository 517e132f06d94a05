"""The identity of values: their bytes, since Python's own equality confuses 1, 1.0 and True."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec

from operators.core.wording import words_of

NO_MESSAGEPACK = b"\xc1"
"""A byte with which no MessagePack begins."""


def _plain(value: Any) -> Any:
    """Return the plain value by which one that MessagePack does not know is told from others."""
    if getattr(getattr(value, "dtype", None), "kind", "") in ("b", "i", "u", "f", "U", "S"):
        return value.item()  # a scalar of NumPy
    if isinstance(value, Fraction):
        return value.numerator, value.denominator
    raise TypeError(f"MessagePack knows no {type(value).__qualname__}")


_encoder = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain)
_pack = _encoder.encode


def identity(value: Any) -> bytes:
    """Return bytes that are equal where values are the same: their MessagePack.

    NaN is the same as NaN, whatever its sign. Raises TypeError for what is no plain value, Struct or dataclass, and for
    a set of unlike things.

    >>> len({identity(1), identity(1.0), identity(True), identity("1")})
    4
    """
    # inf - inf has a sign where 0 * inf has none, and so other bytes: one NaN stands for all.
    if type(value) is float and value != value:
        value = math.nan
    try:
        return _pack(value)
    except OverflowError:  # an int of more than 64 bits somewhere inside
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic", enc_hook=_plain)
        # Behind a byte with which no MessagePack begins, so that it equals the bytes of no other value.
        return NO_MESSAGEPACK + repr(plain).encode()
    except TypeError as error:
        wrong = f"a {type(value).__qualname__} can't be told from another one ({words_of(error)})"
        raise TypeError(f"{wrong}; return a plain value, a tuple of them, a Struct or a dataclass") from error
