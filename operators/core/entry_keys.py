"""The places of entries in an operator's store: the kinds of them, and bytes that sort as the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

SHIFT = 2**63
"""Added to numbers, so that negative ones come first."""
NUMBER_BYTES = 8
LENGTH_BYTES = 4
"""The bytes of a length that stands ahead of a part."""
KEY = "key"
"""The name of the part that is the key of an operator."""


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


class Part(Protocol):
    """A part of the place of an entry: it is cut out of one, and written into one."""

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note by name what begins in a place at `start`, and return where it ends; raises ValueError at none such."""

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return the bytes of what was noted; raises KeyError or TypeError where it is not there."""


class Number:
    """A number, such as a time in ms, whose bytes are in its order."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the number."""
        end = start + NUMBER_BYTES
        if len(place) < end:
            raise ValueError(f"an entry at {place!r} ends before its {self.name}")
        found[self.name] = number_at(place, start)
        return end

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return its bytes."""
        number = found[self.name]
        if type(number) is not int or not -SHIFT <= number < SHIFT:
            raise TypeError(f"{self.name} is a number of 64 bits, and not {number!r}")
        return ordered(number)


class Rest:
    """The bytes up to the end of a place, mostly those of the key."""

    def __init__(self, name: str = KEY) -> None:
        self.name = name

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the bytes."""
        found[self.name] = place[start:]
        return len(place)

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return the bytes."""
        return _bytes_in(found, self.name)


class LengthAhead:
    """Bytes behind their length, so that those of no other begin with them."""

    def __init__(self, name: str = KEY) -> None:
        self.name = name

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the bytes."""
        begins = start + LENGTH_BYTES
        end = begins + int.from_bytes(place[start:begins], "big")
        if len(place) < max(begins, end):
            raise ValueError(f"an entry at {place!r} ends before its {self.name} does")
        found[self.name] = place[begins:end]
        return end

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return the length and the bytes."""
        data = _bytes_in(found, self.name)
        return len(data).to_bytes(LENGTH_BYTES, "big") + data


class EntryKind:
    """The kind of some entries of a store: a word for what they are, and the parts of their places.

    Their values are `of_users`, or of the operator's own making, as those of timers; `in_tuple` they lie in one of one.

    >>> timers = EntryKind("timer", Number("at_ms"), Rest())
    >>> parts = timers.parts_of(b"t" + ordered(-7) + b"AA", 1)
    >>> parts, b"t" + timers.bytes_of(parts) == b"t" + ordered(-7) + b"AA"
    ({'at_ms': -7, 'key': b'AA'}, True)
    """

    def __init__(self, word: str, *parts: Part, of_users: bool = True, in_tuple: bool = False) -> None:
        self.word = word
        self.parts = parts
        self.of_users = of_users
        self.in_tuple = in_tuple

    def parts_of(self, place: bytes, start: int) -> dict[str, object]:
        """Return by name what lies in a place from `start` on; raises ValueError where these parts do not."""
        found: dict[str, object] = {}
        for part in self.parts:
            start = part.cut(place, start, found)
        if start != len(place):
            raise ValueError(f"an entry at {place!r} goes on behind its end")
        return found

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return the place of such parts, without the first byte; raises KeyError or TypeError where one is missing."""
        return b"".join(part.bytes_of(found) for part in self.parts)

    def key_in(self, place: bytes, start: int) -> bytes | None:
        """Return the key in a place; None for an entry of no one key."""
        if (ahead := self.ahead) is not None:
            assert len(place) >= start + ahead, f"an entry at {place!r} ends before its key"
            return place[start + ahead :]
        if (begins := self.length_ahead) is not None:
            ends = (begins := begins + start) + int.from_bytes(place[begins - LENGTH_BYTES : begins], "big")
            assert len(place) >= ends, f"an entry at {place!r} ends before its key does"
            return place[begins:ends]
        key = self.parts_of(place, start).get(KEY)
        assert key is None or isinstance(key, bytes), "a key is bytes in a place"
        return key

    def key_between(self, place: bytes, end: bytes | None, start: int) -> bytes | None:
        """Return the key of all entries from a place on and below `end`; None where these may be of several.

        >>> values = EntryKind("value", LengthAhead(), Rest("name"))
        >>> place = b"v" + values.bytes_of({KEY: b"AA", "name": b"n"})
        >>> values.key_between(place, beyond(place), 1), values.key_between(b"v", b"w", 1)
        (b'AA', None)
        """
        if end is None or (begins := self.length_ahead) is None or len(place) < (begins := begins + start):
            return None
        ends = begins + int.from_bytes(place[begins - LENGTH_BYTES : begins], "big")
        return place[begins:ends] if len(place) >= ends and end <= beyond(place[:ends]) else None

    @cached_property
    def ahead(self) -> int | None:
        """The bytes ahead of the key, where they are as many in each place."""
        # Where tasks are split each look asks for the key: so that it is one slice, mostly.
        *ahead, last = self.parts or (None,)
        is_fixed = all(isinstance(part, Number) for part in ahead) and isinstance(last, Rest) and last.name == KEY
        return NUMBER_BYTES * len(ahead) if is_fixed else None

    @cached_property
    def length_ahead(self) -> int | None:
        """The place at which the key begins, if it comes first, behind its length."""
        first = self.parts[0] if self.parts else None
        return LENGTH_BYTES if type(first) is LengthAhead and first.name == KEY else None


EntryKinds = Mapping[bytes, EntryKind]
"""The kinds of entries of a store by the first byte of their places; by b"" that of all, where places have none."""
OF_KEYS: EntryKinds = MappingProxyType({b"": EntryKind("row", Rest())})
"""The kind of entries whose places are keys, and nothing else."""


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of an operator's state: its kind, its key and its value, and the other parts of its place by name.

    A `kind` is "state", "window", "list", "left row" and the like, as `samza-dsl state show` prints it. `key` is None
    where an entry is of no one key; `parts` has a window's times, a list's name and so on. Times are in ms.

    >>> StateEntry(kind="state", key="AA", value=1, task=0).of(2)
    StateEntry(kind='state', key='AA', value=2, task=0, parts={})
    """

    kind: str
    key: Any
    value: Any
    task: int
    parts: dict[str, Any] = {}

    def of(self, value: object) -> StateEntry:
        """Return this entry with another value."""
        return msgspec.structs.replace(self, value=value)


def kind_at(kinds: EntryKinds, place: bytes) -> tuple[int, EntryKind]:
    """Return the kind of the entry at a place, behind the bytes that tell it; raises ValueError for one of no kind.

    >>> kind_at(OF_KEYS, b"AA")[0], kind_at({b"s": EntryKind("state", Rest())}, b"sAA")[1].word
    (0, 'state')
    """
    found = kinds.get(place[:1])
    if found is not None:
        return 1, found
    if b"" not in kinds:
        raise ValueError(f"an entry at {place!r}, of which nobody knows where its key lies")
    return 0, kinds[b""]


def _bytes_in(found: Mapping[str, object], name: str) -> bytes:
    data = found[name]
    if not isinstance(data, bytes):
        raise TypeError(f"{name} is bytes in a place, and not {data!r}")
    return data
