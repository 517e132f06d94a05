"""Refusal of bindings by which an output would lie where an input, another output or a stream between stages does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeGuard

from planner.model.graph import Graph
from planner.model.plan import Role
from planner.passes import streams_of
from runtime.model.errors import SamzaError
from runtime.ports.connectors import (
    AnySource,
    ConnectedSink,
    PositionedSink,
    PulledSource,
    PushedSource,
    TransactionalSink,
)
from runtime.systems.connectors.schemes import connected_at
from runtime.systems.files.csv_files import CsvFiles
from runtime.systems.files.files import parts_below
from runtime.systems.files.places.locations import globs_of, is_remote, local_path, may_find
from runtime.systems.files.places.tables import SparkTable, into_table, table_of
from runtime.systems.kafka.client.topic import SCHEME, known_by, topic_of

ANOTHER = "stream:"
"""Begins what an output is bound to that is written to another stream of the environment."""
READ, RESULTS = ("input", "table"), ("output", "dead_letter")
ROLES = {"intermediate": "intermediate stream", "dead_letter": "stream of dead letters"}


def is_another(what: object) -> TypeGuard[str]:
    """Whether an output is bound to another stream of the environment."""
    return isinstance(what, str) and what.startswith(ANOTHER)


class StreamPlace(NamedTuple):
    """The place of a stream, by any of what it is known by, or by files; several outputs may be added to a shared one.

    All that is `read` of it counts, which are globs, also files that are not there yet; `written` stands for its own.
    """

    shown: str
    known_by: frozenset[object] = frozenset()
    read: Sequence[str] = ()
    written: Sequence[str] = ()
    is_shared: bool = True

    def has_inside(self, other: StreamPlace) -> bool:
        """Whether files of another place would be read of this one, or taken for its own as it is cut back."""
        return any(may_find(glob, file) for glob, file in product(self.read, other.written))


def check_distinct(graph: Graph, bind: Mapping[str, object], environment: str = "") -> None:
    """Raise SamzaError where streams that differ come to lie at one place; by name the planner has refused it.

    Several outputs may be written to one stream, topic or sink that others have made, but not to one file: each cuts it
    back to what it had itself at the last commit, and so loses what the other has written. An `environment` of brokers
    says their address: its streams are topics there.
    """
    found = dict(named for spec in graph.specs.values() for named in streams_of(graph, spec))
    places = {name: _place(name, role, bind, environment) for name, role in found.items()}
    for one, other in product([name for name in bind if name in found], found):
        if one == other:
            continue
        # An intermediate stream counts as one that is written, and is shared with none.
        first, then = (one, other) if found[one] in READ else (other, one)
        if found[then] in READ:
            continue
        here, there = places[first], places[then]
        meet = not here.known_by.isdisjoint(there.known_by)
        if found[first] in READ:
            meet = meet or here.has_inside(there)
        else:
            meet = meet and not (there.is_shared and found[first] == found[then])
            meet = meet or (not (here.is_shared or there.is_shared) and here.has_inside(there))
        if meet:
            raise _shared(graph.app, there.shown, (first, found[first]), (then, found[then]), bind)


def _place(name: str, role: Role, bind: Mapping[str, object], environment: str) -> StreamPlace:
    what = bind.get(name) if role != "intermediate" else None
    if isinstance(what, SparkTable):
        what = what.frame
    if what is None or is_another(what):
        stream = name if what is None else what.removeprefix(ANOTHER)
        return StreamPlace(f"the stream {stream!r}", _stream(stream, environment))
    if (topic := topic_of(what)) is not None:
        return StreamPlace(topic.address, topic.known_by)
    connected = connected_at(what, writes=role in RESULTS)
    if isinstance(connected, ConnectedSink | AnySource):
        return _connected(name, what, connected, environment)
    table = table_of(what.partition("?")[0] if isinstance(what, str) else what)
    into = into_table(what) if role in RESULTS else None
    if into is not None and into.name is not None:
        table = into.name
    if table is not None and table.format != "delta":
        return StreamPlace(str(table), frozenset({table}), is_shared=False)
    said = what.path if isinstance(what, CsvFiles) else what
    if table is not None:
        said = table.name
    elif into is not None:
        said = into.folder
    if not isinstance(said, str | Path):
        # By identity: two lists that are equal are two.
        return StreamPlace(f"the same {type(what).__name__}", frozenset({id(what)}), is_shared=False)
    if role in READ:
        return StreamPlace(str(said), read=globs_of(said))
    path = globs_of(said)[0] if is_remote(said) else escape(str(local_path(said).resolve()))
    folders, part = "", "" if is_remote(said) else parts_below(local_path(said))
    if into is not None:
        folders, part = "".join(f"{field}=*/" for field in into.partition_by), "part-*.parquet"
    # Parts are looked for at any depth as they are cut back.
    own, parts = ((f"{path}/**/{part}",), (path, f"{path}/{folders}{part}")) if part else ((), (path,))
    return StreamPlace(str(said), frozenset({path}), own, parts, is_shared=False)


def _stream(name: str, environment: str) -> frozenset[object]:
    return known_by(environment, name) if environment.startswith(SCHEME) else frozenset({("stream", name)})


def _connected(name: str, what: object, connected: ConnectedSink | AnySource, environment: str) -> StreamPlace:
    place = connected.place if isinstance(connected, PulledSource | PushedSource | PositionedSink) else ""
    globs = globs_of(place) if place else ()
    known_by: frozenset[object] = frozenset({what if isinstance(what, str) else id(what)})
    if isinstance(connected, PushedSource):
        # What is pushed comes into the stream itself, to what others append there.
        known_by |= _stream(name, environment)
    # One that is cut back has the rows of one output alone.
    is_shared = not isinstance(connected, TransactionalSink)
    return StreamPlace(connected.name, known_by, globs, globs, is_shared)


def _shared(
    app: str, shown: str, one: tuple[str, Role], other: tuple[str, Role], bind: Mapping[str, object]
) -> SamzaError:
    if one[1] in READ:
        why = "it would feed itself"
    elif "intermediate" in (one[1], other[1]):
        why = "stages would read there what no stage has handed on"
    else:
        why = "each would cut it back to its own" if one[1] == other[1] else "letters would pass for results"
    both = " and ".join(f"the {ROLES.get(role, role)} {name!r}" for name, role in (one, other))
    moved = other[0] if other[0] in bind else one[0]
    return SamzaError(f"{app}: {both} would both lie in {shown}: {why}; bind {moved!r} to another place")
