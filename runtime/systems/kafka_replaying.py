"""Says in the log how far a replay of a changelog is, where it takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable

from runtime.clock import monotonic_ms

_log = logging.getLogger("samza_dsl")
EVERY_MS = 2_000
"""How long a replay goes on until it says something, and from then on until it does again."""


class Replaying:
    """How much of a changelog is replayed by now, of `records` at most: some are of other tasks, or say who committed.

    >>> at = iter([0, 1_900, 2_000, 2_100])
    >>> replaying = Replaying("counting-words", 1_000, lambda: next(at), print)
    >>> for records in (400, 50, 50):
    ...     replaying.came(records)
    brings back state from counting-words: 450 of 1,000 records
    """

    def __init__(
        self,
        changelog: str,
        records: int,
        now_ms: Callable[[], float] = monotonic_ms,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._changelog, self._records = changelog, records
        self._now_ms, self._tell = now_ms, tell
        self._came = 0
        self._told_ms = now_ms()

    def came(self, records: int) -> None:
        """Take note of more records."""
        self._came += records
        if (now_ms := self._now_ms()) - self._told_ms >= EVERY_MS:
            self._told_ms = now_ms
            self._tell(f"brings back state from {self._changelog}: {self._came:,} of {self._records:,} records")
