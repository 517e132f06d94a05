"""Refusal of bindings by which an output would lie where an input, another output or a stream between stages does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeGuard

from planner.model.graph import Graph
from planner.model.plan import Role
from planner.passes import streams_of
from runtime.model.errors import SamzaError
from runtime.ports.connectors import ConnectedSink
from runtime.systems.connectors.schemes import is_connected
from runtime.systems.files.csv_files import CsvFiles
from runtime.systems.files.places.locations import is_remote, local_path
from runtime.systems.files.places.tables import into_table, table_of
from runtime.systems.kafka.client.topic import topic_of

ANOTHER = "stream:"
"""Begins what an output is bound to that is written to another stream of the environment."""
READ, RESULTS = ("input", "table"), ("output", "dead_letter")
ROLES = {"intermediate": "intermediate stream", "dead_letter": "stream of dead letters"}


def is_another(what: object) -> TypeGuard[str]:
    """Whether an output is bound to another stream of the environment."""
    return isinstance(what, str) and what.startswith(ANOTHER)


class StreamPlace(NamedTuple):
    """The place of a stream: a `path`, or what else `identifies` it; several outputs may be added to a shared one."""

    shown: str
    identifies: object
    path: Path | None = None
    is_shared: bool = True

    def has_inside(self, other: StreamPlace) -> bool:
        """Whether another place is this one, or a file in this folder."""
        if self.path is None or other.path is None:
            return self.identifies == other.identifies
        return other.path.is_relative_to(self.path)


def check_distinct(graph: Graph, bind: Mapping[str, object]) -> None:
    """Raise SamzaError where streams that differ come to lie at one place; by name the planner has refused it.

    Several outputs may be written to one stream, topic or sink that others have made, but not to one file: each cuts it
    back to what it had itself at the last commit, and so loses what the other has written.
    """
    found = dict(named for spec in graph.specs.values() for named in streams_of(graph, spec))
    places = {name: _place(name, role, bind) for name, role in found.items()}
    for one, other in product([name for name in bind if name in found], found):
        if one == other:
            continue
        # An intermediate stream counts as one that is written, and is shared with none.
        first, then = (one, other) if found[one] in READ else (other, one)
        if found[then] in READ:
            continue
        if found[first] in READ:
            meet = places[first].has_inside(places[then])
        else:
            meet = places[first].identifies == places[then].identifies
            meet = meet and not (places[then].is_shared and found[first] == found[then])
        if meet:
            raise _shared(graph.app, places[then].shown, (first, found[first]), (then, found[then]), bind)


def _place(name: str, role: Role, bind: Mapping[str, object]) -> StreamPlace:
    what = bind.get(name) if role != "intermediate" else None
    if what is None or is_another(what):
        stream = name if what is None else what.removeprefix(ANOTHER)
        return StreamPlace(f"the stream {stream!r}", ("stream", stream))
    if (topic := topic_of(what)) is not None:
        return StreamPlace(topic.address, ("topic", topic.address))
    if is_connected(what):
        return StreamPlace(what, ("connector", what))
    if isinstance(what, str) and (table := table_of(what.partition("?")[0])) is not None:
        return StreamPlace(str(table), table, is_shared=False)
    into = into_table(what) if role in RESULTS else None
    if into is not None and into.name is not None:
        return StreamPlace(str(into), into.name, is_shared=False)
    said = into.folder if into is not None else what.path if isinstance(what, CsvFiles) else what
    if isinstance(said, str | Path) and not is_remote(said):
        path = local_path(said).resolve()
        return StreamPlace(str(said), path, path, is_shared=False)
    # By identity: two lists that are equal are two.
    return StreamPlace(f"the same {type(what).__name__}", id(what), is_shared=isinstance(what, ConnectedSink))


def _shared(
    app: str, shown: str, one: tuple[str, Role], other: tuple[str, Role], bind: Mapping[str, object]
) -> SamzaError:
    if one[1] in READ:
        why = "it would feed itself"
    elif "intermediate" in (one[1], other[1]):
        why = "stages would read there what no stage has handed on"
    else:
        why = "each would cut it back to its own" if one[1] == other[1] else "letters would pass for results"
    both = " and ".join(f"the {ROLES.get(role, role)} {name!r}" for name, role in (one, other))
    moved = other[0] if other[0] in bind else one[0]
    return SamzaError(f"{app}: {both} would both lie in {shown}: {why}; bind {moved!r} to another place")
