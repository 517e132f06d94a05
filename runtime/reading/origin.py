"""The partition of a stream that a reader reads, in the environment or in a bound source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.ports.live_streams import OpenTransaction
from runtime.ports.streams import Offsets, Read
from runtime.reading.fingerprint import Fingerprint


@dataclass(frozen=True)
class Origin:
    """A partition of a stream to read, in the environment or in a bound source."""

    system: str
    stream: str
    partition: int
    read: Callable[[int], Read | None]
    """Returns the rows from an offset on; waits for them where that takes time."""
    offsets: Callable[[], Offsets]
    known: Callable[[], Offsets]
    """Returns the offsets of the last look, which takes no time: `Assembly.look` looks before a reader is made.

    Its end is MAX_TIMESTAMP where that is not known.
    """
    version: Callable[[], int]
    fetched: Callable[[int], Read | None] | None = None
    """Returns the rows that were fetched already, where it may take time until those `known` to be there come."""
    unheard_ms: Callable[[int], float] = lambda offset: 0.0
    """Returns for how many ms nobody has said whether something lies at or beyond an offset; 0 if each read looks."""
    stream_id: Callable[[], int] = lambda: 0
    """Returns the number that tells the stream from others that have had its name, 0 where that is not known."""
    fingerprint: Fingerprint | None = None
    """Tells what the partition holds, where another file or list may be in its place next time."""
    expected: Callable[[], int] | None = None
    """Returns about where its end is, where that is not known."""
    number: int = 0
    """The number of the reader, where several tasks share the partition and read it each at its own pace."""
    held: Callable[[], OpenTransaction | None] = lambda: None
    """Returns what an open transaction keeps from being read, where there are transactions."""
