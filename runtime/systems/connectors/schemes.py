"""The connectors behind URLs: those of the product, and those that other packages name as entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeGuard, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from runtime.model.errors import SamzaError
from runtime.model.urls import shown_url
from runtime.ports.connectors import (
    AnySource,
    AtLeastOnceSink,
    ConnectedSink,
    ConnectedSource,
    PositionedSink,
    PulledSource,
    PushedSource,
    Scheme,
    TransactionalSink,
)
from runtime.systems.databases.dialect import Dialect
from runtime.systems.files.places.locations import SCHEME
from runtime.systems.kafka.client.topic import KafkaTopic

C = TypeVar("C")

_REDIS_SOURCE = "redis://host:6379/0?stream=orders, and &field=data&skip_lost=true where that is meant"
_REDIS_SINK = "redis://host:6379/0?hash=order&key=id, or redis://host:6379/0?stream=orders&max_entries=1000000"
_PACE: dict[str, Callable[[str], float]] = {"batch_rows": int, "rows_per_second": float}
GROUP = "samza_dsl.connectors"
"""The group of entry points by which packages name schemes."""


def connected_source(url: str) -> AnySource | None:
    """Return the source behind a URL; None where its scheme is none of a connector's. Raises SamzaError."""
    return _connected(url, lambda scheme: scheme.source, "reads")


def connected_sink(url: str) -> ConnectedSink | None:
    """Return the sink behind a URL, at the pace that it says; None where its scheme is none of a connector's.

    Raises SamzaError.

    >>> connected_sink("sqlite:///shop.db?table=sold&rows_per_second=50").rows_per_second
    50.0
    """
    if scheme_of(url) is None:
        return None
    rest, pace = _pace_apart(url)
    sink = _connected(rest, lambda scheme: scheme.sink, "writes")
    if sink is None or not pace:
        return sink
    if isinstance(sink, TransactionalSink) or (isinstance(sink, PositionedSink) and sink.batching is not None):
        raise SamzaError(f"{shown_url(url)}: {', '.join(pace)}: what is written here is given no rows at a pace")
    return replace(sink, **pace)


def connected_at(what: object, writes: bool) -> object:
    """Return the sink or source behind a URL, and anything else that is bound as it is; raises SamzaError.

    >>> connected_at("orders.jsonl", writes=True), connected_at("sqlite:///shop.db?table=sold", writes=True).name
    ('orders.jsonl', 'sqlite:...shop.db#sold')
    """
    if not is_connected(what):
        return what
    return connected_sink(what) if writes else connected_source(what)


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
def installed() -> dict[str, EntryPoint]:
    """Return the entry points that packages name, by scheme."""
    return {one.name: one for one in entry_points(group=GROUP)}


def scheme_of(url: str) -> Scheme | None:
    """Return the connectors of a URL's scheme, by the entry point of its name; None where there is none."""
    name = _name(url)
    if name in OF_PLACES:
        return OF_PLACES[name]
    found = installed().get(name) if SCHEME.match(url) else None
    if found is None:
        return BUILT_IN.get(name) if SCHEME.match(url) else None
    try:
        loaded = found.load()
    except Exception as error:
        wrong = f"the entry point {name!r} of {GROUP} can't be loaded: {error}: repair or remove its package"
        raise SamzaError(wrong) from error
    if not isinstance(loaded, Scheme):
        raise SamzaError(
            f"the entry point {name!r} of {GROUP} is a {type(loaded).__name__}: it has to be a "
            "connectors.Scheme(source=..., sink=...)"
        )
    return loaded


def _growing_at(url: str) -> PushedSource:
    from runtime.systems.folders.growing import growing_folder

    return growing_folder(_named(url.partition(":")[2], "growing:incoming/*.jsonl"))


def _rolling_at(url: str) -> PositionedSink:
    from runtime.systems.folders.rolling import rolling_files

    place, _, query = url.partition(":")[2].partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    known = {"kind", "rows", "every_ms", "partition_by"}
    if odd := said.keys() - known or {name for name in ("rows", "every_ms") if not said.get(name, "1").isdecimal()}:
        raise SamzaError(
            f"{url}: {', '.join(sorted(odd))}: write rolling:FOLDER?kind=parquet&rows=100000&every_ms=60000"
        )
    numbers = {name: int(said[name]) for name in ("rows", "every_ms") if name in said}
    by = [name for name in said.get("partition_by", "").split(",") if name]
    return rolling_files(_named(place, "rolling:FOLDER"), said.get("kind", "parquet"), partition_by=by, **numbers)  # type: ignore[arg-type]


def _named(place: str, example: str) -> str:
    # An empty path is the folder that the run was started in, and hardly what a variable that is not set means.
    if not place:
        raise SamzaError(f"{example.partition(':')[0]}: names no folder: write {example}, or . for this one")
    return place


def _listening_at(url: str) -> PushedSource:
    from runtime.systems.http.http_source import http_source

    parts = urlsplit(url)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    if odd := said.keys() - {"token_file"}:
        raise SamzaError(f"{shown_url(url)}: {', '.join(sorted(odd))}: write listen://:8080/orders?token_file=FILE")
    return http_source(parts.netloc, parts.path or "/", token_file=said.get("token_file"))


def _websocket_at(url: str) -> PushedSource:
    from runtime.systems.http.websocket import websocket

    return websocket(url)


def _webhook_at(url: str) -> AtLeastOnceSink:
    from runtime.systems.http.webhook import webhook

    return webhook(url.removeprefix("webhook+"))


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


def _redis_source_at(url: str) -> PulledSource:
    from runtime.systems.redis.entries import redis_source

    rest, said = _redis_apart(url, {"stream", "field", "skip_lost"}, _REDIS_SOURCE)
    if "stream" not in said or said.get("skip_lost", "true") != "true":
        raise SamzaError(f"{shown_url(url)}: write {_REDIS_SOURCE}")
    return redis_source(rest, said["stream"], field=said.get("field", ""), skip_lost="skip_lost" in said)


def _redis_at(url: str) -> PositionedSink:
    from runtime.systems.redis.sinks import redis_hashes, redis_stream

    rest, said = _redis_apart(url, {"stream", "hash", "key", "max_entries"}, _REDIS_SINK)
    most = said.get("max_entries", "1")
    if ("stream" in said) == ("hash" in said) or not most.isdecimal():
        raise SamzaError(f"{shown_url(url)}: write {_REDIS_SINK}")
    if "hash" in said and "max_entries" not in said:
        return redis_hashes(rest, said["hash"], [name for name in said.get("key", "").split(",") if name])
    if "key" in said or "hash" in said:
        raise SamzaError(f"{shown_url(url)}: key= is for hashes, and max_entries= for a stream: write {_REDIS_SINK}")
    return redis_stream(rest, said["stream"], max_entries=int(most) if "max_entries" in said else None)


def _redis_apart(url: str, names: set[str], example: str) -> tuple[str, dict[str, str]]:
    """Return a URL without what it says of the keys, and that; raises SamzaError where it says what is none of it."""
    rest, _, query = url.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    if wrong := {"stream", "hash", "key", "field", "skip_lost", "max_entries", "table"} & said.keys() - names:
        raise SamzaError(f"{shown_url(url)}: {', '.join(sorted(wrong))}: write {example}")
    others = {name: value for name, value in said.items() if name not in names}
    return f"{rest}?{urlencode(others)}" if others else rest, {name: said[name] for name in names & said.keys()}


def _pace_apart(url: str) -> tuple[str, dict[str, Any]]:
    """Return a URL without what it says of the pace of its rows, and that; raises SamzaError for what is no number.

    >>> _pace_apart("redis://h/0?hash=a%20b&batch_rows=10"), _pace_apart("webhook+http://h/?a")
    (('redis://h/0?hash=a%20b', {'batch_rows': 10}), ('webhook+http://h/?a', {}))
    """
    rest, _, query = url.partition("?")
    said = [part.partition("=") for part in query.split("&")]
    pace: dict[str, Any] = {}
    for name, _, number in said:
        if name in _PACE:
            try:
                pace[name] = _PACE[name](number)
            except ValueError as error:
                raise SamzaError(f"{shown_url(url)}: {name}={number} is no number: write {name}=500") from error
    others = "&".join("".join(part) for part in said if part[0] not in _PACE)
    return (f"{rest}?{others}" if others else rest, pace) if pace else (url, {})


def _file(url: str) -> str:
    """Return the path in a URL: behind three slashes it is relative, as SQLAlchemy has it, behind four absolute.

    Raises SamzaError where more is said than the path, which would be another file, and where slashes are missing.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        raise SamzaError(
            f"{shown_url(url)} names no file: write {_name(url)}:///shop.db where it is relative, and "
            f"{_name(url)}:////data/shop.db where it is absolute"
        )
    path, mark, query = rest.partition("?")
    if mark:
        odd = sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)})
        raise SamzaError(
            f"{shown_url(url)}: {', '.join(odd)} is no option here: write {scheme}:///shop.db?table=orders&key=id, "
            "with by= for an input; a ? in the name of a file is %3F"
        )
    return unquote(path.removeprefix("/"))


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
    connected = connected_at(what, writes)
    if isinstance(connected, ConnectedSink | AnySource):
        return f"{connected.name} ({connected.promise})"
    promise = TransactionalSink.promise if writes else ConnectedSource.promise
    if isinstance(what, KafkaTopic):
        return f"{what.address} ({AtLeastOnceSink.promise if writes else promise})"
    return f"{shown_url(str(what))} ({promise})"


def _name(url: str) -> str:
    return url.partition(":")[0].lower() if ":" in url else ""


OF_PLACES = {
    "growing": Scheme(source=_growing_at),
    "rolling": Scheme(sink=_rolling_at),
}
"""The product's own connectors by what stands in front of a path, a glob or a URL: `growing:incoming/*.jsonl`."""
BUILT_IN = {
    "listen": Scheme(source=_listening_at),
    "ws": Scheme(source=_websocket_at),
    "wss": Scheme(source=_websocket_at),
    "webhook+http": Scheme(sink=_webhook_at),
    "webhook+https": Scheme(sink=_webhook_at),
    "sqlite": Scheme(_sqlite_source_at, _sqlite_at),
    "duckdb": Scheme(_duckdb_source_at, _duckdb_at),
    "postgres": Scheme(_postgres_source_at, _postgres_at),
    "postgresql": Scheme(_postgres_source_at, _postgres_at),
    "redis": Scheme(_redis_source_at, _redis_at),
    "rediss": Scheme(_redis_source_at, _redis_at),
}
"""The product's own connectors by the schemes of their URLs; each is imported where it is used."""
