"""The journal of a store: a record for each of the newest commits, until they are merged into the table of entries."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from runtime.model.errors import Damaged
from runtime.systems.log.records import PLACE, RESTORE, STORE, entry_bytes, fetch, opened, place_of_key, sealed
from runtime.systems.log.state import TALLY, Tally, keys_from, placed, tally_of, write_entries

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

JOURNAL = b"journal\0"
_SPAN = struct.Struct("<QQQQ")
_NUMBER = struct.Struct(">Q")
MOST_RECORDS = 1_000
"""A journal has no more records than this: they are read when the state is used again."""
_MERGED_AT_ONCE = 4_096
"""The number of entries encoded at a time: they are put into LMDB before they leave the processor's cache."""

Items = list[tuple[bytes, bytes | None]]
"""Entries that were put, and those that were deleted."""
encode_items = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Items).decode


class JournalSpan(NamedTuple):
    """The records of a journal, by the numbers of the transactions that wrote them; all 0 where it has none."""

    first: int = 0
    last: int = 0
    records: int = 0
    size_bytes: int = 0

    @staticmethod
    def of(data: bytes) -> JournalSpan:
        """Return the span that was stored as `data`."""
        return JournalSpan(*_SPAN.unpack(data))


class Journal:
    """The changes to one store and task since entries were last merged: values by key, None where one was deleted.

    A commit's thread adds to it while others read: the lock is over the span with its entries, and over the sorted
    keys.
    """

    def __init__(self) -> None:
        self.span = JournalSpan()
        self.stored_span = b""
        """What says its span in the database, once that was looked at; `b""` from each change on."""
        self.entries: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] = []
        self._lock = Lock()

    def update(self, items: Items, span: JournalSpan) -> None:
        """Take in what a record changes."""
        with self._lock:
            self.span, self.stored_span = span, b""
            self.entries.update(items)

    def between(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield what changed with `start` <= key < `end`, in key order, as it is when it is reached."""
        entries = self.entries
        with self._lock:
            if (known := len(self._sorted)) < len(entries):
                new = islice(entries, known, None)  # what a dict has is in the order in which it came
                self._sorted = sorted([*self._sorted, *sorted(new)])
            keys = self._sorted
        stop = len(keys) if end is None else bisect_left(keys, end)
        return ((keys[index], entries[keys[index]]) for index in range(bisect_left(keys, start), stop))


class Journaled(NamedTuple):
    """The record that a transaction has written to the journal at `place`, or merged with all that was there."""

    place: bytes
    span: JournalSpan
    items: Items


class Budget:
    """The memory of all journals together, of which each has its share: entries, and the bytes of records."""

    def __init__(self, most_entries: int = 1 << 17, most_bytes: int = 1 << 25) -> None:
        self.most_entries, self.most_bytes = most_entries, most_bytes
        self.journals = 0
        self._lock = Lock()

    def count(self, more: int) -> None:
        """Take note that there are so many journals more."""
        with self._lock:
            self.journals += more

    def is_exceeded(self, entries: int, size_bytes: int) -> bool:
        """Whether a journal has more than its share."""
        journals = self.journals or 1
        return entries * journals > self.most_entries or size_bytes * journals > self.most_bytes


OF_ALL = Budget()
"""The budget that all databases of this process share."""


class Journals:
    """The journals of a database as this process knows them: each is read when it is first asked for.

    Any thread may ask; `write` and `adopt` are for the thread that commits. A journal in memory is as of some committed
    transaction, never of one under way.
    """

    def __init__(self, database: Database, budget: Budget = OF_ALL, most_records: int = MOST_RECORDS) -> None:
        self._database = database
        self._budget, self._most_records = budget, most_records
        self._known: dict[bytes, Journal] = {}
        self._lock = Lock()

    def at(self, transaction: lmdb.Transaction[memoryview], place: bytes) -> Journal:
        """Return the journal of the store and task at `place` as a transaction sees it; raises `Damaged`."""
        return self.spanned(transaction, place)[0]

    def spanned(self, transaction: lmdb.Transaction[memoryview], place: bytes) -> tuple[Journal, JournalSpan]:
        """Return what `at` does and its span then: with another the journal has more than the transaction sees."""
        stored = bytes(transaction.get(JOURNAL + place, b"", self._database.meta))
        with self._lock:
            known = self._known.get(place)
            if known is not None and stored and known.stored_span == stored:  # most often: nothing was committed since
                return known, known.span
            span = span_of(transaction, self._database, place)
            if known is not None and known.span == span:
                known.stored_span = stored
                return known, known.span
            if not span.records:
                self._forget(place)
                known = Journal()
                return known, known.span
            # This transaction began before the newest commit: it gets a journal of its own, and what is known stays
            # for the others.
            is_past = known is not None and known.span.first == span.first and known.span.last > span.last
            if known is None or known.span.first != span.first or is_past:
                # Not known here, merged by another process meanwhile, or newer than this transaction: read anew.
                known = Journal()
            for items in self._records(transaction, place, known.span, span):
                known.update(items, span)
            if not is_past:
                self._keep(place, known)
            return known, known.span

    def write(self, transaction: lmdb.Transaction[memoryview], place: bytes, items: Items, data: bytes) -> Journaled:
        """Change entries of a store and task, `data` encoded; `adopt` what is returned when that is committed."""
        before, number = self.at(transaction, place), transaction.id()
        assert before.span.last < number, "a transaction writes one record to a journal"
        span = before.span
        after = JournalSpan(span.first or number, number, span.records + 1, span.size_bytes + len(data))
        assert after.first <= after.last and after.size_bytes >= len(data), "a span only grows"
        if self._is_much(after, before, items):
            # Merged in the order of the keys, which is LMDB's: neighbours lie on one page, and each page is written
            # once.
            changed = before.entries | dict(items)
            keys = iter(sorted(changed))
            while some := [*islice(keys, _MERGED_AT_ONCE)]:
                write_entries(transaction, self._database, placed(place, ((key, changed[key]) for key in some)))
            drop_journal(transaction, self._database, place)
            return Journaled(place, JournalSpan(), [])
        at, key = place + _NUMBER.pack(number), JOURNAL + place
        transaction.put(at, sealed(at, data), db=self._database.journal)
        transaction.put(key, sealed(key, _SPAN.pack(*after)), db=self._database.meta)
        return Journaled(place, after, items)

    def adopt(self, written: Journaled) -> None:
        """Know what is committed now, so that it need not be read."""
        with self._lock:
            if not written.span.records:
                self._forget(written.place)
                return
            journal = self._known.get(written.place) or Journal()
            self._keep(written.place, journal)
            # Else another process has written in between: the records are read when somebody asks.
            if journal.span.records == written.span.records - 1:
                journal.update(written.items, written.span)

    def _records(
        self, transaction: lmdb.Transaction[memoryview], place: bytes, known: JournalSpan, span: JournalSpan
    ) -> list[Items]:
        """Return what a journal has beyond what is known of it."""
        try:
            found = [*records_of(transaction, self._database, place, known.last + 1)]
            if len(found) != span.records - known.records:
                raise ValueError("records are missing")
        except ValueError as error:
            self._database.distrust()
            whose = name_of(transaction, self._database, place)
            raise Damaged(f"The journal of {whose}, is not what was written: {error}. {RESTORE}") from error
        return found

    def _is_much(self, span: JournalSpan, before: Journal, items: Items) -> bool:
        entries = len(before.entries) + len(items)
        # Counted exactly only where the upper bound is too much: it is a walk over all items.
        if self._budget.is_exceeded(entries, 0):  # as it may seem, where it is the same entries again
            entries = len(before.entries) + sum(key not in before.entries for key, _ in items)
        return self._budget.is_exceeded(entries, span.size_bytes) or span.records > self._most_records

    def close(self) -> None:
        """Drop every journal from memory."""
        for place in [*self._known]:
            self._forget(place)

    def _keep(self, place: bytes, journal: Journal) -> None:
        self._budget.count(place not in self._known)
        self._known[place] = journal

    def _forget(self, place: bytes) -> None:
        self._budget.count(-(self._known.pop(place, None) is not None))


def span_of(transaction: lmdb.Transaction[memoryview], database: Database, place: bytes) -> JournalSpan:
    """Return which records the journal at `place` has; raises `Damaged` at a changed bit."""
    data = fetch(transaction, database.meta, JOURNAL + place, "a store's journal")
    span = JournalSpan() if data is None else JournalSpan.of(data)
    assert bool(span.records) == bool(span.last) and span.first <= span.last, "a span is of its records"
    return span


def records_of(
    transaction: lmdb.Transaction[memoryview], database: Database, place: bytes, first: int = 0
) -> Iterator[Items]:
    """Yield the records of a journal from that of the transaction `first` on; raises ValueError at a changed bit."""
    cursor = transaction.cursor(database.journal)
    found = cursor.set_range(place + _NUMBER.pack(first))
    while found and (key := bytes(cursor.key())).startswith(place):
        yield _decode(opened(key, cursor.value()))
        found = cursor.next()


def name_of(transaction: lmdb.Transaction[memoryview], database: Database, place: bytes) -> str:
    """Return which application's store and task is at `place`, for an error."""
    store, task = PLACE.unpack(place)
    for key in keys_from(transaction, database.meta, STORE):
        if opened(key, transaction.get(key, b"", database.meta))[:4] == store.to_bytes(4, "little"):
            app, name = key.decode().split("\0")[1:]
            return f"application {app!r}, store {name!r}, task {task}"
    return f"store {store}, task {task}"


def drop_journal(transaction: lmdb.Transaction[memoryview], database: Database, prefix: bytes) -> None:
    """Delete the journals whose places begin with `prefix`."""
    for table, first in ((database.journal, prefix), (database.meta, JOURNAL + prefix)):
        for key in keys_from(transaction, table, first):
            transaction.delete(key, db=table)


def overlaid(
    changed: Iterator[tuple[bytes, bytes | None]], stored: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield what is stored, as it was changed since, in key order, in which both are.

    >>> [*overlaid(iter([(b"a", b"new"), (b"b", None)]), iter([(b"b", b"old"), (b"c", b"old")]))]
    [(b'a', b'new'), (b'c', b'old')]
    """
    change = next(changed, None)
    for entry in stored:
        while change is not None and change[0] <= entry[0]:
            key, value = change
            if value is not None:
                yield key, value
            change = next(changed, None)
            if key == entry[0]:
                break
        else:
            yield entry
    while change is not None:
        key, value = change
        if value is not None:
            yield key, value
        change = next(changed, None)


def places_of(transaction: lmdb.Transaction[memoryview], database: Database, store: int) -> list[bytes]:
    """Return the places at which a store ever had entries, one for each task."""
    prefix = store.to_bytes(4, "big")
    found = {
        key[-PLACE.size :] for what in (TALLY, JOURNAL) for key in keys_from(transaction, database.meta, what + prefix)
    }
    return sorted(found)


def holds_any(transaction: lmdb.Transaction[memoryview], database: Database, place: bytes) -> bool:
    """Whether a store and task has entries, those of its journal among them; few are looked at, unless it deletes."""
    tally, journal = tally_of(transaction, database, place), database.journals.at(transaction, place)
    return (
        tally.entries > len(journal.entries)
        or any(value is not None for value in [*journal.entries.values()])
        or live_tally(transaction, database, place).entries > 0
    )


def live_tally(transaction: lmdb.Transaction[memoryview], database: Database, place: bytes) -> Tally:
    """Return how many entries a store and task has, and how large they are, with those of its journal."""
    tally, journal = tally_of(transaction, database, place), database.journals.at(transaction, place)
    written = [(key, value) for key, value in [*journal.entries.items()] if value is not None]
    entries, size_bytes = tally.entries + len(written), tally.size_bytes + sum(len(k) + len(v) for k, v in written)
    for key, _ in journal.between(b"", None) if tally.entries else ():
        record = transaction.get(at := place_of_key(place, key), None, database.state)
        if record is not None:
            entries -= 1
            size_bytes -= entry_bytes(at, record)
    return Tally(entries, size_bytes)
