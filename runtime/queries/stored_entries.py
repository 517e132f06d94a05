"""The entries that answer a request, as they are stored: who asks reads them as a process does that has all."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from runtime.ports.state import StateSnapshot
from runtime.stores.held_snapshot import HeldSnapshot

STORED = "stored"
"""The parameter, and the field of an answer, of what is stored: its keys are said as bytes in base64."""


class StoredEntry(NamedTuple):
    """One entry of the operator that was asked for."""

    task: int
    place: bytes
    value: bytes

    @property
    def json(self) -> str:
        """The entry in an answer."""
        return f'[{self.task},"{said_of(self.place)}","{said_of(self.value)}"]'


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer as it is read: which application's entries these are, and the next page, where there is one.

    The first page of a range in each container says which tasks' entries `begins` there, None where some came or went
    just then, and how many tasks there are `of` the application: one that moves is in no container for a while.
    """

    app: str
    operator: str
    stored: list[tuple[int, str, str]]
    next: str | None = None
    begins: list[int] | None = []
    of: int = 0

    def snapshot(self) -> HeldSnapshot:
        """Return state that has these entries alone; raises ValueError for what is no base64."""
        found: dict[int, dict[bytes, bytes]] = {}
        for task, place, value in self.stored:
            found.setdefault(task, {})[bytes_said(place)] = bytes_said(value)
        return HeldSnapshot(lambda store: found if store == self.operator else {})


class RecordingSnapshot(StateSnapshot):
    """A snapshot that notes each entry which is read of it, until they are taken."""

    def __init__(self, snapshot: StateSnapshot) -> None:
        self._snapshot = snapshot
        self._read: list[StoredEntry] = []

    def taken(self) -> list[StoredEntry]:
        """Return the entries that were read since the last call."""
        found, self._read = self._read, []
        return found

    def tasks(self, store: str) -> Collection[int]:
        return self._snapshot.tasks(store)

    def get(self, store: str, task: int, key: bytes) -> bytes | None:
        found = self._snapshot.get(store, task, key)
        if found is not None:
            self._read.append(StoredEntry(task, key, found))
        return found

    def between(self, store: str, task: int, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for place, value in self._snapshot.between(store, task, start, end):
            self._read.append(StoredEntry(task, place, value))
            yield place, value

    def close(self) -> None:
        self._snapshot.close()


def stored_json(app: str, operator: str, entries: Iterable[str]) -> str:
    """Return an answer that has these entries, without the end of its object, behind which its next page stands."""
    named = msgspec.json.encode({"app": app, "operator": operator}).decode().removesuffix("}")
    return f'{named},"{STORED}":[{",".join(entries)}]'


def said_of(data: bytes) -> str:
    """Return bytes as a parameter says them.

    >>> bytes_said(said_of(b"a?"))
    b'a?'
    """
    return base64.urlsafe_b64encode(data).decode()


def bytes_said(said: str | bytes) -> bytes:
    """Return the bytes that a parameter says; raises ValueError where it says none."""
    text = said.encode() if isinstance(said, str) else said
    return base64.b64decode(text.translate(_FROM_URL), validate=True)


_FROM_URL = bytes.maketrans(b"-_", b"+/")
