"""The writes of a task since the last commit: encoded, routed to partitions, and taken back with a record."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from operators.core.base import Batch, Headers, Key, Serde
from operators.core.wording import shown
from operators.partition_by import Partitioner, hash_, murmur2
from operators.windows.window_groups import Grouped
from runtime.encoding.keys import KeySerde, bytes_of_key, remembering
from runtime.encoding.lines import NULL, Lines
from runtime.encoding.ownership import OwnValues
from runtime.encoding.serdes import Evolving, Json, encode_all
from runtime.model.errors import TooLarge
from runtime.ports.sink import Limit, Sink
from runtime.reading.relay import AnyRelay, encoded

UNSEEN_BYTES = 1_024
"""What a record takes beside its key and value, at most, but for headers."""


OF_RECORD = "record."
"""The beginning of the names of the headers of a dead letter that the record had itself."""
LATE = b"late"
"""The error of a late message, whose value is the operator's."""
LOOKED_AT = 1_000
"""Values of which it is counted how many are None: a `map` that returns nothing is seen by the first ones."""
FIRST, NOTHING, KEYLESS = "first values", "None among these", "None without a key"


@dataclass(frozen=True)
class Destination:
    """A stream that is written: how its messages are encoded and routed; a bound `sink` takes the stream's place."""

    stream: str
    partitions: int
    value: Serde
    key: Serde | None = None
    by: Partitioner = hash_
    sink: Sink | None = None
    home: int | None = None
    """Which partition is read by who writes, where that is not the task's number."""
    check: Callable[[Batch], None] | None = None
    """Raises SerdeError for encoded rows that could not be put where they are to go, before they are committed."""


class FirstValues:
    """The count of None among the first values that an operator writes, as of a `map` that returns nothing.

    >>> first = FirstValues()
    >>> first.look([None, b"1"], 2)
    >>> first.counters()
    {'first values': 2, 'None among these': 1, 'None without a key': 1}
    """

    __slots__ = ("keyless", "looked_at", "nothing", "wanted")

    def __init__(self) -> None:
        self.wanted = LOOKED_AT
        self.looked_at = self.nothing = self.keyless = 0

    def look(self, values: Sequence[Any], rows: int, keys: Sequence[Any] | None = None) -> None:
        """Look at values, as long as any are wanted, which are so many rows where some stand for several."""
        if values and type(values[0]) is Lines:
            values = [None if line == NULL else line for lines in values for line in lines.split(b"\n")]
            keys = None
        values, rows = values[: self.wanted], min(rows, self.wanted)
        self.wanted -= rows
        self.looked_at += rows
        if nothing := values.count(None):
            self.nothing += nothing
            # With a key it may be meant: it deletes the row of that.
            self.keyless += nothing if keys is None else [*zip(values, keys, strict=False)].count((None, None))

    def counters(self) -> dict[str, int]:
        """Return the counts, where there is anything to be told."""
        return {FIRST: self.looked_at, NOTHING: self.nothing, KEYLESS: self.keyless} if self.nothing else {}


class Outputs:
    """The pending messages of one task, per stream and partition."""

    def __init__(self, task: int) -> None:
        self.task = task
        self.pending: dict[tuple[str, int], Batch] = {}
        self.handed: dict[tuple[str, int], list[Batch | Grouped]] = {}
        """What goes on to relays when the work at hand is done: rows that came together are one batch."""
        self.relays: Mapping[tuple[str, int], AnyRelay] = {}
        self.limits: Mapping[str, Limit] = {}
        """How large a record of a stream may be."""
        self.sinks: dict[str, Sink] = {}
        self.first: dict[str, FirstValues] = {}
        """What the first values were that each operator has written."""
        self.combined = 0
        """How many keys there are in what is pending of windows."""
        self._marks: dict[tuple[str, int], int] | None = None
        """Under a savepoint: the number of rows that were pending."""
        self._handed_marks: dict[tuple[str, int], tuple[int, int]] = {}
        """Under a savepoint: the number of parts that were handed on, and of rows in the last of them."""
        self._combined_then = 0

    @property
    def count(self) -> int:
        """The number of pending messages."""
        return sum(map(len, [*self.pending.values()])) + self.combined  # a thread may be adding to it

    def here(self, to: Destination) -> int:
        """Return the partition for what has no key: that which it comes from."""
        return (self.task if to.home is None else to.home) % to.partitions

    def write(self, to: Destination, batch: Batch) -> None:
        """Encode and route rows whose keys are those of the output."""
        values = encode_all(to.value, batch.values)
        self.place(to, Batch(values, batch.keys, batch.timestamps, batch.stamps, headers=batch.headers))

    def place(self, to: Destination, encoded: Batch) -> None:
        """Route encoded rows; raises SerdeError for one without a value, or a key, where no sink could take that."""
        if to.check is not None:
            to.check(encoded)
        if to.sink is not None:
            self.sinks[to.stream] = to.sink
        if to.partitions == 1:
            self.append((to.stream, 0), encoded)
        else:
            for partition, rows in self.spread(
                to, encoded, lambda key: None if key is None else murmur2(key) % to.partitions
            ):
                self.append((to.stream, partition), rows)

    def spread(
        self, to: Destination, rows: Batch, place_of: Callable[[Any], int | None], keys: list[Any] | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of each partition: that which is the `place_of` their keys, or the user's choice for `keys`.

        Those without a key stay in that of the task, where it is not the user who chooses.
        """
        count, here = to.partitions, self.here(to)
        if rows.keys is None or (count == 1 and to.by is hash_):
            yield here, rows
            return
        places: list[list[int]] = [[] for _ in range(count)]
        if to.by is hash_:
            add = {partition: found.append for partition, found in enumerate(places)} | {None: places[here].append}
            for row, partition in enumerate(map(place_of, rows.keys)):
                add[partition](row)
        else:
            assert keys is not None and to.key is not None
            for row, key in enumerate(keys):
                data = b"" if key is None else bytes_of_key(to.key, key)
                places[to.by.partition(key, data, count)].append(row)
        for partition, found in enumerate(places):
            if found:
                yield partition, rows.take(found)

    def hand(self, place: tuple[str, int], rows: Batch, values: OwnValues, keys: KeySerde) -> None:
        """Give rows to the relay of a partition, when the work at hand is done; else append them, encoded."""
        if place in self.relays:
            rows.values = values.own(rows.values)
            self.hand_own(place, rows)
        else:
            self.append(place, encoded(rows, values.serde, keys))

    def hand_all(self, places: Sequence[tuple[str, int]], rows: Batch, values: OwnValues, keys: KeySerde) -> None:
        """Hand rows to several partitions, each with values of its own; these are encoded once for all of them."""
        if values.serde.are_plain(rows.values):
            for place in places:
                self.hand(place, rows, values, keys)
            return
        stored = encoded(rows, values.serde, keys)
        for place in places:
            if place in self.relays:
                own = Batch(values.read(stored.values), rows.keys, rows.timestamps, rows.stamps, signs=rows.signs)
                self.hand_own(place, own)
            else:
                self.append(place, stored)

    def hand_own(self, place: tuple[str, int], rows: Batch | Grouped) -> None:
        """Give rows, or groups, whose values are the next stage's own, to a relay when the work at hand is done."""
        if isinstance(rows, Grouped):
            self.handed.setdefault(place, []).append(rows)
            return
        handed = Batch(rows.values, rows.keys, rows.timestamps, rows.stamps, headers=rows.headers, signs=rows.signs)
        parts = self.handed.setdefault(place, [])
        if parts and isinstance(last := parts[-1], Batch):
            last.extend(handed)
        else:
            parts.append(handed.copy())

    def hand_groups(self, place: tuple[str, int], grouped: Grouped, values: OwnValues, keys: KeySerde) -> None:
        """Give groups to the relay of a partition, when the work at hand is done; else append their rows, encoded."""
        if place not in self.relays:
            self.append(place, encoded(grouped.rows(), values.serde, keys))
            return
        values.own_groups(grouped.by_slots.values())
        self.hand_own(place, grouped)

    def hand_on(self) -> None:
        """Give relays what the work that is done has for them."""
        for place, parts in self.handed.items():
            for part in parts:
                self.relays[place].give(part)
        self.handed.clear()

    def dead_letter(self, stream: str, row: Batch, headers: Headers) -> None:
        """Append a record as it was stored; what never was, as that of a list, as JSON or as it is shown.

        The headers that it had are beside those which tell of it, under names of their own.
        """
        keys, value = row.keys or [None], row.values[0]
        had = row.headers[0] if row.headers is not None else None
        headers = {**{f"{OF_RECORD}{name}": content for name, content in (had or {}).items()}, **headers}
        stored = value if value is None or isinstance(value, bytes) else _shown(value)
        self.append((stream, 0), Batch([stored], [keys[0]], row.timestamps, None, None, [headers]))

    def savepoint(self) -> None:
        """Remember what is pending."""
        self._marks = {place: len(batch) for place, batch in self.pending.items()}
        self._handed_marks = {place: (len(parts), len(parts[-1])) for place, parts in self.handed.items()}
        self._combined_then = self.combined

    def rollback(self) -> None:
        """Take back what was written since the savepoint."""
        assert self._marks is not None
        for place in [*self.pending]:
            if place not in self._marks:
                del self.pending[place]
            else:
                self.pending[place].truncate(self._marks[place])
        for place, parts in [*self.handed.items()]:
            number, rows = self._handed_marks.get(place, (0, 0))
            del parts[number:]
            if not parts:
                del self.handed[place]
            elif isinstance(last := parts[-1], Batch):  # groups do not grow
                last.truncate(rows)
        self.combined = self._combined_then
        self._marks = None

    def release(self) -> None:
        """Forget the savepoint."""
        self._marks = None

    def clear(self) -> None:
        """Forget what a commit has written."""
        self.pending.clear()
        self.combined = 0

    def append(self, place: tuple[str, int], batch: Batch) -> None:
        """Append encoded rows to one (stream, partition); raises `TooLarge` where it does not take one."""
        if (limit := self.limits.get(place[0])) is not None:
            check_size(limit, batch)
        _append(self.pending, place, batch)


def _append(rows: dict[tuple[str, int], Batch], place: tuple[str, int], batch: Batch) -> None:
    held = rows.get(place)
    if held is None:
        rows[place] = batch.copy()
    else:
        held.extend(batch)


def routed(by: Partitioner, keys: KeySerde, partitions: int) -> Callable[[Key], int]:
    """Return what says the partition of a key as it is held.

    Where that is by hashes alone, it is remembered from task to task of the process.
    """
    if by is hash_:
        serde: object = keys.serde
        return _hashed(serde, partitions) if isinstance(serde, Hashable) else _hashing(keys, partitions)
    return remembering(lambda key: by.partition(keys.decode(key), keys.encode(key), partitions))


@lru_cache(maxsize=16)
def _hashed(serde: Any, partitions: int) -> Callable[[Key], int]:
    return _hashing(KeySerde(serde), partitions)


def _hashing(keys: KeySerde, partitions: int) -> Callable[[Key], int]:
    return remembering(lambda key: murmur2(keys.encode(key)) % partitions)


def check_size(limit: Limit, batch: Batch) -> None:
    """Raise `TooLarge` where a record is larger than it may be where it is written."""
    longest = max(map(len, filter(None, batch.values)), default=0)
    if batch.keys is not None:
        longest += max(map(len, filter(None, batch.keys)), default=0)
    if batch.headers is not None:
        said = (one.items() for one in batch.headers if one)
        longest += max((sum(len(name) * 4 + len(value or b"") for name, value in one) for one in said), default=0)
    if longest + UNSEEN_BYTES <= limit.bytes:
        return
    for row, value in enumerate(batch.values):
        if len(value or b"") + UNSEEN_BYTES > limit.bytes or batch.keys is not None or batch.headers is not None:
            size = limit.size(batch, row)
            if size > limit.bytes:
                raise TooLarge(
                    f"{limit.where} can't be written: a record of {size:,} bytes is larger than {limit.setting}, "
                    f"{limit.bytes:,}"
                )


def letter_of(value: Any) -> bytes:
    """Return the bytes of a value that was never stored, for a dead letter: where it has none, as it is shown."""
    try:
        return Evolving().encode(value)
    except Exception:
        return _shown(value)


def _letters_of(values: list[Any]) -> list[bytes]:
    try:
        return [*map(Evolving().encode, values)]
    except Exception:  # one has none
        return [*map(letter_of, values)]


def _shown(value: Any) -> bytes:
    try:
        return Json().encode(value)
    except Exception:
        return shown(value).encode()


def late_exit(
    id: str, to: str | None, count: Callable[[int], None], outputs: Outputs, keys: KeySerde
) -> Callable[[Batch], None]:
    """Return what takes the late messages of the operator `id`: it counts them, and writes them `to` a stream."""

    def on_late(late: Batch) -> None:
        count(len(late))
        if to is None or not len(late):
            return
        said = {"operator": id.encode(), "error": LATE}
        headers: list[Headers | None] = []
        for row in range(len(late)):
            is_withdrawn = late.signs is not None and late.signs[row] == -1
            headers.append({**_whence(late, row), **said, **({"withdrawn": b"yes"} if is_withdrawn else {})})
        # All at once: to append one by one costs more than all else that is done with a late message.
        encoded_keys = [None] * len(late) if late.keys is None else keys.encode_all(late.keys)
        outputs.append((to, 0), Batch(_letters_of(late.values), encoded_keys, headers=headers))

    return on_late


def without_sides(late: Batch) -> Batch:
    """Return what is late without the places of the parents that it came from."""
    return replace(late, values=[value for _, value in late.values])


def _whence(batch: Batch, row: int) -> dict[str, bytes]:
    """Return what a dead letter says of where a row came from."""
    place = (batch.origins and batch.origins[row]) or {}
    offset = batch.offsets[row] if batch.offsets is not None else None
    return {**place} if offset is None else {**place, "offset": b"%d" % offset}
