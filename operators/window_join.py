"""Joining what several streams have in one window: each value of one with each of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal

from operators.aggregations import Aggregation, collect
from operators.window import Window

How = Literal["inner", "left", "right", "outer"]
Sided = tuple[int, Any]
"""A value, after the number of the stream that it came from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJoin(Window):
    """A window over several streams, whose aggregation is told from which of its parents each value came."""

    sided: ClassVar[bool] = True

    @property
    def fold(self) -> None:  # type: ignore[override]
        """Nothing is grouped while it is read: that is for what one input feeds."""
        return


def joint(with_: Callable[..., Any], streams: int, how: How = "inner") -> Aggregation[Sided, list[Any]]:
    """Return `with_` of each choice of one value per stream.

    A stream without values has None there, if `how` lets it: in a "left" join any but the first, in a "right" join any
    but the last, in an "outer" one any; else there is nothing.

    >>> from operators.aggregations import over
    >>> over(joint(lambda a, b: (a, b), 2), [(0, "a"), (1, "x"), (0, "b")])
    [('a', 'x'), ('b', 'x')]
    >>> over(joint(lambda a, b: (a, b), 2, "left"), [(0, "a")])
    [('a', None)]
    """
    needed = {"inner": range(streams), "left": (0,), "right": (streams - 1,), "outer": ()}[how]
    held: Aggregation[Sided, list[Sided]] = collect()

    def finish(state: Any) -> list[Any]:
        sides: list[list[Any]] = [[] for _ in range(streams)]
        for number, value in state:
            sides[number].append(value)
        if not all(sides[number] for number in needed):
            return []
        return [with_(*values) for values in product(*(side or [None] for side in sides))]

    def remake(ready: Callable[[Any], Any]) -> Aggregation[Sided, list[Any]]:
        return joint(ready(with_), streams, how)

    return replace(held, name=f"{how} join of {streams}", finish=finish, remake=remake)
