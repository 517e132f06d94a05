"""The kinds of keys under which an operator's state lies, with a warning at the first of a kind that is new."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import blake2s
from heapq import nsmallest
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from operators.core.base import Key, Serde, Spec
from operators.core.declared_types import has_types
from operators.core.wording import shown, words_of
from operators.joins.match_counts import kind_of, without_zones
from planner.model.virtual_tasks import is_task
from runtime.encoding.keys import KeySerde
from runtime.encoding.record_types import fields_of, hints_of, is_record, tag_of
from runtime.encoding.serdes import Tagged
from runtime.job.job_model import JOB
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import UnreadState
from runtime.ports.environment import Environment, typed

KEYS = "keys"
"""The word under which the job notes the kinds of keys of former runs, and the checkpoints of tasks the newer ones."""
_Kinds = dict[str, set[str]]
Sample = list[tuple[bytes, bytes]]
"""Keys, as bytes that remember types, with the bytes under which state of them lies."""
OF_ENTRIES = "of an entry: "
"""The words before the kind of a key by which a user's function finds entries, as those of a map."""
_FIELDS = re.compile("<[^<>]*>")
_PLAIN = re.compile("[\\w'.-]*")
_MEMBERS = re.compile("(: [^:<>]*)?<([^<>]*=[^<>]*)>")
MOST_MEMBERS = 200
"""The members of an Enum beyond which they are no part of a kind."""
MOST_EQUAL = 10_000
"""The keys of an operator that are looked at for equal ones with other bytes."""
FIRST_LOOKS = 1_000
"""The looks at keys of any kind; more are made once there are several kinds, as of 7 and 7.0."""
_MAY_BE_EQUAL = re.compile(r"Decimal| with a zone|\bdict\b|\bfloat\b")
"""The kinds of keys of which equal ones have other bytes: 1.0 and 1.00, 0.0 and -0.0, noon in Oslo and UTC, dicts."""
_FORMS = re.compile(r"\bAny\b|\bDecimal\b|\bfloat\b|\bdatetime\.(date)?time\b|[dD]ict\b|Mapping\b")
"""The same of the types of fields as they are told."""
MISREAD = ", and fields and members of the former may be read as others of the latter"

_log = logging.getLogger("samza_dsl")


class EqualKeys:
    """Keys of one operator in all tasks of a process, with the first of those that are equal, and its bytes."""

    def __init__(self) -> None:
        self.found: dict[object, tuple[object, bytes]] = {}
        self.looks = FIRST_LOOKS
        """The looks that are left at keys of kinds that alone have no equal ones."""
        self._kinds: set[str] = set()

    def take_kind(self, kind: str) -> None:
        """Note a kind; where it is the second one, keys of any may be equal."""
        if kind not in self._kinds and kind != "NoneType":
            self._kinds.add(kind)
            self.looks += MOST_EQUAL * (len(self._kinds) == 2)

    def take_look(self) -> bool:
        """Whether a key of any kind is to be looked at; counts that as done."""
        is_left = self.looks > 0
        self.looks -= is_left
        return is_left

    def note(self, spec: Spec, key: object, data: bytes, what: str) -> str:
        """Note a key with its bytes; return what to tell where one that is equal in Python has other bytes."""
        with suppress(TypeError):  # what a user's class holds may have no hash
            hashed, found = _hashable(key), self.found
            if len(found) >= MOST_EQUAL and hashed not in found:
                return ""
            first, known = found.setdefault(hashed, (key, data))
            if known != data:
                self.looks = 0
                return (
                    f"{_placed(spec)}two of its {what}, {shown(first)} and {shown(key)}, "
                    f"are equal in Python and two {what} here, since {what} go by their bytes. Bring them to one form "
                    "where they are made, as by .quantize(Decimal('0.01')), .astimezone(UTC), "
                    "tuple(sorted(key.items())), float(x), or x + 0.0, which makes 0.0 of -0.0"
                )
        return ""

    def sample(self, most: int) -> Sample:
        """Return keys that were looked at, as bytes that remember types, each with those under which it lies.

        Those of the least hashes: equal keys have one hash, so samples of several tasks have them both, or neither.
        """
        keys = self.found if len(self.found) <= most else nsmallest(most, self.found, key=hash)
        sample: list[tuple[bytes, bytes]] = []
        for first, data in map(self.found.__getitem__, keys):
            with suppress(Exception):  # some keys need the serde that is declared for them
                sample.append((Tagged().encode(first), data))
        return sample


class EqualInTasks:
    """The keys of tasks in several processes, as these have told samples of them.

    `warnings` has what was told, one for each operator, for as long as the run goes on. The driver's thread uses it.
    """

    def __init__(self, app: str, specs: Mapping[str, Spec]) -> None:
        self.warnings: dict[str, str] = {}
        self._app, self._specs = app, specs
        self._equal: dict[str, EqualKeys] = {}

    def take(self, samples: Iterable[Mapping[str, Sample]], warnings: Iterable[str]) -> None:
        """Take in what tasks have told: the warnings of a task that has seen two alone, and samples."""
        for warning in warnings:
            # Whatever a task tells begins with its operator's place; what is of none counts alone.
            of = (id for id, spec in self._specs.items() if warning.startswith(_placed(spec)))
            self._tell(next(of, warning), warning)
        for id, sample in ((id, sample) for one in samples for id, sample in one.items()):
            equal, spec = self._equal.setdefault(id, EqualKeys()), self._specs[id]
            what = "keys" if spec.keyed or spec.looked_into else "ids"
            for key, data in sample if id not in self.warnings else ():
                with suppress(Exception):  # a class that only workers have says nothing here
                    if told := equal.note(spec, Tagged().decode(key), data, what):
                        self._tell(id, told)
                        break

    def _tell(self, id: str, warning: str) -> None:
        if id not in self.warnings:
            self.warnings[id] = warning
            _log.warning("%s: %s", self._app, warning)


def _placed(spec: Spec) -> str:
    """Return the operator with its place, as each warning of its keys begins."""
    return f"{spec.kind} {spec.op_id!r} at {spec.site}: "


class KeyKinds:
    """The kinds of keys of one operator in one task: those that runs `before` have had, and those that are new.

    The task's thread alone adds to it. `told` is shared by all tasks of a process: what the log has told, once each.
    """

    def __init__(
        self, spec: Spec, app: str, environment: Environment, told: set[str], equal: EqualKeys | None = None
    ) -> None:
        self.before: frozenset[str] = frozenset()
        self.new: set[str] = set()
        self.warning = ""
        self._spec, self._app, self._environment, self._told = spec, app, environment, told
        self.equal = EqualKeys() if equal is None else equal
        self._seen: set[object] = set()
        """The types of ids that were looked at; for tuples, those of their parts."""
        self._of_forms: set[object] = set()
        """Those of which equal ids may have other bytes."""
        self._looked_at: set[bytes] = set()
        """The ids of these that were looked at for equal ones."""
        self._seen_of_entries: set[object] = set()

    def note_ids(self, encode: Callable[[Any], bytes], ids: list[object]) -> None:
        """Note the kinds of the ids of a batch, and which of them are equal and have other bytes."""
        # One walk in C over the types: a batch with nothing new costs no more.
        if not self._of_forms and not self.equal.looks and self._seen.issuperset(map(type, ids)):
            return
        for id in ids:
            kind: object = tuple(map(type, id)) if type(id) is tuple else type(id)
            if kind not in self._seen:
                self._seen.add(kind)
                self.note(told := kept_kind(id))
                if _MAY_BE_EQUAL.search(told) or any(map(_has_several_forms, map(type, _parts_of(id)))):
                    self._of_forms.add(kind)
            is_looked_at = kind in self._of_forms or self.equal.take_look()
            if is_looked_at and (data := encode(id)) not in self._looked_at:
                self._looked_at.add(data)
                self.note_equal(id, data, "ids")
        if self.warning or len(self._looked_at) >= MOST_EQUAL:
            self._of_forms.clear()

    def note(self, kind: str) -> None:
        """Note a kind, and warn where former runs have had other kinds, and not this one.

        Of a class that has changed each run is told: what lies under the former is there, and will not be found.
        """
        self.equal.take_kind(kind)
        if not kind or kind in self.new or without_zones(kind) in self.before - {kind}:
            return  # a version that told no zones has noted it
        if kind in self.before:
            if "<" in kind and not self._spec.expires:
                self._warn_of_former("its keys", kind)
            return
        self.new.add(kind)
        bare = _without_fields(kind)
        before = {one for one in self.before if not one.startswith(OF_ENTRIES)}
        alike = {one for one in before if _without_fields(one) == bare}
        if alike == {bare} or (alike and not any(_has_changed(one, kind) for one in alike)):
            return  # noted by a version that told no fields; or an Enum has more members, or fewer
        # A first run has nothing that could not be found again.
        if before and "NoneType" not in kind:
            self._warn("its keys", before, kind)

    def note_entry_key(self, key: object) -> None:
        """Note the kind of the key of an entry, and warn where former runs have had only other forms of its class."""
        of_key: object = tuple(map(type, key)) if type(key) is tuple else type(key)
        if of_key in self._seen_of_entries:
            return
        self._seen_of_entries.add(of_key)
        kind = OF_ENTRIES + kept_kind(key)
        # A function has keys of several kinds, as of several maps: only a class that has changed is told.
        if "<" not in kind or kind in self.new:
            return
        if kind not in self.before:
            self.new.add(kind)
        self._warn_of_former("keys of its entries", kind)

    def _warn_of_former(self, of_what: str, kind: str) -> None:
        """Warn where runs before have had other forms of the class in a kind."""
        bare = _without_fields(kind)
        alike = {one for one in self.before - {bare} if _without_fields(one) == bare and _has_changed(one, kind)}
        if alike:
            self._warn(of_what, {one.removeprefix(OF_ENTRIES) for one in alike}, kind.removeprefix(OF_ENTRIES))

    def note_equal(self, key: object, data: bytes, what: str = "keys") -> None:
        """Note a key with its bytes, and warn where one that is equal has others."""
        # One is told, and to look at each key for ever would cost more than its state.
        if not self.warning and (told := self.equal.note(self._spec, key, data, what)):
            self.warning = told
            self._tell()

    def unread(self, error: Exception) -> UnreadState:
        """Return the error of a key that can't be read, which lies in the state or has come to it."""
        spec = self._spec
        drop = typed(self._environment, f"state forget {self._app} {spec.op_id}")
        told = f"{spec.kind} {spec.op_id!r} at {spec.site}: a key of its state can't be read: {words_of(error)}"
        return UnreadState(f"{told}; or drop the state of this operator alone: {drop}")

    def _warn(self, of_what: str, kinds: Collection[str], kind: str) -> None:
        spec, app, before = self._spec, self._app, " and ".join(sorted(kinds))
        self.warning = (
            f"{spec.kind} {spec.op_id!r} at {spec.site}: {of_what} were {before} in the runs before, and one is "
            f"{kind} now. State that is kept under the former is not found by the latter, which begin with "
            f"nothing{MISREAD if '<' in kind else ''}. Make keys as they were ({before}); or drop what is kept: "
            f"{typed(self._environment, f'state forget {app} {spec.op_id}')}; or compute all again: "
            f"{typed(self._environment, f'reset {app}')}"
        )
        self._tell()

    def _tell(self) -> None:
        if self.warning not in self._told:
            self._told.add(self.warning)
            _log.warning("%s: %s", self._app, self.warning)


class KeptKeys(KeySerde):
    """The serde of keys under which state lies; it notes the kinds of those that are looked for, or stored."""

    def __init__(self, serde: Serde, kinds: KeyKinds) -> None:
        super().__init__(serde)
        self._kinds = kinds
        self._seen: set[type] = set()
        self._kinds_seen: dict[str, bool] = {}
        """The kinds of keys that were looked at, and whether equal ones may have other bytes."""
        self._kinds_noted: set[str] = set()
        self._looked_at: set[bytes] = set()
        """The keys that were looked at for equal ones."""
        kind: object = getattr(serde, "type", None)
        self._is_of_one_class = isinstance(kind, type) and is_record(kind)

    def encode(self, key: Key) -> bytes:
        # Not by super().encode(key), which would take as long again.
        kind = type(key)
        if kind not in self._seen:
            self._look((key,))
        return key if kind is bytes else self.serde.encode(key)  # type: ignore[return-value]

    def encode_all(self, keys: list[Any]) -> list[bytes | None]:
        self._look_at_new(keys)
        return super().encode_all(keys)

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        found = super().in_order(keys)
        # A window that opens and fires between two commits is stored nowhere, so that nobody else asks for its keys.
        self._look_at_new(found)
        return found

    def load(self, column: list[Any]) -> list[Key | None]:
        try:
            return super().load(column)
        except Exception as error:
            raise self._kinds.unread(error) from error

    def decode(self, key: Key | None) -> object:
        # Not by super().decode(key), which would take as long again for each pane of a window.
        if type(key) is not bytes:
            return key
        # Whoever reads a key may show it: of some records their class alone tells what lies in which place.
        if bytes not in self._seen:
            self._look((key,))
        try:
            return super().decode(key)
        except Exception as error:
            raise self._kinds.unread(error) from error

    def _look_at_new(self, keys: list[Any]) -> None:
        is_looked_at = self._kinds.equal.looks and bytes not in self._seen
        if is_looked_at or not self._seen.issuperset(map(type, keys)):
            self._look(keys)

    def seek(self, key: Key) -> None:
        if type(key) is bytes and self._may_be_equal(key, self._kind_of(key)):
            self._look_for_equal(key)

    def _may_be_equal(self, key: bytes, kind: str) -> bool:
        """Whether equal ones of a key of a kind may have other bytes."""
        if (known := self._kinds_seen.get(kind)) is None:
            known = _MAY_BE_EQUAL.search(kind) is not None
            if not known and "<" in kind:
                kinds: list[type] = [*map(type, _parts_of(super().decode(key)))]
                known = any(map(_has_several_forms, kinds))
            self._kinds_seen[kind] = known
        return known

    def _look_for_equal(self, key: bytes) -> None:
        # Each once, by its bytes: to hash a Decimal takes longer than all else that is done with a key.
        if key not in self._looked_at and len(self._looked_at) < MOST_EQUAL:
            self._looked_at.add(key)
            self._kinds.note_equal(super().decode(key), key)

    def _look(self, keys: Iterable[object]) -> None:
        for key in keys:
            if type(key) is bytes:
                kind = self._kind_of(key)
                if kind not in self._kinds_noted:
                    self._kinds_noted.add(kind)
                    self._kinds.note(kind)
                may_be_equal = self._may_be_equal(key, kind)
                if may_be_equal or (not self._is_of_one_class and self._kinds.equal.take_look()):
                    self._look_for_equal(key)
                if self._is_of_one_class and (not may_be_equal or len(self._looked_at) >= MOST_EQUAL):
                    self._seen.add(bytes)  # all others are of that class, too
            elif key is not None:
                if type(key) not in self._seen:
                    self._seen.add(type(key))
                    self._kinds.note(kept_kind(key))
                if self._kinds.equal.take_look():
                    self._kinds.note_equal(key, self.serde.encode(key))

    def _told_kind(self, key: object) -> str:
        return kept_kind(key)


def _hashable(key: object) -> object:
    """Return what equal keys have the same of, in a form that has a hash, the same one in all workers of an engine."""
    kind: type = type(key)
    # Not the class itself, whose hash is where it lies in the memory of a process.
    named = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(key, dict) and kind is dict:
        return named, frozenset((name, _hashable(one)) for name, one in key.items())
    if isinstance(key, list | tuple) and kind in (list, tuple):
        return named, tuple(map(_hashable, key))
    if is_record(kind) and not isinstance(key, Enum):
        return named, tuple(_hashable(getattr(key, one.name)) for one in fields_of(kind))
    return key


def _parts_of(key: object) -> Iterator[object]:
    if isinstance(key, tuple | list) and not is_record(type(key)):
        for part in key:
            yield from _parts_of(part)
    else:
        yield key


@cache
def _has_several_forms(kind: type) -> bool:
    """Whether a record has, at any depth, a field of which equal values may have other bytes."""
    left, seen = [kind], set[type]()
    while left:
        one = left.pop()
        if one in seen or not is_record(one) or Enum in one.__mro__:
            continue
        seen.add(one)
        hints = hints_of(one).values()
        if any(_FORMS.search(repr(hint)) for hint in hints):
            return True
        left += [part for hint in hints for part in _records_in(hint)]
    return False


def kept_kind(key: object) -> str:
    """Return the type of a key under which state lies, and of its parts; of records with their fields.

    The bytes of a record have its fields: with others, or in another order, it is another key.

    >>> from typing import NamedTuple
    >>> class Seat(NamedTuple): row: int; place: str
    >>> kept_kind(7), kept_kind((Seat(1, "a"), 7))
    ('int', '(Seat<row, place>, int)')
    """
    return kind_of(key, _with_fields)


@cache
def _with_fields(kind: type) -> str:
    return _told(kind, ())


def _told(kind: type, within: tuple[type, ...]) -> str:
    if issubclass(kind, Enum) and len(kind.__members__) <= MOST_MEMBERS:
        return f"{kind.__name__}<{', '.join(f'{name}={_plain(one.value)}' for name, one in kind.__members__.items())}>"
    if not is_record(kind) or kind in within:
        return kind.__name__
    hints, within, fields = hints_of(kind), (*within, kind), []
    for one in fields_of(kind):
        inside = [_told(part, within) for part in _records_in(hints.get(one.name))]
        fields.append(": ".join([one.name, *inside]))
    tag = tag_of(kind)
    return f"{kind.__name__}<{', '.join(fields)}>" + (f"<{tag[0]}={_plain(tag[1])}>" if tag else "")


def _plain(value: object) -> str:
    """Return a value in signs that no other part of a kind has."""
    said = repr(value)
    return said if _PLAIN.fullmatch(said) else blake2s(said.encode("utf-8", "replace"), digest_size=4).hexdigest()


def _has_changed(before: str, now: str) -> bool:
    """Whether two kinds of a class differ in more than members that are new, gone or renamed, and tags nobody noted."""
    if _MEMBERS.sub("", before) != _MEMBERS.sub("", now):
        return True
    for (_, one), (_, other) in zip(_MEMBERS.findall(before), _MEMBERS.findall(now), strict=False):
        had, has = (dict(part.split("=", 1) for part in said.split(", ")) for said in (one, other))
        if any(has.get(name, value) != value for name, value in had.items()):
            return True
    return False


def _records_in(hint: object) -> list[type]:
    """Return the classes of records, and the Enums, that a type names."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return [hint] if is_record(hint) or issubclass(hint, Enum) else []
    return [found for part in get_args(hint) for found in _records_in(part)]


def _without_fields(kind: str) -> str:
    """Return a kind as it is told without the fields of records."""
    while (found := _FIELDS.sub("", kind)) != kind:
        kind = found
    return kind


def tells_kinds(serde: Serde) -> bool:
    """Whether keys of several kinds may come with a serde, which are never equal then, or of a class that changes."""
    kind = getattr(serde, "type", None)
    return kind is Any or bool(_records_in(kind)) or has_types(kind, _OF_SEVERAL_FORMS)


_OF_SEVERAL_FORMS = inspect.DecimalType, inspect.DateTimeType, inspect.TimeType, inspect.DictType, inspect.TypedDictType


def kinds_before(checkpoints: Mapping[str, Checkpoint]) -> _Kinds:
    """Return the kinds of keys that runs before have had, by operator."""
    return _decoded(checkpoints.get(JOB, Checkpoint(0)))


def kinds_noted(checkpoints: Mapping[str, Checkpoint], kept: Collection[str]) -> str:
    """Return what the job notes when a run begins: the kinds that all tasks have had so far, of what has state."""
    found = _united(
        [checkpoints.get(JOB, Checkpoint(0)), *(checkpoints[name] for name in filter(is_task, checkpoints))]
    )
    return _encoded({operator: kinds for operator, kinds in found.items() if operator in kept})


def kinds_of_all(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    """Return what the checkpoint of a task notes that goes on with what several did."""
    found = _united(checkpoints)
    return {KEYS: _encoded(found)} if found else {}


def _united(checkpoints: Iterable[Checkpoint]) -> _Kinds:
    """Return the kinds that checkpoints note, all together, by operator."""
    found: _Kinds = {}
    for one in checkpoints:
        for operator, kinds in _decoded(one).items():
            found[operator] = found.get(operator, set()) | kinds
    return found


def kinds_of_task(checkpoint: Checkpoint, kinds: Mapping[str, KeyKinds], known: _Kinds) -> None:
    """Tell a task the known kinds; those that it noted itself in this run stay its own to note."""
    own = _decoded(checkpoint)
    for operator, one in kinds.items():
        one.before = frozenset(known.get(operator, ()))
        one.new = (one.new | own.get(operator, set())) - one.before


def to_note(kinds: Mapping[str, KeyKinds]) -> dict[str, str]:
    """Return what a task's checkpoint notes: its new kinds, and nothing where there is none."""
    new = {operator: one.new for operator, one in kinds.items() if one.new}
    return {KEYS: _encoded(new)} if new else {}


def renamed(checkpoint: Checkpoint, moves: Mapping[str, str]) -> Checkpoint:
    """Return a checkpoint with what it notes of operators under their new ids; of those whose new id is "" it goes."""
    # What comes in the place of something else brings along what is noted of it, and nothing else holds of it.
    replaced = {*moves.values()} - moves.keys()
    lowest = {moves.get(id, id): at for id, at in checkpoint.watermarks.items() if id not in replaced}
    lowest.pop("", None)
    if lowest != checkpoint.watermarks:
        checkpoint = replace(checkpoint, watermarks=lowest)
    if KEYS not in checkpoint.meanings:
        return checkpoint
    found = {moves.get(operator, operator): kinds for operator, kinds in _decoded(checkpoint).items()}
    found.pop("", None)
    return replace(checkpoint, meanings={**checkpoint.meanings, KEYS: _encoded(found)})


def _decoded(checkpoint: Checkpoint) -> _Kinds:
    return msgspec.json.decode(checkpoint.meanings.get(KEYS, "{}"), type=_Kinds)


def _encoded(kinds: Mapping[str, Collection[str]]) -> str:
    return msgspec.json.encode({operator: sorted(kinds[operator]) for operator in sorted(kinds)}).decode()
