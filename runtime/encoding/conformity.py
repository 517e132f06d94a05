"""The checks that a record's fields hold what its class declares, which no constructor of a Struct makes."""

from __future__ import annotations

import collections.abc as abc
import datetime as dt
from collections.abc import Callable, Collection
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

from operators.core.declared_types import types_in
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import (
    PLAIN_TYPES,
    fields_of,
    has_room,
    hints_of,
    is_checked_as_read,
    is_pydantic,
    is_record,
    is_struct,
    read_otherwise,
    records_inside,
    values_of,
    with_parameters,
)

EXACT_FLOATS = 2**53
"""Up to here each int is a float of its own."""
Check = Callable[[Any], bool]
"""Whether a value, or each of some values, is of a type."""
MADE_OF: dict[object, type] = {
    **{kind: kind for kind in (list, tuple, dict, set, frozenset)},
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Mapping, abc.MutableMapping), dict),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}
"""The class that msgspec makes of what is declared so."""


@cache
def conforms(kind: type) -> Check:
    """Return what tells whether a record of `kind` holds just what its fields declare, at every depth.

    An int counts where a float is declared that holds it. Of a record that does not, msgspec may write what its
    declared type can't be read from, or what is read as another value.

    >>> from msgspec import Struct
    >>> class Card(Struct):
    ...     eur: float
    ...     buys: list[int]
    >>> conforms(Card)(Card(1, [2])), conforms(Card)(Card("1.50", [2])), conforms(Card)(Card(1.5, [2.5]))
    (True, False, False)
    """
    return _written_for(kind)[0]


@cache
def _written_for(hint: Any) -> tuple[Check, Check]:
    """Return what tells whether a record of a class conforms, and whether all of some values are such records."""
    kind: type = get_origin(hint) or hint
    hints = _hints_of(hint, kind)
    namespace: dict[str, Any] = {}
    parts = []
    for number, field in enumerate(fields_of(kind)):
        kinds, checks = _alternatives(hints[field.name])
        parts.append([f"type(value.{field.name}) is kind{number}_{place}" for place in range(len(kinds))])
        namespace |= {f"kind{number}_{place}": one for place, one in enumerate(kinds)}
        if checks:
            namespace[f"check{number}"] = _any_of(checks)
            parts[-1].append(f"check{number}(value.{field.name})")
    if has_room(kind):
        own = 0 if is_struct(kind) or issubclass(kind, tuple) else len(parts)
        parts.append([f"len(value.__dict__) == {own}"])
    # Written out, which takes a third of a call for each field; the names are those of attributes.
    text = " and ".join(f"({' or '.join(one) or 'False'})" for one in parts) or "True"
    lines = [
        "def fits(value):",
        "    try:",
        f"        return {text}",
        "    except AttributeError:",
        "        return False",
        "def all_fit(values):",
        "    for value in values:",
        f"        if not (type(value) is of_class and {text}):",
        "            return False",
        "    return True",
    ]
    namespace["of_class"] = kind
    exec("\n".join(lines), namespace)
    return namespace["fits"], namespace["all_fit"]


def _hints_of(hint: Any, kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class, with the parameters that are given to it in their places."""
    given = dict(zip(getattr(kind, "__parameters__", ()), get_args(hint), strict=False))
    return {name: with_parameters(of, given) for name, of in hints_of(kind).items()}


def _alternatives(hint: object) -> tuple[frozenset[type], list[Check]]:
    """Return the plain types that a declared type allows, and the checks of what else it does."""
    if hint in PLAIN_TYPES or hint is None:
        assert isinstance(hint, type) or hint is None
        return frozenset({type(None) if hint is None else hint}), [_is_as_float] if hint is float else []
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = [_alternatives(one) for one in args]
        return frozenset().union(*(kinds for kinds, _ in found)), [check for _, checks in found for check in checks]
    if hint is Any:
        return frozenset(), [lambda value: True]
    if origin is Literal:
        return frozenset(), [lambda value: any(type(value) is type(one) and value == one for one in args)]
    if origin is None:
        if not isinstance(hint, type) or hint in _WHOLE or issubclass(hint, Enum) or is_pydantic(hint):
            return frozenset({hint} if isinstance(hint, type) else ()), []
        return frozenset(), [_record_check(hint)] if is_record(hint) else []
    if isinstance(origin, type) and is_record(origin) and not is_pydantic(origin):
        return frozenset(), [_record_check(hint)]
    made_of = MADE_OF.get(origin)
    if made_of is tuple and args[-1:] != (...,):
        each = [_all_are(one) for one in args]

        def is_tuple(value: Any) -> bool:
            return type(value) is tuple and len(value) == len(each) and all(map(_on_one, each, value))

        return frozenset(), [is_tuple]
    if made_of is dict:
        keys, values = map(_all_are, args)
        return frozenset(), [lambda value: type(value) is dict and keys(value) and values(value.values())]
    if made_of is None:  # what msgspec makes of other types is not always of them
        return frozenset(), []
    inner = _all_are(args[0])
    return frozenset(), [lambda value: type(value) is made_of and inner(value)]


_WHOLE = frozenset({dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID})
"""The classes of which every value is read again as one."""


def classes_in(hint: object) -> set[type]:
    """Return the classes of records in a declared type; raises TypeError for one that msgspec can't tell."""
    found = {getattr(one, "cls", None) for one in types_in(hint)}
    return {kind for one in found if is_record(kind := get_origin(one) or one)}


def names_apart(hint: object) -> list[str]:
    """Return the fields of models in a declared type, at every depth, that may be read as others than were written."""
    found: list[str] = []
    todo, seen = [hint], set[type]()
    while todo:
        with suppress(Exception):  # a class whose fields say no types
            for kind in classes_in(todo.pop()) - seen:
                seen.add(kind)
                found += [f"{kind.__qualname__}.{name}" for name in read_otherwise(kind)]
                todo += hints_of(kind).values()
    return found


def is_checked_within(hint: object) -> bool:
    """Whether a declared type has classes, at any depth, that check what is read as one of theirs, or change it."""
    with suppress(Exception):  # a class whose fields say no types
        return any(map(is_checked_as_read, classes_in(hint)))
    return False


def conforming(hint: object) -> tuple[Check, Check]:
    """Return what tells whether a value, and whether each of some, is of a declared type and can be read as one.

    It may say no of what can be: of types with bounds, classes that check what is read, and others whose values nobody
    knows without their bytes.

    >>> one, all_of = conforming(float | None)
    >>> one(1), one(True), all_of([1.5, None]), all_of([1.5, "a"])
    (True, False, True, False)
    """
    all_fit: Check | None = None
    try:
        kinds, checks = _alternatives(hint)
        if not kinds and is_record(get_origin(hint) or hint):
            all_fit = _written_for(hint)[1]
        if any(map(is_checked_as_read, classes_in(hint))):
            kinds, checks, all_fit = frozenset[type](), [], None
    except Exception:  # a class whose fields say no types
        kinds, checks, all_fit = frozenset[type](), [], None
    check = _any_of(checks) if checks else None

    def is_one(value: object) -> bool:
        try:
            return type(value) in kinds or (check is not None and check(value))
        except Exception:  # as of a field whose class nobody can look into
            return False

    def are_all(values: Collection[Any]) -> bool:
        with suppress(Exception):
            # One loop for a column of records, as a call of each takes half as long again.
            if all_fit is not None and all_fit(values):
                return True
        return kinds.issuperset(map(type, values)) or all(map(is_one, values))

    return is_one, are_all


def _is_as_float(value: object) -> bool:
    """Whether an int may be where a float is declared: it comes back as a float, which holds no other number then."""
    return type(value) is int and -EXACT_FLOATS <= value <= EXACT_FLOATS


def _on_one(check: Check, value: object) -> bool:
    return check((value,))


def _all_are(hint: object) -> Check:
    """Return what tells whether all values of an iterable are of a declared type, in C where it is a plain one."""
    kinds, checks = _alternatives(hint)
    if not checks:
        return lambda values: kinds.issuperset(map(type, values))
    one = _any_of(checks)
    return lambda values: (
        kinds.issuperset(map(type, values)) or all(type(value) in kinds or one(value) for value in values)
    )


def _any_of(checks: list[Check]) -> Check:
    if len(checks) == 1:
        return checks[0]
    return lambda value: any(check(value) for check in checks)


def _record_check(hint: Any) -> Check:
    # Looked up as values are checked: a record may hold itself, as a tree does.
    kind, its_own = get_origin(hint) or hint, partial(_written_for, hint)
    return lambda value: type(value) is kind and its_own()[0](value)


def is_as_declared(value: Any) -> bool:
    """Whether the records in a value hold just what their fields declare, of those whose fields' types say all.

    >>> is_as_declared((1, [2])), is_as_declared(("a", lambda: None))
    (True, True)
    """
    kind: type = type(value)
    if (check := _conforming.get(kind)) is not None:
        return check(value)
    if kind in SCALARS:
        return True
    if kind in (tuple, list, set, frozenset):
        return SCALARS.issuperset(map(type, value)) or all(map(is_as_declared, value))
    if kind is dict:
        return all(map(is_as_declared, value.values()))
    if not is_record(kind) or isinstance(value, Enum):
        return True
    if records_inside(kind) is not None:
        _conforming[kind] = conforms(kind)
        return _conforming[kind](value)
    return all(map(is_as_declared, values_of(value).values()))


_conforming: dict[type, Callable[[Any], bool]] = {}
"""What tells that a record conforms, by its class, of those whose fields' types say all."""
