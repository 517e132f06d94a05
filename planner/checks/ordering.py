"""Finds the operators whose results depend on an order of messages that the plan does not fix."""

from __future__ import annotations

from msgspec.structs import replace

from planner.model.graph import Graph
from planner.model.plan import OperatorPlan, Plan


def tell_order(plan: Plan, graph: Graph) -> Plan:
    """Return the plan in which each operator says what of it depends on an order that nothing fixes.

    The messages of a key come in one order only where they come from one partition, along one way that keeps it. Where
    several ways lead to an operator, several tasks write what is repartitioned, or calls overtake each other, any legal
    interleaving is as right as another: live it is that of the reading, on Spark that of event time, block by block.
    """
    factor = plan.options.factor
    tasks = {id: stage.partitions * factor for stage in plan.stages for id in stage.operators}
    in_order: dict[str, bool] = {}
    told: dict[str, str] = {}
    for id, spec in graph.specs.items():
        # What several tasks write into one partition comes in no fixed order.
        above = [in_order[one] and (not _is_cut(graph, one) or tasks[one] == 1) for one in graph.streams_into(id)]
        comes_in_order = all(above) and len(above) <= 1
        if spec.order_sensitive and not (comes_in_order and len(spec.parents) <= 1):
            told[id] = spec.by_order()
        # Emitting by event time restores an order, but not where the results themselves depend on an order that is
        # lost.
        in_order[id] = comes_in_order if id in told or not spec.restores_order else True
        in_order[id] = in_order[id] and spec.keeps_order
    return replace(plan, operators=tuple(replace(one, by_order=told.get(one.id, "")) for one in plan.operators))


def ordered_by_arrival(plan: Plan) -> list[OperatorPlan]:
    """Return the operators whose results depend on the order in which messages come.

    >>> scan = OperatorPlan(id="a", kind="scan", by_order="as it comes")
    >>> ordered_by_arrival(Plan(app="demo", operators=(scan,))) == [scan]
    True
    """
    return [one for one in plan.operators if one.by_order]


def _is_cut(graph: Graph, id: str) -> bool:
    return graph.specs[id].repartitions
