"""The inbox of a source that can't be read again: a stream of the environment, which the run fills and reads."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

from operators.core.base import Batch, Serde
from operators.io import Input
from operators.joins.changes import Change
from operators.partition_by import murmur2
from planner.model.errors import refuse
from runtime.encoding.formats.rows import type_of_values
from runtime.encoding.serdes import Evolving, Tagged
from runtime.functions.at_work import tells
from runtime.model.clock import monotonic_ms, wall_clock_ms
from runtime.model.errors import Damaged, Fenced, Owned, SamzaError, command
from runtime.ports.commits import Appender, Commit
from runtime.ports.connectors import (
    Intake,
    Pulled,
    PulledRecord,
    PulledSource,
    PushedRecord,
    PushedSource,
    wrong_in_pull,
)
from runtime.ports.environment import Environment, LiveEnvironment, typed
from runtime.ports.live_streams import OpenTransaction
from runtime.ports.source import FetchedSource, LiveSource, TransactionalSource
from runtime.ports.streams import END, Append, Offsets, Read, StreamConfig, check_name, gone_error
from runtime.systems.connectors.reading import GivenValue
from runtime.systems.connectors.tries import Words, tried
from runtime.systems.host.locks import lock_within
from runtime.systems.log.environment import LogEnvironment

PATIENCE_S = 10.0
"""The time that a source has to return when the run ends; then it is left behind, and can push nothing more."""
STILL_S = 60.0
"""The time for which a source may have more and give nothing of it, before a run that waits for it ends."""
POSITION, WHERE, KEEPS = "position", "where", "keeps"
R = TypeVar("R")
_log = logging.getLogger("samza_dsl")


class Inbox:
    """Takes a source that can't be read again into a stream, for as long as a run lasts.

    Invariants: records and the notes of how far the source has come are in one transaction, of the generation of the
    run, or on brokers of the newest inbox of that name, so that a run that was taken over pushes nothing; nobody else
    makes notes in the meantime, in this process or another. `push` of the source is called in one thread at a time, and
    what that thread and its helpers push is appended one after the other. Only the process that has begun the run
    takes in, `fill` and then the thread that `start` begins; any other one reads the stream alone.
    """

    until_now = False

    def __init__(self, environment: Environment, app: str, spec: Input, source: PushedSource | PulledSource) -> None:
        self.name = source.name
        self.pulling: Pulling | None = None
        """What pulls a source that does not push."""
        self._environment, self._app, self._spec = environment, app, spec
        self._push = source.push if isinstance(source, PushedSource) else self._pull(source)
        self._farther = source.farther if isinstance(source, PushedSource) else None
        self.stream = spec.stream if self.pulling is None else inbox_of(app, spec.stream, source.name)
        self._noted: dict[str, bytes] = {}
        self._partitions, self._generation = 1, 0
        self._notes_stream, self._notes_end = "", 0
        self._descriptor: int | None = None
        self._appender: Appender | None = None
        self._pushing, self._closing = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: Callable[[SamzaError], None] = lambda error: None
        self._tell: Callable[[], None] = lambda: None

    @property
    def serde(self) -> Serde:
        """Return the serde of the input's values."""
        return self._spec.value

    @property
    def noted(self) -> Mapping[str, bytes]:
        """Return what the source has noted last under each name."""
        return dict(self._noted)

    @property
    def is_followed(self) -> bool:
        """Whether this process takes in what comes."""
        return self._thread is not None

    def fill(self, generation: int) -> None:
        """Take in what is there now, in the thread of the caller."""
        self.open(generation)
        self.until_now = True
        self._push_all()
        self.until_now = False

    def start(self, generation: int, failed: Callable[[SamzaError], None]) -> None:
        """Take in what comes, in a thread of its own, which calls `failed` with the error that has ended it."""
        self._failed = failed
        self.open(generation)
        # As a daemon: a source that waits for something that never comes keeps no process alive.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"samza-dsl-intake-{self.name[:40]}", daemon=True
        )
        self._thread.start()

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from any thread, where there is more to read."""
        self._tell = tell

    def close(self) -> None:
        """Take nothing more in, then close the source; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        is_left = False
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            is_left = self._thread.is_alive()
        with self._pushing:
            if self._descriptor is not None:
                os.close(self._descriptor)
            if self._appender is not None:
                self._appender.close()
        if is_left:
            _log.warning("%s has not returned as the run ended; it is left behind", self.name)
        elif self.pulling is not None:
            self.pulling.source.close()

    def push(self, records: Sequence[PushedRecord], notes: Mapping[str, bytes] | None = None) -> None:
        """Append records and notes in one transaction; raises `Fenced`, and SamzaError as the run is closing."""
        by_partition: defaultdict[int, list[PushedRecord]] = defaultdict(list)
        for record in records:
            by_partition[0 if record.key is None else murmur2(record.key) % self._partitions].append(record)
        appends = [self._appended(partition, rows) for partition, rows in by_partition.items()]
        self._commit(appends, dict(notes or {}))

    def end(self) -> None:
        """Let the stream end for good."""
        numbers = range(self._partitions)
        open_ones = [n for n in numbers if not self._environment.offsets(self.stream, n).ended]
        self._commit([Append(self.stream, n, Batch([]), END) for n in open_ones], {})

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, and return whether the run is closing."""
        return self._closing.wait(seconds)

    def open(self, generation: int) -> None:
        """Keep all others from making notes, and read them; a second call does nothing."""
        if self._notes_stream:
            return
        environment = self._environment
        config = environment.streams([self.stream])[self.stream]
        if config.intermediate:
            raise refuse(self._spec, f"{self.stream!r} lies between the stages of an app", "the name of another stream")
        self._generation, self._partitions = generation, config.partitions
        notes = self._notes_name()
        is_live = isinstance(environment, LiveEnvironment)
        # On one machine as one that no pattern of an input finds; brokers would not compact such a one.
        environment.create_stream(notes, StreamConfig(compacted=True, intermediate=not is_live))
        if isinstance(environment, LogEnvironment):
            self._descriptor = lock_within(environment.path / "sources", notes)
            if self._descriptor is None:
                raise Owned(
                    f"{self.name} is taken into the stream {self.stream!r} of {environment.path} by another run: end "
                    "that first, or leave the binding out here, as what it takes in can be read by several"
                )
        if isinstance(environment, LiveEnvironment):
            # Before the notes are read: whoever took in until now makes none from here on.
            self._appender = environment.appender(notes)
        self._noted, self._notes_end = _notes_in(environment, notes)
        if self._farther is not None:
            self._add_notes_of_others(notes, self._farther)
        if self.pulling is not None and POSITION not in self._noted:
            self._check_empty(notes)
        if self.pulling is None and not self._noted:
            self._tell_others()
        self._notes_stream = notes

    def _add_notes_of_others(self, own: str, farther: Callable[[bytes, bytes], bytes]) -> None:
        """Let notes beside the stream count that were made under another name, as of a glob that finds the same."""
        start, end = notes_of(self.stream), f"-{self._environment.stream_id(self.stream)}"
        names = [name for name in self._environment.streams() if name.startswith(start) and name.endswith(end)]
        for name in sorted({*names} - {own}):
            for key, note in _notes_in(self._environment, name)[0].items():
                self._noted[key] = farther(self._noted[key], note) if key in self._noted else note

    def _tell_others(self) -> None:
        """Warn of records of others in the stream, as the application begins to read it: it reads these as well."""
        checkpoints = self._environment.checkpoints(self._app).values()
        is_read = any(one.stream == self.stream for checkpoint in checkpoints for one in checkpoint.positions)
        ranges = (self._environment.offsets(self.stream, number) for number in range(self._partitions))
        if not is_read and any(readable.end > readable.start for readable in ranges):
            _log.warning(
                "%s is taken into the stream %r, which holds records already that it has not brought: they are read as "
                "well, and first. Without them: %s",
                *(self.name, self.stream, typed(self._environment, f"streams delete {self.stream}")),
            )

    def _check_empty(self, notes: str) -> None:
        """Raise `Damaged` where records were pulled, and the notes beside them are gone: all would be pulled again."""
        # The reader is noted before anything is pulled.
        if any(self._environment.offsets(self.stream, number).end for number in range(self._partitions)):
            raise Damaged(
                f"{notes!r} has nothing, and {self.stream!r} has what was taken in of {self.name}: how far that came "
                "is lost, and all that is there would be taken in again. Put it back as it was. Or let all be taken "
                f"in again: {command(f'reset {self._app}')}, and then {command(f'streams delete {self.stream}')}."
            )

    def _notes_name(self) -> str:
        if self.pulling is not None:
            return positions_of(self.stream)
        # By the number of the stream as well: one that was deleted and is made anew begins with nothing taken in.
        place = f"{zlib.crc32(self.name.encode()):08x}-{self._environment.stream_id(self.stream)}"
        return f"{notes_of(self.stream)}{place}"

    def _pull(self, source: PulledSource) -> Callable[[Intake], None]:
        self.pulling = Pulling(source, f"{self._app}.{self._spec.stream}", self._spec.key or Tagged())
        return self.pulling.push

    def _run(self) -> None:
        try:
            self._push_all()
        except SamzaError as error:
            self._failed(error)

    @tells(lambda known: known["self"]._spec.op_id, rests=True)
    def _push_all(self) -> None:
        try:
            self._push(self)
        except SamzaError:
            # What it was doing when the run ended is told to nobody: it is taken in by the next one.
            if not self._closing.is_set():
                raise
        except Exception as error:
            function, handed = ("push", "notes") if self.pulling is None else ("pull", "position")
            raise SamzaError(
                f"{self.name}: {function}() of the source failed: {error!r}. Mend it: the next run hands it the "
                f"{handed} of what was taken in"
            ) from error

    def _appended(self, partition: int, rows: Sequence[PushedRecord]) -> Append:
        encode = self._spec.value.encode
        values = [
            value if value is None or isinstance(value, bytes) else encode(value)
            for value in (row.value for row in rows)
        ]
        batch = Batch(values)
        if any(row.key is not None for row in rows):
            batch.keys = [row.key for row in rows]
        if any(row.timestamp_ms is not None for row in rows):
            now_ms = wall_clock_ms()
            batch.timestamps = [now_ms if row.timestamp_ms is None else row.timestamp_ms for row in rows]
        if any(row.headers for row in rows):
            batch.headers = [row.headers for row in rows]
        return Append(self.stream, partition, batch)

    def _commit(self, appends: list[Append], notes: dict[str, bytes]) -> None:
        if notes:
            names: list[bytes] = [name.encode() for name in notes]
            appends = [*appends, Append(self._notes_stream, 0, Batch([*notes.values()], names))]
        if not appends:
            return
        with self._pushing:
            if self._closing.is_set():
                raise SamzaError(f"{self.name}: the run has ended, and nothing more is taken in")
            if self._appender is not None:
                self._appender.append(appends)
            else:
                # Where there are no locks, as in memory: two that push by the same notes would push everything twice.
                if self._environment.offsets(self._notes_stream, 0).end != self._notes_end:
                    raise Fenced(f"{self.name} is taken into {self.stream!r} by another run as well: end that")
                self._environment.commit(Commit(self._app, self._generation, appends, [], {}))
                self._notes_end += len(notes)
            self._noted |= notes
        self._tell()


class Pulling:
    """Pulls from a place that forgets, for an inbox, and confirms what is kept.

    Invariants: the reader's name is noted before the first pull, so that nothing is left behind under a name that
    nobody knows; a position is noted with the records in front of it, and confirmed after that.
    """

    def __init__(self, source: PulledSource, said: str, keys: Serde) -> None:
        self.source = source
        self.heard_ms = monotonic_ms()
        self._said, self._keys = said, keys
        self._has_moved = False
        """Whether the last pull has brought anything."""

    def push(self, intake: Intake) -> None:
        """Pull all that is there, and then what comes, every `poll_ms`, until the run ends.

        Raises SamzaError where it is to end with what is there, and nothing of that comes for long.
        """
        poll_s, still_s = self.source.poll_ms / 1_000, 0.0
        while True:
            has_more = self.pull_once(intake)
            if intake.until_now and not has_more:
                return
            goes_on = has_more and self._has_moved
            still_s = still_s + poll_s if has_more and not goes_on else 0.0
            if intake.until_now and still_s > max(STILL_S, poll_s):
                raise SamzaError(
                    f"{self.source.name}: pull() has said for {still_s:.0f} s that more is there (more=True), and has "
                    "given no record and no other position: mend the source, or give it back as more=False"
                )
            # At once again only behind something new: who has nothing for now would be asked without a pause.
            if intake.wait(0 if goes_on else poll_s):
                return

    def pull_once(self, intake: Intake) -> bool:
        """Pull, push and confirm; return whether more was there."""
        if POSITION not in intake.noted:
            drawn = f"{self._said}.{secrets.token_hex(4)}"
            of_place = {WHERE: self.source.name.encode(), KEEPS: self.source.keeps(drawn).encode()}
            intake.push([], {POSITION: _STORED.encode((drawn, b"")), **of_place})
        reader, position = _STORED.decode(intake.noted[POSITION])
        found = self._checked(self._tried(intake, lambda: self.source.pull(reader, position)))
        self.heard_ms = monotonic_ms()
        self._has_moved = bool(found.records) or found.position != position
        if self._has_moved:
            records = [self._stored(record) for record in found.records]
            intake.push(records, {POSITION: _STORED.encode((reader, found.position))})
            self._tried(intake, lambda: self.source.confirm(reader, found.position))
        return found.more

    def _checked(self, found: object) -> Pulled:
        """Return what was pulled; raises SamzaError for what a source of a user's own may return as well."""
        if (wrong := wrong_in_pull(found)) is not None:
            raise SamzaError(f"{self.source.name}: {wrong}. Mend pull() of the source: nothing of it was taken in")
        assert isinstance(found, Pulled), "what is wrong with anything else was said"
        return found

    def _stored(self, record: PulledRecord) -> PushedRecord:
        """Return a record as it is kept: with its key as it is, and by that in one partition with others of it."""
        value, key, timestamp_ms = record
        is_change = isinstance(value, Change)
        data = _STORED.encode((is_change, (value.key, value.old, value.new) if is_change else value, key))
        return PushedRecord(data, None if key is None else self._keys.encode(key), timestamp_ms)

    def _tried(self, intake: Intake, function: Callable[[], R]) -> R:
        """Call a function, again after a pause where that may help; anything else that it raises ends the run."""
        name = self.source.name
        return tried(function, Words(name, f"{name}: the source failed", f"{name} can't be read"), intake.wait)


@dataclass(frozen=True)
class AdaptedValue:
    """The serde of values that a place keeps otherwise than their type has them.

    >>> from runtime.encoding.serdes import Json
    >>> AdaptedValue(GivenValue(Json(bool)), bool).decode(1)
    True
    """

    given: GivenValue
    adapt: Callable[[Any], Any]

    def encode(self, value: object) -> bytes:
        """Return the bytes of a value, as the declared serde makes them."""
        return self.given.encode(value)

    def decode(self, data: Any) -> Any:
        """Return the value; raises SerdeError for what is not of the declared type."""
        return self.given.decode(data if isinstance(data, bytes) else self.adapt(data))


class PulledInput(LiveSource):
    """A bound input that is read from the inbox of a source that is pulled."""

    def __init__(self, environment: Environment, app: str, spec: Input, source: PulledSource) -> None:
        self.inbox = Inbox(environment, app, spec, source)
        self._environment, self._source, self._stream = environment, source, self.inbox.stream
        self._input = spec.stream
        check_name("stream", positions_of(self._stream))
        self._keys, self._gives_changes = spec.key or Tagged(), gives_changes(spec.value)
        wanted = StreamConfig(partitions=spec.partitions or 1)
        self.partitions = environment.create_stream(self._stream, wanted).partitions

    @property
    def name(self) -> str:
        """The name of the system in checkpoints."""
        return self._source.name

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads bytes as declared, and takes other values as they are."""
        given, adapt = GivenValue(declared), self._source.adapt
        if adapt is None:
            return given
        kind = type_of_values(declared)
        if not self._gives_changes:
            return AdaptedValue(given, adapt(kind))
        row = adapt(get_args(kind)[1] if get_args(kind) else Any)
        return AdaptedValue(given, lambda change: {**change, "old": row(change["old"]), "new": row(change["new"])})

    def stream_id(self) -> int:
        """Return what tells this inbox from a later one of its name."""
        return self._environment.stream_id(self._stream)

    def offsets(self, partition: int) -> Offsets:
        """Return the range of what was pulled."""
        return self._environment.offsets(self._stream, partition)

    def version(self, partition: int) -> int:
        """Return a number that grows when there may be more."""
        return self._environment.version()

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return the ms since the place was asked for more; infinity where there is something to read.

        A process for which another one asks does not know them: 0.
        """
        if not self.inbox.is_followed:
            return 0.0
        assert self.inbox.pulling is not None, "such an inbox pulls"
        end = self.offsets(partition).end
        return math.inf if end > offset else monotonic_ms() - self.inbox.pulling.heard_ms

    def listen(self, tell: Callable[[], None]) -> None:
        """Do nothing: the inbox itself tells of what it has taken in."""

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return what was pulled from `offset` on, with values and keys as the inputs that read it have declared."""
        try:
            read = self._stored(partition, offset, max_records)
        except Damaged as error:
            start, end, _ = self.offsets(partition)
            if start <= offset <= end:
                raise
            # By the input's name, which the way out takes.
            raise gone_error(self._input, partition, offset, start, end) from error
        if read is None:
            return None
        values, keys = [], []
        for data in read.batch.values:
            is_change, value, key = _STORED.decode(data)
            if is_change and not self._gives_changes:
                values.append(value[2])
            else:
                values.append(dict(zip(_CHANGE, value, strict=True)) if is_change else value)
            keys.append(None if key is None else self._keys.encode(key))
        batch = Batch(values, keys, read.batch.timestamps, offsets=read.batch.offsets)
        return Read(batch, None, read.next_offset, read.stream_id, read.appended_ms)

    def close(self) -> None:
        """End the inbox, and close the source; a second call does nothing."""
        self.inbox.close()

    def _stored(self, partition: int, offset: int, max_records: int) -> Read | None:
        return self._environment.read(self._stream, partition, offset, max_records)


class PulledTopic(PulledInput, FetchedSource, TransactionalSource):
    """A bound input whose inbox is a topic, from which each reader is fetched for at its own pace."""

    def __init__(self, environment: LiveEnvironment, app: str, spec: Input, source: PulledSource) -> None:
        super().__init__(environment, app, spec, source)
        self._brokers, self._reading = environment, environment.reader(0)

    def reader(self, number: int) -> PulledTopic:
        """Return what reads it for one of several tasks that share its partitions, from the same inbox."""
        if number == 0:
            return self
        other = copy(self)
        other._reading = self._brokers.reader(number)
        return other

    def offsets(self, partition: int) -> Offsets:
        """Return the range of what was pulled, as it is known here; no broker is asked."""
        return self._reading.known(self._stream, partition)

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return the ms for which it has been unknown, at the place or at the brokers, whether there is more."""
        return max(super().unheard_ms(partition, offset), self._reading.unheard_ms(self._stream, partition, offset))

    def written(self) -> list[int]:
        return self._brokers.written(self._stream)

    def settled(self) -> list[Offsets]:
        return self._brokers.settled(self._stream)

    def held(self, partition: int) -> OpenTransaction | None:
        return self._reading.held(self._stream, partition)

    def _stored(self, partition: int, offset: int, max_records: int) -> Read | None:
        return self._reading.read(self._stream, partition, offset, max_records)


def inbox_of(app: str, stream: str, where: str) -> str:
    """Return the stream that an input is pulled into: another place has another one.

    >>> inbox_of("shop", "orders", "shop.db")
    'shop.inbox.orders.44e81dc2'
    """
    return f"{app}.inbox.{stream}.{zlib.crc32(where.encode()):08x}"


def positions_of(inbox: str) -> str:
    """Return the stream of the positions beside an inbox."""
    return f"{inbox}.position"


def notes_of(stream: str) -> str:
    """Return how the streams of the notes beside a stream begin that is pushed into."""
    return f"{stream[:160]}.notes."


def pulled_from(environment: Environment, inbox: str) -> tuple[str, str, str]:
    """Return the place that is pulled into an inbox, its reader there, and what is kept for that.

    Each is "" where it is not noted; earlier versions noted the reader, some the place as well, and not what is kept.
    """
    noted, _ = _notes_in(environment, positions_of(inbox))
    reader = _STORED.decode(noted[POSITION])[0] if POSITION in noted else ""
    keeps = noted.get(KEEPS, b"what may be kept for it").decode()
    return noted.get(WHERE, b"").decode(), reader, keeps


def _notes_in(environment: Environment, stream: str) -> tuple[dict[str, bytes], int]:
    """Return the newest note of each name in a stream of notes, and the stream's end."""
    if isinstance(environment, LiveEnvironment):
        environment.settled(stream)
    offset, end, _ = environment.offsets(stream, 0)
    noted: dict[str, bytes] = {}
    while offset < end and (read := environment.read(stream, 0, offset)) is not None:
        names = read.batch.keys or []
        noted |= {bytes(key).decode(): value for key, value in zip(names, read.batch.values, strict=True)}
        offset = read.next_offset
    return noted, end


def gives_changes(declared: Serde) -> bool:
    """Whether an input declares the changes of rows as its values.

    >>> from runtime.encoding.serdes import Json
    >>> gives_changes(Json(Change[int, dict])), gives_changes(Json(dict))
    (True, False)
    """
    kind = type_of_values(declared)
    return kind is Change or get_origin(kind) is Change


_STORED = Evolving()
_CHANGE = Change.__struct_fields__
