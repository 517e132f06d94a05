"""The quantiles of many numbers in bounded room: counts in buckets whose width grows with their numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import Any, TypeVar

from operators.aggregations import counters as counts
from operators.aggregations.aggregation import Aggregation
from operators.core.sites import check_plain, mistake

V = TypeVar("V")

LOWEST_POWER, HIGHEST_POWER = -1073, 1024
"""The exponents of `math.frexp`, from the smallest float that is not 0 to the largest."""
SMALLEST_ERROR, LARGEST_ERROR = 0.0001, 0.5


def quantile(q: float, of: Callable[[V], float | None], error: float = 0.01) -> Aggregation[V, float | None]:
    """Return, about, the smallest number that at least the share `q` of the numbers read off values does not exceed.

    The result differs from that number by `error` of it at most: by 1 % if you don't say. None is left out, and the
    quantile of nothing is None. All else is as in `quantiles`.

    >>> from operators.aggregations.aggregation import over
    >>> over(quantile(0.95, lambda ms: ms), list(range(1, 1001)))
    947.1723243243243
    """
    if not _is_share(q):
        raise mistake(f"quantile({q!r}, ...) is not a number from 0 to 1", "quantile(0.95, ...)")
    return _ranked("quantile", [q], of, error, lambda found: found[0])


def quantiles(
    qs: list[float] | tuple[float, ...], of: Callable[[V], float | None], error: float = 0.01
) -> Aggregation[V, list[float | None]]:
    """Return several quantiles of the same numbers, in the order asked for; see `quantile`.

    The result does not depend on the order and grouping in which the numbers come. It keeps 1 / (2 · error) counts for
    each power of two that they span: by default, 500 from 1 ms to 1 s. Raises ValueError for a q outside 0 to 1, or an
    error outside 0.0001 to 0.5. NaN has no rank, and is a ValueError where it comes.

    It is the DDSketch of C. Masson, J. E. Rim and H. K. Lee (VLDB 2019), with buckets of equal width between two powers
    of two, so that it needs no logarithm, which machines may round differently.

    >>> from operators.aggregations.aggregation import over
    >>> over(quantiles([0.5, 1], len), ["a", "aaaa", "aa"])
    [2.01980198019802, 4.03960396039604]
    """
    if not isinstance(qs, list | tuple) or not qs or not all(map(_is_share, qs)):
        raise mistake(f"quantiles({qs!r}, ...) are not numbers from 0 to 1", "quantiles([0.5, 0.95], ...)")
    return _ranked("quantiles", list(qs), of, error, list)


def _is_share(q: Any) -> bool:
    return isinstance(q, int | float) and 0 <= q <= 1


def _ranked(
    name: str, qs: list[float], of: Callable[[V], Any], error: float, pick: Callable[[list[float | None]], Any]
) -> Aggregation[V, Any]:
    check_plain(f"{name}(of=...)", of)
    if not isinstance(error, int | float) or not SMALLEST_ERROR <= error <= LARGEST_ERROR:
        raise mistake(
            f"error={error!r} is not between {SMALLEST_ERROR} and {LARGEST_ERROR}", f"{name}(..., error=0.01)"
        )
    buckets = Buckets(error)
    # As it was written: the float 0.07 is a little more than 7/100, and of 100 numbers would be the 8th, not the 7th.
    shares = [Fraction(str(float(q))) for q in qs]

    def counted(values: list[V]) -> Counter[int]:
        return Counter([buckets.of(number) for number in map(of, values) if number is not None])

    return Aggregation(
        f"{name} {', '.join(f'{q:g}' for q in qs)} within {error}",
        dict,
        lambda state, values: counts.plus(state, counted(values)),
        counts.plus,
        lambda state: pick([buckets.at_rank(share, state) for share in shares]),
        remake=lambda ready: _ranked(name, qs, ready(of), error, pick),
        remove=lambda state, values: counts.minus(state, counted(values)),
    )


class Buckets:
    """The buckets, as ints that sort as the numbers in them: 0 has the bucket 0, and -x the negative one of x."""

    def __init__(self, error: float) -> None:
        self.width = math.ceil((1 / error - 1) / 2)
        """The number of buckets between two powers of two."""

    def of(self, number: float) -> int:
        """Return the bucket of `number`; raises ValueError for NaN."""
        if not number:
            return 0
        if math.isnan(number):
            raise ValueError("NaN is no larger or smaller than other numbers, so it has no place in a quantile")
        if math.isinf(number):
            bucket = self._first(HIGHEST_POWER + 1)
        else:
            # Buckets of equal width between two powers of two need no logarithm, which machines may round differently.
            mantissa, power = math.frexp(abs(number))
            bucket = self._first(power) + int((mantissa * 2 - 1) * self.width)
        return bucket if number > 0 else -bucket

    def number(self, bucket: int) -> float:
        """Return the number that is relatively as far from the lower as from the upper end of its bucket."""
        if not bucket:
            return 0.0
        power, step = divmod(abs(bucket) - 1, self.width)
        power += LOWEST_POWER
        if power > HIGHEST_POWER:
            return math.copysign(math.inf, bucket)
        low, high = 1 + step / self.width, 1 + (step + 1) / self.width
        return math.copysign(math.ldexp(2 * low * high / (low + high), power - 1), bucket)

    def at_rank(self, share: Fraction, counted: dict[int, int]) -> float | None:
        """Return the number below or at which `share` of what was counted lies; None of nothing."""
        rank = max(1, math.ceil(share * sum(counted.values())))
        ordered = sorted(counted)
        reached = accumulate(map(counted.__getitem__, ordered))
        return next(
            (self.number(bucket) for bucket, below in zip(ordered, reached, strict=True) if below >= rank), None
        )

    def _first(self, power: int) -> int:
        return 1 + (power - LOWEST_POWER) * self.width
