"""The lists and maps of a key's state, whose entries lie one by one in the store and are read when asked for."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from functools import lru_cache
from itertools import chain, islice
from operator import eq
from sys import getrefcount
from typing import Any, Protocol, TypeGuard, TypeVar, cast

from operators.core.base import MOST_HELD, Form, Key, Keys, Serde, Store
from operators.core.entry_keys import LENGTH_BYTES, EntryKind, LengthAhead, Rest, beyond
from operators.core.wording import shown, words_of
from operators.state.keyed_state import (
    OWN_REFERENCES,
    UNCHANGEABLE,
    Lending,
    UnreadForm,
    are_plain,
    dumped,
    is_plain,
    loaded,
    undeclared,
)

E = TypeVar("E")
M = TypeVar("M")
N = TypeVar("N")

LIST, MAP = b"l", b"m"
"""The first byte of the entries of lists and of maps."""
PLACE_BYTES = 8
SCALARS = UNCHANGEABLE - {frozenset}
"""The types of keys of maps whose bytes never change."""


class Named(LengthAhead):
    """The name of a list or a map, as text behind its length."""

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the name."""
        end = super().cut(place, start, found)
        name = found[self.name]
        assert isinstance(name, bytes), "it was cut out of bytes"
        found[self.name] = name.decode()
        return end

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return its bytes behind their length."""
        return super().bytes_of({self.name: str.encode(cast(str, found[self.name]))})


class Index:
    """The index of an entry of a list, from the first that ever was; the entry of its bounds has none."""

    name = "index"

    def cut(self, place: bytes, start: int, found: dict[str, object]) -> int:
        """Note the index, if there is one."""
        if start < len(place):
            found[self.name] = int.from_bytes(place[start : start + PLACE_BYTES], "big")
            return start + PLACE_BYTES
        return start

    def bytes_of(self, found: Mapping[str, object]) -> bytes:
        """Return its bytes; none where there is no index."""
        index = found.get(self.name)
        return b"" if index is None else cast(int, index).to_bytes(PLACE_BYTES, "big")


NAME, MAP_KEY = "name", "entry"
LIST_ENTRIES = EntryKind("list", LengthAhead(), Named(NAME), Index())
MAP_ENTRIES = EntryKind("map", LengthAhead(), Named(NAME), Rest(MAP_KEY), in_tuple=True)
"""The kinds of these entries."""


def place_of(kind: bytes, key: bytes, name: str = "") -> bytes:
    """Return the prefix of the entries of a key's collections, or of one of them; no others begin with it."""
    # Lengths ahead of the parts: without them one key's bytes could begin with another's, and a range take in both.
    of_key = kind + len(key).to_bytes(LENGTH_BYTES, "big") + key
    return of_key + _named(name) if name else of_key


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    return len(data := name.encode()).to_bytes(LENGTH_BYTES, "big") + data


class ListChanges:
    """The lists that have changed since the last `write_back`, and the number of entries that came or went."""

    __slots__ = ("lists", "number")

    def __init__(self) -> None:
        self.lists: dict[ListState[Any], None] = {}
        self.number = 0


class ListState(Iterable[E]):
    """A list in the state of a key, in the order in which it was appended to; to append reads none of its entries.

    What has changed since the last commit is beside the store: what is appended and dropped between two commits never
    touches it. To walk through it shows it as it is when the walk begins, whatever is appended or dropped on the way.

    >>> def last_three(value, context):
    ...     values = context.list("values")
    ...     values.append(value)
    ...     if len(values) > 3:
    ...         values.drop(1)
    ...     return [list(values)]
    """

    __slots__ = (
        "_base",
        "_changes",
        "_first",
        "_form",
        "_is_changed",
        "_place",
        "_store",
        "_stored",
        "_values",
    )

    def __init__(self, store: Store, place: bytes, form: Form | None, changes: ListChanges) -> None:
        self._store = store
        self._form = form
        self._place = place
        self._changes = changes
        self._stored = self._first, self._base = cast("tuple[int, int]", store.get(place, (0, 0)))
        self._values: list[Any] = []
        """The entries from `_base` to the end, in their stored form; those before `_first` are dropped already."""
        # Entries from `_first` up to `_base` are in the store alone; of others it has what can't be changed in place.
        self._is_changed = False

    def append(self, value: E) -> None:
        """Put a value at the end."""
        if self._form is not None and value is not None:
            value = cast(E, self._form.dump(value))
        self._values.append(value)
        self._changes.number += 1
        if not self._is_changed:
            self._note()

    def extend(self, values: Iterable[E]) -> None:
        """Put values at the end."""
        for value in values:
            self.append(value)

    def drop(self, number: int = 1) -> None:
        """Remove so many of the oldest values, or all there are."""
        first, values = self._first, self._values
        if number > (most := self._base + len(values) - first):
            number = most
        if number <= 0:
            return
        self._changes.number += number
        upto = self._first = first + number
        # In one go where half of them are gone, so that a drop costs the same however long the list is. Never in place:
        # somebody may be walking through them.
        gone = upto - self._base
        if gone > 0 and gone * 2 >= len(values):
            self._values, self._base = values[gone:], upto
        if not self._is_changed:
            self._note()

    def clear(self) -> None:
        """Remove all values."""
        self.drop(len(self))

    def write_back(self, entries: dict[bytes, object], gone: list[bytes]) -> list[Any]:
        """Say which entries the store is to have, and which no more; return the values that it did not have."""
        (begun, end), first, prefix = self._stored, self._first, self._place
        following = self._base + len(self._values)
        # As `_entry` does it, written out to spare a call for each.
        if first > begun:
            gone += [prefix + place.to_bytes(PLACE_BYTES, "big") for place in range(begun, min(first, end))]
        begin = first if first > end else end
        assert begin >= self._base, "what the store does not have is at hand"
        new = self._values[begin - self._base :]
        for place, value in enumerate(new, begin):
            entries[prefix + place.to_bytes(PLACE_BYTES, "big")] = value
        # An empty list begins at 0 again, and has no entry of its own.
        if first == following:
            self._first = self._base = following = 0
            self._values = []
            if end:
                gone.append(prefix)
        else:
            entries[prefix] = (first, following)
        self._stored, self._is_changed = (self._first, following), False
        return new

    def let_go(self) -> None:
        """Leave the values to the store, which has all of them."""
        self._base += len(self._values)
        self._values = []

    def newest(self) -> list[Any]:
        """Return the entries that the store does not have, in their stored form."""
        return self._values[max(self._first, self._stored[1]) - self._base :]

    def __len__(self) -> int:
        return self._base + len(self._values) - self._first

    def __iter__(self) -> Iterator[E]:
        first, base, form, values = self._first, self._base, self._form, self._values
        # Up to where the list ends now: what is appended on the way is not shown.
        if first >= base:
            found: Iterator[Any] = islice(values, first - base, len(values))
        else:
            found = chain(self._read(first, base), islice(values, len(values)))
        return found if form is None else (loaded(form, stored) for stored in found)

    def __getitem__(self, index: int) -> E:
        values = self._values
        at = (self._first - self._base if index >= 0 else len(values)) + index
        # Mostly it is at hand; an index below 0 here is of an entry that the store has, or of none.
        if not self._first - self._base <= at < len(values):
            raise IndexError(f"the list has {len(self)} values, and no [{index}]")
        stored = values[at] if at >= 0 else self._at(self._base + at)
        value: E = stored if self._form is None else loaded(self._form, stored)
        return value

    def __repr__(self) -> str:
        return f"ListState({list(self)!r})"

    def _note(self) -> None:
        self._is_changed = True
        self._changes.lists[self] = None

    def _read(self, first: int, base: int) -> Iterator[Any]:
        """Yield entries that only the store has; all of them are at hand then, if nobody can change them in place."""
        read = []
        for place in range(first, base):
            read.append(self._at(place))
            yield read[-1]
        if self._base == base and all(map(is_plain, read)):
            self._values, self._base = [*read, *self._values], first

    def _at(self, place: int) -> Any:
        """Return an entry that only the store has, in its stored form; raises UnreadForm if another serde wrote it."""
        stored = self._store.get(self._entry(place))
        return undeclared(stored) if self._form is None else stored

    def _entry(self, place: int) -> bytes:
        return self._place + place.to_bytes(PLACE_BYTES, "big")


class KeyLists:
    """The lists of an operator's keys that are in use, beside the store of all.

    `place_of` says where the list of a key and a name lies, and `form_of` in which form its values are stored.
    """

    def __init__(
        self,
        store: Store,
        place_of: Callable[[Key, str], bytes],
        form_of: Callable[[str], Form | None],
        most_held: int = MOST_HELD,
    ) -> None:
        self._store = store
        self._place_of = place_of
        self._form_of = form_of
        self._most_held = most_held
        self.by_name: dict[str, dict[Key, ListState[Any]]] = {}
        """The lists of each name, of which an operator has few, by key."""
        self._changes = ListChanges()
        self.lending = Lending()

    @property
    def unwritten(self) -> int:
        """The number of entries that came or went, and are not so in the store yet."""
        return self._changes.number

    def of(self, key: Key, name: str) -> ListState[Any]:
        """Return the list of a key."""
        named = self.by_name.get(name)
        if named is None:
            named = self.by_name[name] = {}
        found = named.get(key)
        if found is None:
            place = self._place_of(key, name)
            found = named[key] = ListState(self._store, place, self._form_of(name), self._changes)
        return found

    def write_back(self) -> None:
        """Put what has changed into the store."""
        entries: dict[bytes, object] = {}
        gone: list[bytes] = []
        changed = self._changes.lists
        new = [one.write_back(entries, gone) for one in changed]
        # What may be changed in place is read again from the store, which then knows of it for a savepoint.
        if not are_plain(entries.values()):
            _let_go(changed, new)
        self._store.update(entries)
        self._store.delete_all(gone)
        written = [*changed]
        changed.clear()
        self._changes.number = 0
        if sum(map(len, self.by_name.values())) > self._most_held:
            self._drop_all()
        elif kept := {one for one in written if getrefcount(one) > OWN_REFERENCES + 1}:
            for named in self.by_name.values():
                for key in [key for key, one in named.items() if one in kept]:
                    self._end(named.pop(key))

    def newest(self) -> Iterator[Any]:
        """Yield the entries that the store does not have, of the lists that changed last first."""
        return chain.from_iterable(one.newest() for one in reversed(self._changes.lists))

    def drop(self, key: Key) -> None:
        """Drop the lists of a key, whose entries are removed from the store."""
        for named in self.by_name.values():
            if (one := named.pop(key, None)) is not None:
                self._changes.lists.pop(one, None)
                self._end(one)

    def forget(self) -> None:
        """Drop what is beside the store."""
        self._changes.lists.clear()
        self._changes.number = 0
        self._drop_all()

    def _drop_all(self) -> None:
        for named in self.by_name.values():
            for one in named.values():
                if getrefcount(one) > OWN_REFERENCES:
                    self._end(one)
        self.by_name.clear()

    def _end(self, one: ListState[Any]) -> None:
        """Let nobody use a list that is no more the one of its key, or that somebody has kept behind its call."""
        self.lending.end(one, lambda name: "list(...)")


def _let_go(lists: Iterable[ListState[Any]], values: Iterable[list[Any]]) -> None:
    """Leave to the store what may be changed in place, where the values are those that it did not have."""
    for one, new in zip(lists, values, strict=True):
        if not are_plain(new):
            one.let_go()


class EntryKeys:
    """The serde of keys by which a user's function finds entries again, as those of maps: each is looked at.

    What is no scalar is noted. UnreadForm is raised where it lies under another definition of its class, and ValueError
    where it would come back as another key; the latter is for `keys` to tell.
    """

    def __init__(self, serde: Serde, keys: Keys, note: Callable[[object], None]) -> None:
        self._serde = serde
        self._keys = keys
        self._note = note

    def encode(self, key: object) -> bytes:
        """Return the bytes of a key."""
        if type(key) not in SCALARS:
            self._note(key)
            is_itself = _is_of_scalars(key) and all(map(eq, key, key))
        else:
            is_itself = key == key
        if is_itself:
            return self._serde.encode(key)
        held = self._keys.hold_one(key)  # as which NaN is one key, whatever its sign
        assert held is not None, "None is a scalar"
        return self._keys.encode(held)

    def decode(self, data: bytes) -> Any:
        """Return the key of bytes."""
        try:
            key = self._serde.decode(data)
        except Exception as error:
            raise UnreadForm(f"an entry lies under a key that can't be read: {words_of(error)}") from error
        if type(key) not in SCALARS:
            self._note(key)
            if not (_is_of_scalars(key) or self._keys.lies_under(key, data)):
                raise UnreadForm(
                    f"an entry lies under {shown(key)} as its class was in a run before, with other fields or in "
                    "another order: the bytes of a key have its fields, so the entry is not found by the key as it is "
                    "now. Define the class as it was, or clear() the map"
                )
        return key


def _is_of_scalars(key: object) -> TypeGuard[tuple[object, ...]]:
    return type(key) is tuple and SCALARS.issuperset(map(type, key))


class MapStore(Protocol):
    """The operator of a context, which has the entries of its maps."""

    store: Store


class MapContext(Protocol):
    """The context that a map is asked of."""

    @property
    def _operator(self) -> MapStore:
        """Its operator."""


class MapState(MutableMapping[M, N]):
    """A map in the state of a key, whose entries are read and written one by one, in the order of their bytes.

    A value that was changed in place has to be assigned again.

    >>> def seen_before(value, context):
    ...     seen = context.map("seen")
    ...     known = value in seen
    ...     seen[value] = True
    ...     return [known]
    """

    __slots__ = ("_context", "_decode", "_encode", "_form", "_place")

    def __init__(self, context: MapContext, place: bytes, serde: Serde, form: Form | None = None) -> None:
        # Who keeps a map has kept its context by that, which ends behind its call, and the map with it.
        self._context = context
        self._form = form
        self._place = place
        self._encode = serde.encode
        self._decode = serde.decode

    def __getitem__(self, key: M) -> N:
        held = self._context._operator.store.get(self._place + self._encode(key))
        if held is None:
            raise KeyError(key)
        value: N = loaded(self._form, held[0])
        return value

    def __setitem__(self, key: M, value: N) -> None:
        # In a tuple, so that None is a value of the map and not an entry that is absent.
        self._context._operator.store.put(self._place + self._encode(key), (dumped(self._form, value),))

    def __delitem__(self, key: M) -> None:
        self[key]
        self._context._operator.store.delete(self._place + self._encode(key))

    def __iter__(self) -> Iterator[M]:
        return (key for key, _ in self._walk())

    def items(self) -> ItemsView[M, N]:
        """Return its keys with their values."""
        return _Items(self)

    def values(self) -> ValuesView[N]:
        """Return its values."""
        return _Values(self)

    def entries(self) -> Iterator[tuple[M, N]]:
        """Yield each key with its value, as they are when the walk begins."""
        return ((key, loaded(self._form, stored)) for key, stored in self._walk())

    def _walk(self) -> Iterator[tuple[M, Any]]:
        """Yield each key with its value in its stored form, which is read only where the value is asked for."""
        start, length = self._place, len(self._place)
        for place, (value,) in self._context._operator.store.range(start, beyond(start)):
            key: M = self._decode(place[length:])
            # A former version wrote sets in the order of one process: such an entry comes to where it is looked for.
            # One of other bytes stays: with an int where a float is declared the function's own key finds it there.
            if (
                type(key) not in SCALARS
                and (now := start + self._encode(key)) != place
                and sorted(now) == sorted(place)
            ):
                self._context._operator.store.delete(place)
                if self._context._operator.store.get(now) is not None:
                    continue  # assigned again since
                self._context._operator.store.put(now, (value,))
            yield key, value

    def __len__(self) -> int:
        return sum(1 for _ in self._context._operator.store.range(self._place, beyond(self._place)))

    def __repr__(self) -> str:
        return f"MapState({dict(self)!r})"

    def clear(self) -> None:
        """Remove all entries."""
        store = self._context._operator.store
        for place, _ in list(store.range(self._place, beyond(self._place))):
            store.delete(place)


class _Items(ItemsView[M, N]):
    """The keys and values of a map, read in one walk: its own are looked up one by one, by keys that were read."""

    def __init__(self, of: MapState[M, N]) -> None:
        super().__init__(of)
        self._of = of

    def __iter__(self) -> Iterator[tuple[M, N]]:
        return self._of.entries()


class _Values(ValuesView[N]):
    """The values of a map, read in one walk."""

    def __init__(self, of: MapState[Any, N]) -> None:
        super().__init__(of)
        self._of = of

    def __iter__(self) -> Iterator[N]:
        return (value for _, value in self._of.entries())


def remove_all(store: Store, key: bytes) -> None:
    """Remove the lists and maps of a key."""
    for kind in (LIST, MAP):
        prefix = place_of(kind, key)
        for place, _ in list(store.range(prefix, beyond(prefix))):
            store.delete(place)
