"""The check that a value has neither NaN nor infinities, which JSON would make null."""

from __future__ import annotations

from math import isfinite

import msgspec

from operators.aggregations.identity import may_be_infinite
from runtime.encoding.value_types import as_plain
from runtime.model.errors import SerdeError

_pack_plain = msgspec.msgpack.Encoder(enc_hook=as_plain).encode


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
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        elif isinstance(one, float) and not isfinite(one):
            raise SerdeError(
                f"{one} has no JSON, and null would be read back as another value: drop it with .filter(lambda v: "
                "math.isfinite(...)), make it None, or write what has such numbers: value=MessagePack(MyType) to a "
                "stream, or a file of Parquet"
            )
