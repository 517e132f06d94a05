"""An application that Spark runs on and on: what each micro-batch reads, and the commit that makes it count."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from operators.io import Input, Table
from planner.graph import Graph
from planner.passes import plan as make_plan
from planner.plan import Options
from runtime.bindings import Bindings, outputs_of
from runtime.checkpoint import Checkpoint
from runtime.clock import Clock
from runtime.commit import STATE
from runtime.errors import Owned, SamzaError
from runtime.functions import Around
from runtime.rewind import check_state, meanings_of
from runtime.run import open_environment
from runtime.spark.application import held, lives_in_environment
from runtime.spark.growing import GrowingLines
from runtime.spark.manifest import Manifest
from runtime.spark.micro_batch import MicroBatch, Place, Quiet, files_of
from runtime.spark.program import Job
from runtime.spark.publishing import PartDirectory, Publisher, is_something, remove_others, write_rows
from runtime.spark.rows import Part, Report
from runtime.spark.splits import Splits
from runtime.systems.base import Commit, Environment, Offsets, Source, StateWrites, StreamConfig
from runtime.systems.files import KIND_OF_SUFFIX, open_source, paths_of
from runtime.systems.lists import ListSource
from runtime.systems.log_locks import lock
from runtime.systems.memory import MemoryEnvironment

MOST_BYTES = 64 << 20
"""How much of one file a micro-batch reads at most."""


class Streamed:
    """One application between its streams and Spark, whose `checkpoint` directory has all that the next start needs.

    `next` says what a micro-batch reads, and `commit` takes what came of it. Where `ends`, what the inputs have is all
    that there will be. Raises SamzaError and PlanError where it can't go on as asked.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        around: tuple[Around, ...],
        data: str | Path | Environment,
        bind: Mapping[str, Any],
        *,
        checkpoint: Path,
        clock: Clock,
        most_records: int,
        until_now: bool = False,
        ends: bool = False,
    ) -> None:
        self._graph = graph = _durable(graph)
        self._data, self._clock, self._most_records, self._ends = data, clock, most_records, ends
        self._directory = checkpoint.absolute()
        self._lock: int | None = None
        self._environment: Environment = MemoryEnvironment()
        self._bindings: Bindings | None = None
        self._reads = [spec for spec in graph.specs.values() if isinstance(spec, Input)]
        self._read_at: dict[Place, tuple[float, tuple[int, bool]]] = {}
        self._batch_at = clock.elapsed_ms()
        try:
            self._take(graph.app)
            self.manifest = self._begun(graph.app)
            self._paths = {name: Path(what) for name, what in bind.items() if isinstance(what, str | Path)}
            self._sources = {spec.stream: self._source(spec, bind) for spec in self._reads if spec.stream in bind}
            if lives_in_environment(graph, bind):
                self._environment = open_environment(data)
            self._environment.own(graph.app)
            sinks = {name: what for name, what in bind.items() if not {name} & {*self._sources, *self._paths}}
            self._bindings = Bindings(self._environment, graph, {**self._sources, **sinks})
            counts = self._bindings.partition_counts(graph)
            self.plan = make_plan(graph, options, counts, wrapped=bool(around))
            self._check_plan()
            self._publisher = self._publishing(sinks)
            self.job = self._job(around, counts)
            self._publish()
            now = {place: found.end for place, found in self._offsets().items()}
            self._targets = now if until_now else None
            tables = {spec.stream for spec in self._reads if isinstance(spec, Table)}
            self._tables = {place: end for place, end in now.items() if place[0] in tables}
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
        self._look_for_files()
        offsets, ends = self._offsets(), {}
        waits = any(self._start(place, found) < self._tables.get(place, 0) for place, found in offsets.items())
        for place, found in offsets.items():
            start = self._start(place, found)
            end = min(found.end, start + self._most(place[0]))
            if self._targets is not None:
                end = min(end, max(self._targets.get(place, 0), start))
            if waits and place not in self._tables:
                end = start
            ends[place] = Offsets(found.start, end, found.ended and end == found.end)
        if not self._is_news(ends):
            if not (self._ends and all(self._is_read(place, found) for place, found in offsets.items())):
                return None
            return self._batch({place: found._replace(ended=True) for place, found in ends.items()}, is_last=True)
        return self._batch(ends, is_last=self._all_ended(ends))

    def commit(self, batch: MicroBatch, parts: Iterable[Part], reports: Iterable[Report], units: Sequence[Any]) -> None:
        """Let a micro-batch count: what was read, what each task left, and what goes to outputs, all of it at once."""
        found, files = dict(self.manifest.units), {}
        for report in reports:
            unit = units[report.unit]
            if report.snapshot is not None:
                found[f"{unit.stage}-{unit.task}"] = report.snapshot
            for stream, file in report.files.items():
                if is_something(Path(file)):
                    files.setdefault(stream, []).append(Path(file).name)
        name = f"{batch.number:09}.{uuid4().hex}"
        (self._directory / "rows").mkdir(exist_ok=True)
        has_rows = write_rows(parts, self._directory / "rows" / name)
        ends: dict[str, list[tuple[int, bool]]] = {}
        for (stream, _), offsets in sorted(batch.ends.items()):
            ends.setdefault(stream, []).append((offsets.end, offsets.ended))
        self._change(
            batch=batch.number,
            ends=ends,
            units=found,
            rows=name if has_rows else None,
            files=files,
            positions=dict(self._publisher.positions),
            ended=batch.is_last,
        )
        self._publish()

    def values_of(self, stream: str) -> list[Any]:
        """Return the values of an output that lives in the environment, or in a list; raises SamzaError for a path."""
        from runtime.received import values_of

        if stream in self._paths:
            raise SamzaError(f"received({stream!r}): the output is bound to {self._paths[stream]}; read it there")
        assert self._bindings is not None
        if stream in self._bindings.sinks:
            return self._bindings.values_of(stream)
        serde = next((one.value for one in self._declared() if one.stream == stream), None)
        return values_of(self._environment, stream, serde)

    def close(self) -> None:
        """Release everything; what is committed stays."""
        if self._bindings is not None:
            self._bindings.close()
        if isinstance(self._data, str | Path):
            self._environment.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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

    def _source(self, spec: Input, bind: Mapping[str, Any]) -> Source:
        """Return an input that is bound: files of JSON lines grow, others are what they are."""
        what, known = bind[spec.stream], self.manifest.pieces.get(spec.stream)
        if spec.stream in self._paths:
            path = self._paths[spec.stream]
            if known is not None:
                return GrowingLines(known).look(path)
            if all(KIND_OF_SUFFIX.get(file.suffix.lower()) == "jsonl" for file in paths_of(path)):
                return GrowingLines.at(path, spec.partitions)
            return open_source(path.absolute())
        return ListSource(what) if isinstance(what, list) else what

    def _check_plan(self) -> None:
        """Refuse a plan that what is kept does not fit: raises SamzaError and PlanError."""
        stages = {f"{number} {stage.id}": stage.partitions for number, stage in enumerate(self.plan.stages)}
        before = self.manifest.stages
        if before and stages != before:
            raise SamzaError(
                f"the plan of {self.plan.app!r} has other stages than the one that {self._directory} is of: "
                f"{', '.join(f'{id} of {tasks}' for id, tasks in stages.items())} and not "
                f"{', '.join(f'{id} of {tasks}' for id, tasks in before.items())}. Begin anew from another checkpoint"
            )
        kept, meanings = MemoryEnvironment(), self.manifest.meanings
        held = [StateWrites(store, 0, [(b"", b"")]) for store in meanings]
        kept.commit(Commit(self.plan.app, 0, [], held, {STATE: Checkpoint(0, meanings=meanings)}))
        check_state(kept, self.plan, self._graph)
        self._change(stages=stages, meanings=meanings_of(self.plan, self._graph), pieces=self._pieces())

    def _publishing(self, sinks: Mapping[str, Any]) -> Publisher:
        assert self._bindings is not None
        declared = {output.stream: output.value for output in self._declared()}
        written = {stream.name for stream in self.plan.results}
        paths = {name: path for name, path in self._paths.items() if name not in self._sources}
        begins = self.manifest.batch == 0
        self._outputs = {name: PartDirectory(path, begins) for name, path in paths.items()}
        given = {name: (sink, declared[name]) for name, sink in self._bindings.sinks.items() if name in sinks}
        publisher = Publisher(self._environment, self.plan.app, self.manifest.id, self._outputs, given)
        for stream in self.plan.results:
            if stream.name in written - {*paths, *given}:
                self._begin_output(stream, publisher)
        for output in self._outputs.values():
            output.begin()
        return publisher

    def _begin_output(self, stream: Any, publisher: Publisher) -> None:
        from runtime.bindings import config_of

        config = self._environment.create_stream(stream.name, config_of(stream))
        is_new = self.manifest.batch == 0 and not publisher.published
        if is_new and any(self._environment.offsets(stream.name, place).end for place in range(config.partitions)):
            raise SamzaError(
                f"the stream {stream.name!r} holds records already, and nothing was written to it from this checkpoint: "
                "bind the output to a path, use another data directory, or remove the stream (samza-dsl streams delete)"
            )

    def _job(self, around: tuple[Around, ...], counts: Mapping[str, int]) -> Job:
        return Job(
            graph=self._graph,
            plan=self.plan,
            around=around,
            inputs=self._to_read(),
            staging={name: output.staging for name, output in self._outputs.items()},
            streams={},
            ends={},
            directory=Path(self._data).absolute() if isinstance(self._data, str | Path) else None,
        )

    def _batch(self, ends: dict[Place, Offsets], is_last: bool) -> MicroBatch:
        self._batch_at, batch_at = self._clock.elapsed_ms(), self._batch_at
        begins = {}
        for name, snapshot in self.manifest.units.items():
            stage, task = map(int, name.split("-"))
            begins[stage, task] = snapshot
        places = [place for place in ends if place[0] not in self._sources]
        is_log = isinstance(self._data, str | Path)
        quiet = {}
        for place, found in ends.items():
            now = self._batch_at, (found.end, found.ended)
            since, before = self._read_at.get(place, now)
            self._read_at[place] = (since, before) if before == now[1] else now
            quiet[place] = Quiet(self._batch_at - self._read_at[place][0], self._batch_at - batch_at)
        (self._directory / "state").mkdir(exist_ok=True)
        return MicroBatch(
            number=self.manifest.batch + 1,
            name=self.manifest.id,
            directory=self._directory / "state",
            ends=ends,
            begins=begins,
            streams=self._streams(),
            held={} if is_log else {place: tuple(held(self._environment, place, ends[place])) for place in places},
            quiet=quiet,
            is_last=is_last,
        )

    def _streams(self) -> dict[str, StreamConfig]:
        streams = dict(self._environment.streams())
        for one in self.plan.streams:
            if one.role == "intermediate":
                streams[one.name] = StreamConfig(partitions=one.partitions or 1, intermediate=True)
        for name in self._outputs:
            streams.setdefault(name, StreamConfig())
        return streams

    def _offsets(self) -> dict[Place, Offsets]:
        """Return what can be read now, of each partition of each input."""
        assert self._bindings is not None
        found = {}
        for spec in self._reads:
            for stream in self._bindings.streams_of(spec):
                self._check_there(spec, stream)
                source = self._sources.get(stream)
                count = source.partitions if source is not None else self._environment.streams()[stream].partitions
                for number in range(count):
                    place = stream, number
                    at = source.offsets(number) if source is not None else self._environment.offsets(*place)
                    found[place] = Offsets(*at[:3])
        return found

    def _check_there(self, spec: Input, stream: str) -> None:
        if stream not in self._sources and stream not in self._environment.streams():
            raise SamzaError(
                f"there is no stream {spec.stream!r} to read: bind it to a file, or write to it first (samza-dsl "
                "streams produce)"
            )

    def _start(self, place: Place, found: Offsets) -> int:
        known = self.manifest.ends.get(place[0], [])
        return known[place[1]][0] if place[1] < len(known) else found.start

    def _is_read(self, place: Place, found: Offsets) -> bool:
        return self._start(place, found) >= min(found.end, (self._targets or {}).get(place, found.end))

    def _most(self, stream: str) -> int:
        return MOST_BYTES if isinstance(self._sources.get(stream), GrowingLines) else self._most_records

    def _is_news(self, ends: Mapping[Place, Offsets]) -> bool:
        """Whether anything has come or ended, or is due by the clock."""
        known = self.manifest.ends
        for (stream, number), found in ends.items():
            before = known.get(stream, [])
            if number >= len(before):
                if found.end > found.start or found.ended:
                    return True
            elif tuple(before[number]) != (found.end, found.ended):
                return True
        now_ms = self._clock.now_ms()
        due = any(one.wake_ms is not None and one.wake_ms <= now_ms for one in self.manifest.units.values())
        return due or self._has_idle(ends)

    def _has_idle(self, ends: Mapping[Place, Offsets]) -> bool:
        """Whether an input has been quiet for so long that event time goes on without it."""
        elapsed_ms = self._clock.elapsed_ms()
        for spec in self._reads:
            for (stream, number), found in ends.items():
                after_ms = spec.idle_after_ms
                if after_ms is None or found.ended or not spec.matches(stream):
                    continue
                since, _ = self._read_at.get((stream, number), (elapsed_ms, None))
                if elapsed_ms - since >= after_ms and (spec.close_on_idle or since + after_ms > self._batch_at):
                    return True
        return False

    def _all_ended(self, ends: Mapping[Place, Offsets]) -> bool:
        return bool(ends) and all(found.ended for place, found in ends.items() if place not in self._tables)

    def _look_for_files(self) -> None:
        for name, source in self._sources.items():
            if isinstance(source, GrowingLines):
                self._sources[name] = source.look(self._paths[name])
        if self._pieces() != self.manifest.pieces:
            self._change(pieces=self._pieces())
            self.job = replace(self.job, inputs=self._to_read())

    def _to_read(self) -> dict[str, Source]:
        """Return the inputs that are bound as workers read them: who opens a file is who reads it."""
        return {
            name: Splits.at(self._paths[name]) if name in self._paths and not isinstance(source, GrowingLines) else source
            for name, source in self._sources.items()
        }

    def _pieces(self) -> dict[str, list[Any]]:
        return {
            name: [*map(list, source.pieces)]
            for name, source in self._sources.items()
            if isinstance(source, GrowingLines)
        }

    def _declared(self) -> Iterator[Any]:
        return (output for spec in self._graph.specs.values() for output in outputs_of(spec))

    def _change(self, **changes: Any) -> None:
        import msgspec

        changed = msgspec.structs.replace(self.manifest, **changes)
        if changed != self.manifest:
            changed.write(self._directory)
            self.manifest = changed

    def _publish(self) -> None:
        """Make what is committed visible, be it again, and remove what nothing needs any more."""
        manifest = self.manifest
        if manifest.batch:
            rows = None if manifest.rows is None else self._directory / "rows" / manifest.rows
            self._publisher.publish(manifest.batch, rows, manifest.files, manifest.positions)
        remove_others(self._directory / "rows", [manifest.rows] if manifest.rows is not None else [])
        remove_others(self._directory / "state", files_of(manifest.units.values()))
        for name, output in self._outputs.items():
            output.sweep(manifest.files.get(name, ()))


def _durable(graph: Graph) -> Graph:
    """Return the graph with all state kept in the log: what is in memory alone would be lost with each micro-batch."""
    specs = {
        id: replace(spec, store="lmdb") if getattr(spec, "store", "lmdb") == "memory" else spec
        for id, spec in graph.specs.items()
    }
    return replace(graph, specs=specs)
