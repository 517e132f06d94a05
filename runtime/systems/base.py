"""The port of a transactional environment: streams, state and checkpoints that change together in one commit."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from operators.base import MAX_TIMESTAMP, Batch, Serde
from runtime.assignment import JobModel, Membership, Placement, sticky
from runtime.checkpoint import Checkpoint
from runtime.errors import Damaged, EnvironmentFault, EnvironmentFull, Fenced, Grown

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the operating system says when a disk, a quota or a limit leaves no room."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_name(kind: str, name: str) -> None:
    """Raise `EnvironmentFault` unless `name` may name a `kind` ("stream", "application"), and so a file.

    >>> check_name("stream", "flights.by-carrier")
    >>> check_name("stream", "../flights")
    Traceback (most recent call last):
        ...
    runtime.errors.EnvironmentFault: '../flights' is no stream name: use letters, digits, ".", "_" and "-", ...
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise EnvironmentFault(
            f'{name!r} is no {kind} name: use letters, digits, ".", "_" and "-", at most 200, with no "." in front '
            'and no ".." inside.'
        )


def check_config(name: str, config: StreamConfig) -> None:
    """Raise `EnvironmentFault` unless a stream can be made with `config`."""
    check_name("stream", name)
    if config.partitions < 1:
        raise EnvironmentFault(f"Stream {name!r} can't have {config.partitions} partitions: give it at least one.")
    if config.compression not in (None, "zlib", "zstd"):
        raise EnvironmentFault(f'Stream {name!r}: compression is None, "zlib" or "zstd", not {config.compression!r}.')
    for option in ("retention_ms", "retention_bytes"):
        limit = getattr(config, option)
        if limit is not None and limit < 0:
            raise EnvironmentFault(f"Stream {name!r}: {option} is {limit}, and can't be below 0.")


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is made with. Retention drops whole old batches; a compacted stream keeps each key's newest.

    An intermediate stream lies between the stages of one application, whose commits drop what they have consumed.
    """

    partitions: int = 1
    compression: str | None = None
    compacted: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    intermediate: bool = False


def contradicted(config: StreamConfig, said: Mapping[str, object]) -> str | None:
    """Return the first option of what was said, which may be nothing, that a stream was made with otherwise.

    >>> contradicted(StreamConfig(partitions=4), {"partitions": None, "compression": "zlib"})
    'compression'
    """
    return next((name for name, wanted in said.items() if wanted and wanted != getattr(config, name)), None)


class Control(msgspec.Struct, frozen=True, array_like=True):
    """What a producer says after the records beside it: its watermark (ms); MAX_TIMESTAMP when it has ended.

    One that is `idle` holds nobody back until it says something else.
    """

    producer: str
    watermark: int
    generation: int = 0
    idle: bool = False


OUTSIDE = ""
"""The producer of an input that is no application: what it says of event time holds for all that is in a partition."""

END = Control(OUTSIDE, MAX_TIMESTAMP)
"""What ends a partition for good: nothing may be appended after it."""


class Append(NamedTuple):
    """Rows for the end of one partition: `batch` has bytes as values (None is a tombstone), and may be empty."""

    stream: str
    partition: int
    batch: Batch
    control: Control | None = None


class StateWrites(NamedTuple):
    """Changed entries of one operator's store in one task, sorted by key; None deletes."""

    store: str
    task: int
    items: list[tuple[bytes, bytes | None]]


class Commit(NamedTuple):
    """Everything that becomes visible together: all of it, or nothing.

    `consumed` has, by intermediate stream and partition, the offset below which nobody will read again. `tasks` has the
    generations of the tasks that were taken among several containers.
    """

    app: str
    generation: int
    appends: list[Append]
    state: list[StateWrites]
    checkpoints: dict[str, Checkpoint]
    consumed: Mapping[tuple[str, int], int] = MappingProxyType({})
    tasks: Mapping[int, int] = MappingProxyType({})


class Offsets(NamedTuple):
    """The readable range of a partition: `start` <= offset < `end`; `ended` when an end-of-stream was appended."""

    start: int
    end: int
    ended: bool


class Read(NamedTuple):
    """What a read found: rows whose `offsets` column is set, what a producer said after them, and where to go on.

    A stream that was made anew, under the name of one that was deleted, has another `stream_id`; a bound source has 0.
    """

    batch: Batch
    control: Control | None
    next_offset: int
    stream_id: int = 0


def ends(control: Control | None) -> bool:
    """Whether a control ends its partition for good, as `END` does."""
    return control is not None and control.producer == OUTSIDE and control.watermark >= MAX_TIMESTAMP


def check_keys(stream: str, config: StreamConfig, batch: Batch) -> None:
    """Raise `EnvironmentFault` when a row for a compacted stream has no key."""
    if config.compacted and batch.values and (batch.keys is None or None in batch.keys):
        raise EnvironmentFault(f"Stream {stream!r} is compacted, and keeps a value per key: give every row a key.")


def is_absent(stream: str) -> EnvironmentFault:
    """What is wrong when a stream was never created."""
    return EnvironmentFault(f"There is no stream {stream!r}: create it first.")


def has_no_partition(stream: str, config: StreamConfig, partition: int) -> EnvironmentFault:
    """What is wrong when a partition is beyond the stream's."""
    return EnvironmentFault(f"Stream {stream!r} has no partition {partition}: it has 0 to {config.partitions - 1}.")


def has_ended(stream: str, partition: int) -> EnvironmentFault:
    """What is wrong when something is appended after end-of-stream."""
    return EnvironmentFault(
        f"Stream {stream!r}, partition {partition}, has ended and takes nothing more: append to another stream, or "
        "delete this one."
    )


def is_filled(name: str) -> EnvironmentFault:
    """What is wrong when a stream that is to be filled at once was written to meanwhile."""
    return EnvironmentFault(
        f"Stream {name!r} was empty when it began to be filled, and somebody has written to it since: nothing of this "
        "run was written there. Remove what is there, and run it again."
    )


def is_gone(stream: str, partition: int, offset: int, start: int, end: int) -> Damaged:
    """What is wrong when a reader asks for an offset outside of what a partition has."""
    return Damaged(
        f"Stream {stream!r}, partition {partition}, has no offset {offset}: there is {start} to {end}. Retention has "
        "removed it, or the stream was made anew: set where the application that reads it goes on (samza-dsl "
        "checkpoint set), or let it begin anew (samza-dsl reset)."
    )


def is_another(stream: str, partition: int, offset: int) -> Damaged:
    """What is wrong when a position is in a stream that was deleted, and there is another one of its name."""
    return Damaged(
        f"Stream {stream!r}, partition {partition}, was made anew since it was read up to offset {offset}: set where "
        "the application that reads it goes on (samza-dsl checkpoint set), or let it begin anew (samza-dsl reset)."
    )


def has_grown(stream: str, partitions: int, before: int) -> Grown:
    """What is wrong when a stream has got more partitions, or fewer, since a run has begun to read it."""
    return Grown(
        f"{stream} has {partitions} partitions now, and had {before}. Without state the application goes on with all "
        "of them when it is run again; where state is kept by the keys of this stream, they lie in others from now on: "
        "let the application begin anew (samza-dsl reset)."
    )


def is_fenced(app: str, generation: int, current: int) -> Fenced:
    """What is wrong when a run is of an older generation than its application is."""
    return Fenced(
        f"Application {app!r} is at generation {current}, and this run is of {generation}: another one has taken "
        "over, or it was reset. Nothing that this run has not committed was written."
    )


def is_taken(app: str, task: int, generation: int, current: int) -> Fenced:
    """What is wrong when a container commits for a task that another one has taken."""
    return Fenced(
        f"Task {task} of application {app!r} is at generation {current}, and this container has it of {generation}: "
        "another one has taken it over. Nothing that this container has not committed was written."
    )


@contextmanager
def system_errors_told(path: Path, what: str) -> Iterator[None]:
    """Raise `EnvironmentFull` or `EnvironmentFault`, saying that `path` can't be `what`, for an OSError in a block.

    >>> with system_errors_told(Path("out.jsonl"), "written"):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
        ...
    runtime.errors.EnvironmentFull: out.jsonl can't be written: [Errno 28] No space left on device. ...
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise EnvironmentFull(
                f"{path} can't be {what}: {error}. Nothing was committed: make room, and go on from the checkpoint."
            ) from error
        raise EnvironmentFault(f"{path} can't be {what}: {error}.") from error


class Environment(Protocol):
    """Streams, state and checkpoints of the applications of one place.

    Reads see only what is committed. `commit` and `append` may be called from one thread at a time, any thread;
    reads may run beside them from any thread.
    """

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""

    def streams(self) -> dict[str, StreamConfig]:
        """Return all streams by name."""

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""

    def stream_id(self, stream: str) -> int:
        """Return what tells a stream from others that have had its name; 0 where that is not known."""

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and their bytes as they are stored; it looks at every batch."""

    def version(self) -> int:
        """Return a number that grows with every change, by any process; cheap enough to ask at every idle turn."""

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, never more than one appended batch nor `max_records`; None at the end.

        Where retention has removed `offset`, it raises `Damaged` with the range that is left. The control of an
        appended batch comes with its last rows.
        """

    def append(self, appends: Iterable[Append]) -> None:
        """Write rows in one transaction of their own, as a producer outside any application does."""

    def end_stream(self, stream: str) -> None:
        """Append end-of-stream to every partition."""

    def compact(self, stream: str) -> None:
        """Keep only the newest row of each key, now; appending does it by and by where the stream is `compacted`.

        A deletion (None) goes as well, a day after it was appended. What each producer said last stays.
        """

    def commit(self, commit: Commit) -> None:
        """Make everything in `commit` visible and durable, or nothing of it.

        Of what is consumed of intermediate streams whole batches go, by and by: more in each commit than it appends.
        Raises `Fenced` when `commit.generation` is not the application's, or one of `commit.tasks` not the task's;
        `EnvironmentFull` when there is no space.
        """

    def own(self, app: str) -> int:
        """Become the application's one owner until `close`, and return its new generation; raises `Owned`."""

    def generation(self, app: str) -> int:
        """Return the application's generation: 0 before anyone owned it."""

    def applications(self) -> list[str]:
        """Return the names of all applications that were ever owned, in order."""

    def join(
        self,
        app: str,
        generation: int,
        container: str,
        tasks: int,
        placement: Placement = sticky,
        standby: int = 0,
    ) -> Membership:
        """Be one of the containers that share so many tasks, in the run of `generation`, under a name of its own.

        Where not all have the state of all tasks anyway, so many other hosts keep a copy of each task's (`standby`).
        """

    def job_model(self, app: str) -> JobModel:
        """Return who runs what in the newest run, as far as containers that live are known."""

    def checkpoints(self, app: str) -> dict[str, Checkpoint]:
        """Return the application's newest checkpoint of every task."""

    def state_get(self, app: str, store: str, task: int, key: bytes) -> bytes | None:
        """Return the committed value of one entry."""

    def state_reader(self, app: str, store: str, task: int) -> StateReader:
        """Return what reads single entries of one store and task, many of them more cheaply than `state_get`."""

    def state_range(
        self, app: str, store: str, task: int, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed entries with `start` <= key < `end` in key order; nothing may write to them meanwhile."""

    def stores(self, app: str) -> list[str]:
        """Return the names of the application's stores that hold anything, in order."""

    def state_stats(self, app: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, per (store, task), the number of entries and their bytes."""

    def reset(self, app: str, stores: Iterable[str] | None = None) -> None:
        """Remove the application's checkpoints and state (of `stores`, or all) and begin a new generation."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


class StateReader(Protocol):
    """Reads committed entries of one store and task, all as of its first look since it was released.

    Release it before every commit, and when nothing is read for a while: it may keep in place what commits replace.
    One thread at a time may use it.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one entry."""

    def release(self) -> None:
        """Let go of what was looked at."""


@runtime_checkable
class LiveEnvironment(Environment, Protocol):
    """An environment that others write to at any time, and that hears of it."""

    def listen(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, from any thread, when there may be more to read."""

    def look(self, stream: str, partitions: Collection[int]) -> None:
        """Ask how far partitions are that are about to be read, so that it is `known`."""

    def known(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition as it is known here, without asking anybody."""

    def expect(self, stream: str, offsets: Mapping[int, int]) -> None:
        """Know from which offset each of some partitions is about to be read, so that none waits for another."""

    def fetched(self, stream: str, partition: int, offset: int) -> Read | None:
        """Return rows from `offset` on that have come here already; None where none have, though some be `known`.

        Raises `Unavailable` where these do not come for long.
        """

    def unheard_ms(self, stream: str, partition: int, offset: int) -> float:
        """Return for how long it is not known whether something lies at or beyond an offset."""

    def announce(self, app: str, generation: int) -> None:
        """Let others see, until this is closed, that this process has the application to itself."""

    def commit_by_task(self, app: str, tasks: Collection[int]) -> dict[int, int]:
        """Have each task of an application commit by itself, from any thread, and be fenced by itself.

        Returns the generations of those that are given, which are all this owner's; a container takes its own later.
        """

    def is_caught_up(self) -> bool:
        """Whether all that lay between stages when it was asked was read here; asking may take a while."""

    def ranges(self) -> dict[str, list[Offsets]]:
        """Return the readable range of each partition of all streams, without a look at whether any has ended."""

    def reclaim(self, app: str) -> bool:
        """Remove what a reset has left of an application that was deleted; return whether there was anything."""

    def described(self, stream: str) -> StreamConfig:
        """Return what a stream is kept as now, whoever has made it."""


@runtime_checkable
class StagingEnvironment(Environment, Protocol):
    """An environment in which streams are filled at once, with more than memory holds."""

    def stage(self, app: str, generation: int, appends: Iterable[Append]) -> None:
        """Write rows for streams that are there and empty to where nobody sees them, behind what is staged already.

        Raises `Fenced` when `generation` is not the application's. Who owns or resets it has what is staged removed.
        """

    def publish(self, app: str, generation: int) -> None:
        """Make all that is staged visible at once, or nothing of it: the streams have it, and are made anew by that.

        Raises `Fenced`, and `EnvironmentFault` where one of these streams is empty no longer.
        """

    def discard(self, app: str) -> None:
        """Remove what is staged."""


class Source(Protocol):
    """A bound input that is not a stream of the environment: rows by partition and offset, read again from anywhere."""

    name: str
    """What the system is called in checkpoints: "jsonl", "csv", …"""
    partitions: int

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads this source's values, given the one that the pipeline declares."""

    def offsets(self, partition: int) -> Offsets:
        """Return the readable range of a partition; a bounded source has always ended."""

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on; None at the end."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


@runtime_checkable
class UncountedSource(Source, Protocol):
    """A bound input whose end is not known before it was read to there, unless all is read for it."""

    def known(self, partition: int) -> Offsets:
        """Return the readable range as far as it is known without reading: to MAX_TIMESTAMP where its end is not."""

    def expected(self, partition: int) -> int:
        """Return about how many records there are."""


@runtime_checkable
class LiveSource(Source, Protocol):
    """A bound input that has no end: what can be read of it grows."""

    def version(self, partition: int) -> int:
        """Return a number that grows when there may be more to read."""

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return for how long it is not known whether something lies at or beyond an offset."""

    def listen(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, from any thread, when there may be more to read."""


class Sink(Protocol):
    """A bound output that is not a stream of the environment: written before the commit, taken back after a crash."""

    name: str
    columns: frozenset[str]
    """What it keeps beside the values: "keys", "timestamps"."""
    partitions: int

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that makes this sink's values, given the one that the pipeline declares."""

    def recover(self, position: int) -> None:
        """Drop everything beyond `position`, as an earlier `flush` returned it; 0 empties the sink."""

    def write(self, batch: Batch) -> None:
        """Take rows, in order; they need not be durable yet."""

    def flush(self) -> int:
        """Make all rows durable and return the position that the commit records."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


@runtime_checkable
class PartitionedSink(Sink, Protocol):
    """A bound output of several partitions, which rows are routed to as in a stream of the environment."""

    def write_to(self, partition: int, batch: Batch) -> None:
        """Take rows for a partition, in order; they need not be durable yet."""
