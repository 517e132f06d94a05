"""Names a user's function in a drawing: by its name, or by the body of a lambda as it was written."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

LONGEST = 60


def label_of(function: Callable[..., object]) -> str:
    """Return a function's name; for a lambda on one line, what stands after its colon, cut where it is long.

    >>> label_of(len)
    'len'
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return str(name)
    body = _body_of(function) or "λ"
    return body if len(body) <= LONGEST else body[: LONGEST - 1] + "…"


def _body_of(function: Callable[..., object]) -> str:
    """Return the source of a lambda's body; "" where its code does not lie on one line.

    It is the text between the first and the last place that the byte code names.
    """
    code: Any = getattr(function, "__code__", None)
    places = [place for place in code.co_positions() if None not in place and place[2] != place[3]] if code else []
    if not places or any(place[0] != place[1] or place[0] != places[0][0] for place in places):
        return ""
    # Places in byte code count UTF-8 bytes, not characters.
    line = linecache.getline(code.co_filename, places[0][0]).encode()
    return line[min(place[2] for place in places) : max(place[3] for place in places)].decode(errors="replace")
