"""Writes the function that adds values to the accumulators of an aggregation, with what it reads off them in it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import CodeType
from typing import Any, TypeVar

from operators.aggregations.aggregation import Aggregation
from planner.codegen.inlining import expression

V = TypeVar("V")
R = TypeVar("R")


def written(aggregation: Aggregation[V, R]) -> str:
    """Return the source of `add(state, values)` for an aggregation; "" where it would be no other than its own.

    What several aggregations side by side read by the same expression is read once, and written in the place of a call.

    >>> from operators.aggregations.aggregation import aggregate, count, maximum, mean
    >>> print(written(aggregate(dict, n=count(), mean=mean(lambda v: v[0]), most=maximum(lambda pair: pair[0]))))
    def add(state, values):
        state0, state1, state2 = state
        read1 = [read for value in values if (read := value[0]) is not None]
        return state0 + len(values), add1(state1, read1), add2(state2, read1)
    """
    parts = aggregation.parts or (aggregation,)
    texts = [_reading(part, number) for number, part in enumerate(parts)]
    if not any(text and not text.startswith("of") for text in texts):
        return ""
    lines = ["def add(state, values):"]
    if aggregation.parts:
        lines.append(
            f"    {', '.join(f'state{number}' for number in range(len(parts)))}{',' * (len(parts) == 1)} = state"
        )
    else:
        lines.append("    state0 = state")
    read: dict[str, str] = {}
    added = []
    for number, (part, text) in enumerate(zip(parts, texts, strict=True)):
        if part.counts:
            added.append(f"state{number} + len(values)")
        elif not text:
            added.append(f"add{number}(state{number}, values)")
        else:
            if text not in read:
                read[text] = f"read{number}"
                lines.append(f"    read{number} = [read for value in values if (read := {text}) is not None]")
            added.append(f"add{number}(state{number}, {read[text]})")
    lines.append(f"    return {', '.join(added)}{',' * bool(aggregation.parts and len(parts) == 1)}")
    return "\n".join(lines)


def compiled(aggregation: Aggregation[V, R]) -> Aggregation[V, R]:
    """Return an aggregation that adds by the function that is `written` for it."""
    source = written(aggregation)
    if not source:
        return aggregation
    parts = aggregation.parts or (aggregation,)
    texts = [_reading(part, number) for number, part in enumerate(parts)]
    namespace: dict[str, Any] = {f"of{number}": part.of for number, part in enumerate(parts)}
    namespace |= {
        f"add{number}": part.add_read if text else part.add
        for number, (part, text) in enumerate(zip(parts, texts, strict=True))
    }
    # The text is the planner's own.
    exec(_code(source), namespace)
    add, called = namespace["add"], aggregation.add

    def add_or_tell(state: object, values: list[V]) -> object:
        try:
            return add(state, values)
        except Exception:
            return called(state, values)  # whose traceback has the user's own line

    return replace(aggregation, add=add_or_tell)


def _reading(part: Aggregation[V, R], number: int) -> str:
    """Return the expression for what a part reads off `value`; "" where it takes values as they are."""
    if part.of is None or part.add_read is None or part.counts:
        return ""
    found = expression(part.of)
    return f"of{number}(value)" if found is None or len(found.parameters) != 1 else found.of(["value"])


@lru_cache(maxsize=256)
def _code(source: str) -> CodeType:
    return compile(source, "<aggregation>", "exec")
