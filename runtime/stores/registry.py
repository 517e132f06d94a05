"""The registry of the kinds of stores that `store=` names: a new kind is one file and its registration here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import NewType

from operators.core.base import Spec
from runtime.model.errors import SamzaError
from runtime.ports.store import StorePlace, TaskStore
from runtime.stores.cache import CachedStore
from runtime.stores.memory import MemoryStore

StoreName = NewType("StoreName", str)
"""The name of a registered kind of store, as `store=` takes it."""
DEFAULT = "lmdb"
"""The kind of a store where none is said."""


@dataclass(frozen=True)
class StoreKind:
    """A kind of store: its name, its factory, and whether its state is `durable`.

    Durable state is in the commits of the environment, which is its changelog: it is there after a crash, can be
    handed over, and its meaning is noted. State that is not durable ends with the process.
    """

    name: str
    open: Callable[[StorePlace], TaskStore]
    durable: bool


BUILT_IN = MappingProxyType(
    {
        DEFAULT: StoreKind(DEFAULT, CachedStore.open, durable=True),
        "memory": StoreKind("memory", MemoryStore.open, durable=False),
    }
)
_KINDS = dict(BUILT_IN)
assert all(kind.name == name for name, kind in BUILT_IN.items()), "a kind is registered under another name"


def register(kind: StoreKind) -> StoreName:
    """Register a kind of store for `store=`, and return its name; raises SamzaError for the name of a built-in one.

    Every process that runs the application registers it, best where the module of the store is imported. Who
    registers a kind again, as a notebook does whose cell runs twice, replaces it.
    """
    if kind.name in BUILT_IN:
        raise SamzaError(f"{kind.name!r} is a built-in kind of store: give this one another name")
    _KINDS[kind.name] = kind
    return StoreName(kind.name)


def store_kinds() -> list[str]:
    """Return the names of all registered kinds.

    >>> store_kinds()[:2]
    ['lmdb', 'memory']
    """
    return list(_KINDS)


def store_kind(name: str) -> StoreKind:
    """Return a kind by its name; raises SamzaError where no such kind is registered in this process.

    >>> store_kind("memory").durable
    False
    """
    if name not in _KINDS:
        raise SamzaError(
            f"the kind of store {name!r} is not registered in this process: import the module that registers it "
            f"beside the application, or use one of {', '.join(_KINDS)}"
        )
    return _KINDS[name]


def kind_of(spec: Spec) -> StoreKind:
    """Return the kind of store that an operator's state lies in."""
    return store_kind(spec.store)
