"""Tells of each operator of a plan whether its functions are compiled into the loop, called, or reached row by row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from operators.core.base import Spec
from planner.codegen.folding import windows_at
from planner.codegen.fusion import bound
from planner.codegen.inlining import called, why_called
from planner.model.function_names import label_of
from planner.model.graph import Graph
from planner.model.plan import Plan, StagePlan

WRAPPED = "app.wrap(...) is to see each call of a function"
OFF = "Options(inline=False) says so"
BEFORE = "keys and times are read before the loop"
UNWRITTEN = "what it does with messages is more than an expression"


def to_text(plan: Plan, graph: Graph, wrapped: bool = False) -> str:
    """Return as text how each operator of each stage runs in a process of ours, and why it is not cheaper."""
    told = dict(ways(plan, graph, wrapped))
    width = max(map(len, told), default=0)
    lines = ["in one process"]
    for stage in plan.stages:
        lines += [f"  {stage.id}", *(f"    {id:<{width}}  {told[id]}" for id in stage.operators if id in told)]
    return "\n".join(lines)


def ways(plan: Plan, graph: Graph, wrapped: bool = False) -> Iterator[tuple[str, str]]:
    """Yield for each operator that does something to messages how it runs: compiled, called, or row by row."""
    why = WRAPPED if wrapped else "" if plan.options.inline else OFF
    for stage in plan.stages:
        for id in stage.operators:
            spec = graph.specs[id]
            if spec.asynchronous:
                yield id, "called: it is awaited, message by message"
            elif spec.stateful and not any(id == exit.id for segment in stage.segments for exit in segment.keyed):
                yield id, _beside_loops(plan, graph, spec)
            elif (functions := _in_loops(stage, spec)) is None and spec.source and spec.functions():
                yield id, f"called: {', '.join(map(label_of, spec.functions().values()))}: {BEFORE}"
            elif functions is None:
                continue
            elif functions:
                function = next(iter(functions))
                yield id, f"called: {label_of(function)}: {why or why_called(function) or UNWRITTEN}"
            else:
                yield id, "compiled"


def _in_loops(stage: StagePlan, spec: Spec) -> list[Callable[..., object]] | None:
    """Return the functions of an operator that the stage's loops call; None where it has no part in them."""
    id = spec.op_id or ""
    sources = [text for segment in stage.segments for text in (segment.source, segment.folding) if text]
    names = {bound(id, name): function for name, function in spec.functions().items()}
    own = [text for text in sources if any(re.search(rf"\b{name}\b", text) for name in names)]
    is_there = own or any(id in (*one.lines, *one.folding_lines, *one.inlined) for one in stage.segments)
    if not is_there or (spec.terminal and not names):
        return None
    return [function for name, function in names.items() if any(called(text, name) is not None for text in own)]


def _beside_loops(plan: Plan, graph: Graph, spec: Spec) -> str:
    """Return the words for an operator with state, which takes batches in beside the loops."""
    folding = {exit.id for stage in plan.stages for one in stage.segments if one.folding for exit in one.exits}
    if any(windows_at(graph, exit) is spec for exit in folding):
        return "compiled: it groups values in the loop that reads them"
    return f"compiled: {spec.groups}" if spec.groups else f"row by row: {spec.by_row}"
