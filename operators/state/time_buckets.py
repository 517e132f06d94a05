"""The rows of one side of a join by key, in buckets of time that are dropped whole when they are past."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Protocol

from operators.core.base import MAX_TIMESTAMP, NEVER, Batch, Form, Key, Keys, Store
from operators.core.entry_keys import NUMBER_BYTES, SHIFT, beyond, number_at, ordered
from operators.state.keyed_state import Encoded, dumped, loaded
from operators.state.unread_entries import Entries, UnreadEntries

Row = tuple[int, int, Any, bool]
"""Timestamp, stamp, value, and whether it still waits for the first row to join, to be emitted alone else."""


def nothing_waits(key: Key, at: int, stamp: int) -> None:
    """Take no note of a row that waits."""


class Held(Protocol):
    """The part of an operator's state that it holds beside its store, such as rows by time."""

    @property
    def unwritten(self) -> int:
        """The number of entries that have changed since they were written back."""

    def write_back(self) -> None:
        """Put what has changed into the store."""

    def relieve(self, most_held: int) -> None:
        """Drop entries that the store has as well, if there are more than so many."""


class OverRows:
    """The common part of operators whose state is rows by time: it writes them back, and drops what is too much.

    Where rows wait that it has not noted since it began, it fires nothing until all are.
    """

    held: tuple[Held, ...]
    """All parts of its state that are held beside the store."""
    waits_in: tuple[RowsByTime, ...] = ()
    """The parts in which rows wait."""
    withholds = True

    def __init__(self, store: Store, keys: Keys, most_held: int) -> None:
        self.store, self.keys, self.most_held = store, keys, most_held
        self.late: Batch | None = None

    @property
    def unwritten(self) -> int:
        """The number of entries, each of a key and a bucket, that have changed since they were written back."""
        return sum(one.unwritten for one in self.held)

    @property
    def is_unread(self) -> bool:
        """Whether rows may wait that it has not noted."""
        return any(rows.unread is not None and rows.unread.is_left for rows in self.waits_in)

    @property
    def lowest_unread(self) -> int:
        """The number below which no row has its stamp that waits and is not noted; NEVER where all are."""
        return min((rows.unread.lowest for rows in self.waits_in if rows.unread is not None), default=NEVER)

    def read_on(self) -> None:
        """Note some more of the rows that wait."""
        for rows in self.waits_in:
            if rows.unread is not None and rows.unread.is_left:
                rows.unread.read_on()
                return

    def read_all(self) -> None:
        """Note all rows that wait."""
        while self.is_unread:
            self.read_on()

    def write_back(self) -> None:
        """Put what has changed into the store."""
        for one in self.held:
            one.write_back()

    def relieve(self) -> None:
        """Write back and drop where too much is held beside a durable store; one in memory would hold it no better."""
        if self.store.durable:
            if self.unwritten > self.most_held:
                self.write_back()
            for one in self.held:
                one.relieve(self.most_held)


class Bucket:
    """The rows of a stretch of time by key, each key's in the order of their times, equal ones as they came.

    `changed` has what is newer than the store's, and `clean` what the store has, too. Where `is_whole`, these two have
    all there is; else some may be in the store alone.
    """

    __slots__ = ("changed", "clean", "is_stored", "is_whole")

    def __init__(self, is_stored: bool) -> None:
        self.changed: dict[Key, list[Row]] = {}
        self.clean: dict[Key, list[Row]] = {}
        self.is_stored = is_stored
        self.is_whole = not is_stored


class RowsByTime:
    """Buckets of equal length by their number, over a share of a store; each is past `kept_ms` after its end."""

    def __init__(self, store: Store, keys: Keys, prefix: bytes, width_ms: int, kept_ms: int = 0) -> None:
        self.buckets: dict[int, Bucket] = {}
        self._numbers: list[int] = []
        """The numbers of the buckets, and of some that are gone already; a heap."""
        self._kept_ms = kept_ms
        self.unwritten = 0
        self._changed: dict[int, None] = {}
        """The numbers of the buckets in which something has changed, in the order in which it did."""
        self._held = 0
        """The clean entries that are held, at most; those that left their buckets may be counted still."""
        # A bucket is one range of the store, so whatever is past goes as a whole, and no row needs a timer of its own.
        self._store = store
        self._keys = keys
        self._prefix = prefix
        self._width = width_ms
        self.form: Form | None = None
        """The stored form of values; None if none is declared."""
        self.unread: UnreadEntries | None = None
        """The entries of the store in which rows may wait that were not noted yet, where these are looked for."""
        self._note: Callable[[Key, int, int], None] = nothing_waits
        self._noted: set[tuple[int, Key]] = set()
        """The buckets and keys of entries that changed, or came, before their place was read."""

    def open(self, number: int) -> Bucket:
        """Begin a bucket that has nothing in the store."""
        bucket = self.buckets[number] = Bucket(is_stored=False)
        heappush(self._numbers, number)
        return bucket

    def rows_of(self, number: int, key: Key) -> list[Row] | None:
        """Return the rows of a key in a bucket, to be read only; None where there are none."""
        bucket = self.buckets.get(number)
        if bucket is None:
            return None
        rows = bucket.changed.get(key)
        if rows is None:
            rows = bucket.clean.get(key)
        if rows is None and not bucket.is_whole:
            stored = self._store.get(self._place(number) + self._keys.encode(key))
            if stored is not None:
                rows = bucket.clean[key] = self._rows(stored)
                self._held += 1
        return rows

    def changing(self, number: int, key: Key) -> list[Row]:
        """Return the rows of a key in a bucket for the caller to change; the key counts as changed from now on."""
        bucket = self.buckets[number]
        rows = bucket.changed.get(key)
        if rows is None:
            # The store is asked only where it may have more than is at hand.
            rows = bucket.clean.get(key)
            if rows is None:
                rows = [] if bucket.is_whole else self.rows_of(number, key) or []
            if self.unread is not None and self.unread.is_left:
                self._note_ahead(number, key, rows)
            bucket.changed[key] = rows
            self.unwritten += 1
            self._changed[number] = None
        return rows

    def changing_at(self, key: Key, at: int) -> list[Row]:
        """Return the rows of a key in the bucket of a time for the caller to change."""
        number = at // self._width
        bucket = self.buckets.get(number)
        if bucket is None:
            bucket = self.open(number)
        # Mostly it has changed before, which saves a call.
        rows = bucket.changed.get(key)
        return self.changing(number, key) if rows is None else rows

    def add(self, key: Key, row: Row) -> None:
        """Keep a row, behind those of its time."""
        rows = self.changing_at(key, row[0])
        if not rows or rows[-1][0] <= row[0]:
            rows.append(row)
        else:
            rows.insert(bisect_left(rows, (row[0] + 1,)), row)

    def between(self, key: Key, low: int, high: int) -> list[Row]:
        """Return the rows of a key from one time to another, that included."""
        found: list[Row] = []
        for number in range(low // self._width, high // self._width + 1):
            rows = self.rows_of(number, key)
            if rows:
                found += rows[bisect_left(rows, (low,)) : bisect_left(rows, (high + 1,))]
        return found

    def change(self, key: Key, low: int, high: int, become: Callable[[Row], Row | None]) -> None:
        """Replace the rows of a key from one time to another, both included, by what they `become`; None is no row."""
        for number in range(low // self._width, high // self._width + 1):
            rows = self.rows_of(number, key) or []
            start, stop = bisect_left(rows, (low,)), bisect_left(rows, (high + 1,))
            new = [become(row) for row in rows[start:stop]]
            # Only where a row is another one now: a key that counts as changed is written back.
            if any(now is not before for now, before in zip(new, rows[start:stop], strict=True)):
                self.changing(number, key)[start:stop] = [row for row in new if row is not None]

    def take(self, key: Key, at: int, stamp: int) -> Row | None:
        """Remove a row that waits, and return it; None where none of this time and stamp waits any more."""
        index = self.waits_at(key, at, stamp)
        if index is None:
            return None
        return self.changing(at // self._width, key).pop(index)

    def waits_at(self, key: Key, at: int, stamp: int) -> int | None:
        """Return the index of a row that waits, among those of its key and bucket; None where it waits no more."""
        number = at // self._width
        bucket = self.buckets.get(number)
        # As `rows_of` does it, where the rows are at hand.
        if bucket is None or ((rows := bucket.changed.get(key)) is None and (rows := bucket.clean.get(key)) is None):
            rows = self.rows_of(number, key)
        if rows:
            # Mostly a key has a single row, which need not be looked for.
            for index in range(bisect_left(rows, (at,)) if len(rows) > 1 else 0, len(rows)):
                row = rows[index]
                if row[0] != at:
                    break
                if row[1] == stamp and row[3]:
                    return index
        return None

    def next_past(self) -> int:
        """Return the time at which the first bucket is past, or NEVER."""
        while self._numbers and self._numbers[0] not in self.buckets:
            heappop(self._numbers)
        return min((self._numbers[0] + 1) * self._width + self._kept_ms, MAX_TIMESTAMP) if self._numbers else NEVER

    def drop_past(self, reached: int, most: int | None) -> int | None:
        """Drop the buckets that are past, at most `most` entries; return the number that may still be dropped."""
        while self.next_past() <= reached and (most is None or most > 0):
            dropped = self._drop(self._numbers[0], most)
            if dropped is None:
                return 0
            if most is not None:
                most = max(most - dropped - 1, 0)
        return most

    def _drop(self, number: int, most: int | None) -> int | None:
        """Drop a bucket, or the first `most` of its entries; return their number, None where some may be left."""
        bucket, left, dropped = self.buckets[number], most, 0
        if most is not None and bucket.is_stored and bucket.changed:
            # Changed rows go first: what the store has of them is older, and nobody may read that after a commit.
            changed = list(islice(bucket.changed, most))
            for key in changed:
                del bucket.changed[key]
            self._delete(self._place(number), changed)
            self.unwritten -= len(changed)
            dropped, left = len(changed), most - len(changed)
        if bucket.is_stored:
            # Nobody reads what is past: it goes without being decoded.
            if bucket.is_whole:
                stored = len(self._pop_clean(number, left))
            else:
                stored = self._store.drop(self._place(number), self._place(number + 1), left)
                bucket.clean = {}
            if stored == left:
                return None
            dropped += stored
        self.unwritten -= len(bucket.changed)
        del self.buckets[number]
        return dropped

    def _delete(self, prefix: bytes, keys: Iterable[Key]) -> None:
        self._store.delete_all(map(prefix.__add__, self._keys.encode_all([*keys])))

    def pop(self, number: int, most: int | None) -> list[tuple[Key, list[Row]]]:
        """Remove a bucket, or the first `most` of its keys, and return their rows.

        Changed rows go first: the store has them as they were, and after a commit in between nobody may read those.
        """
        bucket, prefix = self.buckets[number], self._place(number)
        found = list(islice(bucket.changed.items(), most))
        for key, _ in found:
            del bucket.changed[key]
            bucket.clean.pop(key, None)
            if bucket.is_stored:
                self._store.delete(prefix + self._keys.encode(key))
        self.unwritten -= len(found)
        if bucket.is_stored and not bucket.changed:
            found += self._pop_stored(number, None if most is None else most - len(found))
        # Fewer than were asked for, so nothing is left of it.
        if len(found) != most:
            del self.buckets[number]
        return found

    def _pop_stored(self, number: int, most: int | None) -> list[tuple[Key, list[Row]]]:
        bucket, prefix = self.buckets[number], self._place(number)
        if bucket.is_whole:
            return self._pop_clean(number, most)
        stored = list(islice(self._store.range(prefix, self._place(number + 1)), most))
        keys = self._keys.load([place[len(prefix) :] for place, _ in stored])
        found = [(key, self._rows(rows)) for key, (_, rows) in zip(keys, stored, strict=True) if key is not None]
        for key, _ in found:
            bucket.clean.pop(key, None)
        self._delete(prefix, [key for key, _ in found])
        return found

    def _pop_clean(self, number: int, most: int | None) -> list[tuple[Key, list[Row]]]:
        """Remove the entries of a bucket that is whole, so that the store need not be walked through."""
        clean = self.buckets[number].clean
        found = list(islice(clean.items(), most))
        self.buckets[number].clean = dict(islice(clean.items(), len(found), None))
        self._delete(self._place(number), [key for key, _ in found])
        return found

    def write_back(self) -> None:
        """Put what has changed into the store."""
        # A value of a declared type was brought into its form when it came; only a serde makes something else of it.
        is_plain = self.form is None or self.form.dump is self.form.load
        for number in self._changed:
            bucket = self.buckets.get(number)
            if bucket is not None and bucket.changed:
                prefix, changed, stored, kept = self._place(number), bucket.changed, self._stored, {}
                for data, rows in zip(self._keys.encode_all([*changed]), changed.values(), strict=True):
                    # Mostly a key has one row in a bucket: as `_stored` does it, to spare a call for each.
                    if is_plain and len(rows) == 1:
                        ((at, stamp, value, waits),) = rows
                        kept[prefix + data] = [[at, stamp, waits], value]
                    elif rows:
                        kept[prefix + data] = stored(rows)
                    elif bucket.is_stored:
                        self._store.delete(prefix + data)
                self._store.update(kept)
                if len(kept) < len(changed):
                    changed = {key: rows for key, rows in changed.items() if rows}
                if bucket.clean:
                    bucket.clean.update(changed)
                else:
                    bucket.clean = changed
                self._held += len(changed)
                bucket.changed = {}
                bucket.is_stored = bucket.is_stored or bool(kept)
        self._changed.clear()
        self.unwritten = 0

    def relieve(self, most_held: int) -> None:
        """Hold no more than so many entries that the store has, too."""
        # There may be thousands of buckets, which are counted anew only where there may be too much in them.
        if self._held > most_held:
            self._held = sum(len(bucket.clean) for bucket in self.buckets.values())
        if self._held > most_held:
            self._held = 0
            for bucket in self.buckets.values():
                if bucket.clean:
                    bucket.clean = {}
                    bucket.is_whole = False

    def load(self) -> None:
        """Drop all that is held, and look up which buckets the store has."""
        self.buckets = {}
        self._changed.clear()
        self.unwritten = self._held = 0
        # One look for each bucket and not for each entry: behind the first entry found the next bucket is asked for.
        place, end = self._place(-SHIFT), beyond(self._prefix)
        while (found := next(self._store.range(place, end), None)) is not None:
            number = self._number(found[0])
            self.buckets[number] = Bucket(is_stored=True)
            place = self._place(number + 1)
        self._numbers = [*self.buckets]
        heapify(self._numbers)

    def find_waiting(self, note: Callable[[Key, int, int], None], lowest: int | None = None) -> None:
        """Note the key, time and stamp of each row that waits in the store.

        Given the `lowest` stamp of these they are noted as `unread` is read, and no bucket may be dropped before that.
        """
        # No index of them is kept: it would cost a write with each row, and is needed at a start or a rollback alone.
        self._note = note
        self._noted.clear()
        self.unread = UnreadEntries(self._store, self._prefix, self._note_waiting, lowest)

    def _note_waiting(self, entries: Entries) -> None:
        start = len(self._prefix) + NUMBER_BYTES
        for place, stored in entries:
            times = stored[0]
            if True in times[2::3]:
                (key,) = self._keys.load([place[start:]])
                assert key is not None
                if (self._number(place), key) not in self._noted:
                    for at, stamp, waits in zip(times[0::3], times[1::3], times[2::3], strict=True):
                        if waits:
                            self._note(key, at, stamp)

    def _note_ahead(self, number: int, key: Key, rows: list[Row]) -> None:
        """Note what waits in an entry that changes before it is read, so that nothing of it is noted once more then."""
        assert self.unread is not None
        if (number, key) not in self._noted and self.unread.lies_ahead(self._place(number) + self._keys.encode(key)):
            self._noted.add((number, key))
            for at, stamp, _, waits in rows:
                if waits:
                    self._note(key, at, stamp)

    def _stored(self, rows: list[Row]) -> list[object]:
        """Return rows as one entry: a list of all times, stamps and flags, which is encoded at once, and the values."""
        form = self.form
        values = [row[2] if form is None or form.fits else dumped(form, row[2]) for row in rows]
        return [[field for at, stamp, _, waits in rows for field in (at, stamp, waits)], *values]

    def _rows(self, stored: list[Any]) -> list[Row]:
        known, *values = stored
        if self.form is not None or Encoded in map(type, values):
            values = [loaded(self.form, value) for value in values]
        return list(zip(known[0::3], known[1::3], values, known[2::3], strict=True))

    def _place(self, number: int) -> bytes:
        return self._prefix + ordered(number)

    def _number(self, place: bytes) -> int:
        return number_at(place, len(self._prefix))
