"""Exact sums: the same whatever the order and grouping of their terms, any of which can be taken away again."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation
from fractions import Fraction
from typing import Any

LARGEST_EXACT = 2**53
"""The largest int up to which every int is a float."""
LOWEST_EXPONENT, HIGHEST_EXPONENT = -6_176, 6_111
"""The exponents of IEEE decimal128; the sum of two others may have more digits than there is room for."""
DIGITS = 28
"""The digits of a mean of Decimals that does not end; it has those of its sum, if these are more."""

Sum = tuple[Any, ...]
"""The sum of the ints, how many floats are finite, inf, -inf and nan, and an expansion of the finite ones.

Where there are Decimals or Fractions, a tuple of their sum comes last. Of Decimals it begins with "decimal", how many
are inf, -inf and nan, and goes on with an exponent, the sum of the digits that have it, and of how many Decimals that
is, for each exponent. Of Fractions it is "fraction", the numerator, the denominator, and how many there are.
"""

NOTHING: Sum = (0, 0, 0, 0, 0)
FIXED = len(NOTHING)
NO_OTHERS = (0, 0, 0)
"""As many infinities and NaNs as finite sums have."""
NO_DECIMALS: Sum = ("decimal", 0, 0, 0)
NO_FRACTIONS: Sum = ("fraction", 0, 1, 0)
EXACTLY = Context(
    prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero, Inexact], capitals=1
)


def plus(state: Sum, numbers: Sequence[Any]) -> Sum:
    """Return the sum with more terms: ints, floats, the like of NumPy, Decimals or Fractions.

    Raises TypeError for what is no number, and for a Decimal beside a float or a Fraction, which Python does not add.

    >>> value_of(plus(NOTHING, [0.1] * 10)), value_of(plus(NOTHING, [Decimal("0.10")] * 3))
    (1.0, Decimal('0.30'))
    """
    return _with(state, numbers, 1)


def minus(state: Sum, numbers: Sequence[Any]) -> Sum:
    """Return the sum as if these terms had never been there.

    >>> value_of(minus(plus(NOTHING, [7, 1e300, 0.5]), [1e300, 0.5]))
    7
    """
    return _with(state, numbers, -1)


def joined(a: Sum, b: Sum) -> Sum:
    """Return the sum of the terms of both."""
    if len(a) == len(b) == FIXED:  # ints alone, as most are
        return tuple(map(operator.add, a, b))
    if type(a[-1]) in _PARTS or type(b[-1]) in _PARTS:
        (plain_a, exact_a), (plain_b, exact_b) = _apart(a), _apart(b)
        plain = joined(plain_a, plain_b)
        both = exact_a if exact_b is None else exact_b if exact_a is None else _joined_exact(exact_a, exact_b, 1)
        return plain if both is None else _whole(plain, both)
    whole_a, finite_a, above_a, below_a, unknown_a, *terms = a
    whole_b, finite_b, above_b, below_b, unknown_b, *more = b
    finite = finite_a + finite_b
    whole, expansion = _summed(whole_a + whole_b, finite, [*terms, *more])
    return (whole, finite, above_a + above_b, below_a + below_b, unknown_a + unknown_b, *expansion)


def value_of(state: Sum) -> Any:
    """Return the sum: an int where all terms are, else exactly as a Decimal or Fraction, or the nearest float."""
    whole, finite, above, below, unknown, *expansion = state
    exact = None
    if type(state[-1]) in _PARTS:
        exact = expansion.pop()
        if exact[0] == "decimal":
            return _decimal(whole, exact)
    if unknown or (above and below):
        return math.nan
    if above or below:
        return math.inf if above else -math.inf
    if not finite:
        return whole if exact is None else Fraction(exact[1], exact[2]) + whole
    # fsum() would round the int to a float before it adds it.
    if exact is not None or abs(whole) > LARGEST_EXACT:
        return _nearest(_rational(state))
    return math.fsum((whole, *expansion))


def _rational(state: Sum) -> Fraction:
    """Return a sum of finite terms, none of which is a Decimal, as it is."""
    plain, exact = _apart(state)
    return sum(map(Fraction, plain[FIXED:]), Fraction(plain[0]) + (Fraction(*exact[1:3]) if exact else 0))


def _nearest(exact: Fraction) -> float:
    """Return the nearest float, which is infinity for what is beyond all of them, as in IEEE 754."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def mean_of(counted: Sum) -> Any:
    """Return a sum by how many there are, whose number stands before it; None of nothing.

    It is a float of ints; of Decimals it is rounded only where it does not end.

    >>> mean_of((2, *plus(NOTHING, [Decimal("0.10"), Decimal("0.25")]))), mean_of((2, *plus(NOTHING, [1, 2])))
    (Decimal('0.175'), 1.5)
    """
    number, first = counted[0], FIXED + 1
    if counted[1] == 0 and counted[3:first] == NO_OTHERS and type(counted[-1]) is float:
        # Floats alone, as most are; and of one part, as most sums of few are. As by fsum(), none is -0.0.
        return (counted[first] + 0.0 if len(counted) == first + 1 else math.fsum(counted[first:])) / number
    if not number:
        return None
    state = counted[1:]
    whole = value_of(state)
    if (type(whole) is int and abs(whole) > LARGEST_EXACT) or (type(whole) is float and math.isinf(whole)):
        # The sum may be beyond all floats where the mean is not; of infinite terms it is what they say.
        return whole / number if any(state[2:FIXED]) else _nearest(_rational(state) / number)
    if not isinstance(whole, Decimal) or not whole.is_finite():
        return whole / number
    digits = len(whole.as_tuple().digits)
    # A division that ends has at most as many digits more as its divisor has bits; one that is inexact at these does
    # not end, and is rounded.
    try:
        return _context(digits + number.bit_length(), [Inexact]).divide(whole, number)
    except Inexact:
        return _context(max(digits, DIGITS), []).divide(whole, number)


def _with(state: Sum, numbers: Sequence[Any], sign: int) -> Sum:
    # Ints alone are the common case, and floats the next: they are told by their exact type, in C. All others are
    # sorted out one by one.
    if _INTS.issuperset(map(type, numbers)):
        return (state[0] + sign * sum(numbers), *state[1:])
    if _FLOATS.issuperset(map(type, numbers)) and type(state[-1]) not in _PARTS:
        return _with_floats(state, numbers, sign)
    floats = [number for number in numbers if type(number) is float]
    exact = None
    if len(floats) < len(numbers):
        others = numbers if not floats else [number for number in numbers if type(number) is not float]
        if not _INTS.issuperset(map(type, others)):
            others, more, exact = _sorted_out(others)
            floats += more
        state = (state[0] + sign * sum(others), *state[1:])
        if not floats and exact is None:
            return state
    if exact is not None or type(state[-1]) in _PARTS:
        plain, before = _apart(state)
        plain = _with_floats(plain, floats, sign) if floats else plain
        both = before if exact is None else _with_exact(before, exact, sign)
        return plain if both is None else _whole(plain, both)
    return _with_floats(state, floats, sign)


def _with_floats(state: Sum, floats: Sequence[float], sign: int) -> Sum:
    whole, finite, above, below, unknown, *terms = state
    # The sum is finite where all terms are, so these are looked at one by one only where it is not.
    if not math.isfinite(sum(floats)):
        above += sign * floats.count(math.inf)
        below += sign * floats.count(-math.inf)
        unknown += sign * sum(map(math.isnan, floats))
        floats = [*filter(math.isfinite, floats)]
    terms += floats if sign > 0 else map(operator.neg, floats)
    finite += sign * len(floats)
    whole, expansion = _summed(whole, finite, terms)
    return (whole, finite, above, below, unknown, *expansion)


_PARTS = frozenset({tuple, list})
_INTS = frozenset({int, bool})
_FLOATS = frozenset({float})
_KINDS = ("b", "i", "u", "f")
"""The kinds of NumPy's scalars that are numbers; times are not."""


def _sorted_out(numbers: Sequence[Any]) -> tuple[list[int], list[float], Sum | None]:
    """Return the ints, the floats, and the sum of the Decimals or Fractions among numbers; raises TypeError."""
    ints: list[int] = []
    floats: list[float] = []
    exact: Sum | None = None
    for number in numbers:
        term: Sum
        if isinstance(number, Decimal):
            term = _decimal_term(number)
        elif isinstance(number, Fraction):
            term = ("fraction", number.numerator, number.denominator, 1)
        else:
            numpys = getattr(getattr(number, "dtype", None), "kind", None)
            if numpys is not None and numpys not in _KINDS:
                raise TypeError(f"must be real number, not {type(number).__name__}")
            plain = number if numpys is None else number.item()
            if isinstance(plain, int):
                ints.append(int(plain))
            else:
                math.isfinite(plain)  # raises TypeError for what is no number
                floats.append(float(plain))
            continue
        exact = term if exact is None else _joined_exact(exact, term, 1)
    return ints, floats, exact


def _decimal_term(number: Decimal) -> Sum:
    sign, _, exponent = number.as_tuple()
    if exponent == "F":
        return ("decimal", 0, 1, 0) if sign else ("decimal", 1, 0, 0)
    if not isinstance(exponent, int):
        return ("decimal", 0, 0, 1)
    if not LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT:
        wrong = f"the Decimal {number} is beyond 1E{LOWEST_EXPONENT:+} to 1E{HIGHEST_EXPONENT:+}"
        raise ValueError(f"{wrong}, within which sums are exact; quantize it")
    shifted = number.scaleb(-exponent, EXACTLY) if exponent else number
    return (*NO_DECIMALS, exponent, int(shifted), 1)


def _with_exact(exact: Sum | None, more: Sum, sign: int) -> Sum:
    nothing = NO_DECIMALS if more[0] == "decimal" else NO_FRACTIONS
    return _joined_exact(nothing if exact is None else exact, more, sign)


def _joined_exact(a: Sum, b: Sum, sign: int) -> Sum:
    if a[0] != b[0]:
        raise _unlike("a Fraction")
    if a[0] == "fraction":
        found = Fraction(a[1], a[2]) + sign * Fraction(b[1], b[2])
        return ("fraction", found.numerator, found.denominator, a[3] + sign * b[3])
    by_exponent = {a[place]: (a[place + 1], a[place + 2]) for place in range(4, len(a), 3)}
    for place in range(4, len(b), 3):
        digits, number = by_exponent.get(b[place], (0, 0))
        by_exponent[b[place]] = digits + sign * b[place + 1], number + sign * b[place + 2]
    special = (before + sign * more for before, more in zip(a[1:4], b[1:4], strict=True))
    parts = ((exponent, *by_exponent[exponent]) for exponent in sorted(by_exponent))
    return ("decimal", *special, *(one for part in parts if part[2] for one in part))


def _whole(plain: Sum, exact: Sum) -> Sum:
    """Return the sum of both; without the exact part if nothing is left of it, as if it had never been."""
    if exact in (NO_DECIMALS, NO_FRACTIONS):
        return plain
    if exact[0] == "decimal" and any(plain[1:FIXED]):
        raise _unlike("a float")
    return (*plain, exact)


def _unlike(other: str) -> TypeError:
    return TypeError(
        f"a Decimal can't be added to {other}, which is not exactly a Decimal; convert one of them, e.g. to "
        "Decimal(str(x)) or float(x)"
    )


def _apart(state: Sum) -> tuple[Sum, Sum | None]:
    return (state[:-1], tuple(state[-1])) if type(state[-1]) in _PARTS else (state, None)


def _decimal(whole: int, exact: Sum) -> Decimal:
    above, below, unknown = exact[1:4]
    if unknown or (above and below):
        return Decimal("NaN")
    if above or below:
        return Decimal("Infinity" if above else "-Infinity")
    found = Decimal(whole)
    for place in range(4, len(exact), 3):
        found = EXACTLY.add(found, EXACTLY.scaleb(Decimal(exact[place + 1]), exact[place]))
    return found


def _context(digits: int, traps: list[Any]) -> Context:
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=traps)


def _summed(whole: int, finite: int, terms: list[float]) -> tuple[int, list[float]]:
    """Return the sum of an int and of floats as an int and an expansion."""
    if not terms:
        return whole, terms
    try:
        expansion = _expansion([*terms])
    except OverflowError:
        # Terms may come to more than any float is, on their way too: those that large have no fraction, as an int has.
        whole += sum(int(term) for term in terms if abs(term) > LARGEST_EXACT)
        expansion = _expansion([term for term in terms if abs(term) <= LARGEST_EXACT])
    if expansion and not finite:
        # All floats are taken away again, and what is left of them as an int is taken off that.
        whole += int(sum(map(Fraction, expansion)))
        expansion = []
    return whole, expansion


def _expansion(terms: list[float]) -> list[float]:
    """Return the floats, each the nearest to the rest, that add up to `terms`, which are changed.

    They are Shewchuk's expansion, as in `math.fsum`.
    """
    # One term or two are most of what comes at a time where there are many keys.
    if len(terms) == 1:
        return terms if terms[0] else []
    if len(terms) == 2:
        # What rounding takes off is found by subtraction (Knuth's sum of two), where nothing overflows.
        one, other = terms
        rounded = one + other
        taken = rounded - one
        if math.isfinite(rest := (one - (rounded - taken)) + (other - taken)):
            return [rounded, rest] if rest else [rounded] if rounded else []
    # fsum() rounds the exact sum to the nearest float; with that taken off, the next one is what rounding has left.
    expansion: list[float] = []
    while rest := math.fsum(terms):
        expansion.append(rest)
        terms.append(-rest)
    return expansion
