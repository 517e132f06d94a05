"""The hand-over from stage to stage in memory: a reader takes rows at once, and only what a cut leaves is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from threading import Lock
from typing import Any

from operators.core.base import Batch, Headers, Key, Slice
from operators.partition_by import bucket_of, murmur2
from operators.windows.window_groups import Grouped
from runtime.encoding.keys import KeySerde, remembering
from runtime.encoding.ownership import are_unchangeable
from runtime.encoding.serdes import encode_all
from runtime.functions.failures import Whence

MOST_RELAYED = 10_000
"""Rows that wait for their reader before those that write them take in no more."""


class Relay:
    """Rows on their way to one partition of an intermediate stream, in the order in which they were written.

    Values go on as the objects that they are; who writes them sees to it that the next stage has its own. A reader has
    read what is stored before it takes these.

    The threads of writing tasks give, that of the reading task takes: these append at the right, that one pops at the
    left. `stored` and `clear` are for a commit, while no thread is at work; between the two nothing is given or taken,
    so what is cleared is what was stored.
    """

    def __init__(self, values: KeySerde, keys: KeySerde, operator: str = "", asked: bool = False) -> None:
        self.operator = operator
        """The id of the operator that hands on."""
        self._asked = asked
        """Whether a policy of the stage that reads may ask for the bytes of a row, as it came."""
        self.values = values
        self.keys = keys
        self.batches: deque[Batch | Grouped] = deque()
        """The batches that were handed on and not yet taken, of rows or of groups of rows."""
        self._given = self._gone = 0
        """The numbers of rows that were ever given, which writing threads count, and taken, the reading one."""
        self._giving = Lock()
        self._taken = 0
        """The number of rows of the first batch that are taken."""
        self._stored = 0
        """The number of rows that the commit at hand stores."""
        self.partitions = 1
        """The partitions whose rows it has: all of a stream, or one."""
        self._partition_of: Callable[[Any], int] = remembering(self._placed)
        self._parts: list[Batch] = []
        """The stored rows of each partition, while a commit asks for them, where it is that of several."""

    def __len__(self) -> int:
        gone = self._gone  # first: what is given meanwhile by another thread makes it more, and never less than none
        return self._given - gone

    def __bool__(self) -> bool:
        return bool(self.batches)

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that no more should come."""
        return len(self) >= MOST_RELAYED

    def give(self, batch: Batch | Grouped) -> None:
        """Hand rows on."""
        # First: another thread may take the batch as soon as it is there. And one at a time: of two that add at once,
        # what one adds would be lost.
        with self._giving:
            self._given += len(batch)
        self.batches.append(batch)

    def take(self, limit: int) -> tuple[Batch, Relayed]:
        """Return the first rows, at most `limit`, and the same ones to be encoded."""
        batch = Batch.gather(self._first(limit))
        self._gone += len(batch.values)
        values = batch.values
        # Encoding is left for the case that a dead letter asks for the row: few rows ever become one. Not where the
        # functions that fail may have changed a value by then.
        if self._asked and not self.values.are_plain(values) and not are_unchangeable(values):
            return batch, Relayed(
                self, encode_all(self.values.serde, values), batch.keys, batch.headers, are_bytes=True
            )
        return batch, Relayed(self, values, batch.keys, batch.headers)

    def take_grouped(self, limit: int) -> Grouped | None:
        """Return the first rows where they are grouped, about `limit` in all; None where they are not."""
        if not isinstance(self.batches[0], Grouped):
            return None
        found = Grouped(self.batches[0].exit)
        while len(found) < limit and self.batches and isinstance(self.batches[0], Grouped):
            first = self.batches.popleft()
            assert isinstance(first, Grouped)
            found.take_in(first)
        self._gone += len(found)
        return found

    def take_back(self, grouped: Grouped) -> None:
        """Put groups that were just taken there again, as rows."""
        self.batches.appendleft(grouped.rows())
        self._gone -= len(grouped)

    def _first(self, limit: int) -> Iterator[Slice]:
        """Yield the rows of which there are at most `limit`: of several batches where each has few."""
        while limit and self.batches and isinstance(self.batches[0], Batch):
            first, start = self.batches[0], self._taken
            assert start < len(first.values), "a batch that is taken has left"
            stop = self._taken = min(start + limit, len(first.values))
            limit -= stop - start
            if stop == len(first.values):
                self.batches.popleft()
                self._taken = 0
            yield first, start, stop

    def stored(self) -> Batch:
        """Return all rows as the stream stores them; they stay until `clear`."""
        starts = chain([self._taken], repeat(0))
        batches = [one if isinstance(one, Batch) else one.rows() for one in self.batches]
        rows = Batch.gather((batch, start, len(batch)) for batch, start in zip(batches, starts, strict=False))
        self._stored = len(rows)
        return encoded(rows, self.values, self.keys)

    def partition_of(self, key: Key | None) -> int:
        """Return the partition of a row, where it has those of all: the first one for what has no key."""
        return self._partition_of(key) or 0

    def _placed(self, key: Key) -> int:
        return murmur2(self.keys.encode(key)) % self.partitions

    def whence(self, here: Whence, keys: Sequence[Key | None] | None, row: int | None) -> Whence:
        """Return where a row is from, given what that is for rows of a reader's own partition; for none, of any row."""
        if self.partitions == 1 or keys is None:
            return here
        return here._replace(partition=None if row is None else self.partition_of(keys[row]))

    def origins(self, here: Whence, batch: Batch) -> list[Mapping[str, bytes] | None]:
        """Return by row the headers by which a dead letter tells where it is from."""
        if self.partitions == 1 or batch.keys is None:
            return [here.headers()] * len(batch)
        found = [here._replace(partition=partition).headers() for partition in range(self.partitions)]
        return [here.headers() if key is None else found[self.partition_of(key)] for key in batch.keys]

    def stored_by_partition(self) -> list[Batch]:
        """Return the rows of each partition of the stream as it stores them."""
        if not self._parts:
            rows, found = self.stored(), [list[int]() for _ in range(self.partitions)]
            for row, key in enumerate(rows.keys or ()):
                found[self.partition_of(key)].append(row)
            self._parts = [rows.take(part) for part in found]
        return self._parts

    def clear(self) -> None:
        """Forget the rows, which a commit has stored."""
        assert len(self) == self._stored, "what is forgotten is what the commit has stored"
        self._parts = []
        self.batches.clear()
        self._gone = self._given
        self._taken = self._stored = 0


class JointRelay:
    """Rows on their way to one partition, which one reader takes with those to all others of the stream.

    They are handed on together, and told apart only where a commit stores what was not taken.
    """

    def __init__(self, relay: Relay, partition: int) -> None:
        self.relay = relay
        self._partition = partition

    def __bool__(self) -> bool:
        return bool(self.relay)

    @property
    def is_full(self) -> bool:
        """Whether the reader is so far behind that no more should come."""
        return self.relay.is_full

    @property
    def operator(self) -> str:
        """The id of the operator that hands on."""
        return self.relay.operator

    def give(self, batch: Batch | Grouped) -> None:
        """Hand rows on, whichever partitions they are of."""
        self.relay.give(batch)

    def stored(self) -> Batch:
        """Return the rows of the partition as the stream stores them; they stay until `clear`."""
        return self.relay.stored_by_partition()[self._partition]

    def clear(self) -> None:
        """Forget the rows, which a commit has stored."""
        self.relay.clear()


class SplitRelay:
    """Rows on their way to the virtual tasks that read one partition: each has a relay for the keys of its own."""

    def __init__(self) -> None:
        self.shares: dict[int, Relay] = {}
        """The relays, by bucket."""
        self._hash: Callable[[Key], int] = lambda key: 0

    def add(self, bucket: int, factor: int, relay: Relay) -> None:
        """Take in the relay of one bucket of so many."""
        encode = relay.keys.encode
        self._hash = remembering(lambda key: bucket_of(encode(key), 0, factor))
        self.shares[bucket] = relay

    def _bucket_of(self, key: Key | None) -> int:
        return 0 if key is None else self._hash(key)

    def __bool__(self) -> bool:
        return any(self.shares.values())

    @property
    def is_full(self) -> bool:
        """Whether one of the readers is so far behind that no more should come."""
        return any(relay.is_full for relay in self.shares.values())

    @property
    def operator(self) -> str:
        """The id of the operator that hands on."""
        return next(iter(self.shares.values())).operator

    def give(self, batch: Batch | Grouped) -> None:
        """Hand rows on, each to the task that has its key."""
        if isinstance(batch, Grouped):
            groups: dict[int, Grouped] = {}
            for slots, group in batch.by_slots.items():
                parts: dict[int, dict[Key, list[Any]]] = {}
                for key, values in group.items():
                    parts.setdefault(self._bucket_of(key), {})[key] = values
                for bucket, part in parts.items():
                    groups.setdefault(bucket, Grouped(batch.exit)).add(slots, batch.places[slots], part)
            for bucket, grouped in groups.items():
                self.shares[bucket].give(grouped)
            return
        rows: dict[int, list[int]] = {}
        for row, key in enumerate(repeat(None, len(batch)) if batch.keys is None else batch.keys):
            rows.setdefault(self._bucket_of(key), []).append(row)
        for bucket, found_rows in rows.items():
            self.shares[bucket].give(batch.take(found_rows))

    def stored(self) -> Batch:
        """Return all rows as the stream stores them; they stay until `clear`."""
        found = Batch([])
        for relay in self.shares.values():
            if relay:
                rows = relay.stored()
                found.extend(rows)
        return found

    def clear(self) -> None:
        """Forget the rows, which a commit has stored."""
        for relay in self.shares.values():
            relay.clear()


AnyRelay = Relay | JointRelay | SplitRelay


@dataclass(frozen=True)
class Relayed:
    """Rows that were handed on; if they are no `bytes` yet they are encoded where a dead letter needs it."""

    relay: Relay
    values: list[Any]
    keys: list[Any] | None
    headers: list[Headers | None] | None = None
    are_bytes: bool = False

    def read(self, rows: range) -> list[Any]:
        """Return the values of rows as they were handed on, where somebody may have changed them."""
        values = self.values[rows.start : rows.stop]
        decode = self.relay.values.serde.decode
        return [None if one is None else decode(one) for one in values] if self.are_bytes else values

    def row(self, index: int) -> Batch:
        """Return the one at `index`, as bytes."""
        relay, value = self.relay, self.values[index]
        key = None if self.keys is None else relay.keys.encode_all([self.keys[index]])
        headers = None if self.headers is None else [self.headers[index]]
        return Batch([value] if self.are_bytes else encode_all(relay.values.serde, [value]), key, headers=headers)


def encoded(rows: Batch, values: KeySerde, keys: KeySerde) -> Batch:
    """Return rows, with held keys, as a stream stores them; raises SerdeError for a value that has no bytes."""
    as_bytes = None if rows.keys is None else keys.encode_all(rows.keys)
    found = Batch(encode_all(values.serde, rows.values), as_bytes, rows.timestamps, rows.stamps, signs=rows.signs)
    found.headers = rows.headers
    return found
