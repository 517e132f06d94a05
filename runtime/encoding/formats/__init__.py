"""Formats that other programs read and write: Avro, Protobuf, JSON Schema, registries of schemas, Debezium."""
