"""The edges of a plan, and the words for its parts in every drawing."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from planner.model.plan import OperatorPlan, Plan, StagePlan, StreamPlan

Family = Literal["source", "table", "stateless", "async", "stateful", "terminal"]

SOURCES = ("input", "table")
"""The roles of streams that an operator reads for the others."""
READING = (*SOURCES, "table_changes", "versioned_table")
"""The kinds of these operators."""

_JOINER = "\u200d"
_PATH = re.compile(r"[\\/]")


def stream_node(name: str) -> str:
    """Return the name under which a stream is a node of the graph, apart from operators.

    >>> stream_node("flights")
    'stream:flights'
    """
    return f"stream:{name}"


def edges(plan: Plan) -> list[tuple[str, str]]:
    """Return the edges between operators, by their ids, and streams, as `stream_node` names them; each pair once.

    An operator that reads what a repartitioning one wrote is reached through the intermediate stream, and one that
    reads an input or a table through the source operator, which is labelled with the stream.

    >>> source = OperatorPlan(id="clicks", kind="input", label="clicks")
    >>> human = OperatorPlan(id="filter-clicks", kind="filter", parents=("clicks",))
    >>> clicks = StreamPlan(name="clicks", role="input", read_by=("filter-clicks",))
    >>> edges(Plan(app="demo", operators=(source, human), streams=(clicks,)))
    [('stream:clicks', 'clicks'), ('clicks', 'filter-clicks')]
    """
    sources = {operator.label: operator.id for operator in plan.operators if operator.kind in READING}
    known = {operator.id for operator in plan.operators}
    handed_over: dict[str, list[str]] = {}
    for stream in plan.streams:
        if stream.role == "intermediate":
            for writer in stream.written_by:
                handed_over.setdefault(writer, []).append(stream_node(stream.name))
    found: dict[tuple[str, str], None] = {}
    for stream in plan.streams:
        node = stream_node(stream.name)
        found.update({(writer, node): None for writer in stream.written_by if writer in known})
        readers = (sources[stream.name],) if stream.role in SOURCES and stream.name in sources else stream.read_by
        found.update({(node, reader): None for reader in readers if reader in known})
    for operator in plan.operators:
        for parent in operator.parents:
            if parent in known:
                found.update({(source, operator.id): None for source in handed_over.get(parent, [parent])})
    return list(found)


def stages(plan: Plan) -> list[tuple[StagePlan, list[OperatorPlan]]]:
    """Return every stage with its operators, in the plan's order.

    A table belongs to no stage; it comes with the first one that looks into it.

    >>> operators = (OperatorPlan(id="planes", kind="table"),
    ...     OperatorPlan(id="join", kind="table_join", parents=("planes",), stage="stage-1"))
    >>> [(stage.id, [one.id for one in held]) for stage, held in stages(Plan(app="demo", operators=operators))]
    [('stage-1', ['planes', 'join'])]
    """
    homes = {operator.id: operator.stage for operator in plan.operators}
    # From the last on, so that a table finds the stage of its first reader settled; parents stand before children.
    for operator in reversed(plan.operators):
        children = [homes[one.id] for one in plan.operators if operator.id in one.parents]
        homes[operator.id] = next(filter(None, [operator.stage, *children]), "")
    known = {stage.id: stage for stage in plan.stages}
    held: dict[str, list[OperatorPlan]] = {name: [] for name in known}
    for operator in plan.operators:
        held.setdefault(homes[operator.id], []).append(operator)
    return [(known.get(name, StagePlan(id=name, inputs=(), operators=())), held[name]) for name in held]


def family(operator: OperatorPlan) -> Family:
    """Return the family of an operator, which decides its shape and colour in drawings."""
    if operator.asynchronous:
        return "async"
    if operator.terminal:
        return "terminal"
    if operator.is_table:
        return "table"
    if operator.kind in READING:
        return "source"
    return "stateful" if operator.stateful else "stateless"


def stores(plan: Plan, operator: OperatorPlan) -> list[str]:
    """Return the stores of an operator as "name (kind)"."""
    kinds = {store.name: store.kind for store in plan.stores if store.operator == operator.id}
    if operator.store is not None:
        kinds.setdefault(operator.store, next((s.kind for s in plan.stores if s.name == operator.store), ""))
    return [f"{name} ({kind})" if kind else name for name, kind in kinds.items()]


def traits(stage: StagePlan) -> list[str]:
    """Return the traits of a stage in words, its partition count first.

    >>> traits(StagePlan(id="stage-1", inputs=(), operators=(), partitions=4, drain_ms=2_000))
    ['4 partitions', 'drains within 2,000 ms']
    """
    special = {
        "in partition order": stage.ordered,
        "in key order": stage.by_key,
        f"drains within {stage.drain_ms:,} ms": stage.drain_ms,
        "a task per stream and partition": stage.apart,
    }
    return [counted(stage.partitions, "partition"), *(words for words, holds in special.items() if holds)]


def role(stream: StreamPlan) -> str:
    """Return the role of a stream in words.

    >>> role(StreamPlan(name="planes", role="table", broadcast=True))
    'broadcast table'
    """
    words = stream.role.replace("_", " ")
    return f"broadcast {words}" if stream.broadcast else words


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "stage"), counted(2, "stage")
    ('1 stage', '2 stages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def place(site: str) -> str:
    """Return a site in the user's program as file:line, without the folder; "" where it is unknown.

    >>> place("/home/me/app.py:12"), place("<unknown>:0")
    ('app.py:12', '')
    """
    name = plain(_PATH.split(site)[-1])
    return "" if name.startswith("<unknown>") else name


def plain(text: str) -> str:
    r"""Return `text` on one line, without anything that steers a terminal, a parser or the direction of writing.

    >>> plain("a\n b\x1b[31m")
    'a b [31m'
    """
    # The joiner counts as a control character, and is kept: an emoji of several parts falls apart without it.
    shown = (" " if unicodedata.category(c)[0] in "CZ" and c != _JOINER else c for c in text)
    return " ".join("".join(shown).split())


def shorten(text: str, length: int) -> str:
    """Return `text` on one line of at most `length` characters.

    >>> shorten("left join with planes", 10)
    'left join…'
    """
    text = plain(text)
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
