"""Streams as Kafka topics: fetching, producing and publishing."""
