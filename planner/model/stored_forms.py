"""The forms of a stream's records as a plan says them to programs that do not have the application's types."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from enum import Flag
from itertools import chain, count
from typing import Any

import msgspec

from operators.core.base import Serde
from operators.core.declared_types import type_info


class TypeForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A type: msgspec's name of its kind, what it is made of, and its bounds; with `is_within` it was told before.

    A record is told where it is met first, and by its name from there on.
    """

    msgspec_type: str
    parts: tuple[TypeForm, ...] = ()
    fields: tuple[FieldForm, ...] = ()
    name: str = ""
    """A record's class: its module, and its name there; another of that name, as of a generic one, has a number."""
    values: tuple[str | int | float | None, ...] = ()
    bounds: dict[str, str | int | float | bool] = {}
    tag: tuple[str, str | int] | None = None
    is_array: bool = False
    is_closed: bool = False
    is_within: bool = False


class FieldForm(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a record: as its program calls it, and as its bytes do."""

    name: str
    called: str
    required: bool
    type: TypeForm


class StoredForm(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of values or keys: the class that encodes them, and their type, where that can be told without it."""

    encoding: str
    type: TypeForm | None = None


class ReadForm(msgspec.Struct, frozen=True, kw_only=True):
    """The records that one input reads; those without a value are read where it `takes_none`."""

    value: StoredForm
    key: StoredForm | None = None
    takes_none: bool = False


def stored_form(serde: Serde) -> StoredForm:
    """Return the form that a serde writes and reads."""
    kind = type(serde)
    found = None
    with suppress(Exception):  # no type, or one that msgspec does not know
        found = type_form(vars(serde)["type"])
    return StoredForm(encoding=f"{kind.__module__}.{kind.__qualname__}", type=found)


def type_form(kind: object) -> TypeForm:
    """Return the form of a type; what its program alone reads, as a model of pydantic, has the kind "CustomType".

    >>> [one.msgspec_type for one in type_form(dict[str, int]).parts]
    ['StrType', 'IntType']
    """
    return _told(type_info(kind), {})


_PARTS = ("item_types", "types", "key_type", "value_type", "item_type")
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


def _told(info: Any, names: dict[int, str]) -> TypeForm:
    """Return the form of a type; `names` has those of the records that were told, by the ids of their types."""
    called = type(info).__name__
    if id(info) in names:
        return TypeForm(msgspec_type=called, name=names[id(info)], is_within=True)
    fields = getattr(info, "fields", ())
    if fields:
        names[id(info)] = _name_of(info.cls, names.values())
    parts: list[Any] = []
    for name in _PARTS:
        found = getattr(info, name, ())
        parts += found if isinstance(found, tuple) else [found]
    values = getattr(info, "values", ())
    if called == "EnumType":
        # Of flags any sum is a value.
        values = () if issubclass(info.cls, Flag) else tuple(one.value for one in info.cls)
        called = "IntType" if issubclass(info.cls, Flag) else called
    bounds = {name: getattr(info, name) for name in _BOUNDS if getattr(info, name, None) is not None}
    return TypeForm(
        msgspec_type=called,
        parts=tuple(_told(one, names) for one in parts),
        fields=tuple(
            FieldForm(name=one.name, called=one.encode_name, required=one.required, type=_told(one.type, names))
            for one in fields
        ),
        name=names.get(id(info), ""),
        values=tuple(values),
        bounds=bounds,
        tag=(info.tag_field, info.tag) if getattr(info, "tag_field", None) else None,
        is_array=called == "NamedTupleType" or getattr(info, "array_like", False),
        is_closed=getattr(info, "forbid_unknown_fields", False),
    )


def _name_of(kind: type, taken: Collection[str]) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    return next(one for one in chain([name], (f"{name} {n}" for n in count(2))) if one not in taken)
