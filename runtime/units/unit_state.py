"""The state of one task of one stage between micro-batches: its changes in files, and a copy at the worker."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from runtime.model.errors import EnvironmentFault
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.systems.host.durable import make_durable
from runtime.units.frames import FrameFile, frames

if TYPE_CHECKING:
    from runtime.systems.log.environment import LogEnvironment

ENTRIES_AT_ONCE = 10_000
LEAST_BYTES = 1 << 20
"""The bytes of changes up to which it is not worth to write all of the state anew."""
MOST_FILES = 16

Entries = list[tuple[bytes, bytes | None]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Entries]).decode


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """A file with entries of state, which change what the files before it have."""

    name: str
    size_bytes: int


class KeptState:
    """The stores of one unit: files in `directory` that every worker can read, and a log in `local`, the worker's own.

    The log is made of the files, unless the last micro-batch has left it here. What is put goes to the log and to a new
    file, `name`. `finish` says of which files the state consists from then on; `close` leaves nothing without that.
    """

    def __init__(
        self, directory: Path, local: Path, app: str, task: int, files: Sequence[StateFile], name: str
    ) -> None:
        self._directory, self._local = directory, local
        self._app, self._task = app, task
        self._files = tuple(files)
        self._own = local / f".{uuid4().hex}"
        self._log: LogEnvironment | None = None
        self._changes = FrameFile(directory / name)
        self._finished = False

    def log(self) -> LogEnvironment | None:
        """Return where entries are read; None before there are any."""
        if self._log is None and self._files:
            self._log = self._restored()
        return self._log

    def put(self, writes: Iterable[StateWrites]) -> None:
        """Take changed entries on."""
        assert not self._finished, "what is put after the end is in no file"
        found = [one for one in writes if one.items]
        if found:
            self._log = self._log or self._restored()
            for one in found:
                _write(self._changes, one.store, one.items)
            self._log.commit(Commit(self._app, 0, [], found, {}))

    def finish(self) -> tuple[StateFile, ...]:
        """Make durable what was put, and return the files that have all of the state."""
        assert not self._finished, "state is finished once"
        self._finished = True
        if self._changes.size_bytes:
            # The file is durable before the manifest names it; one of an attempt that does not count is swept.
            newest = StateFile(self._changes.path.name, self._changes.close())
            self._files = self._shortened((*self._files, newest))
            make_durable(self._directory)
        return self._files

    def close(self) -> None:
        """Release everything; what is finished stays here for the next micro-batch."""
        self._changes.abandon()
        if self._log is not None:
            self._log.close()
            self._log = None
            if self._finished and self._files:
                with suppress(OSError):  # another attempt has come to the same
                    self._own.rename(self._local / self._files[-1].name)
            shutil.rmtree(self._own, ignore_errors=True)

    def _restored(self) -> LogEnvironment:
        """Return the log that the last micro-batch left here; where there is none, one made of the files."""
        from runtime.systems.log.environment import LogEnvironment

        self._local.mkdir(parents=True, exist_ok=True)
        newest = self._files[-1].name if self._files else ""
        for left in self._local.iterdir():
            if left.name[0] != "." and left.name != newest:
                shutil.rmtree(left, ignore_errors=True)
        if newest:
            with suppress(OSError, EnvironmentFault):
                (self._local / newest).rename(self._own)  # so that no other attempt has it
                return LogEnvironment(self._own, sync=False)
            shutil.rmtree(self._own, ignore_errors=True)
        log = LogEnvironment(self._own, sync=False)
        try:
            for store, items in (entries for file in self._files for entries in self._entries(file)):
                log.commit(Commit(self._app, 0, [], [StateWrites(store, self._task, items)], {}))
        except BaseException:
            log.close()
            shutil.rmtree(self._own, ignore_errors=True)
            raise
        return log

    def _shortened(self, files: tuple[StateFile, ...]) -> tuple[StateFile, ...]:
        """Return files with the same state: one with all of it, where as much has changed, or fewer of changes."""
        whole, *changes = files
        changed_bytes = sum(one.size_bytes for one in changes)
        # Written anew when changes outweigh it: files have about twice the bytes of the state at most, and writing it
        # anew costs no more than its changes did.
        if changed_bytes > max(whole.size_bytes, LEAST_BYTES):
            return (self._written("whole", self._all()),)
        # A worker without a copy reads all files one by one.
        if len(changes) > MOST_FILES:
            return whole, self._written("changes", (entries for one in changes for entries in self._entries(one)))
        return files

    def _written(self, what: str, found: Iterable[tuple[str, Entries]]) -> StateFile:
        path = self._changes.path
        file = FrameFile(path.with_name(f"{path.name}.{what}"))
        for store, items in found:
            _write(file, store, items)
        return StateFile(file.path.name, file.close())

    def _all(self) -> Iterable[tuple[str, Entries]]:
        assert self._log is not None
        for store in self._log.stores(self._app):
            items: Entries = []
            for entry in self._log.state_range(self._app, store, self._task):
                items.append(entry)
                if len(items) == ENTRIES_AT_ONCE:
                    yield store, items
                    items = []
            yield store, items

    def _entries(self, file: StateFile) -> Iterable[tuple[str, Entries]]:
        return map(_decode, frames(self._directory / file.name))


def _write(file: FrameFile, store: str, items: Entries) -> None:
    for start in range(0, len(items), ENTRIES_AT_ONCE):
        file.write(_encode((store, items[start : start + ENTRIES_AT_ONCE])))
