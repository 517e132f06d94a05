"""Tuples of tuples of scalars, such as what windows keep, as bytes: their structure once, and all the rest in C."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

NESTED = b"\x0d"
"""The first byte of such a tuple, before the length of its structure, the structure, and its MessagePack."""
SCALARS = frozenset({type(None), bool, int, float, str, bytes})
PARTS = SCALARS | {tuple}
MOST_PARTS = 100
"""The parts of a tuple beyond which its structure is not worth to be known; what is longer goes part by part."""
MOST_KNOWN = 1_000
STRUCTURE = re.compile(rb"\([.()]*\)")

_flat: dict[tuple[type, ...], bytes] = {}
"""By the types of its parts, the bytes that a tuple of scalars alone begins with."""
_known: dict[tuple[type, ...], list[tuple[Callable[[object], bool], bytes]]] = {}
"""By the types of its parts, what tells whether a tuple has a structure, and the bytes that it begins with then."""


def start_of(value: tuple[object, ...]) -> bytes | None:
    """Return the bytes before the MessagePack of a tuple; None if it is not one of scalars and such tuples alone.

    >>> (start_of((1, ("a", None))) or b"")[2:], start_of((1, ["a"]))
    (b'(.(..))', None)
    """
    kinds = tuple(map(type, value))
    if (known := _flat.get(kinds)) is not None:
        return known
    if not PARTS.issuperset(kinds):
        return None
    for fits, start in _known.get(kinds, ()):
        if fits(value):
            return start
    structure = _structure_of(value)
    if structure is None or len(structure) > MOST_PARTS:
        return None
    start = NESTED + bytes([len(structure)]) + structure.encode()
    if tuple not in kinds:
        if len(_flat) >= MOST_KNOWN:
            _flat.clear()  # programs have few structures: these were of data
        _flat[kinds] = start
        return start
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known.setdefault(kinds, []).append((_told_by(structure), start))
    return start


def start_of_all(values: Sequence[tuple[object, ...]]) -> bytes | None:
    """Return the bytes that all of these tuples begin with; None if they are not scalars alone, or differ in length.

    >>> (start_of_all([(1, "a"), (None, 2.5)]) or b"")[2:], start_of_all([(1, 2), (1,)]), start_of_all([(1, (2, 3))])
    (b'(..)', None, None)
    """
    # The types of scalars are no part of a structure, so that all parts are looked at in C, whichever tuple has them.
    if len(set(map(len, values))) != 1 or not SCALARS.issuperset(map(type, chain.from_iterable(values))):
        return None
    return start_of(values[0])


def decoder_of(structure: bytes) -> Callable[[bytes], object]:
    """Return what decodes the MessagePack of tuples of a structure; raises ValueError for what is none."""
    return _decoder_of(bytes(structure))


def structure_in(body: bytes) -> tuple[bytes, int]:
    """Return the structure that bytes behind the first one begin with, and where what it is of begins."""
    end = 1 + body[0]
    return body[1:end], end


def _structure_of(value: tuple[Any, ...]) -> str | None:
    """Return the structure of a tuple: a dot for a scalar, and parentheses around the parts of a tuple."""
    if len(value) > MOST_PARTS:
        return None
    parts: list[str] = []
    # A loop that ends with the first part that is neither: state with values in it is mostly no such tuple.
    for part in value:
        kind = type(part)
        if kind in SCALARS:
            parts.append(".")
            continue
        structure = _structure_of(part) if kind is tuple else None
        if structure is None:
            return None
        parts.append(structure)
    return f"({''.join(parts)})"


def _told_by(structure: str) -> Callable[[object], bool]:
    """Return a function that tells whether a value has just this structure."""
    lines: list[tuple[str, list[str]]] = []
    scalars: list[str] = []
    tuples: list[str] = []
    stack: list[tuple[str, list[str]]] = []
    number = 0
    for sign in structure:
        if sign == ")":
            variable, parts = stack.pop()
            lines.append((variable, parts))
            continue
        name, number = f"v{number}", number + 1
        if stack:
            stack[-1][1].append(name)
        if sign == "(":
            tuples.append(name)
            stack.append((name, []))
        else:
            scalars.append(name)
    # Outer tuples are taken apart first.
    lines.sort(key=lambda line: int(line[0][1:]))
    taken = [f"        ({', '.join(parts)}{',' * (len(parts) == 1)}) = {variable}" for variable, parts in lines]
    are_tuples = " and ".join(f"type({name}) is tuple" for name in tuples)
    kinds = f"({''.join(f'type({name}), ' for name in scalars)})"
    source = [
        "def fits(v0):",
        "    try:",
        *taken,
        "    except (TypeError, ValueError):",
        "        return False",
        f"    return {are_tuples} and are_scalars({kinds})",
    ]
    namespace: dict[str, Any] = {"are_scalars": SCALARS.issuperset}
    # The text is made of the parentheses and dots above alone.
    exec("\n".join(source), namespace)
    fits: Callable[[object], bool] = namespace["fits"]
    return fits


@lru_cache(maxsize=MOST_KNOWN)
def _decoder_of(structure: bytes) -> Callable[[bytes], object]:
    if STRUCTURE.fullmatch(structure) is None:
        raise ValueError(f"{structure[:20]!r} is no structure of a tuple")
    stack: list[list[Any]] = [[]]
    for sign in structure.decode():
        if sign == "(":
            stack.append([])
        elif sign == ")":
            parts = stack.pop()
            if not stack:
                raise ValueError(f"{structure[:20]!r} is no structure of a tuple")
            stack[-1].append(tuple.__class_getitem__(tuple(parts)))
        else:
            stack[-1].append(Any)
    ((kind,),) = stack
    return msgspec.msgpack.Decoder(kind).decode
