"""The event time up to which operators of a live run have fired at its cut, so that a back-fill fires no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from operators.core.base import MAX_TIMESTAMP
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.assembly.bindings import intermediate_of
from runtime.assembly.partitions import repartitions_into
from runtime.job.parameters import differences, noted_parameters, parameters_of
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.history import AtRest
from runtime.reading.watermarks import ProducerWatermarks, event_time


class Ceiling(NamedTuple):
    """The event time (ms) beyond which an operator of a task has fired nothing.

    Where it `is_torn`, some of what was due at the ms behind that has fired, and nobody knows which.
    """

    at: int
    is_torn: bool = False


class LiveCut:
    """The cut of a live run, as its plan and its checkpoints tell it."""

    def __init__(self, plan: Plan, graph: Graph, checkpoints: Mapping[str, Checkpoint]) -> None:
        self._plan, self._checkpoints = plan, checkpoints
        self._between = {
            stage.id: {intermediate_of(graph, spec) for spec in repartitions_into(stage, graph)}
            for stage in plan.stages
        }
        noted, now = noted_parameters(checkpoints) or {}, parameters_of(graph)
        self._timed = {id: words["event time"] for id, words in now.items() if "event time" in words}
        self._noted = {id: one.now.get("event time", "") for id, one in noted.items() if "event time" in one.now}
        # Where the time of an input is another one now, nobody can say how far the live run was in that.
        self._is_comparable = not any(
            id in noted and any(differences(noted[id].now, now[id])) for id in graph.inputs if id in now
        )

    def rests(self) -> dict[str, AtRest]:
        """Return how far event time was in partitions of inputs, and which were idle, by partition as "flights:3"."""
        found: dict[str, list[Position]] = defaultdict(list)
        for one in (one for checkpoint in self._checkpoints.values() for one in checkpoint.positions):
            if not one.producers:
                found[f"{one.stream}:{one.partition}"].append(one)
        return {
            place: AtRest(min(one.watermark for one in positions), all(one.idle for one in positions))
            for place, positions in found.items()
            if self._is_comparable
        }

    @property
    def left(self) -> frozenset[str]:
        """The operators that have something to write, though event time had come so far."""
        return frozenset(id for one in self._checkpoints.values() for id in one.due)

    def ceiling(self, task: int, operator: str) -> Ceiling | None:
        """Return how far an operator has fired in a task; None where that is as far as its records have come.

        Event time goes no further below its ceiling, and so one that does not go by it has none: a run in which nothing
        goes by event time tells its stages none, and what is new there would fire nothing of history.
        """
        checkpoint = self._checkpoints.get(self._plan.virtual(task).name)
        if checkpoint is None or not self._is_comparable:
            return None
        due = checkpoint.due.get(operator)
        if due is not None:
            return Ceiling(due.at - 1, due.is_begun)
        # One that is new, or goes by the time of other inputs now, has heard nothing that would tell how far it is.
        if operator not in self._timed or self._timed[operator] != self._noted.get(operator):
            return None
        # What is read of an input is read in the back-fill, too, and its time with it; another stage may have said more
        # than was heard at the cut.
        between = self._between[next(stage.id for stage in self._plan.stages if operator in stage.operators)]
        reached = event_time(_heard(one) for one in checkpoint.positions if one.stream in between)
        return Ceiling(reached) if reached < MAX_TIMESTAMP else None


def _heard(position: Position) -> tuple[int, bool]:
    """Return how far event time was by what was heard of the stages before, and whether all of them were idle."""
    told = ProducerWatermarks(position.producers, position.producers, position.idle, position.watermark)
    return told.value, told.is_idle
