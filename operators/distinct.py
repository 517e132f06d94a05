"""How many distinct values there are: counted one by one, or estimated by HyperLogLog in bounded room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

from operators import counts
from operators.aggregations import Aggregation
from operators.identity import identity
from operators.sites import check_plain, mistake

V = TypeVar("V")

HASH_BITS = 64
FEWEST_BITS, MOST_BITS = 6, 18
"""Of a hash, those that choose a register: 64 registers to 262,144."""
SPARSE_SHARE = 16
"""One register of so many may be set before all of them are kept."""
Registers = dict[int, int] | bytes
"""The registers of a HyperLogLog: those that are set, or all of them."""


def distinct(of: Callable[[V], Any]) -> Aggregation[V, int]:
    """Return how many distinct values are read off the values; None is left out.

    It keeps every one of them. Two are the same when their MessagePack is: 1, 1.0 and True are three values, and a
    tuple is the same as a list.

    >>> from operators.aggregations import over
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
    """Estimate how many distinct values are read off the values, in bounded room; None is left out.

    `error` is the standard error relative to the number: two estimates of three are within it. 0.02 takes 4 KB at most,
    half of the error takes four times as much. Which values are the same is as in `distinct`, and the result does not
    depend on the order and grouping in which they come. Raises ValueError for an error below 0.0021 or above 0.13.

    It is the HyperLogLog of P. Flajolet and others (2007), with 64-bit hashes and the estimator of O. Ertl ("New
    cardinality estimation algorithms for HyperLogLog sketches", 2017), which needs no tables of corrections.

    >>> from operators.aggregations import over
    >>> over(approximate_distinct(lambda n: n % 10_000), list(range(100_000)))
    10014
    """
    check_plain("approximate_distinct(...)", of)
    bits = _bits_for(error)

    def add(state: Registers, values: list[V]) -> Registers:
        found: dict[int, int] = {}
        for one in _identities(of, values):
            register, rank = _place(one, bits)
            if rank > found.get(register, 0):
                found[register] = rank
        return _joined(state, found, bits)

    return Aggregation(
        f"approximate distinct within {error}",
        dict,
        add,
        lambda a, b: _joined(a, b, bits),
        lambda state: round(_estimate(state, bits)),
        remake=lambda ready: approximate_distinct(ready(of), error),
    )


def _identities(of: Callable[[V], Any], values: list[V]) -> list[bytes]:
    return [identity(one) for one in map(of, values) if one is not None]


def _bits_for(error: float) -> int:
    """Return how many bits choose a register, so that the standard error, 1.04 / √registers, is at most `error`."""
    if isinstance(error, int | float) and error > 0:
        bits = math.ceil(2 * math.log2(1.04 / error))
        if FEWEST_BITS <= bits <= MOST_BITS:
            return bits
    raise mistake(f"error={error!r} is not between 0.0021 and 0.13", "approximate_distinct(..., error=0.02)")


def _place(one: bytes, bits: int) -> tuple[int, int]:
    """Return which register a value goes to, and how many zeros its hash begins with behind that, plus one."""
    hashed = int.from_bytes(blake2b(one, digest_size=HASH_BITS // 8).digest(), "big")
    rest = HASH_BITS - bits
    return hashed >> rest, rest - (hashed & ((1 << rest) - 1)).bit_length() + 1


def _joined(a: Registers, b: Registers, bits: int) -> Registers:
    """Return the larger one of each register."""
    if isinstance(a, bytes) and isinstance(b, bytes):
        return bytes(map(max, a, b))
    if isinstance(b, bytes):
        a, b = b, a
    assert isinstance(b, dict)
    all_of_a = bytearray(a) if isinstance(a, bytes) else a
    for register, rank in b.items():
        held = all_of_a[register] if isinstance(all_of_a, bytearray) else all_of_a.get(register, 0)
        if rank > held:
            all_of_a[register] = rank
    if isinstance(all_of_a, dict):
        return all_of_a if len(all_of_a) <= (1 << bits) // SPARSE_SHARE else _all(all_of_a, bits)
    return bytes(all_of_a)


def _all(registers: Registers, bits: int) -> bytes:
    if isinstance(registers, bytes):
        return registers
    return bytes(map(registers.get, range(1 << bits), [0] * (1 << bits)))


def _estimate(registers: Registers, bits: int) -> float:
    """Return Ertl's improved estimate, of how many registers hold each rank."""
    size, highest = 1 << bits, HASH_BITS - bits + 1
    holding = Counter(_all(registers, bits))
    z = size * _tau(1 - holding[highest] / size)
    for rank in range(highest - 1, 0, -1):
        z = (z + holding[rank]) / 2
    z += size * _sigma(holding[0] / size)
    return size * size / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    """Return x + Σ x^(2^k) · 2^(k-1) over k ≥ 1."""
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    """Return (1 - x - Σ (1 - x^(2^-k))² · 2^-k over k ≥ 1) / 3."""
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y /= 2
        z -= (1 - x) ** 2 * y
    return z / 3
