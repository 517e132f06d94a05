"""The port of streams: their configuration, and the records that are appended to them and read from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from operators.core.base import MAX_TIMESTAMP, Batch
from runtime.model.errors import Damaged, EnvironmentFault, Grown, command

NO_SIZES: Mapping[str, int] = MappingProxyType({})
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a stream is made with.

    Retention drops whole old batches; a compacted stream keeps the newest row of each key.
    An intermediate stream lies between the stages of one application, whose commits drop what they have consumed.
    One that has `grown` tells for each time where its partitions ended then.
    """

    partitions: int = 1
    compression: str | None = None
    compacted: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    intermediate: bool = False
    grown: tuple[tuple[int, ...], ...] = ()


def contradicted(config: StreamConfig, said: Mapping[str, object]) -> str | None:
    """Return the first option that contradicts the configuration of a stream; an option that is not said never does.

    >>> contradicted(StreamConfig(partitions=4), {"partitions": None, "compression": "zlib"})
    'compression'
    """
    return next((name for name, wanted in said.items() if wanted and wanted != getattr(config, name)), None)


METRICS_CONFIG = StreamConfig(retention_ms=7 * 86_400_000)
"""The configuration of the stream to which an application writes its metrics: a week of them is kept."""


class Control(msgspec.Struct, frozen=True, array_like=True):
    """The watermark (ms) that a producer says after the records beside it; MAX_TIMESTAMP when it has ended.

    One that is `idle` holds nobody back until it says something else. Where a producer has `heirs`, these go on with
    what it did: it will say nothing more. `beside` is what others say that commit together with it.
    """

    producer: str
    watermark: int
    generation: int = 0
    idle: bool = False
    heirs: tuple[str, ...] = ()
    beside: tuple[Control, ...] = ()

    @property
    def words(self) -> tuple[Control, ...]:
        """Each of the controls that this one consists of, by itself."""
        return (msgspec.structs.replace(self, beside=()), *self.beside) if self.beside else (self,)


def in_one(words: Sequence[Control]) -> Control:
    """Return what several producers say at one place as one control.

    >>> [one.watermark for one in in_one([Control("a", 1), Control("b", 2)]).words]
    [1, 2]
    """
    first, *others = words
    assert not any(one.beside for one in words), "each speaks for itself"
    return msgspec.structs.replace(first, beside=tuple(others)) if others else first


OUTSIDE = ""
"""The producer of an input outside any application: its watermark holds for all records of a partition."""
END = Control(OUTSIDE, MAX_TIMESTAMP)
"""The control that ends a partition for good: nothing may be appended after it."""


class Append(NamedTuple):
    """Rows for the end of one partition: `batch` has bytes as values (None is a tombstone), and may be empty."""

    stream: str
    partition: int
    batch: Batch
    control: Control | None = None


class Offsets(NamedTuple):
    """The readable range of a partition: `start` <= offset < `end`; `ended` when an end-of-stream was appended."""

    start: int
    end: int
    ended: bool


class Read(NamedTuple):
    """The result of a read: rows whose `offsets` column is set, what a producer said after them, and the next offset.

    A stream that was made anew, under the name of one that was deleted, has another `stream_id`; a bound source has 0.
    `appended_ms` is when they were appended, 0 where that is not known; rows of brokers count from their coming here.
    """

    batch: Batch
    control: Control | None
    next_offset: int
    stream_id: int = 0
    appended_ms: int = 0


class StreamPort(Protocol):
    """The streams of one place by name; any thread may ask for them."""

    def create_stream(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream, or return the configuration of the one that exists already."""

    def delete_stream(self, name: str) -> None:
        """Remove a stream with all that is in it; nothing happens where it is absent."""

    def streams(self, among: Collection[str] | None = None) -> dict[str, StreamConfig]:
        """Return streams by name, all or those `among` these that there are, which is faster where there are many."""

    def stream_id(self, stream: str) -> int:
        """Return the number that tells a stream from others that have had its name; 0 where it is not known."""

    def stream_stats(self, stream: str) -> tuple[int, int]:
        """Return how many records a stream holds, and their bytes as they are stored; it looks at every batch."""


class RecordPort(Protocol):
    """The records of streams: reads see only what is committed, and may run beside an append from any thread."""

    def offsets(self, stream: str, partition: int) -> Offsets:
        """Return the readable range of a partition."""

    def version(self) -> int:
        """Return a number that grows with every change, by any process; cheap enough to ask at every idle turn."""

    def read(self, stream: str, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return rows from `offset` on, never more than one appended batch nor `max_records`; None at the end.

        Where retention has removed `offset`, it raises `Damaged` with the range that is left, and where a batch is not
        what was written. The control of an appended batch comes with its last rows; one without rows takes an offset
        of its own, and is read as an empty batch.
        """

    def append(self, appends: Iterable[Append], among: Mapping[str, int] = NO_SIZES) -> None:
        """Write rows in one transaction of their own, as a producer outside any application does.

        Partitions of keys were chosen `among` so many of a stream: on one machine it raises `Grown` where there are
        more by now. Raises `EnvironmentFault` where a partition has ended.
        """

    def end_stream(self, stream: str) -> None:
        """Append end-of-stream to every partition that has not ended; they take nothing more."""

    def compact(self, stream: str) -> None:
        """Keep only the newest row of each key, now; appending does it by and by where the stream is `compacted`.

        A deletion (None) goes as well, a day after it was appended. What each producer said last stays.
        """


def ends(control: Control | None) -> bool:
    """Whether a control ends its partition for good, as `END` does."""
    return control is not None and control.producer == OUTSIDE and control.watermark >= MAX_TIMESTAMP


def check_name(kind: str, name: str) -> None:
    """Raise `EnvironmentFault` unless `name` may name a `kind` ("stream", "application"), and so a file.

    >>> check_name("stream", "flights.by-carrier")
    >>> check_name("stream", "../flights")
    Traceback (most recent call last):
        ...
    runtime.model.errors.EnvironmentFault: '../flights' is no stream name: use letters, digits, ".", "_" and "-", ...
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


def check_grown(name: str, config: StreamConfig, partitions: int) -> None:
    """Raise `EnvironmentFault` unless a stream can have so many partitions from now on: more, and by its keys' hash."""
    if partitions < config.partitions:
        raise EnvironmentFault(
            f"Stream {name!r} has {config.partitions} partitions, and can't have {partitions}: what lies in the others "
            "would be lost. Write it to another stream."
        )
    if config.compacted:
        raise EnvironmentFault(
            f"Stream {name!r} is compacted: the newest row of a key would lie in one partition, and an older one in "
            "another. Write its rows to another stream that has as many."
        )
    if config.intermediate:
        raise EnvironmentFault(
            f"Stream {name!r} lies between the stages of an application, which gives it its partitions: say "
            "partitions= in the partition_by that writes it."
        )


def grown_config(config: StreamConfig, partitions: int, reached: Sequence[int]) -> StreamConfig:
    """Return the configuration of a stream that has more partitions from where the former ones have `reached`."""
    assert len(reached) == config.partitions < partitions, "a stream grows from all partitions that it has"
    return msgspec.structs.replace(config, partitions=partitions, grown=(*config.grown, tuple(reached)))


def check_among(among: Mapping[str, int], partitions: Callable[[str], int]) -> None:
    """Raise `Grown` where the partitions of keys were chosen among another number of them than a stream has."""
    for stream, chosen in among.items():
        if (now := partitions(stream)) != chosen:
            raise grown_error(f"The stream {stream!r}", now, chosen)


def check_keys(stream: str, config: StreamConfig, batch: Batch) -> None:
    """Raise `EnvironmentFault` when a row for a compacted stream has no key."""
    if config.compacted and batch.values and (batch.keys is None or None in batch.keys):
        raise EnvironmentFault(f"Stream {stream!r} is compacted, and keeps a value per key: give every row a key.")


def absent_error(stream: str) -> EnvironmentFault:
    """Return the error for when a stream was never created."""
    return EnvironmentFault(f"There is no stream {stream!r}: create it first.")


def no_partition_error(stream: str, config: StreamConfig, partition: int) -> EnvironmentFault:
    """Return the error for when a partition is beyond the stream's."""
    return EnvironmentFault(f"Stream {stream!r} has no partition {partition}: it has 0 to {config.partitions - 1}.")


def ended_error(stream: str, partition: int) -> EnvironmentFault:
    """Return the error for when something is appended after end-of-stream."""
    return EnvironmentFault(
        f"Stream {stream!r}, partition {partition}, has ended and takes nothing more: append to another stream, or "
        "delete this one."
    )


def gone_error(stream: str, partition: int, offset: int, start: int, end: int) -> Damaged:
    """Return the error for when a reader asks for an offset outside of what a partition has."""
    return Damaged(
        f"Stream {stream!r}, partition {partition}, has no offset {offset}: there is {start} to {end}. Retention has "
        "removed it, or the stream was made anew: set where the application that reads it goes on "
        f"({command(f'checkpoint set APP {stream}:{partition} earliest')}), or let it begin anew "
        f"({command('reset APP')})."
    )


def made_anew_error(stream: str, partition: int, offset: int) -> Damaged:
    """Return the error for when a position is in a stream that was deleted, and there is another one of its name."""
    return Damaged(
        f"Stream {stream!r}, partition {partition}, was made anew since it was read up to offset {offset}: set where "
        f"the application that reads it goes on ({command(f'checkpoint set APP {stream}:{partition} earliest')}), or "
        f"let it begin anew ({command('reset APP')})."
    )


def replaced_error(stream: str, partition: int, offset: int) -> Damaged:
    """Return the error for when a position is in a file, list or frame, and another one was bound in its place."""
    return Damaged(
        f"What is bound to {stream!r}, partition {partition}, is another one than what was read up to offset {offset}, "
        "or was changed there; that would be passed over. Bind the old one; or read this one from its start: "
        f"{command(f'checkpoint set APP {stream}:{partition} earliest --state keep')}, or reset; or append each new "
        f"one to a stream: {command(f'streams produce {stream} --file FILE')}."
    )


def grown_error(stream: str, partitions: int, before: int) -> Grown:
    """Return the error for when a stream has got more partitions, or fewer, since a run has begun to read it."""
    return Grown(
        f"{stream} has {partitions} partitions now, and had {before}. The application goes on with all of them when it "
        "is run again: what it keeps by the keys of this stream, which lie in others from now on, moves there. Where "
        f"that can't be, the run says what to drop of it and how, or let it begin anew ({command('reset APP')})."
    )
