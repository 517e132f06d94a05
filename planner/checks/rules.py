"""RULES, the checks that refuse a pipeline whatever runs it, each about one operator in its graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from operators.async_flat_map import AsyncFlatMap
from operators.core.base import Spec
from operators.core.policies import DeadLetterPolicy, fail, final
from operators.io import SendTo, TableChanges
from operators.joins.table_join import TableJoin
from operators.partition_by import PartitionBy
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Options

Rule = Callable[[Spec, Graph, Options], None]


def _needs_terminal(spec: Spec, graph: Graph, options: Options) -> None:
    if (spec.terminal and not spec.repartitions) or spec.arm:
        return
    children = graph.children(spec.op_id or "")
    # An arm that nobody reads drops its messages, which is fine as long as another one is read.
    if not (any(map(graph.children, children)) if spec.splits else children):
        wrong, instead = spec.unread
        raise refuse(spec, wrong, f"{instead}, or leave it out")


def _needs_key(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.keyed and None in map(graph.keyed_by, graph.streams_into(spec.op_id or "")):
        way_out = ".partition_by(lambda value: ..., ...) before it"
        instead = way_out + (", or window_all(...)" if spec.windowed else ", or key= on the input")
        raise refuse(spec, "its messages have no key", instead)


def _state_is_of_one_call_at_a_time(spec: Spec, graph: Graph, options: Options) -> None:
    call = graph.of(AsyncFlatMap).get(spec.op_id or "")
    if call is not None and call.stateful and call.order != "key":
        wrong = f"with order={call.order!r} two calls for one key may run at once, and lose each other's state"
        raise refuse(spec, wrong, 'order="key"; or a function of the value alone, and .process(...) for the state')


def _one_key_serde(spec: Spec, graph: Graph, options: Options) -> None:
    parents = graph.keyed_parents(spec.op_id or "")
    if len(parents) > 1 and len({graph.key_serde(parent) for parent in parents}) > 1:
        does = "joins" if spec.sided else "merges"
        instead = "key= or key_type= alike on each, as in .partition_by(..., key_type=str)"
        raise refuse(spec, f"it {does} streams whose keys have different serdes", instead)


def _tables_are_keyed(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.tombstones and not spec.gives_keys:
        raise refuse(spec, "a table needs the key of its rows", "key=str, or key=lambda row: row.id")
    join = graph.of(TableJoin).get(spec.op_id or "")
    if join is not None and join.on is None and join.table.broadcast:
        raise refuse(spec, "a broadcast table is looked into by a function", "on=lambda value: value.id")
    if join is not None and join.on is not None and not join.table.broadcast:
        wrong = "on= may ask for any key, and a task has only its own partition of the table"
        raise refuse(spec, wrong, "broadcast=True on the table, or .partition_by(...) and no on=")


def _tables_are_read_one_way(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.op_id in graph.of(TableChanges):
        looking = [id for id in graph.children(spec.op_id or "") if graph.specs[id].looks_up]
        if looking:
            wrong = f"the table {spec.subject!r} is also joined with others, and then no stream can look into it"
            raise refuse(
                graph.specs[looking[0]],
                wrong,
                "retention_ms=0 in app.table(...): then it is joined as of a message's time, and with tables",
            )


def _tables_of_all_keep_no_letters(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.broadcast and isinstance(final(spec.on_error or fail), DeadLetterPolicy):
        wrong = "a broadcast table is read anew in every run, and would send its dead letters again each time"
        raise refuse(spec, wrong, "on_error=skip, or a table without broadcast=True")


def _ranges_fill_partitions(spec: Spec, graph: Graph, options: Options) -> None:
    partitioning = graph.of(PartitionBy).get(spec.op_id or "")
    if partitioning is not None:
        wanted = partitioning.declared_partitions
        if partitioning.partitions not in (None, wanted):
            wrong = f"{partitioning.by} makes {wanted} ranges, and partitions={partitioning.partitions}"
            raise refuse(spec, wrong, f"partitions={wanted}, or leave it out")


def _patterns_lie_apart(spec: Spec, graph: Graph, options: Options) -> None:
    if spec.source:
        for other in graph.inputs.values():
            if other is not spec and _overlap(spec.subject, other.stream):
                wrong = f"{spec.subject!r} and {other.stream!r} at {other.site} may name one stream, to be read twice"
                raise refuse(spec, wrong, "patterns and names that lie apart; streams can be shared")


def _outputs_agree(spec: Spec, graph: Graph, options: Options) -> None:
    # By identity: one Output may be sent to from many places, and two of one name may say different things of it.
    declared = {id(output): output for other in graph.specs.values() for output in other.outputs}
    for output in spec.outputs:
        if sum(other.stream == output.stream for other in declared.values()) > 1:
            raise refuse(spec, f"the output {output.stream!r} is declared twice", "one app.output(...), used twice")
    sending = graph.of(SendTo)
    if spec.op_id in sending:
        (output,) = spec.outputs
        senders = [one for one in sending.values() if one.output is output]
        if len({graph.key_serde(graph.parents(s.op_id or "")[0]) for s in senders}) > 1:
            wrong = f"messages with keys of different serdes go to {output.stream!r}"
            raise refuse(spec, wrong, "key= or key_type= alike where these keys come from")


def _takes_back_what_is_withdrawn(spec: Spec, graph: Graph, options: Options) -> None:
    if not spec.reads_signs or spec.hands_on_signs:
        return
    instead = (
        '.revisions() before it, which says of each message whether it is withdrawn, or panes="accumulating" above'
    )
    wrong = spec.why_no_signs()
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


# Two patterns with many stars come to the same rests again and again: without a memory that is exponential.
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
