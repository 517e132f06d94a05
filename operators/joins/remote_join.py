"""The remote join of a stream with a table of a service, which is asked for many keys at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.async_flat_map import AsyncFlatMap, Order

SLACK_MS = 100
"""The ms that it may take until a message learns that an answer came, or took too long."""


@dataclass(frozen=True)
class RemoteRows:
    """The terms of asking for a remote table's rows: keys per call, calls per second, and the time rows are kept."""

    fetch_many: Callable[[list[Any]], Awaitable[Mapping[Any, Any]]]
    batch_size: int
    batch_wait_ms: int
    timeout_ms: int
    cache_size: int
    ttl_ms: int
    absent_ttl_ms: int
    fetches_per_second: float | None
    max_in_flight: int
    order: Order


@dataclass(frozen=True, eq=False, kw_only=True)
class RemoteJoin(AsyncFlatMap):
    """Join each message with the row that a service has for `on(value)`.

    An inner join drops a message without a row; a left join hands `None` to the user's function.
    """

    on: Callable[..., object]
    with_: Callable[..., object]
    rows: RemoteRows
    left: bool = False

    kind: ClassVar[str] = "remote_join"
    declares: ClassVar[str] = ""
    wall_clock: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., object]]:
        """The user's functions."""
        return {"fetch_many": self.rows.fetch_many, "on": self.on, "join": self.with_}

    def describe(self) -> str:
        """Return the kind of the join, the keys of a call and the messages in flight."""
        how = "left" if self.left else "inner"
        return f"{how} join, ≤ {self.rows.batch_size} keys a call, ≤ {self.max_in_flight} in flight"

    def call_timeout_ms(self, tasks: int) -> int:
        """Return the ms that a message may wait: for others of its batch, a turn of its task, and the answer."""
        return self.timeout_ms + self.rows.batch_wait_ms + self._turn_ms(tasks) + SLACK_MS

    def _turn_ms(self, tasks: int) -> int:
        """Return the ms that the last batch of one task's messages may wait for its turn."""
        if self.rows.fetches_per_second is None:
            return 0
        batches = -(-self.max_in_flight // self.rows.batch_size) + 1
        return round(batches * tasks * 1_000 / self.rows.fetches_per_second)
