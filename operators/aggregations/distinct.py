"""The number of distinct values: counted one by one, or estimated by HyperLogLog in bounded room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

from operators.aggregations import counters as counts
from operators.aggregations.aggregation import Aggregation
from operators.aggregations.identity import identity
from operators.core.sites import check_plain, mistake

V = TypeVar("V")

HASH_BITS = 64
FEWEST_BITS, MOST_BITS = 6, 18
"""The bits of a hash that choose a register: for 64 registers to 262,144."""
FEW = 16
"""The registers for each hash that is kept: with more hashes than that, the registers are kept instead."""

Sketch = set[int] | bytes
"""A HyperLogLog: the hashes of few values, or one byte for each register."""


def distinct(of: Callable[[V], Any]) -> Aggregation[V, int]:
    """Return the number of distinct values that are read off the values; None is left out.

    It keeps every one of them. Two are the same when their MessagePack is: 1, 1.0 and True are three values, and a
    tuple is the same as a list. All that state can keep is told apart.

    >>> from operators.aggregations.aggregation import over
    >>> over(distinct(str.lower), ["a", "B", "b", "A"])
    2
    """
    check_plain("distinct(...)", of)

    def counted(values: list[V]) -> Counter[bytes]:
        return Counter(_identities(of, values))

    return Aggregation(
        "distinct",
        dict,
        lambda state, values: counts.plus(state, counted(values)),
        counts.plus,
        len,
        remake=lambda ready: distinct(ready(of)),
        remove=lambda state, values: counts.minus(state, counted(values)),
    )


def approximate_distinct(of: Callable[[V], Any], error: float = 0.02) -> Aggregation[V, int]:
    """Estimate the number of distinct values that are read off the values, in bounded room; None is left out.

    `error` is the standard error relative to the number: two estimates of three are within it. 0.02 takes 4 KB at most,
    and is exact up to 256 values; half of the error takes four times as much, for four times as many. Which values are
    the same is as in `distinct`, and the result does not depend on the order and grouping in which they come. Raises
    ValueError for an error below 0.0021 or above 0.13.

    It is the HyperLogLog of P. Flajolet and others (2007), with 64-bit hashes and the estimator of O. Ertl ("New
    cardinality estimation algorithms for HyperLogLog sketches", 2017), which needs no tables of corrections.

    >>> from operators.aggregations.aggregation import over
    >>> over(approximate_distinct(lambda n: n % 10_000), list(range(100_000)))
    10014
    """
    check_plain("approximate_distinct(...)", of)
    bits = _bits_for(error)

    return Aggregation(
        f"approximate distinct within {error}",
        set,
        lambda state, values: _joined(state, set(map(_hash, _identities(of, values))), bits),
        lambda a, b: _joined(a, b, bits),
        lambda state: len(state) if isinstance(state, set) else round(_estimate(state, bits)),
        remake=lambda ready: approximate_distinct(ready(of), error),
    )


def _identities(of: Callable[[V], Any], values: list[V]) -> list[bytes]:
    return [identity(one) for one in map(of, values) if one is not None]


def _bits_for(error: float) -> int:
    """Return the number of bits that choose a register, so that the error, 1.04 / √registers, is at most `error`."""
    if isinstance(error, int | float) and error > 0:
        bits = math.ceil(2 * math.log2(1.04 / error))
        if FEWEST_BITS <= bits <= MOST_BITS:
            return bits
    raise mistake(f"error={error!r} is not between 0.0021 and 0.13", "approximate_distinct(..., error=0.02)")


def _hash(one: bytes) -> int:
    # Not Python's hash(), which differs from process to process: a sketch is stored, and merged with those of others.
    return int.from_bytes(blake2b(one, digest_size=HASH_BITS // 8).digest(), "big")


def _joined(a: Sketch, b: Sketch, bits: int) -> Sketch:
    # The hashes themselves as long as they are few: they are exact, and smaller than the registers.
    if isinstance(a, set) and isinstance(b, set):
        a |= b
        return a if len(a) <= (1 << bits) // FEW else _with(bytes(1 << bits), a, bits)
    if isinstance(a, set):
        a, b = b, a
    assert isinstance(a, bytes)
    return _with(a, b, bits) if isinstance(b, set) else bytes(map(max, a, b))


def _with(registers: bytes, hashes: set[int], bits: int) -> bytes:
    """Return registers that each hold the most zeros that one of their hashes begins with, plus one."""
    found, rest = bytearray(registers), HASH_BITS - bits
    for hashed in hashes:
        register, rank = hashed >> rest, rest - (hashed & ((1 << rest) - 1)).bit_length() + 1
        if rank > found[register]:
            found[register] = rank
    return bytes(found)


def _estimate(registers: bytes, bits: int) -> float:
    """Return Ertl's improved estimate, from the number of registers that hold each rank.

    His correction for hashes that run out of bits is left out: 64 bits do not.
    """
    size, highest = 1 << bits, HASH_BITS - bits + 1
    holding = Counter(registers)
    z = 0.0
    for rank in range(highest, 0, -1):
        z = (z + holding[rank]) / 2
    z += size * _sigma(holding[0] / size)
    return size * size / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    """Return x + Σ x^(2^k) · 2^(k-1) over k ≥ 1."""
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z
