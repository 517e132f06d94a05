"""Systems of other kinds as inputs and outputs: a source or sink made of functions, and databases."""

from __future__ import annotations

from runtime.model.errors import Fenced, Unavailable
from runtime.ports.connectors import (
    AtLeastOnceSink,
    ConnectedSource,
    IdempotentSink,
    PositionedSink,
    Scheme,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
)
from runtime.ports.streams import Offsets
from runtime.systems.databases.duckdb_file import duckdb
from runtime.systems.databases.postgres import postgres
from runtime.systems.databases.sqlite import sqlite

__all__ = [
    "AtLeastOnceSink",
    "ConnectedSource",
    "Fenced",
    "IdempotentSink",
    "Offsets",
    "PositionedSink",
    "Scheme",
    "SinkOwner",
    "SinkRow",
    "SourceRecord",
    "TransactionalSink",
    "Unavailable",
    "duckdb",
    "postgres",
    "sqlite",
]
