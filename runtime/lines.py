"""Lines that are made many at once, to be written as they are."""

from __future__ import annotations

from typing import NamedTuple


class MadeLines(NamedTuple):
    """Records that were encoded together, each with its line break."""

    data: bytes
    number: int
