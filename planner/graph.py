"""What the user said, as a graph: every spec under its stable id, with its children."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import networkx

from operators.base import Serde, Spec
from operators.io import Input, SendTo, Table
from operators.partition_by import PartitionBy
from operators.table_join import TableJoin
from operators.temporal_join import TemporalJoin
from planner.errors import refuse

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Graph:
    """Specs by id, parents before children, and the networkx graph of ids between them."""

    app: str
    specs: dict[str, Spec]
    edges: networkx.DiGraph[str]

    def children(self, id: str) -> list[str]:
        """Return the operators that read what `id` emits, in the order in which the user wrote them."""
        return list(self.edges.successors(id))

    def below(self, id: str) -> set[str]:
        """Return every operator that messages from `id` may come to."""
        return set(networkx.descendants(self.edges, id))

    def parents(self, id: str) -> list[str]:
        """Return the operators that `id` reads."""
        return [parent.op_id for parent in self.specs[id].parents if parent.op_id]

    def streams_into(self, id: str) -> list[str]:
        """Return the parents that messages come from: all but the tables that are looked into."""
        return [parent for parent in self.parents(id) if not isinstance(self.specs[parent], Table)]

    def keyed_parents(self, id: str) -> list[str]:
        """Return the parents by whose keys `id` goes."""
        parents = self.streams_into(id)
        return parents[:1] if self.specs[id].keyed_by_first else parents

    def keyed_by(self, id: str) -> str | None:
        """Return the operator whose key the messages that `id` emits carry, or None when they carry none.

        Streams merged from several places are keyed by the first, if they are all keyed.
        """
        return self._keyed_by[id]

    @cached_property
    def _keyed_by(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for id, spec in self.specs.items():
            if isinstance(spec, PartitionBy):
                found[id] = id
            elif isinstance(spec, Input):
                found[id] = id if spec.key or spec.key_of else None
            else:
                above = [found[parent] for parent in self.streams_into(id)]
                found[id] = None if None in above or not above else above[0]
        return found

    def key_serde(self, id: str) -> Serde | None:
        """Return the serde of the keys that `id` emits: declared, taken over from a table, or None for the default."""
        origin = self.keyed_by(id)
        if origin is None:
            return None
        spec = self.specs[origin]
        assert isinstance(spec, Input | PartitionBy)
        if spec.key is not None or isinstance(spec, Input):
            return spec.key
        return next((join.table.key for join in self.key_joins(origin)), None)

    def key_joins(self, id: str) -> Iterator[TableJoin | TemporalJoin]:
        """Yield the joins by message key with a partitioned table in the stage that `id` begins."""
        inside = {id}
        for child, spec in self.specs.items():
            if not inside.isdisjoint(self.streams_into(child)):
                if not spec.repartitions:
                    inside.add(child)
                if isinstance(spec, TableJoin | TemporalJoin) and _is_by_key(spec):
                    yield spec


def _is_by_key(join: TableJoin | TemporalJoin) -> bool:
    return isinstance(join, TemporalJoin) or (join.on is None and not join.table.broadcast)


def identified(spec: Spec, known: Mapping[str, Spec]) -> Spec:
    """Return `spec` with its id, given those that came before; raises PlanError where it is taken or malformed.

    Ids are the user's, or derived from kind and origin: state and intermediate streams are found again by them, so
    they never come from a counter, except for stateless operators, which are only drawn.
    """
    id = spec.op_id or _derive(spec, known)
    _check_id(spec, id, known)
    return replace(spec, op_id=id)


def build(app: str, specs: Mapping[str, Spec]) -> Graph:
    """Link operators, given by id and parents first, to their parents.

    A table that is joined with others, and not only looked into, is a source of changes.
    """
    joined = {parent.op_id for spec in specs.values() if not isinstance(spec, TableJoin) for parent in spec.parents}
    specs = {id: spec.changes() if isinstance(spec, Table) and id in joined else spec for id, spec in specs.items()}
    edges: networkx.DiGraph[str] = networkx.DiGraph()
    for id, spec in specs.items():
        edges.add_node(id)
        edges.add_edges_from((parent.op_id or "", id) for parent in spec.parents)
    return Graph(app, dict(specs), edges)


def intermediate(app: str, id: str) -> str:
    """Return the name of the stream that a repartitioning writes."""
    return f"{app}-{id}"


def _derive(spec: Spec, known: Mapping[str, Spec]) -> str:
    if isinstance(spec, Input):
        return re.sub(r"[^A-Za-z0-9._-]", "_", spec.stream)
    subject = spec.output.stream if isinstance(spec, SendTo) else "-".join(_origins(spec))
    id = f"{spec.kind}-{subject}"[:180]
    if spec.needs_id or id not in known:
        return id
    return next(f"{id}-{n}" for n in range(2, len(known) + 3) if f"{id}-{n}" not in known)


def _origins(spec: Spec) -> list[str]:
    """The nearest operators above that have an id of their own: sources, repartitionings, stateful and async ones."""
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
    return list(found) if len(found) == 1 or not isinstance(spec, TableJoin) else list(found)[:1]


def _check_id(spec: Spec, id: str, known: Mapping[str, Spec]) -> None:
    if not NAME.fullmatch(id):
        raise refuse(spec, f"the id {id!r} can't name a stream or a store", "letters, digits, '.', '_' and '-' only")
    if id not in known:
        return
    other = known[id]
    if isinstance(spec, Input):
        raise refuse(spec, f"{id!r} is already read at {other.site}", "use that stream twice; streams can be shared")
    raise refuse(
        spec,
        f"the id {id!r} is already that of the {other.kind} at {other.site}",
        f'a name of its own, such as .{spec.kind}(..., op_id="by-carrier"), so that it finds its data again',
    )
