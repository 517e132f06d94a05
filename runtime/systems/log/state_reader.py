"""The reader of many entries of one store and task in one transaction, as a step of work asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime.model.errors import Damaged
from runtime.ports.state import StateReader, StateSnapshot
from runtime.systems.log.journal import Journal, JournalSpan, overlaid, places_of
from runtime.systems.log.records import PLACE, RESTORE, entries_between, entry_of, place_of_key

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.database import Database

    StoreId = Callable[[lmdb.Transaction[memoryview], str, str], int | None]


class LogStateReader(StateReader):
    """Reads entries of a store in one task, in a transaction from the first of them to `release`.

    Pages that this transaction sees are not used again before it ends, so it should not last.
    """

    __slots__ = (
        "__weakref__",
        "_database",
        "_find_store",
        "_journal",
        "_lock",
        "_place",
        "_prefix",
        "_span",
        "_transaction",
    )

    def __init__(
        self,
        database: Database,
        find_store: Callable[[lmdb.Transaction[memoryview]], int | None],
        app: str,
        store: str,
        task: int,
    ) -> None:
        self._database = database
        self._find_store = find_store
        self._place = app, store, task
        self._lock = Lock()
        self._prefix = b""
        self._journal = Journal()
        self._span = self._journal.span
        self._transaction: lmdb.Transaction[memoryview] | None = None

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            transaction = self._transaction or self._begin()
            if not self._prefix:
                return None
            if self._journal.span is not self._span:
                self._read_journal(transaction)  # as of when the transaction began: somebody has committed since
            if key in self._journal.entries:
                return self._journal.entries[key]
            place = place_of_key(self._prefix, key)
            try:
                record = transaction.get(place, None, self._database.state)
                return None if record is None else entry_of(place, record)[1]
            except self._database.errors as error:
                raise self._database.failed(error) from error
            except ValueError as error:
                raise damaged_entry(self._database, *self._place, key, error) from error

    def release(self) -> None:
        """End the transaction, if there is one."""
        with self._lock:
            transaction, self._transaction = self._transaction, None
            if transaction is not None:
                self._database.readers.discard(self)
                transaction.abort()

    def leave(self) -> None:
        """In a forked child, forget the transaction without an end: its place in LMDB's table is the parent's."""
        self._transaction = None

    def _begin(self) -> lmdb.Transaction[memoryview]:
        self._transaction = self._database.begin_reading()
        self._database.readers.add(self)
        number = self._find_store(self._transaction)
        if number is not None:
            self._prefix = PLACE.pack(number, self._place[2])
            self._read_journal(self._transaction)
        return self._transaction

    def _read_journal(self, transaction: lmdb.Transaction[memoryview]) -> None:
        self._journal, self._span = self._database.journals.spanned(transaction, self._prefix)


class SeenJournal(NamedTuple):
    """The journal of a store and task at a place, as it was with this span."""

    place: bytes
    journal: Journal
    span: JournalSpan


class SeenStores:
    """The places and journals of stores as of one transaction, looked up once for all snapshots that see the same."""

    __slots__ = ("journals", "places", "transaction_id")

    def __init__(self, transaction_id: int) -> None:
        self.transaction_id = transaction_id
        self.journals: dict[tuple[str, str, int], SeenJournal] = {}
        """By application, store and task."""
        self.places: dict[tuple[str, str], dict[int, bytes]] = {}
        """By application and store, and then by task."""


_UNCHANGED: Final = b"unchanged"
"""Stands for what a journal has of a key that it does not have, told by identity."""


class LogSnapshot(StateSnapshot):
    """The state of an application as of one commit, across its stores and tasks, until it is closed.

    Pages that it sees are not used again before it is closed, so it should not last. It uses the database by itself:
    whoever else closes that, the memory which this one reads stays.
    """

    def __init__(self, database: Database, app: str, store_id: StoreId) -> None:
        self._database = database
        self._app = app
        self._store_id = store_id
        self._is_closed = True
        database.join()
        try:
            self._transaction = database.begin_reading()
        except BaseException:
            database.release()
            raise
        self._is_closed = False
        # Most often nothing was committed since the last snapshot, which may have been for one key.
        seen, number = database.seen, self._transaction.id()
        if seen is None or seen.transaction_id != number:
            seen = database.seen = SeenStores(number)
        self._seen = seen

    def tasks(self, store: str) -> dict[int, bytes]:
        """Return the tasks in which a store ever had entries, with the places of these."""
        found = self._seen.places.get((self._app, store))
        if found is None:
            number = self._store_id(self._transaction, self._app, store)
            places = [] if number is None else places_of(self._transaction, self._database, number)
            found = {PLACE.unpack(place)[1]: place for place in places}
            self._seen.places[self._app, store] = found
        return found

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        found = self._journal(store, task)
        if found is None:
            return None
        place, journal, span = found
        value = journal.entries.get(key, _UNCHANGED)
        # Whoever commits in this process takes its changes into the same journal: then it is read anew, as it was.
        if journal.span is not span:
            return self.get(store, task, key)
        if value is not _UNCHANGED:
            return value
        at = place_of_key(place, key)
        try:
            record = self._transaction.get(at, None, self._database.state)
            return None if record is None else entry_of(at, record)[1]
        except ValueError as error:
            raise damaged_entry(self._database, self._app, store, task, key, error) from error

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if task not in self.tasks(store):
            return
        while (found := self._journal(store, task)) is not None:
            place, journal, span = found
            changed = [*journal.between(start, end)]
            if journal.span is span:
                break
        else:
            return
        stored = entries_between(self._transaction.cursor(self._database.state), place, start, end)
        try:
            yield from overlaid(iter(changed), stored)
        except ValueError as error:
            raise damaged_entry(self._database, self._app, store, task, start, error) from error

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._transaction.abort()
            self._database.release()

    def _journal(self, store: str, task: int) -> SeenJournal | None:
        """Return the journal of a store and task as this transaction sees it; None where there is no such store."""
        found = self._seen.journals.get((self._app, store, task))
        if found is None or found.journal.span is not found.span:
            number = self._store_id(self._transaction, self._app, store)
            if number is None:
                return None
            place = PLACE.pack(number, task)
            journal, span = self._database.journals.spanned(self._transaction, place)
            found = self._seen.journals[self._app, store, task] = SeenJournal(place, journal, span)
        return found


def damaged_entry(database: Database, app: str, store: str, task: int, key: bytes, error: ValueError) -> Damaged:
    """Return the error that says which entry can't be read."""
    database.distrust()
    return Damaged(
        f"State of application {app!r}, store {store!r}, task {task}, at or after key {key!r} is not what was "
        f"written: {error}. {RESTORE}"
    )
