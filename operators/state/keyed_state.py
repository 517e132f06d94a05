"""The state of one key in a user's function: read when it is asked for, and written when the call is done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from sys import getrefcount
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from operators.core.base import Form, Store, shape_of, unplaced
from operators.core.entry_keys import EntryKind, EntryKinds, Rest

K = TypeVar("K")
S = TypeVar("S")
V = TypeVar("V")

STATE = b"s"
"""The first byte of the entries of keys' states."""
KEY_STATES: EntryKinds = MappingProxyType({STATE: EntryKind("state", Rest())})
"""The kind of these entries."""
UNCHANGEABLE = frozenset({int, float, str, bytes, bool, frozenset, type(None)})
UNREAD = object()
DECLARED_SIDES = "join(..., state=(MySerde(), None)), a serde or None for each side"
"""The words by which a join is told how it keeps its two sides."""


class Encoded(msgspec.Struct, frozen=True):
    """A state as the bytes of the serde that the user declared for it."""

    data: bytes


def is_plain(value: Any) -> bool:
    """Whether nobody can change a value in place: a scalar, or a tuple, NamedTuple or frozen Struct of such.

    >>> is_plain((1, ("a", None))), is_plain((1, []))
    (True, False)
    """
    kind: type = type(value)
    if kind in UNCHANGEABLE:
        return True
    if kind is not tuple:
        readers = readers_of(kind)
        return readers is not None and all(is_plain(read(value)) for read in readers)
    parts: tuple[object, ...] = value
    # A loop takes half as long here as a generator: the parts are few, and this is asked of each at each commit.
    if not UNCHANGEABLE.issuperset(map(type, parts)):
        for part in parts:
            if type(part) not in UNCHANGEABLE and not is_plain(part):
                return False
    return True


def are_plain(values: Collection[Any]) -> bool:
    """Whether nobody can change any of the values in place.

    >>> are_plain([1, "a"]), are_plain([(1, "a"), (2, "b")]), are_plain([(1,), [2]])
    (True, True, False)
    """
    kinds = set(map(type, values))
    if kinds <= UNCHANGEABLE:
        return True
    # Mostly they are tuples of scalars, of which the parts of all are looked at in C.
    if kinds == {tuple} and UNCHANGEABLE.issuperset(map(type, chain.from_iterable(values))):
        return True
    return all(map(is_plain, values))


@lru_cache(maxsize=256)
def readers_of(kind: type) -> tuple[Callable[[Any], object], ...] | None:
    """Return what reads each part of a record that nobody can change if its parts are so; None for another class."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(itemgetter(place) for place, _ in enumerate(kind._fields))
    if issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
        return tuple(map(attrgetter, kind.__struct_fields__))
    return None


def typed(form: Form | None, value: object) -> object:
    """Return a value as the declared type has it; itself where none is declared, or where a serde is."""
    return value if form is None or value is None or not form.fits else form.dump(value)


class UnreadForm(ValueError):
    """Stored state that can't be read by what is declared now: of no record's fault, and no policy heeds it."""


def undeclared(stored: V) -> V:
    """Return a stored state for which nothing is declared; raises UnreadForm if a declared serde wrote it."""
    if type(stored) is Encoded:
        raise UnreadForm("its state was written with a serde, state=...; declare the same one again")
    return stored


def dumped(form: Form | None, value: object) -> object:
    """Return the stored form of a value, where one is declared; None is stored as it is."""
    return value if form is None or value is None else form.dump(value)


def loaded(form: Form | None, stored: Any) -> Any:
    """Return the value of a stored form; raises UnreadForm if a serde wrote it that is declared no more."""
    return undeclared(stored) if form is None or stored is None else form.load(stored)


def typed_sides(forms: tuple[Form | None, Form | None], values: list[tuple[int, object]]) -> list[tuple[int, object]]:
    """Return values, each behind the number of its side, as those of the types that are declared for the sides."""
    # As `typed` does it, looked up once for all values: a form of a serde changes nothing here.
    dumps = [None if form is None or not form.fits else form.dump for form in forms]
    return [(side, value if value is None or (dump := dumps[side]) is None else dump(value)) for side, value in values]


class States(Protocol):
    """The states that contexts read."""

    def read(self, place: Any, /) -> Any:
        """Return the state at a place."""


class KeyContext(Generic[K, S]):
    """The context of a message for a function with state: its key, its event time, and the state of its key.

    `state` is this key's value, None (or what `init` makes) at first: assign a new one, or change it in place; None
    removes it. It is written when the call is done, or never. `timestamp` is the message's event time in ms.

    >>> async def newest_only(reading, context):
    ...     if context.state is not None and context.state >= reading.version:
    ...         return []
    ...     context.state = reading.version
    ...     return [reading]
    """

    __slots__ = ("_assigned", "_place", "_state", "_states", "_timestamp", "key")

    def __init__(self, states: States, key: K, place: object, timestamp: int | None) -> None:
        self.key = key
        self._states = states
        self._place = place
        self._timestamp = timestamp
        self._state: object = UNREAD
        self._assigned = False

    def moved(self) -> KeyContext[K, S]:
        """Return another one that has left the same state."""
        other = KeyContext[K, S](self._states, self.key, self._place, self._timestamp)
        other._state, other._assigned = self._state, self._assigned
        return other

    @property
    def timestamp(self) -> int:
        """The event time, in ms; raises ValueError where messages have none."""
        if self._timestamp is None:
            raise ValueError("the message has no timestamp; give the input timestamp=")
        return self._timestamp

    @property
    def state(self) -> S:
        """This key's state."""
        if self._state is UNREAD:
            self._state = self._states.read(self._place)
        return self._state  # type: ignore[return-value]

    @state.setter
    def state(self, value: S | None) -> None:
        self._state = value
        self._assigned = True


def _own_references() -> int:
    thing = object()
    return getrefcount(thing) + 1


OWN_REFERENCES = _own_references()
"""The references that an attribute, a variable and their count make; more are others', as of a thread that goes on."""


class Lending:
    """Ends what calls are handed behind them: what is used of it later is refused, there and at the next calls.

    Contexts and lists are handed out as they are, and most are used again. Only what somebody has kept is ended, which
    its references tell: to make one for each call, or to ask at each use, would cost more than many functions do.
    """

    def __init__(self, late_use: Callable[[str], Exception] = unplaced) -> None:
        self._late_use = late_use
        self._refused: Exception | None = None
        self._ended: dict[type, type] = {}

    def end(self, lent: object, named: Callable[[str], str] = str) -> None:
        """Let nobody use a context any more, or what one has handed out; `named` says of what it is used for."""
        kind = type(lent)
        if kind not in self._ended:
            self._ended[kind] = self._ended_kind(kind, named)
        lent.__class__ = self._ended[kind]

    def check(self) -> None:
        """Raise the error of what was used behind its call."""
        if self._refused is not None:
            raise self._refused

    def _ended_kind(self, kind: type, named: Callable[[str], str]) -> type:
        def used(lent: object, name: str, *value: object) -> object:
            if name.startswith("__"):  # as a debugger asks
                return object.__getattribute__(lent, name)
            self._refused = self._late_use(named(name))
            raise self._refused

        return type(kind)(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": used, "__setattr__": used})


def meaning_of(init: Callable[[], object] | None) -> str:
    """Return the meaning of states that begin as `init` makes them."""
    return "any state" if init is None else f"state from {shape_of(init)}"


def is_changed(context: KeyContext[object, object]) -> bool:
    """Whether the state was assigned, or handed out and may have been changed in place."""
    # A state that was handed out and can be changed in place counts as changed: nobody would notice if it was.
    state = context._state
    return context._assigned or (state is not UNREAD and type(state) not in UNCHANGEABLE)


def keep(context: KeyContext[object, object], store: Store, key: bytes, form: Form | None = None) -> None:
    """Write the state that a complete call has left, if it may have changed."""
    if is_changed(context):
        state = context._state
        if state is None:
            store.delete(STATE + key)
        else:
            store.put(STATE + key, state if form is None else form.dump(state))
