"""The declared types of the state that a `process` keeps for a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from operators.core.base import Site
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


def serdes_of_state(site: Site, declared: object) -> dict[str, object]:
    """Return the serdes of the state; refuses types that can't be stored."""
    types = declared if isinstance(declared, StateTypes) else StateTypes(declared)
    found: dict[str, object] = {"state": state_said(site, "process", "state", types.state)}
    for said, by_name in (("lists", types.lists), ("maps", types.maps)):
        instead = f'StateTypes({said}={{"last": float}})'
        check_type(site, f"StateTypes({said}=...)", by_name, Mapping, instead)
        unsaid = [name for name, kind in by_name.items() if not isinstance(name, str) or kind is None]
        if unsaid:
            raise refuse(site, f"StateTypes({said}=...) says no type of the name {unsaid[0]!r}", instead)
        found[said] = {name: state_said(site, "process", f"state: {said}", kind) for name, kind in by_name.items()}
    return found
