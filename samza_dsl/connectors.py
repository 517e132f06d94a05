"""Systems of other kinds as inputs and outputs: sources and sinks made of functions, folders, and databases."""

from __future__ import annotations

from runtime.model.errors import Fenced, RowRefused, Unavailable
from runtime.ports.connectors import (
    AtLeastOnceSink,
    Batching,
    ConnectedSource,
    IdempotentSink,
    Intake,
    PositionedSink,
    Pulled,
    PulledRecord,
    PulledSource,
    PushedRecord,
    PushedSource,
    Scheme,
    SinkOwner,
    SinkRow,
    SourceRecord,
    TransactionalSink,
)
from runtime.ports.streams import Offsets
from runtime.systems.connectors.generator import generator
from runtime.systems.connectors.table_rows import table_rows
from runtime.systems.databases.duckdb_file import duckdb, duckdb_source
from runtime.systems.databases.postgres import postgres, postgres_source
from runtime.systems.databases.sqlite import sqlite, sqlite_source
from runtime.systems.folders.growing import growing_folder
from runtime.systems.folders.rolling import committed_files, rolling_files
from runtime.systems.http.http_source import http_source
from runtime.systems.http.webhook import webhook
from runtime.systems.http.websocket import websocket
from runtime.systems.redis.entries import redis_source
from runtime.systems.redis.sinks import redis_hashes, redis_stream

__all__ = [
    "AtLeastOnceSink",
    "Batching",
    "ConnectedSource",
    "Fenced",
    "IdempotentSink",
    "Intake",
    "Offsets",
    "PositionedSink",
    "Pulled",
    "PulledRecord",
    "PulledSource",
    "PushedRecord",
    "PushedSource",
    "RowRefused",
    "Scheme",
    "SinkOwner",
    "SinkRow",
    "SourceRecord",
    "TransactionalSink",
    "Unavailable",
    "committed_files",
    "duckdb",
    "duckdb_source",
    "generator",
    "growing_folder",
    "http_source",
    "postgres",
    "postgres_source",
    "redis_hashes",
    "redis_source",
    "redis_stream",
    "rolling_files",
    "sqlite",
    "sqlite_source",
    "table_rows",
    "webhook",
    "websocket",
]
