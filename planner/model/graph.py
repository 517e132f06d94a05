"""The graph of what the user wrote: every spec under its stable id, with its children."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from operators.core.base import Serde, Spec
from operators.io import Input, TableInput
from operators.joins.table_join import TableJoin
from operators.joins.temporal_join import TemporalJoin

S = TypeVar("S", bound=Spec)
N = TypeVar("N", bound=Hashable)


@dataclass(frozen=True)
class Graph:
    """Specs by id, parents before children."""

    app: str
    specs: dict[str, Spec]

    def of(self, kind: type[S]) -> Mapping[str, S]:
        """Return the operators of one class, by id: where more is asked of a spec than the traits that all have."""
        # Kept, since rules ask for each operator: else planning would take the square of their number.
        if kind not in self._by_kind:
            self._by_kind[kind] = {id: spec for id, spec in self.specs.items() if isinstance(spec, kind)}
        return self._by_kind[kind]

    @cached_property
    def _by_kind(self) -> dict[type[Spec], dict[str, Any]]:
        return {}

    @property
    def inputs(self) -> Mapping[str, Input]:
        """All that is read, tables too."""
        return self.of(Input)

    @property
    def tables(self) -> Mapping[str, TableInput]:
        """The tables that are looked into."""
        return self.of(TableInput)

    @property
    def flowing(self) -> list[Input]:
        """The inputs from which messages flow: all but the tables that are looked into."""
        return [spec for spec in self.inputs.values() if not spec.looked_into]

    def children(self, id: str) -> list[str]:
        """Return the operators that read what `id` emits, in the order in which the user wrote them."""
        return self._children[id]

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {id: [] for id in self.specs}
        for id in self.specs:
            for parent in dict.fromkeys(self.parents(id)):  # a join of a stream with itself reads it once
                found[parent].append(id)
        return found

    def is_headed(self, id: str) -> bool:
        """Whether somebody below asks for the headers of what an operator hands on; else nobody carries them."""
        specs = self.specs
        return specs[id].carries_headers and any(specs[one].uses_headers for one in self.below(id))

    def below(self, id: str) -> set[str]:
        """Return every operator that messages from `id` may come to."""
        return reached(self._children.__getitem__, id)

    def above(self, id: str) -> set[str]:
        """Return every operator whose messages may come to `id`, in whatever form."""
        return reached(self.parents, id)

    @cached_property
    def stages(self) -> list[set[str]]:
        """The operators that hang together once the graph is cut below every repartitioning, and below tables."""
        stage_of: dict[str, set[str]] = {}
        for op_id, spec in self.specs.items():
            # A table alone makes no stage: it belongs to whoever looks into it.
            if spec.looked_into:
                continue
            stage_of.setdefault(op_id, {op_id})
            # All that reads one intermediate stream is one stage: each of its records is then read, and consumed, once.
            first, *others = (self.children(op_id) or [op_id]) if spec.repartitions else [op_id, *self.children(op_id)]
            for other in others:
                large, small = stage_of.setdefault(first, {first}), stage_of.setdefault(other, {other})
                if large is not small:
                    large, small = (small, large) if len(large) < len(small) else (large, small)
                    large |= small
                    stage_of |= dict.fromkeys(small, large)
        return [*{id(stage): stage for stage in stage_of.values()}.values()]

    def entries(self, stage: Collection[str]) -> list[str]:
        """Return the inputs, and the repartitionings, whose messages come into a stage from outside."""
        return [
            id
            for id, spec in self.specs.items()
            if (id in stage and spec.source)
            or (spec.repartitions and any(child in stage for child in self.children(id)))
        ]

    def timed_by(self, id: str) -> list[str]:
        """Return the inputs by which event time goes at an operator: those of its stage, and of stages before it."""
        inputs: set[str] = set()
        seen: set[str] = set()
        left = [id]
        while left:
            one = left.pop()
            stage = next(stage for stage in self.stages if one in stage)
            if one not in seen:
                seen |= stage
                entries = self.entries(stage)
                inputs |= {entry for entry in entries if entry in self.inputs}
                left += [entry for entry in entries if entry not in self.inputs]
        return [id for id in self.specs if id in inputs]

    def parents(self, id: str) -> list[str]:
        """Return the operators that `id` reads."""
        return [parent.op_id for parent in self.specs[id].parents if parent.op_id]

    def streams_into(self, id: str) -> list[str]:
        """Return the parents that send messages to `id`: all but the tables that it looks into."""
        return self._streams_into[id]

    @cached_property
    def _streams_into(self) -> dict[str, list[str]]:
        return {id: [one for one in self.parents(id) if not self.specs[one].looked_into] for id in self.specs}

    def keyed_parents(self, id: str) -> list[str]:
        """Return the parents whose keys decide where the state of `id` lies."""
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
        # Parents stand before children, so the keys of all parents are known.
        for id, spec in self.specs.items():
            above = [found[parent] for parent in self.streams_into(id)]
            found[id] = id if spec.gives_keys else None if None in above or not above else above[0]
        return found

    def key_serde(self, id: str) -> Serde | None:
        """Return the serde of the keys that `id` emits: declared, taken over from a table, or None for the default."""
        origin = self.keyed_by(id)
        if origin is None:
            return None
        spec = self.specs[origin]
        if spec.key is not None or spec.source:
            return spec.key
        if spec.repartitions and not spec.rekeys:
            return self.key_serde(self.streams_into(origin)[0])  # messages keep their keys, and so the bytes of these
        # Kept, since each task asks for it, and it goes through all operators.
        if origin not in self._keys_of_tables:
            self._keys_of_tables[origin] = next((join.table.key for join in self.key_joins(origin)), None)
        return self._keys_of_tables[origin]

    @cached_property
    def _keys_of_tables(self) -> dict[str, Serde | None]:
        return {}

    def key_serde_into(self, id: str) -> Serde | None:
        """Return the serde of the keys by which `id` keeps state, None for the default; a table's are its own."""
        above = self.streams_into(id)
        return self.key_serde(above[0] if above else id)

    def key_joins(self, id: str) -> Iterator[TableJoin | TemporalJoin]:
        """Yield the joins by message key with a partitioned table in the stage that `id` begins."""
        inside = {id}
        joins: dict[str, TableJoin | TemporalJoin] = {**self.of(TableJoin), **self.of(TemporalJoin)}
        for child, spec in self.specs.items():
            if not inside.isdisjoint(self.streams_into(child)):
                if not spec.repartitions:
                    inside.add(child)
                if spec.by_table_key:
                    yield joins[child]


def build(app: str, specs: Mapping[str, Spec]) -> Graph:
    """Link operators, given by id and parents first, to their parents.

    A table that is joined with others, and not only looked into, is a source of changes.
    """
    joined = {parent.op_id for spec in specs.values() if not spec.looks_up for parent in spec.parents}
    specs = {id: spec.changes() if id in joined else spec for id, spec in specs.items()}
    return Graph(app, specs)


def reached(following: Callable[[N], Collection[N]], start: N) -> set[N]:
    """Return all that comes behind a node; the node itself only where it is in a circle."""
    found: set[N] = set()
    left = [start]
    while left:
        new = {*following(left.pop())} - found
        found |= new
        left += new
    return found


def parents_first(parents: Mapping[N, Collection[N]], place: Callable[[N], Any]) -> list[N]:
    """Return the nodes of a graph without circles, each behind its parents, and those with smaller places first."""
    sorter = TopologicalSorter(parents)
    sorter.prepare()
    order: list[N] = []
    ready = [(place(node), node) for node in sorter.get_ready()]
    heapify(ready)
    while ready:
        _, node = heappop(ready)
        order.append(node)
        sorter.done(node)
        for next_one in sorter.get_ready():
            heappush(ready, (place(next_one), next_one))
    return order


def intermediate(app: str, id: str) -> str:
    """Return the name of the stream that a repartitioning writes."""
    return f"{app}-{id}"
