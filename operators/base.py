"""The vocabulary that all operators share: batches of columns, specs, and the ports handed to state machines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

MIN_TIMESTAMP = -(2**62)
"""A watermark that has not started."""
MOST_HELD = 100_000
"""Changed entries that an operator holds beside its store; more are written back at once."""
MAX_TIMESTAMP = 2**62
"""The watermark of an input that has ended."""
NEVER = MAX_TIMESTAMP + 1
"""When something is due that no watermark and no clock comes to."""
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which calendars know."""


class Site(NamedTuple):
    """Where in the user's program something was said."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Site("<unknown>", 0)


Key = int | str | bytes
"""A key as batches hold it: an int or a str as itself, any other as its bytes."""


@dataclass(slots=True)
class Batch:
    """Columns of equal length that move together; a column that nobody reads is None.

    `keys` are held keys within a stage, and bytes between stages and where they are stored; two of them are equal when
    their bytes are. `timestamps` (event time) and `stamps` (the record's source watermark just before it) are ms since
    the epoch. `offsets` are the records' places in their source partition, and `headers` what else a dead letter says
    of them; `signs` are +1, or -1 for a retraction. `owners` are the numbers, in rising order, of the messages that
    rows came from.
    """

    values: list[Any]
    keys: list[Any] | None = None
    timestamps: list[int] | None = None
    stamps: list[int] | None = None
    offsets: Sequence[int] | None = None
    headers: list[Mapping[str, bytes] | None] | None = None
    signs: list[int] | None = None
    owners: Sequence[int] | None = None

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
        """Return all rows but those at the given places, in increasing order; meant for few."""
        rest = Batch(list(self.values), *(column if column is None else list(column) for column in self._columns()))
        for column in (rest.values, *rest._columns()):
            if column is not None:
                for row in reversed(rows):
                    del column[row]  # type: ignore[attr-defined]
        return rest

    def take(self, rows: Sequence[int]) -> Batch:
        """Return the rows at the given places."""
        pick = itemgetter(*rows) if len(rows) > 1 else lambda column: [column[row] for row in rows]
        return Batch(
            [*pick(self.values)], *(column if column is None else [*pick(column)] for column in self._columns())
        )

    @classmethod
    def gather(cls, slices: Iterable[Slice]) -> Batch:
        """Return the rows of slices, in their order; what lies together is taken at once."""
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
                rows: list[Any] = []
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
        return (self.keys, self.timestamps, self.stamps, self.offsets, self.headers, self.signs, self.owners)


EVENT_COLUMNS = frozenset({"keys", "timestamps", "stamps"})
"""The columns of a record's key and event time."""
Slice = tuple[Batch, int, int]
"""Rows of a batch: the first, and the one after the last."""


def shape_of(make: Callable[[], Any]) -> str:
    """Return the type of what `make()` returns, of tuples the types within; "" where it can't be called just now.

    >>> shape_of(lambda: (0, ("", None)))
    '(int, (str, None))'
    """
    try:
        return _shape(callable_unopened(make)())
    except Exception:
        return ""


def callable_unopened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function, or in the place of an object, which may have to be opened first, one that raises."""

    def is_closed(*arguments: Any, **names: Any) -> Any:
        raise ValueError("it is an object, and not open")

    return function if isinstance(function, type) or inspect.isroutine(function) else is_closed


def _shape(value: Any) -> str:
    if type(value) is tuple:
        return f"({', '.join(map(_shape, value))})"
    if inspect.iscoroutine(value):
        value.close()  # the run tells of it, at the first call there
    return "None" if value is None else type(value).__qualname__


COLUMNS = ("keys", "timestamps", "stamps", "offsets", "headers", "signs", "owners")
"""The columns beside the values, in the order of the fields."""


class Store(Protocol):
    """State of one operator in one task: an ordered map from bytes to values, that reads its own writes.

    What is written to one that is `durable` waits for the next commit.
    """

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value at `key`, or `default`."""

    def put(self, key: bytes, value: Any) -> None:
        """Set the value at `key`; it is durable with the next commit."""

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens where it is absent."""

    def update(self, entries: Mapping[bytes, Any]) -> None:
        """Set many values."""

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Yield the (key, value) pairs with `start` <= key < `end`, in key order, as they are at the call."""


class Serde(Protocol):
    """Turns values into bytes and back."""

    def encode(self, value: Any, /) -> bytes:
        """Return the bytes of `value`."""

    def decode(self, data: bytes, /) -> Any:
        """Return the value of `data`; raises when they are not what this serde writes."""


class Keys(Protocol):
    """Turns keys that are held into bytes and back, and into what the user calls a key."""

    def encode(self, key: Key, /) -> bytes:
        """Return the bytes of a key."""

    def encode_all(self, keys: list[Any], /) -> list[Any]:
        """Return the bytes of many keys; None stays None."""

    def load(self, column: list[Any], /) -> list[Key | None]:
        """Return what is held of keys that were stored as bytes."""

    def decode(self, key: Key | None, /) -> Any:
        """Return the key as the user knows it."""

    def in_order(self, keys: Iterable[Key], /) -> list[Key]:
        """Return keys in the order of their bytes."""


class Operator(Protocol):
    """A stateful operator at work in one task: rows and watermarks in, rows out, no I/O and no clock."""

    store: Store

    @property
    def unwritten(self) -> int:
        """How many changed entries it holds that are not in its store yet."""

    def process(self, batch: Batch) -> Batch | None:
        """Take in rows and return what they make it emit at once."""

    def on_watermark(self, watermark: int, most: int | None = None) -> Batch | None:
        """Return what fires now that no earlier event time is awaited, in stamp order: all, or the first `most`."""

    def drop_due(self) -> Batch:
        """Remove what would fire first without firing it, and return what it was, with its key."""

    def next_due(self) -> int:
        """Return the smallest watermark at which something fires, or NEVER."""

    def lowest_stamp(self) -> int:
        """Return a stamp below which nothing will fire of what is held now, or MAX_TIMESTAMP or more."""

    def write_back(self) -> None:
        """Put into the store what is only held beside it; before every commit and savepoint."""

    def forget(self) -> None:
        """Drop what is only held beside the store, which was taken back to where it last wrote back."""


class Clocked(Operator, Protocol):
    """A stateful operator that also heeds the clock on the wall, which it is told; its spec is of `wall_clock`."""

    def heed(self, now_ms: int, watermark: int) -> None:
        """Learn the time, and how far event time has come that the next stage may know of, before any piece of work."""

    def on_clock(self, now_ms: int, most: int | None = None) -> Batch | None:
        """Return what fires now that it is so late, in order of time: all, or the first `most`.

        No timestamp or stamp of it is below the event time that it was told. At the end of the inputs it is
        MAX_TIMESTAMP, and everything fires.
        """

    def drop_alarm(self) -> Batch:
        """Remove what would fire first by the clock without firing it, and return what it was, with its key."""

    def next_alarm(self) -> int:
        """Return the time at which something fires by the clock, or NEVER."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Spec:
    """What the user said about one operator: frozen, and pointing only at its parents.

    The class variables are traits: the planner asks these, never the type. `code` is what a stateless operator
    contributes to a fused function, with `{value}` for what comes in and `{out}`, where it is something new, for what
    goes on; a line that ends with a colon opens the block in which all that follows runs, and what `drops` a message
    does so by the last such line, an `if`. `keyed_code` is the like of one that keeps state by `{key}`, known to
    users as `{user_key}`, for stages in which nothing awaits. `binds` names what the runtime gives such code beside the
    user's functions. `fold` is the line by which one that keeps tiling windows adds `{value}` to the `{group}` of its
    window, under `{key}`. What `encodes` is handed encoded values by a fused function, and what `rekeys` the keys that
    its function `key` makes. What is `sided` is handed `(place, value)`, with the place of the parent that the value
    came from. What is `keyed_by_first` goes by the keys of its first parent, and has all of the others in every task.
    What reads `event_time` has records stamped where they enter. `late` is where what is late there goes. What heeds
    the `wall_clock` and keeps state is `Clocked`. What fires only `waits_ms` after its time has event time below it
    stay behind by as much. What `ignores_values` looks at keys and times alone. What looks at a partition
    `beyond_keys` goes by more of it than the messages of one key. What `takes_signs` may be handed
    retractions, and what `hands_on_signs` emits one for each.
    """

    parents: tuple[Spec, ...] = ()
    op_id: str | None = None
    site: Site = NOWHERE
    on_error: Any = None
    late: Any = None

    kind: ClassVar[str]
    code: ClassVar[tuple[str, ...] | None] = None
    keyed_code: ClassVar[tuple[str, ...] | None] = None
    binds: ClassVar[tuple[str, ...]] = ()
    fold: ClassVar[str | None] = None
    source: ClassVar[bool] = False
    terminal: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
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
    wall_clock: ClassVar[bool] = False
    needs_id: ClassVar[bool] = False
    event_time: ClassVar[bool] = False
    waits_ms: ClassVar[int] = 0
    ignores_values: ClassVar[bool] = False
    beyond_keys: ClassVar[bool] = False
    takes_signs: ClassVar[bool] = False
    hands_on_signs: ClassVar[bool] = False

    @cached_property
    def retracts(self) -> bool:
        """Whether it may emit retractions."""
        return self.hands_on_signs and self.reads_signs

    @property
    def reads_signs(self) -> bool:
        """Whether retractions may come to it."""
        return any(parent.retracts for parent in self.parents)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions by the name under which `code` calls them."""
        return {}

    def owner_of(self, name: str) -> str:
        """The id of the operator that one of these functions is of."""
        return self.op_id or ""

    def describe(self) -> str:
        """A few words for drawings, beyond the kind."""
        return ""

    def meaning(self) -> str:
        """What the entries of its state mean: where these words change, state would be read as something else."""
        return ""


@dataclass(frozen=True)
class Context:
    """What an object with `open(context)` learns: its application, its task, and where it may count.

    `data` is the directory of the run's embedded log, None where it runs in memory. `open` runs in the thread of the
    event loop; with `Options(threads=N)` the calls of a plain function come from other threads, one at a time. So what
    minds its thread is opened for any: `sqlite3.connect(path, check_same_thread=False)`.

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
