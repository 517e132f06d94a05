"""The values by which users connect systems of their own: sources, and sinks of four kinds, made of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol

from operators.core.base import MAX_TIMESTAMP, Serde
from operators.core.durations import Duration, whole_ms
from runtime.model.errors import Damaged, Fenced, SamzaError, command
from runtime.ports.streams import Offsets

MOST_ROWS = 50_000
"""The rows that are handed to a sink at a time, about, where it says nothing else."""
MOST_REFUSED = 1_000
"""The rows that a sink names together as refused: where it names fewer, it has tried all of those that it was given.

A checkpoint names each until the sink is led past them.
"""
FetchedRecords = Callable[[str, int, int], Sequence["SourceRecord"]]
"""Reads from a partition, from an offset on, at most so many records."""


class SourceRecord(NamedTuple):
    """A record as a source has it: `SourceRecord(7, {"id": 1}, timestamp_ms=1_700_000_000_000)`.

    Offsets rise in each partition, with or without gaps. A value that is bytes is read by the input's `value=`; any
    other is made to be of that type. Without a value it is a tombstone.

    >>> SourceRecord(7, b'{"id":1}').key is None
    True
    """

    offset: int
    value: Any
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Mapping[str, bytes | None] | None = None


class PushedRecord(NamedTuple):
    """A record that a source pushes: bytes are stored as they are, any other value as the input's `value=` writes it.

    Records of one key go to one partition of the stream; those without a key go to the first.

    >>> PushedRecord(b'{"id":1}').timestamp_ms is None
    True
    """

    value: Any
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Mapping[str, bytes | None] | None = None


class Intake(Protocol):
    """The stream that a source pushes to, and what it has noted there; each method may be called from any thread."""

    until_now: bool
    """Whether the source is to push what is there now, and return."""

    @property
    def serde(self) -> Serde:
        """Return the serde of the input's values."""

    @property
    def noted(self) -> Mapping[str, bytes]:
        """Return what the source has noted last under each name, in this run or in earlier ones."""

    def push(self, records: Sequence[PushedRecord], notes: Mapping[str, bytes] | None = None) -> None:
        """Append records, and notes of how far the source has come by them, in one transaction; they are durable then.

        Raises `Fenced` where another run has the stream, and SamzaError where this one is closing.
        """

    def end(self) -> None:
        """Let the stream end for good: nothing will ever come again."""

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, and return whether the run is closing, at once then; the source is to return."""


class SinkRow(NamedTuple):
    """A row for a sink: the value and key as the pipeline has them, and its event time; no value means a deletion.

    Without `key=` of the output a key is the bytes that it is stored as. A row has the same `id` whenever it is
    written again, and no other row of any application has it; a `PositionedSink` needs none, and is given none.

    >>> SinkRow({"id": 1}, key="a").timestamp_ms is None
    True
    """

    value: Any
    key: Any = None
    timestamp_ms: int | None = None
    id: str = ""


class SinkOwner(NamedTuple):
    """The run that writes to a sink with positions: one partition of one output of one application.

    Of two owners with one `identity` the one of the higher `generation` counts. Another identity is an application
    that began anew, or has another data directory, and knows of no position. Its values are of the `value_type`. It has
    rows from the offset `start` to `end`: a position elsewhere is of another time than the claim, which `check_known`
    refuses. One that `is_known` has claimed the sink before: where that has no position of it, this was lost.

    >>> SinkOwner("shop", "orders", 0, generation=3, identity=9).place
    ('shop', 'orders', 0)
    """

    app: str
    output: str
    partition: int
    generation: int
    identity: int
    value_type: Any = Any
    end: int = MAX_TIMESTAMP
    start: int = 0
    is_known: bool = False

    def check_known(self, position: int, where: str) -> None:
        """Raise `Damaged` where a sink has come to a position that the owner has no rows for, before it is claimed."""
        if not self.start <= position <= self.end:
            raise Damaged(
                f"{where} has rows of {self.output!r} up to {position:,}, and this environment has those from "
                f"{self.start:,} to {self.end:,}: one of the two was restored from a copy of another time, or what "
                f"waits to be delivered was lost. Restore both from the same time; or let the application begin anew, "
                f"which writes all of it again: {command(f'reset {self.app}')}, and another place for it, or this one "
                "without what was written"
            )

    def lost_error(self, where: str, positions: str) -> Damaged:
        """Return the error of an owner whose position is gone from a place that still has rows."""
        return Damaged(
            f"{where} has rows, and {positions} has not how far {self.output!r} has come there, which was noted: they "
            "would be written twice. Restore it together with the rows. Or let the application begin anew, which "
            f"writes all of it again: {command(f'reset {self.app}')}, and remove what it has written here"
        )

    def fenced_error(self, where: str) -> Fenced:
        """Return the error of an owner who may not write to a place any more."""
        return Fenced(
            f"{where} is written by another run of application {self.app!r} than this one, of generation "
            f"{self.generation}: that has taken over, or has begun anew. Nothing more is written by this one."
        )

    @property
    def place(self) -> tuple[str, str, int]:
        """The place that a sink keeps a position for."""
        return self.app, self.output, self.partition


def _nothing() -> None:
    """Do nothing at the end."""


def _forgotten(reader: str) -> None:
    """Do nothing about a reader that is no more: nothing is kept for it."""


def _keeping_nothing(reader: str) -> str:
    """Return no words: nothing is kept for a reader."""
    return ""


def _unheard(reader: str, position: bytes) -> None:
    """Do nothing about what is needed no more."""


@dataclass(frozen=True)
class ConnectedSource:
    """A partitioned source that can be read again from any offset: `bind={"orders": ConnectedSource(...)}`.

    `partitions` returns their names, one behind the other: new ones come at the end, which the run looks for every
    `poll_ms`. `offsets` returns the range of a partition that can be read now, and whether it has ended for good.
    `read` returns records from an offset on, at most so many, and none where there are none. All functions are called
    in one thread of the source's own, so that they may wait, and need no locks.

    >>> lines = ["a", "b", "c"]
    >>> source = ConnectedSource(
    ...     name="lines",
    ...     partitions=lambda: ("all",),
    ...     offsets=lambda partition: Offsets(0, len(lines), ended=True),
    ...     read=lambda partition, offset, most: [
    ...         SourceRecord(n, line) for n, line in enumerate(lines[offset : offset + most], offset)
    ...     ],
    ... )
    >>> source.read("all", 1, 10)[0].value
    'b'
    """

    name: str
    partitions: Callable[[], Sequence[str]]
    offsets: Callable[[str], Offsets]
    read: FetchedRecords
    close: Callable[[], None] = _nothing
    poll_ms: int = 500

    promise: ClassVar[str] = "read again from any offset, so that each record takes effect once"

    def __post_init__(self) -> None:
        check_functions(self, "partitions", "offsets", "read", "close")
        check_poll(self, self.poll_ms)


class PulledRecord(NamedTuple):
    """A record as it was pulled: its value, which may be a `Change` of a row, its key, and its event time if any.

    Of a `Change` an input that declares another type reads the row after it, and of a deletion no value.

    >>> PulledRecord({"id": 1}, key=1).timestamp_ms is None
    True
    """

    value: Any
    key: Any = None
    timestamp_ms: int | None = None


class Pulled(NamedTuple):
    """The records that come next, the position behind them, and whether `more` than these was there already."""

    records: Sequence[PulledRecord]
    position: bytes
    more: bool = False


@dataclass(frozen=True)
class PulledSource:
    """A source that forgets: what is pulled is appended to a stream of the application, which is read in its place.

    `pull` takes the name of a reader, which is an application's own for good, and the position behind what it has; at
    first that is b"", from which it begins anew whatever an earlier try has left. A position is kept with the records
    in front of it, in one transaction; only then `confirm` tells the place that what lies before it is needed no more.
    So each record is there once, whatever crashes. `adapt` returns, for the type that an input declares of rows, what
    makes such values as plain as the type has them, where the place keeps, say, lists as text. `snapshot` pulls as
    `pull` does, and leaves nothing in the place: for a run on Spark, which reads what is there now. `keeps`
    says in words what the place keeps for a reader, as "the slot shop", and "" for nothing; `forget` drops all of that
    where the reader is no more, and may be called again. `place` names what is read, as a path, a glob or a URL: an
    output of the same application that has it too is refused. All others are called in one thread at a time.
    What raises `Unavailable` or OSError is called again after a pause; whatever else is raised ends the run.

    >>> lines = [b"a", b"b"]
    >>> def pull(reader: str, position: bytes) -> Pulled:
    ...     found = lines[int(position or 0) :]
    ...     return Pulled([PulledRecord(line) for line in found], b"%d" % len(lines))
    >>> PulledSource("lines", pull).pull("me", b"1").records
    [PulledRecord(value=b'b', key=None, timestamp_ms=None)]
    """

    name: str
    pull: Callable[[str, bytes], Pulled]
    confirm: Callable[[str, bytes], None] = _unheard
    close: Callable[[], None] = _nothing
    poll_ms: int = 500
    promise: str = "kept as it is pulled, so that each record takes effect once"
    adapt: Callable[[Any], Callable[[Any], Any]] | None = None
    snapshot: Callable[[str, bytes], Pulled] | None = None
    forget: Callable[[str], None] = _forgotten
    keeps: Callable[[str], str] = _keeping_nothing
    place: str = field(default="", repr=False)  # a URL may have a password

    def __post_init__(self) -> None:
        check_functions(self, "pull", "confirm", "close", "forget", "keeps")
        check_poll(self, self.poll_ms)


@dataclass(frozen=True)
class PushedSource:
    """A source that can't be read again: what it pushes is appended to the stream that the input reads.

    `push` is called in a thread of its own while the application runs. It pushes records, each with a note of how far
    it has come, and returns when `wait` says so, or at its end. An earlier run may have ended anywhere; what it had
    noted is in `noted`. Records are kept as long as those of the stream, which others may read as well. Where
    sources of other names push into one stream what is the same to each, as the files of a folder, `farther` returns
    which of two notes of one name counts: theirs are in `noted`, too. An output of the same application is refused
    whose `place` is that of the source, a path, a glob or a URL.

    >>> def count(intake: Intake) -> None:
    ...     for n in range(int(intake.noted.get("next", b"0")), 10):
    ...         intake.push([PushedRecord(n)], {"next": b"%d" % (n + 1)})
    ...     intake.end()
    >>> PushedSource("ten numbers", count).promise
    'appended to a stream first, from where each record takes effect once'
    """

    name: str
    push: Callable[[Intake], None]
    farther: Callable[[bytes, bytes], bytes] | None = None
    place: str = field(default="", repr=False)  # a URL may have a password

    promise: ClassVar[str] = "appended to a stream first, from where each record takes effect once"

    def __post_init__(self) -> None:
        check_functions(self, "push")


@dataclass(frozen=True)
class TransactionalSink:
    """A sink that can be cut back to a position, which our commit records: each row is there exactly once.

    `write` takes rows, `flush` makes them durable and returns the position behind them, which the place has itself, and
    `recover` drops all that lies behind a position, as after a crash; 0 empties the sink. A run ends where `flush`
    returns less behind that: committed rows are lost. They are called by one thread at a time.

    >>> rows = []
    >>> sink = TransactionalSink("rows", lambda at: rows.__delitem__(slice(at, None)), rows.extend, lambda: len(rows))
    >>> sink.write([SinkRow(1), SinkRow(2)])
    >>> sink.recover(sink.flush() - 1)
    >>> [row.value for row in rows]
    [1]
    """

    name: str
    recover: Callable[[int], None]
    write: Callable[[Sequence[SinkRow]], None]
    flush: Callable[[], int]
    close: Callable[[], None] = _nothing

    promise: ClassVar[str] = "exactly once: cut back to the last commit after a crash"

    def __post_init__(self) -> None:
        check_functions(self, "recover", "write", "flush", "close")


class Batching(NamedTuple):
    """The rows that are to wait for a sink before it is given them, and the ms for which they wait at most.

    >>> Batching(rows=1_000).ms
    60000
    """

    rows: int = 100_000
    ms: int = 60_000


@dataclass(frozen=True)
class PositionedSink:
    """A sink that keeps our positions beside the rows, in one transaction with them: each row takes effect once.

    `claim` makes a run the owner of a partition of its output, and returns the position that the sink has of it, 0 at
    first; it raises `Fenced` where a later generation has it. `write` takes rows, and the position behind them, in one
    transaction that is refused with `Fenced` where the owner or the position before is another one. `empty` drops what
    the owner has written, as the application begins anew. Rows come after the commit that has made them, at most
    `batch_rows` at a time and `rows_per_second`; with `batching`, once there are many, or some have waited for long, or
    the run ends. Where it has no `deletes`, a record without a value is refused where it is made. `place` names what is
    written, as a path, a glob of files or a URL, for the application not to read it. What raises
    `Unavailable` or OSError is called again after a pause: rows whose answer was lost come again, and are there where
    the position behind them is. Whatever else is raised ends the run.

    >>> from samza_dsl import connectors
    >>> connectors.sqlite("shop.db", "orders", key="id").promise
    'exactly once: its positions are in the transaction of the rows'
    """

    name: str
    claim: Callable[[SinkOwner], int]
    write: Callable[[SinkOwner, Sequence[SinkRow], int, int], None]
    empty: Callable[[SinkOwner], None]
    close: Callable[[], None] = _nothing
    batch_rows: int = MOST_ROWS
    rows_per_second: float | None = None
    batching: Batching | None = None
    deletes: bool = True
    place: str = field(default="", repr=False)  # a URL may have a password

    promise: ClassVar[str] = "exactly once: its positions are in the transaction of the rows"

    def __post_init__(self) -> None:
        check_functions(self, "claim", "write", "empty", "close")
        check_pace(self, self.batch_rows, self.rows_per_second)


@dataclass(frozen=True)
class IdempotentSink:
    """A sink in which a row replaces that of the same key: after a crash rows come again, and change nothing.

    A record without a key is refused, by the `on_error=` of the `send_to`, as such rows would replace each other.
    `keyless` sinks are given it: they find the place of a row by its value, or by its `id`.

    `write` makes rows durable before it returns. Rows come after the commit that has made them, in order, at most
    `batch_rows` at a time and `rows_per_second`. Where it raises `Unavailable` or OSError it is called again after a
    pause; whatever else is raised ends the run.

    >>> kept = {}
    >>> sink = IdempotentSink("kept", lambda rows: kept.update((row.key, row.value) for row in rows))
    >>> sink.write([SinkRow(1, "a"), SinkRow(2, "a")])
    >>> kept
    {'a': 2}
    """

    name: str
    write: Callable[[Sequence[SinkRow]], None]
    close: Callable[[], None] = _nothing
    batch_rows: int = MOST_ROWS
    rows_per_second: float | None = None
    keyless: bool = False

    promise: ClassVar[str] = "the newest row of each key: some rows are written again after a crash"

    def __post_init__(self) -> None:
        check_functions(self, "write", "close")
        check_pace(self, self.batch_rows, self.rows_per_second)


@dataclass(frozen=True)
class AtLeastOnceSink:
    """A sink that keeps all that it is given: after a crash some rows are there twice.

    `write` makes rows durable before it returns. Rows come after the commit that has made them, in order, at most
    `batch_rows` at a time and `rows_per_second`. Where it raises `Unavailable` or OSError it is called again after a
    pause; whatever else is raised ends the run.

    >>> AtLeastOnceSink("mail", print).promise
    'at least once: some rows are there twice after a crash'
    """

    name: str
    write: Callable[[Sequence[SinkRow]], None]
    close: Callable[[], None] = _nothing
    batch_rows: int = MOST_ROWS
    rows_per_second: float | None = None

    promise: ClassVar[str] = "at least once: some rows are there twice after a crash"

    def __post_init__(self) -> None:
        check_functions(self, "write", "close")
        check_pace(self, self.batch_rows, self.rows_per_second)


DeliveredSink = PositionedSink | IdempotentSink | AtLeastOnceSink
"""The sinks that rows are delivered to behind the commit that has made them."""
ConnectedSink = TransactionalSink | DeliveredSink
AnySource = ConnectedSource | PulledSource | PushedSource
"""What connects a system as an input."""


@dataclass(frozen=True)
class Scheme:
    """The connectors behind the URLs of one scheme, which a package names as entry point `samza_dsl.connectors`.

    Each function makes a connector of a whole URL, as of `--bind orders=redis://host/orders`.

    >>> Scheme(sink=lambda url: AtLeastOnceSink(url, print)).source is None
    True
    """

    source: Callable[[str], AnySource] | None = None
    sink: Callable[[str], ConnectedSink] | None = None


def wrong_in_pull(found: object) -> str | None:
    """Return what is wrong with what `pull` has returned; None for what a run takes.

    >>> wrong_in_pull(([], b"3")), wrong_in_pull(Pulled([PulledRecord(1)], b"3"))
    ('pull() returned a tuple, and no Pulled', None)
    """
    if not isinstance(found, Pulled):
        return f"pull() returned a {type(found).__name__}, and no Pulled"
    if type(found.position) is not bytes:
        return f"pull() returned the position {found.position!r}, and a position is bytes"
    if not isinstance(found.records, Sequence):
        return f"pull() returned a {type(found.records).__name__} of records, and no list"
    for record in found.records:
        if not isinstance(record, PulledRecord):
            return f"pull() gave a {type(record).__name__}, and no PulledRecord"
        at = record.timestamp_ms
        if at is not None and type(at) is not int:
            return f"pull() gave the time {at!r}, and a time is whole ms since the epoch"
    return None


def length_ms(said: str, length: Duration, least: int = 1) -> int:
    """Return a length of time in ms; raises SamzaError for what is none of at least so much.

    >>> length_ms("growing_folder(poll_ms", 500)
    500
    """
    found = whole_ms(length)
    if type(found) is not int or found < least:
        name = said.partition("(")[2]
        raise SamzaError(f"{said}={length!r}): write whole ms of at least {least}, or a timedelta: {name}=500")
    return found


def check_functions(connector: Any, *names: str) -> None:
    """Raise SamzaError where a connector has no name, or something else in the place of a function."""
    kind = type(connector).__name__
    if not isinstance(connector.name, str) or not connector.name:
        raise SamzaError(f'{kind}(name={connector.name!r}): name the place as people know it: name="redis://host/0"')
    said = {field.name: value for field in fields(connector) if callable(value := getattr(connector, field.name))}
    for name in names:
        if name not in said:
            raise SamzaError(f"{kind}({name}={getattr(connector, name)!r}): write a function: {name}=my_{name}")


def check_poll(connector: object, poll_ms: object) -> None:
    """Raise SamzaError where a connector says no whole number of ms between two looks."""
    if isinstance(poll_ms, bool) or not isinstance(poll_ms, int) or poll_ms < 1:
        kind = type(connector).__name__
        raise SamzaError(f"{kind}(poll_ms={poll_ms!r}): write a whole number of ms: poll_ms=500")


def check_pace(connector: object, batch_rows: object, rows_per_second: object) -> None:
    """Raise SamzaError where a sink is to be handed no whole number of rows, or less than none a second."""
    kind = type(connector).__name__
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise SamzaError(f"{kind}(batch_rows={batch_rows!r}): write a whole number of rows: batch_rows=1_000")
    is_number = isinstance(rows_per_second, int | float) and not isinstance(rows_per_second, bool)
    if rows_per_second is not None and not (is_number and 0 < rows_per_second < 1e12):  # type: ignore[operator]
        raise SamzaError(f"{kind}(rows_per_second={rows_per_second!r}): write a number above 0: rows_per_second=500")
