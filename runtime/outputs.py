"""What a task has written since the last commit: encoded, routed to partitions, and taken back with a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from operators.base import Batch, Serde
from operators.partition_by import Partitioner, hash_, murmur2
from runtime.keys import KeySerde
from runtime.relay import Relay, encoded
from runtime.serdes import Json, encode_all
from runtime.systems.base import Sink


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


class Outputs:
    """The pending messages of one task, per stream and partition."""

    def __init__(self, task: int) -> None:
        self.task = task
        self.pending: dict[tuple[str, int], Batch] = {}
        self.handed: dict[tuple[str, int], Batch] = {}
        """What goes on to relays when the work at hand is done, as it is held."""
        self.relays: Mapping[tuple[str, int], Relay] = {}
        self.sinks: dict[str, Sink] = {}
        self.combined = 0
        """How many keys there are in what is pending of windows."""
        self._marks: tuple[dict[tuple[str, int], int], ...] = ()
        self._combined_then = 0

    @property
    def count(self) -> int:
        """How many messages are pending."""
        return sum(map(len, [*self.pending.values()])) + self.combined  # a thread may be adding to it

    def here(self, to: Destination) -> int:
        """Return the partition for what has no key: that which it comes from."""
        return (self.task if to.home is None else to.home) % to.partitions

    def write(self, to: Destination, batch: Batch) -> None:
        """Encode and route rows whose keys are those of the output."""
        self.place(to, Batch(encode_all(to.value, batch.values), batch.keys, batch.timestamps, batch.stamps))

    def place(self, to: Destination, encoded: Batch) -> None:
        """Route encoded rows."""
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
                data = b"" if key is None else to.key.encode(key)
                places[to.by.partition(key, data, count)].append(row)
        for partition, found in enumerate(places):
            if found:
                yield partition, rows.take(found)

    def hand(self, place: tuple[str, int], held: Batch, values: KeySerde, keys: KeySerde) -> None:
        """Give rows to the relay of a partition, when the work at hand is done; else append them, encoded."""
        relay = self.relays.get(place)
        if relay is not None:
            relay.is_plain = relay.is_plain and values.kind is not None
            _append(self.handed, place, held)
        else:
            self.append(place, encoded(held, values, keys))

    def hand_on(self) -> None:
        """Give relays what the work that is done has for them."""
        for place, batch in self.handed.items():
            self.relays[place].give(batch)
        self.handed.clear()

    def dead_letter(self, stream: str, row: Batch, headers: Mapping[str, bytes]) -> None:
        """Append a record as it was stored; what never was, as that of a list, as JSON or as it is shown."""
        keys, value = row.keys or [None], row.values[0]
        stored = value if value is None or isinstance(value, bytes) else _shown(value)
        self.append((stream, 0), Batch([stored], [keys[0]], row.timestamps, None, None, [headers]))

    def savepoint(self) -> None:
        """Remember what is pending."""
        self._marks = tuple({place: len(one) for place, one in rows.items()} for rows in (self.pending, self.handed))
        self._combined_then = self.combined

    def rollback(self) -> None:
        """Take back what was written since the savepoint."""
        assert self._marks
        for rows, marks in zip((self.pending, self.handed), self._marks, strict=True):
            for place in [*rows]:
                if place not in marks:
                    del rows[place]
                else:
                    rows[place].truncate(marks[place])
        self.combined = self._combined_then
        self._marks = ()

    def release(self) -> None:
        """Forget the savepoint."""
        self._marks = ()

    def clear(self) -> None:
        """Forget what a commit has written."""
        self.pending.clear()
        self.combined = 0

    def append(self, place: tuple[str, int], batch: Batch) -> None:
        """Append encoded rows to one (stream, partition)."""
        _append(self.pending, place, batch)


def _append(rows: dict[tuple[str, int], Batch], place: tuple[str, int], batch: Batch) -> None:
    held = rows.get(place)
    if held is None:
        rows[place] = batch.copy()
    else:
        held.extend(batch)


def _shown(value: Any) -> bytes:
    try:
        return Json().encode(value)
    except Exception:
        return repr(value).encode(errors="replace")
