"""Reads what the main job wrote, and imports the examples as programs in their folder do."""

import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from runtime.systems.log.environment import LogEnvironment

EXAMPLES = Path(__file__).parents[2] / "examples"
OUTPUTS = ("carrier-delays", "top-destinations", "flights-malformed")


class Record(NamedTuple):
    """A record as it is stored."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]


def records(data: Path, stream: str) -> list[Record]:
    """Return the records of a stream, partition by partition in the order of their offsets."""
    with closing(LogEnvironment(data)) as log:
        return [
            record
            for partition in range(log.streams()[stream].partitions)
            for record in _records_of(log, stream, partition)
        ]


def example(name: str) -> ModuleType:
    """Import a file of `examples/`."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return import_module(name)


def _records_of(log: LogEnvironment, stream: str, partition: int) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while read := log.read(stream, partition, offset):
        batch, offset = read.batch, read.next_offset
        none = [None] * len(batch)
        columns = zip(batch.keys or none, batch.values, batch.timestamps, batch.headers or none, strict=True)
        found += [
            Record(key, value, timestamp, tuple(sorted((headers or {}).items())))
            for key, value, timestamp, headers in columns
        ]
    return found
