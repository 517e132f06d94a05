"""The keys of entries in an operator's store: bytes that sort as the numbers in them, and the ends of ranges."""

from __future__ import annotations

from collections.abc import Mapping

SHIFT = 2**63
"""Added to numbers, so that negative ones come first."""
NUMBER_BYTES = 8
TIMED = 1 + NUMBER_BYTES
"""The bytes ahead of the key in a place that has a number between its first byte and its key."""


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


def key_behind(place: bytes, lengths: Mapping[bytes, int | None]) -> bytes | None:
    """Return the key of a place: by its first byte it begins behind so many bytes, or there is none.

    >>> lengths = {b"s": 1, b"t": TIMED, b"f": None}
    >>> key_behind(b"sAA", lengths), key_behind(b"t" + ordered(-7) + b"AA", lengths), key_behind(b"f", lengths)
    (b'AA', b'AA', None)
    """
    assert place[:1] in lengths, f"an entry at {place!r}, of which nobody knows where its key lies"
    length = lengths[place[:1]]
    assert length is None or len(place) >= length, f"an entry at {place!r} ends before its key"
    return None if length is None else place[length:]
