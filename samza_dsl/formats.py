"""Formats that other programs read and write, as serdes: Avro, Protobuf, JSON Schema, Debezium."""

from __future__ import annotations

from runtime.encoding.formats.avro import Avro
from runtime.encoding.formats.avro_shapes import digits
from runtime.encoding.formats.debezium import Debezium
from runtime.encoding.formats.json_schema import JsonSchema
from runtime.encoding.formats.protobuf import Protobuf
from runtime.encoding.formats.registry import SchemaRegistry
from runtime.systems.files.csv_files import CsvFiles

__all__ = [
    "Avro",
    "CsvFiles",
    "Debezium",
    "JsonSchema",
    "Protobuf",
    "SchemaRegistry",
    "digits",
]
