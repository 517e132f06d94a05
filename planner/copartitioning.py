"""Whether equal keys meet: at an operator with state by key, and in a table that is looked into by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from operators.base import Spec
from operators.io import Input
from operators.partition_by import PartitionBy, hash_
from operators.table_join import TableJoin
from planner.errors import refuse
from planner.graph import Graph, intermediate

WRITERS = "the writer"
"""The partitioner of a stream of which only we compute the keys: that of whoever writes it."""


class _Way(NamedTuple):
    """How the keys of a stream are spread over partitions."""

    partitions: int
    by: object

    def __str__(self) -> str:
        return f"{self.partitions} partitions by {self.by}"


def check_keys_meet(graph: Graph, spec: Spec, sizes: Mapping[str, int]) -> None:
    """Refuse an operator with state by key where equal keys may lie in different partitions."""
    origins = [graph.specs[id] for id in sorted(entries_of(graph, spec.op_id or ""))]
    for origin in origins:
        if isinstance(origin, Input) and not _is_partitioned(origin, sizes):
            size = sizes[origin.stream]
            before = f".partition_by(lambda value: ..., partitions={size}) before it"
            raise refuse(spec, _unsaid(origin, size), f"{before}, or partitioned_by_key=True in app.input(...)")
    ways = {_way(graph, origin, sizes) for origin in origins}
    if len(ways) > 1:
        told = " and ".join(sorted(map(str, ways)))
        met = "joined" if spec.sided else "merged above"
        most = max(way.partitions for way in ways)
        before = f".partition_by(..., partitions={most}) on both" if spec.sided else ".partition_by(...) before it"
        raise refuse(spec, f"streams of {told} are {met}, so equal keys do not meet", before)


def check_streams_alike(graph: Graph, source: Input, counts: Mapping[str, int], size: int) -> None:
    """Refuse a pattern of whose streams one has not `size` partitions, where equal keys of them have to meet."""
    odd = [stream for stream, count in counts.items() if count != size]
    keyed = (id for id, spec in graph.specs.items() if spec.keyed and source.op_id in entries_of(graph, id))
    needing = next(keyed, None) if odd else None
    if needing is None:
        return
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    before = f".partition_by(lambda value: ..., partitions={max(size, counts[most])}) before it"
    if counts[least] == counts[most]:
        wrong = f"{size} partitions of {source.stream!r} are read, and {least!r} has {counts[least]}"
        instead = f"partitions={counts[least]} in app.input({source.stream!r}), or {before}"
    else:
        unequal = f"{least!r} of {counts[least]} and {most!r} of {counts[most]} partitions"
        wrong, instead = f"{source.stream!r} reads {unequal}", f"{before}, or streams of equal sizes"
    raise refuse(graph.specs[needing], f"{wrong}, so equal keys do not meet", instead)


def check_table_meets(graph: Graph, join: TableJoin, sizes: Mapping[str, int]) -> None:
    """Refuse a join by key with a partitioned table whose keys lie in other partitions than the stream's."""
    if join.on is not None or join.table.broadcast:
        return
    table, partitions = join.table, sizes[join.table.stream]
    origin = graph.keyed_by(graph.streams_into(join.op_id or "")[0]) or ""
    size, stream_by = _way(graph, graph.specs[origin], sizes)
    way_out = f".partition_by(..., key_type=..., partitions={partitions}) before it, or broadcast=True"
    if partitions != size:
        wrong = f"the stream has {size} partitions and the table {table.stream!r} {partitions}"
        raise refuse(join, f"{wrong}, so equal keys do not meet", way_out)
    stored = "key= the type of the stored key"
    if not _is_partitioned(table, sizes):
        instead = f"broadcast=True and on=, {stored}, or partitioned_by_key=True in app.table(...)"
        raise refuse(join, _unsaid(table, partitions), instead)
    if graph.key_serde(origin) != table.key:
        raise refuse(join, f"the stream's keys and those of the table {table.stream!r} have different serdes", way_out)
    table_by = _way(graph, table, sizes).by
    if stream_by != table_by:
        by_hash = "by=hash_ in partition_by"
        instead = f"broadcast=True and on=, or {stored} in app.table(...)" if table.key_of else by_hash
        raise refuse(join, f"the stream is partitioned by {stream_by}, the table by {table_by}", instead)


def entries_of(graph: Graph, id: str) -> set[str]:
    """Return where the messages that come to an operator entered its stage."""
    found, above = set(), {id}
    while above:
        parents = {parent for one in above for parent in graph.keyed_parents(one)}
        entries = {parent for parent in parents if graph.specs[parent].source or graph.specs[parent].repartitions}
        found |= entries
        above = parents - entries
    return found


def _way(graph: Graph, origin: Spec, sizes: Mapping[str, int]) -> _Way:
    stream = origin.stream if isinstance(origin, Input) else intermediate(graph.app, origin.op_id or "")
    if sizes[stream] == 1:
        return _Way(1, hash_)  # in one partition all keys meet
    if isinstance(origin, Input) and origin.key_of is not None:
        return _Way(sizes[stream], WRITERS)
    return _Way(sizes[stream], origin.by if isinstance(origin, PartitionBy) else hash_)


def _is_partitioned(source: Input, sizes: Mapping[str, int]) -> bool:
    return source.key_of is None or source.partitioned_by_key or sizes[source.stream] == 1


def _unsaid(source: Input, size: int) -> str:
    return f"the key of {source.stream!r} is a function, and nothing says that its {size} partitions are made by it"
