"""The vocabulary that all operators share: batches of columns, specs, and the ports handed to state machines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice, repeat
from operator import is_, itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from operators.core.entry_keys import KEY, EntryKinds, kind_at
from operators.core.protocols import CheckedProtocol
from operators.core.wording import stable

if TYPE_CHECKING:
    from operators.core.policies import DeadLetterPolicy, Policy

MIN_TIMESTAMP = -(2**62)
"""A watermark that has not started."""
MOST_HELD = 100_000
"""The changed entries that an operator may hold beside its store; more are written back at once."""
MAX_TIMESTAMP = 2**62
"""The watermark of an input that has ended."""
NEVER = MAX_TIMESTAMP + 1
"""The time of what is never due: no watermark and no clock comes to it."""
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which calendars know."""


class Site(NamedTuple):
    """The file and line of the user's program that something was said at."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Site("<unknown>", 0)


Key = int | str | bytes
"""A key as batches hold it: an int or a str as itself, any other key as its bytes."""


Headers = Mapping[str, bytes | None]
"""The headers of a message, by name; Kafka's may have no value."""
NO_HEADERS: Headers = MappingProxyType({})
"""The headers of a message that has none."""


def has_none(column: Iterable[object]) -> bool:
    """Whether a column of the user's values or keys has a None; asked by identity, as their == may do anything.

    >>> has_none([0, "", None]), has_none([])
    (True, False)
    """
    return any(map(is_, column, repeat(None)))


@dataclass(slots=True)
class Batch:
    """Columns of equal length that move together; a column that nobody reads is None.

    `keys` are held keys within a stage, and bytes between stages and where they are stored; two of them are equal when
    their bytes are. `timestamps` (event time) and `stamps` (the record's source watermark just before it) are ms since
    the epoch. `offsets` are the records' places in their source partition, and `origins` what else a dead letter says
    of where they are from. `headers` are what writers say beside the values; `signs` are +1, or -1 for a retraction.
    `owners` are the numbers, in rising order, of the messages that rows came from.
    """

    values: list[Any]
    keys: list[Any] | None = None
    timestamps: list[int] | None = None
    stamps: list[int] | None = None
    offsets: Sequence[int] | None = None
    headers: list[Headers | None] | None = None
    signs: list[int] | None = None
    owners: Sequence[int] | None = None
    origins: list[Mapping[str, bytes] | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def row(self, index: int) -> Batch:
        """Return the batch that holds only the row at `index`."""
        return self.slice(index, index + 1)

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows from `start` up to, not including, `stop`."""
        return Batch(
            self.values[start:stop],
            *(column if column is None else column[start:stop] for column in self._columns()),  # type: ignore[arg-type]
        )

    def without(self, rows: Sequence[int]) -> Batch:
        """Return all rows without those at the given places, which are few and in increasing order."""
        rest = Batch(list(self.values), *(column if column is None else list(column) for column in self._columns()))
        for column in (rest.values, *rest._columns()):
            if column is not None:
                # From the last on, so that the places of those still to go stay right.
                for row in reversed(rows):
                    del column[row]  # type: ignore[attr-defined]
        return rest

    def take(self, rows: Sequence[int]) -> Batch:
        """Return the rows at the given places."""
        # One itemgetter picks from all columns in C; of a single row it would return no tuple.
        pick = itemgetter(*rows) if len(rows) > 1 else lambda column: [column[row] for row in rows]
        return Batch(
            [*pick(self.values)], *(column if column is None else [*pick(column)] for column in self._columns())
        )

    @classmethod
    def gather(cls, slices: Iterable[Slice]) -> Batch:
        """Return the rows of slices, in their order; what lies together is taken at once."""
        # Neighbouring slices become one first: a slice of a list is copied in C, and rows mostly come in long runs.
        joined: list[Slice] = []
        for batch, start, stop in slices:
            if joined and joined[-1][0] is batch and joined[-1][2] == start:
                joined[-1] = (batch, joined[-1][1], stop)
            else:
                joined.append((batch, start, stop))
        gathered = cls([])
        for name in ("values", *COLUMNS):
            columns = [getattr(batch, name) for batch, _, _ in joined]
            if any(column is not None for column in columns):
                rows: list[object] = []
                for column, (_, start, stop) in zip(columns, joined, strict=True):
                    rows += [None] * (stop - start) if column is None else column[start:stop]
                setattr(gathered, name, rows)
        return gathered

    def copy(self) -> Batch:
        """Return a batch with columns of its own."""
        return self.slice(0, len(self.values))

    def extend(self, other: Batch) -> None:
        """Append the rows of `other`; a column that only one of the two carries is filled with None."""
        length, more = len(self.values), len(other.values)
        self.values.extend(other.values)
        for name in COLUMNS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None and theirs is not None:
                setattr(self, name, [None] * length + list(theirs))
            elif mine is not None:
                # Offsets and owners may be a range, which can't grow.
                if not isinstance(mine, list):
                    setattr(self, name, mine := list(mine))
                mine.extend([None] * more if theirs is None else theirs)

    def truncate(self, length: int) -> None:
        """Drop all rows from `length` on."""
        del self.values[length:]
        for column in self._columns():
            if column is not None:
                del column[length:]  # type: ignore[attr-defined]

    def _columns(self) -> tuple[Sequence[Any] | None, ...]:
        return (
            *(self.keys, self.timestamps, self.stamps, self.offsets),
            *(self.headers, self.signs, self.owners, self.origins),
        )


EVENT_COLUMNS = frozenset({"keys", "timestamps", "stamps"})
"""The columns of a record's key and event time."""
Slice = tuple[Batch, int, int]
"""Rows of a batch: the first, and the one after the last."""


def shape_of(make: Callable[[], object]) -> str:
    """Return the name of the type that `make()` returns, of tuples those within; "" if it can't be called now.

    >>> shape_of(lambda: (0, ("", None)))
    '(int, (str, None))'
    """
    try:
        return _shape(callable_unopened(make)())
    except Exception:
        return ""


def callable_unopened(function: Callable[..., object]) -> Callable[..., object]:
    """Return a user's function; in the place of an object, which may have to be opened first, one that raises."""

    def unopened(*arguments: object, **names: object) -> object:
        raise ValueError("it is an object, and not open")

    return function if isinstance(function, type) or inspect.isroutine(function) else unopened


def _shape(value: object) -> str:
    if type(value) is tuple:
        return f"({', '.join(map(_shape, value))})"
    if inspect.iscoroutine(value):
        value.close()  # the run tells of it, at the first call there
    return "None" if value is None else type(value).__qualname__


COLUMNS = ("keys", "timestamps", "stamps", "offsets", "headers", "signs", "owners", "origins")
"""The columns beside the values, in the order of the fields."""


class Store(Protocol):
    """State of one operator in one task: an ordered map from bytes to values, which reads its own writes.

    Writes to a `durable` store wait for the next commit. The thread that is at work in the task uses it.
    """

    @property
    def durable(self) -> bool:
        """Whether the state outlives the process."""

    def get(self, key: bytes, default: object = None) -> Any:
        """Return the value at `key`, or `default`."""

    def put(self, key: bytes, value: object) -> None:
        """Set the value at `key`; it is durable with the next commit."""

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens where it is absent."""

    def update(self, entries: Mapping[bytes, object]) -> None:
        """Set many values."""

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Yield the (key, value) pairs with `start` <= key < `end`, in key order, as they are at the call."""

    # A store may have faster ways of the two below than one call for each key.
    def delete_all(self, keys: Iterable[bytes]) -> None:
        """Remove many keys, each of which may be absent."""
        for key in keys:
            self.delete(key)

    def drop(self, start: bytes, end: bytes, most: int | None = None) -> int:
        """Remove the keys with `start` <= key < `end`, or the first `most` of them; return how many these were."""
        found = [key for key, _ in islice(self.range(start, end), most)]
        self.delete_all(found)
        return len(found)


class Serde(Protocol):
    """Turns values into bytes and back."""

    def encode(self, value: Any, /) -> bytes:
        """Return the bytes of `value`."""

    def decode(self, data: bytes, /) -> Any:
        """Return the value of `data`; raises when they are not what this serde writes."""


class Copies(Protocol):
    """Makes copies of values that an operator both keeps and hands out."""

    def copy(self, value: object, /) -> object:
        """Return a copy, as storing and reading would make it: the two share no part that can be changed."""


class Form(NamedTuple):
    """The stored form of a declared type or serde: `dump` makes what the store keeps, and `load` the state again.

    One that `fits` keeps the state itself, as one of the type.
    """

    dump: Callable[[object], object]
    load: Callable[[object], Any]
    fits: bool = False


class Keys(Protocol):
    """Turns held keys into bytes and back, and into keys as the user knows them."""

    def hold_one(self, key: object, /) -> Key | None:
        """Return a key of the user's as batches hold it; None for no key."""

    def hold(self, keys: list[object], /) -> list[Key | None]:
        """Return a column of keys of the user's as batches hold them; None stays None."""

    def encode(self, key: Key, /) -> bytes:
        """Return the bytes of a key."""

    def encode_all(self, keys: list[Key | None], /) -> list[Any]:
        """Return the bytes of many keys; None stays None."""

    def load(self, column: list[bytes], /) -> list[Key | None]:
        """Return keys that were stored as bytes as batches hold them."""

    def decode(self, key: Key | None, /) -> Any:
        """Return the key as the user knows it."""

    def kind_of(self, key: Key, /) -> str:
        """Return the type of a key, and of its parts; nothing where its bytes are another serde's."""

    def lies_under(self, key: object, data: bytes, /) -> bool:
        """Whether bytes are those of a key of the user's, in whatever order a former version wrote the sets in it."""

    def in_order(self, keys: Iterable[Key], /) -> list[Key]:
        """Return keys in the order of their bytes."""


class Operator(Protocol):
    """A stateful operator at work in one task: rows and watermarks in, rows out, no I/O and no clock.

    One thread at a time calls it, the one that is at work in the task. Watermarks never go back. What it holds beside
    its store is written back before every commit and savepoint, and dropped with `forget` after a rollback.
    """

    store: Store
    late: Batch | None
    """The rows that the last call of `process` left out, because they came too late."""

    @property
    def unwritten(self) -> int:
        """The number of changed entries that it holds and that are not in its store yet."""

    def process(self, batch: Batch) -> Batch | None:
        """Take in rows, and return the rows that it emits for them at once."""

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Return the rows that fire by this watermark (ms), in stamp order: all, or the first `most`."""

    def drop_due(self) -> Batch:
        """Remove the first thing that is due without firing it, and return it with its key."""

    def next_due(self) -> int:
        """Return the smallest watermark at which something fires, or NEVER."""

    def lowest_stamp(self) -> int:
        """Return the lowest stamp that rows still to fire may have; MAX_TIMESTAMP or more if none are held."""

    def write_back(self) -> None:
        """Put into the store all that is only held beside it; called before every commit and savepoint."""

    def forget(self) -> None:
        """Drop all that is only held beside the store, which was rolled back to the last `write_back`."""


class Formats(Protocol):
    """The stored forms of what a spec declares by a type or a serde; None stands for what it does not declare."""

    def serde(self, declared: Serde | None, /) -> Serde:
        """Return the serde of values."""

    def keys(self, declared: Serde | None, /) -> Keys:
        """Return the keys of a serde."""

    def copies(self, declared: Serde | None, /) -> Copies:
        """Return the maker of copies of states."""

    def form(self, declared: Serde | None, /) -> Form | None:
        """Return the stored form of states; None where nothing is declared."""


def unobserved(serde: Serde) -> Callable[[list[object]], None]:
    """Return an observer that takes no note of the values that it is given."""
    return lambda values: None


def unnoted(key: object) -> None:
    """Take no note of a key."""


def unplaced(name: str) -> Exception:
    """Return the error for the use of a context behind its call, where it is not known of which operator."""
    return ValueError(f"context.{name} is used behind its call")


@dataclass(frozen=True)
class OperatorContext:
    """All that the runtime gives a spec to build its operator from, in one task.

    `functions` are the user's by name, ready to be called. State lies in `store` under `keys`, of which the operator
    may hold up to `most_held` changed entries beside it. `observer` returns, for a serde other than that of the keys,
    what takes note of the kinds of values that state lies under. `note_entry_key` takes note of a key by which the
    user's function finds an entry, as of a map. `late_use` returns the error for what is used of a context behind its
    call. An operator that begins unread is told the `lowest` stamp of what the store has still to fire; None is one
    that nobody noted, as versions before wrote it.
    """

    functions: dict[str, Any]
    store: Store
    keys: Keys
    formats: Formats
    most_held: int = MOST_HELD
    observer: Callable[[Serde], Callable[[list[object]], None]] = unobserved
    note_entry_key: Callable[[object], None] = unnoted
    late_use: Callable[[str], Exception] = unplaced
    lowest: int | None = None


@runtime_checkable
class Holding(Protocol, metaclass=CheckedProtocol):
    """A stateful operator that holds much beside its store, and is slower when it has to read it from there."""

    def newest(self, most: int) -> list[object]:
        """Return at most so many of the entries that it would write back, those begun last."""


@runtime_checkable
class TellingKeys(Protocol, metaclass=CheckedProtocol):
    """A stateful operator that may end with its inputs before it has encoded a key."""

    def tell_keys(self, most: int) -> None:
        """Encode at most so many keys of entries that it would write back, for whoever keeps the kinds of keys."""


@runtime_checkable
class ReadingOn(Protocol, metaclass=CheckedProtocol):
    """A stateful operator that reads what it keeps in parts, while it is at work already."""

    withholds: bool
    """Whether by event time it fires nothing before it has read all, but at the end of the inputs.

    What it has to fire then is what it would have fired before: no record that comes meanwhile changes that.
    """

    @property
    def is_unread(self) -> bool:
        """Whether there is something that it has not read since it began."""

    def read_on(self) -> None:
        """Read some more of it."""


class Clocked(Operator, Protocol):
    """A stateful operator that is also told the time of the wall clock; its spec is of `wall_clock`."""

    def heed(self, now_ms: int, watermark: int) -> None:
        """Learn the time and the event time that the next stage may know of (both ms), before any piece of work."""

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Return the rows that fire by this time of the clock (ms), in order of time: all, or the first `most`.

        No timestamp or stamp of it is below the event time that it was told. At the end of the inputs it is
        MAX_TIMESTAMP, and everything fires.
        """

    def drop_alarm(self) -> Batch:
        """Remove the first thing that is due by the clock without firing it, and return it with its key."""

    def next_alarm(self) -> int:
        """Return the time at which something fires by the clock, or NEVER."""


@dataclass(frozen=True)
class Output:
    """A stream that the pipeline writes, and the options that it is created with where it is absent."""

    stream: str
    value: Serde
    key: Serde | None = None
    partitions: int | None = None
    site: Site = NOWHERE
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compression: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
    """The user's words about one operator: frozen, and pointing only at its parents.

    The class variables are traits: the planner asks these, never the type. `code` is what a stateless operator
    contributes to a fused function, with `{value}` for what comes in and `{out}`, where it is something new, for what
    goes on; a line that ends with a colon opens the block in which all that follows runs, and what `drops` a message
    does so by the last such line, an `if`. `keyed_code` is the like of one that keeps state by `{key}`, known to
    users as `{user_key}`, for stages in which nothing awaits. `binds` names what the runtime gives such code beside the
    user's functions. `fold` is the line by which one that keeps tiling windows adds `{value}` to the `{group}` of its
    window, under `{key}`. What `encodes` is handed encoded values by a fused function, and what `rekeys` the keys that
    its function `key` makes. What is `sided` is handed `(place, value)`, with the place of the parent that the value
    came from. What is `keyed_by_first` goes by the keys of its first parent, and has all of the others in every task.
    What is `order_sensitive` makes something else of the messages of a key where they come in another order, and
    `by_order` says what; what `keeps_order` emits as messages come, and what `restores_order` by event time,
    whatever the order in which they come. What reads `event_time` has records stamped where they enter. `late` is
    where what is late there goes. What heeds the `wall_clock` and keeps state is `Clocked`. What fires only
    `waits_ms` after its time has event time below it stay behind by as much. What comes up to `forgives_ms` late still
    counts. What `fires_late` has panes of what is
    late, when event time is beyond where it was as that came. What `ignores_values` looks at keys and times alone.
    What `holds` most of what it has written needs no cache of it, and what `holds_plain` none of values that nobody
    can change in place.
    What `begins_unread` reads what it keeps as it is due, or bit by bit, and not where it begins.
    What `expires` drops all that it keeps as event time goes on.
    What looks at a partition `beyond_keys` goes by more of it than the messages of one key. What `takes_signs` may be
    handed retractions, and what `hands_on_signs` emits one for each. What `hands_on_headers` gives what it emits those
    of the message, and what `uses_headers` writes or shows them: by `header_code` it writes others, which that makes
    of `{value}` and `{header}`. What is `beside_results` are the fields by which
    neither its results nor its state go. What is `stateful` builds its operator, but for what is `in_calls`, whose
    state is read and written around each of the user's calls. What `remembers` keeps answers of calls in its store,
    until a commit makes them needless. What `has_effects` calls the user's function for what it
    does elsewhere, and what `reads_offsets` shows it where a message lies. What is `windowed` emits panes. What is
    `looked_into` is a table of which joins that `looks_up` find rows; it is in no stage. What is `versioned` is a table
    whose rows have times, and where `tombstones` are, a record without a value removes its key. What `gives_keys` emits
    messages under keys of its own; what goes `by_table_key` meets rows that lie in the partitions of these. What
    `splits` has its messages chosen by each `arm`, which is in one function with it and need not be read. Of what is
    `unread` these words tell.
    What `fans_out` may make several messages of one. `groups` says how one with state takes in a batch at once, and
    where that is "", `by_row` why it takes its messages in one by one.
    By `declares` a user says how it keeps what it keeps.
    """

    parents: tuple[Spec, ...] = ()
    op_id: str | None = None
    site: Site = NOWHERE
    on_error: Policy | None = None
    late: DeadLetterPolicy | None = None

    kind: ClassVar[str]
    code: ClassVar[tuple[str, ...] | None] = None
    keyed_code: ClassVar[tuple[str, ...] | None] = None
    binds: ClassVar[tuple[str, ...]] = ()
    fold: ClassVar[str | None] = None
    source: ClassVar[bool] = False
    terminal: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    in_calls: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    has_effects: ClassVar[bool] = False
    reads_offsets: ClassVar[bool] = False
    windowed: ClassVar[bool] = False
    looked_into: ClassVar[bool] = False
    looks_up: ClassVar[bool] = False
    versioned: ClassVar[bool] = False
    expires: ClassVar[bool] = False
    tombstones: ClassVar[bool] = False
    gives_keys: ClassVar[bool] = False
    by_table_key: ClassVar[bool] = False
    splits: ClassVar[bool] = False
    arm: ClassVar[bool] = False
    fans_out: ClassVar[bool] = False
    groups: ClassVar[str] = ""
    by_row: ClassVar[str] = "each message finds state by itself"
    unread: ClassVar[tuple[str, str]] = ("its messages go nowhere", ".send_to(app.output(...)), .sink(...)")
    declares: ClassVar[str] = ""
    keyed: ClassVar[bool] = False
    keyed_by_first: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    repartitions: ClassVar[bool] = False
    rekeys: ClassVar[bool] = False
    encodes: ClassVar[bool] = False
    sided: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    order_sensitive: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = True
    restores_order: ClassVar[bool] = False
    wall_clock: ClassVar[bool] = False
    needs_id: ClassVar[bool] = False
    event_time: ClassVar[bool] = False
    waits_ms: ClassVar[int] = 0
    forgives_ms: ClassVar[int] = 0
    fires_late: ClassVar[bool] = False
    ignores_values: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    holds_plain: ClassVar[bool] = False
    begins_unread: ClassVar[bool] = False
    beyond_keys: ClassVar[bool] = False
    takes_signs: ClassVar[bool] = False
    hands_on_signs: ClassVar[bool] = False
    hands_on_headers: ClassVar[bool] = False
    uses_headers: ClassVar[bool] = False
    header_code: ClassVar[str] = ""
    beside_results: ClassVar[frozenset[str]] = frozenset({"parents", "op_id", "site", "on_error", "late"})

    @cached_property
    def retracts(self) -> bool:
        """Whether it may emit retractions."""
        return self.hands_on_signs and self.reads_signs

    @cached_property
    def carries_headers(self) -> bool:
        """Whether its messages may have headers."""
        return self.hands_on_headers and self.is_given_headers

    @property
    def is_given_headers(self) -> bool:
        """Whether the messages that come to it may have headers."""
        return any(parent.carries_headers for parent in self.parents)

    @property
    def keeps_values(self) -> bool:
        """Whether the messages that it lets through go on with the values that they came with."""
        return self.code is not None and not any("{out}" in line for line in self.code)

    @property
    def reads_signs(self) -> bool:
        """Whether retractions may come to it."""
        return any(parent.retracts for parent in self.parents)

    @property
    def store(self) -> str:
        """The kind of its store: "lmdb", or "memory" for one that ends with the process."""
        return "lmdb"

    @property
    def planned_store(self) -> str:
        """The kind of its store as plans show it; a table that each run reads anew is in memory."""
        return self.store

    @property
    def subject(self) -> str:
        """The stream that it reads or writes, after which it is named; "" where it is after the operators above it."""
        return ""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that it writes."""
        return ()

    @property
    def exit(self) -> str:
        """The name of the exit through which rows reach it: all `send_to`s of one output share one."""
        assert self.op_id is not None
        return self.op_id

    @property
    def key(self) -> Serde | None:
        """The declared serde of the keys that it gives; None if there is none."""
        return None

    @property
    def declared_partitions(self) -> int | None:
        """The declared partitions of the stream between stages that it writes; None if none are."""
        return None

    @property
    def broadcast(self) -> bool:
        """Whether it is a table of which every task has all."""
        return False

    @property
    def most_calls(self) -> int:
        """The most messages that it may await at once, where it is `asynchronous`."""
        return 1

    def call_timeout_ms(self, tasks: int) -> int:
        """Return the ms after which a call for a message is given up, when so many tasks make calls."""
        return 0

    def changes(self) -> Spec:
        """Return the spec of its changes, for joins that emit when it changes."""
        return self

    def why_no_signs(self) -> str:
        """Return the reason why it can't take retractions; "" if it can."""
        return "" if self.takes_signs else "it can't take them back"

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions by the name under which `code` calls them."""
        return {}

    def owner_of(self, name: str) -> str:
        """The id of the operator that one of these functions is of."""
        return self.op_id or ""

    def describe(self) -> str:
        """A few words for drawings, beyond the kind."""
        return ""

    def by_order(self) -> str:
        """Return in a few words how its results depend on the order of messages, if it is `order_sensitive`."""
        return "its state goes on from what has come before"

    def meaning(self) -> str:
        """Return the meaning of its stored entries; where these words change, a run refuses the old state."""
        return ""

    def entry_kinds(self) -> EntryKinds:
        """Return the kinds of entries of its store; raises TypeError where it does not say them."""
        # Never a default: entries of a spec that nobody knows would silently go with the wrong keys.
        raise TypeError(
            f"{self.kind} {self.op_id!r} at {self.site}: nobody knows what lies in its state; write instead: "
            f"def entry_kinds(self) in {type(self).__qualname__}"
        )

    def part_serdes(self, key: Serde | None) -> Mapping[str, Serde | None]:
        """Return the serdes of the parts of places that are bytes, given that of its keys; None stands for `Tagged`."""
        return {KEY: key}

    def declared_of(self, parts: Mapping[str, object]) -> Serde | None:
        """Return the declared serde of the value of an entry, whose place has these parts; None where there is none."""
        return None

    def key_at(self, place: bytes) -> bytes | None:
        """Return the key's bytes in the place of an entry of its store; None for an entry of no one key.

        By it entries go along with their keys where a task is split; what has no one key each part keeps.
        """
        start, kind = kind_at(self.entry_kinds(), place)
        return kind.key_in(place, start)

    def hash_at(self, place: bytes) -> int | None:
        """Return the hash by which an entry of no one key goes with a part of a split task; None if each keeps it."""
        return None

    def why_whole(self) -> tuple[str, str] | None:
        """Return why the tasks that it runs in can't be split by keys, and what to write instead; None if they can."""
        return None

    def build(self, context: OperatorContext) -> Operator:
        """Return its operator in one task; raises TypeError where it has none."""
        # Never a default: a spec that nobody knows would silently become another operator, and write its state.
        raise TypeError(
            f"{self.kind} {self.op_id!r} at {self.site}: {type(self).__qualname__} has no operator; write instead: "
            f"def build(self, context) in {type(self).__qualname__}, which returns one"
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters of its results and state, in words that are the same in each process."""
        named = [one.name for one in fields(self) if one.name not in self.beside_results]
        return {name: told_of(getattr(self, name)) for name in named}


def told_of(value: object) -> str:
    """Return the words for a parameter; of a function only that it is one.

    >>> told_of(lambda value: 1), told_of(60_000)
    ('a function', '60000')
    """
    return "a function" if callable(value) else stable(value)


@dataclass(frozen=True)
class Context:
    """The context of an object with `open(context)`: its application, its task, and its counters.

    `data` is the directory of the run's embedded log, None where it runs in memory. `open` runs in the thread of the
    event loop; with `Options(threads=N)` the calls of a plain function come from other threads, one at a time. So open
    for any thread what is bound to one: `sqlite3.connect(path, check_same_thread=False)`.

    >>> context = Context("flights", "lookup", task=0)
    >>> context.count("misses")
    >>> context.counters
    {'misses': 1}
    """

    app: str
    operator: str
    task: int
    counters: dict[str, int] = field(default_factory=dict)
    data: Path | None = None

    def count(self, name: str, by: int = 1) -> None:
        """Add `by` to a counter that the run's metrics show under the operator.

        It counts calls: a record that is tried again counts again.
        """
        self.counters[name] = self.counters.get(name, 0) + by
