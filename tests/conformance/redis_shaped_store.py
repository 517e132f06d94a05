"""A kind of store of one's own, in one file: state lies in the hashes of a server that is shaped as Redis is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.encoding.storable import check_kept
from runtime.ports.state import StateWrites
from runtime.ports.store import StorePlace, TaskStore
from runtime.stores.registry import StoreKind, register

UNCHANGED = object()


class RedisShaped:
    """The few calls of a Redis client that the store makes, over a dict."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {}

    def hget(self, name: str, key: bytes) -> bytes | None:
        return self.hashes.get(name, {}).get(key)

    def hset(self, name: str, key: bytes, value: bytes) -> None:
        self.hashes.setdefault(name, {})[key] = value

    def hdel(self, name: str, key: bytes) -> None:
        self.hashes.get(name, {}).pop(key, None)

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        return dict(self.hashes.get(name, {}))

    def delete(self, name: str) -> None:
        self.hashes.pop(name, None)


SERVER = RedisShaped()


class RedisShapedStore(TaskStore):
    """The state of one operator in one task as a hash on a server, which a store that is opened makes anew.

    The environment's commits are its changelog: from them it is restored, so that what was never committed, which the
    server has kept nevertheless, is gone. Values are encoded when they are put, and decoded at each `get`.
    """

    durable = True

    def __init__(self, place: StorePlace, client: RedisShaped = SERVER) -> None:
        self.name, self.get_ms = place.operator, 0.0
        self._place, self._client = place, client
        self._serde = place.serde
        self._hash = f"{place.app}:{place.operator}:{place.task}"
        self._dirty: dict[bytes, bytes | None] = {}
        self._journal: dict[bytes, tuple[bytes | None, Any]] | None = None
        """Under a savepoint, of each key that was written since: what the server had, and what was dirty."""
        client.delete(self._hash)
        for key, data in place.environment.state_range(place.app, place.operator, place.task):
            client.hset(self._hash, key, data)

    @property
    def dirty_count(self) -> int:
        return len(self._dirty)

    def get(self, key: bytes, default: Any = None) -> Any:
        data = self._client.hget(self._hash, key)
        return default if data is None else self._serde.decode(data)

    def put(self, key: bytes, value: Any) -> None:
        self._write(key, self._serde.encode(value))

    def delete(self, key: bytes) -> None:
        self._write(key, None)

    def update(self, entries: Mapping[bytes, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        found = sorted(self._client.hgetall(self._hash).items())
        return iter(
            [(key, self._serde.decode(data)) for key, data in found if key >= start and (end is None or key < end)]
        )

    def changes(self) -> StateWrites:
        return StateWrites(self.name, self._place.task, sorted(self._dirty.items()))

    def committed(self) -> None:
        if self._journal is not None:
            raise RuntimeError(f"Store {self.name!r} can't be committed under a savepoint: release it first.")
        self._dirty.clear()

    def rest(self) -> None:
        """Do nothing: the server knows no moments."""

    def savepoint(self) -> None:
        if self._journal is not None:
            raise RuntimeError(f"Store {self.name!r} has a savepoint already: release it, or roll back to it, first.")
        self._journal = {}

    def rollback(self) -> None:
        journal, self._journal = self._journal or {}, None
        for key, (data, dirty) in journal.items():
            self._store(key, data)
            if dirty is UNCHANGED:
                del self._dirty[key]
            else:
                self._dirty[key] = dirty

    def release(self) -> None:
        self._journal = None

    def check_written(self, exactly: bool = False) -> None:
        """Do nothing: what is here was encoded when it was put."""

    def check_newest(self, most: int, beside: Sequence[object] = ()) -> None:
        check_kept(self._serde, [*beside])

    def _write(self, key: bytes, data: bytes | None) -> None:
        if self._journal is not None and key not in self._journal:
            self._journal[key] = self._client.hget(self._hash, key), self._dirty.get(key, UNCHANGED)
        self._store(key, data)
        self._dirty[key] = data

    def _store(self, key: bytes, data: bytes | None) -> None:
        if data is None:
            self._client.hdel(self._hash, key)
        else:
            self._client.hset(self._hash, key, data)


REDIS_SHAPED = register(StoreKind("redis-shaped", RedisShapedStore, durable=True))
