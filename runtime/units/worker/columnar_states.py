"""Accumulators of aggregations, made of what Arrow finds out about groups of rows, the same as of each row alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from planner.columnar.lowering import Measure
from planner.columnar.terms import LARGEST

FORMATS: dict[pa.DataType, Literal["i", "q", "d"]] = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}
"""The formats of numbers in memory, in the words of the module `struct`."""
MOST_LIMBS = 8
"""The limbs of floats beyond which a batch is summed row by row; two are usual, for a million rows as well."""
HIGHEST_EXPONENT = 1023
WHERE_NONE = pc.ScalarAggregateOptions(min_count=0)
"""The sum of no numbers is 0, and not null."""


class Unusual(Exception):
    """Says that a batch is to be read row by row: there is something in it at which Python may raise."""


class GroupStates(NamedTuple):
    """The questions about groups, as columns and Arrow's aggregations of them, and what makes states of the answers."""

    asked: list[tuple[pa.Array, str]]
    made: Callable[[list[pa.ChunkedArray]], Iterable[object]]


def states_of(measure: Measure, values: pa.Array) -> GroupStates:
    """Return how the states of a measure are found; raises Unusual where Arrow and Python may come to another result.

    Of groups as these the states are those of `total`, `mean`, `maximum` and `minimum`, but that a sum of floats need
    not be in its shortest form.
    """
    return _MAKERS[measure.kind](values)


def listed(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; of numbers without a null there is no object of Arrow's for each."""
    if column.null_count or column.type not in FORMATS:
        values: list[Any] = column.to_pylist()
        return values
    found: list[float] = []
    for chunk in filter(len, column.chunks):
        held = memoryview(chunk.buffers()[1]).cast("B").cast(FORMATS[column.type])
        found += held[chunk.offset : chunk.offset + len(chunk)].tolist()
    return found


def _of_order(values: pa.Array, how: str) -> GroupStates:
    """Return how the largest or smallest are found; Unusual where equal ones are not the same, as 0.0 and -0.0."""
    if pa.types.is_floating(values.type):
        signs = pc.divide(1.0, values.filter(pc.equal(values, 0.0)))
        if pc.any(pc.less(signs, 0.0)).as_py():
            raise Unusual
    return GroupStates([(values, how)], lambda found: listed(found[0]))


def _of_sum(values: pa.Array, has_number: bool) -> GroupStates:
    return _of_floats(values, has_number) if pa.types.is_floating(values.type) else _of_ints(values, has_number)


def _of_ints(values: pa.Array, has_number: bool) -> GroupStates:
    least, most = (one.as_py() or 0 for one in pc.min_max(values).values())
    # Arrow's sums wrap around silently where Python's ints grow.
    if max(abs(least), abs(most)) * max(len(values), 1) > LARGEST:
        raise Unusual
    nothing = [repeat(0)] * 4
    if not has_number:
        return GroupStates([(values, "sum")], lambda found: zip(listed(found[0]), *nothing))  # noqa: B905
    asked = [(values, "count"), (values, "sum")]
    return GroupStates(asked, lambda found: zip(listed(found[0]), listed(found[1]), *nothing))  # noqa: B905


def _of_floats(values: pa.Array, has_number: bool) -> GroupStates:
    """Return how sums of floats are found: as sums of the limbs of all finite ones, and how many each others are."""
    asked = [(values, "count")]
    is_finite = pc.is_finite(values)
    all_finite = pc.all(is_finite).as_py() is not False
    if not all_finite:
        others = [pc.equal(values, math.inf), pc.equal(values, -math.inf), pc.is_nan(values)]
        asked += [(pc.cast(one, pa.int64()), "sum") for one in (is_finite, *others)]
        values = pc.if_else(is_finite, values, 0.0)
    asked += [(limb, "sum") for limb in limbs(values)]

    def made(found: list[pa.ChunkedArray]) -> Iterable[object]:
        number = listed(found[0])
        before: list[Iterable[int]] = [number, repeat(0)] if has_number else [repeat(0)]
        before += [number, *[repeat(0)] * 3] if all_finite else map(listed, found[1:5])
        terms = _compressed(found[1 if all_finite else 5 :])
        states = [*zip(*before, *map(listed, terms))]  # noqa: B905
        # Most groups are less than all limbs: of these the last ones are 0.
        for _ in terms:
            states = [state if state[-1] else state[:-1] for state in states]
        return states

    return GroupStates(asked, made)


def limbs(values: pa.Array) -> list[pa.Array]:
    """Return columns that add up to one of finite floats, such that floats sum each of them exactly in any order.

    It is the extraction of Rump, Ogita and Oishi (Accurate floating-point summation, 2008): added to a large power of
    2 and taken off it again, a number is rounded to a multiple of that power's last bit. Of n numbers that are
    multiples of one bit, and n times less than 2**53 of them, each sum is a float. What rounding has left is the next
    limb's. Raises Unusual where the numbers are too large, or spread over too many orders of magnitude.
    """
    bits = (len(values) + 2).bit_length()
    found: list[pa.Array] = []
    while most := pc.max(pc.abs(values)).as_py():
        _, exponent = math.frexp(most)
        if exponent + bits > HIGHEST_EXPONENT or len(found) == MOST_LIMBS:
            raise Unusual
        beside = math.ldexp(1.0, exponent + bits)
        limb = pc.subtract(pc.add(values, beside), beside)
        values = pc.subtract(values, limb)
        found.append(limb)
        rest = pc.max(pc.abs(values)).as_py()
        assert rest is None or rest < most, "each limb takes the leading bits of what is left"
    return found


def _compressed(terms: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    """Return columns with the same sum of each row, in which the first ones hold as much of it as they can."""
    found = [*terms]
    for place in reversed(range(len(found) - 1)):
        # Knuth's sum of two, and what rounding takes off it.
        one, other = found[place : place + 2]
        rounded = pc.add(one, other)
        taken = pc.subtract(rounded, one)
        rest = pc.add(pc.subtract(one, pc.subtract(rounded, taken)), pc.subtract(other, taken))
        found[place : place + 2] = rounded, rest
    return found


_MAKERS: dict[str, Callable[[pa.Array], GroupStates]] = {
    "total": partial(_of_sum, has_number=False),
    "mean": partial(_of_sum, has_number=True),
    "maximum": partial(_of_order, how="max"),
    "minimum": partial(_of_order, how="min"),
}
