"""The part of an application that computes the state of some of its operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from operators.core.base import Spec
from operators.core.policies import fail
from operators.io import SinkCall
from operators.stateless import Filter
from planner.model.graph import Graph, parents_first
from planner.model.plan import Plan


def part_of(graph: Graph, plan: Plan, operators: Collection[str]) -> Graph:
    """Return the part of a planned application that computes the state of some operators: these, and all above them.

    Event time is there what it is in the whole: where an input, or a stage, holds it back that does not lead to these
    operators, it is read as well, and its messages are dropped before any function of the user's sees them.
    """
    return _GrowingPart(graph, plan, operators).graph()


class _GrowingPart:
    """A part that grows by what holds back its event time."""

    def __init__(self, graph: Graph, plan: Plan, operators: Collection[str]) -> None:
        self._graph, self._plan = graph, plan
        needed = {*operators}.union(*(graph.above(id) for id in operators))
        # The arms of a branch lie in one function with the choice among them.
        needed |= {child for id in [*needed] if graph.specs[id].splits for child in graph.children(id)}
        self._specs = {id: spec for id, spec in graph.specs.items() if id in needed}
        self._ends: dict[str, dict[str, Spec]] = defaultdict(dict)
        """By stage, what nobody reads."""
        self._followed: set[str] = set()
        self._apart: list[set[str]] = []
        """The stages of the part before it has what holds back their event time."""

    def graph(self) -> Graph:
        """Return it as a graph."""
        needed = [*self._specs]
        if any(self._specs[id].event_time for id in needed):
            self._apart = self._linked().stages
            for id in needed:
                self._follow(self._plan.operator(id).stage)
        read = {parent for spec in self._specs.values() for parent in _parents(spec)}
        known = {id for ends in self._ends.values() for id in ends}
        for id, spec in self._specs.items():
            if id not in read | known and not (spec.terminal or spec.arm or spec.looked_into):
                self._ends[self._plan.operator(id).stage][id] = spec
        for stage, ends in ((stage, ends) for stage, ends in self._ends.items() if ends):
            id = f"{stage}.unheard"
            assert id not in self._specs, "no operator of a user's has such an id"
            self._specs[id] = _Unheard(parents=tuple(ends.values()), op_id=id, function=_nothing)
        return self._linked()

    def _linked(self) -> Graph:
        parents = {id: _parents(spec) for id, spec in self._specs.items()}
        place = {id: number for number, id in enumerate(self._graph.specs)}
        order = parents_first(parents, lambda id: (place.get(id, len(place)), id))
        return Graph(self._graph.app, {id: self._specs[id] for id in order})

    def _follow(self, stage: str) -> None:
        """Take in all that holds back the event time of a stage, in one stage of the part."""
        if stage in self._followed or not stage:
            return
        self._followed.add(stage)
        entries, ends = self._entries(stage), self._ends[stage]
        among = {*self._plan.stage(stage).operators}
        parts = sum(not among.isdisjoint(one) for one in self._apart)
        for entry in entries:
            spec = self._graph.specs[entry]
            is_there = entry in self._specs
            if spec.repartitions and not is_there:
                above = self._plan.operator(entry).stage
                self._follow(above)
                # It tells how far event time is, and hands nothing on.
                spec = replace(spec, parents=(self._silent(self._entries(above)[0]),))
                self._specs[entry] = ends[entry] = spec
            elif not is_there or parts > 1 or (self._is_timed(entry) and not self._is_timed(entry, self._specs)):
                ends[entry + _SILENT] = self._silent(entry)

    def _silent(self, entry: str) -> Spec:
        spec = self._specs.setdefault(entry, self._graph.specs[entry])
        # Where nothing below an input goes by event time, it has none, in the whole as in the part.
        kind = _Silent if spec.source and self._is_timed(entry) else Filter
        silent = kind(parents=(spec,), op_id=entry + _SILENT, site=spec.site, function=_nothing, on_error=fail)
        found: Spec = self._specs.setdefault(entry + _SILENT, silent)
        return found

    def _is_timed(self, entry: str, among: Collection[str] = ()) -> bool:
        """Whether something below an entry goes by event time, among all operators or these."""
        specs = self._graph.specs
        return any(specs[id].event_time for id in self._graph.below(entry) if not among or id in among)

    def _entries(self, stage: str) -> list[str]:
        return self._graph.entries({*self._plan.stage(stage).operators})


_SILENT = ".silent"
"""Ends the id of what drops the messages of an input that is read for its event time alone."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Silent(Filter):
    """Drop all messages of an input whose event time counts."""

    event_time: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class _Unheard(SinkCall):
    """Take what was emitted by the live run already, and do nothing with it."""

    keyed_by_first: ClassVar[bool] = True
    takes_signs: ClassVar[bool] = True


def _nothing(value: object) -> None:
    """Do nothing with a message; a filter by it lets none through."""


def _parents(spec: Spec) -> list[str]:
    return [parent.op_id for parent in spec.parents if parent.op_id]
