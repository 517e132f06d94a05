"""The types that a declared type is made of, as msgspec tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import msgspec
from msgspec import inspect


def type_info(kind: object) -> inspect.Type:
    """Return what msgspec tells of a type; raises TypeError where it can not tell.

    >>> type_info(list[int])
    ListType(item_type=IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None), min_length=None, max_length=None)
    """
    # Each stream of each run that begins is asked so several times, at half a millisecond for a record. What a class
    # is made of stays; other types, as unions in another order, are one to a cache that differ to msgspec.
    is_known = isinstance(kind, type) and type(kind).__hash__ is object.__hash__
    return _info_of_class(kind) if is_known else inspect.type_info(kind)


@cache
def _info_of_class(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def types_in(kind: object) -> Iterator[inspect.Type]:
    """Iterate over what msgspec tells of a type and of each type in it; raises TypeError where it can not tell.

    >>> [type(one).__name__ for one in types_in(dict[str, list[int]])]
    ['DictType', 'ListType', 'IntType', 'StrType']
    """
    met, left = set[int](), [kind if isinstance(kind, inspect.Type) else type_info(kind)]
    while left:
        one: object = left.pop()
        if isinstance(one, tuple):
            left += one
        # A type that holds itself, as a tree's does, is met again as the same object.
        elif isinstance(one, msgspec.Struct) and id(one) not in met:
            met.add(id(one))
            if isinstance(one, inspect.Type):
                yield one
            left += (getattr(one, name) for name in one.__struct_fields__)


def has_types(kind: object, sought: type[inspect.Type] | tuple[type[inspect.Type], ...]) -> bool:
    """Whether one of some types is in a type; False where msgspec can't tell.

    >>> has_types(list[frozenset[str]], inspect.FrozenSetType), has_types(list[str], inspect.FrozenSetType)
    (True, False)
    """
    with suppress(Exception):  # no type, or one that msgspec does not know
        return any(isinstance(one, sought) for one in types_in(kind))
    return False


def has_sets(kind: object) -> bool:
    """Whether a type may have sets in it, which Python orders otherwise in each process; pydantic's models may."""
    return has_types(kind, (inspect.SetType, inspect.FrozenSetType, inspect.CustomType))
