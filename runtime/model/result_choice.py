"""The choice between a live result and a recomputed one of the same key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Merge = Callable[[Any, Any, Any], Any]
"""Returns the result that holds, given a key, the newest live result and the recomputed one; None is the live one."""


def prefer_live(key: Any, live: Any, recomputed: Any) -> Any:
    """Return the live result: it is of newer records than history is.

    >>> prefer_live("AA", 12, 11)
    12
    """
    return live
