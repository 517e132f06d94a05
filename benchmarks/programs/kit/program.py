"""A whole program: its streams, the generator of what is in them, the pipeline, and the program by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from operators.partition_by import hash_
from samza_dsl import App

if TYPE_CHECKING:
    from benchmarks.programs.kit.hand import Hand

MODES = ("memory", "log", "kafka")
"""Where a program runs: over lists in memory, or exactly-once on the embedded log or on a real broker."""

Streams = dict[str, list[list[Any]]]
"""The values of each stream, by partition, in the order in which they come."""


@dataclass(frozen=True)
class Stream:
    """An input or a table: the type of its values, and the key that its records carry or by which they lie.

    With `key`, all values of a key are in one partition, in their order; without, values go to the partitions in turn.
    `carried` says that records have the key with them, as text. A `single` stream has one partition whatever the
    others have.
    """

    type: Any
    key: Callable[[Any], str] | None = None
    carried: bool = False
    single: bool = False
    ours: Callable[[], Any] | None = None
    """Returns the type that the pipeline has for the values, where it is another one."""

    def dealt(self, values: list[Any], partitions: int) -> list[list[Any]]:
        """Return the values by partition."""
        count = 1 if self.single else partitions
        if count == 1:
            return [values]
        if self.key is None:
            return [values[number::count] for number in range(count)]
        dealt: list[list[Any]] = [[] for _ in range(count)]
        for value in values:
            key = self.key(value)
            dealt[hash_.partition(key, key.encode(), count)].append(value)
        return dealt

    def encoded(self, values: list[Any]) -> list[bytes]:
        """Return the values as records: text as such, bytes too (they are malformed on purpose), the rest as JSON."""
        return [
            value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else encode(value)
            for value in values
        ]

    def decoder(self) -> Callable[[bytes], Any]:
        """Return the function that brings a value back."""
        return bytes.decode if self.type is str else msgspec.json.Decoder(self.type).decode

    def as_ours(self, values: list[Any]) -> list[Any]:
        """Return the values as the pipeline takes them in memory."""
        if self.ours is None:
            return values
        return [msgspec.convert(value, self.ours(), from_attributes=True) for value in values]

    def keys(self, values: list[Any]) -> list[bytes] | None:
        """Return the keys that records carry, as their bytes; None where they carry none."""
        if self.key is None or not self.carried:
            return None
        key_of = self.key
        return [key_of(value).encode() for value in values]


encode = msgspec.json.Encoder().encode


def as_json(output: str, value: Any) -> bytes:
    """Return what two programs have to agree on of an output's value: all of it."""
    return value if isinstance(value, bytes) else encode(value)


@dataclass(frozen=True)
class Program:
    """One whole program, told twice.

    `generate(messages, seed)` returns the values of each stream in the order in which they come, tables included, and
    the same ones each time. `pipeline()` is the application as its user writes it; `by_hand(workspace)` is what a good
    engineer writes in an hour. `outputs` are compared as multisets of `shown(output, value)`. `prepare` puts in place
    what both read beside their streams, in a directory that is theirs for one run.
    """

    name: str
    title: str
    messages: int
    streams: Mapping[str, Stream]
    outputs: tuple[str, ...]
    generate: Callable[[int, int], Mapping[str, list[Any]]]
    pipeline: Callable[[Path], App]
    by_hand: Callable[[Path], Hand]
    tables: frozenset[str] = field(default_factory=frozenset)
    dead_letters: frozenset[str] = field(default_factory=frozenset)
    """Those of the outputs that are no stream of the application's own."""
    shown: Callable[[str, Any], bytes] = as_json
    prepare: Callable[[Path, int], None] | None = None
    is_on_kafka: bool = False
    """Whether it is measured on Kafka where nobody names it: a broker takes much of the machine."""

    def scaled(self, scale: float) -> int:
        """Return the messages of a run at `scale` times its size."""
        return max(round(self.messages * scale), 1)

    def made(self, messages: int, seed: int, partitions: int) -> Streams:
        """Return the values of each stream by partition."""
        made = self.generate(messages, seed)
        return {name: self.streams[name].dealt(values, partitions) for name, values in made.items()}
