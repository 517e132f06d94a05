"""The shape of an operator's stored state: the entries that it has for a key, and what is read from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from operators.async_flat_map import AsyncFlatMap
from operators.core.base import Form, Serde
from operators.core.entry_keys import NUMBER_BYTES, beyond, number_at
from operators.core.sites import here
from operators.core.wording import shown
from operators.io import TableInput
from operators.joins.own_table import OwnTable
from operators.partition_by import PartitionBy, Partitioner, hash_
from operators.process import Process
from operators.scan import Scan
from operators.state.key_collections import LIST, MAP, place_of
from operators.state.keyed_state import STATE, loaded
from operators.task import UserTask
from operators.windows.window import Window
from operators.windows.window_operators import entries_read
from planner.model.errors import PlanError, refuse
from planner.model.graph import Graph
from runtime.encoding.keys import bytes_of_key
from runtime.encoding.serdes import REFUSALS, Bytes, Evolving, String, Tagged, kept
from runtime.encoding.storable import form_of
from runtime.model.errors import SerdeError
from runtime.ports.state import StateSnapshot
from runtime.stores.registry import kind_of

KEYED: tuple[type[Process | Scan | AsyncFlatMap], ...] = (Process, Scan, AsyncFlatMap)
"""The operators whose state is one value for each key, as their functions see it."""
ORDERED = (String, Bytes)
"""The serdes whose bytes are in the order of the keys."""
ASK_FOR = (
    "the id of a process, scan, async_flat_map with state, window that does not slide, table or task; of others, read "
    "the output"
)


class EntryShape(NamedTuple):
    """The entries that begin with the same bytes, and have so many numbers of 8 bytes between these and the key.

    `read` has what an entry says of its key, given these numbers and what is stored.
    """

    first: bytes
    numbers: int
    read: Callable[[object, Sequence[int], Any], Iterable[Any]]

    @property
    def ahead(self) -> int:
        """The number of bytes ahead of the key."""
        return len(self.first) + NUMBER_BYTES * self.numbers

    def numbers_at(self, place: bytes) -> list[int]:
        """Return the numbers in a place."""
        return [number_at(place, at) for at in range(len(self.first), self.ahead, NUMBER_BYTES)]


class KeyBounds(NamedTuple):
    """The keys from `start` to before `end`; without a bound where one is None."""

    start: Any = None
    end: Any = None


class StateShape(NamedTuple):
    """The stored state of an operator by key; a key of `windows` may have several of them, each of which is a pane.

    `collections` are the lists and maps of a key, by kind, with the forms of their values where these are declared;
    None where the operator has no such.
    """

    operator: str
    kind: str
    key: Serde
    value: Serde
    entries: tuple[EntryShape, ...]
    by: Partitioner = hash_
    windows: bool = False
    collections: Mapping[bytes, Mapping[str, Form | None]] | None = None

    def placed(self, key: object) -> bytes:
        """Return the bytes under which a key lies; raises PlanError for one that has none here."""
        try:
            return bytes_of_key(self.key, key)
        except (*REFUSALS, SerdeError) as error:
            raise self._no_key(key) from error

    def check_key(self, key: object, data: bytes) -> None:
        """Refuse a key without state that could have none, as it is of another type than is declared: raises PlanError.

        Who finds a key has no need of this.
        """
        try:
            self.key.decode(data)
        except (*REFUSALS, SerdeError) as error:
            raise self._no_key(key) from error

    def _no_key(self, key: object) -> PlanError:
        kind = getattr(self.key, "type", None)
        keys = kind.__name__ if isinstance(kind, type) else str(kind or "what its serde takes")
        wrong = f"{shown(key)} is no key of {self.kind} {self.operator!r}, whose keys are {keys}"
        return refuse(here(), wrong, "a key of that type")

    def likely(self, key: object, data: bytes, tasks: int) -> int:
        """Return the task that has a key where nothing but the partitioner has decided it."""
        return self.by.partition(key, data, tasks) if tasks > 1 else 0

    def found(self, snapshot: StateSnapshot, task: int, key: object, data: bytes) -> list[Any]:
        """Return what a task has of a key: nothing, its state, or each of its panes."""
        found: list[Any] = []
        for entries in self.entries:
            for ahead in self._ahead(snapshot, task, entries):
                stored = snapshot.get(self.operator, task, ahead + data)
                if stored is not None:
                    numbers = entries.numbers_at(ahead) if entries.numbers else ()
                    found += entries.read(key, numbers, self.value.decode(stored))
        return found

    def listed(self, snapshot: StateSnapshot, task: int, data: bytes, name: str) -> Iterator[Any]:
        """Yield the values of a list that a key has in a task, in their order."""
        form = self._form(LIST, name)
        # The first entry, which has no index, is of the list's bounds.
        return (loaded(form, stored) for at, stored in self._collected(snapshot, task, LIST, data, name) if at)

    def mapped(self, snapshot: StateSnapshot, task: int, data: bytes, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield the keys and values of a map that a key has in a task, in the order of the bytes of its keys."""
        form, decode = self._form(MAP, name), self.value.decode
        return (
            (decode(at), loaded(form, stored[0])) for at, stored in self._collected(snapshot, task, MAP, data, name)
        )

    def _form(self, kind: bytes, name: str) -> Form | None:
        assert self.collections is not None, "who asks for a list or a map has looked whether there are such"
        return self.collections[kind].get(name)

    def _collected(
        self, snapshot: StateSnapshot, task: int, kind: bytes, data: bytes, name: str
    ) -> Iterator[tuple[bytes, Any]]:
        place = place_of(kind, data, name)
        for at, stored in snapshot.between(self.operator, task, place, beyond(place)):
            yield at[len(place) :], self.value.decode(stored)

    def _ahead(self, snapshot: StateSnapshot, task: int, entries: EntryShape) -> Iterable[bytes]:
        """Return all bytes that lie ahead of keys."""
        return self._numbered(snapshot, task, entries) if entries.numbers else (entries.first,)

    def _numbered(self, snapshot: StateSnapshot, task: int, entries: EntryShape) -> Iterator[bytes]:
        """Yield the bytes ahead of keys that have numbers; one entry is looked at of those that share them."""
        place, end = entries.first, beyond(entries.first)
        while (found := next(snapshot.between(self.operator, task, place, end), None)) is not None:
            ahead = found[0][: entries.ahead]
            yield ahead
            place = beyond(ahead)

    def scanned(self, snapshot: StateSnapshot, task: int, bounds: KeyBounds) -> Iterator[tuple[Any, Any] | None]:
        """Yield the keys of a task within bounds, each with what it has; None for an entry of a key that is outside."""
        start, end = bounds
        for entries in self.entries:
            # Only what is asked for is read where places are in the order of the keys.
            is_ordered = type(self.key) in ORDERED and not entries.numbers
            low = entries.first + (self.key.encode(start) if is_ordered and start is not None else b"")
            high = beyond(entries.first) if entries.first else None
            if is_ordered and end is not None:
                high = entries.first + self.key.encode(end)
            for place, stored in snapshot.between(self.operator, task, low, high):
                key = self.key.decode(place[entries.ahead :])
                if (start is not None and key < start) or (end is not None and not key < end):
                    yield None
                    continue
                for found in entries.read(key, entries.numbers_at(place), self.value.decode(stored)):
                    yield key, found


def shape_of(graph: Graph, id: str) -> StateShape:
    """Return the shape of an operator's state; raises PlanError for one that has none that can be asked for."""
    if id not in graph.specs:
        asked_for = ", ".join(sorted(shape.operator for shape in shapes_of(graph)))
        raise refuse(here(), f"there is no operator {id!r}", f"one of {asked_for}" if asked_for else ASK_FOR)
    spec = graph.specs[id]
    above = graph.streams_into(id)
    key = graph.key_serde_into(id) or Tagged()
    made = next((make(graph, id, key) for kind, make in _SHAPES.items() if id in graph.of(kind)), None)
    if made is None or not made.entries or (not spec.stateful and not spec.looked_into):
        wrong = f"{spec.kind} {id!r} at {spec.site} keeps no state by key that could be asked for"
        raise refuse(here(), wrong, ASK_FOR)
    if not kind_of(spec).durable:
        wrong = f"{spec.kind} {id!r} at {spec.site} keeps its state in memory, which no other process sees"
        raise refuse(here(), wrong, 'store="lmdb" there')
    parents = graph.of(PartitionBy)
    chosen = next((parents[one].by for one in map(graph.keyed_by, above) if one is not None and one in parents), hash_)
    return made._replace(by=chosen)


def shapes_of(graph: Graph) -> list[StateShape]:
    """Return the shapes of all operators whose state can be asked for."""
    kinds = {id for kind in _SHAPES for id in graph.of(kind)}
    stored = [id for id in graph.specs if id in kinds and kind_of(graph.specs[id]).durable]
    having = [id for id in stored if graph.specs[id].stateful or graph.specs[id].looked_into]
    windows = graph.of(Window)
    return [shape_of(graph, id) for id in having if id not in windows or entries_read(windows[id])]


def _of_one(first: bytes, form: Form | None) -> tuple[EntryShape, ...]:
    return (EntryShape(first, 0, lambda key, numbers, stored: (loaded(form, stored),)),)


def _of_key(graph: Graph, id: str, key: Serde) -> StateShape:
    state = next(found[id].state for kind in KEYED if id in (found := graph.of(kind)))
    made = StateShape(id, graph.specs[id].kind, key, Evolving(), _of_one(STATE, form_of(state)))
    processes = graph.of(Process)
    if id not in processes:
        return made
    declared = {LIST: processes[id].lists, MAP: processes[id].maps}
    forms = {kind: {name: form_of(one) for name, one in said.items()} for kind, said in declared.items()}
    return made._replace(collections=forms)


def _of_table(graph: Graph, id: str, key: Serde) -> StateShape:
    return StateShape(id, graph.specs[id].kind, key, kept(graph.of(TableInput)[id].value), _of_one(b"", None))


def _of_task(graph: Graph, id: str, key: Serde) -> StateShape:
    entries = _of_one(b"", form_of(graph.of(UserTask)[id].state))
    return StateShape(id, graph.specs[id].kind, Tagged(), Evolving(), entries)


def _of_own_table(graph: Graph, id: str, key: Serde) -> StateShape:
    entries = _of_one(b"", form_of(graph.of(OwnTable)[id].state))
    return StateShape(id, graph.specs[id].kind, key, Evolving(), entries)


def _of_windows(graph: Graph, id: str, key: Serde) -> StateShape:
    entries = tuple(EntryShape(*one) for one in entries_read(graph.of(Window)[id]))
    return StateShape(id, graph.specs[id].kind, key, Evolving(), entries, windows=True)


_SHAPES: Mapping[type, Callable[[Graph, str, Serde], StateShape]] = {
    **dict.fromkeys(KEYED, _of_key),
    TableInput: _of_table,
    OwnTable: _of_own_table,
    UserTask: _of_task,
    Window: _of_windows,
}
