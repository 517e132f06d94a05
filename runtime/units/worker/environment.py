"""The environment of one task of one stage in a worker: splits and shuffled rows come in, its results go out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from operators.core.base import MAX_TIMESTAMP, Batch
from runtime.model.checkpoint import Position
from runtime.model.metrics import InputMetrics
from runtime.ports.commits import Commit
from runtime.ports.state import StateReader
from runtime.ports.streams import Append, Control, Offsets, Read, StreamConfig
from runtime.reading.watermarks import ProducerWatermarks
from runtime.reprocessing.handover import StoreFile, write_state
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.units.frames import FrameFile
from runtime.units.growing import below
from runtime.units.micro_batch import Told
from runtime.units.program import Program
from runtime.units.shuffle_rows import (
    LAST,
    TOLD,
    BlockRun,
    OutputRows,
    Reached,
    Shuffled,
    ToDriver,
    for_driver,
    in_frames,
    marked,
    packed,
    producers_of,
)
from runtime.units.staging import attempted

if TYPE_CHECKING:
    from runtime.systems.log.environment import LogEnvironment
    from runtime.units.topics import TopicSplits

MERGED = "0"
"""The producer of all that comes through the shuffle: sorted, it is as if one had written it."""


class Arrivals:
    """The shuffled rows of one unit, stream by stream, in the order in which event time goes on.

    `told` is what an earlier micro-batch has told of it. Where `ends`, nothing comes behind these rows any more; else
    event time comes as far as their producers say in rows ahead of them. Blocks come sorted by watermark, so that event
    time never goes back.
    """

    def __init__(
        self,
        runs: Iterator[BlockRun],
        places: dict[int, str],
        told: Mapping[str, Told] | None = None,
        ends: bool = True,
    ) -> None:
        self.version = 0
        """Grows whenever another stream may have something to read."""
        self.last: dict[str, dict[int, int]] = {stream: {} for stream in places.values()}
        """By stream, the event time of each of its producers, where they don't end with the inputs."""
        self.rows = dict.fromkeys(places.values(), 0)
        """By stream, the number of rows that were read."""
        self._runs = runs
        self._places = places
        self._told = {stream: (told or {}).get(stream, Told()) for stream in places.values()}
        self._ends = ends
        self._ahead: dict[str, dict[str, Reached]] = {stream: {} for stream in places.values()}
        self._limits: dict[str, Told] = {}
        self._head: BlockRun | None = None
        self._begun = False

    def read(self, stream: str, offset: int) -> Read | None:
        """Return the next rows of a stream, or how far event time has come; None while others come first."""
        if not self._begun:
            self._begin()
        head, told = self._head, self._told[stream]
        if head is not None and self._places[head.stream] == stream:
            batch = head.batch()
            if head.watermark < told.watermark and batch.stamps is not None:  # event time went on without its producer
                batch.stamps = [max(stamp, told.watermark) for stamp in batch.stamps]
            self.rows[stream] += len(batch)
            self._go_on()
        else:
            batch = Batch([])
        limit = self._limits[stream]
        # All rows still to come are stamped at least with the next block's watermark: that is how far event time is.
        reached = limit.watermark if self._head is None else min(limit.watermark, self._head.watermark)
        reached = min(reached, *self.last[stream].values()) if self.last[stream] else reached
        news = Told(max(reached, told.watermark), limit.idle)
        if news == told and not batch.values:
            return None
        self._told[stream] = news
        following = offset + max(len(batch), 1)
        batch.offsets = range(offset, offset + len(batch))
        control = None if news == told else Control(MERGED, news.watermark, idle=news.idle)
        return Read(batch, control, following)

    def _begin(self) -> None:
        """Read what producers say ahead of all rows, and the first of these."""
        self._begun = True
        self._go_on()
        self._limits = {stream: self._limit(stream, by_producer) for stream, by_producer in self._ahead.items()}

    def _limit(self, stream: str, by_producer: Mapping[str, Reached]) -> Told:
        if self._ends:
            return Told(MAX_TIMESTAMP)
        if not by_producer:
            return self._told[stream]
        known = {producer: one.watermark for producer, one in by_producer.items()}
        producers = ProducerWatermarks(known, known, [producer for producer, one in by_producer.items() if one.idle])
        return Told(producers.value, producers.is_idle)

    def _go_on(self) -> None:
        self.version += 1
        for run in self._runs:
            if run.stream in self._places:
                assert self._head is None or run.watermark >= self._head.watermark, "blocks come in event time's order"
                self._head = run
                return
            if run.stream == TOLD:
                for producer, one in run.reached():
                    self._ahead[self._places[one.stream]][producer] = one
            elif (stream := self._places.get(LAST - run.stream)) is not None:
                self.last[stream] |= dict.fromkeys(producers_of(run), run.watermark)
        self._head = None


class TaskEnvironment(MemoryEnvironment):
    """Streams and state as one unit sees them; what it commits is handed on at once, and kept nowhere.

    State lies in a directory of the worker's, which goes with the unit. The unit's event loop uses it, on one thread;
    `take` is for the generator that drives this loop, while it stands.
    """

    def __init__(self, program: Program, number: int, runs: Iterator[BlockRun], on_commit: Callable[[], None]) -> None:
        super().__init__()
        unit = program.units[number]
        self._program, self._number, self._unit = program, number, unit
        self._job = job = program.jobs[unit.job]
        self._arrivals = self._arriving(runs, {job.places[stream]: stream for stream in job.reads[unit.stage]})
        self._between = {job.places[stream]: stream for stream in job.places}
        self._log: LogEnvironment | None = None
        self._topics: dict[str, TopicSplits] = {}
        self._state: LogEnvironment | None = None
        self._scratch: Path | None = None
        self._on_commit = on_commit
        self._told: dict[str, Told] = {}
        self._handed_on = 0
        self.written: dict[str, list[int]] = {}
        """The number of rows that were handed on to the next stages, by stream and partition."""
        self._going: list[pa.RecordBatch] = []
        self._rows = None if job.rows is None else FrameFile(attempted(job.rows, unit))

    def take(self) -> list[pa.RecordBatch]:
        """Return what was committed since the last call."""
        going, self._going = self._going, []
        return going

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        """Return the streams that the driver knows of, all or those `among` these."""
        return {name: config for name, config in self._job.streams.items() if among is None or name in among}

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition as the driver saw it."""
        return self._job.ends.get((stream, partition), Offsets(0, 0, ended=False))

    def stream_id(self, stream: str) -> int:
        """Return that it is not known: what is read says it."""
        return 0

    def version(self) -> int:
        """Return a number that grows when other shuffled rows can be read."""
        return self._arrivals.version

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return what comes next: of the shuffle, of the log, or of what came along."""
        if stream in self._job.places:
            return self._arrivals.read(stream, offset)
        end = self.offsets(stream, partition).end
        if offset >= end:
            return None
        if self._job.cluster is not None:
            return below(end, self._topic(stream).read(partition, offset, min(max_records, end - offset)))
        if self._job.directory is None:
            return self._job.held_read(stream, partition, offset)
        if self._log is None:
            from runtime.systems.log.environment import LogEnvironment

            self._log = LogEnvironment(self._job.directory)
        return self._log.read(stream, partition, offset, min(max_records, end - offset))

    def commit(self, commit: Commit) -> None:
        """Hand on what goes to the next stage and to outputs, and put state away."""
        rows = Shuffled()
        said: dict[str, Control] = {}
        for append in commit.appends:
            if append.stream in self._job.places:
                self._hand_on(append, rows)
                if append.control is not None:
                    said[append.stream] = append.control
            elif append.batch.values:
                self._write(self._part(append))
        # Behind all of them: what is said of event time holds for rows from here on, in all partitions at once.
        for stream, control in said.items():
            assert not control.beside, "a worker has one task"
            before = self._told.get(stream, Told()).watermark
            self._told[stream] = Told(max(before, control.watermark), control.idle)
        if len(rows):
            self._going.append(rows.rows(self._number, self._handed_on))
            self._handed_on += len(rows)
        if any(writes.items for writes in commit.state):
            self._put_away(commit)
        # The event loop stops for it, so that rows go out before more are made: no more is in memory than
        # max_uncommitted.
        self._on_commit()

    def finish_rows(self) -> str | None:
        """Make durable what the driver is to put where it belongs, and return the file; None where there is none."""
        return str(self._rows.path) if self._rows is not None and self._rows.close() else None

    def passed(self, one: InputMetrics) -> InputMetrics:
        """Return the numbers of a reader: of a stream between stages it has read so many rows."""
        rows = self._arrivals.rows.get(one.stream)
        return one if rows is None else msgspec.structs.replace(one, offset=rows)

    def last(self, streams: Iterable[str]) -> pa.RecordBatch:
        """Return rows that tell the next stages how far event time came here in the streams that were written."""
        rows = Shuffled()
        for stream in streams:
            place, reached = self._job.places[stream], self._told.get(stream, Told()).watermark
            for partition in range(self._job.streams[stream].partitions):
                for target in self._program.readers.get((self._unit.job, stream, partition), ()):
                    rows.add(target, LAST - place, reached)
        self._handed_on += len(rows)
        return rows.rows(self._number, self._handed_on - len(rows))

    def told_last(self, position: Position) -> Position:
        """Return the position of a stream between stages as a live run has it, which hears each producer by itself."""
        told = self._arrivals.last.get(position.stream)
        if told is None:
            return position
        producers = {str(self._program.units[unit].task): reached for unit, reached in told.items()}
        return msgspec.structs.replace(position, producers=producers)

    def put_away(self, directory: Path) -> tuple[StoreFile, ...]:
        """Write all state to files in a directory, and return these."""
        if self._state is None:
            return ()
        state, app = self._state, self._job.graph.app
        directory.mkdir()
        return tuple(
            write_state(directory, store, task, state.state_range(app, store, task))
            for store, task in sorted(state.state_stats(app))
        )

    def tell(self, told: ToDriver) -> pa.RecordBatch:
        """Return what the driver is to know as a row, behind all that was handed on before."""
        self._handed_on += 1
        return for_driver(told, self._handed_on - 1)

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the value of one entry that was put away."""
        state = self._kept_state()
        return None if state is None else state.state_get(app, store, task, key)

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads entries that were put away, and opens nothing before there are any."""
        return _PutAway(lambda: None if (state := self._kept_state()) is None else state.state_reader(app, store, task))

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries that were put away, in key order."""
        state = self._kept_state()
        return iter(()) if state is None else state.state_range(app, store, task, start, end)

    def close(self) -> None:
        """Release everything, and remove the state, and rows that nobody will ask for."""
        if self._rows is not None:
            self._rows.abandon()
        for topic in self._topics.values():
            topic.close()
        for log in (self._log, self._state):
            if log is not None:
                log.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _topic(self, stream: str) -> TopicSplits:
        """Return a stream of the cluster that is the environment, as it is fetched here."""
        if stream not in self._topics:
            from runtime.units.topics import TopicSplits

            assert self._job.cluster is not None
            self._topics[stream] = TopicSplits(self._job.cluster.topic(stream), self._job.streams[stream].partitions)
        return self._topics[stream]

    def _hand_on(self, append: Append, rows: Shuffled) -> None:
        stream, partition, batch, control = append
        place = self._unit.job, stream, partition
        by_partition = self.written.setdefault(stream, [0] * self._job.streams[stream].partitions)
        by_partition[partition] += len(batch)
        before = self._told.get(stream, Told()).watermark
        if batch.values:
            if batch.timestamps is None:
                batch.timestamps = [self._now_ms()] * len(batch)
            after = before if control is None else control.watermark
            marks = marked(batch, before, after, size=1 if stream in self._job.folded else 0)
            is_ours = stream in self._job.evolving
            blocks = [(watermark, block) for watermark, part in marks for block in packed(part, is_ours)]
            for target in self._program.readers.get(place, ()):
                for watermark, block in blocks:
                    rows.add(target, self._job.places[stream], watermark, block)

    def _arriving(self, runs: Iterator[BlockRun], places: dict[int, str]) -> Arrivals:
        return Arrivals(runs, places)

    def _kept_state(self) -> LogEnvironment | None:
        """Return where entries were put away; None before there are any."""
        return self._state

    def _put_away(self, commit: Commit) -> None:
        self._spilled().commit(Commit(commit.app, 0, [], commit.state, {}))

    def _write(self, part: OutputRows) -> None:
        if self._rows is None:
            self._going.append(self.tell(part))
        else:
            for piece in in_frames(part):
                self._rows.write(piece)

    def _part(self, append: Append) -> OutputRows:
        stream, partition, batch, _ = append
        headers = None if batch.headers is None else [None if one is None else dict(one) for one in batch.headers]
        return OutputRows(self._number, stream, partition, batch.values, batch.keys, batch.timestamps, headers)

    def _spilled(self) -> LogEnvironment:
        if self._state is None:
            from runtime.systems.log.environment import LogEnvironment

            within = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
            self._scratch = Path(tempfile.mkdtemp(prefix="samza-dsl-", dir=within or None))
            # Gone with the unit, so that it need not be durable. Spark's own directory has the room, and is removed
            # behind it.
            self._state = LogEnvironment(self._scratch, sync=False)
        return self._state


class _PutAway:
    """Reads entries of one store, as soon as some were put away."""

    def __init__(self, find: Callable[[], StateReader | None]) -> None:
        self._find = find
        self._reader: StateReader | None = None

    def get(self, key: bytes) -> bytes | None:
        self._reader = self._reader or self._find()
        return None if self._reader is None else self._reader.get(key)

    def release(self) -> None:
        if self._reader is not None:
            self._reader.release()
