"""Formats that other programs read and write, as serdes: Avro, Protobuf, JSON Schema, Debezium."""

from __future__ import annotations

from runtime.encoding.formats.avro import Avro
from runtime.encoding.formats.avro_shapes import digits
from runtime.encoding.formats.registry import SchemaRegistry

__all__ = [
    "Avro",
    "SchemaRegistry",
    "digits",
]
