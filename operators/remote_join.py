"""Joining a stream with a table that a remote service has: many keys asked for at once, and answers remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from operators.async_flat_map import AsyncFlatMap, Order
from operators.base import Spec

SLACK_MS = 100
"""What it may take until a message learns that an answer came, or took too long."""


@dataclass(frozen=True)
class RemoteRows:
    """How the rows of a remote table are asked for: so many keys at once, so often, and for how long they are kept."""

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

    on: Callable[[Any], Any]
    with_: Callable[[Any, Any], Any]
    rows: RemoteRows
    left: bool = False

    kind: ClassVar[str] = "remote_join"
    wall_clock: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's functions."""
        return {"fetch_many": self.rows.fetch_many, "on": self.on, "join": self.with_}

    def describe(self) -> str:
        """How many keys at once, of how many messages."""
        how = "left" if self.left else "inner"
        return f"{how} join, ≤ {self.rows.batch_size} keys a call, ≤ {self.max_in_flight} in flight"

    def call_timeout_ms(self, tasks: int) -> int:
        """Return how long a message may wait: for others of its batch, for a turn of its task, and for the answer."""
        return self.timeout_ms + self.rows.batch_wait_ms + self._turn_ms(tasks) + SLACK_MS

    def _turn_ms(self, tasks: int) -> int:
        """How long the last of the batches that one task's messages make may wait for its turn."""
        if self.rows.fetches_per_second is None:
            return 0
        batches = -(-self.max_in_flight // self.rows.batch_size) + 1
        return round(batches * tasks * 1_000 / self.rows.fetches_per_second)


def timeout_of(spec: Spec, tasks: int) -> int:
    """Return after how many ms a call of an async operator is given up, where so many tasks make them."""
    return spec.call_timeout_ms(tasks) if isinstance(spec, RemoteJoin) else spec.timeout_ms  # type: ignore[attr-defined]
