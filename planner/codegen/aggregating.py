"""Writes the function that adds values to the accumulators of an aggregation, with what it reads off them in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from types import CodeType
from typing import Any, TypeVar

from operators.aggregations.aggregation import Aggregation, ByName, itself
from operators.state.keyed_state import is_plain
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
    return _adding(aggregation, _readings(aggregation))


def _readings(aggregation: Aggregation[V, R]) -> list[str]:
    """Return the expression that each part reads off `value`; "" where it takes values as they are."""
    return [_reading(part, number) for number, part in enumerate(aggregation.parts or (aggregation,))]


def _adding(aggregation: Aggregation[V, R], texts: list[str]) -> str:
    parts = aggregation.parts or (aggregation,)
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


def finishing(aggregation: Aggregation[Any, Any]) -> str:
    """Return the source of `finish(state)` for aggregations side by side; "" for a single one.

    >>> from operators.aggregations.aggregation import aggregate, count, mean
    >>> print(finishing(aggregate(dict, n=count(), mean=mean(len))))
    def finish(state):
        state0, state1, = state
        return into(n=state0, mean=finish1(state1))
    """
    gather = aggregation.gather
    if not isinstance(gather, ByName):
        return ""
    results = [
        f"state{number}" if part.finish is itself else f"finish{number}(state{number})"
        for number, part in enumerate(aggregation.parts)
    ]
    named = ", ".join(f"{name}={result}" for name, result in zip(gather.names, results, strict=True))
    states = "".join(f"state{number}, " for number in range(len(results)))
    return f"def finish(state):\n    {states}= state\n    return into({named})"


def compiled(aggregation: Aggregation[Any, Any]) -> Aggregation[Any, Any]:
    """Return an aggregation that adds, begins and finishes by the functions that are written for it."""
    parts = aggregation.parts or (aggregation,)
    changed: dict[str, Any] = {}
    texts = _readings(aggregation)
    if source := _adding(aggregation, texts):
        namespace: dict[str, Any] = {f"of{number}": part.of for number, part in enumerate(parts)}
        namespace |= {
            f"add{number}": part.add_read if text else part.add
            for number, (part, text) in enumerate(zip(parts, texts, strict=True))
        }
        # The text is the planner's own.
        exec(_code(source), namespace)
        changed["add"] = _or_told(namespace["add"], aggregation.add)
    if source := finishing(aggregation):
        assert isinstance(aggregation.gather, ByName)
        namespace = {f"finish{number}": part.finish for number, part in enumerate(parts)}
        namespace["into"] = aggregation.gather.function
        exec(_code(source), namespace)
        changed["finish"] = namespace["finish"]
    # What ours begin with is always the same, and nobody can change it in place.
    are_ours = all(one.remake is not None and one.keeps != "the user's" for one in aggregation.leaves())
    if aggregation.parts and are_ours and is_plain(aggregation.init()):
        changed["init"] = partial(itself, aggregation.init())
    return replace(aggregation, **changed)


def _or_told(add: Callable[[Any, list[Any]], Any], called: Callable[[Any, list[Any]], Any]) -> Callable[..., Any]:
    """Return an `add` that, where it fails, has the user's functions called, whose tracebacks have their own lines."""

    def add_or_tell(state: Any, values: list[Any]) -> Any:
        try:
            return add(state, values)
        except Exception:
            return called(state, values)

    return add_or_tell


def _reading(part: Aggregation[V, R], number: int) -> str:
    """Return the expression for what a part reads off `value`; "" where it takes values as they are."""
    if part.of is None or part.add_read is None or part.counts:
        return ""
    found = expression(part.of)
    return f"of{number}(value)" if found is None or len(found.parameters) != 1 else found.of(["value"])


@lru_cache(maxsize=256)
def _code(source: str) -> CodeType:
    return compile(source, "<aggregation>", "exec")
