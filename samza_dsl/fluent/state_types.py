"""The declared types of the state that a `process` keeps for a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from operators.core.base import Serde, Site
from planner.model.errors import refuse
from samza_dsl.fluent.checks import check_type, state_said


@dataclass(frozen=True)
class StateTypes:
    """The types of a key's state in a `process`: of `context.state`, and of the values in its lists and maps, by name.

    Each is a type, or the serde that stores the values; lists and maps that are not named hold anything.

    >>> StateTypes(int, lists={"last": float}).lists
    {'last': <class 'float'>}
    """

    state: object = None
    lists: Mapping[str, object] = field(default_factory=dict)
    maps: Mapping[str, object] = field(default_factory=dict)


class StateSerdes(TypedDict):
    """The fields of a `process` that say how its state is stored."""

    state: Serde | None
    lists: Mapping[str, Serde]
    maps: Mapping[str, Serde]


def serdes_of_state(site: Site, declared: object) -> StateSerdes:
    """Return the serdes of the state; refuses types that can't be stored."""
    types = declared if isinstance(declared, StateTypes) else StateTypes(declared)
    return {
        "state": state_said(site, "process", "state", types.state),
        "lists": _by_name(site, "lists", types.lists),
        "maps": _by_name(site, "maps", types.maps),
    }


def _by_name(site: Site, said: str, types: Mapping[str, object]) -> dict[str, Serde]:
    """Return the serdes of lists or maps by their names."""
    instead = f'StateTypes({said}={{"last": float}})'
    check_type(site, f"StateTypes({said}=...)", types, Mapping, instead)
    unsaid = [name for name, kind in types.items() if not isinstance(name, str) or kind is None]
    if unsaid:
        raise refuse(site, f"StateTypes({said}=...) says no type of the name {unsaid[0]!r}", instead)
    serdes = {name: state_said(site, "process", f"state: {said}", kind) for name, kind in types.items()}
    return {name: serde for name, serde in serdes.items() if serde is not None}
