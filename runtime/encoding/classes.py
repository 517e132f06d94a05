"""The names of classes in stored values, "module:class", and the class that each name stands for now."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from runtime.model.errors import SerdeError

_known: dict[str, object] = {}
_known_names: dict[object, str] = {}
_places: dict[str, tuple[object, str, ModuleType, str, type]] = {}
"""The place that each name was found at: main program, module and class; a look-up checks all of them again."""


STORED_AS = {
    "operators.windows.window:Pane": "operators.window:Pane",
    "operators.joins.changes:Change": "operators.changes:Change",
    "operators.retractions:Revision": "operators.revisions:Revision",
}
"""Classes of our own of which users keep values, by where they live now: the name in stored bytes never changes."""
_lives = {stored: name for name, stored in STORED_AS.items()}
assert len(_lives) == len(STORED_AS), "two classes are stored under one name"

_own: set[str] = set()
"""Names of modules that stand for themselves, and not for the main program, which is of the same file."""


def load_as(module: str) -> None:
    """Let a name stand for the module that was loaded under it, even if the main program is of the same file."""
    _own.add(module)
    _places.clear()
    name_of.cache_clear()


def know(kind: object, name: str) -> None:
    """Register a class that came to this process as a value under its name, "module:class"."""
    # An older class of this name loses it first: it would be stored as the new one, which may have other fields.
    _known_names.pop(_known.get(name), None)
    _known[name], _known_names[kind] = kind, name
    _places.pop(name, None)
    name_of.cache_clear()


@cache
def name_of(kind: type) -> str:
    """Return the name that values of a class are stored under; raises SerdeError where nobody would find it again.

    A class that was defined again since, as a notebook's cell does that is run twice, has the name still.
    """
    if kind in _known_names:
        return _known_names[kind]
    name = f"{_module_of(kind)}:{kind.__qualname__}"
    name = STORED_AS.get(name, name)
    if "<locals>" in name or not is_again(find(name), kind):
        raise SerdeError(
            f"a {kind.__qualname__} has no serde here: it is not a class that its module {kind.__module__} names; "
            "declare one, e.g. partition_by(..., value=MyStruct), or move the class to the top of its module"
        )
    return name


def _module_of(kind: type) -> str:
    """Return the name of a class's module; the main program's is `__mp_main__` in a process that was spawned."""
    name = kind.__module__
    is_main = name == "__main__" or sys.modules.get(name) is sys.modules["__main__"]
    return name_of_main() if is_main else name


def name_of_main() -> str:
    """Return the name that the main program has as a module; its classes are stored under it, however it is run."""
    main = sys.modules["__main__"]
    spec: str | None = getattr(getattr(main, "__spec__", None), "name", None)
    return spec or _stem(getattr(main, "__file__", None))


@cache
def _stem(file: str | None) -> str:
    return Path(file).stem if file else "__main__"


def find(name: str) -> object:
    """Return what a name stands for now, or None; nothing is imported.

    Nothing is remembered either: a module that is loaded again, and a cell that is run again, put another class there.
    """
    place = _places.get(name)
    if place is not None:
        # Three comparisons by identity, because this is asked for each value: a cell or a module that ran again, or
        # another main program, put something else in one of these places.
        main, where, module, path, kind = place
        if module.__dict__.get(path) is kind and sys.modules.get(where) is module and sys.modules["__main__"] is main:
            return kind
    return _found(name)


def _found(name: str) -> object:
    if name in _known:
        return _known[name]
    said, _, path = _lives.get(name, name).partition(":")
    where = "__main__" if said == name_of_main() and said not in _own else said
    module = sys.modules.get(where)
    found: object = module
    for part in path.split("."):
        # In `__dict__`, since a module's `__getattr__` may import what is asked for: bytes never import anything.
        found = getattr(found, "__dict__", {}).get(part)
    if module is not None and isinstance(found, type) and "." not in path:
        _places[name] = (sys.modules["__main__"], where, module, path, found)
    return found


def is_current(kind: type) -> bool:
    """Whether a class is what its name stands for now; one without a name of its own is."""
    try:
        return find(name_of(kind)) is kind
    except SerdeError:
        return True


def class_of(name: str) -> type:
    """Return the class that a name stands for now; raises SerdeError where the program has none of that name."""
    found = find(name)
    if not isinstance(found, type):
        module, _, path = name.partition(":")
        raise SerdeError(
            f"stored bytes name the class {name}, which this program has not loaded. Import its module; if it was "
            f"renamed, keep its old name too, in the module {module}: {path.rpartition('.')[2]} = <its new name>"
        )
    return found


def is_again(found: object, kind: type) -> bool:
    """Whether what is found is a class, or another definition of it, as a cell or a module that ran again makes."""
    return isinstance(found, type) and found.__qualname__ == kind.__qualname__ and _module_of(found) == _module_of(kind)
