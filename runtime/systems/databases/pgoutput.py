"""The messages of Postgres' plugin pgoutput, in the first version of its protocol, as transactions of changes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from runtime.model.errors import Damaged

UNCHANGED = object()
"""Stands for a value that was left as it is, and is not in the message."""
TextRow = list[object]
"""The values of a row as text in bytes, None for NULL; `UNCHANGED` may be among them."""
_EPOCH_MS = 946_684_800_000
"""The midnight that Postgres counts microseconds from, in ms."""


class PgRelation(NamedTuple):
    """A table as a message describes it: its number, name, and the names and types of its columns.

    It is told in full where the log has the rows of before whole.
    """

    oid: int
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    is_full: bool


class RowChange(NamedTuple):
    """A row before and after, None where there is none; it `is_whole` where all of the row before was told.

    `partial` has the names of those tables told so far of which no row before is whole: the change may be one of a
    partition among them, and tell NULL for what it does not know.
    """

    relation: PgRelation
    old: TextRow | None
    new: TextRow | None
    is_whole: bool = True
    partial: tuple[str, ...] = ()


class PgTransaction(NamedTuple):
    """A transaction: what it has changed, the place in the log behind its commit, and when that was."""

    xid: int
    end_lsn: int
    timestamp_ms: int
    changes: list[RowChange]
    truncated: list[int]
    """The numbers of the tables that it has emptied."""


def transactions(messages: Iterable[bytes]) -> Iterator[PgTransaction]:
    """Yield the transactions of messages; raises `Damaged` for a message that is not known."""
    relations: dict[int, PgRelation] = {}
    current: PgTransaction | None = None
    partial: tuple[str, ...] = ()
    for data in messages:
        letter, message = data[:1], _Message(data)
        if letter == b"B":
            _, micros, xid = message.take(">QqI")
            current = PgTransaction(xid, 0, _EPOCH_MS + micros // 1_000, [], [])
        elif letter == b"C":
            assert current is not None, "a commit ends a transaction"
            _, _, end_lsn, _ = message.take(">BQQq")
            yield current._replace(end_lsn=end_lsn)
            current = None
        elif letter == b"R":
            relation = _relation(message)
            relations[relation.oid] = relation
            partial = tuple(one.name for one in relations.values() if not one.is_full)
        elif letter in b"IUD":
            assert current is not None, "a change lies in a transaction"
            current.changes.append(_change(letter, message, relations)._replace(partial=partial))
        elif letter == b"T":
            assert current is not None, "a change lies in a transaction"
            number, _ = message.take(">IB")
            current.truncated.extend(message.take(f">{number}I"))
        elif letter not in (b"Y", b"O", b"M"):
            raise Damaged(f"pgoutput has sent a message of the kind {letter!r}, which its first version does not have")


class _Message:
    """The bytes of a message, read from behind its kind on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 1

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return found

    def bytes(self, length: int) -> bytes:
        found = self.data[self.at : self.at + length]
        self.at += length
        return found

    def text(self) -> str:
        end = self.data.index(0, self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found


def _relation(message: _Message) -> PgRelation:
    (oid,) = message.take(">I")
    schema, name = message.text(), message.text()
    identity, number = message.take(">BH")
    names, types = [], []
    for _ in range(number):
        message.take(">B")
        names.append(message.text())
        types.append(message.take(">Ii")[0])
    return PgRelation(oid, f"{schema}.{name}", tuple(names), tuple(types), identity == ord("f"))


def _change(letter: bytes, message: _Message, relations: dict[int, PgRelation]) -> RowChange:
    (oid,) = message.take(">I")
    sides: dict[bytes, TextRow] = {}
    while message.at < len(message.data):
        # O is the row before, K its key alone, N the row after.
        side = message.bytes(1)
        sides[side] = _row(message)
    old, new = sides.get(b"O"), sides.get(b"N")
    if old is not None and new is not None:
        # A long value that an update has left alone is told with the row before alone.
        new = [before if after is UNCHANGED else after for before, after in zip(old, new, strict=True)]
    assert letter != b"I" or old is None, "an insert has no row before"
    return RowChange(relations[oid], old, new, is_whole=letter == b"I" or old is not None)


def _row(message: _Message) -> TextRow:
    (number,) = message.take(">H")
    found: TextRow = []
    for _ in range(number):
        letter = message.bytes(1)
        if letter == b"t":
            found.append(message.bytes(message.take(">I")[0]))
        else:
            found.append(None if letter == b"n" else UNCHANGED)
    return found
