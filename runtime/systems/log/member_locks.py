"""Containers that share a data directory: each is alive while it holds the lock of a file, and LMDB has the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.model.assignment import JobModel, Placement, sticky
from runtime.model.errors import SamzaError, system_errors_told
from runtime.ports.commits import fenced_error
from runtime.systems.host.locks import is_locked, lock, owner_of
from runtime.systems.log.membership import Members, Shared
from runtime.systems.log.records import fetch, sealed
from runtime.systems.log.state import keys_from

if TYPE_CHECKING:
    import lmdb

    from runtime.systems.log.environment import LogEnvironment

_JOINING = ".joining"
_RUN, _SAID, _STARTER = "run", "said ", "starter"
"""The places among what containers agree on: of the newest run, of what starters say, and that its owner is one."""


class LogMembers(Members):
    """A container on the embedded log; the operating system drops its lock when the process ends, however it ends.

    One that is only stopped has its lock and its tasks still. The thread that follows the job model calls it.
    """

    def __init__(
        self, log: LogEnvironment, app: str, run: int, name: str, tasks: int, placement: Placement = sticky
    ) -> None:
        super().__init__(app, run, name, tasks, placement)
        self._log = log
        self._folder = log.path / "containers" / app
        with system_errors_told(self._folder, "made"):
            self._descriptor: int | None = self._join()

    def leave(self) -> None:
        if self._descriptor is not None:
            with suppress(SamzaError):  # others take them also from who is gone
                self.give_up([*self._taken])
            with suppress(FileNotFoundError):
                self._file(self.name).unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def _join(self) -> int:
        """Lock a file before others can see it, and remove those of the dead."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in self._folder.iterdir():
            if not file.name.endswith(_JOINING) and not is_locked(file):
                file.unlink(missing_ok=True)
        # Under another name first: a file that is seen and not locked is taken for one of the dead, and removed.
        unseen = self._file(self.name).with_suffix(_JOINING)
        descriptor = lock(unseen, wait=True)
        assert descriptor is not None
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)  # for people to read
        unseen.rename(self._file(self.name))
        return descriptor

    def _file(self, container: str) -> Path:
        return self._folder / f"{self._run}-{container}.lock"

    def _alive(self) -> tuple[str, ...]:
        return alive_in(self._folder, self._run, self.name)

    def _is_alive(self, container: str) -> bool:
        return container == self.name or is_locked(self._file(container))

    @contextmanager
    def _looking(self) -> Iterator[Shared]:
        with self._log._reading() as transaction:
            yield Agreed(transaction, self._log._database.meta, self._app)

    @contextmanager
    def _changing(self) -> Iterator[Shared]:
        with self._log._writing() as transaction:
            generation = self._log._generation(transaction, self._app)
            if generation != self._run:
                raise fenced_error(self._app, self._run, generation)
            yield Agreed(transaction, self._log._database.meta, self._app)


def alive_in(folder: Path, run: int, besides: str = "") -> tuple[str, ...]:
    """Return the names of the containers of a run that are alive, in order; one is known to be."""
    prefix = f"{run}-"
    with system_errors_told(folder, "read"):
        return tuple(
            sorted(
                file.stem.removeprefix(prefix)
                for file in folder.glob(f"{prefix}*.lock")
                if file.stem == f"{prefix}{besides}" or is_locked(file)
            )
        )


class LogRuns:
    """The newest run of one application in a data directory, as those see it who start containers of it there."""

    def __init__(self, log: LogEnvironment, app: str) -> None:
        self._log, self._app = log, app

    def model(self) -> JobModel:
        """Return who runs what now."""
        return self._log.job_model(self._app)

    def is_alive(self) -> bool:
        """Whether any container of the newest run lives."""
        return bool(alive_in(self._log.path / "containers" / self._app, self.generation()))

    def is_run(self) -> bool:
        """Whether containers run it, or are about to; a process that has it to itself is known by its lock alone."""
        with self._log._reading() as transaction:
            has_starter = self._agreed(transaction).has_starter
        return self.is_alive() or (has_starter and owner_of(self._log.path, self._app) is not None)

    def generation(self) -> int:
        """Return the generation of the newest run; 0 where there was none."""
        return self._log.generation(self._app)

    def begun(self) -> bytes | None:
        """Return what was said of the newest run when it began, where it is shared."""
        # Who asks shares the run: where its leader is gone, one of those may own it, and fences the others thereby.
        self._log.sharing.add(self._app)
        with self._log._reading() as transaction:
            return self._agreed(transaction).get(_RUN)

    def begin(self, said: bytes) -> None:
        """Say what others need to know who come to share the run; what was said in former ones goes."""
        with self._log._writing() as transaction:
            agreed = self._agreed(transaction)
            for place in [place for place in agreed if place.startswith(_SAID)]:
                del agreed[place]
            agreed[_RUN] = said
            agreed.note_starter(True)
        self._log.starting.add(self._app)

    def say(self, starter: str, said: bytes) -> None:
        """Say how far one's containers are."""
        with self._log._writing() as transaction:
            self._agreed(transaction)[_SAID + starter] = said

    def said(self) -> Mapping[str, bytes]:
        """Return what each has said last, in this run."""
        with self._log._reading() as transaction:
            agreed = self._agreed(transaction)
            return {place.removeprefix(_SAID): agreed[place] for place in agreed if place.startswith(_SAID)}

    def _agreed(self, transaction: lmdb.Transaction[memoryview]) -> Agreed:
        return Agreed(transaction, self._log._database.meta, self._app)


class Agreed(MutableMapping[str, bytes]):
    """The agreement of the containers of an application, as sealed records in one transaction."""

    def __init__(self, transaction: lmdb.Transaction[memoryview], table: lmdb._Database, app: str) -> None:
        self._transaction, self._table = transaction, table
        self._prefix = b"containers\0" + app.encode() + b"\0"

    @property
    def has_starter(self) -> bool:
        """Whether who owns the application, or has done so last, starts containers, and is none itself."""
        return _STARTER in self

    def note_starter(self, is_one: bool) -> None:
        """Note whether who owns the application starts containers."""
        if is_one:
            self[_STARTER] = b""
        else:
            self.pop(_STARTER, None)

    def __getitem__(self, place: str) -> bytes:
        key = self._prefix + place.encode()
        data = fetch(self._transaction, self._table, key, f"what containers have agreed on ({place})")
        if data is None:
            raise KeyError(place)
        return data

    def __setitem__(self, place: str, data: bytes) -> None:
        key = self._prefix + place.encode()
        self._transaction.put(key, sealed(key, data), db=self._table)

    def __delitem__(self, place: str) -> None:
        self._transaction.delete(self._prefix + place.encode(), db=self._table)

    def __iter__(self) -> Iterator[str]:
        for key in keys_from(self._transaction, self._table, self._prefix):
            yield key[len(self._prefix) :].decode()

    def __len__(self) -> int:
        return len(keys_from(self._transaction, self._table, self._prefix))
