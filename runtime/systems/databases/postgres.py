"""Postgres as a sink of rows, by COPY, and as a source of rows and their changes, by logical replication."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice, takewhile
from typing import Any, TypeAlias
from urllib.parse import quote

from runtime.encoding.value_types import exact_number
from runtime.model.errors import SamzaError
from runtime.ports.connectors import PositionedSink, PulledSource
from runtime.systems.databases.column_source import CHANGES, column_source
from runtime.systems.databases.dialect import (
    LOOKED_UP,
    POSITIONS,
    Dialect,
    Link,
    SqlConnection,
    Target,
    delete_each,
    put_each,
)
from runtime.systems.databases.postgres_changes import PostgresChanges
from runtime.systems.databases.table_columns import ColumnKind, left_out
from runtime.systems.databases.table_sink import table_sink

STALLED = "30s"
"""How long a transaction may do nothing: a process that hangs in one keeps who takes over waiting no longer."""
FIRST_OWN_TYPE = 16_384
"""The types of a database's own have numbers from here on."""
FEW_ROWS = 20
"""The rows and keys for which a table to copy them to costs more than a statement for each."""
Kinds: TypeAlias = Sequence[ColumnKind]
"""The kinds of columns, in their order."""
STAGED = "samza_dsl_rows"
"""The temporary table that rows are copied to before they replace those of their keys, and keys that are gone."""


def postgres(url: str, table: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Put rows into a table of Postgres, exactly once: `bind={"orders": connectors.postgres(url, "orders", key="id")}`.

    With a `key`, the names of columns, a row replaces that of the same key, and a record without a value deletes it;
    else rows are appended. The table is made of the output's type where it is absent. What is nested is jsonb. `url`
    is what libpq takes, as "postgres://user@host/shop"; a password is better in PGPASSWORD or ~/.pgpass than in it.
    Raises SamzaError where psycopg is absent.

    >>> from samza_dsl import connectors
    >>> connectors.postgres("postgres://me:secret@db/shop", "orders", key="id").name
    'postgres://db/shop#orders'
    """
    dialect, where = dialect_at(url)
    return table_sink(dialect, where, table, key)


def postgres_source(url: str, table: str, *, by: str = "", key: str | Sequence[str] = ()) -> PulledSource:
    """Read a table of Postgres, and then its changes: `bind={"orders": connectors.postgres_source(url, "orders")}`.

    All rows that are there come first, in short transactions, then each insert, update and delete, in the order of
    their commits, while others write. An input reads rows, and no value where one is deleted, or with
    `value=Change[int, Order]` each row before and after; the key is the primary key. It goes by logical replication:
    the server needs wal_level=logical, the table REPLICA IDENTITY FULL, and `url` a user who may make publications and
    slots. With `by=` a column none of these is needed: rows come in its order, which misses deletions, updates that
    leave it as it is, and rows that commit after one of the same or a later value; their key is what `key` names then.

    >>> from samza_dsl import connectors
    >>> connectors.postgres_source("postgres://me:secret@db/shop", "orders").name
    'postgres://db/shop#orders'
    """
    dialect, where = dialect_at(url)
    if by:
        return replace(column_source(dialect, where, table, by, key), adapt=left_out)
    if key:
        raise SamzaError(
            f"{where}: key={key!r}: the key of changes is the table's primary key; leave it out, or say by="
        )
    changes = PostgresChanges(dialect, where, table, _loader)
    name, how = f"{where}#{table}", (changes.pull, changes.confirm, changes.close)
    read = PulledSource(name, *how, promise=CHANGES, adapt=left_out, place=name)
    return replace(read, forget=changes.forget, keeps=changes.keeps)


def _loader(connection: Any, kind: int) -> Callable[[bytes], Any]:
    """Return what makes a value of the text that the server has for one of a type."""
    from psycopg.adapt import Transformer
    from psycopg.pq import Format

    if kind >= FIRST_OWN_TYPE:
        # The log names a domain, where a query names what it is made of: values are to be the same from both.
        base = "SELECT typbasetype FROM pg_type WHERE oid = %s AND typtype = 'd'"
        while found := connection.execute(base, (kind,)).fetchone():
            kind = int(found[0])
    loader = Transformer(connection).get_loader(kind, Format.TEXT)
    return lambda text: loader.load(text)


def dialect_at(url: str) -> tuple[Dialect, str]:
    """Return the dialect that connects to a URL, and the place without who connects; raises SamzaError."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
        from psycopg.types.json import set_json_loads
    except ImportError as error:
        raise SamzaError("Postgres needs psycopg: pip install 'samza-dsl[postgres]'") from error
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error as error:
        # Its other words may have a secret in them.
        odd = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        wrong = f"{odd[1]} is no option of Postgres, nor of a table" if odd else "this is no URL of Postgres"
        raise SamzaError(f'{wrong}: write "postgres://user@host/shop?table=orders&key=id"') from error

    def connect() -> SqlConnection:
        connection: Any = psycopg.connect(url, autocommit=True, application_name="samza-dsl")
        for name, said in _SESSION.items():
            connection.execute(f"SET {name} = '{said}'")
        # Numbers of jsonb have any number of digits.
        set_json_loads(partial(json.loads, parse_float=exact_number), connection)
        _register(connection)
        return connection  # type: ignore[no-any-return]  # psycopg's, whose statements are literals to type checkers

    def refuses(error: Exception) -> bool:
        # What the driver can't send has no state.
        if isinstance(error, psycopg.DataError | UnicodeEncodeError | OverflowError):
            return True
        return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_OF_ROWS)

    def passes(error: Exception) -> bool:
        # Two runs that make a table at once, or claim a place for the first time: the second try finds it there.
        meets = isinstance(error, psycopg.errors.UniqueViolation) and (error.diag.constraint_name or "").startswith(
            ("pg_", POSITIONS)
        )
        return meets or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)

    dialect = Dialect(
        name="postgres",
        connect=connect,
        types=_TYPES,
        errors=(psycopg.Error, UnicodeError, OverflowError),
        passes=passes,
        denies=lambda error: isinstance(error, psycopg.errors.InsufficientPrivilege),
        refuses=refuses,
        ask=_ASK,
        put=_copy,
        remove=_delete,
        typed=_typed,
        changes=_CHANGES,
        mark="%s",
        lock=" FOR UPDATE",
        folds=_folds,
        compares=_compares,
        finds=_finds,
        scans=_scans,
        links=_links,
        spelled=frozenset(("int",)),
        text_type="text",
    )
    host, port = (str(said.get(name) or default) for name, default in (("host", "localhost"), ("port", "")))
    where = f"postgres://{quote(host, safe=':/.')}{':' + port if port else ''}/{said.get('dbname') or ''}"
    return dialect, where


def _register(connection: Any) -> None:
    """Tell a connection what makes values of text, and bytes of values, where that is our own."""
    for name, loader in _loaders().items():
        connection.adapters.register_loader(name, loader)
    connection.adapters.register_dumper(_JsonText, _json_dumper())


class _JsonText:
    """The text of JSON as the driver knows it, by whose type nothing else is sent."""


@cache
def _json_dumper() -> Any:
    """Return what makes the bytes of jsonb of text, which the driver would make a text within JSON."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class JsonTextDumper(Dumper):
        format = Format.BINARY
        oid = _SENT_AS["json"]

        def dump(self, obj: str) -> bytes:
            return b"\x01" + obj.encode()

    return JsonTextDumper


@cache
def _loaders() -> dict[str, Any]:
    """Return what makes values of text where psycopg makes none that are kept: these are the text itself.

    Such are dates and times that Python has not, as infinity is, and ranges.
    """
    from psycopg import DataError
    from psycopg.types import datetime as times
    from psycopg.types.string import TextLoader

    def lenient(of: Any) -> Any:
        class Lenient(of):  # type: ignore[misc]  # psycopg's, which is known as the program runs
            def load(self, data: Any) -> Any:
                text = bytes(data).decode()
                if "mon" in text or "year" in text:  # of an interval: Python knows of no months, and no years
                    return text
                try:
                    return super().load(data)
                except DataError:
                    return text

        return Lenient

    names = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
    found = {name: lenient(getattr(times, f"{name.capitalize()}Loader")) for name in names}
    ranges = [f"{of}{many}range" for of in ("int4", "int8", "num", "date", "ts", "tstz") for many in ("", "multi")]
    return {**found, **dict.fromkeys(ranges, TextLoader)}


def _typed(connection: Any, table: str) -> dict[str, str]:
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        (table,),
    )
    return dict(found.fetchall())


def _copy(connection: Any, dialect: Dialect, target: Target, rows: Iterable[tuple[object, ...]]) -> None:
    names, kinds = dialect.listed([one.name for one in target.columns]), [one.kind for one in target.columns]
    if not target.key:
        _copied(connection, target.table, names, rows, kinds)
        return
    rows = [*rows]
    if len(rows) <= FEW_ROWS or target.folds:
        put_each(connection, dialect, target, rows)
        return
    # A value gets the words that it gets as a parameter, which has a type of ours, or is text that the table's own
    # type reads: an enum, an address or an array among them.
    columns = ", ".join(
        dialect.word(one.name)
        if one.kind in _READ_BY_TABLE
        else f"NULL::{dialect.types[one.kind]} AS {dialect.word(one.name)}"
        for one in target.columns
    )
    connection.execute(f"CREATE TEMP TABLE {STAGED} AS SELECT {columns} FROM {target.table} WITH NO DATA")
    _copied(connection, STAGED, names, rows, kinds)
    connection.execute(dialect.insert(target, f"SELECT {names} FROM {STAGED}"))
    connection.execute(f"DROP TABLE {STAGED}")


def _delete(connection: Any, dialect: Dialect, target: Target, keys: Sequence[tuple[object, ...]]) -> None:
    if len(keys) <= FEW_ROWS:
        delete_each(connection, dialect, target, keys)
        return
    # As a parameter is, a key is read by the type that compares it: longer than its column, or refused by the column's
    # domain, it is no error, and the key of no row.
    of_table, kinds = _compared_as(connection, target), [one.kind for one in target.key_columns]
    types = [
        of_table[one.name] if one.kind in _READ_BY_TABLE else dialect.types[one.kind] for one in target.key_columns
    ]
    names = [f"{STAGED}_{place}" for place in range(len(types))]
    columns = ", ".join(f"{name} {of}" for name, of in zip(names, types, strict=True))
    connection.execute(f"CREATE TEMP TABLE {STAGED} ({columns})")
    _copied(connection, STAGED, ", ".join(names), keys, kinds)
    connection.execute(dialect.delete(target, names, STAGED))
    connection.execute(f"DROP TABLE {STAGED}")


def _copied(connection: Any, into: str, columns: str, rows: Iterable[tuple[object, ...]], kinds: Kinds) -> None:
    given = iter(rows)
    first = [*islice(given, FEW_ROWS + 1)]
    # Few are copied as text, so that what the server says of a bad row is about what stands in it.
    is_binary = len(first) > FEW_ROWS and all(kind in _SENT_AS for kind in kinds)
    with connection.cursor() as cursor:
        if is_binary:
            # Until the transaction ends nobody gives the columns other types, by which bytes would be other values.
            cursor.execute(f"SELECT {columns} FROM {into} LIMIT 0")
            types = [_SENT_AS[kind] for kind in kinds]
            is_binary = types == [column.type_code for column in cursor.description]
        form = "(FORMAT BINARY)" if is_binary else ""
        with cursor.copy(f"COPY {into} ({columns}) FROM STDIN {form}") as copy:
            if is_binary:
                copy.set_types(types)
            write = copy.write_row
            for row in chain(first, given):
                write(row)


def _compared_as(connection: Any, target: Target) -> dict[str, str]:
    """Return the types of the key's columns without lengths, and of domains those that they are made of."""
    found = connection.execute(
        "WITH RECURSIVE made_of AS (SELECT attname, atttypid AS type FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attname = ANY(%s) UNION ALL "
        "SELECT attname, typbasetype FROM made_of JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd') "
        "SELECT attname, format_type(type, -1) FROM made_of JOIN pg_type ON pg_type.oid = type WHERE typtype <> 'd'",
        (target.table, list(target.key)),
    )
    return dict(found.fetchall())


def _folds(connection: Any, target: Target) -> bool:
    """Whether the columns of the key are of types, or a collation, in which values are one that differ in ours."""
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), NOT EXISTS (SELECT 1 FROM pg_collation AS by WHERE NOT "
        "collisdeterministic AND (by.oid = attcollation OR by.oid = ANY(SELECT unnest(indcollation) "
        "FROM pg_index WHERE indrelid = attrelid AND indisunique))) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attname = ANY(%s)",
        (target.table, list(target.key)),
    )
    kinds = {column.name: column.kind for column in target.columns}
    return any(
        not is_exact or ((folding := _FOLDING.get(kinds.get(name))) is not None and folding.fullmatch(of) is not None)
        for name, of, is_exact in found.fetchall()
    )


def _indexes(connection: SqlConnection, target: Target) -> list[tuple[bool, dict[str, str]]]:
    """Return the indexes of a table: whether ON CONFLICT may go by each, and what compares its columns as it does.

    It may have a collation of its own; and where the operator of an extension's type lies in no schema that is
    searched, "=" would be that of text.
    """
    found = connection.execute(
        "SELECT indexrelid, indisunique AND indpred IS NULL AND indexprs IS NULL, attname, "
        "format('OPERATOR(%%I.%%s)', nspname, oprname), "
        "CASE WHEN coll <> 0 THEN format('COLLATE %%s', coll::regcollation) ELSE '' END "
        "FROM pg_index, unnest(indkey, indclass, indcollation) WITH ORDINALITY AS part (number, class, coll, place) "
        "JOIN pg_opclass ON pg_opclass.oid = class "
        "JOIN pg_amop ON amopfamily = opcfamily AND amopstrategy = 3 "
        "AND amoplefttype = opcintype AND amoprighttype = opcintype "
        "JOIN pg_operator ON pg_operator.oid = amopopr JOIN pg_namespace ON pg_namespace.oid = oprnamespace, "
        "pg_attribute WHERE indrelid = %s::regclass AND attrelid = indrelid AND attnum = number "
        "AND indisvalid ORDER BY indexrelid, place",
        (target.table,),
    )
    indexes: dict[int, tuple[bool, dict[str, str]]] = {}
    for index, is_unique, name, operator, collation in found.fetchall():
        indexes.setdefault(index, (is_unique, {}))[1][name] = f"{collation} {operator}"
    return [*indexes.values()]


def _compares(connection: SqlConnection, target: Target) -> dict[str, str]:
    """Return what compares the columns of the key as an index does that ON CONFLICT goes by."""
    unique = (columns for is_unique, columns in _indexes(connection, target) if is_unique)
    return next((columns for columns in unique if columns.keys() == {*target.key}), {})


def _finds(connection: SqlConnection, target: Target) -> list[dict[str, str]]:
    """Return how indexes compare key columns of text, of which "=" takes only those for one that are the same."""
    found = connection.execute(
        "SELECT attname FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation "
        "WHERE attrelid = %s::regclass AND attname = ANY(%s) AND collisdeterministic",
        (target.table, list(target.key)),
    )
    texts = {name for (name,) in found.fetchall()}
    found_by = []
    for _, columns in _indexes(connection, target):
        first = takewhile(lambda part: part[0] in target.key, columns.items())
        said = {name: compares for name, compares in first if name in texts}
        found_by += [said] if said else []
    return found_by


def _scans(connection: SqlConnection, statement: str, parameters: Sequence[object]) -> bool:
    """Whether no index serves a statement: of a table of few rows the server uses none all the same."""
    connection.execute("SET enable_seqscan = off")
    try:
        [(told,)] = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters).fetchall()
    finally:
        connection.execute("RESET enable_seqscan")
    steps = [one["Plan"] for one in told]
    for step in steps:  # which grows meanwhile
        steps += step.get("Plans", ())
    if any(str(step.get("Alias", "")).startswith(LOOKED_UP) and step["Node Type"] == "Seq Scan" for step in steps):
        return True
    conditions = {step["Index Name"]: step.get("Index Cond", "") for step in steps if "Index Name" in step}
    first = connection.execute(
        "SELECT relname, quote_ident(attname) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0] WHERE relname = ANY(%s)",
        (list(conditions),),
    )
    # Where its first column is not in the condition, an index is read as a whole, as a table is.
    return any(
        re.search(rf"\({re.escape(column)}(\)::[^=]*)? (=|>|OPERATOR)", conditions[name]) is None
        for name, column in first.fetchall()
    )


def _links(connection: Any, target: Target) -> list[Link]:
    """Return the columns that refer to others of the table, by constraints that may wait."""
    named = (
        "ARRAY(SELECT attname::text FROM unnest({0}) WITH ORDINALITY AS part (number, place) "
        "JOIN pg_attribute ON attrelid = conrelid AND attnum = number ORDER BY place)"
    )
    found = connection.execute(
        f"SELECT {named.format('conkey')}, {named.format('confkey')} FROM pg_constraint "
        "WHERE contype = 'f' AND condeferrable AND conrelid = %s::regclass AND confrelid = conrelid",
        (target.table,),
    )
    return [(tuple(columns), tuple(others)) for columns, others in found.fetchall()]


_ROUNDED = re.compile(r".*\(.*")
_FOLDING: dict[ColumnKind | None, re.Pattern[str]] = {
    # Of a key that a value does not have nobody says what it is.
    None: re.compile(r"(?!(text|character varying(\(\d+\))?|name|smallint|integer|bigint)$).*"),
    "text": re.compile(r"(?!(text|character varying(\(\d+\))?|name)$).*"),
    **dict.fromkeys(("json", "float"), re.compile(".*")),
    **dict.fromkeys(("decimal", "instant", "local", "time", "duration"), _ROUNDED),
}
"""The types in which keys of a kind may be one that differ in ours: letters of either case, dates, what is rounded."""
_OF_ROWS = ("22", "23", "44", "P0001", "42846")
"""The states of errors that are of a row: data, constraints, what a trigger raises, and what has no cast to a type."""

_ASK = """
SET CONSTRAINTS ALL IMMEDIATE;
DO $$
DECLARE waiting text;
BEGIN
    SELECT string_agg(format('%I.%I', nspname, conname), ', ') INTO waiting
    FROM pg_constraint JOIN pg_namespace ON pg_namespace.oid = connamespace
    WHERE condeferred AND has_schema_privilege(connamespace, 'USAGE') AND NOT pg_is_other_temp_schema(connamespace);
    IF waiting IS NOT NULL THEN
        EXECUTE 'SET CONSTRAINTS ' || waiting || ' DEFERRED';
    END IF;
END $$
"""
"""Looks at constraints that wait, which wait for the end again for what comes behind: by itself none would any more."""
_SESSION = {
    "idle_in_transaction_session_timeout": STALLED,
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
}
"""What databases and users may have set in another way: values come whole, and are read one way."""
_READ_BY_TABLE: frozenset[ColumnKind] = frozenset(("text", "json", "int"))
"""The kinds of columns whose values a table's own type reads, whatever it is."""
_SENT_AS: dict[ColumnKind, int] = {
    "bool": 16,
    "int": 20,
    "float": 701,
    "text": 25,
    "bytes": 17,
    "instant": 1184,
    "local": 1114,
    "date": 1082,
    "time": 1083,
    "duration": 1186,
    "uuid": 2950,
    "json": 3802,
}
"""The numbers of the types whose bytes the driver makes of values of a kind, sooner than their text.

It makes the text of a Decimal sooner, and knows of other types no more than the text.
"""
_INTEGERS = "smallint|integer|bigint"
_CHANGES: dict[ColumnKind, re.Pattern[str]] = {
    "bool": re.compile(rf"text|character.*|real|double precision|numeric.*|{_INTEGERS}"),
    "bytes": re.compile(r"text|character.*|jsonb?"),
    "json": re.compile(r".*\[\]"),
    "int": re.compile(r"real|double precision|boolean|date|interval|bit.*|time.*"),
    "float": re.compile(rf"real|numeric.*|{_INTEGERS}"),
    "decimal": re.compile(rf"real|double precision|{_INTEGERS}"),
    "text": re.compile(rf"character\(.*|bytea|real|double precision|numeric.*|{_INTEGERS}"),
    "instant": re.compile(r"timestamp(\(\d\))? without time zone|date|time(\(\d\))? with.*"),
    "local": re.compile(r"timestamp(\(\d\))? with time zone|date|time(\(\d\))? with.*"),
    "duration": re.compile(r"time(\(\d\))? with.*"),
}
"""What COPY and casts round, pad, write in other words, or read in another time zone."""
_TYPES: dict[ColumnKind, str] = {
    "bool": "boolean",
    "int": "bigint",
    "float": "double precision",
    "text": "text",
    "bytes": "bytea",
    "instant": "timestamptz",
    "local": "timestamp",
    "date": "date",
    "time": "time",
    "duration": "interval",
    "decimal": "numeric",
    "uuid": "uuid",
    "json": "jsonb",
}
