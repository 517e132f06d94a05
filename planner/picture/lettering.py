"""Measures text for a picture, and cuts or breaks it so that it stays in its box."""

from __future__ import annotations

import unicodedata

from planner.model.flow import plain

ELLIPSIS = "…"
_NARROW = frozenset("iljtfrI.,:;'`|!()[]{}·-/\\ ")
_BROAD = frozenset("mwMW@%—…≤→")


def text_width(text: str, size: float, *, bold: bool = False, mono: bool = False) -> int:
    """Return the width of `text` in pixels, rather too much: the viewer's font is not known, so a broad one counts.

    >>> text_width("il", 10), text_width("MW", 10), text_width("il", 10, mono=True)
    (8, 20, 13)
    """
    ems = sum(_ems(character, mono) for character in text)
    return -(-int(ems * size * (11 if bold else 10)) // 1000)


def fitted(text: str, width: int, size: float, *, bold: bool = False, mono: bool = False) -> str:
    """Return `text` on one line, cut to `width` pixels.

    >>> fitted("left join with planes", 80, 12)
    'left join…'
    """
    return _cut(plain(text), "", width, size, bold, mono)


def fitted_name(name: str, width: int, size: float, *, bold: bool = False, mono: bool = False) -> str:
    """Return a name on one line, cut to `width` pixels in its middle: long names differ at their ends.

    >>> fitted_name("flights-partition_by-carrier", 120, 12)
    'flights-…y-carrier'
    """
    name = plain(name)
    half = -(-len(name) // 2)
    return _cut(name[:half], name[half:], width, size, bold, mono)


def _cut(head: str, tail: str, width: int, size: float, bold: bool, mono: bool) -> str:
    if text_width(head + tail, size, bold=bold, mono=mono) <= width:
        return head + tail
    while (head or tail) and text_width(head + ELLIPSIS + tail, size, bold=bold, mono=mono) > width:
        # From the longer half, so that the cut comes to lie in the middle.
        head, tail = (head[:-1], tail) if len(head) >= len(tail) else (head, tail[1:])
    return head.rstrip() + ELLIPSIS + tail.lstrip()


def broken(text: str, width: int, size: float, *, bold: bool = False) -> list[str]:
    """Return `text` on one or two lines of at most `width` pixels, broken between words, the rest cut off.

    >>> broken("left join with planes", 80, 12)
    ['left join', 'with planes']
    """
    text = plain(text)
    if text_width(text, size, bold=bold) <= width:
        return [text]
    words = text.split(" ")
    taken = 0
    while text_width(" ".join(words[: taken + 1]), size, bold=bold) <= width:
        taken += 1
    if not taken:
        return [fitted(text, width, size, bold=bold)]
    return [" ".join(words[:taken]), fitted(" ".join(words[taken:]), width, size, bold=bold)]


def _ems(character: str, mono: bool) -> int:
    """Return a character's width in hundredths of the size of the font."""
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    # From here on mostly CJK and emoji, which are about as wide as high.
    if ord(character) > 0x2E7F:
        return 140
    if mono:
        return 62
    if character in _NARROW:
        return 40
    return 100 if character in _BROAD else 74 if character.isupper() else 63
