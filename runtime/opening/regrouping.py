"""Regroups inputs whose topics were given more partitions: all of a key goes to one task, wherever it was written."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import msgspec

from operators.io import Input
from operators.partition_by import PartitionBy
from planner.checks.copartitioning import entries_of
from planner.checks.splitting import why_whole
from planner.model.graph import Graph, intermediate
from runtime.assembly.bindings import Bindings
from runtime.job.job_model import JOB, layout_of, reads_of
from runtime.model.checkpoint import Checkpoint
from runtime.ports.environment import Environment
from runtime.stores.registry import kind_of

REGROUPED = "regrouped"
"""The word under which the job notes the inputs whose messages are regrouped, until it begins anew."""
BEHIND = "-by-key"
"""What the id of an input's `partition_by` ends in."""
_log = logging.getLogger("samza_dsl")


def regrouped(graph: Graph, inputs: Collection[str]) -> Graph:
    """Return the graph in which the messages of some inputs go by their keys, through a stream of their own, at once.

    An input by whose keys no state lies, as its user has put a `partition_by` there since, stays as it is.
    """
    specs = dict(graph.specs)
    for id in inputs:
        source = graph.inputs.get(id)
        if source is None or not any(_keeping(graph, id)):
            continue
        shuffle = PartitionBy(parents=(source,), site=source.site, op_id=f"{id}{BEHIND}", key_of=None, key=source.key)
        for child in graph.children(id):
            below = specs[child]
            parents = tuple(shuffle if one.op_id == id else one for one in below.parents)
            specs[child] = replace(below, parents=parents)
        # Parents stand before their children.
        names = [*specs]
        names.insert(names.index(id) + 1, f"{id}{BEHIND}")
        specs = {name: specs.get(name, shuffle) for name in names}
    return graph if len(specs) == len(graph.specs) else replace(graph, specs=specs)


def stream_behind(graph: Graph, id: str) -> str:
    """Return the stream through which the messages of an input go where they are regrouped."""
    return intermediate(graph.app, f"{id}{BEHIND}")


def regrouped_in(graph: Graph) -> list[str]:
    """Return the inputs whose messages are regrouped in a graph."""
    return [graph.parents(id)[0] for id, spec in graph.of(PartitionBy).items() if not spec.rekeys]


def regrouped_streams(graph: Graph) -> set[str]:
    """Return the streams of those inputs."""
    return {graph.inputs[id].stream for id in regrouped_in(graph)}


def as_run(graph: Graph, checkpoints: Mapping[str, Checkpoint]) -> Graph:
    """Return the graph by which an application is run, as far as it was noted when it was last opened."""
    noted = checkpoints.get(JOB, Checkpoint(0)).meanings.get(REGROUPED, "[]")
    return regrouped(graph, msgspec.json.decode(noted, type=list[str]))


def to_regroup(environment: Environment, graph: Graph, bindings: Bindings, counts: Mapping[str, int]) -> list[str]:
    """Return the inputs that are regrouped from now on, and tell of them.

    These were given more partitions, and state lies by their keys. Writers of topics learn of partitions one after the
    other, so for a while a key may come in either, and nobody can tell when the last has learnt of them. Where writers
    put a key by what they alone know, it may lie anywhere from then on, on the embedded log as well.
    """
    checkpoints = environment.checkpoints(graph.app)
    if layout_of(checkpoints):
        return []
    noted = {name: size for reads in reads_of(checkpoints).values() for name, size in reads.items()}
    # Of a stream of the embedded log one knows where each key was when, but for keys that writers have put themselves.
    chosen = {spec.stream for spec in graph.inputs.values() if spec.partitioned_by_key}
    existing = environment.streams([stream for stream in chosen if not bindings.is_of_others(stream)])
    found = []
    for id, spec in graph.inputs.items():
        stream, had = spec.stream, noted.get(spec.stream)
        why = "Its writers learn of them one after the other, so a key may come in either for a while"
        if not bindings.is_of_others(stream):
            grown = existing[stream].grown if stream in existing else ()
            had = (len(grown[0]) if had is None else had) if grown else None
            why = "Only its writers know in which of them a key is"
        if had is None or not had < counts.get(stream, 0) or not _can_follow(graph, id):
            continue
        found.append(id)
        _log.warning(
            "%s: %r has %s partitions now, and had %s. %s: its messages go through %r from now on, each to the task "
            "of its key, which has the state that the key had",
            *(graph.app, stream, counts[stream], had, why, stream_behind(graph, id)),
        )
    for id in (met := _met(graph, found)):
        words = "%s: keys of %r meet those of an input that goes by its keys now, so its messages go through %r, too"
        _log.warning(words, graph.app, graph.inputs[id].stream, stream_behind(graph, id))
    return [*found, *met]


def _can_follow(graph: Graph, id: str) -> bool:
    """Whether operators keep state by the keys of an input, and all of that can move to where its keys come."""
    keeping = [*_keeping(graph, id)]
    # The rows of a table lie as they do.
    can_move = all(why_whole(graph, one, graph.specs[one]) is None for one in keeping)
    return bool(keeping) and can_move and type(graph.inputs[id]) is Input


def _met(graph: Graph, found: Collection[str]) -> list[str]:
    """Return the inputs whose keys meet those of inputs that are regrouped, and lie where their own writers say."""
    met, left = set[str](), [*found]
    while left:
        for operator in _keeping(graph, left.pop()):
            beside = {one for one in entries_of(graph, operator) if one in graph.inputs} - {*found, *met}
            new = {one for one in beside if graph.inputs[one].partitioned_by_key and _can_follow(graph, one)}
            met |= new
            left += new
    return sorted(met)


def _keeping(graph: Graph, id: str) -> Iterator[str]:
    """Yield the operators that keep state by the keys with which messages come from an input."""
    left, seen = [id], {id}
    while left:
        for child in graph.children(left.pop()):
            spec = graph.specs[child]
            if spec.keyed and spec.stateful and not spec.looked_into and kind_of(spec).durable and child not in seen:
                yield child
            if child not in seen and not spec.repartitions:
                left.append(child)
            seen.add(child)
