"""Connectors in a bounded run on a batch engine: sources are read before it, and sinks are handed rows behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.core.base import Output, Serde
from operators.io import Input
from planner.model.graph import Graph
from runtime.assembly.distinct_places import ANOTHER, is_another
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.errors import SamzaError
from runtime.ports.commits import Commit
from runtime.ports.connectors import (
    AnySource,
    ConnectedSink,
    ConnectedSource,
    DeliveredSink,
    PulledSource,
    PushedSource,
)
from runtime.ports.environment import Environment
from runtime.ports.source import Source
from runtime.ports.streams import Append
from runtime.run.settings import open_environment
from runtime.systems.connectors.inbox import PulledInput
from runtime.systems.connectors.outbox import Outbox, refusals_of
from runtime.systems.connectors.reading import AT_ONCE, PolledSource
from runtime.systems.connectors.schemes import connected_at, is_connected
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource

_IDENTITIES = 1 << 62


class Connected:
    """The connectors that a bounded run reads and writes.

    A source is read by the driver, to its end of now, into memory. Rows for a sink come to a stream of the embedded
    log, visible with all other results at once, and from there to the sink: whoever comes after a death in between
    hands over what is left, and computes nothing anew. Rows that a sink refuses go by the policy of who writes them, as
    in a live run. That stream is deleted once the sink has all of it, and tells by
    its id who owns a sink with positions. Raises SamzaError for what can't be used here.
    """

    def __init__(
        self, graph: Graph, bind: Mapping[str, object], data: str | Path | Environment, on_brokers: bool
    ) -> None:
        self._graph, self._data = graph, data
        self._sources: dict[str, ConnectedSource | PulledSource] = {}
        self._sinks: dict[str, DeliveredSink] = {}
        self._letters = {name: str(what).removeprefix(ANOTHER) for name, what in bind.items() if is_another(what)}
        reads = {spec.stream for spec in graph.inputs.values()}
        for stream, what in bind.items():
            if stream in reads:
                source = connected_at(what, writes=False)
                if isinstance(source, AnySource):
                    self._sources[stream] = _bounded(stream, source)
            else:
                sink = connected_at(what, writes=True)
                if isinstance(sink, ConnectedSink):
                    self._sinks[stream] = _delivered(stream, sink, on_brokers)

    def outputs(self, bind: Mapping[str, object]) -> dict[str, object]:
        """Return the bindings with each sink's stream in its place."""
        return {**bind, **{stream: f"{ANOTHER}{self._outbox(stream).stream}" for stream in self._sinks}}

    def inputs(self, bind: Mapping[str, object]) -> dict[str, object]:
        """Read all sources, and return the bindings with their records in their place."""
        specs = {spec.stream: spec for spec in self._graph.inputs.values()}
        return {**bind, **{stream: _read(self._graph.app, specs[stream], one) for stream, one in self._sources.items()}}

    @property
    def is_left(self) -> bool:
        """Whether an earlier run was through, and has died before sinks had all of its rows."""
        if not self._sinks:
            return False
        with self._environment() as environment:
            known = environment.streams()
            streams = [self._outbox(stream).stream for stream in self._sinks]
            return any(
                environment.offsets(one, place).end
                for one in streams
                if one in known
                for place in range(known[one].partitions)
            )

    def deliver(self) -> None:
        """Hand sinks the rows that are there for them; raises `Unavailable`, and the rows wait for the next run."""
        if not self._sinks:
            return
        with self._environment() as environment:
            known = environment.streams()
            for stream in self._sinks:
                outbox = self._outbox(stream, environment)
                if outbox.stream not in known:
                    continue
                with closing(outbox):
                    identity = environment.stream_id(outbox.stream) % _IDENTITIES
                    generation = environment.own(self._graph.app)
                    start = f"{outbox.stream}!"
                    noted = self._stored(environment)
                    passed = {name.removeprefix(start): at for name, at in noted.items() if name.startswith(start)}
                    outbox.open(generation, identity, {}, passed)
                    outbox.deliver(whole=True)
                # In this order: rows that are there might be handed over, and have dead letters, once more.
                environment.delete_stream(outbox.stream)
                self._note(environment, generation, outbox, {})

    def _outbox(self, stream: str, opened: Environment | None = None) -> Outbox:
        environment = opened or MemoryEnvironment()
        written = {id: one for id, spec in self._graph.specs.items() for one in spec.outputs if one.stream == stream}

        def keep(generation: int, letters: list[Append]) -> None:
            letters = [one._replace(stream=self._letters.get(one.stream, one.stream)) for one in letters]
            self._note(environment, generation, outbox, outbox.passed, letters)

        refusals = refusals_of({id: self._graph.specs[id] for id in written}, keep)
        declared: Output = next(iter(written.values()))
        outbox = Outbox(environment, self._graph.app, declared, self._sinks[stream], refusals)
        outbox.stream += ".bounded"  # a live run of the application has another one
        return outbox

    def _stored(self, environment: Environment) -> dict[str, int]:
        return environment.checkpoints(self._graph.app).get(SHARED, Checkpoint(0)).outputs

    def _note(
        self,
        environment: Environment,
        generation: int,
        outbox: Outbox,
        passed: Mapping[str, int],
        letters: Sequence[Append] = (),
    ) -> None:
        """Commit dead letters together with which rows these are; a live run's notes stay as they are."""
        stored = self._stored(environment)
        outputs = {name: at for name, at in stored.items() if not name.startswith(f"{outbox.stream}!")}
        outputs |= {f"{outbox.stream}!{name}": at for name, at in passed.items()}
        if outputs == stored and not letters:
            return
        noted = {SHARED: Checkpoint(generation, outputs=outputs)} if outputs else {}
        gone = () if outputs else (SHARED,)
        environment.commit(Commit(self._graph.app, generation, [*letters], [], noted, gone=gone))

    @contextmanager
    def _environment(self) -> Iterator[Environment]:
        opened = open_environment(self._data)
        with nullcontext() if opened is self._data else closing(opened):
            yield opened


def refuse_connectors(bind: Mapping[str, object]) -> None:
    """Raise SamzaError for connectors, which a run on Spark that goes on has no use for."""
    for stream, what in bind.items():
        if isinstance(what, AnySource | ConnectedSink) or is_connected(what):
            raise _refused(stream, "a run on Spark that goes on reads and writes no connectors", "run it live")


def _bounded(stream: str, source: AnySource) -> ConnectedSource | PulledSource:
    if isinstance(source, PushedSource):
        wrong = f"{source.name} is taken into the embedded log by a live run, and Spark reads what is there"
        raise _refused(stream, wrong, "let a live run read it, and run this one over its stream")
    if isinstance(source, PulledSource):
        if source.snapshot is None:
            wrong = f"{source.name} tells changes, for which it keeps something in the place of whoever reads on"
            instead = 'give one of yours a snapshot=, or name a column that tells an order, by="id" or &by=id'
            raise _refused(stream, wrong, instead)
        return replace(source, pull=source.snapshot)
    return source


def _delivered(stream: str, sink: ConnectedSink, on_brokers: bool) -> DeliveredSink:
    if not isinstance(sink, DeliveredSink):
        raise _refused(stream, f"{sink.name} is cut back to commits, and a run on Spark has one", "bind a file")
    if on_brokers:
        wrong = f"rows wait for {sink.name} in the embedded log, and this run is on brokers"
        raise _refused(stream, wrong, "write to a topic, which a live run delivers")
    return sink


def _refused(stream: str, wrong: str, instead: str) -> SamzaError:
    return SamzaError(f"bind={{{stream!r}: ...}}: {wrong}: {instead}; or leave on=Spark(...) out")


def _read(app: str, spec: Input, source: ConnectedSource | PulledSource) -> Source:
    """Return what a source has now, decoded; raises SamzaError for a record that is not of the input's type."""
    with closing(_opened(app, spec, source)) as opened:
        values: list[list[object]] = []
        keys: list[list[object]] = []
        times: list[list[object]] = []
        for partition in range(opened.partitions):
            found = _read_partition(opened, partition, opened.serde(spec.value))
            for column, more in zip((values, keys, times), found, strict=True):
                column.append(more)
    number = len(values)
    if number == 1:
        return ListSource(values[0], _said(times[0]), _said(keys[0]))
    return ListSource(values, _said(times), _said(keys), partitions=number)


def _opened(app: str, spec: Input, source: ConnectedSource | PulledSource) -> PulledInput | PolledSource:
    if not isinstance(source, PulledSource):
        return PolledSource(source, spec.op_id)
    # An inbox in memory, which is gone with the run: what is read again comes from the place.
    environment = MemoryEnvironment()
    pulled = PulledInput(environment, app, spec, source)
    try:
        pulled.inbox.fill(environment.own(app))
    except BaseException:
        pulled.close()
        raise
    return pulled


def _read_partition(opened: PulledInput | PolledSource, partition: int, serde: Serde) -> tuple[list[object], ...]:
    values: list[object] = []
    keys: list[object] = []
    times: list[object] = []
    offset, end, _ = opened.offsets(partition)
    while offset < end and (read := opened.read(partition, offset, AT_ONCE)) is not None:
        batch = read.batch
        try:
            values += [None if value is None else serde.decode(value) for value in batch.values]
        except Exception as error:
            raise SamzaError(
                f"{opened.name}: a record at or behind offset {offset:,} is not of the input's type, and on Spark no "
                f"on_error= is heeded for a connector's: {error}"
            ) from error
        none: Sequence[None] = [None] * len(batch)
        keys += batch.keys or none
        times += batch.timestamps or none
        offset = read.next_offset
    return values, keys, times


def _said(column: list[Any]) -> list[Any] | None:
    """Return a column, of one partition or of several; None where nothing is said in it, or not of all."""
    cells = [cell for part in column for cell in (part if isinstance(part, list) else [part])]
    return None if any(cell is None for cell in cells) else column
