"""The ids of operators: the user's, or derived from kind and origin, so that a later run finds the same again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from operators.core.base import Spec
from planner.model.errors import refuse

S = TypeVar("S", bound=Spec)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""The names that streams and stores, and so operators, may have."""


def identified(spec: S, known: Mapping[str, Spec]) -> S:
    """Return `spec` with its id, given those that came before; raises PlanError where it is taken or malformed.

    Ids are the user's, or derived from kind and origin: state and intermediate streams are found again by them, so
    they never come from a counter, except for stateless operators, which are only drawn.
    """
    id = spec.op_id or _derive(spec, known)
    _check_id(spec, id, known)
    return replace(spec, op_id=id)


def input_id(stream: str) -> str:
    """Return the id of what reads a stream.

    >>> input_id("orders-*")
    'orders-_'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", stream)


def _derive(spec: Spec, known: Mapping[str, Spec]) -> str:
    if spec.source:
        return input_id(spec.subject)
    subject = spec.subject or "-".join(_origins(spec))
    # NAME allows 200 characters; the rest is room for a number behind it.
    id = f"{spec.kind}-{subject}"[:180]
    # State and intermediate streams are found again by this id, and a number would depend on the order of the calls: a
    # second one of the same id is refused, not numbered.
    if spec.needs_id or id not in known:
        return id
    return next(f"{id}-{n}" for n in range(2, len(known) + 3) if f"{id}-{n}" not in known)


def _origins(spec: Spec) -> list[str]:
    """Return the nearest operators above with an id of their own: sources, repartitionings, stateful and async ones."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    above = list(reversed(spec.parents))
    while above:
        parent = above.pop()
        if id(parent) in seen:
            continue
        seen.add(id(parent))
        if parent.source or parent.needs_id or parent.asynchronous:
            found[parent.op_id or parent.kind] = None
        else:
            above += reversed(parent.parents)
    return list(found) if len(found) == 1 or not spec.looks_up else list(found)[:1]


def _check_id(spec: Spec, id: str, known: Mapping[str, Spec]) -> None:
    if not NAME.fullmatch(id):
        raise refuse(spec, f"the id {id!r} can't name a stream or a store", "letters, digits, '.', '_' and '-' only")
    if id not in known:
        return
    other = known[id]
    if spec.source:
        raise refuse(spec, f"{id!r} is already read at {other.site}", "use that stream twice; streams can be shared")
    raise refuse(
        spec,
        f"the id {id!r} is already that of the {other.kind} at {other.site}",
        f"a name of its own for the one that is new, such as {_named(spec)}; one that has run before keeps {id!r}, by "
        "which it finds its data again",
    )


def _named(spec: Spec) -> str:
    """Return how a user says the id of an operator: by the method that makes it, and not by the kind that this has."""
    method = spec.declares.partition("(")[0] or spec.kind
    return '.to_table("by-carrier")' if method == "to_table" else f'.{method}(..., op_id="by-carrier")'
