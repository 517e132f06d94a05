"""The operator that awaits: an async function from one message to any number, many of them in flight at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from operators.base import Spec

Order = Literal["partition", "key", "none"]


@dataclass(frozen=True, eq=False, kw_only=True)
class AsyncFlatMap(Spec):
    """Replace each message by those that an async function returns for it.

    With order "partition" results go on in input order. With "key" (the default) one key's messages start, finish and
    go on in order while other keys overtake; messages without a key are not ordered among each other. With "none"
    results go on as they come. Calls always start in offset order. After Samza's async high-level API, with the
    ordering that its event loop leaves to the user.
    """

    function: Callable[[Any], Awaitable[Iterable[Any]]]
    max_in_flight: int
    timeout_ms: int
    order: Order = "key"

    kind: ClassVar[str] = "async_flat_map"
    asynchronous: ClassVar[bool] = True

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The async function."""
        return {"async_flat_map": self.function}

    def describe(self) -> str:
        """How many, how ordered, how long."""
        return f"≤ {self.max_in_flight} in flight, order by {self.order}, {self.timeout_ms:,} ms"
