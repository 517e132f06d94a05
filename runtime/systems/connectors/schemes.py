"""The connectors behind URLs: those of the product, and those that other packages name as entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple, TypeGuard, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from runtime.model.errors import SamzaError
from runtime.ports.connectors import (
    AnySource,
    AtLeastOnceSink,
    ConnectedSink,
    ConnectedSource,
    PositionedSink,
    PulledSource,
    Scheme,
    TransactionalSink,
)
from runtime.systems.databases.dialect import Dialect
from runtime.systems.files.places.locations import SCHEME
from runtime.systems.kafka.client.topic import KafkaTopic

C = TypeVar("C")

GROUP = "samza_dsl.connectors"
"""The group of entry points by which packages name schemes."""


def connected_source(url: str) -> AnySource | None:
    """Return the source behind a URL; None where its scheme is none of a connector's. Raises SamzaError."""
    return _connected(url, lambda scheme: scheme.source, "reads")


def connected_sink(url: str) -> ConnectedSink | None:
    """Return the sink behind a URL; None where its scheme is none of a connector's. Raises SamzaError."""
    return _connected(url, lambda scheme: scheme.sink, "writes")


def _connected(url: str, side: Callable[[Scheme], Callable[[str], C] | None], does: str) -> C | None:
    scheme = scheme_of(url)
    if scheme is None:
        return None
    make = side(scheme)
    if make is None:
        raise SamzaError(
            f"{shown_url(url)}: a connector for {_name(url)}:// is there, and it {does} nothing: bind a file"
        )
    return make(url)


def is_connected(what: object) -> TypeGuard[str]:
    """Whether something is a URL that a connector is behind.

    >>> is_connected("sqlite:///shop.db?table=orders"), is_connected("orders.jsonl")
    (True, False)
    """
    return isinstance(what, str) and scheme_of(what) is not None


@cache
def _named() -> dict[str, object]:
    return {one.name: one for one in entry_points(group=GROUP)}


def scheme_of(url: str) -> Scheme | None:
    """Return the connectors of a URL's scheme, by the entry point of its name; None where there is none."""
    found = _named().get(_name(url)) if SCHEME.match(url) else None
    if found is None:
        return BUILT_IN.get(_name(url)) if SCHEME.match(url) else None
    loaded = found.load()  # type: ignore[attr-defined]  # an EntryPoint, which is read late
    if not isinstance(loaded, Scheme):
        raise SamzaError(
            f"the entry point {_name(url)!r} of {GROUP} is a {type(loaded).__name__}: it has to be a "
            "connectors.Scheme(source=..., sink=...)"
        )
    return loaded


def _sqlite_source_at(url: str) -> PulledSource:
    from runtime.systems.databases.sqlite import sqlite_source

    rest, table, said = _source_apart(url, "sqlite:///shop.db?table=orders")
    return sqlite_source(_file(rest), table, **said)


def _duckdb_source_at(url: str) -> PulledSource:
    from runtime.systems.databases.duckdb_file import duckdb_source

    rest, table, said = _source_apart(url, "duckdb:///shop.duckdb?table=orders&by=id")
    return duckdb_source(_file(rest), table, **{"by": "", **said})


def _postgres_source_at(url: str) -> PulledSource:
    from runtime.systems.databases.postgres import postgres_source

    rest, table, said = _source_apart(url, "postgres://user@host/shop?table=orders")
    return postgres_source(rest, table, **said)


def _sqlite_at(url: str) -> PositionedSink:
    from runtime.systems.databases.sqlite import sqlite

    rest, table, key = _taken_apart(url, "sqlite:///shop.db?table=orders&key=id")
    return sqlite(_file(rest), table, key)


def _duckdb_at(url: str) -> PositionedSink:
    from runtime.systems.databases.duckdb_file import duckdb

    rest, table, key = _taken_apart(url, "duckdb:///shop.duckdb?table=orders&key=id")
    return duckdb(_file(rest), table, key)


def _postgres_at(url: str) -> PositionedSink:
    from runtime.systems.databases.postgres import postgres

    rest, table, key = _taken_apart(url, "postgres://user@host/shop?table=orders&key=id")
    return postgres(rest, table, key)


def _file(url: str) -> str:
    """Return the path in a URL: behind three slashes it is relative, as SQLAlchemy has it, behind four absolute."""
    return unquote(url.partition("://")[2].removeprefix("/"))


def _taken_apart(url: str, example: str) -> tuple[str, str, Sequence[str]]:
    """Return a URL without what it says of the table, the table, and its key; raises SamzaError where it names none."""
    rest, _, query = url.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    table, key = said.pop("table", ""), said.pop("key", "")
    if not table:
        raise SamzaError(f"a URL of a database says the table: {example}")
    return f"{rest}?{urlencode(said)}" if said else rest, table, [name for name in key.split(",") if name]


class DatabaseTable(NamedTuple):
    """A table behind a URL: the dialect of its database, where that is, and what the URL says of it."""

    dialect: Dialect
    where: str
    name: str
    key: tuple[str, ...]


def database_table(url: str) -> DatabaseTable:
    """Return the table behind a URL of SQLite, DuckDB or Postgres; raises SamzaError for another one.

    >>> database_table("sqlite:///shop.db?table=orders&key=shop,id").key
    ('shop', 'id')
    """
    from runtime.systems.databases import duckdb_file, postgres, sqlite

    rest, name, key = _taken_apart(url, "sqlite:///shop.db?table=orders&key=id")
    scheme = _name(url)
    if scheme in ("postgres", "postgresql"):
        return DatabaseTable(*postgres.dialect_at(rest), name, tuple(key))
    if scheme not in ("sqlite", "duckdb"):
        raise SamzaError(f"{shown_url(url)}: write a URL of sqlite://, duckdb:// or postgres://")
    dialect_at = sqlite.dialect_at if scheme == "sqlite" else duckdb_file.dialect_at
    return DatabaseTable(*dialect_at(_file(rest)), name, tuple(key))


def _source_apart(url: str, example: str) -> tuple[str, str, dict[str, Any]]:
    """Return a URL without what it says of a table that is read, the table, and in which order and by which key."""
    rest, _, query = url.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    by = {"by": said.pop("by")} if "by" in said else {}
    rest, table, key = _taken_apart(f"{rest}?{urlencode(said)}" if said else rest, example)
    return rest, table, {**by, **({"key": key} if key else {})}


def promise_of(what: object, writes: bool) -> str:
    """Return what an input or output is bound to, and what that promises; raises SamzaError for what can't be.

    >>> promise_of("orders.jsonl", writes=True)
    'orders.jsonl (exactly once: cut back to the last commit after a crash)'
    """
    connected: object = what
    if is_connected(what):
        connected = connected_sink(what) if writes else connected_source(what)
    if isinstance(connected, ConnectedSink | AnySource):
        return f"{connected.name} ({connected.promise})"
    promise = TransactionalSink.promise if writes else ConnectedSource.promise
    if isinstance(what, KafkaTopic):
        return f"{what.address} ({AtLeastOnceSink.promise if writes else promise})"
    return f"{shown_url(str(what))} ({promise})"


def shown_url(url: str) -> str:
    """Return a URL without what may be a secret: who connects, in front of the host, and options behind it.

    >>> shown_url("postgres://me:secret@db/shop?table=orders"), shown_url("orders.jsonl")
    ('postgres://db/shop', 'orders.jsonl')
    """
    scheme, colon, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if colon else url


def _name(url: str) -> str:
    return url.partition(":")[0].lower()


BUILT_IN = {
    "sqlite": Scheme(_sqlite_source_at, _sqlite_at),
    "duckdb": Scheme(_duckdb_source_at, _duckdb_at),
    "postgres": Scheme(_postgres_source_at, _postgres_at),
    "postgresql": Scheme(_postgres_source_at, _postgres_at),
}
"""The product's own connectors by the schemes of their URLs; each is imported where it is used."""
