"""A table of Postgres whose changes are read: its columns and key, and what the server has to tell of it."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from runtime.model.errors import SamzaError


class PgTable(NamedTuple):
    """A table: its number, its name as SQL has it, its columns, and those of its primary key with their types."""

    oid: int
    quoted: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    is_partitioned: bool = False

    @property
    def publication(self) -> str:
        """The name of the publication by which its changes are told: one for all who read it."""
        return f"samza_dsl_{zlib.crc32(self.quoted.encode()):08x}"


def read_table(connection: Any, where: str, name: str, quoted: str) -> PgTable:
    """Return a table as it is now; raises SamzaError where its changes can't be read."""
    found = connection.execute(
        "SELECT oid, relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)", (quoted,)
    ).fetchone()
    if found is None:
        raise SamzaError(f"{where} is not there")
    oid, is_partitioned = int(found[0]), bool(found[1])
    heirs = connection.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhparent "
        "WHERE inhparent = %s AND relkind <> 'p'",
        (oid,),
    ).fetchall()
    if heirs:
        raise SamzaError(
            f"{where} has tables that inherit from it, as {heirs[0][0]}: their rows are among its own, and the server "
            "tells their changes apart from its own. Read it by= a column, or each of the tables"
        )
    columns = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        (oid,),
    ).fetchall()
    key = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_index, "
        "unnest(indkey) WITH ORDINALITY AS at (n, place) "
        "JOIN pg_attribute ON attnum = n WHERE indrelid = %s AND indisprimary AND attrelid = indrelid ORDER BY place",
        (oid,),
    ).fetchall()
    if not key:
        raise SamzaError(f"{where} has no primary key, by which its rows are told apart: read it by= a column")
    names, kinds = (tuple(row[place] for row in key) for place in (0, 1))
    return PgTable(oid, quoted, tuple(row[0] for row in columns), names, kinds, is_partitioned)


def parts_of(connection: Any, oid: int) -> tuple[str, ...]:
    """Return the names of the partitions of a table that have rows; none where it is not partitioned."""
    found = connection.execute(
        "SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE isleaf AND level > 0 ORDER BY 1", (oid,)
    ).fetchall()
    return tuple(row[0] for row in found)


def check_published(connection: Any, where: str, table: PgTable) -> None:
    """Make the publication of a table where it is absent; raises SamzaError where the server does not tell enough."""
    level = connection.execute("SHOW wal_level").fetchone()[0]
    if level != "logical":
        raise SamzaError(
            f"{where}: the server has wal_level={level}, and its log tells of no rows: ALTER SYSTEM SET wal_level = "
            "logical, and restart it; or read the table by= a column"
        )
    if connection.execute("SELECT row_security_active(%s::oid)", (table.oid,)).fetchone()[0]:
        raise SamzaError(
            f"{where} has policies of rows, by which this user sees some of them, and the log has all: ALTER ROLE the "
            "user BYPASSRLS; or read the table by= a column, which goes by the policies"
        )
    parts = connection.execute(
        "SELECT relid::regclass::text, relreplident FROM pg_partition_tree(%s) JOIN pg_class ON oid = relid "
        "WHERE isleaf OR level = 0 UNION SELECT oid::regclass::text, relreplident FROM pg_class WHERE oid = %s",
        (table.oid, table.oid),
    ).fetchall()
    if partial := [row[0] for row in parts if row[1] != "f"]:
        raise SamzaError(
            f"{where} does not tell rows as they were before: "
            + "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in partial)
        )
    name = table.publication
    if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is None:
        connection.execute(
            f"CREATE PUBLICATION {name} FOR TABLE {table.quoted} WITH (publish_via_partition_root = true)"
        )
    found = connection.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot AND prrelid = %s "
        "AND prqual IS NULL AND prattrs IS NULL FROM pg_publication AS p JOIN pg_publication_rel ON prpubid = p.oid "
        "WHERE pubname = %s",
        (table.oid, name),
    ).fetchone()
    if found is None or not found[0]:
        raise SamzaError(
            f"{where}: the publication {name} is another one than is made for the table: DROP PUBLICATION {name}, and "
            "run again"
        )
