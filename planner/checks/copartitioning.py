"""Checks that equal keys meet: at an operator with state by key, and in a table that is looked into by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from operators.core.base import Spec
from operators.io import Input
from operators.joins.foreign_key_join import ForeignKeyJoin
from operators.joins.key_join import KeyJoin
from operators.joins.own_table import OwnTableJoin
from operators.joins.table_join import TableJoin
from operators.partition_by import PartitionBy, hash_
from planner.model.errors import refuse
from planner.model.graph import Graph, intermediate

WRITERS = "the writer"
"""Stands for the partitioner of a stream whose keys are computed by a function here: its writer alone knows it."""


class _Way(NamedTuple):
    """The spread of a stream's keys over partitions: their number, and the partitioner."""

    partitions: int
    by: object

    def __str__(self) -> str:
        return f"{self.partitions} partitions by {self.by}"


def check_keys_meet(graph: Graph, spec: Spec, sizes: Mapping[str, int], most: int) -> None:
    """Refuse an operator with state by key where equal keys may lie in different partitions.

    `most` are the partitions that a `partition_by` may say.
    """
    origins = [graph.specs[id] for id in sorted(entries_of(graph, spec.op_id or ""))]
    for origin in (graph.inputs[one.op_id or ""] for one in origins if one.source):
        if not _is_partitioned(origin, sizes):
            size = sizes[origin.stream]
            before = f".partition_by({_said('lambda value: ...', size, most)}) before it"
            raise refuse(spec, _unsaid(origin, size), f"{before}, or partitioned_by_key=True in app.input(...)")
    ways = {_way(graph, origin, sizes) for origin in origins}
    if len(ways) > 1:
        told = " and ".join(sorted(map(str, ways)))
        met = "joined" if spec.sided else "merged above"
        before = ".partition_by(...) before it"
        if tables := {_way(graph, one, sizes) for one in _tables_into(graph, spec)}:
            before = _to_tables(tables, most)
        elif spec.sided:
            before = f".partition_by({_said('...', max(way.partitions for way in ways), most)}) on both"
        raise refuse(spec, f"streams of {told} are {met}, so equal keys do not meet", before)


def check_streams_alike(graph: Graph, source: Input, counts: Mapping[str, int], size: int, most: int) -> None:
    """Refuse a pattern whose streams do not all have `size` partitions, where equal keys of them have to meet.

    `most` are the partitions that a `partition_by` may say.
    """
    odd = [stream for stream, count in counts.items() if count != size]
    keyed = (id for id, spec in graph.specs.items() if spec.keyed and source.op_id in entries_of(graph, id))
    needing = next(keyed, None) if odd else None
    if needing is None:
        return
    least, largest = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    before = f".partition_by({_said('lambda value: ...', max(size, counts[largest]), most)}) before it"
    if counts[least] == counts[largest]:
        wrong = f"{size} partitions of {source.stream!r} are read, and {least!r} has {counts[least]}"
        instead = f"partitions={counts[least]} in app.input({source.stream!r}), or {before}"
    else:
        unequal = f"{least!r} of {counts[least]} and {largest!r} of {counts[largest]} partitions"
        wrong, instead = f"{source.stream!r} reads {unequal}", f"{before}, or streams of equal sizes"
    raise refuse(graph.specs[needing], f"{wrong}, so equal keys do not meet", instead)


def check_table_meets(graph: Graph, join: TableJoin, sizes: Mapping[str, int], most: int) -> None:
    """Refuse a join by key with a partitioned table whose keys lie in other partitions than the stream's.

    `most` are the partitions that a `partition_by` may say.
    """
    if join.on is not None or join.table.broadcast:
        return
    table, partitions = join.table, sizes[join.table.stream]
    origin = graph.keyed_by(graph.streams_into(join.op_id or "")[0]) or ""
    size, stream_by = _way(graph, graph.specs[origin], sizes)
    way_out = f".partition_by({_said('..., key_type=...', partitions, most)}) before it, or broadcast=True"
    if partitions != size:
        wrong = f"the stream has {size} partitions and the table {table.stream!r} {partitions}"
        raise refuse(join, f"{wrong}, so equal keys do not meet", way_out)
    # A key that records carry was hashed by their writer, as Kafka does; one that a function computes may lie anywhere.
    stored = "key= the type of the stored key"
    if not _is_partitioned(table, sizes):
        instead = f"broadcast=True and on=, {stored}, or partitioned_by_key=True in app.table(...)"
        raise refuse(join, _unsaid(table, partitions), instead)
    # Keys are equal when their bytes are: the same key in another serde has another hash.
    if graph.key_serde(origin) != table.key:
        raise refuse(join, f"the stream's keys and those of the table {table.stream!r} have different serdes", way_out)
    table_by = _way(graph, table, sizes).by
    if stream_by != table_by:
        by_hash = "by=hash_ in partition_by"
        instead = f"broadcast=True and on=, or {stored} in app.table(...)" if table.key_of else by_hash
        raise refuse(join, f"the stream is partitioned by {stream_by}, the table by {table_by}", instead)


def meetings(graph: Graph) -> Iterator[tuple[Spec, frozenset[str], bool]]:
    """Yield operators at which equal keys meet, of which inputs, and whether there are other streams than inputs.

    Where it is one input alone, its own equal keys have to lie together. Other streams are written between stages, each
    key where Kafka's hash says.
    """
    for id, spec in graph.specs.items():
        join = graph.of(TableJoin).get(id)
        tables = [join.table] if join is not None and join.on is None and not join.table.broadcast else []
        if not spec.keyed and not tables:
            continue
        streams = graph.streams_into(id)
        origins = {graph.keyed_by(streams[0]) or ""} if tables else entries_of(graph, id)
        found = [*tables, *(graph.specs[one] for one in sorted(origins - {""}))]
        inputs = frozenset(one.subject for one in found if one.source and graph.inputs[one.op_id or ""].key is not None)
        if inputs:
            yield spec, inputs, any(one.repartitions for one in found)


def entries_of(graph: Graph, id: str) -> set[str]:
    """Return the entries of its stage that feed an operator: sources and repartitionings."""
    found, above = set(), {id}
    while above:
        parents = {parent for one in above for parent in graph.keyed_parents(one)}
        entries = {parent for parent in parents if graph.specs[parent].source or graph.specs[parent].repartitions}
        found |= entries
        above = parents - entries
    return found


def _way(graph: Graph, origin: Spec, sizes: Mapping[str, int]) -> _Way:
    id = origin.op_id or ""
    source, partitioning = graph.inputs.get(id), graph.of(PartitionBy).get(id)
    stream = intermediate(graph.app, id) if source is None else source.stream
    if sizes[stream] == 1:
        # In one partition all keys meet, whoever has written them.
        return _Way(1, hash_)
    if source is not None and source.key_of is not None:
        return _Way(sizes[stream], WRITERS)
    return _Way(sizes[stream], hash_ if partitioning is None else partitioning.by)


def _tables_into(graph: Graph, spec: Spec) -> Iterator[Spec]:
    """Yield the tables that an operator meets where their writers have put them, as nothing can be repartitioned."""
    id, joined = spec.op_id or "", {**graph.of(KeyJoin), **graph.of(ForeignKeyJoin)}
    left = graph.keyed_parents(id)[0 if id in joined else 1 :]
    left = left if id in joined or id in graph.of(OwnTableJoin) or spec.by_table_key else []
    while left:
        one = left.pop()
        if one in joined:
            left += graph.keyed_parents(one)
        elif one in graph.inputs:
            yield graph.specs[one]


def _to_tables(tables: Set[_Way], most: int) -> str:
    """Return what has keys meet those of tables: these lie where their writers have put them, so streams go there."""
    way = next(iter(tables))
    if len(tables) > 1:
        return "app.input(...).partition_by(...).to_table(...) in the place of app.table(...), for both"
    if way.by == WRITERS:
        return "key= the type of the stored key in app.table(...), and .partition_by(..., key_type=...) on the stream"
    return f".partition_by({_said('..., key_type=...', way.partitions, most)}) on the stream, before it meets the table"


def _said(arguments: str, partitions: int, most: int) -> str:
    """Return the arguments of a `partition_by`, with its partition count if that is within the cap.

    Without a count it takes that of what it meets, so the advice holds beyond the cap, too.
    """
    return f"{arguments}, partitions={partitions}" if partitions <= most else arguments


def _is_partitioned(source: Input, sizes: Mapping[str, int]) -> bool:
    return source.key_of is None or source.partitioned_by_key or sizes[source.stream] == 1


def _unsaid(source: Input, size: int) -> str:
    return f"the key of {source.stream!r} is a function, and nothing says that its {size} partitions are made by it"
