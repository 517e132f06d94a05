"""The ways to deal with state when an application is run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, init=False)
class Forget:
    """Operators whose state a run drops at its start, where it does not fit the application any more.

    All other state stays, and the inputs are read on from where they were. What fits is not dropped, so such a run may
    be started again.

    >>> Forget("count-orders")
    Forget(operators=('count-orders',))
    """

    operators: tuple[str, ...]

    # Written as Forget("a", "b"), which the __init__ of a dataclass does not take.
    def __init__(self, *operators: str) -> None:
        object.__setattr__(self, "operators", operators)


State = Literal["reset", "keep"] | Forget | None
"""The choice of what becomes of state when an application is run again; None where nothing was said."""
