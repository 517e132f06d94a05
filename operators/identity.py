"""Which values are the same: those of equal bytes, since Python's own equality confuses 1, 1.0 and True."""

from __future__ import annotations

from typing import Any

import msgspec

NO_MESSAGEPACK = b"\xc1"
"""A byte with which no MessagePack begins."""

_pack = msgspec.msgpack.Encoder(order="deterministic").encode


def identity(value: Any) -> bytes:
    """Return bytes that are equal where values are the same: their MessagePack.

    Raises TypeError for what is no plain value, Struct or dataclass, and for a set of unlike things.

    >>> len({identity(1), identity(1.0), identity(True), identity("1")})
    4
    """
    try:
        return _pack(value)
    except OverflowError:  # an int of more than 64 bits somewhere inside
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic")
        return NO_MESSAGEPACK + repr(plain).encode()
    except TypeError as error:
        wrong = f"a {type(value).__qualname__} can't be told from another one ({error})"
        raise TypeError(f"{wrong}; return a plain value, a tuple of them, a Struct or a dataclass") from error
