"""Protocols that objects are tested for again and again, at the price of a look for each member."""

from __future__ import annotations

from abc import ABCMeta
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    ProtocolMeta = ABCMeta
else:
    ProtocolMeta = type(Protocol)


class CheckedProtocol(ProtocolMeta):
    """The metaclass of protocols that may be asked for by `isinstance`: their members are gathered once.

    Python 3.11 goes through all classes of a protocol for each test, 80 µs for an environment, and a run that begins
    makes a hundred of them. What it comes to is the same: members may be the object's own, and a method may be None.

    >>> from typing import runtime_checkable
    >>> @runtime_checkable
    ... class Closing(Protocol, metaclass=CheckedProtocol):
    ...     def close(self): ...
    >>> from io import StringIO
    >>> isinstance(StringIO(), Closing), isinstance(3, Closing)
    (True, False)
    """

    def __instancecheck__(self, instance: object) -> bool:
        if Protocol not in self.__bases__:
            return super().__instancecheck__(instance)  # a class that implements one
        return all(_has(instance, name, is_method) for name, is_method in _members(self))


def _has(instance: object, name: str, is_method: bool) -> bool:
    missing = None if is_method else _members
    return getattr(instance, name, missing) is not missing


@cache
def _members(protocol: type) -> list[tuple[str, bool]]:
    """Return the names of a protocol's members, and whether each is a method."""
    kinds = [kind for kind in protocol.__mro__ if Protocol in kind.__bases__]
    names = dict.fromkeys(name for kind in kinds for name in (*vars(kind), *vars(kind).get("__annotations__", ())))
    found = [(name, callable(getattr(protocol, name, None))) for name in names if not name.startswith("_")]
    assert found, f"{protocol.__name__} has a member to look for"
    return found
