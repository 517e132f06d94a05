"""The share of a partition that a virtual task has: what a reader keeps of the rows that it has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from operators.core.base import Batch, Key
from operators.partition_by import bucket_of
from planner.model.virtual_tasks import MOST_BUCKETS, VirtualTask, share_of
from runtime.encoding.keys import remembering
from runtime.model.checkpoint import Position
from runtime.model.clock import monotonic_ms

if TYPE_CHECKING:
    from runtime.encoding.keys import KeySerde
    from runtime.reading.taken import Malformed, Taken


@dataclass(frozen=True)
class KeyShare:
    """The share of a task in the rows of a partition: the keys that it has, or all.

    Rows without a key are shared out by their offsets, or all have the first bucket where state is kept `by_key`.
    """

    task: VirtualTask
    by_key: bool = True

    @property
    def is_part(self) -> bool:
        """Whether there are rows that are not its own."""
        return self.task.factor > 1


WHOLE = KeyShare(VirtualTask(0))
"""The share of a task that has its partitions for itself."""


class Sieve:
    """Drops the rows of a partition that are of other tasks, and those that were processed before a merge of tasks.

    Times, and so the stamps of rows and watermarks, are those of all rows: whoever sieves does it behind them.
    """

    def __init__(self, share: KeyShare, ahead: Iterable[Position], keys: KeySerde | None) -> None:
        self._share = share
        self._ahead = [(share_of(one.bucket, share.task.base), one) for one in ahead]
        self.hash_ms = 0.0
        """The time in which it found whose rows are."""
        hashes = keys.encode if keys is not None else _no_key
        self._hash: Callable[[Key], int] = remembering(lambda key: bucket_of(hashes(key), 0, MOST_BUCKETS))

    @property
    def bucket(self) -> int:
        """The bucket of the keys that it keeps."""
        return self._share.task.bucket

    def ahead_of(self, offset: int) -> list[Position]:
        """Return the positions of shares that were read further than to an offset."""
        self._ahead = [(task, one) for task, one in self._ahead if one.offset > offset]
        return [one for _, one in self._ahead]

    def fresh(self, batch: Batch, rows: list[int]) -> list[int]:
        """Return those of its own rows that were not processed before a merge of tasks."""
        if not self._ahead:
            return rows
        keys, offsets = batch.keys, batch.offsets or ()
        return [row for row in rows if self._has(None if keys is None else keys[row], offsets[row])]

    def sift(self, taken: Taken) -> Taken:
        """Return what was taken without the rows of others; those that are malformed are told by one task."""
        batch, raw = taken.batch, taken.raw
        kept = self._kept(batch)
        malformed = self.told(taken.malformed)
        if len(kept) == len(batch) and len(malformed) == len(taken.malformed):
            return taken
        return replace(taken, batch=batch.take(kept), raw=raw.take(kept), malformed=malformed)

    def told(self, malformed: Iterable[Malformed]) -> list[Malformed]:
        """Return the malformed rows that are for this task to tell: it goes by their offsets."""
        return [one for one in malformed if self._takes(one.offset, one.offset)]

    def own(self, raw: Batch) -> Batch:
        """Return the rows of its own, by their keys as they are stored."""
        kept = self._kept(raw)
        return raw if len(kept) == len(raw) else raw.take(kept)

    def _kept(self, batch: Batch) -> list[int]:
        return self.fresh(batch, self.share_out(batch)[self.bucket])

    def share_out(self, batch: Batch) -> list[list[int]]:
        """Return which of the rows of a batch each sibling has, by its bucket."""
        assert batch.offsets is not None, "what is stored has offsets"
        most, by_key, began_ms = self._share.task.factor - 1, self._share.by_key, monotonic_ms()
        found: list[list[int]] = [[] for _ in range(most + 1)]
        # Most rows have a key that came before: a look-up without a call for each takes half the time.
        hashes = [None] * len(batch) if batch.keys is None else map(self._hash, batch.keys)
        for row, hashed in enumerate(hashes):
            if hashed is None:
                hashed = 0 if by_key else batch.offsets[row]
            found[hashed & most].append(row)
        self.hash_ms += monotonic_ms() - began_ms
        return found

    def _has(self, key: Key | None, offset: int) -> bool:
        return self._takes(self._hash_of(key, offset), offset)

    def _hash_of(self, key: Key | None, offset: int) -> int:
        if key is not None:
            return self._hash(key)
        # A row without a key: shared out by offsets, but where state would lie under no key.
        return 0 if self._share.by_key else offset

    def _takes(self, found: int, offset: int) -> bool:
        """Whether a row of this hash is its own, and was not processed before."""
        task = self._share.task
        return found & (task.factor - 1) == task.bucket and not any(
            offset < one.offset and found & (other.factor - 1) == other.bucket for other, one in self._ahead
        )


def _no_key(key: Key) -> bytes:
    raise AssertionError(f"a row of a stream without keys has the key {key!r}")
