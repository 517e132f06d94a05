"""The schema evolution of stored values: the present definition of a class reads or refuses what earlier ones wrote."""

from __future__ import annotations

import math
import operator
import re
import types
import typing
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime
from enum import Enum, Flag
from functools import cache
from hashlib import blake2s
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from operators.core.wording import named, shown
from runtime.encoding.classes import class_of, is_again, name_of
from runtime.encoding.record_types import (
    bounds_of,
    check_validators,
    fields_of,
    has_record_keys,
    hints_of,
    is_by_position,
    is_record,
    is_struct,
    is_typed_dict,
    made,
    records_within,
    required_keys,
    tag_of,
    tags_inside,
    values_of,
)
from runtime.model.errors import SerdeError, command

Part = Callable[[object, object, str], object]
"""Brings a part of a value to its declared type: `fitted` if it was stored with its type, `revived` if without."""
_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("ClassVar", "Final", "Required", "NotRequired", "ReadOnly")
    if hasattr(typing, name)
)
_SHOWN = 60


def fitted(value: object, hint: object, where: str) -> object:
    """Return a value as `hint` declares it: itself, where it is one, or one of a wider type.

    Raises SerdeError, which says what was stored and what is declared. A type that says nothing refuses nothing.

    >>> fitted(3, float | None, "Card.eur"), fitted(None, int | None, "Card.n"), fitted((1, 2), list[int], "Card.all")
    (3.0, None, [1, 2])
    >>> fitted("seven", int, "Card.n")
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: Card.n was stored as str ('seven') and is declared int now
    """
    return _fitted(value, hint, where, fitted)


def _fitted_within(value: object, hint: object, where: str) -> object:
    """Return what `fitted` does; raises SerdeError, too, for what is beyond the bounds that the declared type says."""
    return _fitted(value, hint, where, _fitted_within)


def _fitted(value: object, hint: object, where: str, part: Part) -> object:
    if (bare := _bare(hint)) is not hint:
        return _of_bare(value, bare, hint, where, part)
    if _is_silent(hint):
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _one_of(value, get_args(hint), where, part)
    if origin is Literal:
        if any(type(value) is type(one) and value == one for one in get_args(hint)):
            return value
        raise _misfit(value, hint, where)
    if hint is None or hint is type(None):
        if value is None:
            return None
        raise _misfit(value, hint, where)
    if origin is not None and isinstance(origin, type):
        return _in_container(value, hint, origin, where, part)
    if is_typed_dict(hint):
        return _typed_dict(value, hint, where, part)
    if isinstance(hint, type):
        return _instance(value, hint, where)
    return value


def revived(raw: object, hint: object, where: str) -> object:
    """Return a value that was stored without its types: records as mappings, all collections as lists.

    Raises SerdeError for what is not of the declared type; unknown fields are dropped, at every depth.
    """
    return _revived(raw, hint, where, revived)


def _revived_within(raw: object, hint: object, where: str) -> object:
    """Return what `revived` does; raises SerdeError, too, for what is beyond the bounds that the declared type says."""
    return _revived(raw, hint, where, _revived_within)


def _revived_as_outside(raw: object, hint: object, where: str) -> object:
    """Return what `revived` does of records that were stored as JSON calls their fields."""
    return _revived(raw, hint, where, _revived_as_outside)


def _revived(raw: object, hint: object, where: str, part: Part) -> object:
    if (bare := _bare(hint)) is not hint:
        return _of_bare(raw, bare, hint, where, part)
    if _is_silent(hint):
        if isinstance(raw, list | dict):
            raise SerdeError(
                f"{where} was stored as part of a record whose type said what it is, and is declared {_name(hint)} "
                "now: declare the type that it had"
            )
        return raw
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _one_of(raw, get_args(hint), where, part)
    kind = origin or hint
    if is_record(kind):
        if not isinstance(raw, dict) or not _may_have_tag(raw, kind):
            raise _tag_misfit(raw, [hint], where) or _misfit(raw, hint, where)
        return made(kind, _brought(kind, raw, part))
    if is_typed_dict(hint):
        return _typed_dict(raw, hint, where, part)
    if isinstance(origin, type) and isinstance(raw, list | dict) and issubclass(origin, _COLLECTIONS):
        return _in_container(raw, hint, origin, where, part)
    return _converted(raw, hint, where)


_WITHIN: Collection[Part] = (_fitted_within, _revived_within)
"""What looks at the bounds of a declared type as well."""


def _of_bare(value: object, bare: object, hint: object, where: str, part: Part) -> object:
    """Return a part of the `bare` type within a declared one, which may say bounds beside it."""
    found = part(value, bare, where)
    if part in _WITHIN:
        _check_bounds(found, _said_of(hint), where)
    return found


def _converted(value: object, hint: Any, where: str) -> object:
    """Return a plain value as a type that says the same: text that says a date, a UUID, a Decimal; a wider number."""
    # msgspec reads bytes as Base64 from text, and rounds an int to the next float: these would be other values.
    is_other = isinstance(value, str) and hint in (bytes, bytearray, memoryview)
    try:
        found = msgspec.convert(value, hint)
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        raise _misfit(value, hint, where) from error
    if is_other or (isinstance(value, int) and found != value):
        raise _misfit(value, hint, where)
    return found


def fitted_record(kind: type, values: Mapping[str, object]) -> object:
    """Return a record of values that were stored with their types, by name."""
    found = made(kind, _brought(kind, values, _fitted_within))
    check_validators(found)
    return found


def revived_record(kind: type, raw: Mapping[str, object], by_name: bool, was_described: bool) -> object:
    """Return a record of values that were stored without their types, by its own names or as JSON calls its fields."""
    # Where nothing says that the class was another, a bound may be as old as the value: no constructor asks it.
    return made(
        kind, _brought(kind, raw, _revived_within if was_described else revived if by_name else _revived_as_outside)
    )


def as_it_was(kind: type, raw: Mapping[str, object]) -> object:
    """Return a record with values that never were of their declared types, which nobody checked when it was made.

    Numbers and None are what they are, whatever was declared. Raises SerdeError for text, which many types become.
    """

    def part(value: object, hint: object, where: str) -> object:
        try:
            return revived(value, hint, where)
        except SerdeError:
            if value is None or isinstance(value, bool | int | float):
                return value
            kind = _bare(hint)
            if isinstance(value, dict) and is_record(kind):
                return as_it_was(kind, value)
            raise

    return made(kind, _brought(kind, raw, part))


def member(name: str, value: object) -> object:
    """Return the member of the Enum of a stored name and value; raises SerdeError where another has the value now.

    A member may get another name. But where numbers are given out anew, as by `auto()` when a member is put between
    others, the value would be that of another member without a word.
    """
    path, _, written = name.partition("#")
    kind = class_of(path)
    if not issubclass(kind, Enum):
        raise SerdeError(f"stored bytes name {path} as an Enum, and it is another class now")
    try:
        found = kind(value)
    except (ValueError, KeyError) as error:
        raise SerdeError(
            f"{value!r} was stored as a {kind.__qualname__}, which has no such member now: keep one with this value"
        ) from error
    if written == found.name:
        return found
    # Of flags several may be set: each that has its name still must be among them.
    named = [kind.__members__[one] for one in written.split("|") if one in kind.__members__]
    within = found.value if isinstance(found, Flag) else 0
    for one in named:
        if one is not found and not (isinstance(one, Flag) and one.value & within == one.value):
            raise SerdeError(
                f"{value!r} was stored as {kind.__qualname__}.{one.name}, which is {one.value!r} now, and {found.name} "
                "has its value: give members the values that they had, and new ones others"
            )
    return found


@contextmanager
def explained(kind: type) -> Iterator[None]:
    """Add to the error of a stored record that does not fit its class what the user can do."""
    try:
        yield
    except SerdeError as error:
        raise changed_error(kind, str(error)) from error
    except Exception as error:
        raise changed_error(kind, named(error)) from error


def changed_error(kind: type, why: str) -> SerdeError:
    """Return the error for a stored record that its class does not read any more."""
    return SerdeError(
        f"a stored {kind.__qualname__} is none of the class as it is now: {why}. Fields may be added with a default, "
        "removed, reordered and widened (int to float, T to T | None); for anything else, give the new class a name of "
        "its own and convert the old one where it is read, or what is stored: "
        f"{command('state convert APP.py OPERATOR MODULE:FUNCTION')}; or begin anew"
    )


def check_record_keys(kind: type, why: Exception) -> None:
    """Raise SerdeError for whole bytes of a class with records as keys of a dict, which are not read without types."""
    # Earlier versions wrote such records as a whole as well.
    if has_record_keys(kind):
        told = "an earlier version stored records as keys of a dict, which only the classes of then can read"
        raise changed_error(kind, told) from why


def by_position(kind: type, values: list[object]) -> object:
    """Return a record as earlier versions stored it: by the order of its fields."""
    fields = fields_of(kind)
    if len(values) != len(fields):
        why = f"an earlier version stored it by the order of {len(values)} fields, and it has {len(fields)}"
        raise changed_error(kind, why)
    return made(kind, {field.name: value for field, value in zip(fields, values, strict=True)})


def in_order(kind: type, parts: object) -> dict[str, object]:
    """Return the parts of a record that msgspec wrote as an array, by name; raises SerdeError where they are none."""
    if not isinstance(parts, list) or not is_by_position(kind):
        raise changed_error(kind, "it was stored by the order of its fields, which are others now")
    tags = 0 if tag_of(kind) is None else 1
    return dict(zip((field.name for field in fields_of(kind)), parts[tags:], strict=False))


def record_named(name: str) -> type:
    """Return the class of records that has a name; raises SerdeError where it is another class now."""
    found = class_of(name)
    if not is_record(found):
        raise SerdeError(f"stored bytes name {name} as a record, and it is another class now")
    return found


def said_in(name: str) -> tuple[str, bool, str, str | None]:
    """Return what the head of a whole value says: its class, whether it is by name, its definition, and tags inside.

    None of tags means that nothing is said of them.
    """
    path, by_name, rest = name.partition("#")
    written, says_tags, tags = rest.partition("#")
    return path, bool(by_name), written, tags if says_tags else None


@cache
def tags_told(kind: type) -> str | None:
    """Return a few signs for the tags of the classes that values of `kind` may hold; None where none has a tag.

    All values carry them. So the classes of one module whose tags are their names share the signs of that module, and
    each other class has signs of its own with its tag. Behind them stand the fields that tags are in, if they are
    others than where nothing is said.
    """
    tags = tags_inside(kind)
    # Where a tag is the name of two, both are told with theirs.
    named = {one for one, tag in tags.items() if [other for other in tags if _is_name_of(other, tag)] == [one]}
    # Of one module alone: with the signs of two, nobody could tell which of them had a class whose name is in both.
    modules = Counter(map(_module_of, named))
    module = max(sorted(modules), key=modules.__getitem__, default=None)
    signs = {
        _signs(module) if one in named and _module_of(one) == module else _signs_of(one, tag)
        for one, tag in tags.items()
    }
    fields = {found[0] for one in tags if (found := tag_of(one)) is not None}
    said = "" if fields <= {_TAG} else f".{','.join(sorted(fields))}"
    return f"{''.join(sorted(signs))}{said}" if tags else None


@cache
def exchanged_tags(kind: type, stored: str | None) -> Mapping[str | int, type]:
    """Return the tags that another class had when values with these signs were stored, and that class."""
    if stored is None or stored == tags_told(kind):
        return {}
    signs, now = _signs_told(stored)[0], tags_inside(kind)

    def told(one: type, tag: str | int) -> int:
        """Return 2 where a class had a tag, and 1 where it had if it was there, as its tag would be its name."""
        return 2 if _signs_of(one, tag) in signs else int(_is_name_of(one, tag) and _signs(_module_of(one)) in signs)

    found = {}
    for tag in now.values():
        of_owner = max(told(one, tag) for one, its in now.items() if its == tag)
        for one, its in now.items():
            # A class that had the tag that it has now had no other.
            if its != tag and told(one, its) < 2 and (told(one, tag) == 2 or told(one, tag) > of_owner):
                found[tag] = one
    return found


def check_tags(kind: type, stored: str | None, held: Mapping[str, object]) -> None:
    """Raise SerdeError where a part of a stored record has a tag that was another class's when it was stored."""
    _check_former_tags(kind, stored, held)
    exchanged, now = exchanged_tags(kind, stored), tags_inside(kind)
    names = {field for one in now if (field := _tag_field(one)) is not None}
    # Only by what is really there: a class may be new, and nothing stored has its tag.
    for tag in _tags_in([*held.values()], names) if exchanged else ():
        if (one := exchanged.get(tag)) is not None:
            was, by = _told_apart(one, now), next(_told_apart(other, now) for other in now if now[other] == tag)
            raise SerdeError(
                f"a stored {kind.__qualname__} holds a {was}, whose tag was {tag!r} then and is {now[one]!r} now: it "
                f"would be read as a {by}. Give {was} the tag that it had, and new classes tags of their own"
            )


def _check_former_tags(kind: type, stored: str | None, held: Mapping[str, object]) -> None:
    """Raise SerdeError for a part with the tag of a class that is not there now, where no class reads such a field."""
    if not stored:
        return
    inside, (signs, fields) = records_within(kind), _signs_told(stored)
    # A class that reads a field refuses what it is not.
    known = {name for one in inside for name in (_tag_field(one), *(field.name for field in fields_of(one)))}
    for tag in _tags_in([*held.values()], fields - known):
        if not any(_is_name_of(one, tag) or _signs_of(one, tag) in signs for one in inside):
            told = ", ".join(sorted(one.__qualname__ for one in inside if one is not kind))
            raise SerdeError(
                f"a stored {kind.__qualname__} holds a record with the tag {tag!r}, and may hold {told or 'none'} now: "
                "keep the class that had this tag in the type of the field"
            )


def _signs_told(stored: str) -> tuple[set[str], set[str]]:
    """Return the signs for tags that a stored value tells, and the fields that these tags are in."""
    signs, says_fields, fields = stored.partition(".")
    return {signs[at : at + _SIGNS] for at in range(0, len(signs), _SIGNS)}, {
        *(fields.split(",") if says_fields else [_TAG])
    }


_TAG = "type"
"""The field that tags are in where a class names no other."""
_SIGNS = 3
"""The signs for a tag, of 6 bits each: values of ten classes that were exchanged go unseen once in 26,000 times."""


def _signs(text: str) -> str:
    return urlsafe_b64encode(blake2s(text.encode("utf-8", "replace")).digest())[:_SIGNS].decode()


def _signs_of(kind: type, tag: str | int) -> str:
    return _signs(f"{_module_of(kind)}:{kind.__qualname__}#{tag!r}")


def _module_of(kind: type) -> str:
    """Return the module that a class is stored under; of one that is not found there, the module that it says."""
    with suppress(SerdeError):
        return name_of(kind).partition(":")[0]
    return kind.__module__


def _is_name_of(kind: type, tag: str | int) -> bool:
    """Whether a tag is a class's name, as `tag=True` says, or `tag=str.lower`."""
    return isinstance(tag, str) and tag.lower() == kind.__qualname__.lower()


def _tag_field(kind: object) -> str | None:
    tag = tag_of(kind)
    return tag and tag[0]


def _tags_in(parts: Iterable[object], fields: Collection[str]) -> Iterator[str | int]:
    """Yield the tags of the records in parts of a stored value, by the names of the fields that have them."""
    for part in parts:
        if isinstance(part, dict):
            yield from (tag for name in fields if isinstance(tag := part.get(name), str | int))
            yield from _tags_in(part.values(), fields)
        elif isinstance(part, list):
            yield from _tags_in(part, fields)


def _told_apart(kind: type, among: Iterable[type]) -> str:
    """Return the name of a class, with its module where another of the same name is among some."""
    is_alone = sum(one.__qualname__ == kind.__qualname__ for one in among) == 1
    return kind.__qualname__ if is_alone else f"{kind.__module__}.{kind.__qualname__}"


def _brought(kind: type, values: Mapping[str, object], part: Part) -> dict[str, object]:
    hints = hints_of(kind)
    names = {field.name for field in fields_of(kind)}
    if part is _revived_as_outside and is_struct(kind):
        own = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        assert len(own) == len(kind.__struct_fields__), "two fields have one name in JSON"
        values = {own.get(name, name): value for name, value in values.items()}
    # Names that are no fields any more go along as they are: `made` takes only the fields, and what is stored of a
    # pydantic model beside its fields lies under such a name.
    found = {
        name: part(value, hints.get(name, Any), f"{kind.__qualname__}.{name}") if name in names else value
        for name, value in values.items()
    }
    for name in names & found.keys() if part in _WITHIN else ():
        _check_bounds(found[name], bounds_of(kind, name), f"{kind.__qualname__}.{name}")
    return found


_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "multiple_of": lambda value, bound: math.isclose(value / bound, round(value / bound)),
    "min_length": lambda value, least: len(value) >= least,
    "max_length": lambda value, most: len(value) <= most,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    # Of annotated-types it is the name of a zone, or any: of which values of one instant do not differ.
    "tz": lambda value, has_zone: type(has_zone) is not bool or (value.tzinfo is not None) == has_zone,
}
"""The bounds that `Annotated` and pydantic say of values, by the names that msgspec and annotated-types give them."""


def _check_bounds(value: object, said: Iterable[object], where: str) -> None:
    """Raise SerdeError for a value that is not within bounds, which may be newer than it; None is in all bounds."""
    for one in said if value is not None else ():
        for name, holds in _BOUNDS.items():
            bound = getattr(one, name, None)
            with suppress(TypeError, AttributeError, ValueError, OverflowError):  # it says nothing of such a value
                if bound is not None and not holds(value, bound):
                    raise SerdeError(f"{where} was stored as {_shown(value)}, and its type says {name}={bound!r} now")


def _said_of(hint: object) -> Iterator[object]:
    """Yield what `Annotated` says about a type, at each name for it."""
    while (inner := _inner(hint)) is not hint:
        if get_origin(hint) is typing.Annotated:
            for one in get_args(hint)[1:]:
                yield from (one, *getattr(one, "metadata", ()))  # which pydantic's Field() has
        hint = inner


def _bare(hint: object) -> object:
    """Return a type without what is said about it: Annotated, Final, NewType, a name given with `type`."""
    while (inner := _inner(hint)) is not hint:
        hint = inner
    return hint


def _inner(hint: Any) -> object:
    """Return a type without the outermost of what is said about it; itself where nothing is."""
    if hasattr(hint, "__supertype__"):
        return hint.__supertype__
    if hasattr(hint, "__value__"):
        return hint.__value__
    if get_origin(hint) is typing.Annotated or get_origin(hint) in _WRAPPERS:
        return get_args(hint)[0]
    if isinstance(hint, TypeVar):
        return hint.__bound__ or Any
    return hint


def _is_silent(hint: object) -> bool:
    return hint is Any or hint is object or isinstance(hint, str) or hint in _WRAPPERS


def _one_of(value: object, hints: Iterable[object], where: str, part: Part) -> object:
    """Return a value as the member of a union that it is, or else the first that it fits."""
    # All members are tried before the first that fits is taken: an int fits `float | int` as it is, and only by its
    # second member.
    found = []
    hints = [hint for hint in hints if _may_have_tag(value, _bare(hint))] or [*hints]
    kinds = _kinds_of_parts(value, hints)
    for hint in hints:
        # A part that has nothing to tell its class by would be read as the first that has such fields.
        if len(kinds) > 1 and hint in kinds:
            continue
        try:
            one = part(value, hint, where)
        except SerdeError:
            continue
        if one is value and not _is_silent(_bare(hint)):
            return value
        found.append(one)
    if not found:
        if len(kinds) > 1:
            told = ", ".join(_told_apart(one, kinds.values()) for one in kinds.values())
            tag = next(filter(None, map(_tag_field, kinds.values())), None)
            by = "its class" if tag is None else f"the field {tag!r} for its tag"
            raise SerdeError(f"{where} was stored without {by}, and nothing tells which of {told} it is")
        raise _tag_misfit(value, hints, where) or _misfit(value, Union.__getitem__(tuple(hints)), where)
    return found[0]


def _kinds_of_parts(value: object, hints: Iterable[object]) -> dict[object, type]:
    """Return the members of a union that are records which a part without its class may be; none of another part."""
    if type(value) is not dict or not all(type(key) is str for key in value):
        return {}
    kinds = {hint: get_origin(bare) or bare for hint in hints for bare in (_bare(hint),)}
    named = {hint: kind for hint, kind in kinds.items() if is_record(kind)}
    has_tag = any((field := _tag_field(kind)) is not None and field in value for kind in named.values())
    return {} if has_tag else named


def _tag_misfit(value: object, hints: Iterable[object], where: str) -> SerdeError | None:
    """Return the error for a part with a tag that no member of a union has; None for another part."""
    if not isinstance(value, dict):
        return None
    tags = {one: tag for hint in hints if isinstance(one := _bare(hint), type) and (tag := tag_of(one)) is not None}
    told = ", ".join(f"{tag!r} ({_told_apart(one, tags)})" for one, (_, tag) in tags.items())
    for name, _ in tags.values():
        if name in value and (name, value[name]) not in tags.values():
            return SerdeError(
                f"{where} was stored with {name}={shown(value[name])}, and the tags of its types are {told} now"
            )
    return None


def _may_have_tag(raw: object, kind: object) -> bool:
    """Whether a stored part may be a record of a class, as its tag says: two may have the same fields."""
    tag = tag_of(kind)
    return tag is None or not isinstance(raw, dict) or raw.get(tag[0], tag[1]) == tag[1]


_COLLECTIONS = (list, tuple, set, frozenset, dict)


def _in_container(value: object, hint: object, origin: type, where: str, part: Part) -> object:
    arguments = get_args(hint)
    if is_record(origin):
        return _of_parameters(_instance(value, origin, where), hint, origin)
    abstract = origin not in _COLLECTIONS
    kind: Any = type(value) if abstract or isinstance(value, origin) else origin
    try:
        if abstract and not isinstance(value, origin):
            raise _misfit(value, hint, where)
    except TypeError:  # a protocol, of which nobody can tell
        return value
    if isinstance(value, Mapping):
        return _mapping(value, hint, where, part) if issubclass(origin, Mapping) else _refuse(value, hint, where)
    if issubclass(origin, Mapping) or not isinstance(value, _COLLECTIONS):
        return value if isinstance(value, origin) else _refuse(value, hint, where)
    items = [*value]
    if origin is tuple and arguments[-1:] != (...,):
        if len(items) != len(arguments):
            raise _misfit(value, hint, where)
        changed = [part(item, one, where) for item, one in zip(items, arguments, strict=True)]
    else:
        changed = [part(item, arguments[0], where) for item in items]
    assert len(changed) == len(items), "a part of a collection was lost"
    # The same object where nothing changed: it costs no copy, and a collection of a subclass stays one.
    if kind is type(value) and all(new is old for new, old in zip(changed, items, strict=True)):
        return value
    return tuple.__new__(kind, changed) if issubclass(kind, tuple) else _as_collection(kind, changed, value, where)


def _as_collection(kind: Any, parts: list[object], value: object, where: str) -> object:
    """Return parts as a collection of a class; raises SerdeError where it would have fewer, as a set of equal ones."""
    found = kind(parts)
    if len(found) != len(parts):
        raise _misfit(value, kind, where)
    return found


def _mapping(value: Mapping[object, object], hint: object, where: str, part: Part) -> object:
    arguments = get_args(hint)
    if len(arguments) != 2:
        return value
    keys, values = arguments
    changed = {part(key, keys, where): part(one, values, f"{where}[{key!r}]") for key, one in value.items()}
    if len(changed) != len(value):  # keys that were several are one as they are declared now
        raise _misfit(value, hint, where)
    # By identity: a key may be widened to one that equals it, as 3 to 3.0, and then the old ones are not as declared.
    pairs = zip(changed.items(), value.items(), strict=True)
    is_as_it_was = all(key is old and one is held for (key, one), (old, held) in pairs)
    if is_as_it_was and part in (fitted, _fitted_within):
        return value
    if isinstance(value, dict) and type(value) is not dict:
        # Emptied first, since keys that are equal would stay, and put one by one: a Counter adds what it is updated by.
        found = value.copy()
        found.clear()
        for key, one in changed.items():
            found[key] = one
        return found
    return changed


def _typed_dict(value: object, hint: Any, where: str, part: Part) -> object:
    if not isinstance(value, dict):
        raise _misfit(value, hint, where)
    missing = required_keys(hint) - value.keys()
    if missing:
        raise SerdeError(f"{where} was stored without {sorted(missing)}, which {hint.__qualname__} requires now")
    hints = hints_of(hint)
    return {key: part(one, hints.get(key, Any), f"{where}[{key!r}]") for key, one in value.items()}


def _instance(value: object, kind: type, where: str) -> object:
    """Return a value as a class declares it: a wider number, a member of an Enum, a record that was a dict."""
    try:
        # A datetime is a date to Python alone: it equals none, and can't be compared with one.
        is_one = isinstance(value, kind) and not (kind is date and isinstance(value, datetime))
        if is_one or is_again(kind, type(value)):
            return value
    except TypeError:  # a protocol, of which nobody can tell
        return value
    # Widened, as int to float; never a bool, which Python takes for an int and nobody means as a number.
    if kind in (float, complex) and isinstance(value, int | float) and not isinstance(value, bool):
        return _widened(value, kind, where)
    if kind in _COLLECTIONS and isinstance(value, _COLLECTIONS) and not isinstance(value, dict) and kind is not dict:
        return _as_collection(kind, [*value], value, where)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except (ValueError, KeyError, TypeError) as error:
            raise _misfit(value, kind, where) from error
    if is_record(kind) and type(value) is dict and all(type(key) is str for key in value):
        return fitted_record(kind, value)
    if isinstance(value, str | int | float) and not is_record(kind):
        return _converted(value, kind, where)
    raise _misfit(value, kind, where)


def _of_parameters(value: Any, hint: object, kind: Any) -> object:
    """Return a record of a generic class with its fields as the parameters of a type say, such as the int of Box[int].

    Raises SerdeError where one does not fit.
    """
    means = dict(zip(getattr(kind, "__parameters__", ()), get_args(hint), strict=False))
    changed = {}
    for name, declared in hints_of(kind).items():
        if isinstance(declared, TypeVar):
            declared = means.get(declared, Any)
        elif inside := getattr(declared, "__parameters__", ()):
            declared = declared[tuple(means.get(one, Any) for one in inside)]
        else:
            continue
        if hasattr(value, name):
            now = getattr(value, name)
            found = fitted(now, declared, f"{kind.__qualname__}.{name}")
            if found is not now:
                changed[name] = found
    return made(type(value), {**values_of(value), **changed}) if changed else value


def _widened(value: float, kind: type, where: str) -> object:
    """Return a number as a float or complex; raises SerdeError for an int that lies between two of these."""
    try:
        found = kind(value)
    except OverflowError as error:
        raise _misfit(value, kind, where) from error
    if isinstance(value, int) and found != value:
        raise _misfit(value, kind, where)
    return found


def _refuse(value: object, hint: object, where: str) -> NoReturn:
    raise _misfit(value, hint, where)


def _misfit(value: object, hint: object, where: str) -> SerdeError:
    return SerdeError(f"{where} was stored as {_shown(value)} and is declared {_name(hint)} now")


def _shown(value: object) -> str:
    text = shown(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{type(value).__qualname__} ({text})"


def _name(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
