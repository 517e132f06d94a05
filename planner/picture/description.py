"""Describes a plan in words and in the languages of other tools: indented text, Mermaid, DOT, a networkx graph."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from planner.model.flow import (
    counted,
    edges,
    family,
    place,
    plain,
    role,
    shorten,
    stages,
    stores,
    stream_node,
    traits,
)
from planner.model.plan import OperatorPlan, Plan, StreamPlan
from planner.picture.palette import daylight

if TYPE_CHECKING:
    import networkx

LABEL_LENGTH = 56
_MERMAID_SHAPES = {
    "source": ("[", "]"),
    "stateless": ("(", ")"),
    "async": ("{{", "}}"),
    "stateful": ("[(", ")]"),
    "terminal": ("[/", "/]"),
    "input": ("([", "])"),
    "table": ("[(", ")]"),
    "intermediate": ("[[", "]]"),
    "output": ("([", "])"),
    "dead_letter": (">", "]"),
}
_DOT_SHAPES = {
    "source": "box",
    "stateless": "box",
    "async": "hexagon",
    "stateful": "box3d",
    "terminal": "rarrow",
    "input": "cds",
    "table": "cylinder",
    "intermediate": "component",
    "output": "cds",
    "dead_letter": "note",
}


def to_text(plan: Plan) -> str:
    """Return the plan as text for a terminal: stages in order, operators as a tree that forks where the flow does.

    >>> from planner.model.plan import StagePlan
    >>> source = OperatorPlan(id="input-flights", kind="input", label="flights", site="app.py:3", stage="stage-1")
    >>> stage = StagePlan(id="stage-1", inputs=("flights",), operators=("input-flights",), partitions=4)
    >>> flights = StreamPlan(name="flights", role="input", partitions=4, read_by=("input-flights",))
    >>> print(to_text(Plan(app="demo", operators=(source,), stages=(stage,), streams=(flights,))))
    demo · exactly once · 1 stage, 1 operator, 1 stream, 0 stores
    <BLANKLINE>
    stage-1 · 4 partitions
      reads   flights [input, 4]
      └─ input-flights · flights    app.py:3
    """
    rows: list[tuple[str, ...]] = []
    for stage, operators in stages(plan):
        rows.append(("",))
        rows.append((" · ".join([plain(stage.id), *traits(stage)]),))
        rows.extend(_stage_rows(plan, operators))
    width = max((len(row[0]) for row in rows if len(row) > 1), default=0)
    lines = [row[0] if len(row) == 1 else f"{row[0]:<{width}}    {row[1]}".rstrip() for row in rows]
    return "\n".join([headline(plan), *lines])


def headline(plan: Plan) -> str:
    """Return the application's name and what its plan consists of."""
    parts = {"stage": plan.stages, "operator": plan.operators, "stream": plan.streams, "store": plan.stores}
    counts = ", ".join(counted(len(items), noun) for noun, items in parts.items())
    return f"{plain(plan.app)} · {plan.options.guarantee.replace('_', ' ')} · {counts}"


def title(operator: OperatorPlan) -> str:
    """Return an operator's id, with its kind and label where the id does not say them.

    >>> title(OperatorPlan(id="filter-1", kind="filter", label="is_late"))
    'filter-1 · is_late'
    """
    kind = [] if operator.id.startswith(operator.kind) else [operator.kind]
    label = [] if operator.label in ("", operator.id) else [operator.label]
    return " · ".join(shorten(part, LABEL_LENGTH) for part in [*kind, operator.id, *label])


def _stage_rows(plan: Plan, operators: list[OperatorPlan]) -> Iterator[tuple[str, ...]]:
    ids = {operator.id for operator in operators}
    read = [stream for stream in plan.streams if ids.intersection(stream.read_by)]
    written = [stream for stream in plan.streams if ids.intersection(stream.written_by)]
    yield from _listed("reads", map(_stream_words, read))
    yield from _forest(plan, operators)
    yield from _listed("stores", [shorten(name, LABEL_LENGTH) for one in operators for name in stores(plan, one)])
    yield from _listed("writes", map(_stream_words, written))


def _listed(heading: str, items: Iterable[str]) -> Iterator[tuple[str]]:
    """Yield the rows of a list that is broken between its items, not within them."""
    # textwrap breaks at plain spaces alone, which are left between items only.
    text = ", ".join(dict.fromkeys(item.replace(" ", "\N{NO-BREAK SPACE}") for item in items))
    if text:
        wrapped = textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
        yield from (
            (f"  {heading if n == 0 else '':<8}{line}".replace("\N{NO-BREAK SPACE}", " "),)
            for n, line in enumerate(wrapped)
        )


def _stream_words(stream: StreamPlan) -> str:
    known = [] if stream.partitions is None else [str(stream.partitions)]
    bound = f" → {stream.bound}" if stream.bound else ""
    return f"{shorten(stream.name, LABEL_LENGTH)} [{', '.join([role(stream), *known])}]{bound}"


def _forest(plan: Plan, operators: list[OperatorPlan]) -> Iterator[tuple[str, str]]:
    """Yield a row per operator: its place in the tree, then its site, and where else its messages go."""
    shown = {operator.id: operator for operator in operators}
    roots, below, aside = _adoptions(plan, shown)

    def branch(name: str, first: str, rest: str) -> Iterator[tuple[str, str]]:
        yield first + title(shown[name]), _details(shown[name], aside[name])
        # A chain stays at one depth: only a fork moves to the right.
        while len(below[name]) == 1:
            name = below[name][0]
            yield rest + title(shown[name]), _details(shown[name], aside[name])
        yield from fork(below[name], rest)

    def fork(names: list[str], prefix: str) -> Iterator[tuple[str, str]]:
        for name in names:
            last = name == names[-1]
            yield from branch(name, prefix + ("└─ " if last else "├─ "), prefix + ("   " if last else "│  "))

    return fork(roots, "  ")


def _adoptions(
    plan: Plan, shown: dict[str, OperatorPlan]
) -> tuple[list[str], dict[str, list[str]], dict[str, list[str]]]:
    """Return the roots of a stage's tree, what stands below each operator, and what else each leads to.

    An operator stands below the first operator of its stage that leads to it; the others only mention it.
    """
    ids = {operator.id for operator in plan.operators}
    adopted: dict[str, str] = {}
    aside: dict[str, list[str]] = {name: [] for name in shown}
    leads = edges(plan)
    for operator in shown.values():
        parents = [parent for parent in operator.parents if parent in shown and (parent, operator.id) in leads]
        if parents:
            adopted[operator.id] = parents[0]
    for source, target in leads:
        if source in shown and adopted.get(target) != source:
            aside[source].append(target if target in ids else target.removeprefix(stream_node("")))
    below = {name: [child for child, parent in adopted.items() if parent == name] for name in shown}
    return [name for name in shown if name not in adopted], below, aside


def _details(operator: OperatorPlan, aside: list[str]) -> str:
    # The policy, behind it on the line, names that stream already.
    elsewhere = [name for name in aside if not operator.on_error.endswith(f"dead letter to {name}")]
    goes = [f"→ {shorten(name, LABEL_LENGTH)}" for name in elsewhere]
    order = [f"by order of arrival: {operator.by_order}"] if operator.by_order else []
    policy = [] if operator.on_error == "fail" else [f"on error: {shorten(operator.on_error, LABEL_LENGTH)}"]
    return "  ".join(part for part in [shorten(place(operator.site), LABEL_LENGTH), *goes, *order, *policy] if part)


def to_mermaid(plan: Plan) -> str:
    """Return the plan as a Mermaid flowchart: a subgraph per stage, a shape per kind of operator and stream."""
    names = _short_names(plan)
    lines = ["flowchart LR"]
    for stream in plan.streams:
        lines.append("  " + _mermaid_node(names[stream_node(stream.name)], _stream_label(stream), stream.role))
    for index, (stage, operators) in enumerate(stages(plan)):
        heading = [shorten(stage.id, LABEL_LENGTH), counted(stage.partitions, "partition")]
        lines.append(f'  subgraph stage{index}["{" · ".join(map(_mermaid_text, heading))}"]')
        lines.extend("    " + _mermaid_node(names[op.id], _operator_label(plan, op), family(op)) for op in operators)
        lines.append("  end")
    lines.extend(f"  {names[source]} --> {names[target]}" for source, target in edges(plan))
    shown = {stream.role for stream in plan.streams} | {family(operator) for operator in plan.operators}
    for look in sorted(shown):
        fill, stroke, ink = daylight(look)
        lines.append(f"  classDef {look} fill:{fill},stroke:{stroke},color:{ink}")
    return "\n".join(lines)


def to_dot(plan: Plan) -> str:
    """Return the plan in Graphviz' language: a cluster per stage, a shape per kind of operator and stream."""
    names = _short_names(plan)
    lines = [
        "digraph plan {",
        "  graph [rankdir=LR, labelloc=t, fontname=Helvetica];",
        f"  label={_quoted([headline(plan)])};",
        "  node [style=filled, fontname=Helvetica, fontsize=11];",
        "  edge [color=gray40];",
    ]
    for stream in plan.streams:
        lines.append("  " + _dot_node(names[stream_node(stream.name)], _stream_label(stream), stream.role))
    for index, (stage, operators) in enumerate(stages(plan)):
        heading = f"{shorten(stage.id, LABEL_LENGTH)} · {counted(stage.partitions, 'partition')}"
        lines.append(f"  subgraph cluster_{index} {{")
        lines.append(f"    label={_quoted([heading])}; style=rounded; color=gray60;")
        lines.extend("    " + _dot_node(names[op.id], _operator_label(plan, op), family(op)) for op in operators)
        lines.append("  }")
    lines.extend(f"  {names[source]} -> {names[target]};" for source, target in edges(plan))
    return "\n".join([*lines, "}"])


def to_networkx(plan: Plan) -> networkx.DiGraph[str]:
    """Return operators (by id) and streams (as "stream:name") as a graph, with their structs' fields as attributes."""
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph(app=plan.app)
    for operator in plan.operators:
        graph.add_node(operator.id, node="operator", **msgspec.structs.asdict(operator))
    for stream in plan.streams:
        graph.add_node(stream_node(stream.name), node="stream", **msgspec.structs.asdict(stream))
    graph.add_edges_from(edges(plan))
    return graph


def _short_names(plan: Plan) -> dict[str, str]:
    """Return an identifier that any language takes for every node; the user's own names are labels only."""
    names = {operator.id: f"o{index}" for index, operator in enumerate(plan.operators)}
    return names | {stream_node(stream.name): f"s{index}" for index, stream in enumerate(plan.streams)}


def _operator_label(plan: Plan, operator: OperatorPlan) -> list[str]:
    kept = [f"store {store}" for store in stores(plan, operator)]
    order = [f"by order of arrival: {operator.by_order}"] if operator.by_order else []
    return [shorten(line, LABEL_LENGTH) for line in [title(operator), place(operator.site), *kept, *order] if line]


def _stream_label(stream: StreamPlan) -> list[str]:
    size = [] if stream.partitions is None else [counted(stream.partitions, "partition")]
    return [shorten(stream.name, LABEL_LENGTH), " · ".join([role(stream), *size])]


def _mermaid_node(name: str, lines: list[str], look: str) -> str:
    before, after = _MERMAID_SHAPES[look]
    return f'{name}{before}"{"<br/>".join(map(_mermaid_text, lines))}"{after}:::{look}'


def _mermaid_text(text: str) -> str:
    """Return `text` with everything but letters, digits and harmless punctuation as Mermaid's `#code;`."""
    return "".join(c if c.isalnum() or c in " -_.,·…()" else f"#{ord(c)};" for c in text)


def _dot_node(name: str, lines: list[str], look: str) -> str:
    fill, stroke, _ = daylight(look)
    return f'{name} [label={_quoted(lines)}, shape={_DOT_SHAPES[look]}, fillcolor="{fill}", color="{stroke}"];'


def _quoted(lines: list[str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;", "<": "&lt;", ">": "&gt;"})
    return '"' + "\\n".join(line.translate(escapes) for line in lines) + '"'
