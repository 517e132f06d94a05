"""Hashes and streams of Redis as sinks: rows and our positions change in one transaction."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from runtime.model.errors import Damaged, SamzaError, SerdeError, Unavailable, command
from runtime.ports.connectors import PositionedSink, SinkOwner, SinkRow
from runtime.systems.databases.dialect import POSITIONS
from runtime.systems.redis.fields import Fields, FieldsOfRows
from runtime.systems.redis.server import RedisServer

BATCH_ROWS = 5_000
"""The rows of a transaction: while one runs, the server answers nobody else."""
LOOKED_AT = 1_000
"""The keys that a scan looks at, and that are deleted, at a time."""
_log = logging.getLogger("samza_dsl")


class Kept(NamedTuple):
    """The key of a partition of an output: who owns it, how far it is, whether its application made the place."""

    identity: int
    generation: int
    token: int
    position: int
    is_made: int


class KeyPlace(Protocol):
    """The keys that rows of an output go to: a stream, or hashes whose keys begin alike."""

    name: str
    """Begins with the kind, so that a stream and hashes of one name are two places."""
    replaces: bool
    """Whether a row replaces that of its key."""

    def prepare(self, kind: Any) -> None:
        """Take the type of the rows; raises SamzaError where they have no fields."""

    def commands(self, rows: Sequence[SinkRow]) -> Commands:
        """Return the keys that rows change, and what adds the commands to a transaction; raises SerdeError."""

    def keys(self, client: Any) -> Iterator[bytes]:
        """Yield the keys that are there, some perhaps twice."""


class Commands(NamedTuple):
    """The keys that are changed, the type that those have to be of that are there, and what queues the changes."""

    keys: Sequence[bytes]
    kind: bytes
    queue: Callable[[Any], None]


class Hashes:
    """Hashes `PREFIX:KEY`, each with the fields of the newest row of its key."""

    replaces = True

    def __init__(self, prefix: str, key: Sequence[str], where: str) -> None:
        self.name, self._prefix, self._key = f"hashes {prefix}", prefix, tuple(key)
        self._where = where
        self._fields: FieldsOfRows | None = None

    def prepare(self, kind: Any) -> None:
        """Take the type of the rows."""
        self._fields = FieldsOfRows(kind, self._key, self._where)

    def commands(self, rows: Sequence[SinkRow]) -> Commands:
        """Return what puts the newest row of each key, and deletes the hash of one that has none."""
        fields = self._fields
        assert fields is not None, "a place is claimed before it is written"
        rows = [*rows]
        made = fields.made([row.value for row in rows if row.value is not None])
        newest: dict[bytes, Fields | None] = {}
        for row in rows:
            found = None if row.value is None else next(made)
            key = fields.key_of_gone(row.key) if found is None else fields.key_of(found, row.key)
            newest[self._prefix.encode() + b":" + key] = found

        def queue(pipe: Any) -> None:
            for key, found in newest.items():
                # A field that the row before had, and this one has not, goes with the hash.
                pipe.unlink(key)
                if found is not None:
                    pipe.hset(key, mapping=found)

        return Commands([*newest], b"hash", queue)

    def keys(self, client: Any) -> Iterator[bytes]:
        """Yield the keys that begin with the prefix, by a scan of the database."""
        yield from client.scan_iter(match=f"{_literal(self._prefix)}:*", count=LOOKED_AT)


class Entries:
    """A stream, to which each row is added as an entry."""

    replaces = False

    def __init__(self, stream: str, max_entries: int | None, where: str) -> None:
        self.name, self._stream, self._max = f"stream {stream}", stream, max_entries
        self._where = where
        self._fields: FieldsOfRows | None = None

    def prepare(self, kind: Any) -> None:
        """Take the type of the rows."""
        self._fields = FieldsOfRows(kind, (), self._where)

    def commands(self, rows: Sequence[SinkRow]) -> Commands:
        """Return what adds the rows in their order."""
        assert self._fields is not None, "a place is claimed before it is written"
        values = [row.value for row in rows]
        if any(value is None for value in values):
            raise SerdeError(
                f"{self._where}: a record without a value deletes the row of its key, and rows are added here: write "
                "them to hashes, or filter such records out"
            )
        made = [*self._fields.made(values)]

        def queue(pipe: Any) -> None:
            for fields in made:
                pipe.xadd(self._stream, fields, maxlen=self._max, approximate=True)

        return Commands([self._stream.encode()] if made else [], b"stream", queue)

    def keys(self, client: Any) -> Iterator[bytes]:
        """Yield the stream's key where it is there."""
        if client.exists(self._stream):
            yield self._stream.encode()


class RedisSink:
    """A place of an output in Redis.

    Invariants: rows and position change in one MULTI, of an owner and from a position that are watched, so that it
    fails where another has changed these meanwhile. Redis takes nothing back where a command of a MULTI fails: what
    could fail, a key of another type, is looked at before. One thread at a time calls it.
    """

    def __init__(self, server: RedisServer, place: KeyPlace, where: str) -> None:
        self._server, self._place, self._where = server, place, where
        self._tokens: dict[tuple[str, str, int], int] = {}
        """The claims of this process: a copy of its data directory has the same generation, and another token."""

    def claim(self, owner: SinkOwner) -> int:
        """Own the place for a generation of an application, and return the position that it has come to."""
        self._place.prepare(owner.value_type)
        key = self._key(owner)
        with self._server.told(self._where):
            client = self._server.client
            own = [kept for app, kept in self._kept_here() if app == owner.app]
            is_there = next(self._place.keys(client), None) is not None
            pipe = client.pipeline(transaction=True)
            pipe.watch(key)
            found = self._kept(pipe.hgetall(key))
            now = found or Kept(owner.identity, 0, 0, 0, int(not is_there or any(one.is_made for one in own)))
            if now.identity == owner.identity and now.generation > owner.generation:
                raise owner.fenced_error(self._where)
            if now.position and not is_there and not self._place.replaces:
                raise Unavailable(
                    f"{self._where} is gone, and had rows up to {now.position:,} of {owner.output!r}: restore it, or "
                    f"let the application begin anew ({command(f'reset {owner.app}')})"
                )
            if now.identity != owner.identity and now.position:
                raise SamzaError(
                    f"{self._where} has rows that application {owner.app!r} has written in an earlier life, with "
                    f"another data directory or before it began anew: delete the key {key!r}"
                    f"{'' if self._place.replaces else ', and the stream'}; or write to another place"
                )
            # Before anything is changed: who can't go on shall not fence the one that can.
            owner.check_known(now.position, self._where)
            if owner.is_known and found is None and is_there and not self._place.replaces:
                raise owner.lost_error(self._where, f"the key {key!r}")
            token = secrets.randbits(62)
            mine = now._replace(identity=owner.identity, generation=owner.generation, token=token)
            pipe.multi()
            pipe.hset(key, mapping=mine._asdict())
            pipe.execute()
            self._tokens[owner.place] = token
            return now.position

    def write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        """Take rows and the position behind them; raises `Fenced` where the place has another owner, or position."""
        commands = self._place.commands(rows)
        key, mine = self._key(owner), (owner.identity, owner.generation, self._tokens.get(owner.place))
        with self._server.told(self._where):
            client = self._server.client
            pipe = client.pipeline(transaction=True)
            pipe.watch(key)
            found = self._kept(pipe.hgetall(key))
            if found is None or found[:3] != mine:
                raise owner.fenced_error(self._where)
            if found.position == following:
                return  # the transaction of an earlier try, whose answer was lost
            if found.position != position:
                raise Damaged(
                    f"{self._where} is at {found.position:,}, and had taken rows up to {position:,}: the server has "
                    "lost what it had answered. It keeps all of that with appendonly yes and appendfsync always"
                )
            self._check_types(client, commands)
            pipe.multi()
            commands.queue(pipe)
            pipe.hset(key, "position", following)
            pipe.execute()

    def empty(self, owner: SinkOwner) -> None:
        """Drop the rows of an application that begins anew, and its position; raises SamzaError where others write.

        Hashes that were there before, or that others write to as well, stay, and are replaced by key.
        """
        with self._server.told(self._where):
            client = self._server.client
            found = [*self._kept_here()]
            # The application's, whichever of its outputs and partitions: it begins anew as a whole.
            own = [kept for app, kept in found if app == owner.app]
            if not own:
                return
            if any(one.is_made for one in own) and len(own) == len(found):
                some: list[bytes] = []
                for key in self._place.keys(client):
                    some.append(key)
                    if len(some) == LOOKED_AT:
                        client.unlink(*some)
                        some.clear()
                if some:
                    client.unlink(*some)
            elif not self._place.replaces:
                raise SamzaError(
                    f"{self._where} has rows that application {owner.app!r} has added, among those of others: delete "
                    f"these, and the key {self._key(owner)!r}, and reset the application again"
                )
            else:
                _log.warning("%s keeps its rows, which are replaced as they are computed anew", self._where)
            client.unlink(self._key(owner))

    def _check_types(self, client: Any, commands: Commands) -> None:
        types = client.pipeline(transaction=False)
        for key in commands.keys:
            types.type(key)
        for key, found in zip(commands.keys, types.execute(), strict=True):
            if found not in (b"none", commands.kind):
                raise SamzaError(
                    f"{self._where}: the key {key!r} is there, and is a {found.decode()}, and no "
                    f"{commands.kind.decode()}: delete it, or write to another place"
                )

    def _key(self, owner: SinkOwner) -> str:
        return f"{POSITIONS}:{msgspec.json.encode((self._place.name, *owner.place)).decode()}"

    def _kept_here(self) -> Iterator[tuple[str, Kept]]:
        """Yield what is kept of all that write to this place: their application, and that."""
        client = self._server.client
        begins = f"{POSITIONS}:[{msgspec.json.encode(self._place.name).decode()},"
        for key in {*client.scan_iter(match=f"{_literal(begins)}*", count=LOOKED_AT)}:
            _, app, *_ = msgspec.json.decode(key.partition(b":")[2])
            kept = self._kept(client.hgetall(key))
            if kept is not None:
                yield app, kept

    @staticmethod
    def _kept(found: dict[bytes, bytes]) -> Kept | None:
        return Kept(*(int(found[name.encode()]) for name in Kept._fields)) if found else None


def redis_hashes(url: str, prefix: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Put rows into hashes of Redis, exactly once: `bind={"orders": connectors.redis_hashes(url, "order", key="id")}`.

    The row whose `id` is 7 is the hash `order:7`, with its fields as text, and what is nested as JSON; one that is None
    is left out. A later row replaces it, and a record without a value deletes it. Without `key`, names of fields, that
    of the record counts, which the output declares: `app.output("totals", value=int, key=str)` has hashes of one field,
    `value`. Positions are in the keys that begin with `samza_dsl_positions`. Raises SamzaError where the client is
    absent.

    >>> from samza_dsl import connectors
    >>> connectors.redis_hashes("redis://me:secret@host:6379/0", "order", key="id").name
    'redis://host:6379/0#order:*'
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if not isinstance(prefix, str) or not prefix:
        raise SamzaError(f'redis_hashes(url, prefix={prefix!r}): say how the keys begin: redis_hashes(url, "order")')
    if not all(isinstance(name, str) and name for name in names):
        raise SamzaError(f'redis_hashes(key={key!r}) names no fields: write key="id", or key=("shop", "id")')
    server = RedisServer(url)
    where = f"{server.where}#{prefix}:*"
    return _sink(server, Hashes(prefix, names, where), where)


def redis_stream(url: str, stream: str, *, max_entries: int | None = None) -> PositionedSink:
    """Add each row to a stream of Redis, exactly once: `bind={"orders": connectors.redis_stream(url, "orders")}`.

    The fields of an entry are those of the row, as `redis_source` reads them. With `max_entries` the stream is trimmed
    to about so many. Raises SamzaError where the client is absent.

    >>> from samza_dsl import connectors
    >>> connectors.redis_stream("redis://host:6379/0", "orders", max_entries=1_000_000).name
    'redis://host:6379/0#orders'
    """
    if not isinstance(stream, str) or not stream:
        raise SamzaError(f'redis_stream(url, stream={stream!r}): name the stream: redis_stream(url, "orders")')
    if max_entries is not None and (type(max_entries) is not int or max_entries < 1):
        raise SamzaError(f"redis_stream(max_entries={max_entries!r}): write a whole number: max_entries=1_000_000")
    server = RedisServer(url)
    where = f"{server.where}#{stream}"
    return _sink(server, Entries(stream, max_entries, where), where)


def _sink(server: RedisServer, place: KeyPlace, where: str) -> PositionedSink:
    sink = RedisSink(server, place, where)
    how = (sink.claim, sink.write, sink.empty, server.close)
    return PositionedSink(where, *how, batch_rows=BATCH_ROWS, deletes=not isinstance(place, Entries), place=where)


def _literal(text: str) -> str:
    """Return a pattern that matches a text alone."""
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)
