"""The rows that compaction keeps of a partition: each key's newest, and each producer's newest control."""

from __future__ import annotations

from collections.abc import Iterable

from operators.core.base import Batch
from runtime.ports.streams import in_one
from runtime.systems.log.batch import StoredBatch

TOMBSTONE_MS = 24 * 3_600_000
"""The ms for which a deletion stays readable, so that a reader that is behind learns of it."""
_MIN_BATCHES = 32
_MAX_KEYS = 1_000_000
_MAX_ROWS = 1_000
"""Neighbouring batches are joined up to this many rows."""


def is_due(batches: int, batches_left: int) -> bool:
    """Whether a partition is worth a round, given how many batches the last one left."""
    return batches >= 2 * batches_left + _MIN_BATCHES


class Newest:
    """The offset of each key's newest row, and of each producer's newest control, seen from the end backwards.

    It holds a million keys; the rows of further ones are all kept.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes | None, int] = {}
        self._producers: dict[str, int] = {}

    def see(self, stored: StoredBatch) -> None:
        """Take in the batch before all those that were seen."""
        newest = self._keys
        batch = stored.batch
        for key, offset in zip(reversed(batch.keys or []), reversed(batch.offsets or []), strict=True):
            # Bounded memory: of the keys beyond, all rows stay until a later round.
            if len(newest) < _MAX_KEYS:
                newest.setdefault(key, offset)
        for said in stored.control.words if stored.control is not None else ():
            self._producers.setdefault(said.producer, stored.last)

    def kept(self, stored: StoredBatch, now_ms: int) -> StoredBatch | None:
        """Return what stays of a batch, all before it being done: itself, fewer rows, or None.

        Where another process compacts too, this may have missed rows: what is newer than what was seen stays.
        """
        newest = self._keys
        batch = stored.batch
        keys, offsets = batch.keys or [], batch.offsets or []
        forgets = stored.appended_ms < now_ms - TOMBSTONE_MS
        rows = [
            index
            for index, (key, offset, value) in enumerate(zip(keys, offsets, batch.values, strict=True))
            if offset > (seen := newest.get(key, -1)) or (offset == seen and not (forgets and value is None))
        ]
        control = stored.control
        if control is not None:
            words = [one for one in control.words if self._producers.get(one.producer, -1) <= stored.last]
            control = in_one(words) if words else None
        if len(rows) == len(batch.values) and control == stored.control:
            return stored if rows or control else None
        if not rows and control is None:
            return None
        return stored._replace(batch=batch.take(rows), control=control)


def joined(batches: Iterable[StoredBatch]) -> list[StoredBatch]:
    """Return the same rows in fewer batches; one with a control stays the last of its batch."""
    result: list[StoredBatch] = []
    for stored in batches:
        # Few large batches instead of many that compaction has left small: a read costs by the batch.
        before = result[-1] if result else None
        assert before is None or before.last < stored.base, "batches lie in the order of their offsets"
        if before is None or before.control is not None or not _alike(before.batch, stored.batch):
            result.append(stored)
            continue
        batch = before.batch.copy()
        batch.extend(stored.batch)
        appended_ms = max(before.appended_ms, stored.appended_ms)
        result[-1] = StoredBatch(before.base, stored.last, appended_ms, batch, stored.control)
    return result


def _alike(left: Batch, right: Batch) -> bool:
    """Whether two batches have rows with the same columns, few enough for one batch."""
    return bool(
        left.values
        and right.values
        and len(left) + len(right) <= _MAX_ROWS
        and (left.stamps is None) == (right.stamps is None)
        and (left.headers is None) == (right.headers is None)
        and (left.signs is None) == (right.signs is None)
    )
