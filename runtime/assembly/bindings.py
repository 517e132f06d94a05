"""The places where the streams of one run live: the environment, or what the user bound in their place."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from operators.core.base import Output, Site, Spec
from operators.io import Input
from planner.model.errors import refuse
from planner.model.graph import Graph, intermediate
from planner.model.plan import Plan, StreamPlan
from planner.passes import streams_of
from runtime.assembly.distinct_places import ANOTHER, RESULTS, check_distinct, is_another
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.errors import Damaged, SamzaError
from runtime.model.metrics import RunMetrics
from runtime.model.urls import check_is_text
from runtime.ports.commits import Commit
from runtime.ports.connectors import ConnectedSink, ConnectedSource, PulledSource, PushedSource, TransactionalSink
from runtime.ports.environment import Environment, LiveEnvironment, typed
from runtime.ports.sink import Limit, LimitedSink, Sink
from runtime.ports.source import (
    FetchedSource,
    LiveSource,
    NamedPartitions,
    ReplaceableSource,
    Source,
    Stamping,
    TransactionalSource,
    UncountedSource,
)
from runtime.ports.streams import Append, Offsets, StreamConfig, check_name, contradicted
from runtime.reading.fingerprint import Fingerprint
from runtime.reading.origin import Origin
from runtime.reading.reader import Reader
from runtime.systems.connectors.inbox import Inbox, PulledInput, PulledTopic
from runtime.systems.connectors.outbox import CutBackSink, Outbox, is_outbox_of, refusals_of
from runtime.systems.connectors.schemes import connected_sink, connected_source, is_connected
from runtime.systems.files.csv_files import CsvFiles
from runtime.systems.files.places.locations import local_path, needs_pyarrow
from runtime.systems.files.places.tables import check_read_anywhere, check_written_anywhere, into_table, is_frame
from runtime.systems.host.locks import mark_writer, writer_of
from runtime.systems.kafka.client.topic import topic_of
from runtime.systems.memory.lists import ListSink

WRITTEN = (*RESULTS, "intermediate")
SAID = ("partitions", "retention_ms", "retention_bytes", "compression")
"""What may be said of a stream that is yet to be made."""
STREAM_ID = "@"
"""The last sign of the name under which checkpoints note which stream rows wait in for a sink."""


class Bindings:
    """Bound sources and sinks, and the environment for all other streams."""

    def __init__(self, environment: Environment, graph: Graph, bind: Mapping[str, object]) -> None:
        self.environment = environment
        self.sources: dict[str, Source] = {}
        self.sinks: dict[str, Sink] = {}
        self.places: dict[str, str] = {}
        """What names a bound output in checkpoints: its stream, and the file that it is bound to."""
        self.sites: dict[str, str] = {}
        """The line of the program that declares a bound output."""
        self.outboxes: dict[str, Outbox] = {}
        """By output, what delivers it to a sink behind each commit."""
        self.inboxes: dict[str, Inbox] = {}
        """By input, what takes a source that can't be read again into the stream that is read."""
        self._app = graph.app
        self._others: dict[str, str] = {}
        self._topics: dict[str, str] = {}
        self._limits: dict[str, Limit] | None = None
        self._occupied: set[str] = set()
        self._paths: dict[str, Path] = {}
        self._partitions: dict[str, int] = {}
        self._held: Mapping[str, int] = {}
        self._counted: dict[str, int] = {}
        self._ends: dict[tuple[str, int], tuple[int, bool]] = {}
        roles = [named for spec in graph.specs.values() for named in streams_of(graph, spec)]
        self._own = {name for name, role in roles if role in WRITTEN}
        letters = letters_of(graph)
        read = {spec.stream for spec in graph.inputs.values()}
        written = {output.stream: output for spec in graph.specs.values() for output in spec.outputs}
        self._writers = {
            name: {id: spec for id, spec in graph.specs.items() if name in {one.stream for one in spec.outputs}}
            for name in written
        }
        if not isinstance(bind, Mapping):
            raise SamzaError(f'bind={bind!r} names no streams; write instead: bind={{"flights": "flights.jsonl"}}')
        check_distinct(graph, bind, str(environment))
        try:
            for name, what in bind.items():
                # A file that is read may have any name: nothing notes it.
                if isinstance(what, str | Path) and (name not in read or is_connected(what)):
                    check_is_text(what)
                if name in read:
                    connected = connected_source(what) if isinstance(what, str) else what
                    if isinstance(connected, PushedSource):
                        self.inboxes[name] = Inbox(environment, graph.app, _taken_in(graph, name, connected), connected)
                        continue
                    self.sources[name] = self._source(graph, name, what if connected is None else connected)
                    if isinstance(self.sources[name], LiveSource):
                        check_source(graph, name, self.sources[name].partitions)
                elif name in written:
                    self._bind_output(written[name], what)
                elif name in letters:
                    if not is_another(what):
                        raise _not_to_bind(name, what, "dead letters", f'another stream, as "{ANOTHER}{name}-2"')
                    self._bind_to_another(name, what)
                else:
                    known = ", ".join(sorted(read | written.keys() | letters))
                    raise SamzaError(f"bind has {name!r}, which the app neither reads nor writes; it has {known}")
        except BaseException:
            self.close()
            raise

    def recover_outputs(self, positions: Mapping[str, int], generation: int) -> dict[str, int]:
        """Take bound outputs back to what was committed, and return all positions; raises SamzaError.

        A file that has something in it and is not of this application's making is left alone, and so is an empty one
        that another application writes. Sinks that rows are delivered to are claimed for a generation, and are given
        what they have not yet.
        """
        for stream, place in self.places.items():
            if place in positions:
                continue
            if stream in self._occupied:
                raise SamzaError(
                    f"{place.partition('=')[2]} has something in it that this app did not write; remove it, or bind "
                    f"{stream!r} to another path"
                )
            if stream in self._paths and (writer := writer_of(self._paths[stream])) not in ("", self._app):
                raise SamzaError(
                    f"{self._paths[stream]} is what the app {writer!r} writes, and an app has its outputs alone; bind "
                    f"{stream!r} to another path, or remove it where {writer!r} writes it no more"
                )
        for stream, sink in self.sinks.items():
            sink.recover(positions.get(self.places[stream], 0))
        for path in self._paths.values():
            mark_writer(path, self._app)
        found = {**positions, **{place: positions.get(place, 0) for place in self.places.values()}}
        for outbox in self.outboxes.values():
            # Drawn anew where the application has never written there, or begins anew: a sink tells by that whether
            # it knows of the same rows under the same offsets.
            if (place := place_of_sink(outbox)) not in found:
                outbox.forget()
            recorded = _recorded(outbox, positions)
            outbox.check_kept(positions.get(f"{place}{STREAM_ID}", 0), recorded)
            identity = found.setdefault(place, secrets.randbits(62))
            outbox.open(generation, identity, recorded, _passed(outbox, positions), is_known=place in positions)
        return self._noted(found)

    def _noted(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return what checkpoints note of outputs, as it is now: rows that sinks were led past are noted no more.

        Of outputs that are yet to be opened it stays as it was noted: letters of one may be kept before.
        """
        starts = tuple(f"{place_of_sink(outbox)}!" for outbox in self.outboxes.values() if outbox.is_open)
        return {name: at for name, at in positions.items() if not name.startswith(starts)} | self.delivered()

    def delivered(self) -> dict[str, int]:
        """Return how far sinks have what was committed, as checkpoints note it."""
        found: dict[str, int] = {}
        for outbox in self.outboxes.values():
            place = place_of_sink(outbox)
            found |= {f"{place}#{partition}": position for partition, position in outbox.positions.items()}
            found |= {f"{place}!{name}": offset for name, offset in outbox.passed.items()}
            if outbox.stream_id:
                found[f"{place}{STREAM_ID}"] = outbox.stream_id
        return found

    def taken_out(self) -> dict[tuple[str, int], int]:
        """Return the offsets below which nobody needs what waited for sinks, by stream and partition."""
        return {
            (outbox.stream, partition): position
            for outbox in self.outboxes.values()
            for partition, position in outbox.positions.items()
        }

    def deliver(self, whole: bool = False) -> None:
        """Hand sinks what was committed, all where `whole`; raises `Unavailable` where one fails for long.

        It is called by one thread at a time, the writer's. Raises `Fenced` where another run has a sink.
        """
        for outbox in self.outboxes.values():
            outbox.deliver(whole)

    def counted(self, found: RunMetrics) -> RunMetrics:
        """Return the numbers of a run with those of rows that sinks have refused."""
        operators = [*found.operators]
        for refused in [one for outbox in self.outboxes.values() for one in outbox.counts()]:
            # To numbers that are there: by themselves they would be of a task that knows no event time.
            at = next((at for at, one in enumerate(operators) if one.operator == refused.operator), None)
            if at is None:
                operators.append(refused)
            else:
                dead_lettered = operators[at].dead_lettered + refused.dead_lettered
                skipped = operators[at].skipped + refused.skipped
                operators[at] = msgspec.structs.replace(operators[at], dead_lettered=dead_lettered, skipped=skipped)
        return msgspec.structs.replace(found, operators=tuple(operators))

    @property
    def look_ms(self) -> float:
        """The ms until rows may be due that wait on their way to a sink; infinity where none ever do."""
        return min((outbox.look_ms for outbox in self.outboxes.values()), default=math.inf)

    def end(self) -> None:
        """Leave rows to the next run that sinks are given at a pace; may be called from a signal handler."""
        for outbox in self.outboxes.values():
            outbox.end()

    def empty_outputs(self, positions: Mapping[str, int]) -> None:
        """Empty the bound outputs that this application has written."""
        for stream, place in self.places.items():
            if place in positions:
                self.sinks[stream].recover(0)
                self._occupied.discard(stream)
        generation = self.environment.generation(self._app)
        for outbox in self.outboxes.values():
            if (place := place_of_sink(outbox)) in positions:
                outbox.empty(_recorded(outbox, positions), generation, positions[place])

    def streams_of(self, spec: Input) -> list[str]:
        """Return the streams that an input stands for: one, or all that match its pattern now and are not our own."""
        if not spec.is_pattern or spec.stream in self.sources:
            return [spec.stream]
        found = self.environment.streams()
        matching = (name for name in found if spec.matches(name) and not found[name].intermediate)
        own = self._own | {*self._others.values()}
        return sorted(name for name in matching if name not in own)

    def _check_input(self, spec: Input, streams: Mapping[str, StreamConfig], existing: Mapping[str, int]) -> None:
        for name in self.streams_of(spec):
            if not spec.is_pattern or existing[name] > (spec.partitions or existing[name]):
                _check_partitions(spec, spec.partitions, name, existing.get(name))
        which, instead = "removes what it has consumed", ".send_to(app.output(...)) there, and that output's name here"
        _check_not_between(spec, spec.stream, streams, which, instead)

    def partition_counts(self, graph: Graph, elsewhere: Container[str] = ()) -> dict[str, int]:
        """Return the partitions of every stream that can be read; raises PlanError where they contradict the app.

        The outputs that are `elsewhere` don't live in the environment, though nothing was bound here.
        """
        streams = self.environment.streams()
        existing = {name: config.partitions for name, config in streams.items() if not config.intermediate}
        for id, spec in graph.specs.items():
            if spec.source and spec.subject not in self.sources:
                self._check_input(graph.inputs[id], streams, existing)
            for name, role in streams_of(graph, spec):
                if role in RESULTS and not (name in self.outboxes or name in self.sinks or name in elsewhere):
                    place = self.place_of(name)
                    # Of its own outbox: containers write what the process that has started them delivers.
                    if not is_outbox_of(graph.app, name, place):
                        which = "would read what is written there as what its own stages have handed on"
                        instead = f"another name for {name!r}, or bind it to another stream"
                        _check_not_between(spec, place, streams, which, instead)
            for output in spec.outputs:
                place = self.place_of(output.stream)
                if output.stream not in self.sinks and output.stream not in elsewhere and place in streams:
                    _check_config(output, streams[place])
        read = {spec.stream for spec in graph.inputs.values()} - self.sources.keys()
        self._counted = {name: existing[name] for name in read & existing.keys()}
        return existing | {name: source.partitions for name, source in self.sources.items()}

    def create_streams(self, plan: Plan) -> None:
        """Make every stream of the plan that does not exist; raises SamzaError where one contradicts the plan."""
        compacted = {stream.name for stream in plan.streams if stream.role == "table"}
        for stream in plan.streams:
            bound = stream.name in self.sources or stream.name in self.sinks
            if bound or "*" in stream.name or "?" in stream.name:
                continue
            between = stream.role == "intermediate" or stream.name in self.outboxes
            wanted = config_of(stream, compacted=stream.name in compacted, intermediate=between)
            found = self.environment.create_stream(self.place_of(stream.name), wanted)
            if between and not found.intermediate:
                raise SamzaError(
                    f"the stream {stream.name!r} exists, and {plan.app!r} would use it between its stages and remove "
                    "what it has consumed: give the partition_by or broadcast that writes it another op_id="
                )
            # An outbox keeps the partitions that it was made with: nobody finds state by them.
            if between and found.partitions != wanted.partitions and stream.name not in self.outboxes:
                raise SamzaError(
                    f"the intermediate stream {stream.name!r} has {found.partitions} partitions and the plan wants "
                    f"{wanted.partitions}: keys would move away from their state. Say partitions={found.partitions} "
                    f"in its partition_by, or begin anew: {typed(self.environment, f'reset {plan.app}')}"
                )

    def limits(self, plan: Plan) -> dict[str, Limit]:
        """Return how large records may be of what is written, as far as that was known when it was first asked."""
        if self._limits is None:
            self._limits = self._find_limits(plan)
        return self._limits

    def _find_limits(self, plan: Plan) -> dict[str, Limit]:
        found = {name: sink.limit() for name, sink in self.sinks.items() if isinstance(sink, LimitedSink)}
        if isinstance(self.environment, LiveEnvironment):
            written = {stream.name for stream in plan.streams if stream.role not in ("input", "table")}
            places = {name: self.place_of(name) for name in written - self.sinks.keys()}
            limits = self.environment.limits({*places.values()})
            found |= {name: limits.get(place) for name, place in places.items()}
        return {name: limit for name, limit in found.items() if limit is not None}

    def values_of(self, stream: str) -> list[Any]:
        """Return the values of a bound output; raises SamzaError where it keeps none at hand."""
        if stream in self.outboxes:
            raise SamzaError(
                f"received({stream!r}): the output is bound to {self.outboxes[stream].where}; read it there"
            )
        sink = self.sinks[stream]
        if isinstance(sink, ListSink):
            return sink.values
        _, _, path = self.places[stream].partition("=")
        raise SamzaError(f"received({stream!r}): the output is bound to {path or sink}; read it there")

    def partitions(self, stream: str) -> int:
        """Return how many partitions a stream has, wherever it lives: as many as when it was first asked for."""
        if stream in self._held:
            return self._held[stream]
        if stream in self.sources:
            return self.sources[stream].partitions
        place = self.place_of(stream)
        if place not in self._partitions:
            found = self.environment.streams([place])
            self._partitions |= {name: config.partitions for name, config in found.items()}
        if place not in self._partitions:
            raise Damaged(
                f"The stream {place!r} is gone, which was there when this run began: bring it back, or make it anew "
                f"and let the application begin anew: {typed(self.environment, f'reset {self._app}')}"
            )
        return self._partitions[place]

    def read_among(self) -> dict[str, int]:
        """Return the partitions that inputs of the environment had when they were counted, for all that are read."""
        return {name: size for name, size in self._counted.items() if name not in self._held}

    def hold(self, partitions: Mapping[str, int]) -> None:
        """Let streams have so many partitions for whoever asks, also where there are more by now."""
        self._held = partitions

    def place_of(self, stream: str) -> str:
        """Return the stream of the environment that one of the application's is written to: itself, or another."""
        return self._others.get(stream, stream)

    def name_of(self, stream: str) -> str:
        """Return what a stream that is written is called where it lies, by which schemas of it are registered."""
        return self._topics.get(stream) or self.place_of(stream)

    def end_at(self, ends: Iterable[tuple[str, int, int]], *, ended: Collection[tuple[str, int]] | None = None) -> None:
        """Let partitions end at offsets for whoever asks from now on: for good, or only those that have `ended`.

        Others go on reading the rest; all end for good where nothing is said.
        """
        self._ends = {
            (stream, partition): (offset, ended is None or (stream, partition) in ended)
            for stream, partition, offset in ends
        }

    def is_of_others(self, stream: str) -> bool:
        """Whether others write a stream, a topic or what is bound: each key where they choose, without a word here."""
        return stream in self.sources or isinstance(self.environment, LiveEnvironment)

    def is_topic(self, stream: str) -> bool:
        """Whether a stream is a topic, whose writers put keys where hashes say that are known."""
        return isinstance(self.sources.get(stream), Stamping) if stream in self.sources else self.is_of_others(stream)

    def origin(self, stream: str, partition: int, reader: int = 0) -> Origin:
        """Return how to read one partition, as one of several readers of it."""
        origin = replace(self._origin(stream, partition, reader), number=reader)
        if (stream, partition) not in self._ends:
            return origin
        end, ended = self._ends[stream, partition]

        def until(look: Callable[[], Offsets]) -> Callable[[], Offsets]:
            return lambda: Offsets(look().start, end, ended)

        return replace(origin, offsets=until(origin.offsets), known=until(origin.known))

    def _origin(self, stream: str, partition: int, reader: int) -> Origin:
        source = self.sources.get(stream)
        if source is not None:
            bound = source.reader(reader) if isinstance(source, FetchedSource) else source
            known: Callable[[int], Offsets] = bound.offsets
            if isinstance(bound, UncountedSource):
                known = bound.known
            origin = Origin(
                system=bound.name,
                stream=stream,
                partition=partition,
                read=lambda offset: bound.read(partition, offset),
                offsets=partial(bound.offsets, partition),
                known=partial(known, partition),
                version=lambda: 0,
            )
            if isinstance(bound, LiveSource):
                version, unheard_ms = partial(bound.version, partition), partial(bound.unheard_ms, partition)
                stream_id = getattr(bound, "stream_id", origin.stream_id)
                origin = replace(origin, version=version, unheard_ms=unheard_ms, stream_id=stream_id)
            if isinstance(bound, NamedPartitions):
                origin = replace(origin, stream_id=partial(bound.partition_id, partition))
            if isinstance(bound, ReplaceableSource):
                origin = replace(origin, fingerprint=Fingerprint(bound, stream, partition))
            if isinstance(bound, TransactionalSource):
                origin = replace(origin, held=partial(bound.held, partition))
            if isinstance(bound, UncountedSource):
                origin = replace(origin, expected=partial(bound.expected, partition))
            return origin
        environment = self.environment
        origin = Origin(
            system="log",
            stream=stream,
            partition=partition,
            read=lambda offset: environment.read(stream, partition, offset),
            offsets=partial(environment.offsets, stream, partition),
            known=partial(environment.offsets, stream, partition),
            version=environment.version,
            stream_id=partial(environment.stream_id, stream),
        )
        if isinstance(environment, LiveEnvironment):
            of_it, reading = (stream, partition), environment.reader(reader)
            origin = replace(
                origin,
                read=lambda offset: reading.read(stream, partition, offset),
                offsets=partial(reading.offsets, *of_it),
                known=partial(reading.known, *of_it),
                fetched=partial(reading.fetched, *of_it),
                unheard_ms=partial(reading.unheard_ms, *of_it),
                held=partial(reading.held, *of_it),
            )
        return origin

    def look(self, places: Mapping[str, Collection[int]], reader: int = 0) -> None:
        """Refresh the known end offsets of partitions; one broker round trip on Kafka, nothing elsewhere."""
        if isinstance(self.environment, LiveEnvironment):
            for stream in places.keys() - self.sources.keys():
                self.environment.reader(reader).look(stream, places[stream])

    def ranges(self, stream: str, partitions: Collection[int]) -> dict[int, Offsets]:
        """Return how far partitions of a stream are now; brokers are asked for all of them at once."""
        if isinstance(self.environment, LiveEnvironment) and stream not in self.sources:
            self.environment.look(stream, partitions)
            return {partition: self.origin(stream, partition).known() for partition in partitions}
        return {partition: self.origin(stream, partition).offsets() for partition in partitions}

    @property
    def have_transactions(self) -> bool:
        """Whether anything is read of which writers may have left a transaction open."""
        is_live = isinstance(self.environment, LiveEnvironment)
        return is_live or any(isinstance(source, TransactionalSource) for source in self.sources.values())

    def written(self, stream: str) -> list[int]:
        """Ask how far each partition of a stream is written, by transactions that are still open as well."""
        source = self.sources.get(stream)
        if isinstance(source, TransactionalSource):
            return source.written()
        if source is None and isinstance(self.environment, LiveEnvironment):
            return self.environment.written(stream)
        return [self.origin(stream, number).offsets().end for number in range(self.partitions(stream))]

    def settle(self, stream: str) -> None:
        """Wait for transactions that are open in a stream; raises `HeldBack` where others leave some open."""
        source = self.sources.get(stream)
        if isinstance(source, TransactionalSource):
            source.settled()
        elif source is None and isinstance(self.environment, LiveEnvironment):
            self.environment.settled(stream)

    def expect(self, readers: Iterable[Reader]) -> None:
        """Tell the systems from where these readers are about to read."""
        if isinstance(self.environment, LiveEnvironment):
            offsets: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
            for reader in readers:
                origin = reader.origin
                if origin.stream not in self.sources and not reader.exhausted:
                    offsets[origin.stream, origin.number][origin.partition] = reader.next_offset
            for (stream, number), of_stream in offsets.items():
                self.environment.reader(number).expect(stream, of_stream)

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from any thread, when there may be more to read."""
        if isinstance(self.environment, LiveEnvironment):
            self.environment.listen(tell)
        for source in self.sources.values():
            if isinstance(source, LiveSource):
                source.listen(tell)
        for inbox in self.inboxes.values():
            inbox.listen(tell)

    def fill(self, generation: int) -> None:
        """Take in what sources that push have now; raises SamzaError for what goes wrong there."""
        for inbox in self.inboxes.values():
            if inbox.pulling is None:
                inbox.fill(generation)

    def catch_up(self, generation: int) -> None:
        """Take in all that places have by now which are pulled, before anything is read: a table begins with all rows.

        Only the process that owns the application does.
        """
        for inbox in self.inboxes.values():
            if inbox.pulling is not None:
                inbox.fill(generation)

    async def take_in(self, generation: int) -> None:
        """Take in what comes for as long as it is awaited; raises the first error of a source, and does not return."""
        loop, failed = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(error: SamzaError) -> None:
            with suppress(RuntimeError):  # the run is over
                loop.call_soon_threadsafe(_fail, failed, error)

        for inbox in self.inboxes.values():
            inbox.start(generation, tell)
        await failed

    def _source(self, graph: Graph, stream: str, what: object) -> Source:
        if isinstance(what, PulledSource):
            spec = _taken_in(graph, stream, what)
            if isinstance(self.environment, LiveEnvironment):
                pulled: PulledInput = PulledTopic(self.environment, self._app, spec, what)
            else:
                pulled = PulledInput(self.environment, self._app, spec, what)
            self.inboxes[stream] = pulled.inbox
            return pulled
        if isinstance(what, ConnectedSource):
            from runtime.systems.connectors.reading import PolledSource

            operators = (spec.op_id for spec in graph.inputs.values() if spec.matches(stream))
            return PolledSource(what, next(operators, None))
        return _source(stream, what)

    def _bind_output(self, output: Output, what: object) -> None:
        stream = output.stream
        self.sites[stream] = str(output.site)
        if is_another(what):
            self._bind_to_another(stream, what)
            return
        topic = topic_of(what)
        if topic is not None:
            from runtime.systems.kafka.streams.sink import KafkaSink

            self.sinks[stream] = KafkaSink(topic, config_of(output))
            self._topics[stream] = topic.name
            if topic.is_at(str(self.environment)):
                self._own.add(topic.name)
            self.places[stream] = f"{stream}={topic.address}"
            _check_partitions(output.site, output.partitions, topic.address, self.sinks[stream].partitions)
            return
        connected = what if isinstance(what, ConnectedSink) else None
        if isinstance(what, str):
            connected = connected_sink(what)
        if connected is not None:
            self._connect(output, connected)
            return
        self.sinks[stream], self.places[stream] = _sink(stream, what), stream
        into = into_table(what)
        if into is not None or isinstance(what, str | Path | CsvFiles):
            path = local_path(str(what if into is None else into))
            check_is_text(path.absolute())
            self.places[stream], self._paths[stream] = f"{stream}={path.absolute()}", path
            if path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size):
                self._occupied.add(stream)

    def _connect(self, output: Output, sink: ConnectedSink) -> None:
        if isinstance(sink, TransactionalSink):
            self.sinks[output.stream] = CutBackSink(sink, output)
            self.places[output.stream] = f"{output.stream}={sink.name}"
            return
        outbox = Outbox(
            self.environment, self._app, output, sink, refusals_of(self._writers[output.stream], self._keep_letters)
        )
        self.outboxes[output.stream] = outbox
        self._others[output.stream] = outbox.stream
        check_name("stream", outbox.stream)

    def _keep_letters(self, generation: int, letters: list[Append]) -> None:
        """Commit dead letters of rows that a sink refuses, with how far sinks have come and which rows these are."""
        letters = [one._replace(stream=self.place_of(one.stream)) for one in letters]
        stored = self.environment.checkpoints(self._app).get(SHARED, Checkpoint(0)).outputs
        noted = {SHARED: Checkpoint(generation, outputs=self._noted(stored))}
        self.environment.commit(Commit(self._app, generation, letters, [], noted))

    def _bind_to_another(self, stream: str, what: str) -> None:
        self._others[stream] = what.removeprefix(ANOTHER)
        check_name("stream", self._others[stream])

    def close(self) -> None:
        """Close what was bound."""
        for inbox in self.inboxes.values():
            inbox.close()
        for source in self.sources.values():
            source.close()
        for sink in self.sinks.values():
            sink.close()
        for outbox in self.outboxes.values():
            outbox.close()


def _fail(future: asyncio.Future[None], error: SamzaError) -> None:
    if not future.done():
        future.set_exception(error)


def _taken_in(graph: Graph, stream: str, source: PulledSource | PushedSource) -> Input:
    """Return the input that a source is taken in for; raises PlanError where that stands for several streams."""
    spec = next(spec for spec in graph.inputs.values() if spec.stream == stream)
    if spec.is_pattern:
        raise refuse(spec, f"{source.name} pushes to one stream, and {stream!r} is a pattern", 'app.input("orders")')
    return spec


def place_of_sink(outbox: Outbox) -> str:
    """Return what names a sink that rows are delivered to in checkpoints: the output, and the place."""
    return f"{outbox.name}>{outbox.where}"


def _recorded(outbox: Outbox, positions: Mapping[str, int]) -> dict[int, int]:
    """Return the positions of a sink in a checkpoint, by partition."""
    start = f"{place_of_sink(outbox)}#"
    return {int(name.removeprefix(start)): at for name, at in positions.items() if name.startswith(start)}


def _passed(outbox: Outbox, positions: Mapping[str, int]) -> dict[str, int]:
    """Return the rows of a sink in a checkpoint that are dead letters."""
    start = f"{place_of_sink(outbox)}!"
    return {name.removeprefix(start): at for name, at in positions.items() if name.startswith(start)}


def intermediate_of(graph: Graph, spec: Spec) -> str:
    """Return the stream that a repartitioning writes."""
    assert spec.op_id is not None and spec.repartitions
    return intermediate(graph.app, spec.op_id)


def _check_not_between(spec: Spec, stream: str, streams: Mapping[str, StreamConfig], which: str, instead: str) -> None:
    """Raise PlanError at an operator that reads or writes a stream between the stages of an application."""
    if stream in streams and streams[stream].intermediate:
        raise refuse(spec, f"{stream!r} lies between the stages of an app, which {which}", instead)


def _check_config(output: Output, config: StreamConfig) -> None:
    said = {name: getattr(output, name) for name in SAID}
    name = contradicted(config, said)
    if name is not None:
        has = getattr(config, name)
        wrong = f"{name}={said[name]!r}, and the stream {output.stream!r} exists and has {has or 'none'}"
        change = f"{name}={has!r}, or leave it out" if has is not None else f"leave {name}= out"
        raise refuse(output.site, wrong, f"{change}; or use another stream")


def _check_partitions(where: Spec | Site, said: int | None, stream: str, count: int | None) -> None:
    if said is not None and count is not None and count != said:
        wrong = f"partitions={said}, and the stream {stream!r} exists and has {count}"
        raise refuse(where, wrong, f"partitions={count}, or leave it out; or use another stream")


def check_source(graph: Graph, stream: str, partitions: int) -> None:
    """Raise PlanError where an input was said to have another number of partitions than what it is bound to."""
    for spec in graph.inputs.values():
        if spec.stream == stream and not spec.is_pattern:
            _check_partitions(spec, spec.partitions, stream, partitions)


def config_of(stream: Output | StreamPlan, *, compacted: bool = False, intermediate: bool = False) -> StreamConfig:
    """Return how a stream is made of which so much was said, or planned."""
    said = {name: getattr(stream, name) for name in SAID}
    known = {name: what for name, what in said.items() if what is not None}
    return StreamConfig(**known, compacted=compacted, intermediate=intermediate)


def _source(stream: str, what: object) -> Source:
    topic = topic_of(what)
    if topic is not None:
        from runtime.systems.kafka.streams.fetcher import KafkaSource

        return KafkaSource(topic)
    if is_frame(what):
        with needs_pyarrow(f"the frame for {stream!r} needs"):
            from runtime.systems.frames.frame_source import FrameSource
        return FrameSource(what, stream)
    if is_another(what):
        raise _not_to_bind(stream, what, "an input", f'app.input("{what.removeprefix(ANOTHER)}"), and no binding')
    check_read_anywhere(what)
    if isinstance(what, str | Path | CsvFiles):
        from runtime.systems.files.files import open_source

        return open_source(what)
    if isinstance(what, list):
        from runtime.systems.memory.lists import ListSource

        return ListSource(what)
    if not _has_methods(what, Source):
        read_once = f'connectors.generator("{stream}", items) for what a generator yields'
        instead = f'a path such as "{stream}.jsonl", a list of values, a source, or {read_once}'
        raise _not_to_bind(stream, what, "an input", instead)
    return cast("Source", what)


def _sink(stream: str, what: object) -> Sink:
    check_written_anywhere(what)
    if (into := into_table(what)) is not None:
        from runtime.systems.files.files import open_folder

        return open_folder(into)
    if isinstance(what, str | Path | CsvFiles):
        from runtime.systems.files.files import check_on_this_machine, open_sink

        check_on_this_machine(what)
        return open_sink(what if isinstance(what, CsvFiles) else local_path(what))
    if not _has_methods(what, Sink):
        raise _not_to_bind(stream, what, "an output", f'a path such as "{stream}.jsonl", or a sink')
    return cast("Sink", what)


def _has_methods(what: object, protocol: type) -> bool:
    methods = (name for name in vars(protocol) if not name.startswith("_"))
    return not isinstance(what, type) and all(hasattr(what, name) for name in methods)


def letters_of(graph: Graph) -> set[str]:
    """Return the streams of dead letters of an application."""
    named = (one for spec in graph.specs.values() for one in streams_of(graph, spec))
    return {name for name, role in named if role == "dead_letter"}


def _not_to_bind(stream: str, what: object, kind: str, instead: str) -> SamzaError:
    return SamzaError(f"bind={{{stream!r}: {what!r}}}: {kind} can't be bound to that; write instead: {instead}")
