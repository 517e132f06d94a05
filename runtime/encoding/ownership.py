"""The values that one stage hands to the next in memory: as the objects they are, where no one else may change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import inspect

from operators.core.base import Key, Serde
from operators.state.keyed_state import readers_of
from runtime.encoding.copies import COPIED
from runtime.encoding.keys import KeySerde
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.serdes import Declared, Evolving, Tagged, decoded, encode_all
from runtime.encoding.storable import check_kept

LOOKED_AT = 16
"""Values of which it is looked, at the first ones that are handed on as they are, whether they have bytes at all."""
AsItIs = Literal["all", "unchangeable", "nothing"]
ATTRS = "__attrs_attrs__"


class OwnValues:
    """Makes the values of one stage the next one's own, as they would be if a stream had kept them in between.

    Of what goes on `as_it_is`, all or what is unchangeable, only what a cut leaves is encoded. All else is encoded and
    decoded at once, as is what is not of the class that is declared: its bytes make it one. One thread at a time uses
    it, the one that is at work in the task.

    >>> declared = OwnValues(Declared(float), "unchangeable")
    >>> declared.own([1.5, None]), declared.own([1])
    ([1.5, None], [1.0])
    """

    def __init__(self, serde: Serde, as_it_is: AsItIs = "nothing") -> None:
        self.serde = KeySerde(serde)
        # What is of the declared class comes back as what is undeclared does: only others are brought into its form.
        self._kinds = {serde.type, type(None)} if isinstance(serde, Declared) and isinstance(serde.type, type) else None
        if type(serde) is not Evolving and self._kinds is None:
            as_it_is = "nothing"  # what a serde of the user's brings back, or a type that no object is of, nobody knows
        self._as_it_is = as_it_is
        self._looks = 0 if as_it_is == "nothing" else LOOKED_AT

    def own(self, values: list[Any]) -> list[Any]:
        """Return the values for the next stage; raises SerdeError for one that has no bytes, if it is encoded."""
        if self._looks:
            check_kept(self.serde.serde, values[: self._looks])
            self._looks = max(self._looks - len(values), 0)
        if self._as_it_is != "nothing":
            kinds = {*map(type, values)}  # once for all that is asked of them: a value costs as much as 20 ns for it
            if self._kinds is None or kinds <= self._kinds:
                if kinds <= SCALARS or self._are_nobody_elses(values, kinds):
                    return values
                return self.read(encode_all(self.serde.serde, values))
        if self.serde.are_plain(values):
            return values
        return self.read(encode_all(self.serde.serde, values))

    def _are_nobody_elses(self, values: list[Any], kinds: set[type]) -> bool:
        if self._as_it_is == "all":
            return are_as_declared(values, kinds)
        if len(kinds) == 1:
            (kind,) = kinds
            # Mostly all parts are scalars, and of the types that their class declares, which is soon told.
            has_scalars = _told_by_types(kind)
            if has_scalars is not None and has_scalars(values):
                return True
        return are_unchangeable(values, kinds) and are_as_declared(values, kinds)

    def read(self, data: list[bytes | None]) -> list[Any]:
        """Return the values of bytes, of which each reader has its own; None stays None."""
        serde = self.serde.serde
        some = [one for one in data if one is not None]
        if len(some) == len(data):
            return decoded(serde, some)
        return [None if one is None else serde.decode(one) for one in data]

    def own_groups(self, groups: Collection[dict[Key, list[object]]]) -> None:
        """Make the values of each key of groups the next stage's own, as `own` does."""
        # Of all groups at once, of which there may be as many as values.
        values = [*chain.from_iterable(chain.from_iterable(map(dict.values, groups)))]
        owned = self.own(values)
        if owned is not values:
            parts = iter(owned)
            for group in groups:
                for key, found in group.items():
                    group[key] = [*islice(parts, len(found))]


Keep = Callable[[Any], Any]


class KeptPart(NamedTuple):
    """A way to keep a part of a value as it is now, which raises Unkept for what is not as its type says."""

    keep: Keep
    is_same: bool
    """Whether it only looks, and returns the part itself, which nobody can change."""


class Unkept(Exception):
    """A value, or its type, has parts of which nobody knows whether they can be changed."""


def keeper_of(kind: object, encode: Keep) -> Keep | None:
    """Return what keeps a value of a type as it is now, in less time than its bytes take and are read in.

    That is the value itself where nobody can change it, and else a copy, down to what can't be changed. What is not as
    its type says is encoded at once. None for types of which nothing else can be kept.

    >>> class Trip(msgspec.Struct):
    ...     km: float
    ...     stops: list[str] = []
    >>> keep, trip = keeper_of(Trip, repr), Trip(1.0, ["Ulm"])
    >>> kept = keep(trip)
    >>> trip.stops.append("Bonn")
    >>> kept.stops, keep("else"), keeper_of(list[int], repr)
    (['Ulm'], "'else'", None)
    """
    try:
        info = inspect.type_info(kind)
    except TypeError:  # a type that msgspec does not know: it is for a serde of the user's
        return None
    if isinstance(info, inspect.AnyType):
        return _any_dict_keeper(encode)
    if isinstance(info, inspect.DictType) and isinstance(info.value_type, inspect.AnyType):
        return _any_dict_keeper(encode)
    if not isinstance(info, inspect.DictType | inspect.TypedDictType) and getattr(info, "cls", None) is not kind:
        return None
    try:
        return _known_part(info, (), encode).keep
    except Unkept:
        return None


_UNCHANGEABLE = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)
"""What msgspec calls types of whose values none can be changed, whatever it takes for one: bytes may be a bytearray."""


def _part_of(info: inspect.Type, within: tuple[type, ...]) -> KeptPart | None:
    """Return what keeps a part of records `within` which it lies; None where nobody can change one. Raises Unkept."""
    among = info.types if isinstance(info, inspect.UnionType) else (info,)
    kinds = [one.type if isinstance(one, inspect.Metadata) else one for one in among]
    kinds = [one for one in kinds if not isinstance(one, inspect.NoneType)]
    if all(isinstance(one, _UNCHANGEABLE) for one in kinds):
        return None
    if len(kinds) > 1:
        raise Unkept
    part = _known_part(kinds[0], within, _unkept)
    if len(among) == 1:
        return part
    keep = part.keep
    return KeptPart(lambda value: None if value is None else keep(value), part.is_same)


def _unkept(value: object) -> object:
    raise Unkept


def _known_part(info: inspect.Type, within: tuple[type, ...], other: Keep) -> KeptPart:
    """Return what keeps a value of a type that is no union; what is not as the type says is for `other`."""
    if isinstance(info, inspect.BytesType):
        return KeptPart(_bytes, True)
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return KeptPart(_list_keeper(_part_of(info.item_type, within)), False)
    if isinstance(info, inspect.DictType) and _part_of(info.key_type, within) is None:
        return KeptPart(_dict_keeper(_part_of(info.value_type, within), other), False)
    if isinstance(info, inspect.TypedDictType) and info.cls not in within:
        parts = {field.encode_name: _part_of(field.type, (*within, info.cls)) for field in info.fields}
        return KeptPart(
            _named_keeper({name: part.keep for name, part in parts.items() if part is not None}, other), False
        )
    if isinstance(info, inspect.StructType | inspect.DataclassType) and info.cls not in within:
        inner = (*within, info.cls)
        found = {field.name: part for field in info.fields if (part := _part_of(field.type, inner)) is not None}
        if isinstance(info, inspect.StructType):
            return _struct_part(info.cls, found, other)
        return _dataclass_part(info.cls, [field.name for field in info.fields], found, other)
    raise Unkept


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:  # a bytearray, which can be changed, is taken for bytes
        raise Unkept
    return value


def _list_keeper(item: KeptPart | None) -> Keep:
    keep, is_same = (None, True) if item is None else item

    def kept(value: Any) -> object:
        kind = type(value)
        if kind is not list and kind is not tuple:
            raise Unkept
        if keep is None:
            return value[:]
        found = [*map(keep, value)]
        if kind is list:
            return found
        return value if is_same else tuple(found)

    return kept


def _dict_keeper(item: KeptPart | None, other: Keep) -> Keep:
    if item is None:
        return lambda value: value.copy() if type(value) is dict else other(value)
    keep = item.keep

    def kept(value: Any) -> object:
        try:
            return {key: keep(one) for key, one in value.items()} if type(value) is dict else other(value)
        except Unkept:
            return other(value)

    return kept


def _named_keeper(parts: Mapping[str, Keep], other: Keep) -> Keep:
    if not parts:
        return lambda value: value.copy() if type(value) is dict else other(value)

    def kept(value: Any) -> object:
        try:
            return _with_parts(value.copy(), parts) if type(value) is dict else other(value)
        except Unkept:
            return other(value)

    return kept


def _with_parts(copy: dict[str, Any], parts: Mapping[str, Keep]) -> dict[str, Any]:
    for name in parts.keys() & copy.keys():
        copy[name] = parts[name](copy[name])
    return copy


def _any_dict_keeper(encode: Keep) -> Keep:
    are_scalars = (SCALARS | {dt.datetime, bytes}).issuperset
    return lambda value: (
        value.copy() if type(value) is dict and are_scalars(map(type, value.values())) else encode(value)
    )


def _struct_part(kind: type[msgspec.Struct], parts: Mapping[str, KeptPart], other: Keep) -> KeptPart:
    is_frozen = kind.__struct_config__.frozen
    is_same = bool(is_frozen) and all(part.is_same for part in parts.values())
    set_it = "change(copy, {0!r}, {1})" if is_frozen else "copy.{0} = {1}"
    lines = ["copy = value" if is_same else "copy = copied(value)"]
    for number, (name, part) in enumerate(parts.items()):
        kept = f"keeps[{number}](value.{name})"
        lines.append(kept if part.is_same else set_it.format(name, kept))
    return KeptPart(_record_keeper(kind, lines, parts, other), is_same)


def _dataclass_part(kind: type, names: list[str], parts: Mapping[str, KeptPart], other: Keep) -> KeptPart:
    has_own = any("__setattr__" in vars(base) for base in kind.__mro__[:-1])  # as where it is frozen
    set_it = "set_as_object(copy, {0!r}, {1})" if has_own else "copy.{0} = {1}"
    keeps = {name: f"keeps[{number}](value.{name})" for number, name in enumerate(parts)}
    # Written out it takes a fifth of what the copy module does.
    lines = ["copy = new(kind)", *(set_it.format(name, keeps.get(name, f"value.{name}")) for name in names)]
    return KeptPart(_record_keeper(kind, lines, parts, other), False)


def _record_keeper(kind: type, lines: Sequence[str], parts: Mapping[str, KeptPart], other: Keep) -> Keep:
    """Return what keeps a record as lines say that make the `copy` which is kept."""
    namespace: dict[str, Any] = {
        "kind": kind,
        "other": other,
        "copied": msgspec.Struct.__copy__,  # type: ignore[attr-defined]
        "new": object.__new__,
        "change": msgspec.structs.force_setattr,
        "set_as_object": object.__setattr__,
        "Unkept": Unkept,
        "keeps": [part.keep for part in parts.values()],
    }
    source = [
        "def keep(value):",
        "    if type(value) is not kind:",
        "        return other(value)",
        "    try:",
        *(f"        {line}" for line in lines),
        "        return copy",
        "    except (AttributeError, Unkept):  # a field that was never set, or is not as its type says",
        "        return other(value)",
    ]
    # The names are those of attributes.
    exec("\n".join(source), namespace)
    found: Keep = namespace["keep"]
    return found


def are_as_declared(values: list[Any], kinds: set[type] | None = None) -> bool:
    """Whether no record has an int where its class declares a float: its bytes would bring a float back.

    `kinds` are the types of the values, where they are known.

    >>> from typing import NamedTuple
    >>> class Trip(NamedTuple):
    ...     km: float
    >>> are_as_declared([Trip(1.0), "else"]), are_as_declared([Trip(1)])
    (True, False)
    """
    kinds = {*map(type, values)} if kinds is None else kinds
    for kind in kinds - SCALARS:
        floats, records = _declared_parts(kind)
        if not floats and not records:
            continue
        of_kind = _of_kind(values, kind, kinds)
        if any(int in map(type, map(read, of_kind)) for read in floats):
            return False
        if not all(are_as_declared([*map(read, of_kind)]) for read in records):
            return False
    return True


@lru_cache(maxsize=256)
def _declared_parts(kind: type) -> tuple[list[attrgetter[Any]], list[attrgetter[Any]]]:
    """Return what reads the parts of a class that are floats, or records that may have some."""
    among = _declared_types(kind)
    floats = [attrgetter(name) for name, kinds in among.items() if float in kinds and int not in kinds]
    records = [attrgetter(name) for name, kinds in among.items() if any(map(_is_record, kinds))]
    return floats, records


def _declared_types(kind: type) -> dict[str, set[object]]:
    """Return the types that each part of a record may be of, by its class."""
    try:
        hints = get_type_hints(kind) if _is_record(kind) else {}
    except Exception:  # a name that is not there any more tells nothing
        return {}
    return {name: {*get_args(hint)} or {hint} for name, hint in hints.items()}


@lru_cache(maxsize=256)
def _told_by_types(kind: type) -> Callable[[list[Any]], bool] | None:
    """Return what tells of records that nobody can change whether all parts are scalars as their class declares.

    >>> class Trip(msgspec.Struct, frozen=True):
    ...     km: float
    ...     by: str | None
    >>> has_scalars = _told_by_types(Trip)
    >>> has_scalars([Trip(1.0, None)]), has_scalars([Trip(1.0, "car"), Trip(1, "car")]), _told_by_types(list)
    (True, False, None)
    """
    if readers_of(kind) is None:
        return None
    declared = _declared_types(kind)
    scalars: list[Any] = [*SCALARS]
    tests = []
    for name in _names_of(kind):
        kinds = declared.get(name, set())
        among: Collection[Any] = kinds if kinds and kinds <= SCALARS else SCALARS - {int} if float in kinds else ()
        told = " or ".join(f"kind(value.{name}) is kind{scalars.index(one)}" for one in among)
        tests.append(f"({told or f'kind(value.{name}) in SCALARS'})")
    parameters = "".join(f", kind{number}=scalars[{number}]" for number in range(len(scalars)))
    namespace: dict[str, Any] = {"scalars": scalars, "SCALARS": SCALARS}
    # Comparisons that end with the first one that fails, and make nothing: two thirds of what a tuple of types takes.
    lines = [
        f"def has_scalars(values, kind=type{parameters}):",
        "    for value in values:",
        f"        if not ({' and '.join(tests) or 'True'}):",
        "            return False",
        "    return True",
    ]
    # The names are those of attributes.
    exec("\n".join(lines), namespace)
    found: Callable[[list[Any]], bool] = namespace["has_scalars"]
    return found


def _is_record(kind: object) -> bool:
    """Whether a class declares the types of its parts, and lets others be."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, msgspec.Struct) or is_dataclass(kind) or hasattr(kind, "_fields") or hasattr(kind, ATTRS)


def _of_kind(values: list[Any], kind: type, kinds: set[type]) -> list[Any]:
    return values if len(kinds) == 1 else [value for value in values if type(value) is kind]


def are_unchangeable(values: list[Any], kinds: set[type] | None = None) -> bool:
    """Whether nobody can change any of these values in place; `kinds` are their types, where they are known.

    >>> are_unchangeable([(1, "a"), (2, None)]), are_unchangeable([(1, []), (2, [])])
    (True, False)
    """
    # Part by part over the whole column, as `is_plain` is for one value: there may be many.
    kinds = {*map(type, values)} if kinds is None else kinds
    for kind in kinds - SCALARS:
        of_kind = _of_kind(values, kind, kinds)
        if kind is tuple:
            if not all(isinstance(value, tuple) and are_unchangeable([*value]) for value in of_kind):
                return False
            continue
        readers = readers_of(kind)
        if readers is None:
            return False
        # Most parts are scalars, and their types are soon told: the others are looked at, part by part.
        of_parts = zip(*_kinds_of_parts(kind)(of_kind), strict=True)
        if not all(
            SCALARS.issuperset(each) or are_unchangeable([*map(read, of_kind)])
            for read, each in zip(readers, of_parts, strict=True)
        ):
            return False
    return True


def values_kept(values: Sequence[Any]) -> Callable[[range], list[Any]]:
    """Return what returns the values of rows as they are now, whatever functions do with them or with what it returned.

    Values without bytes stay as functions leave them.

    >>> values = [[1], [2]]
    >>> anew = values_kept(values)
    >>> values[1].append(3)
    >>> anew(range(1, 2))
    [[2]]
    """
    found = [*values]
    if are_unchangeable(found):
        return lambda rows: found[rows.start : rows.stop]
    if COPIED.isdisjoint(map(type, found)):
        # Records: bytes of many take a tenth of what a copy of each does, and are mostly never read.
        with suppress(Exception):
            data = encode_all(_TAGGED, found)
            return lambda rows: [None if one is None else _TAGGED.decode(one) for one in data[rows.start : rows.stop]]
    found = [*map(_copied, found)]
    return lambda rows: [*map(_copied, found[rows.start : rows.stop])]


_TAGGED = Tagged()


def _copied(value: object) -> object:
    try:
        return _TAGGED.copy(value)
    except Exception:
        return value


@lru_cache(maxsize=256)
def _kinds_of_parts(kind: type) -> Callable[[list[Any]], set[tuple[type, ...]]]:
    """Return what tells the types of the parts of records of a class, all that there are together."""
    namespace: dict[str, Any] = {}
    # Written out, which takes half as long as a call for each part; the names are those of attributes.
    parts = "".join(f"type(value.{name}), " for name in _names_of(kind))
    exec(f"def kinds(values):\n    return {{({parts}) for value in values}}", namespace)
    found: Callable[[list[Any]], set[tuple[type, ...]]] = namespace["kinds"]
    return found


def _names_of(kind: type) -> tuple[str, ...]:
    """Return the names of the parts of a record that nobody can change."""
    names: tuple[str, ...] = kind._fields if hasattr(kind, "_fields") else kind.__struct_fields__  # type: ignore[attr-defined]
    return names
