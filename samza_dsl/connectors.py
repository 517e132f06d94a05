"""Systems of other kinds as inputs and outputs: sources and sinks made of functions, folders, and databases."""

from __future__ import annotations

from runtime.model.errors import Fenced, Unavailable
from runtime.ports.connectors import (
    AtLeastOnceSink,
    ConnectedSource,
    IdempotentSink,
    Intake,
    PositionedSink,
    PushedRecord,
    PushedSource,
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
from runtime.systems.folders.growing import growing_folder

__all__ = [
    "AtLeastOnceSink",
    "ConnectedSource",
    "Fenced",
    "IdempotentSink",
    "Intake",
    "Offsets",
    "PositionedSink",
    "PushedRecord",
    "PushedSource",
    "Scheme",
    "SinkOwner",
    "SinkRow",
    "SourceRecord",
    "TransactionalSink",
    "Unavailable",
    "duckdb",
    "growing_folder",
    "postgres",
    "sqlite",
]
