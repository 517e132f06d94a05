"""A folder that grows, as an input without end: each file that comes is taken into the log once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from operators.core.base import Serde
from operators.core.durations import Duration
from runtime.encoding.serdes import decoded, encode_all
from runtime.model.clock import monotonic_ms, wall_clock_ms
from runtime.model.errors import Damaged, SamzaError
from runtime.model.urls import shown_file
from runtime.ports.connectors import Intake, PushedRecord, PushedSource, length_ms
from runtime.ports.source import Source
from runtime.systems.files.files import kind_read, open_files
from runtime.systems.files.places.locations import (
    MAGIC,
    FoundFile,
    found_files,
    is_remote,
    local_path,
    of_http,
    url_of,
)
from runtime.systems.folders.manifest import MANIFESTS, PART
from runtime.systems.folders.rolling import committed_files

AT_ONCE = 10_000
"""The records that are appended at a time, about, with the notes of all files that they are of."""
SETTLED_MS = 1_000
"""The time for which a file of this machine has to lie still before it is taken for whole."""
SHARE = 10
"""A look that takes long is followed by a pause of so many times that, so that looking is a tenth of the work."""
_log = logging.getLogger("samza_dsl")


class FileProgress(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a file that are taken in, what told it from others of its name then, and whether these are all."""

    rows: int
    state: tuple[int, float]
    is_done: bool


_pack, _unpack = msgspec.msgpack.encode, msgspec.msgpack.Decoder(FileProgress).decode


def _progress_in(notes: Mapping[str, bytes]) -> dict[str, FileProgress]:
    """Return how far files are, by their whole names; what sources of other kinds have noted is passed over."""
    found = {}
    for name, note in notes.items():
        with suppress(msgspec.DecodeError):
            found[name] = _unpack(note)
    return found


def _farther(one: bytes, other: bytes) -> bytes:
    """Return the note of a file that is further on, of two that were made where different globs found it."""
    found = _progress_in({"one": one, "other": other})
    if len(found) < 2:
        return one if "one" in found else other
    return max(one, other, key=lambda note: (_unpack(note).is_done, _unpack(note).rows))


def growing_folder(where: str | Path, *, poll_ms: Duration = 1_000, settled_ms: Duration | None = None) -> PushedSource:
    """Read the files of a folder, a glob or a URL, and all that come: `{"orders": connectors.growing_folder("new")}`.

    Each file is copied into the stream of the input once, in the order in which files come, and by name where several
    do; after a crash it goes on behind the last row. It may be removed as soon as that is done. Every `poll_ms` it is
    looked for files, of the kinds and schemes that any input may be bound to. A file has to be whole when it appears,
    under a name that does not begin with a dot or an underscore: rename it when it is written. One of this machine is
    taken once nobody has written to it for `settled_ms` (a second); one behind a URL at once. It is an error where a
    file was changed after it was taken. Raises SamzaError for malformed arguments, and the run where the folder is
    absent.

    >>> from samza_dsl import connectors
    >>> connectors.growing_folder("s3://lake/incoming/*.jsonl").name
    'growing:s3://lake/incoming/*.jsonl'
    """
    place = url_of(where) if is_remote(where) else str(local_path(where).absolute())
    usual = 0 if is_remote(where) else SETTLED_MS
    still_ms = usual if settled_ms is None else length_ms("growing_folder(settled_ms", settled_ms, least=0)
    folder = _Folder(place, length_ms("growing_folder(poll_ms", poll_ms) / 1_000, still_ms / 1_000)
    return PushedSource(f"growing:{shown_file(place)}", folder.push, _farther, place)


@dataclass(frozen=True)
class _Folder:
    """A folder that is looked into again and again; `warned` has the files of which was told that they are no data."""

    place: str = field(repr=False)
    poll_s: float
    settled_s: float
    warned: set[str] = field(default_factory=set)

    def push(self, intake: Intake) -> None:
        """Take in what comes until the run ends; or what is there now."""
        noted = _progress_in(intake.noted)
        while True:
            started = monotonic_ms()
            waiting = self._look(intake, noted)
            if intake.until_now and not waiting:
                return
            took_s = (monotonic_ms() - started) / 1_000
            if intake.wait(max(self.poll_s, SHARE * took_s) if not intake.until_now else self.settled_s / 10):
                return

    def _look(self, intake: Intake, noted: dict[str, FileProgress]) -> bool:
        """Take in the files that are new; return whether some are not settled yet."""
        load, waiting, there = _Load(intake, noted), False, self._found()
        for found in there:
            name = str(found.file.path)
            known = noted.get(name)
            if known is not None and _is_another(known.state, _state_of(found)):
                way = "remove this one, and it comes no more" if known.is_done else _cut_file_advice(known.rows)
                raise Damaged(
                    f"{name} was changed since it was taken in, with {known.state[0]:,} bytes then and {found.size:,} "
                    "now: a file is read once. Write what comes to new files, each under a name that begins with a dot "
                    f"until it is whole; {way}"
                )
            if known is not None and known.is_done:
                continue
            if known is None and wall_clock_ms() / 1_000 - found.modified_s < self.settled_s:
                waiting = True
                continue
            if intake.wait(0):
                break
            if self._is_data(found):
                if known is None and not is_remote(self.place):
                    self._tell_renamed(found, there, noted)
                load.add(found)
        load.push()
        return waiting

    def _found(self) -> list[FoundFile]:
        found = found_files(self.place)
        if not found and not is_remote(self.place):
            _check_is_there(Path(self.place))
        if of_http(self.place) or MAGIC.search(self.place) or not found_files(f"{self.place.rstrip('/')}/{MANIFESTS}"):
            return found
        # Files of an output of ours count once its manifest names them: others are of a run that dies or is fenced.
        named = {*committed_files(self.place)}
        return [one for one in found if str(one.file.path) in named or not PART.match(one.file.path.name)]

    @staticmethod
    def _tell_renamed(found: FoundFile, there: Sequence[FoundFile], noted: Mapping[str, FileProgress]) -> None:
        """Warn where a file seems to be one that was taken in under a name that is gone: its rows come again."""
        same = [name for name, note in noted.items() if note.state == _state_of(found) and note.rows]
        if gone := {*same} - {str(one.file.path) for one in there}:
            _log.warning(
                "%s has the size and time of %s, which was taken in and is gone: a file is known by its name, and "
                "where this is the same one its rows come twice. Rename files before they are taken in",
                found.file.path,
                min(gone),
            )

    def _is_data(self, found: FoundFile) -> bool:
        path = found.file.path
        try:
            kind_read(path)
            if isinstance(path, Path) and not path.is_file():
                raise SamzaError(f"{path} is a pipe or a device, and no file")
        except SamzaError as error:
            if str(path) not in self.warned:
                self.warned.add(str(path))
                _log.warning("%s is not taken in: %s", shown_file(self.place), error)
            return False
        return True


class _Load:
    """The rows of several files on their way into the log, with the notes of how far each is read."""

    def __init__(self, intake: Intake, noted: dict[str, FileProgress]) -> None:
        self._intake, self._noted = intake, noted
        self._records: list[PushedRecord] = []
        self._notes: dict[str, FileProgress] = {}

    def add(self, found: FoundFile) -> None:
        """Take in a file, from behind what is taken in of it; raises SamzaError for one that can't be read."""
        name, state = str(found.file.path), _state_of(found)
        rows = self._noted[name].rows if name in self._noted else 0
        try:
            for values, following in _rows_of(found, rows, self._intake.serde):
                rows = following
                self._records += map(PushedRecord, values)
                self._notes[name] = FileProgress(rows, state, False)
                if len(self._records) >= AT_ONCE:
                    self.push()
        except FileNotFoundError as error:
            if rows:
                raise Damaged(f"{name} was removed when {rows:,} of its rows were taken in: restore it") from error
            _log.warning("%s was removed before it was read", name)
            return
        except OSError as error:
            raise SamzaError(f"{name} can't be read: {error.strerror or error}") from error
        except SamzaError as error:
            taken = self._noted[name].rows if name in self._noted else 0
            raise type(error)(f"{error}; {_cut_file_advice(taken)}") from error
        self._notes[name] = FileProgress(rows, state, True)

    def push(self) -> None:
        """Append what there is."""
        if self._notes:
            self._intake.push(self._records, {name: _pack(note) for name, note in self._notes.items()})
            self._noted |= self._notes
        self._records, self._notes = [], {}


def _cut_file_advice(rows: int) -> str:
    """Return the way out where a file can't be read to its end, of which so many rows were taken in."""
    if not rows:
        return "put a whole one in its place, or remove it"
    return f"{rows:,} of its rows were taken in: put those behind them into a file of another name, and remove this one"


def _is_another(then: tuple[int, float], now: tuple[int, float]) -> bool:
    """Whether a file was changed; no time is known of one where its place, or an earlier version of ours, told none."""
    return then[0] != now[0] or (then[1] > 0 and then[1] != now[1])


def _state_of(found: FoundFile) -> tuple[int, float]:
    return found.size, found.modified_s


def _rows_of(found: FoundFile, start: int, declared: Serde) -> Iterator[tuple[list[bytes | None], int]]:
    """Yield the rows of a file as the declared serde writes them, and the number of the next row."""
    source: Source = open_files([found.file])
    is_told = False
    try:
        serde = source.serde(declared)
        while (read := source.read(0, start, AT_ONCE)) is not None:
            values = [*read.batch.values]
            rows, errors = [*values], list[Exception]()
            if serde != declared:
                rows = _rewritten(values, serde, declared, errors)
            if errors and not is_told:
                is_told = True
                _log.warning(
                    "%s has rows that can't be read, which go by the on_error= of the input; the first: %s",
                    found.file.path,
                    errors[0],
                )
            yield rows, read.next_offset
            start = read.next_offset
    finally:
        source.close()


def _rewritten(values: list[bytes], serde: Serde, declared: Serde, errors: list[Exception]) -> list[bytes | None]:
    """Return rows as another serde writes them; those that can't be read stay as they are, and why is noted.

    Whoever reads the stream finds them there, and does with them what the input says: `on_error=`.
    """
    try:
        return encode_all(declared, [*decoded(serde, values)])
    except Exception as error:
        if len(values) == 1:
            errors.append(error)
            return [*values]
    return [one for value in values for one in _rewritten([value], serde, declared, errors)]


def _check_is_there(path: Path) -> None:
    """Raise SamzaError where not even the folder is there in which files are to come."""
    fixed = next(one for one in (path, *path.parents) if not any(sign in str(one) for sign in "*?[{"))
    if not fixed.is_dir():
        raise SamzaError(f"there is no folder {fixed} for files to come to: make it, or check the path")
