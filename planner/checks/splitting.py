"""Finds the operators whose tasks can't be split by the keys of their messages, and refuses to split these."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from operators.core.base import Spec
from operators.deduplicate import OTHER_BYTES, Deduplicate
from operators.partition_by import Broadcast
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.plan import Plan, Unsplit
from planner.model.virtual_tasks import MOST_PARTS, wrong_factor

MOST_TASKS = 1 << 14
"""The tasks that split ones can come to: each has its reader and its operators, which take about a ms to make."""


class Refusal(NamedTuple):
    """An operator whose tasks can't be split: where the user wrote it, why, and what to write instead."""

    operator: str
    kind: str
    site: str
    wrong: str
    instead: str

    def __str__(self) -> str:
        return f"{self.kind} {self.operator!r} at {self.site}: {self.wrong}; write instead: {self.instead}"


def tell_unsplit(plan: Plan, graph: Graph) -> Plan:
    """Return the plan in which each operator says why its tasks can't be split, if they can't."""
    found = {id: why_whole(graph, id, spec) for id, spec in graph.specs.items()}
    return replace(plan, operators=tuple(replace(one, unsplit=found[one.id]) for one in plan.operators))


def splittable(plan: Plan) -> tuple[Refusal, ...]:
    """Return all that keeps the tasks of a plan from being split by keys; nothing where they can be.

    >>> from planner.model.plan import OperatorPlan
    >>> why = Unsplit("its state is its own", "keyed=True")
    >>> task = OperatorPlan(id="mine", kind="task", site="app.py:3", unsplit=why)
    >>> [str(one) for one in splittable(Plan(app="demo", operators=(task,)))]
    ["task 'mine' at app.py:3: its state is its own; write instead: keyed=True"]
    """
    told = [(one, one.unsplit) for one in plan.operators]
    return tuple(Refusal(one.id, one.kind, one.site, why.wrong, why.instead) for one, why in told if why is not None)


def whole_tasks(plan: Plan) -> int:
    """Return the number of tasks that there are where none is split."""
    return max((one.bases[-1] + 1 for one in plan.stages if one.bases), default=0)


def most_parts(plan: Plan) -> int:
    """Return the largest factor by which the tasks of a plan can be split."""
    most = MOST_TASKS // max(whole_tasks(plan), 1)
    return min(1 << max(most.bit_length() - 1, 0), MOST_PARTS)


def check_factor(plan: Plan, factor: int) -> None:
    """Refuse to split the tasks of a plan into so many parts each; raises PlanError.

    It tells of all operators that can't be split, or that the number is none by which tasks can be.
    """
    if wrong := wrong_factor(factor):
        raise PlanError(wrong)
    base, most = whole_tasks(plan), most_parts(plan)
    if factor > most:
        raise PlanError(
            f"{base} tasks in {factor} parts each are more than the {MOST_TASKS} that an application can have; write "
            f"instead: {most}"
        )
    refused = splittable(plan) if factor > 1 else ()
    if refused:
        each = "\n".join(map(str, refused))
        raise PlanError(f"the tasks of {plan.app!r} can't be split into {factor} parts each:\n{each}")


def why_whole(graph: Graph, id: str, spec: Spec) -> Unsplit | None:
    """Return why the tasks that an operator runs in can't be split by keys; None if they can."""
    why = spec.why_whole()
    if why is not None:
        return Unsplit(*why)
    # What every task has all of each part has all of, too: a foreign-key join only looks into that. All else would
    # emit what follows from one message once for each part.
    if id in graph.of(Broadcast) and any(id in graph.keyed_parents(child) for child in graph.children(id)):
        wrong = "each part of a task would read all of its messages, and emit what follows from them once more"
        return Unsplit(wrong, "app.table(..., broadcast=True) and a join with on=; or .partition_by(...)")
    # A key may take its serde from a table below, which the spec alone can't know.
    if id in graph.of(Deduplicate) and graph.key_serde(id) != graph.of(Deduplicate)[id].id_serde:
        return Unsplit(*OTHER_BYTES)
    return None
