"""Systems of other kinds as inputs and outputs: a source or sink made of functions, and databases."""

from __future__ import annotations

from runtime.model.errors import Fenced, Unavailable
from runtime.ports.connectors import (
    AtLeastOnceSink,
    ConnectedSource,
    IdempotentSink,
    PositionedSink,
    Pulled,
    PulledRecord,
    PulledSource,
    Scheme,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
)
from runtime.ports.streams import Offsets
from runtime.systems.connectors.table_rows import table_rows
from runtime.systems.databases.duckdb_file import duckdb, duckdb_source
from runtime.systems.databases.postgres import postgres, postgres_source
from runtime.systems.databases.sqlite import sqlite, sqlite_source

__all__ = [
    "AtLeastOnceSink",
    "ConnectedSource",
    "Fenced",
    "IdempotentSink",
    "Offsets",
    "PositionedSink",
    "Pulled",
    "PulledRecord",
    "PulledSource",
    "Scheme",
    "SinkOwner",
    "SinkRow",
    "SourceRecord",
    "TransactionalSink",
    "Unavailable",
    "duckdb",
    "duckdb_source",
    "postgres",
    "postgres_source",
    "sqlite",
    "sqlite_source",
    "table_rows",
]
