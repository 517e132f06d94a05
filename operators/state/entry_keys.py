"""The keys of entries in an operator's store: bytes that sort as the numbers in them, and the ends of ranges."""

from __future__ import annotations

SHIFT = 2**63
"""Added to numbers, so that negative ones come first."""
NUMBER_BYTES = 8


def ordered(number: int) -> bytes:
    """Return 8 bytes that sort as the numbers do.

    >>> ordered(-1) < ordered(0) < ordered(256)
    True
    """
    return (number + SHIFT).to_bytes(NUMBER_BYTES, "big")


def number_at(place: bytes, start: int) -> int:
    """Return the number whose bytes begin in a place at `start`.

    >>> number_at(b"t" + ordered(-7) + b"key", 1)
    -7
    """
    return int.from_bytes(place[start : start + NUMBER_BYTES], "big") - SHIFT


def beyond(prefix: bytes) -> bytes:
    """Return the end of the range of all places that begin with a prefix.

    >>> beyond(b"ab"), beyond(b"a" + bytes([255]))
    (b'ac', b'b')
    """
    # A byte of 255 can't be raised, so the end is that of the part before.
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])
