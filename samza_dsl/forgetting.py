"""An async function that a stream calls for its effects alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Forgetting:
    """An async sink as an async function whose result is of no interest."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    async def __call__(self, value: Any) -> Iterable[Any]:
        """Await it, and hand the value itself on."""
        await self.function(value)
        return (value,)

    def open(self, context: Any) -> Any:
        """Open the object, where it is one that is opened."""
        return self.function.open(context) if hasattr(self.function, "open") else None

    def close(self) -> Any:
        """Close the object, where it is one that is closed."""
        return self.function.close() if hasattr(self.function, "close") else None
