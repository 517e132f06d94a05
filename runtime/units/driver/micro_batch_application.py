"""An application that Spark runs on and on: the range of each micro-batch, and the commit that makes it count."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard, cast
from uuid import uuid4

import msgspec

from operators.core.base import Output
from operators.io import Input
from planner.columnar.combining import combined
from planner.model.graph import Graph
from planner.model.plan import StreamPlan, whole
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings, config_of
from runtime.commit.commit import STATE
from runtime.functions.user_functions import Around
from runtime.job.key_kinds import kinds_of_all
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import Clock
from runtime.model.errors import Owned, SamzaError, command
from runtime.opening.former_layout import check_replay
from runtime.opening.rewind import check_state, meanings_of
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.ports.state import StateWrites
from runtime.ports.streams import Offsets, StreamConfig
from runtime.run.settings import open_environment
from runtime.stores.registry import DEFAULT, kind_of
from runtime.systems.files.files import check_bound_on_spark
from runtime.systems.host.durable import make_durable
from runtime.systems.host.locks import lock
from runtime.systems.kafka.client.topic import KafkaCluster, topic_of
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.units.driver.application import check_grouping, held, lives_in_environment, tell_of_answers
from runtime.units.driver.connected import refuse_connectors
from runtime.units.driver.micro_batch_inputs import Offered
from runtime.units.micro_batch import MicroBatch, Place, files_of
from runtime.units.program import ShippedJob, Unit
from runtime.units.publication.manifest import Manifest
from runtime.units.publication.publishing import (
    ByEngine,
    OfParts,
    PartDirectory,
    Publisher,
    is_something,
    remove_others,
    write_rows,
)
from runtime.units.shuffle_rows import AttemptReport, OutputRows
from runtime.units.topic_rows import SUFFIX as ROWS
from runtime.units.topic_rows import write_told


@dataclass(frozen=True)
class MicroBatchSettings:
    """The settings of a run in micro-batches.

    The `checkpoint` directory has all that the next start needs. A micro-batch reads up to `most_records`. With
    `until_now` the run ends with what is there now; where it `ends`, what the inputs have is all that there will be.
    """

    checkpoint: Path
    most_records: int
    until_now: bool = False
    ends: bool = False


class Streamed:
    """One application between its streams and Spark, from its checkpoint on.

    `next` says what a micro-batch reads, and `commit` takes what came of it. Raises SamzaError and PlanError where it
    can't go on as asked.

    The manifest is the commit: numbers of micro-batches go up by one, positions never go back, and files that it names
    are durable before it is. What it says is published after it, as often as somebody dies over that. The driver's
    thread uses it, and holds the checkpoint's lock.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        data: str | Path | Environment,
        bind: Mapping[str, object],
        settings: MicroBatchSettings,
        clock: Clock,
        cluster: KafkaCluster | None = None,
    ) -> None:
        options, around = pipeline.options, pipeline.around
        check_grouping(options)
        check_bound_on_spark(bind)
        refuse_connectors(bind)
        self._graph = graph = combined(_durable(pipeline.graph), goes_on=True)
        tell_of_answers(graph)
        self._data, self._clock, self._ends, self._cluster = data, clock, settings.ends, cluster
        self._directory = settings.checkpoint.absolute()
        self._lock: int | None = None
        self._environment: Environment = MemoryEnvironment()
        self._bindings: Bindings | None = None
        self._opened = ExitStack()
        self._outputs: dict[str, OfParts] = {}
        try:
            self._take(graph.app)
            self.manifest = self._begun(graph.app)
            reads = [*graph.inputs.values()]
            self._check_bound(reads, bind)
            self._inputs = Offered(reads, bind, self.manifest.pieces, clock, settings.most_records)
            self._opened.callback(self._inputs.close)
            self._sources = self._inputs.sources
            written = {name: what for name, what in bind.items() if name not in self._sources}
            self._topics = {name: topic for name, what in written.items() if (topic := topic_of(what)) is not None}
            self._paths = {name: Path(what) for name, what in written.items() if _is_path(what)}
            self._tables = {name: what for name, what in written.items() if isinstance(what, ByEngine)}
            elsewhere = {*self._paths, *self._tables}
            sinks = {name: what for name, what in written.items() if name not in elsewhere}
            if lives_in_environment(graph, bind):
                self._environment = open_environment(data, cluster)
            if cluster is None:  # there nothing is committed but what topics have
                self._environment.own(graph.app)
            self._bindings = Bindings(self._environment, graph, {**self._sources, **sinks})
            configs = {name: self._made(name) for name in self._topics}
            counts = self._bindings.partition_counts(graph, elsewhere=elsewhere)
            self.plan = make_plan(graph, whole(options), counts, wrapped=bool(around))
            self._check_plan()
            configs |= self._made_in_cluster({*self._topics, *elsewhere, *sinks})
            self._inputs.begin(self._bindings, settings.until_now)
            self._publisher = self._publishing(configs)
            self.job = self._job(around)
            # What the last commit says may not have become visible: that comes before anything new.
            self._publish()
        except BaseException:
            self.close()
            raise

    @property
    def is_over(self) -> bool:
        """Whether all inputs have ended, and all of them is processed."""
        return self.manifest.ended

    def next(self) -> MicroBatch | None:
        """Return what is to be run next; None where nothing has come, and nothing is due."""
        if self.manifest.ended:
            return None
        self._inputs.look(self.manifest.ends)
        if self._inputs.pieces != self.manifest.pieces:
            # Which file lies where in a partition is committed before an offset of it is: after a restart they must be
            # the same.
            self._change(pieces=self._inputs.pieces)
            self._inputs.sweep()
        read = self.manifest.ends
        ends = self._inputs.next(read)
        if read != _by_stream(ends) or self._is_due() or self._inputs.is_quiet(ends):
            return self._batch(ends, is_last=self._inputs.have_ended(ends))
        if self._ends and self._inputs.is_read(read):
            return self._batch({place: found._replace(ended=True) for place, found in ends.items()}, is_last=True)
        return None

    def commit(
        self, batch: MicroBatch, parts: Sequence[OutputRows], reports: Iterable[AttemptReport], units: Sequence[Unit]
    ) -> None:
        """Let a micro-batch count: what was read, what each task left, and what goes to outputs, all of it at once."""
        found = dict(self.manifest.units)
        assert batch.number == self.manifest.batch + 1, "micro-batches are committed one after the other"
        files: dict[str, list[str]] = {}
        for report in reports:
            unit = units[report.unit]
            if report.snapshot is not None:
                found[f"{unit.stage}-{unit.task}"] = report.snapshot
            for stream, file in report.files.items():
                if is_something(Path(file)):
                    files.setdefault(stream, []).append(Path(file).name)
        name = f"{batch.number:09}.{uuid4().hex}"
        letters = [part for part in parts if part.stream in self._outputs]  # the dead ones, for topics
        for stream in write_told(letters, f"told-{name}{ROWS}", lambda stream: self._outputs[stream].staging):
            files.setdefault(stream, []).append(f"told-{name}{ROWS}")
        # All that the manifest names is durable before it: a crash in between leaves files that the next commit
        # sweeps.
        for stream in files:
            make_durable(self._outputs[stream].staging)
        (self._directory / "rows").mkdir(exist_ok=True)
        others = (part for part in parts if part.stream not in self._outputs)
        has_rows = write_rows(others, self._directory / "rows" / name)
        self._change(
            batch=batch.number,
            ends=_by_stream(batch.ends),
            units=found,
            rows=name if has_rows else None,
            files=files,
            positions=dict(self._publisher.positions),
            ended=batch.is_last,
        )
        self._publish()

    def left_by(self, batch: MicroBatch) -> dict[Place, int]:
        """Return how many records of each partition lie behind a micro-batch; of files, whose length is bytes, none."""
        countable = (place for place in batch.ends if place[0] not in self._inputs.growing)
        offered = self._inputs.all()
        return {place: offered[place].end - batch.ends[place].end for place in countable}

    def values_of(self, stream: str) -> list[object]:
        """Return the values of an output that lives in the environment, or in a list; raises SamzaError for a path."""
        from runtime.ports.stream_values import values_of

        if stream in self._paths:
            raise SamzaError(f"received({stream!r}): the output is bound to {self._paths[stream]}; read it there")
        if stream in self._tables:
            raise SamzaError(f"received({stream!r}): the output is in {self._tables[stream].into}; read it there")
        assert self._bindings is not None
        if stream in self._bindings.sinks:
            return self._bindings.values_of(stream)
        serde = next((one.value for one in self._declared() if one.stream == stream), None)
        if stream in self._topics:
            raise SamzaError(f"received({stream!r}): the output is {self._topics[stream].address}; read it there")
        is_own = isinstance(self._data, str | Path) and not isinstance(self._environment, MemoryEnvironment)
        opened = closing(open_environment(self._data, self._cluster)) if is_own else nullcontext(self._environment)
        with opened as environment:
            return values_of(environment, stream, serde)

    def close(self) -> None:
        """Release everything; what is committed stays."""
        self._opened.close()
        if self._bindings is not None:
            self._bindings.close()
        if isinstance(self._data, str | Path):
            self._environment.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_bound(self, reads: Iterable[Input], bind: Mapping[str, object]) -> None:
        read, written = {spec.stream for spec in reads}, {output.stream for output in self._declared()}
        for name in bind:
            if name not in read | written:
                known = ", ".join(sorted(read | written))
                raise SamzaError(f"bind has {name!r}, which the app neither reads nor writes; it has {known}")

    def _take(self, app: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self._directory / "lock", wait=False)
        if self._lock is None:
            raise Owned(f"{app!r} runs already from the checkpoint {self._directory}; stop that run, or name another")

    def _begun(self, app: str) -> Manifest:
        found = Manifest.read(self._directory)
        if found is None:
            return Manifest(id=uuid4().hex, app=app)
        if found.app != app:
            raise SamzaError(f"{self._directory} is the checkpoint of {found.app!r}, not of {app!r}: name another one")
        return found

    def _check_plan(self) -> None:
        """Refuse a plan that what is kept does not fit: raises SamzaError and PlanError."""
        check_replay(self._environment, self.plan, "run it live, or write .partition_by(...) before what keeps state")
        stages = {f"{number} {stage.id}": stage.partitions for number, stage in enumerate(self.plan.stages)}
        before = self.manifest.stages
        if before and stages != before:
            raise SamzaError(
                f"the plan of {self.plan.app!r} has other stages than the one that {self._directory} is of: "
                f"{', '.join(f'{id} of {tasks}' for id, tasks in stages.items())} and not "
                f"{', '.join(f'{id} of {tasks}' for id, tasks in before.items())}. Begin anew from another checkpoint"
            )
        # The check that live runs make of state, on what the manifest says of it.
        kept, meanings = MemoryEnvironment(), self.manifest.meanings
        held = [StateWrites(store, 0, [(b"", b"")]) for store in meanings]
        kept.commit(Commit(self.plan.app, 0, [], held, {STATE: Checkpoint(0, meanings=meanings)}))
        check_state(kept, self.plan, self._graph, anew="begin anew from another checkpoint")
        noted = Checkpoint(0, meanings=self.manifest.keys), *(one.checkpoint for one in self.manifest.units.values())
        means = {"meanings": meanings_of(self.plan, self._graph), "keys": kinds_of_all(noted)}
        self._change(stages=stages, **means, pieces=self._inputs.pieces)

    def _made(self, output: str) -> StreamConfig:
        """Return what the topic of an output is made with, which is there by now."""
        assert self._bindings is not None
        with closing(self._bindings.sinks.pop(output)) as sink:
            return StreamConfig(partitions=sink.partitions)

    def _made_in_cluster(self, bound: Container[str]) -> dict[str, StreamConfig]:
        """Return what the topics of outputs and dead letters are made with in the cluster; they are there by now."""
        if self._cluster is None:
            return {}
        return {
            stream.name: self._environment.create_stream(stream.name, config_of(stream))
            for stream in self.plan.results
            if stream.name not in bound
        }

    def _publishing(self, topics: Mapping[str, StreamConfig]) -> Publisher:
        assert self._bindings is not None
        declared = {output.stream: output.value for output in self._declared()}
        begins = self.manifest.batch == 0
        self._outputs |= {name: PartDirectory(path, begins) for name, path in self._paths.items()}
        for name, table in self._tables.items():
            # By the checkpoint's own name, and the number of the micro-batch: so a table can tell what it has.
            self._outputs[name] = table.opened(self._directory / "tables" / name, self.manifest.id, begins)
        for name, config in topics.items():
            from runtime.units.publication.publishing import PartTopic

            place = self._directory / "topics" / f"{name}{ROWS}"
            at = self._topics[name] if self._cluster is None or name in self._topics else self._cluster.topic(name)
            topic = PartTopic(at, config, place, f"{self.plan.app}.{self.manifest.id}.{name}")
            self._opened.callback(topic.close)
            self._outputs[name] = topic
        sinks = {name: (sink, declared[name]) for name, sink in self._bindings.sinks.items()}
        log = self._environment if self._cluster is None else MemoryEnvironment()
        publisher = Publisher(log, self.plan.app, self.manifest.id, self._outputs, sinks)
        for stream in self.plan.results:
            if stream.name not in {*self._outputs, *sinks}:
                self._begin_output(stream, publisher)
        for output in self._outputs.values():
            output.begin()
        return publisher

    def _begin_output(self, stream: StreamPlan, publisher: Publisher) -> None:
        config = self._environment.create_stream(stream.name, config_of(stream))
        is_new = self.manifest.batch == 0 and not publisher.published
        if is_new and any(self._environment.offsets(stream.name, place).end for place in range(config.partitions)):
            raise SamzaError(
                f"the stream {stream.name!r} holds records already, and nothing was written to it from this "
                "checkpoint: bind the output to a path, use another data directory, or remove the stream "
                f"({command(f'streams delete {stream.name}')})"
            )

    def _job(self, around: tuple[Around, ...]) -> ShippedJob:
        declared = [output.stream for output in self._declared()]  # dead letters come by the driver
        return ShippedJob(
            graph=self._graph,
            plan=self.plan,
            around=around,
            inputs=self._inputs.to_read(),
            staging={name: self._outputs[name].staging for name in declared if name in self._outputs},
            streams={},
            ends={},
            directory=Path(self._data).absolute() if isinstance(self._data, str | Path) else None,
            cluster=self._cluster,
        )

    def _batch(self, ends: dict[Place, Offsets], is_last: bool) -> MicroBatch:
        begins = {}
        for name, snapshot in self.manifest.units.items():
            stage, task = map(int, name.split("-"))
            begins[stage, task] = snapshot
        places = [place for place in ends if place[0] not in self._sources]
        is_log = isinstance(self._data, str | Path)
        (self._directory / "state").mkdir(exist_ok=True)
        return MicroBatch(
            number=self.manifest.batch + 1,
            name=self.manifest.id,
            directory=self._directory / "state",
            ends=ends,
            begins=begins,
            streams=self._streams(),
            held={} if is_log else {place: tuple(held(self._environment, place, ends[place])) for place in places},
            growing=self._inputs.growing,
            quiet=self._inputs.quiet(ends),
            is_last=is_last,
            keys=self.manifest.keys,
        )

    def _streams(self) -> dict[str, StreamConfig]:
        streams = dict(self._environment.streams())
        for one in self.plan.streams:
            if one.role == "intermediate":
                streams[one.name] = StreamConfig(partitions=one.partitions or 1, intermediate=True)
        assert self._bindings is not None
        for name, output in self._outputs.items():
            streams[name] = output.config
        for name, sink in self._bindings.sinks.items():
            streams[name] = StreamConfig(partitions=sink.partitions)
        return streams

    def _is_due(self) -> bool:
        """Whether anything is due by the clock."""
        now_ms = self._clock.now_ms()
        return any(one.wake_ms is not None and one.wake_ms <= now_ms for one in self.manifest.units.values())

    def _declared(self) -> Iterator[Output]:
        return (output for spec in self._graph.specs.values() for output in spec.outputs)

    def _change(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self.manifest, **changes)
        if changed != self.manifest:
            # Written first: what is known here is what a restart would find.
            changed.write(self._directory)
            self.manifest = changed

    def _publish(self) -> None:
        """Make what is committed visible, be it again, and remove what nothing needs any more."""
        manifest = self.manifest
        if manifest.batch:
            rows = None if manifest.rows is None else self._directory / "rows" / manifest.rows
            self._publisher.publish(manifest.batch, rows, manifest.files, manifest.positions)
        # Only what no manifest names any more: files of attempts that did not count, and of micro-batches that are
        # published.
        remove_others(self._directory / "rows", [manifest.rows] if manifest.rows is not None else [])
        remove_others(self._directory / "state", files_of(manifest.units.values()))
        for name, output in self._outputs.items():
            output.sweep(manifest.files.get(name, ()))


def _is_path(what: object) -> TypeGuard[str | Path]:
    return isinstance(what, str | Path) and topic_of(what) is None


def _by_stream(ends: Mapping[Place, Offsets]) -> dict[str, list[tuple[int, bool]]]:
    found: dict[str, list[tuple[int, bool]]] = {}
    for (stream, _), offsets in sorted(ends.items()):
        found.setdefault(stream, []).append((offsets.end, offsets.ended))
    return found


def _durable(graph: Graph) -> Graph:
    """Return the graph with all state kept in the log: what is in memory alone would be lost with each micro-batch."""
    specs = {
        id: spec if kind_of(spec).durable else replace(cast(Any, spec), store=DEFAULT)
        for id, spec in graph.specs.items()
    }
    return replace(graph, specs=specs)
