"""The entries of an operator's store, as rows of plain values and as values of Python, and back."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from operators.core.base import Serde, Spec
from operators.core.entry_keys import KEY, EntryKind, EntryKinds, StateEntry, kind_at
from operators.io import TableInput
from operators.partition_by import PartitionBy, hash_, murmur2
from operators.state.keyed_state import Encoded, dumped, loaded
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.encoding.serdes import LAST_TAG, Declared, Evolving, Tagged, kept
from runtime.encoding.storable import form_of
from runtime.encoding.stored_json import OF, WORD, bytes_of, escaped, packed, plain_of, unpacked
from runtime.model.errors import SamzaError, SerdeError
from runtime.opening.stored_state import lies
from runtime.ports.state import StateSnapshot

OPERATOR, TASK, KIND, VALUE, PLACE = "operator", "task", "kind", "value", "place"
"""The names in a row beside those of the parts of its place."""
ENCODED, BY_SERDE = "encoded", "serde"
"""The words for bytes that only a serde of the user's can read, and for what one has read."""
MOST_LOOKED_AT = 1_000
"""The entries of a task that are looked at: those of one class are alike, and there may be very many."""
_evolving = Evolving()
Row = dict[str, Any]
"""An entry as plain values by name."""


class Stored(NamedTuple):
    """An entry as it is stored: its operator, its task, its place, and its value."""

    operator: str
    task: int
    place: bytes
    value: bytes


class StoredEntries:
    """The form of the entries of one operator; of one that the application has no more, only values can be told."""

    def __init__(self, plan: Plan | None, graph: Graph | None, operator: str) -> None:
        self.operator = operator
        self._spec: Spec | None = None if graph is None else graph.specs.get(operator)
        self._kinds: EntryKinds = {}
        self._serdes: Mapping[str, Serde] = {}
        self._value: Serde = _evolving
        self._task_of: Callable[[bytes], int] | None = None
        if self._spec is not None and plan is not None and graph is not None:
            self._kinds = self._spec.entry_kinds()
            named = self._spec.part_serdes(graph.key_serde_into(operator))
            self._serdes = {name: serde or Tagged() for name, serde in named.items()}
            table = graph.of(TableInput).get(operator)
            self._value = _evolving if table is None else kept(table.value)
            self._task_of = task_of_keys(plan, graph, operator)

    def row(self, one: Stored) -> Row:
        """Return an entry as a row; raises SerdeError for one that is not of this operator."""
        row: Row = {OPERATOR: one.operator, TASK: one.task}
        if self._spec is None:
            row[PLACE] = escaped("bytes", b64encode(one.place).decode())
            row[VALUE] = _plain_by(self._value, one.value)
            return row
        kind, parts = self._parts(one.place)
        row[KIND] = kind.word
        for name, part in parts.items():
            if isinstance(part, bytes) and name in self._serdes:
                row[name] = _plain_by(self._serdes[name], part)
            else:
                row[name] = packed(part)
        row[VALUE] = self._plain_value(kind, parts, one.value)
        return row

    def stored(self, row: Row) -> Stored:
        """Return the entry that a row tells; raises SerdeError where it tells none."""
        if VALUE not in row:
            raise SerdeError(f"a row has no {VALUE!r}")
        if self._spec is None or PLACE in row:
            place = unpacked(row.get(PLACE))
            if not isinstance(place, bytes):
                raise SerdeError(f"a row says no {PLACE!r}: {place!r}")
            return Stored(self.operator, _task_in(row), place, _bytes_by(self._value, row[VALUE]))
        first, kind = self._kind_of(row.get(KIND))
        parts = {
            name: _bytes_by(self._serdes[name], part) if name in self._serdes else unpacked(part)
            for name, part in row.items()
            if name not in (OPERATOR, TASK, KIND, VALUE)
        }
        return self._placed(first, kind, parts, row.get(TASK), self._value_bytes(kind, parts, row[VALUE]))

    def entry(self, one: Stored) -> StateEntry:
        """Return an entry with its values; raises SerdeError for one that is not of this operator."""
        kind, parts = self._parts(one.place)
        serdes = self._serdes
        told: dict[str, Any] = {
            name: serdes[name].decode(part) if isinstance(part, bytes) and name in serdes else part
            for name, part in parts.items()
        }
        value = self._value.decode(one.value)
        if kind.in_tuple:
            (value,) = value
        form = self._form(parts)
        # What a serde has written lies within values of other kinds as well, such as rows by time, and stays as it is.
        value = value if form is None else loaded(form, value)
        return StateEntry(kind=kind.word, key=told.pop(KEY, None), value=value, task=one.task, parts=told)

    def changed(self, one: Stored, change: Callable[[StateEntry], StateEntry | None]) -> Stored | None:
        """Return an entry as a function changes it, None where it is dropped; what holds no value of users stays."""
        kind, parts = self._parts(one.place)
        if not kind.of_users or len(parts) < len(kind.parts):
            # It goes where its key goes, whose other entries may go elsewhere.
            first, _ = self._kind_of(kind.word)
            return self._placed(first, kind, parts, one.task, one.value)
        now = change(self.entry(one))
        if now is None:
            return None
        if not isinstance(now, StateEntry):
            raise SamzaError(
                f"the function returned {now!r} for a {kind.word} of {self.operator!r}: write return entry.of(value), "
                "return entry, or return None to drop it"
            )
        first, kind = self._kind_of(now.kind)
        told = {**now.parts, KEY: now.key} if KEY in parts else now.parts
        found: dict[str, object] = {
            name: bytes(self._serdes[name].encode(part)) if name in self._serdes else part
            for name, part in told.items()
        }
        value = dumped(self._form(parts), now.value)
        data = self._value.encode((value,) if kind.in_tuple else value)
        return self._placed(first, kind, found, one.task, bytes(data))

    def has_key(self, one: Stored, key: bytes) -> bool:
        """Whether an entry is of a key."""
        assert self._spec is not None, "an operator that is known"
        return self._spec.key_at(one.place) == key

    def keys_said(self, text: str) -> list[bytes]:
        """Return the keys that a word on the command line may stand for: what it is as JSON, and the text itself."""
        serde, found = self._serdes[KEY], list[bytes]()
        plains: list[object] = [text]
        with suppress(msgspec.DecodeError):
            plains.insert(0, msgspec.json.decode(text))
        for plain in plains:
            try:
                found.append(_bytes_by(serde, plain))
            except Exception:  # of the user's serde, whose keys are of another type
                continue
        return found

    def _parts(self, place: bytes) -> tuple[EntryKind, dict[str, object]]:
        try:
            start, kind = kind_at(self._kinds, place)
            return kind, kind.parts_of(place, start)
        except ValueError as error:
            raise SerdeError(f"the state of {self.operator!r} is of another operator: {error}") from error

    def _by_serde(self, parts: Mapping[str, object]) -> Serde | None:
        """Return the serde of the user's that the value of an entry is kept by, if there is one."""
        declared = None if self._spec is None else self._spec.declared_of(parts)
        return None if isinstance(declared, Declared) else declared

    def _plain_value(self, kind: EntryKind, parts: Mapping[str, object], data: bytes) -> object:
        if (serde := self._by_serde(parts)) is not None:
            stored = self._value.decode(data)
            stored = stored[0] if kind.in_tuple else stored
            if type(stored) is Encoded:
                return escaped(BY_SERDE, _plain_by(serde, stored.data))
        plain: Any = _plain_by(self._value, data)
        return plain[OF][0] if kind.in_tuple else plain

    def _value_bytes(self, kind: EntryKind, parts: Mapping[str, object], plain: Any) -> bytes:
        serde = self._by_serde(parts)
        if serde is not None and isinstance(plain, dict) and plain.get(WORD) == BY_SERDE:
            stored = Encoded(_bytes_by(serde, plain.get(OF)))
            return self._value.encode((stored,) if kind.in_tuple else stored)
        return _bytes_by(self._value, escaped("tuple", [plain]) if kind.in_tuple else plain)

    def _placed(self, first: bytes, kind: EntryKind, parts: Mapping[str, object], task: object, value: bytes) -> Stored:
        try:
            place = first + kind.bytes_of(parts)
        except (KeyError, TypeError, OverflowError) as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise SerdeError(f"this is no {kind.word} of {self.operator!r}: {missing}") from error
        key = parts.get(KEY)
        if self._task_of is not None and isinstance(key, bytes):
            # A key's state is where its records come to, whatever the application had when it was written to a file.
            return Stored(self.operator, self._task_of(key), place, value)
        return Stored(self.operator, _task_in({TASK: task}), place, value)

    def _kind_of(self, word: object) -> tuple[bytes, EntryKind]:
        for first, kind in self._kinds.items():
            if kind.word == word:
                return first, kind
        known = ", ".join(kind.word for kind in self._kinds.values())
        raise SerdeError(f"{self.operator!r} keeps nothing of the kind {word!r}: it has {known}")

    def _form(self, parts: Mapping[str, object]) -> Any:
        return None if self._spec is None else form_of(self._spec.declared_of(parts))


def entries_of(snapshot: StateSnapshot, operator: str) -> Iterator[Stored]:
    """Yield all entries of an operator, task by task, in the order of their places."""
    for task in sorted(snapshot.tasks(operator)):
        for place, value in snapshot.between(operator, task, b"", None):
            yield Stored(operator, task, place, value)


def unreadable(snapshot: StateSnapshot, plan: Plan, graph: Graph, operators: Iterable[str]) -> dict[str, str]:
    """Return why what operators keep can't be read by a program, by those whose entries can't be.

    Of each task the first `MOST_LOOKED_AT` are read.
    """
    found: dict[str, str] = {}
    for operator in operators:
        known = StoredEntries(plan, graph, operator)
        try:
            for task in sorted(snapshot.tasks(operator)):
                for place, value in islice(snapshot.between(operator, task, b"", None), MOST_LOOKED_AT):
                    known.entry(Stored(operator, task, place, value))
        except Exception as error:  # of a class or a serde of the user's as well
            found[operator] = str(error) or type(error).__name__
    return found


def task_of_keys(plan: Plan, graph: Graph, operator: str) -> Callable[[bytes], int] | None:
    """Return what tells the base task of a key by its bytes, in the state of an operator.

    None where whoever writes the input has chosen it, or nothing is by key.
    """
    how = lies(plan, graph).get(operator)
    if how is None or (how.writer and how.partitions > 1):
        return None
    origin = graph.keyed_by(graph.streams_into(operator)[0]) or operator
    partitioning, serde = graph.of(PartitionBy).get(origin), graph.key_serde_into(operator) or Tagged()
    by = hash_ if partitioning is None else partitioning.by
    if by is hash_:  # which asks for the bytes alone
        return lambda data: murmur2(data) % how.partitions
    return lambda data: by.partition(serde.decode(data), data, how.partitions)


def _task_in(row: Mapping[str, object]) -> int:
    task = row.get(TASK)
    if type(task) is not int or task < 0:
        raise SerdeError(f"a row says no task: {TASK!r} is {task!r}")
    return task


def _plain_by(serde: Serde, data: bytes) -> object:
    """Return what a serde has written as a plain value; bytes that come back by no other way, as they are."""
    if isinstance(serde, Tagged) and data[:1] <= LAST_TAG:
        return plain_of(data)
    with suppress(Exception):  # of the user's serde, or of values that have no other form
        plain = plain_of(_evolving.encode(serde.decode(data)))
        if _bytes_by(serde, plain) == data:
            return plain
    return escaped(ENCODED, b64encode(data).decode())


def _bytes_by(serde: Serde, plain: object) -> bytes:
    """Return the bytes that `_plain_by` has shown; raises SerdeError for what no serde has written."""
    if isinstance(plain, dict) and plain.get(WORD) == ENCODED:
        try:
            return b64decode(plain[OF], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise SerdeError(f"{plain!r} holds no bytes: {error}") from error
    if isinstance(serde, Tagged):
        data = bytes_of(plain, serde)
        # What was edited may name a class that the program has not, or fit it no more.
        serde.decode(data)
        return data
    return bytes(serde.encode(_evolving.decode(bytes_of(plain, _evolving))))
