"""The newest rows of a partition that several virtual tasks of one container read, decoded once for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from operators.core.base import Batch
from runtime.ports.streams import Read

if TYPE_CHECKING:
    from operators.io import Input
    from runtime.reading.sieve import KeyShare
    from runtime.reading.taken import Taken

KEPT = 4
"""So many reads are kept: siblings that go on at about one pace find there what the first of them has read."""


@dataclass
class Shared:
    """Rows that were read from an offset on, what became of them, and which of them has each sibling."""

    first: int
    read: Read
    taken: Taken | None = None
    rows: list[list[int]] | None = None


class SharedReads:
    """Reads and decodes rows for the virtual tasks of one partition, of which each takes its own.

    Any thread may ask. The first that asks for rows decodes them, and the others wait for that; a sibling that lags far
    behind reads by itself. What is shared is never changed: whoever takes rows of it has copies of the columns.
    """

    def __init__(self) -> None:
        self._kept: deque[Shared] = deque(maxlen=KEPT)
        self._lock = Lock()

    def read(self, offset: int, read: Callable[[int], Read | None]) -> Read | None:
        """Return the rows among which an offset lies, where a sibling has read them, or else those that `read` finds.

        There may be rows before the offset.
        """
        with self._lock:
            for one in self._kept:
                if one.first <= offset < one.read.next_offset:
                    return one.read
            found = read(offset)
            if found is not None:
                self._kept.append(Shared(offset, found))
            return found

    def decoded(
        self, read: Read, decode: Callable[[Read], Taken], share_out: Callable[[Batch], list[list[int]]]
    ) -> tuple[Taken, list[list[int]]]:
        """Return all rows of a read with their columns, and which of them has each sibling, by its bucket."""
        with self._lock:
            one = next((one for one in self._kept if one.read is read), None) or Shared(0, read)
            if one.taken is None or one.rows is None:
                one.taken = decode(read)
                one.rows = share_out(one.taken.batch)
            return one.taken, one.rows


class SharedPartitions:
    """All that the virtual tasks of a container read together, by input, partition and the number of siblings."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, str, int, int], SharedReads] = {}

    def of(self, spec: Input, stream: str, partition: int, share: KeyShare) -> SharedReads | None:
        """Return what a task reads together with its siblings; None where it has none, or must read by itself."""
        # Which records are too far ahead depends on when each of the tasks looks at the clock.
        if not share.is_part or spec.max_ahead_ms is not None:
            return None
        return self._reads.setdefault((spec.op_id or "", stream, partition, share.task.factor), SharedReads())
