"""A stream of Redis as a source: its entries are pulled in order, and counted, so that none is missed in silence."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from operators.core.durations import Duration
from runtime.model.errors import SamzaError, SerdeError, command
from runtime.ports.connectors import Pulled, PulledRecord, PulledSource, length_ms
from runtime.systems.databases.table_columns import Made
from runtime.systems.redis.fields import read_as
from runtime.systems.redis.server import RedisServer

AT_ONCE = 5_000
"""The entries that are asked for at a time."""
_log = logging.getLogger("samza_dsl")


class _Place(NamedTuple):
    """The position of a reader: the id of its last entry, and how many entries the stream had had up to that."""

    entry: tuple[int, int]
    passed: int

    @property
    def text(self) -> str:
        return "{}-{}".format(*self.entry)


class StreamEntries:
    """The entries of a stream, as they are pulled.

    Invariants: an id alone does not tell whether entries between it and the first that is there were removed; so a
    position has the number of entries that the stream had had up to there, which Redis counts as well, whatever is
    trimmed. One thread at a time calls it.
    """

    def __init__(self, server: RedisServer, stream: str, field: str, skip_lost: bool) -> None:
        self._server, self._stream, self._field, self._skip_lost = server, stream, field, skip_lost
        self.name = f"{server.where}#{stream}"
        self._is_awaited = False

    def pull(self, reader: str, position: bytes) -> Pulled:
        """Return the entries behind a position; raises SamzaError where some were removed before they were read."""
        at = _placed(position)
        with self._server.told(self.name):
            after = f"({at.text}" if at else "-"
            # In one transaction, so that what is counted is of the same moment as what is read.
            pipe = self._server.client.pipeline(transaction=True)
            pipe.xinfo_stream(self._stream).xrange(self._stream, after, "+", count=AT_ONCE)
            info, found = pipe.execute(raise_on_error=False)
            if isinstance(info, Exception):
                if "no such key" not in str(info):
                    raise info
                return self._absent(position, at)
            if isinstance(found, Exception):
                raise found
        added, removed = self._counted(info)
        at = at or _Place((0, 0), removed)
        self._check_same(at, added, _id_of(info["last-generated-id"]))
        is_end = len(found) < AT_ONCE
        lost = added - at.passed - len(found) if is_end else max(removed - at.passed, 0)
        assert lost >= 0, "Redis has counted each entry that is there"
        if lost:
            self._tell_lost(lost, at, _id_of(found[0][0]) if found else None)
        last = _id_of(found[-1][0]) if found else at.entry
        behind = _Place(last, at.passed + lost + len(found))
        records = [self._record(*one) for one in found]
        return Pulled(records, f"{behind.text} {behind.passed}".encode(), more=not is_end)

    def _absent(self, position: bytes, at: _Place | None) -> Pulled:
        if at is not None and at.passed:
            raise SamzaError(
                f"{self.name} is gone, and had {at.passed:,} entries up to {at.text}: restore it, or let the "
                f"application begin anew ({command('reset APP')})"
            )
        if not self._is_awaited:
            self._is_awaited = True
            _log.warning("%s is not there yet: entries are read once somebody adds some", self.name)
        return Pulled([], position)

    def _counted(self, info: Any) -> tuple[int, int]:
        """Return how many entries the stream has ever had, and how many of these are gone."""
        if "entries-added" not in info:
            raise SamzaError(
                f"{self.name}: this server does not count the entries of a stream, so that trimmed ones would be "
                "missed in silence: Redis 7.0 does, and later ones"
            )
        added = int(info["entries-added"])
        return added, added - int(info["length"])

    def _check_same(self, at: _Place, added: int, last: tuple[int, int]) -> None:
        if added < at.passed or last < at.entry:
            raise SamzaError(
                f"{self.name} has had {added:,} entries, the last {last[0]}-{last[1]}, and {at.passed:,} up to "
                f"{at.text} were read: it is another stream than then, or a copy of another time; restore it, or let "
                f"the application begin anew ({command('reset APP')})"
            )

    def _tell_lost(self, lost: int, at: _Place, first: tuple[int, int] | None) -> None:
        where = f" and before {first[0]}-{first[1]}" if first else ""
        told = (
            f"{self.name}: {lost:,} {'entry' if lost == 1 else 'entries'} behind {at.text}{where} "
            f"{'was' if lost == 1 else 'were'} trimmed or deleted before being read"
        )
        if not self._skip_lost:
            raise SamzaError(
                f"{told}. Let its producers keep more (MAXLEN, MINID), and run more often; to go on without them: "
                "redis_source(..., skip_lost=True)"
            )
        _log.warning("%s: the run goes on without them", told)

    def _record(self, entry: bytes, fields: dict[bytes, bytes]) -> PulledRecord:
        stamp = _id_of(entry)
        if (data := fields.get(self._field.encode())) is not None and self._field:
            return PulledRecord(data, timestamp_ms=stamp[0])
        # An entry whose names are no text, or without the field, is for the input's `on_error=`, as any other record
        # that can't be read: it would end each run.
        pairs = [[name, data] for name, data in fields.items()]
        try:
            return PulledRecord({name.decode(): data for name, data in pairs}, timestamp_ms=stamp[0])
        except UnicodeDecodeError:
            return PulledRecord(pairs, timestamp_ms=stamp[0])

    def read_as(self, kind: Any) -> Made:
        """Return what makes an entry as plain as a type; raises SerdeError for one that has not what is to be read."""
        made = self._lacking if self._field else read_as(kind)

        def of_names(fields: Any) -> object:
            if not isinstance(fields, dict):
                odd = [name for name, _ in fields if _is_no_text(name)]
                raise SerdeError(f"{self.name}: the name of a field is no text: {odd[0][:40]!r}")
            return made(fields)

        return of_names

    def _lacking(self, fields: dict[str, bytes]) -> object:
        raise SerdeError(
            f"{self.name}: an entry has the fields {', '.join(fields)}, and no {self._field!r}: name the one that "
            "holds the value, field=, or leave it out for records of all fields"
        )


def redis_source(
    url: str, stream: str, *, field: str = "", skip_lost: bool = False, poll_ms: Duration = 500
) -> PulledSource:
    """Read a stream of Redis, each entry once: `bind={"orders": connectors.redis_source("redis://host", "orders")}`.

    All entries that are there come first, and then what is added. Their fields are those of the input's type, with
    numbers as text and what is nested as JSON; with `field=` the bytes of that one are the value, as the input's
    `value=` reads them. The event time is the time in the id. Entries that are trimmed or deleted before they were read
    end the run with their number, or with `skip_lost` are told in the log. It needs Redis 7. Raises SamzaError where
    the client is absent.

    >>> from samza_dsl import connectors
    >>> connectors.redis_source("redis://me:secret@host:6379/0", "orders").name
    'redis://host:6379/0#orders'
    """
    if not isinstance(stream, str) or not stream:
        raise SamzaError(f'redis_source(url, stream={stream!r}): name the stream: redis_source(url, "orders")')
    server = RedisServer(url)
    entries = StreamEntries(server, stream, field, skip_lost)
    every_ms = length_ms("redis_source(poll_ms", poll_ms)
    return PulledSource(
        entries.name,
        entries.pull,
        close=server.close,
        poll_ms=every_ms,
        adapt=entries.read_as,
        snapshot=entries.pull,
        place=entries.name,
    )


def _placed(position: bytes) -> _Place | None:
    """Return what a position says, which `pull` has written; None for that of the beginning."""
    if not position:
        return None
    entry, _, passed = position.partition(b" ")
    return _Place(_id_of(entry), int(passed))


def _id_of(entry: bytes) -> tuple[int, int]:
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)


def _is_no_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return True
    return False
