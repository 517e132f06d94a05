"""The window join of several streams: each value of one with each of the others in the same window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, TypeVar, cast

from operators.aggregations.aggregation import Aggregation, Ready, collect
from operators.core.base import Operator, OperatorContext, Serde
from operators.joins.match_counts import MatchCounting, Meetings
from operators.state.keyed_state import DECLARED_SIDES
from operators.windows.window import Window

R = TypeVar("R")

How = Literal["inner", "left", "right", "outer"]
Sided = tuple[int, Any]
"""A value, after the number of the stream that it came from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJoin(Window):
    """A window over several streams, whose aggregation is told from which of its parents each value came."""

    declares: ClassVar[str] = DECLARED_SIDES.replace("join(", "join_windows(")
    sided: ClassVar[bool] = True

    @property
    def fold(self) -> None:  # type: ignore[override]
        """None: values are grouped while they are read only for windows that one input feeds."""
        return

    def why_no_signs(self) -> str:
        """Return what its windows say, or that late panes can't be withdrawn."""
        no_pane = "with allowed_lateness_ms= a join that has emitted what is withdrawn then has no pane to say so"
        return super().why_no_signs() or (no_pane if self.allowed_lateness_ms and self.emit == "all" else "")

    def build(self, context: OperatorContext) -> Operator:
        """Return the operator of its windows, which counts what has met."""
        # The windows know nothing of sides: what has met is seen where a pane is finished.
        meetings = Meetings(0, context.keys.kind_of)
        aggregation = counting(context.functions["aggregation"], len(self.parents), meetings)
        operator = super().build(replace(context, functions={**context.functions, "aggregation": aggregation}))
        cast(MatchCounting, operator).meetings = meetings
        return operator


def counting(joined: Aggregation[Sided, R], streams: int, meetings: Meetings) -> Aggregation[Sided, R]:
    """Return a `joint` that also counts, per pane, values in windows where all streams meet, and in others."""
    finish = joined.finish

    def finished(state: list[Sided]) -> R:
        if len({number for number, _ in state}) == streams:
            meetings.count(len(state), 0)
        else:
            meetings.count(0, len(state))
        return finish(state)

    def remake(ready: Ready) -> Aggregation[Sided, R]:
        return counting(joined.made_of(ready), streams, meetings)

    return replace(joined, finish=finished, remake=remake)


def joint(
    with_: Callable[..., object], streams: int, how: How = "inner", state: tuple[Serde | None, ...] = ()
) -> Aggregation[Sided, list[object]]:
    """Return the aggregation that makes `with_` of each choice of one value per stream.

    A stream without values has None there, if `how` lets it: in a "left" join any but the first, in a "right" join any
    but the last, in an "outer" one any; else there is nothing. Of a stream whose serde is given values are kept as
    its bytes.

    >>> from operators.aggregations.aggregation import over
    >>> over(joint(lambda a, b: (a, b), 2), [(0, "a"), (1, "x"), (0, "b")])
    [('a', 'x'), ('b', 'x')]
    >>> over(joint(lambda a, b: (a, b), 2, "left"), [(0, "a")])
    [('a', None)]
    """
    needed = {"inner": range(streams), "left": (0,), "right": (streams - 1,), "outer": ()}[how]
    held: Aggregation[Sided, list[Any]] = collect()
    serdes = {number: serde for number, serde in enumerate(state) if serde is not None}
    collected = held.add

    def add(kept: list[Sided], values: list[Sided]) -> object:
        return collected(kept, [(n, serdes[n].encode(value) if n in serdes else value) for n, value in values])

    def finish(kept: list[Sided]) -> list[object]:
        sides: list[list[object]] = [[] for _ in range(streams)]
        for number, value in kept:
            sides[number].append(serdes[number].decode(value) if number in serdes else value)
        if not all(sides[number] for number in needed):
            return []
        return [with_(*values) for values in product(*(side or [None] for side in sides))]

    def remake(ready: Ready) -> Aggregation[Sided, list[object]]:
        return joint(ready(with_), streams, how, state)

    named = replace(held, name=f"{how} join of {streams}", finish=finish, remake=remake)
    # Declared serdes are part of the name, which is part of the meaning of the state: other bytes lie there.
    if not serdes:
        return named
    kept_by = ", ".join(type(serde).__qualname__ for serde in serdes.values())
    return replace(named, name=f"{named.name} kept by {kept_by}", add=add)
