"""The inbox in front of a source that forgets: a stream of the application, which the run fills and reads."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from operators.core.base import Batch, Serde
from operators.io import Input
from operators.joins.changes import Change
from operators.partition_by import murmur2
from runtime.encoding.formats.rows import type_of_values
from runtime.encoding.serdes import Evolving, Tagged
from runtime.model.clock import monotonic_ms
from runtime.model.errors import SamzaError, Unavailable
from runtime.ports.connectors import Pulled, PulledRecord, PulledSource
from runtime.ports.environment import Environment
from runtime.ports.source import LiveSource
from runtime.ports.streams import Append, Offsets, Read, StreamConfig, check_name
from runtime.systems.connectors.reading import GivenValue

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
TRIES = 8
"""How often a source that fails is asked, in about twenty seconds, before the run ends with that."""
POSITION = b"position"
_log = logging.getLogger("samza_dsl")


@dataclass(frozen=True)
class AdaptedValue:
    """The serde of values that a place keeps otherwise than their type has them.

    >>> from runtime.encoding.serdes import Json
    >>> AdaptedValue(GivenValue(Json(bool)), bool).decode(1)
    True
    """

    given: GivenValue
    adapt: Callable[[Any], Any]

    def encode(self, value: object) -> bytes:
        """Return the bytes of a value, as the declared serde makes them."""
        return self.given.encode(value)

    def decode(self, data: Any) -> Any:
        """Return the value; raises SerdeError for what is not of the declared type."""
        return self.given.decode(data if isinstance(data, bytes) else self.adapt(data))


class Inbox(LiveSource):
    """A bound input whose records are pulled into a stream of the environment, and read there.

    Invariants: records and the position behind them are appended in one transaction, and are confirmed after it; the
    reader's name was stored before the first pull, so that nothing is left behind under a name that nobody knows. Only
    the process that owns the application pulls: `catch_up` and then the thread that `follow` begins, never both at a
    time. Any other process reads alone.
    """

    def __init__(self, environment: Environment, app: str, spec: Input, source: PulledSource) -> None:
        self._environment, self._source = environment, source
        self._stream = inbox_of(app, spec.stream, source.name)
        self._positions = f"{self._stream}.position"
        check_name("stream", self._positions)
        self._keys, self._gives_changes = spec.key or Tagged(), gives_changes(spec.value)
        # Each by itself: a crash may have come between the two.
        environment.create_stream(self._positions, StreamConfig(compacted=True))
        self.partitions = environment.create_stream(
            self._stream, StreamConfig(partitions=spec.partitions or 1)
        ).partitions
        self._said = f"{app}.{spec.stream}"
        self._reader, self._position = "", b""
        self._tell: Callable[[], None] = lambda: None
        self._closing = threading.Event()
        self._failure: SamzaError | None = None
        self._thread: threading.Thread | None = None
        self._heard_ms = monotonic_ms()

    @property
    def name(self) -> str:
        """The name of the system in checkpoints."""
        return self._source.name

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that reads bytes as declared, and takes other values as they are."""
        given, adapt = GivenValue(declared), self._source.adapt
        if adapt is None:
            return given
        kind = type_of_values(declared)
        if not self._gives_changes:
            return AdaptedValue(given, adapt(kind))
        row = adapt(get_args(kind)[1] if get_args(kind) else Any)
        return AdaptedValue(given, lambda change: {**change, "old": row(change["old"]), "new": row(change["new"])})

    def stream_id(self) -> int:
        """Return what tells this inbox from a later one of its name."""
        return self._environment.stream_id(self._stream)

    def offsets(self, partition: int) -> Offsets:
        """Return the range of what was pulled."""
        self.check()
        return self._environment.offsets(self._stream, partition)

    def version(self, partition: int) -> int:
        """Return a number that grows when there may be more; raises what has gone wrong where it is pulled."""
        self.check()
        return self._environment.version()

    def unheard_ms(self, partition: int, offset: int) -> float:
        """Return the ms since the place was asked for more; infinity where there is something to read.

        A container, for which another process asks, does not know them: 0.
        """
        if self._thread is None:
            return 0.0
        end = self._environment.offsets(self._stream, partition).end
        return math.inf if end > offset else monotonic_ms() - self._heard_ms

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell`, from the thread that pulls, where something has gone wrong; an append is heard of anyway."""
        self._tell = tell

    def read(self, partition: int, offset: int, max_records: int = 10_000) -> Read | None:
        """Return what was pulled from `offset` on, with values and keys as the inputs that read it have declared."""
        self.check()
        read = self._environment.read(self._stream, partition, offset, max_records)
        if read is None:
            return None
        values, keys = [], []
        for data in read.batch.values:
            is_change, value, key = _STORED.decode(data)
            if is_change and not self._gives_changes:
                values.append(value[2])
            else:
                values.append(dict(zip(_CHANGE, value, strict=True)) if is_change else value)
            keys.append(None if key is None else self._keys.encode(key))
        batch = Batch(values, keys, read.batch.timestamps, offsets=read.batch.offsets)
        return Read(batch, None, read.next_offset, read.stream_id, read.appended_ms)

    def catch_up(self) -> None:
        """Pull all that the place has by now; raises SamzaError where it can't be had."""
        if self._thread is None:
            while self._tried(self._pull_once):
                pass

    def follow(self) -> None:
        """Pull what comes, every `poll_ms`, until this is closed."""
        if self._thread is None:
            name = f"samza-dsl-pull-{self._source.name[:40]}"
            self._thread = threading.Thread(target=self._follow, name=name)
            self._thread.start()

    def close(self) -> None:
        """End the thread, then close the source; a second call does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            if self._thread is not None:
                self._thread.join()
            self._source.close()

    def _follow(self) -> None:
        while not self._closing.wait(self._source.poll_ms / 1_000):
            try:
                while self._tried(self._pull_once) and not self._closing.is_set():
                    pass
            except SamzaError as error:
                self._failure = error
                self._tell()
                return

    def _pull_once(self) -> bool:
        """Pull, append and confirm; return whether more was there."""
        if not self._reader:
            self._resume()
        found: Pulled = self._source.pull(self._reader, self._position)
        self._heard_ms = monotonic_ms()
        if found.records or found.position != self._position:
            self._environment.append([*self._appended(found.records), self._note(found.position)])
            self._position = found.position
            self._source.confirm(self._reader, found.position)
        return found.more

    def _resume(self) -> None:
        """Take up the position of an earlier run, or draw a name by which the place knows this reader from now on."""
        end = self._environment.offsets(self._positions, 0).end
        stored = self._environment.read(self._positions, 0, end - 1) if end else None
        if stored is None:
            self._reader = f"{self._said}.{secrets.token_hex(4)}"
            self._environment.append([self._note(b"")])
            return
        self._reader, self._position = _STORED.decode(stored.batch.values[-1])

    def _note(self, position: bytes) -> Append:
        data = _STORED.encode((self._reader, position))
        return Append(self._positions, 0, Batch([data], keys=[POSITION]))

    def _appended(self, records: Iterable[PulledRecord]) -> Iterable[Append]:
        """Return the records by partition: those of a key lie in one."""
        batches: dict[int, Batch] = {}
        for value, key, timestamp_ms in records:
            is_change = isinstance(value, Change)
            stored = (is_change, (value.key, value.old, value.new) if is_change else value, key)
            where = 0
            if self.partitions > 1:
                where = 0 if key is None else murmur2(self._keys.encode(key)) % self.partitions
            batch = batches.setdefault(where, Batch([], timestamps=[]))
            batch.values.append(_STORED.encode(stored))
            assert batch.timestamps is not None, "the batch was made with times"
            batch.timestamps.append(timestamp_ms)  # type: ignore[arg-type]  # taken out below where it is None
        return [Append(self._stream, where, _without_times(batch)) for where, batch in batches.items()]

    def _tried(self, function: Callable[[], bool]) -> bool:
        """Call a function, again after a pause where that may help; anything else that it raises ends the run."""
        pause_s = FIRST_PAUSE_S
        for number in range(1, TRIES + 1):
            try:
                return function()
            except (Unavailable, OSError) as error:
                failure = error
            except SamzaError:
                raise
            except Exception as error:
                raise SamzaError(f"{self.name}: the source failed: {error!r}") from error
            _log.warning("%s failed, try %d of %d: %s", self.name, number, TRIES, failure)
            if number == TRIES or self._closing.wait(pause_s):
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise Unavailable(f"{self.name} can't be read: {failure}") from failure

    def check(self) -> None:
        """Raise what has gone wrong where it is pulled."""
        if self._failure is not None:
            raise self._failure


def inbox_of(app: str, stream: str, where: str) -> str:
    """Return the stream that an input is pulled into: another place has another one.

    >>> inbox_of("shop", "orders", "shop.db")
    'shop.inbox.orders.44e81dc2'
    """
    return f"{app}.inbox.{stream}.{zlib.crc32(where.encode()):08x}"


def gives_changes(declared: Serde) -> bool:
    """Whether an input declares the changes of rows as its values.

    >>> from runtime.encoding.serdes import Json
    >>> gives_changes(Json(Change[int, dict])), gives_changes(Json(dict))
    (True, False)
    """
    kind = type_of_values(declared)
    return kind is Change or get_origin(kind) is Change


def _without_times(batch: Batch) -> Batch:
    if batch.timestamps is not None and None in batch.timestamps:
        # Of rows of which some have no time of their own all have that of the append.
        batch.timestamps = None
    return batch


_STORED = Evolving()
_CHANGE = Change.__struct_fields__
