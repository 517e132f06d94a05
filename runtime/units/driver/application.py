"""An application that Spark runs once: its streams as workers see them, and the publication of its results."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard, cast

from operators.core.base import Output, Serde
from planner.columnar.combining import combined
from planner.columnar.lowering import lowered, prepared
from planner.columnar.projection import reshaped
from planner.columnar.terms import NotColumnar
from planner.model.errors import refuse
from planner.model.graph import Graph
from planner.model.plan import Options, Plan, StreamPlan, whole
from planner.passes import plan as make_plan
from planner.passes import streams_of
from runtime.assembly.bindings import Bindings, check_source, config_of, letters_of
from runtime.assembly.distinct_places import is_another
from runtime.assembly.history import History, history_of
from runtime.encoding.formats.rows import type_of_rows
from runtime.functions.user_functions import Around
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError, command
from runtime.model.history import HistorySpan
from runtime.model.metrics import RunMetrics
from runtime.opening.former_layout import check_replay
from runtime.ports.environment import Environment, LiveEnvironment, StagingEnvironment
from runtime.ports.sink import Sink
from runtime.ports.source import Source
from runtime.ports.stream_values import values_of
from runtime.ports.streams import Append, Offsets, Read, StreamConfig
from runtime.run.settings import open_environment
from runtime.systems.files.archive import ArchiveSource, is_archive
from runtime.systems.files.files import KIND_OF_SUFFIX, check_bound_on_spark
from runtime.systems.files.places.locations import is_remote, local_path
from runtime.systems.kafka.client.topic import KafkaCluster, KafkaTopic, topic_of
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from runtime.units.program import Native, ShippedJob
from runtime.units.publication.handover_parts import StagedHandover
from runtime.units.publication.intent import Intent, forget, note, noted, place_beside
from runtime.units.publication.staged_topics import (
    Filling,
    StagedRows,
    StagedTopics,
    ToldRows,
    drop_unpublished,
    place_of,
    unpublished_in,
)
from runtime.units.shuffle_rows import AttemptReport, OutputRows
from runtime.units.splits import Splits
from runtime.units.staging import Staged, check_is_empty

_log = logging.getLogger("samza_dsl")
BIND = "bind the output to a file"


class Application:
    """One application between its streams and Spark; nothing of a run is visible before `publish`.

    Raises SamzaError and PlanError where it can't be run as asked: where an input is absent, or an output holds
    something, since what a run on Spark writes is the whole of it.

    Outputs are empty before, and become visible all together or, after a death, one after the other by who comes next:
    from the moment the intent is noted, nothing is computed anew. One thread at a time uses it, the driver's.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        data: str | Path | Environment,
        bind: Mapping[str, object],
        span: HistorySpan | None = None,
        handover: StagedHandover | None = None,
        cluster: KafkaCluster | None = None,
    ) -> None:
        options, around = pipeline.options, pipeline.around
        _check_meant(options, bind)
        tell_of_answers(graph := combined(pipeline.graph))
        self._graph, self._data, self._handover, self._cluster = graph, data, handover, cluster
        self._staged: dict[str, Staged] = {}
        self._intent: Intent | None = None
        self._noted: int | None = None
        self._topics: StagedTopics | None = None
        self._rows: StagedRows | None = None
        self._filling: Filling | None = None
        self._environment: Environment = MemoryEnvironment()
        try:
            inputs = {spec.stream for spec in graph.inputs.values()}
            is_counted = span is not None and bool(span.hands_over or span.until)
            sources = {name: _source(name, what, is_counted) for name, what in bind.items() if name in inputs}
            for name in sources:
                if topic_of(bind[name]) is not None:
                    check_source(graph, name, sources[name].partitions)
            written = {name: what for name, what in bind.items() if name not in inputs and not is_another(what)}
            topics = {name: topic for name, what in written.items() if (topic := topic_of(what)) is not None}
            self._sinks = _sinks({name: what for name, what in written.items() if name not in topics})
            own = [name for name, sink in self._sinks.items() if not isinstance(sink, ListSink)]
            if (own and cluster is None) or lives_in_environment(graph, {**sources, **written}):
                self._environment = open_environment(data, cluster)
            self._paths = paths_written(graph, bind)
            lowered = lowered_inputs(graph, sources, parquet_of(self._paths)) if not around else {}
            bindings = Bindings(self._environment, graph, {**bind, **sources})
            self._place_of = bindings.place_of
            counts = bindings.partition_counts(graph)
            self.plan = make_plan(graph, whole(options), counts, wrapped=bool(around))
            lowered |= prepared_inputs(graph, self.plan, sources) if not around else {}
            self._outputs = {stream.name: self._config(stream) for stream in self.plan.results}
            self._place = intent_of(graph, bind, data)
            # Before anything is checked or made: what an earlier run has left is published first, and its outputs are
            # not empty.
            self._intent = self._left()
            self._stage_topics(topics, written, bindings)
            if self.is_unpublished:
                return
            self._check_outputs()
            self._staged = {name: Staged(path) for name, path in self._paths.items()}
            self._generation = self._environment.own(graph.app) if cluster is None else 0  # nothing is committed there
            if isinstance(data, str | Path) and (
                self._topics is not None or isinstance(self._environment, StagingEnvironment)
            ):
                self._rows = StagedRows(Path(data), graph.app)
            history = history_of(span, bindings, graph) if span is not None else None
            self.job = replace(self._job(around, sources, bindings, history), lowered=lowered)
        except BaseException:
            self.close()
            raise

    @property
    def is_unpublished(self) -> bool:
        """Whether an earlier run was through, and died while it published to topics: there is nothing else to do."""
        return self._intent is not None or (self._topics is not None and self._topics.unpublished is not None)

    def go_on(self) -> RunMetrics:
        """Publish what an earlier run has left, and return what that came to."""
        found = self._finish() if self._intent is not None else None
        if self._topics is not None and self._topics.unpublished is not None:
            return self._topics.go_on()
        assert found is not None
        return found

    def publish(self, parts: Iterable[OutputRows], reports: Sequence[AttemptReport], metrics: RunMetrics) -> None:
        """Make all results visible: each file at once, what goes to the log in one commit, and topics behind all."""
        files: dict[str, list[str]] = {}
        for report in reports:
            for stream, file in report.files.items():
                files.setdefault(stream, []).append(file)
        if self._handover is not None:
            self._handover.complete(self._graph, self.plan, reports)
        # Everything is written beside its place first, as often as attempts say; nothing of it can be seen.
        told, topics = ToldRows(parts, reports), self._topics.topics if self._topics is not None else {}
        for name, config in self._outputs.items():
            if name not in {*self._sinks, *self._staged, *topics}:
                self._environment.create_stream(self._place_of(name), config)
        self._filling = filling = Filling(self._environment, self.plan.app, self._generation)
        filling.take(self._for_streams(part for part in told if part.stream not in topics))
        for sink in self._sinks.values():
            sink.flush()
        renames = [staged.complete(files.get(stream, [])) for stream, staged in self._staged.items()]
        renames += [self._handover.rename] if self._handover is not None else []
        # From here on the run is through: whoever comes after a death finds this, and goes on with it.
        self._intend(Intent(renames, filling.rows, bool(topics), metrics))
        if self._topics is not None:
            letters = (part for part in told if part.stream in topics)
            # Noted before the rows of streams are visible: an intent that has topics counts only when these are noted.
            self._topics.note({name: files[name] for name in topics if name in files}, letters, metrics)
        if self._rows is not None:
            self._rows.remove()
        # The one commit that tells whether the intent counts: the rows of all streams are there, or none.
        filling.publish()
        self._filling = None
        self._finish()
        if self._topics is not None:
            self._topics.go_on()

    def _for_streams(self, parts: Iterable[OutputRows]) -> Iterator[Append]:
        """Give bound outputs what is theirs, and yield what goes to streams."""
        declared = {output.stream: output.value for output in self._declared()}
        for part in parts:
            if part.stream in self._sinks:
                self._give(part, declared[part.stream])
            else:
                yield Append(self._place_of(part.stream), part.partition, part.batch())

    def _intend(self, intent: Intent) -> None:
        """Note what becomes visible, where that is more than comes at once."""
        self._intent = intent
        if self._place is not None and len(intent.renames) + bool(intent.rows) + intent.topics > 1:
            self._noted = note(intent, self._place)

    def _finish(self) -> RunMetrics:
        """Put files in their places; then nothing of them is left to do."""
        intent, self._intent = self._intent, None
        assert intent is not None
        intent.rename()
        intent.sweep()
        if self._place is not None:
            forget(self._place)
        self._let_go()
        return intent.metrics

    def _left(self) -> Intent | None:
        """Return what an earlier run has died over; what does not count is removed, as that run is done anew."""
        intent = noted(self._place)
        if intent is None or self._place is None:
            return None
        rows = place_of(Path(self._data), self._graph.app) if isinstance(self._data, str | Path) else None
        if intent.counts(self._environment, rows is not None and unpublished_in(rows) is not None):
            return intent
        if intent.topics and rows is not None:
            drop_unpublished(rows)
        intent.sweep()
        forget(self._place)
        return None

    def _let_go(self) -> None:
        if self._noted is not None:
            os.close(self._noted)
            self._noted = None

    def values_of(self, stream: str) -> list[object]:
        """Return the values of an output, partition by partition; raises SamzaError for one that is bound to a file."""
        if stream in self._paths:
            raise SamzaError(
                f"received({stream!r}): the output is bound to {self._paths[stream].absolute()}; read it there"
            )
        if stream in self._bound_topics and self._topics is not None:
            raise SamzaError(
                f"received({stream!r}): the output is {self._topics.topics[stream].address}; read it there"
            )
        if isinstance(sink := self._sinks.get(stream), ListSink):
            return sink.values
        serde = next((output.value for output in self._declared() if output.stream == stream), None)
        is_own = isinstance(self._data, str | Path) and not isinstance(self._environment, MemoryEnvironment)
        opened = closing(open_environment(self._data, self._cluster)) if is_own else nullcontext(self._environment)
        with opened as environment:
            return values_of(environment, self._place_of(stream), serde)

    def close(self) -> None:
        """Remove what attempts have left, and release the environment."""
        if self._noted is None:  # else who comes next goes on with it
            for staged in self._staged.values():
                staged.remove()
            if self._handover is not None:
                self._handover.remove()
            if self._filling is not None:
                self._filling.discard()
            if self._rows is not None:
                self._rows.remove()
        self._let_go()
        if self._topics is not None:
            self._topics.close()
        if isinstance(self._data, str | Path):
            self._environment.close()

    def _declared(self) -> Iterator[Output]:
        return (output for spec in self._graph.specs.values() for output in spec.outputs)

    def _config(self, stream: StreamPlan) -> StreamConfig:
        if stream.name in self._sinks:
            return StreamConfig()
        if stream.name in self._paths:  # whatever the stream of that name in the environment is like
            return config_of(stream)
        return self._environment.streams().get(self._place_of(stream.name)) or config_of(stream)

    def _check_outputs(self) -> None:
        known = self._environment.streams()
        elsewhere = {*self._sinks, *self._paths, *(self._topics.topics if self._topics is not None else ())}
        letters = letters_of(self._graph)
        for stream in self._outputs:
            if (name := self._place_of(stream)) in known and stream not in elsewhere:
                instead = f"bind {stream!r} to another stream ({stream}=stream:{name}-2)" if stream in letters else BIND
                _check_holds_nothing(self._environment, name, known[name].partitions, instead)

    def _ranges(self, stream: str, partitions: int) -> list[Offsets]:
        if isinstance(self._environment, LiveEnvironment):
            return self._environment.settled(stream)
        return [self._environment.offsets(stream, number) for number in range(partitions)]

    def _job(
        self,
        around: tuple[Around, ...],
        sources: Mapping[str, Source],
        bindings: Bindings,
        history: History | None,
    ) -> ShippedJob:
        ends: dict[tuple[str, int], Offsets] = {}
        streams = {**self._environment.streams(), **self._outputs}
        for one in self.plan.streams:
            if one.role == "intermediate":
                streams[one.name] = StreamConfig(partitions=one.partitions or 1, intermediate=True)
        for spec in self._graph.inputs.values():
            if spec.stream in sources:
                continue
            found = bindings.streams_of(spec)
            if any(name not in streams for name in found) or not found:
                raise SamzaError(
                    f"there is no stream {spec.stream!r} to read: bind it to a file, or write to it first "
                    f"({command(f'streams produce {spec.stream}')})"
                )
            for name in found:
                for number, (start, end, _) in enumerate(self._ranges(name, streams[name].partitions)):
                    ends[name, number] = Offsets(start, end, ended=True)
        is_log = isinstance(self._data, str | Path)
        return ShippedJob(
            graph=self._graph,
            plan=self.plan,
            around=around,
            inputs=sources,
            staging=self._staging(),
            kept=frozenset(name for name, staged in self._staged.items() if staged.has_parts),
            streams=streams,
            ends=ends,
            directory=Path(self._data).absolute() if isinstance(self._data, str | Path) else None,
            cluster=self._cluster,
            held={} if is_log else {place: tuple(held(self._environment, place, ends[place])) for place in ends},
            history=history,
            state=self._handover.directory if self._handover is not None else None,
            rows=self._rows.directory if self._rows is not None else None,
        )

    def _stage_topics(
        self, topics: Mapping[str, KafkaTopic], written: Mapping[str, object], bindings: Bindings
    ) -> None:
        """Stage rows for topics until all is through; the topics are there by now."""
        check_replay(self._environment, self.plan, "run it live, or write .partition_by(...) before what keeps state")
        found, self._bound_topics = dict(topics), frozenset(topics)
        for name in topics:
            self._outputs[name] = StreamConfig(partitions=bindings.sinks[name].partitions)
            bindings.sinks[name].close()
        if self._cluster is not None:
            for name in [name for name in self._outputs if name not in written]:
                found[name] = self._cluster.topic(self._place_of(name))
                self._outputs[name] = self._environment.create_stream(self._place_of(name), self._outputs[name])
        if found:
            data = Path(self._data) if isinstance(self._data, str | Path) else None
            self._topics = StagedTopics(data, self.plan.app, found, self._outputs)

    def _staging(self) -> dict[str, Path]:
        found = {name: staged.directory for name, staged in self._staged.items()}
        if self._topics is not None:
            declared = {output.stream for output in self._declared()}  # dead letters come by the driver
            found |= {name: self._topics.staging(name) for name in self._topics.topics if name in declared}
        return found

    def _give(self, part: OutputRows, declared: Serde) -> None:
        sink, batch = self._sinks[part.stream], part.batch()
        encode = sink.serde(declared).encode
        batch.values = [None if value is None else encode(declared.decode(value)) for value in batch.values]
        sink.write(batch)


def tell_of_answers(graph: Graph) -> None:
    """Say which operators remember answers, as a batch engine's workers do not."""
    for spec in (spec for spec in graph.specs.values() if spec.remembers):
        _log.warning(
            "%s: %s %r at %s remembers no answers here: a unit of work that fails or is lost asks for all of its again",
            *(graph.app, spec.kind, spec.op_id, spec.site),
        )


def check_grouping(options: Options) -> None:
    """Raise PlanError where tasks were to be made otherwise than Spark's units are, or to write what these don't."""
    if options.metrics_to is not None:
        wrong = f"Options(metrics_to={options.metrics_to!r}): a run on Spark writes no stream but its outputs"
        raise refuse(None, wrong, "no metrics_to= for a run on Spark, and metrics=... or watch=... to see how it goes")
    if options.group_by != "partition":
        wrong = (
            f"Options(group_by={options.group_by!r}): Spark makes a unit of each number of a partition, and moves them"
        )
        raise refuse(None, wrong, 'group_by="partition" for a run on Spark, whose results are the same')


def paths_written(graph: Graph, bind: Mapping[str, object]) -> dict[str, Path]:
    """Return the files that outputs are bound to, by output."""
    inputs = {spec.stream for spec in graph.inputs.values()}
    return {
        name: Path(what)
        for name, what in bind.items()
        if name not in inputs and not is_another(what) and topic_of(what) is None and _is_path(what)
    }


def intent_of(graph: Graph, bind: Mapping[str, object], data: str | Path | Environment) -> Path | None:
    """Return where it is noted what a run is about to make visible: beside its first file, and else in its data."""
    within = place_of(Path(data), graph.app) if isinstance(data, str | Path) else None
    return place_beside(paths_written(graph, bind).values(), otherwise=within)


def is_publishing(graph: Graph, bind: Mapping[str, object], data: str | Path | Environment) -> bool:
    """Whether an earlier run has died between the first and the last of its outputs: files, streams and topics."""
    intent = intent_of(graph, bind, data)
    rows = place_of(Path(data), graph.app) if isinstance(data, str | Path) else None
    return (intent is not None and intent.exists()) or (rows is not None and unpublished_in(rows) is not None)


def check_free(
    graph: Graph, bind: Mapping[str, object], data: str | Path | Environment, cluster: KafkaCluster | None
) -> None:
    """Raise SamzaError where a file or a stream that a run is to write holds something already.

    An application looks at all of its outputs again as it begins, at dead letters and topics as well.
    """
    for path in paths_written(graph, bind).values():
        check_is_empty(path)
    declared = [one.stream for spec in graph.specs.values() for one in spec.outputs if one.stream not in bind]
    if cluster is not None or not declared:
        return
    opened = closing(open_environment(data)) if isinstance(data, str | Path) else nullcontext(data)
    with opened as environment:
        known = environment.streams()
        for name in declared:
            if name in known:
                _check_holds_nothing(environment, name, known[name].partitions)


def _check_holds_nothing(environment: Environment, stream: str, partitions: int, instead: str = BIND) -> None:
    if any(environment.offsets(stream, place).end for place in range(partitions)):
        raise SamzaError(
            f"the stream {stream!r} holds records already, and a run on Spark writes the whole of it: {instead}, use "
            f"another data directory, or remove the stream ({command(f'streams delete {stream}')})"
        )


def lowered_inputs(graph: Graph, sources: dict[str, Source], in_parquet: Container[str] = ()) -> dict[str, Native]:
    """Return how inputs that lie in columns are computed on these, and have their sources hand out columns.

    `in_parquet` are the outputs that take columns.
    """
    found: dict[str, Native] = {}
    for id, spec in graph.inputs.items():
        source = sources.get(spec.stream)
        if isinstance(source, Splits) and source.name == "parquet":
            with suppress(NotColumnar):
                found[id] = _native(graph, id, type_of_rows(spec.value), in_parquet)
                sources[spec.stream] = source.in_columns(found[id])
    return found


def prepared_inputs(graph: Graph, plan: Plan, sources: dict[str, Source]) -> dict[str, Native]:
    """Return how inputs that lie in columns are read there as far as that goes, and have their sources hand these out.

    Where a loop reads them and groups what it makes of them at once, it does that sooner.
    """
    found: dict[str, Native] = {}
    once = {segment.entry for stage in plan.stages for segment in stage.segments if not segment.folding}
    for id, spec in graph.inputs.items():
        source = sources.get(spec.stream)
        is_alone = [one.stream for one in graph.inputs.values()].count(spec.stream) == 1
        if id in once and is_alone and isinstance(source, Splits) and source.name == "parquet" and not source.columnar:
            with suppress(NotColumnar):
                found[id] = prepared(graph, id, type_of_rows(spec.value))
                sources[spec.stream] = source.in_columns(found[id])
    return found


def _native(graph: Graph, id: str, kind: object, in_parquet: Container[str]) -> Native:
    if any(spec.repartitions for spec in map(graph.specs.__getitem__, graph.below(id))):
        return lowered(graph, id, kind)
    found = reshaped(graph, id, kind)
    if found.stream not in in_parquet:
        raise NotColumnar(f"{found.stream} is not bound to Parquet")
    return found


def parquet_of(paths: Mapping[str, Path]) -> set[str]:
    """Return the outputs that are bound to Parquet."""
    return {name for name, path in paths.items() if KIND_OF_SUFFIX.get(path.suffix.lower()) == "parquet"}


def lives_in_environment(graph: Graph, bind: Mapping[str, object]) -> bool:
    """Whether a stream that is read or written is bound to nothing."""
    streams = [one for spec in graph.specs.values() for one in streams_of(graph, spec)]
    return any(name not in bind for name, role in streams if role != "intermediate")


def held(environment: Environment, place: tuple[str, int], offsets: Offsets) -> Iterator[Read]:
    """Yield what of a partition lies in memory, where workers can't look."""
    offset = offsets.start
    while offset < offsets.end and (read := environment.read(*place, offset)) is not None:
        yield read
        offset = read.next_offset


def _check_meant(options: Options, bind: Mapping[str, object]) -> None:
    check_grouping(options)
    check_bound_on_spark(bind)


def _is_path(what: object) -> TypeGuard[str | Path]:
    return isinstance(what, str | Path)


def _sinks(bound: Mapping[str, object]) -> dict[str, Sink]:
    return {name: cast(Sink, what) for name, what in bound.items() if not _is_path(what)}


def _source(stream: str, what: object, is_counted: bool) -> Source:
    if (topic := topic_of(what)) is not None:
        from runtime.units.topics import as_it_is

        return as_it_is(stream, topic)
    if isinstance(what, list):
        return ListSource(what)
    if not _is_path(what):
        return cast(Source, what)
    if not is_remote(what) and is_archive(local_path(what)):
        return ArchiveSource(local_path(what))
    return Splits.at(what).counted() if is_counted else Splits.at(what)
