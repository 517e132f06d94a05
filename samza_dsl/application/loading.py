"""The loading of the user's application from a file or a module, after our own packages."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from runtime.encoding.classes import load_as
from samza_dsl.application.app import App

OURS = ("samza_dsl", "runtime", "planner", "operators")
_loaded: set[str] = set()
"""The modules that were made from application files here, and so may be made again from another file."""


class CantLoad(Exception):
    """The error for when the user's file or module has no application that can be loaded."""


def load_app(target: str | Path, name: str | None = None) -> App:
    """Return the application that a file (`app.py`, `app.py:name`) or a module (`package.app`) defines.

    A file becomes the module of its stem, as if another module of its folder had imported it: classes in it are found
    again by the same name in every run. What the user's code raises goes through; `CantLoad` is raised where there
    is no application, or no telling which, or where the user's modules can't be told from ours.
    """
    said, _, last = str(target).rpartition(":")
    if name is None and said and last.isidentifier():
        target, name = said, last
    path = Path(target)
    if path.suffix == ".py" or path.exists():
        module = _load_file(path)
    elif all(part.isidentifier() for part in str(target).split(".")):
        module = _load_module(str(target))
    else:
        raise CantLoad(f"there is no file {target}: name the Python file that defines the application, such as app.py")
    return _find_app(module, str(target), name)


def load_function(target: str) -> Callable[..., Any]:
    """Return the function that `module:name` or `file.py:name` names, as `load_app` loads these; raises `CantLoad`."""
    said, _, name = target.rpartition(":")
    if not said or not name.isidentifier():
        raise CantLoad(f"{target!r} names no function: write module:function, or file.py:function")
    module = _load_file(Path(said)) if Path(said).suffix == ".py" else _load_module(said)
    found = vars(module).get(name)
    if not callable(found):
        raise CantLoad(f"{said} has no function {name!r}")
    function: Callable[..., Any] = found
    return function


def whereabouts(app: App) -> tuple[str, str]:
    """Return what `load_app` takes to find an application again in another process; raises `CantLoad`."""
    holders = [
        (module, name) for module in [*sys.modules.values()] for name, value in _names_of(module) if value is app
    ]
    # The main program first: it is the file that the user has started, and a module that imports it has the same app.
    for module, name in sorted(holders, key=lambda holder: holder[0].__name__ != "__main__"):
        spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
        if module.__name__ == "__main__" or module.__name__ in _loaded:
            if file and Path(file).suffix == ".py" and (spec is None or module.__name__ in _loaded):
                return str(Path(file).resolve()), name
            if spec is None:
                continue
        if spec is not None:
            return spec.name, name
    raise CantLoad(
        f"several containers load the application {app.name!r} anew, and it is no variable of a module: write "
        f"app = App({app.name!r}) at the top level of a file, or run that with samza-dsl run app.py --containers N"
    )


def _names_of(module: ModuleType) -> list[tuple[str, object]]:
    return [*getattr(module, "__dict__", {}).items()]


class _AsWritten(SourceFileLoader):
    """Loads a program from its text alone: what Python has compiled before stands for it within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        wrong = f"is a directory: name the file in it, {path / 'app.py'}" if path.is_dir() else "does not exist"
        raise CantLoad(f"{path} {wrong}")
    file = path.resolve()
    name = file.stem
    present = sys.modules.get(name)
    if present is not None and name not in _loaded and not _is_file_of(present, file):
        raise CantLoad(f"{path} is named like the module {name!r}, which Python already has: rename the file")
    _refuse_clashes(file, file.parent)
    _make_importable(file.parent)
    loader = _AsWritten(name, str(file)) if file.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None or spec.loader is None:
        raise CantLoad(f"{path} is no Python file: name the one that defines the application, such as app.py")
    # Registered before it runs, as an import does it: its classes are looked for by this name while it is loaded.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _loaded.add(name)
    load_as(name)
    linecache.checkcache(str(file))  # its functions are told by their lines, which may be others than before
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _load_module(name: str) -> ModuleType:
    folder = Path.cwd()
    for file in _files_of(folder, name):
        _refuse_clashes(file, folder)
    top = name.partition(".")[0]
    if top in OURS and (theirs := _theirs(folder, top)):
        raise CantLoad(_two_of(top, theirs, f"{name!r} is asked for"))
    _make_importable(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only where the module itself is missing: one that it imports in vain is the user's mistake, told by Python.
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise CantLoad(f"there is no file and no module {name}: check the name, or write app.py") from None
        raise


def _find_app(module: ModuleType, target: str, name: str | None) -> App:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    # By identity: `app = main = App(...)` is one application of two names, and no reason to ask which.
    first_names = {id(app): key for key, app in reversed(apps.items())}
    choices = ", ".join(f"{target}:{key}" for key in reversed(first_names.values()))
    if name is not None:
        if name not in apps:
            instead = f"; it has {choices}" if apps else ""
            raise CantLoad(f"{target} has no application named {name!r}{instead}")
        return apps[name]
    if not apps:
        raise CantLoad(f'{target} defines no application: write app = App("name") at its top level')
    if len(first_names) > 1:
        raise CantLoad(f"{target} has {len(first_names)} applications: say which, {choices}")
    return next(iter(apps.values()))


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _refuse_clashes(first: Path, folder: Path) -> None:
    """Refuse an application that imports a module of its folder which is named like a package of ours.

    Ours are loaded already, so theirs would never be. Imports are read, not run, from `first` on through all of the
    folder's modules that it comes to.
    """
    clashing = {name: theirs for name in OURS if (theirs := _theirs(folder, name))}
    seen: set[Path] = set()
    waiting = [first] if clashing else []
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for line, base, name in _imports(file, folder):
            top = name.partition(".")[0]
            if base == folder and top in clashing:
                where = f"{file.relative_to(folder)}:{line} imports {top!r}"
                raise CantLoad(_two_of(top, clashing[top], where))
            waiting += _files_of(base, name)


def _two_of(name: str, theirs: Path, where: str) -> str:
    return (
        f"{where}, and there are two: your {theirs}, and a package of samza-dsl's own, which would be taken; "
        f"rename yours, or import it from a package of your own: from mypackage.{name} import ..."
    )


def _theirs(folder: Path, name: str) -> Path | None:
    """Return the module or package of a folder that has the name of one of ours, unless it is ours."""
    package = folder / name
    if package.is_dir() and next(package.rglob("*.py"), None) and not _is_file_of(sys.modules[name], package):
        return package
    return file if (file := folder / f"{name}.py").is_file() else None


def _is_file_of(module: ModuleType, path: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() in (path, path / "__init__.py")


def _imports(file: Path, folder: Path) -> Iterator[tuple[int, Path, str]]:
    """Yield the line of each import, the folder that it starts from, and the dotted name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # loading it will tell
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, folder, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else folder
            prefix = f"{node.module}." if node.module else ""
            yield from ((node.lineno, base, prefix + alias.name) for alias in node.names)


def _files_of(base: Path, name: str) -> list[Path]:
    """Return the files below `base` that an import of `name` may run."""
    parts = name.split(".")
    prefixes = [base.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [file for path in prefixes for file in (path.with_suffix(".py"), path / "__init__.py")]
    return [file for file in candidates if file.is_file()]
