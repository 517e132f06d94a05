"""The aggregations that windows compute, whose partial results can be kept, merged and finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial, update_wrapper
from functools import reduce as reduced
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_origin, overload

from operators.aggregations import exact_sums as sums
from operators.aggregations.identity import identity
from operators.aggregations.ranks import ABOVE, BELOW, FEW, NUMBERS, candidates, inserted, largest, ranked, smallest
from operators.core.sites import check_plain, mistake, takes

A = TypeVar("A")
V = TypeVar("V")
R = TypeVar("R")
T = TypeVar("T")
N = TypeVar("N", float, Decimal, Fraction)

Ready = Callable[[Any], Any]
"""Makes a user's function ready to be called in one task."""


class Code(NamedTuple):
    """The expressions that are written where an aggregation would be called, "" where it is called after all.

    All are of `{state}`, the accumulator, and may fall back on the `{call}`. `add` adds any values, `ints` those that
    are ints or bools, which it takes for ints, and `numbers` ints alone, or floats alone without NaN. What was read is
    the list `{read}`, which has a `{first}` and a `{last}`, `{number}` in all; `{total}`, `{most}` and `{least}` are
    the sum of numbers, the largest and the smallest.
    """

    add: str = ""
    ints: str = ""
    numbers: str = ""
    finish: str = ""


CALLED = Code()


@dataclass(frozen=True)
class Aggregation(Generic[V, R]):
    """An aggregation of values to a result; `add` takes a whole list of values, so that it can be as fast as C.

    `init` makes the empty accumulator, `merge` joins two, the earlier one first, `finish` makes the result. `remove`
    takes values away again that were added before, as if they had never been; None where that can't be done.
    Accumulators are values that a store can keep; `add`, `merge` and `remove` return a new one (or the first one given,
    changed). Where it `counts`, the accumulator is the number of values. One that is not `mergeable` can't be asked to
    merge. Where it `combines`, parts of the values may each be added to an `init()` of its own and merged in any order,
    with the same result. Of one of ours `of` is the function that reads a number or value off each value, and
    `add_read` adds what it has read, without any None, and leaves the list as it is; of several side by side `parts`
    are these, whose results `gather` takes. An accumulator `keeps` numbers of ours, a tuple of values, a value or None,
    or the user's own. `code` is what the planner may write in the place of calls, with the same results.

    >>> largest = Aggregation("largest", int, lambda m, values: max(m, *values), max, lambda m: m)
    >>> over(largest, [3, 1])
    3
    """

    name: str
    init: Callable[[], Any]
    add: Callable[[Any, list[V]], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], R]
    order_sensitive: bool = False
    remake: Callable[[Ready], Aggregation[V, R]] | None = None
    counts: bool = False
    remove: Callable[[Any, list[V]], Any] | None = None
    mergeable: bool = True
    combines: bool = False
    of: Callable[[Any], Any] | None = None
    add_read: Callable[[Any, list[Any]], Any] | None = None
    parts: tuple[Aggregation[Any, Any], ...] = ()
    gather: Callable[..., Any] | None = None
    keeps: Literal["numbers", "values", "a value", "the user's"] = "numbers"
    code: Code = field(default=CALLED, init=False)
    """It is not carried over by `replace`: who changes one of the functions has all of them called."""

    def written_as(self, code: Code) -> Aggregation[V, R]:
        """Return the same aggregation with the code that may be written in the place of its functions."""
        found = replace(self)
        object.__setattr__(found, "code", code)
        return found

    def made_of(self, ready: Ready) -> Aggregation[V, R]:
        """Return the same aggregation with the user's functions in it made ready by `ready`."""
        if self.remake is not None:
            return self.remake(ready)
        names = ("init", "add", "merge", "finish") + (() if self.remove is None else ("remove",))
        named = {name: ready(getattr(self, name)) for name in names}
        return replace(self, **named)

    @cached_property
    def functions(self) -> tuple[Callable[..., object], ...]:
        """The user's functions in it, which `made_of` makes ready."""
        found: list[Callable[..., object]] = []

        def seen(function: Callable[..., object]) -> Callable[..., object]:
            found.append(function)
            return function

        self.made_of(seen)
        return tuple(found)

    def leaves(self) -> Iterator[Aggregation[V, Any]]:
        """Yield the aggregations that it consists of, each of which has none side by side within."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def __str__(self) -> str:
        return self.name


def itself(value: Any) -> Any:
    """Return the value, as the result of an accumulator that is one."""
    return value


def count() -> Aggregation[Any, int]:
    """Count the values.

    >>> over(count(), ["a", "b"])
    2
    """
    return Aggregation(
        "count",
        int,
        lambda total, values: total + len(values),
        lambda a, b: a + b,
        itself,
        remake=lambda ready: count(),
        counts=True,
        remove=lambda total, values: total - len(values),
        combines=True,
    ).written_as(Code(add="{state} + {number}"))


def mean(of: Callable[[V], N | None]) -> Aggregation[V, N | None]:
    """Return the mean of a number read off each value; None is left out, and the mean of nothing is None.

    The sum is exact whatever the order of its terms, so the mean is the same however they were batched. (Shewchuk's
    expansions, as in `math.fsum`.) Of ints and floats it is a float; of Decimals, of which some may be ints, a Decimal,
    exact where it ends, else of 28 digits or as many as the sum has; of Fractions, and ints, a Fraction. A Decimal
    beside a float or a Fraction is a TypeError where it comes, as in Python.

    >>> over(mean(lambda v: v), [0.1] * 10)
    0.1
    """
    check_plain("mean(...)", of)

    def add_read(state: Any, numbers: list[Any]) -> Any:
        return (state[0] + len(numbers), *sums.plus(state[1:], numbers))

    def remove(state: Any, values: list[V]) -> Any:
        numbers: list[Any] = _read(of, values)
        return (state[0] - len(numbers), *sums.minus(state[1:], numbers))

    return Aggregation(
        "mean",
        lambda: (0, *sums.NOTHING),
        lambda state, values: add_read(state, _read(of, values)),
        lambda a, b: (a[0] + b[0], *sums.joined(a[1:], b[1:])),
        sums.mean_of,
        remake=lambda ready: mean(ready(of)),
        remove=remove,
        combines=True,
        of=of,
        add_read=add_read,
    ).written_as(
        # Without floats the mean is that of the sum of ints, which is the first number of a sum.
        Code(
            ints="({state}[0] + {number}, {state}[1] + {total}, *{state}[2:])",
            finish="{state}[1] / {state}[0] if {state}[0] and {state}[2:] == (0, 0, 0, 0) and "
            f"{-sums.LARGEST_EXACT} < {{state}}[1] < {sums.LARGEST_EXACT} else {{call}}",
        )
    )


def total(of: Callable[[V], N | None]) -> Aggregation[V, N]:
    """Return the sum of a number read off each value, exact as in `mean`: an int, a float, a Decimal or a Fraction.

    It is an int only where all are, and the sum of nothing is 0. NumPy's numbers count as the int or float they are.

    >>> over(total(lambda v: v), [1, 2, 3]), over(total(lambda v: v), [Decimal("0.10"), Decimal("0.20"), 1])
    (6, Decimal('1.30'))
    """
    check_plain("total(...)", of)

    return Aggregation(
        "total",
        lambda: sums.NOTHING,
        lambda state, values: sums.plus(state, _read(of, values)),
        sums.joined,
        sums.value_of,
        remake=lambda ready: total(ready(of)),
        remove=lambda state, values: sums.minus(state, _read(of, values)),
        combines=True,
        of=of,
        add_read=sums.plus,
    ).written_as(
        Code(
            ints="({state}[0] + {total}, *{state}[1:])",
            finish="{state}[0] if {state}[1:] == (0, 0, 0, 0) else {call}",
        )
    )


def maximum(of: Callable[[V], T | None]) -> Aggregation[V, T | None]:
    """Return the largest of what is read off each value; None is left out, and of nothing it is None.

    NaN is left out as well, and is the result only where there is nothing else. In a tuple it ranks below all others.

    >>> over(maximum(len), ["a", "abc", "ab"])
    3
    """
    code = Code(numbers=_EXTREME.replace("?", "{state} > {most} else {most}"))
    return _extreme("maximum", of, largest, lambda ready: maximum(ready(of)), code)


def minimum(of: Callable[[V], T | None]) -> Aggregation[V, T | None]:
    """Return the smallest of what is read off each value; None is left out, and of nothing it is None.

    NaN is left out as well, and is the result only where there is nothing else. In a tuple it ranks above all others.

    >>> over(minimum(len), ["ab", "abc"])
    2
    """
    code = Code(numbers=_EXTREME.replace("?", "{state} < {least} else {least}"))
    return _extreme("minimum", of, smallest, lambda ready: minimum(ready(of)), code)


def collect() -> Aggregation[V, list[V]]:
    """Return the values in the order in which they came.

    >>> over(collect(), [3, 1, 2])
    [3, 1, 2]
    """

    def add(state: Any, values: list[V]) -> Any:
        return (*state, *values)

    def remove(state: Any, values: list[V]) -> Any:
        # By identity and not by ==: Python takes 1 and True for equal, and would take the wrong one away.
        gone = Counter(map(identity, values))
        left = []
        for value in state:
            same = identity(value)
            if gone[same]:
                gone[same] -= 1
            else:
                left.append(value)
        if gone.total():
            raise ValueError("a value is to be taken away that was not added before")
        return tuple(left)

    return Aggregation(
        *("collect", tuple, add, add, list),
        order_sensitive=True,
        remake=lambda ready: collect(),
        remove=remove,
        keeps="values",
    ).written_as(Code(add="(*{state}, *{read})", finish="list({state})"))


@overload
def first() -> Aggregation[V, V]: ...
@overload
def first(of: Callable[[V], R | None]) -> Aggregation[V, R | None]: ...
def first(of: Callable[[V], Any] | None = None) -> Aggregation[V, Any]:
    """Return the value that came first, or the first that is read off the values and is not None.

    Where there is none, it is None. Which one comes first is a matter of arrival, not of event time.

    >>> over(first(), ["b", "a", "c"]), over(first(lambda text: text or None), ["", "a", "c"])
    ('b', 'a')
    """
    remake = lambda ready, of: first(ready(of)) if of else first()  # noqa: E731
    return _by_arrival("first", of, 0, lambda a, b: a or b, remake, "{state} or ({first},)")


@overload
def last() -> Aggregation[V, V]: ...
@overload
def last(of: Callable[[V], R | None]) -> Aggregation[V, R | None]: ...
def last(of: Callable[[V], Any] | None = None) -> Aggregation[V, Any]:
    """Return the value that came last, or the last that is read off the values and is not None.

    Where there is none, it is None. Which one comes last is a matter of arrival, not of event time.

    >>> over(last(), ["b", "a", "c"]), over(last(lambda text: text or None), ["a", "b", ""])
    ('c', 'b')
    """
    remake = lambda ready, of: last(ready(of)) if of else last()  # noqa: E731
    return _by_arrival("last", of, -1, lambda a, b: b or a, remake, "({last},)")


def top_k(k: int, by: Callable[[V], Any], then: Callable[[V], Any] | None = None) -> Aggregation[V, list[V]]:
    """Return the `k` values for which `by` is largest, largest first; ties go to the smallest `then`.

    Without `then`, ties go to what came first, which depends on the order of arrival. Values for which `by` is NaN or
    None come after all others, and so do those for which `then` is, in a tie. Raises ValueError when k < 1.

    >>> over(top_k(2, by=lambda pair: pair[1], then=lambda pair: pair[0]), [("c", 1), ("b", 2), ("a", 1)])
    [('b', 2), ('a', 1)]
    """
    if type(k) is not int or k < 1:
        raise mistake(f"top_k({k!r}, ...) is not a whole number of at least 1", "top_k(10, by=...)")
    check_plain("top_k(by=...)", by)
    if then is not None:
        check_plain("top_k(then=...)", then)

    def first(held: Sequence[V], more: Sequence[V]) -> tuple[V, ...]:
        # A few find their places among those held by fewer looks than to rank all anew.
        if held and len(more) * 2 <= len(held):
            with_more = inserted(held, more, by, k, tied=then is None)
            if with_more is not None:
                return tuple(with_more)
        values = [*held, *more] if held else more
        ranks = [*map(by, values)]
        # The sum clears most ranks at the speed of C; it is asked here since a call more is felt with so few values.
        try:
            whole = sum(ranks)
        except (TypeError, ArithmeticError):
            whole = None
        if whole != whole or type(whole) not in NUMBERS:
            ranks = ranked(ranks, BELOW)
        # sorted() asks each value for its key once, in order, so the ranks, which are there already, are handed out one
        # by one. For few values that is faster than to pick candidates first.
        if then is None and len(ranks) <= FEW:
            return tuple(sorted(values, key=partial(next, iter(ranks)), reverse=True)[:k])
        places = candidates(k, ranks, len(held))
        if then is not None:
            # Sorted by the second criterion first: sort is stable, so it stays where the first one ties.
            ties = ranked([then(values[place]) for place in places], ABOVE)
            places = [places[one] for one in sorted(range(len(places)), key=ties.__getitem__)]
        return tuple(values[place] for place in sorted(places, key=ranks.__getitem__, reverse=True)[:k])

    return Aggregation(
        f"top {k}",
        tuple,
        first,
        first,
        list,
        order_sensitive=then is None,
        combines=then is not None,
        remake=lambda ready: top_k(k, ready(by), None if then is None else ready(then)),
        keeps="values",
    )


def reduce(function: Callable[[V, V], V], commutative: bool = False) -> Aggregation[V, V]:
    """Combine the values two by two, from the first on, as `functools.reduce` does; of nothing it is None.

    Where windows merge, it is given two results, the earlier one first, so it has to be associative. It counts as
    order-sensitive unless you say that it is `commutative`, too.

    >>> over(reduce(lambda a, b: a + b), ["a", "b", "c"])
    'abc'
    """
    check_plain("reduce(...)", function, 2)

    def add(state: Any, values: list[V]) -> Any:
        return (reduced(function, (*state, *values)),) if values else state

    return Aggregation(
        "reduce",
        tuple,
        add,
        add,
        _only,
        order_sensitive=not commutative,
        remake=lambda ready: reduce(ready(function), commutative),
        keeps="values",
    )


@overload
def fold(
    init: Callable[[], A],
    add: Callable[[A, V], A],
    merge: Callable[[A, A], A] | None = None,
    *,
    remove: Callable[[A, V], A] | None = None,
) -> Aggregation[V, A]: ...
@overload
def fold(
    init: Callable[[], A],
    add: Callable[[A, V], A],
    merge: Callable[[A, A], A] | None = None,
    *,
    finish: Callable[[A], R],
    remove: Callable[[A, V], A] | None = None,
) -> Aggregation[V, R]: ...
def fold(
    init: Callable[[], Any],
    add: Callable[[Any, V], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    finish: Callable[[Any], Any] = itself,
    remove: Callable[[Any, V], Any] | None = None,
) -> Aggregation[V, Any]:
    """Fold the values into an accumulator of your own: `add(accumulator, value)` returns the next one.

    It counts as order-sensitive unless you give `merge(a, b)`, by which you say that the order does not matter.
    `remove(accumulator, value)` takes a value away again that was added: what it returns is as if it had never been.

    >>> over(fold(str, lambda text, letter: text + letter), ["a", "b"])
    'ab'
    """
    check_plain("fold(init=...)", init, 0)
    check_plain("fold(add=...)", add, 2)
    check_plain("fold(finish=...)", finish)
    if merge is not None:
        check_plain("fold(merge=...)", merge, 2)
    if remove is not None:
        check_plain("fold(remove=...)", remove, 2)

    def by_one(change: Callable[[Any, V], Any]) -> Callable[[Any, list[V]], Any]:
        def change_by_all(state: Any, values: list[V]) -> Any:
            for value in values:
                state = change(state, value)
            return state

        return change_by_all

    def remake(ready: Ready) -> Aggregation[V, Any]:
        finished = finish if finish is itself else ready(finish)
        merged, removed = (None if one is None else ready(one) for one in (merge, remove))
        return fold(ready(init), ready(add), merged, finish=finished, remove=removed)

    return Aggregation(
        "fold",
        init,
        by_one(add),
        merge or _no_merge,
        finish,
        order_sensitive=merge is None,
        remake=remake,
        remove=None if remove is None else by_one(remove),
        mergeable=merge is not None,
        keeps="the user's",
    )


def aggregate(into: Callable[..., R], **parts: Aggregation[V, Any]) -> Aggregation[V, R]:
    """Compute several aggregations at once and hand them, by name, to `into`: a Struct, a dataclass, `dict`.

    Raises ValueError without any part.

    >>> over(aggregate(dict, n=count(), longest=maximum(len)), ["a", "bcd"])
    {'n': 2, 'longest': 3}
    """
    if not parts:
        raise mistake("aggregate(...) has no named aggregation", "aggregate(Stats, n=count())")
    for name, part in parts.items():
        if not isinstance(part, Aggregation):
            raise mistake(f"aggregate({name}=...) got {part!r}, which is no aggregation", f"{name}=count()")
    if not takes(into, 0, parts):
        raise mistake(f"aggregate(...) can't make a {into!r} of {', '.join(parts)}", "the names that it takes")
    return _side_by_side(parts, ByName(into, tuple(parts)))


def over(aggregation: Aggregation[V, R], values: list[V]) -> R:
    """Return the result of an aggregation over values.

    >>> over(count(), [1, 2, 3])
    3
    """
    return aggregation.finish(aggregation.add(aggregation.init(), values))


def _read(of: Callable[[V], Any], values: list[V]) -> list[Any]:
    return [one for one in map(of, values) if one is not None]


def _only(state: tuple[R, ...]) -> R | None:
    return state[0] if state else None


def _by_arrival(
    name: str,
    of: Callable[[V], Any] | None,
    place: int,
    merge: Callable[[Any, Any], Any],
    remake: Callable[[Ready, Callable[[V], Any] | None], Aggregation[V, Any]],
    adding: str,
) -> Aggregation[V, Any]:
    if of is not None:
        check_plain(f"{name}(...)", of)

    def add_read(state: Any, found: list[Any]) -> Any:
        return merge(state, (found[place],)) if found else state

    def add(state: Any, values: list[V]) -> Any:
        return add_read(state, values if of is None else _read(of, values))

    how: dict[str, Any] = {
        "order_sensitive": True,
        "remake": lambda ready: remake(ready, of),
        "of": of,
        "add_read": None if of is None else add_read,
        "keeps": "values",
    }
    code = Code(add=adding, finish="{state}[0] if {state} else None")
    return Aggregation(name, tuple, add, merge, _only, **how).written_as(code)


_EXTREME = "({state} if {state} is not None and ?) if type({state}) in NUMBERS else {call}"
"""What is new stays where it is equal; an accumulator of another type than numbers have is compared by the call."""


def _extreme(
    name: str,
    of: Callable[[V], Any],
    best: Callable[[list[Any]], Any],
    remake: Callable[[Ready], Aggregation[V, Any]],
    code: Code,
) -> Aggregation[V, Any]:
    check_plain(f"{name}(...)", of)

    def merge(a: Any, b: Any) -> Any:
        return b if a is None else a if b is None else best([a, b])

    def add_read(state: Any, found: list[Any]) -> Any:
        # What is new comes first: of values that are equal and not the same it is the one that stays.
        return merge(best(found), state) if found else state

    def add(state: Any, values: list[V]) -> Any:
        return add_read(state, _read(of, values))

    how: dict[str, Any] = {"remake": remake, "combines": True, "of": of, "add_read": add_read, "keeps": "a value"}
    return Aggregation(name, lambda: None, add, merge, itself, **how).written_as(code)


class ByName:
    """A function that is called with results in order, and hands them on by name."""

    def __init__(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        update_wrapper(self, function, updated=())
        self.function = function
        self.names = names

    def __call__(self, *results: Any) -> Any:
        return self.function(**dict(zip(self.names, results, strict=True)))

    def open(self, context: Any) -> Any:
        """Open the function, if it is an object to be opened."""
        return self.function.open(context) if hasattr(self.function, "open") else None

    def close(self) -> Any:
        """Close it, if it is an object to be closed."""
        return self.function.close() if hasattr(self.function, "close") else None


def _is_class(function: Any) -> bool:
    """Whether it is a class, such as `dict[str, int]`, and no function of the user's, to be opened and wrapped."""
    return isinstance(get_origin(function) or function, type)


def _side_by_side(parts: Mapping[str, Aggregation[V, Any]], gather: Callable[..., R]) -> Aggregation[V, R]:
    each = tuple(parts.values())
    removes = [part.remove for part in each if part.remove is not None]

    def remake(ready: Ready) -> Aggregation[V, R]:
        made = {name: part.made_of(ready) for name, part in parts.items()}
        return _side_by_side(made, gather if _is_class(getattr(gather, "function", None)) else ready(gather))

    def remove(state: Any, values: list[V]) -> Any:
        return tuple(take_away(one, values) for take_away, one in zip(removes, state, strict=True))

    return Aggregation(
        ", ".join(f"{name}={part}" for name, part in parts.items()),
        lambda: tuple(part.init() for part in each),
        lambda state, values: tuple(part.add(one, values) for part, one in zip(each, state, strict=True)),
        lambda a, b: tuple(part.merge(one, other) for part, one, other in zip(each, a, b, strict=True)),
        lambda state: gather(*(part.finish(one) for part, one in zip(each, state, strict=True))),
        order_sensitive=any(part.order_sensitive for part in each),
        remake=remake,
        remove=remove if len(removes) == len(each) else None,
        mergeable=all(part.mergeable for part in each),
        combines=all(part.combines for part in each),
        parts=each,
        gather=gather,
    )


def _no_merge(a: Any, b: Any) -> Any:
    raise ValueError("this fold has no merge=; give one, to say how two accumulators become one")
