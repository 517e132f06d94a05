"""Files as whole objects, on this machine and behind URLs: some may only be made where none of their name is yet."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runtime.model.errors import Unavailable
from runtime.model.urls import shown_file
from runtime.systems.files.places.locations import is_remote, local_path, needs_pyarrow, url_of
from runtime.systems.host.durable import make_durable

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem


class ObjectPlace(Protocol):
    """A folder of objects by their paths in it, each of which is there as a whole, and lasts; raises OSError."""

    def create(self, name: str, data: bytes) -> None:
        """Write an object, of several who do so at once only one; raises FileExistsError for the others."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object, in the place of one that may be there."""

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of objects; raises FileNotFoundError."""

    def names(self, below: str) -> list[str]:
        """Return the names of the objects in a folder, and in all folders below it."""

    def unfinished(self) -> list[str]:
        """Return the names of what lies there of objects that were never whole."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, as far as they are there."""


class LocalObjects(ObjectPlace):
    """Objects as files of this machine: what is written lies under a hidden name until it is whole and durable."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, data: bytes) -> None:
        with self._written(name, data) as unfinished:
            # A link is made only where there is none of its name: a file that is opened for that would be there empty.
            os.link(unfinished, self._root / name)

    def put(self, name: str, data: bytes) -> None:
        with self._written(name, data) as unfinished:
            unfinished.replace(self._root / name)

    def read(self, names: Sequence[str]) -> list[bytes]:
        return [(self._root / name).read_bytes() for name in names]

    def names(self, below: str) -> list[str]:
        files = (file for file in (self._root / below).rglob("*") if file.is_file() and not file.name.startswith("."))
        return [file.relative_to(self._root).as_posix() for file in files]

    def unfinished(self) -> list[str]:
        return [file.relative_to(self._root).as_posix() for file in self._root.rglob(".*.tmp")]

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    @contextmanager
    def _written(self, name: str, data: bytes) -> Iterator[Path]:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield unfinished
            make_durable(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)


class RemoteObjects(ObjectPlace):
    """Objects behind a URL, which fsspec opens. What its libraries raise beside OSError is told as `Unavailable`."""

    def __init__(self, url: str) -> None:
        with needs_pyarrow(f"{shown_file(url)} needs", "files"):
            from runtime.systems.files.places.remote import written_system
        self._system: AbstractFileSystem
        self._system, root = written_system(url)
        self._root = root.rstrip("/")

    def create(self, name: str, data: bytes) -> None:
        with _passing(self._root):
            self._system.pipe_file(f"{self._root}/{name}", data, mode="create")

    def put(self, name: str, data: bytes) -> None:
        with _passing(self._root):
            self._system.pipe_file(f"{self._root}/{name}", data)

    def read(self, names: Sequence[str]) -> list[bytes]:
        with _passing(self._root):
            found = self._system.cat([f"{self._root}/{name}" for name in names]) if names else {}
        by_name = {path.rstrip("/"): data for path, data in found.items()}
        return [by_name[f"{self._root}/{name}"] for name in names]

    def names(self, below: str) -> list[str]:
        start = f"{self._root}/{below}".rstrip("/")
        with _passing(self._root), suppress(FileNotFoundError):
            return [str(path)[len(self._root) + 1 :] for path in self._system.find(start)]
        return []

    def unfinished(self) -> list[str]:
        return []  # an object is there as a whole, or not at all

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            with _passing(self._root), suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{name}")


@contextmanager
def _passing(where: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise Unavailable(f"{where}: {error!r}") from error


def object_place(where: str | Path) -> ObjectPlace:
    """Return the objects of a folder or URL."""
    return RemoteObjects(url_of(where)) if is_remote(where) else LocalObjects(local_path(where).absolute())
