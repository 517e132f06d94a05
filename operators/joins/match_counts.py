"""The counts of a join: messages that have met something and that have not, and the types of its sides' keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time
from operator import countOf, itemgetter
from typing import Any, Protocol, runtime_checkable

from operators.core.base import Batch
from operators.core.protocols import CheckedProtocol

MET, MISSED = "met", "met nothing"
"""The names of these counts among an operator's counters."""
MOST_KINDS = 100
"""The types of keys that are told apart on a side: tuples of any length have one for each."""
OTHERS = "of other types"
LOOKED_AT, SAMPLED = 100_000, 64
"""The keys of a side that are all looked at where types are not told apart in C, and then the ones of each batch."""
_PLAIN: frozenset[type] = frozenset({int, str})
_side = itemgetter(0)

Kinds = dict[str, int]
"""The numbers of keys by their types; 0 where keys of a type are known to be there, and were not counted."""


def kind_of(key: object, told: Callable[[type], str] = lambda kind: kind.__name__) -> str:
    """Return the type of a key as it is `told`, and of its parts.

    >>> kind_of(7), kind_of(("AA", 7)), kind_of(["AA"]), kind_of(datetime(2025, 6, 15))
    ('int', '(str, int)', '[str]', 'datetime without a zone')
    """
    if type(key) is tuple or type(key) is list:
        parts = ", ".join(kind_of(part, told) for part in key)
        return f"({parts})" if type(key) is tuple else f"[{parts}]"
    return told(type(key)) + _form_of(key)


def _form_of(key: object) -> str:
    """Return what tells times apart that are never equal: with a zone and without one."""
    return f" {'without' if key.tzinfo is None else 'with'} a zone" if isinstance(key, datetime | time) else ""


_ZONES = re.compile(" with(out)? a zone")


def without_zones(kind: str) -> str:
    """Return a kind of keys whether times in them have a zone or none.

    >>> without_zones("(datetime without a zone, int)")
    '(datetime, int)'
    """
    return _ZONES.sub("", kind)


class Meetings:
    """The counts of one task's share of a join since it began, and of the keys of each side by their types.

    Those of tuples and records are counted by samples in the end. Where `met` is None, all that did not miss has met.
    They count attempts: a record that is tried again counts again. One thread at a time adds to it.

    >>> meetings = Meetings(met=0)
    >>> meetings.count(1, 3, ["a"])
    >>> meetings.note(0, ["a", 7, 8, 9])
    >>> meetings.counters(received=4), meetings.kinds(["left", "right"])
    ({'met': 1, 'met nothing': 3}, {'left': {'str': 1, 'int': 3}, 'right': {'str': 0}})
    """

    def __init__(
        self, met: int | None = None, kind: Callable[[Any], str] = kind_of, notes_batches: bool = True
    ) -> None:
        self.met = met
        self.notes_batches = notes_batches
        """Whether the keys of messages are those by which they meet."""
        self.missed = 0
        self.of_table: Callable[[], Mapping[str, int]] | None = None
        """Returns the keys of the table that is looked into, by their types."""
        self._kind = kind
        self._noted: dict[int, Kinds] = {}
        self._met_kinds: set[str] = set()

    def count(self, met: int, missed: int, keys: Sequence[object] = ()) -> None:
        """Add to both counts; `keys` are of what has met something, as far as they are known."""
        self.met = (self.met or 0) + met
        self.missed += missed
        for kind in set(map(type, keys)):
            if kind in _PLAIN:
                self._note_met(kind.__name__)
            else:
                mine = [key for key in keys if type(key) is kind]
                for key in mine[:: _step(mine, self.met)]:
                    self._note_met(self._kind(key) or OTHERS)

    def note_batch(self, batch: Batch) -> None:
        """Count the keys of a batch of both sides, by their types."""
        keys = batch.keys
        if not keys:
            return
        first = batch.values[0][0]
        if countOf(map(_side, batch.values), first) == len(keys):
            self.note(first, keys)
            return
        sides: dict[int, list[object]] = {}
        for key, (side, _) in zip(keys, batch.values, strict=True):
            sides.setdefault(side, []).append(key)
        for side, some in sides.items():
            self.note(side, some)

    def note(self, side: int, keys: Sequence[object]) -> None:
        """Count keys of one side by their types; None is no key."""
        note_kinds(self._noted.setdefault(side, {}), keys, self._kind)

    def looked_up(self, key: object, row: object) -> object:
        """Count a key that has no row, note the type of one that has, and return the row."""
        kind = type(key).__name__ if type(key) in _PLAIN else self._kind(key) or OTHERS
        if row is None:
            self.missed += 1
            note_kind(self._noted.setdefault(0, {}), kind)
        else:
            self._note_met(kind)
        return row

    def _note_met(self, kind: str) -> None:
        if kind not in self._met_kinds:
            self._met_kinds.add(kind if len(self._met_kinds) < MOST_KINDS else OTHERS)

    def counters(self, received: int) -> dict[str, int]:
        """Return both counts, given how many messages have come."""
        met = max(received - self.missed, 0) if self.met is None else self.met
        return {MET: met, MISSED: self.missed} if met or self.missed else {}

    def kinds(self, sides: list[str]) -> dict[str, Kinds]:
        """Return the keys of each side by their types: what has met something is there on all, counted or not."""
        found: dict[str, Kinds] = {}
        for place, side in enumerate(sides):
            noted = self.of_table() if self.of_table is not None and place == 1 else self._noted.get(place, {})
            # Copied in C at once: a task's thread may add to it meanwhile.
            found[side] = {**noted, **{kind: noted.get(kind, 0) for kind in tuple(self._met_kinds)}}
        return found


def note_kinds(noted: Kinds, keys: Sequence[object], kind_of_key: Callable[[Any], str]) -> None:
    """Add keys to what is noted of their types."""
    if not keys:
        return
    # Nearly every batch has keys of one type, counted in C.
    first = type(keys[0])
    if first in _PLAIN and countOf(map(type, keys), first) == len(keys):
        noted[first.__name__] = noted.get(first.__name__, 0) + len(keys)
        return
    by_type: dict[type, list[object]] = {}
    for key in keys:
        by_type.setdefault(type(key), []).append(key)
    by_type.pop(type(None), None)
    for kind, mine in by_type.items():
        if kind in _PLAIN:
            note_kind(noted, kind.__name__, len(mine))
            continue
        step = _step(mine, sum(noted.values()))
        for place in range(0, len(mine), step):
            note_kind(noted, kind_of_key(mine[place]) or OTHERS, min(step, len(mine) - place))


def _step(keys: Sequence[object], before: int) -> int:
    """Return how many keys one stands for that is looked at: to look at each for ever would cost as much as a join."""
    return max(len(keys) // SAMPLED, 1) if before >= LOOKED_AT else 1


def note_kind(noted: Kinds, kind: str, number: int = 1) -> None:
    """Add keys of a type."""
    if kind not in noted and len(noted) >= MOST_KINDS:
        kind = OTHERS
    noted[kind] = noted.get(kind, 0) + number


def apart(sides: Mapping[str, Mapping[str, int]]) -> Iterable[tuple[str, str, int, list[str]]]:
    """Yield each type of keys that some side has had and others have not: side, type, number, those others.

    A side of which nothing has come says nothing of what it will have.

    >>> [*apart({"left": {"int": 98, "str": 2}, "right": {"int": 9}, "quiet": {}})]
    [('left', 'str', 2, ['right'])]
    """
    for side, kinds in sides.items():
        for kind, number in kinds.items():
            # Of a side with types beyond those that are told apart nobody can say what it never had.
            without = [other for other, theirs in sides.items() if theirs and not {kind, OTHERS} & theirs.keys()]
            if number and without and kind != OTHERS:
                yield side, kind, number, without


@runtime_checkable
class MatchCounting(Protocol, metaclass=CheckedProtocol):
    """An operator that counts what it has met."""

    meetings: Meetings
