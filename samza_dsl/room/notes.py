"""The files by which a run tells others on its machine of itself, and hears what it is asked: a folder for each run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from runtime.encoding.json_text import to_json
from runtime.systems.host.locks import is_locked
from samza_dsl.room.ring import RingReader, RingWriter

FOLDER = "runs"
"""The folder in a data directory that has one for each application."""
HISTORY_BYTES, EVENTS_BYTES, ACTIONS_BYTES = 4 << 20, 512 << 10, 512 << 10
KEPT_MS = 3_600_000.0
"""The time of which the history tells at least: where a sample has too many bytes for that, there are fewer."""
HEEDED_MS = 30_000.0
"""The age at which what was asked holds no more: a run that begins later is not meant."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a run, at a time of the wall clock; `lines` are those of the user's program.

    It may be about one thing, as the place of a dead letter.
    """

    at_ms: int
    what: str
    text: str
    lines: tuple[str, ...] = ()
    about: str = ""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is told from others: when it began, in which process and where; `picture` tells plans apart."""

    app: str
    began_ms: int
    process: int
    host: str
    where: str
    picture: str


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run is asked to do: "commit" or "stop"."""

    what: str
    at_ms: int


class Notes:
    """The files of the runs of one application in a data directory."""

    def __init__(self, data: Path, app: str) -> None:
        self.app = app
        self.folder = data / FOLDER / app
        self._asked = self.folder / "asked"

    @property
    def history(self) -> Path:
        """The ring with a sample every few seconds; who writes it has its lock, and lives."""
        return self.folder / "history"

    @property
    def events(self) -> Path:
        """The ring with what has happened."""
        return self.folder / "events"

    @property
    def actions(self) -> Path:
        """The ring with what was done on pages."""
        return self.folder / "actions"

    def writes(self) -> tuple[RingWriter, RingWriter] | None:
        """Open both rings, the history and the events; None where another process writes them."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        history = RingWriter.opened(self.history, HISTORY_BYTES)
        if history is None:
            return None
        events = RingWriter.opened(self.events, EVENTS_BYTES)
        assert events is not None, "who has the lock of the history writes the events, too"
        return history, events

    def is_alive(self) -> bool:
        """Whether a process writes here."""
        return is_locked(self.history)

    def note_action(self, event: Event) -> None:
        """Note what somebody has done on a page, be it while the run writes its own notes."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        actions = RingWriter.opened(self.actions, ACTIONS_BYTES, wait=True)
        assert actions is not None, "it was waited for"
        try:
            actions.append(to_json(event))
        finally:
            actions.close()

    def put(self, name: str, content: bytes) -> None:
        """Put a file in the place of one of this name, as a whole; after a power cut it may be gone."""
        unfinished = self.folder / f".{name}.{os.getpid()}"
        unfinished.write_bytes(content)
        unfinished.replace(self.folder / name)

    def get(self, name: str) -> bytes | None:
        """Return what a file has; None where there is none."""
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def ask(self, asked: Wish) -> None:
        """Ask the run for something, which it does within a second or two."""
        self.put(self._asked.name, to_json(asked))

    def heed(self, now_ms: int) -> Wish | None:
        """Return what the run is asked for, once."""
        content = self.get(self._asked.name)
        if content is None:
            return None
        self._asked.unlink(missing_ok=True)
        try:
            asked = msgspec.json.decode(content, type=Wish)
        except msgspec.DecodeError:
            return None
        return asked if abs(now_ms - asked.at_ms) <= HEEDED_MS else None


def applications(data: Path) -> list[str]:
    """Return the applications whose runs have noted something in a data directory."""
    folder = data / FOLDER
    return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def forget(data: Path, app: str) -> bool:
    """Remove what the runs of an application have noted, unless one is there; return whether there was anything."""
    notes = Notes(data, app)
    if not notes.folder.is_dir() or notes.is_alive():
        return False
    shutil.rmtree(notes.folder)
    return True


def events_of(reader: RingReader) -> list[Event]:
    """Return what is new in a ring of events; those of a later version that can't be read are left out."""
    found = []
    for record in reader.news():
        try:
            found.append(msgspec.json.decode(record.content, type=Event))
        except msgspec.DecodeError:
            continue
    return found
