"""A pushed source at work: what it pushes is appended to a stream of the embedded log, together with its notes."""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from operators.core.base import Batch, Serde
from operators.io import Input
from operators.partition_by import murmur2
from runtime.model.clock import wall_clock_ms
from runtime.model.errors import Fenced, Owned, SamzaError, system_errors_told
from runtime.ports.commits import Commit
from runtime.ports.connectors import PushedRecord, PushedSource
from runtime.ports.environment import Environment
from runtime.ports.streams import END, Append, StreamConfig
from runtime.systems.host.locks import lock
from runtime.systems.log.environment import LogEnvironment

PATIENCE_S = 10.0
"""The time that a source has to return when the run ends; then it is left behind, and can push nothing more."""
_log = logging.getLogger("samza_dsl")


class Feed:
    """Lets a source push to the stream of an input, for as long as a run lasts.

    Invariants: records and the notes beside them are in one commit, of the generation of the run, so that a run that
    was taken over pushes nothing; nobody else makes notes in the meantime, in this process or another. `push` of the
    source is called in one thread at a time; what that thread and its helpers push is appended one after the other.
    """

    until_now = False

    def __init__(self, environment: Environment, app: str, spec: Input, source: PushedSource) -> None:
        self.source = source
        self._environment = environment
        self._app = app
        self._spec = spec
        self._generation = 0
        self._partitions = 1
        self._notes_stream = ""
        self._notes_end = 0
        self._noted: dict[str, bytes] = {}
        self._descriptor: int | None = None
        self._pushing = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: Callable[[SamzaError], None] = lambda error: None
        self._tell: Callable[[], None] = lambda: None

    @property
    def serde(self) -> Serde:
        """Return the serde of the input's values."""
        return self._spec.value

    @property
    def noted(self) -> Mapping[str, bytes]:
        """Return what the source has noted last under each name."""
        return dict(self._noted)

    def fill(self, generation: int) -> None:
        """Take in what is there now, in the thread of the caller."""
        self._open(generation)
        self.until_now = True
        self._push_all()

    def start(self, generation: int, failed: Callable[[SamzaError], None]) -> None:
        """Take in what comes, in a thread of its own, which calls `failed` with the error that has ended it."""
        self._failed = failed
        self._open(generation)
        # As a daemon: a source that waits for something that never comes keeps no process alive.
        self._thread = threading.Thread(target=self._run, name=f"samza-dsl-push-{self.source.name[:40]}", daemon=True)
        self._thread.start()

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from any thread, where there is more to read."""
        self._tell = tell

    def close(self) -> None:
        """Take nothing more in; a second call does nothing."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                _log.warning("%s has not returned as the run ended; it is left behind", self.source.name)
            self._thread = None
        with self._pushing:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def push(self, records: Sequence[PushedRecord], notes: Mapping[str, bytes] | None = None) -> None:
        """Append records and notes in one transaction; raises `Fenced`, and SamzaError as the run is closing."""
        by_partition: defaultdict[int, list[PushedRecord]] = defaultdict(list)
        for record in records:
            by_partition[0 if record.key is None else murmur2(record.key) % self._partitions].append(record)
        appends = [self._appended(partition, rows) for partition, rows in by_partition.items()]
        self._commit(appends, dict(notes or {}))

    def end(self) -> None:
        """Let the stream end for good."""
        numbers = range(self._partitions)
        open_ones = [n for n in numbers if not self._environment.offsets(self._spec.stream, n).ended]
        self._commit([Append(self._spec.stream, n, Batch([]), END) for n in open_ones], {})

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, and return whether the run is closing."""
        return self._closing.wait(seconds)

    def _open(self, generation: int) -> None:
        """Lock the notes, and read them; a second call in one run only reads."""
        stream, environment = self._spec.stream, self._environment
        config = environment.streams()[stream]
        if config.intermediate:
            raise SamzaError(f"{stream!r} lies between the stages of an application: bind {self.source.name} elsewhere")
        self._generation, self._partitions = generation, config.partitions
        # By the number of the stream as well: one that was deleted and is made anew begins with nothing taken in.
        place = f"{zlib.crc32(self.source.name.encode()):08x}-{environment.stream_id(stream)}"
        self._notes_stream = f"{stream[:160]}.notes.{place}"
        environment.create_stream(self._notes_stream, StreamConfig(compacted=True, intermediate=True))
        if self._descriptor is None and isinstance(environment, LogEnvironment):
            self._descriptor = self._locked(environment.path)
        self._noted, offset = {}, environment.offsets(self._notes_stream, 0).start
        while (read := environment.read(self._notes_stream, 0, offset)) is not None:
            assert read.batch.keys is not None, "notes have names"
            self._noted |= {
                bytes(key).decode(): value for key, value in zip(read.batch.keys, read.batch.values, strict=True)
            }
            offset = read.next_offset
        self._notes_end = environment.offsets(self._notes_stream, 0).end

    def _locked(self, directory: Path) -> int:
        path = directory / "sources" / f"{self._notes_stream}.lock"
        with system_errors_told(path, "made"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = lock(path, wait=False)
        if descriptor is None:
            raise Owned(
                f"{self.source.name} is taken into the stream {self._spec.stream!r} of {directory} by another run: end "
                "that first, or leave the binding out here, as what it takes in can be read by several"
            )
        return descriptor

    def _run(self) -> None:
        try:
            self._push_all()
        except SamzaError as error:
            self._failed(error)

    def _push_all(self) -> None:
        try:
            self.source.push(self)
        except SamzaError:
            # What it was doing when the run ended is told to nobody: it is taken in by the next one.
            if not self._closing.is_set():
                raise
        except Exception as error:
            raise SamzaError(f"{self.source.name}: push() of the source failed: {error!r}") from error

    def _appended(self, partition: int, rows: Sequence[PushedRecord]) -> Append:
        encode = self._spec.value.encode
        values = [
            value if value is None or isinstance(value, bytes) else encode(value)
            for value in (row.value for row in rows)
        ]
        batch = Batch(values)
        if any(row.key is not None for row in rows):
            batch.keys = [row.key for row in rows]
        if any(row.timestamp_ms is not None for row in rows):
            now_ms = wall_clock_ms()
            batch.timestamps = [now_ms if row.timestamp_ms is None else row.timestamp_ms for row in rows]
        if any(row.headers for row in rows):
            batch.headers = [row.headers for row in rows]
        return Append(self._spec.stream, partition, batch)

    def _commit(self, appends: list[Append], notes: dict[str, bytes]) -> None:
        if notes:
            names: list[bytes] = [name.encode() for name in notes]
            appends = [*appends, Append(self._notes_stream, 0, Batch([*notes.values()], names))]
        if not appends:
            return
        with self._pushing:
            if self._closing.is_set():
                raise SamzaError(f"{self.source.name}: the run has ended, and nothing more is taken in")
            # Where there are no locks, as in memory: two that push by the same notes would push everything twice.
            if self._environment.offsets(self._notes_stream, 0).end != self._notes_end:
                raise Fenced(f"{self.source.name} is taken into {self._spec.stream!r} by another run as well: end that")
            self._environment.commit(Commit(self._app, self._generation, appends, [], {}))
            self._noted |= notes
            self._notes_end += len(notes)
        self._tell()
