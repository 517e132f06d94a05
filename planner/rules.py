"""What is refused of a pipeline whatever runs it: RULES, each about one operator in its graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from operators.async_flat_map import AsyncFlatMap
from operators.base import Spec
from operators.io import Input, Output, SendTo, Table, TableChanges, VersionedTable
from operators.partition_by import ByRanges, PartitionBy
from operators.policies import DeadLetter, final
from operators.stateless import Branch, BranchArm
from operators.table_join import TableJoin
from operators.window import Window
from operators.window_join import WindowJoin
from operators.window_types import ByClock, Counted, Sliding
from planner.errors import refuse
from planner.graph import Graph
from planner.plan import Options

Rule = Callable[[Spec, Graph, Options], None]


def _needs_terminal(spec: Spec, graph: Graph, options: Options) -> None:
    if (spec.terminal and not spec.repartitions) or isinstance(spec, BranchArm):
        return
    children = graph.children(spec.op_id or "")
    if isinstance(spec, Branch) and not any(map(graph.children, children)):
        raise refuse(spec, "nobody reads any of its branches", '.branch(...)["late"].send_to(...), or leave it out')
    if not children:
        what = "nobody joins this table" if isinstance(spec, Table | VersionedTable) else "its messages go nowhere"
        raise refuse(spec, what, ".send_to(app.output(...)), .sink(...), or leave it out")


def _needs_key(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.keyed and None in map(graph.keyed_by, graph.streams_into(spec.op_id or "")):
        way_out = ".partition_by(lambda value: ..., ...) before it"
        instead = way_out + (", or window_all(...)" if spec.kind == "window" else ", or key= on the input")
        raise refuse(spec, "its messages have no key", instead)


def _state_is_of_one_call_at_a_time(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, AsyncFlatMap) and spec.stateful and spec.order != "key":
        wrong = f"with order={spec.order!r} two calls for one key may run at once, and lose each other's state"
        raise refuse(spec, wrong, 'order="key"; or a function of the value alone, and .process(...) for the state')


def _one_key_serde(spec: Spec, graph: Graph, options: Options) -> None:
    parents = graph.keyed_parents(spec.op_id or "")
    if len(parents) > 1 and len({graph.key_serde(parent) for parent in parents}) > 1:
        does = "joins" if spec.sided else "merges"
        instead = "key= or key_type= alike on each, as in .partition_by(..., key_type=str)"
        raise refuse(spec, f"it {does} streams whose keys have different serdes", instead)


def _tables_are_keyed(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, Table | TableChanges | VersionedTable) and not (spec.key or spec.key_of):
        raise refuse(spec, "a table needs the key of its rows", "key=str, or key=lambda row: row.id")
    if isinstance(spec, TableJoin) and spec.on is None and spec.table.broadcast:
        raise refuse(spec, "a broadcast table is looked into by a function", "on=lambda value: value.id")
    if isinstance(spec, TableJoin) and spec.on is not None and not spec.table.broadcast:
        wrong = "on= may ask for any key, and a task has only its own partition of the table"
        raise refuse(spec, wrong, "broadcast=True on the table, or .partition_by(...) and no on=")


def _tables_are_read_one_way(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, TableChanges):
        looking = [id for id in graph.children(spec.op_id or "") if isinstance(graph.specs[id], TableJoin)]
        if looking:
            wrong = f"the table {spec.stream!r} is also joined with others, and then no stream can look into it"
            raise refuse(
                graph.specs[looking[0]],
                wrong,
                "retention_ms=0 in app.table(...): then it is joined as of a message's time, and with tables",
            )


def _tables_of_all_keep_no_letters(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, Table) and spec.broadcast and isinstance(final(spec.on_error), DeadLetter):
        wrong = "a broadcast table is read anew in every run, and would send its dead letters again each time"
        raise refuse(spec, wrong, "on_error=skip, or a table without broadcast=True")


def _ranges_fill_partitions(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, PartitionBy) and isinstance(spec.by, ByRanges):
        wanted = len(spec.by.bounds) + 1
        if spec.partitions not in (None, wanted):
            wrong = f"{spec.by} makes {wanted} ranges, and partitions={spec.partitions}"
            raise refuse(spec, wrong, f"partitions={wanted}, or leave it out")


def _patterns_lie_apart(spec: Spec, graph: Graph, options: Options) -> None:
    if isinstance(spec, Input):
        for other in graph.specs.values():
            if isinstance(other, Input) and other is not spec and _overlap(spec.stream, other.stream):
                wrong = f"{spec.stream!r} and {other.stream!r} at {other.site} may name one stream, to be read twice"
                raise refuse(spec, wrong, "patterns and names that lie apart; streams can be shared")


def _outputs_agree(spec: Spec, graph: Graph, options: Options) -> None:
    declared = {id(output): output for other in graph.specs.values() for output in outputs_of(other)}
    for output in outputs_of(spec):
        if sum(other.stream == output.stream for other in declared.values()) > 1:
            raise refuse(spec, f"the output {output.stream!r} is declared twice", "one app.output(...), used twice")
    if isinstance(spec, SendTo):
        senders = [s for s in graph.specs.values() if isinstance(s, SendTo) and s.output is spec.output]
        if len({graph.key_serde(graph.parents(s.op_id or "")[0]) for s in senders}) > 1:
            wrong = f"messages with keys of different serdes go to {spec.output.stream!r}"
            raise refuse(spec, wrong, "key= or key_type= alike where these keys come from")


def _takes_back_what_is_withdrawn(spec: Spec, graph: Graph, options: Options) -> None:
    if not spec.reads_signs or spec.hands_on_signs:
        return
    instead = (
        '.revisions() before it, which says of each message whether it is withdrawn, or panes="accumulating" above'
    )
    wrong = ""
    if not spec.takes_signs:
        wrong = "it can't take them back"
    elif isinstance(spec, Window) and spec.aggregation.remove is None:
        wrong = f"{spec.aggregation} can't take a value away"
    elif isinstance(spec, Window) and spec.merges:
        wrong = "windows that have become one can't become shorter"
    elif isinstance(spec, Window) and isinstance(spec.windows, Counted | ByClock):
        wrong = "in which of its windows a value is depends on when it came"
    elif isinstance(spec, Window) and isinstance(spec.windows, Sliding):
        wrong = "which windows it has depends on the values"
    elif isinstance(spec, Window) and spec.panes == "discarding":
        wrong = "discarding panes have only what is new"
    elif isinstance(spec, WindowJoin) and spec.allowed_lateness_ms and spec.emit == "all":
        wrong = "with allowed_lateness_ms= a join that has emitted what is withdrawn then has no pane to say so"
    if wrong:
        raise refuse(spec, f"panes that may be withdrawn come here, and {wrong}", instead)


RULES: tuple[Rule, ...] = (
    _needs_terminal,
    _tables_are_keyed,
    _tables_are_read_one_way,
    _tables_of_all_keep_no_letters,
    _needs_key,
    _state_is_of_one_call_at_a_time,
    _one_key_serde,
    _ranges_fill_partitions,
    _patterns_lie_apart,
    _outputs_agree,
    _takes_back_what_is_withdrawn,
)


def outputs_of(spec: Spec) -> tuple[Output, ...]:
    """Return the outputs that an operator writes."""
    return (spec.output,) if isinstance(spec, SendTo) else getattr(spec, "outputs", ())


@cache
def _overlap(one: str, other: str) -> bool:
    """Whether some name matches both patterns."""
    if not one or not other:
        return not (one + other).strip("*")
    if one[0] == "*":
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    if other[0] == "*":
        return _overlap(other, one)
    return (one[0] == other[0] or "?" in (one[0], other[0])) and _overlap(one[1:], other[1:])
