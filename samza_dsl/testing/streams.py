"""What a test puts into the streams of an application and finds in them: values, not bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from operators.base import Batch
from operators.io import Input, Output, SendTo, Table
from operators.partition_by import murmur2
from planner.graph import Graph
from planner.passes import streams_of
from runtime.bindings import outputs_of
from runtime.serdes import Tagged
from runtime.systems.base import OUTSIDE, Append, Control, Environment, StreamConfig
from samza_dsl.records import Record as Stored
from samza_dsl.records import records_from


@dataclass(frozen=True)
class Record:
    """A value with what a stream keeps beside it; `timestamp` in ms. Where it is makes it no other record.

    >>> Record(12, key="AA", timestamp=0) == Record(12, key="AA", timestamp=0, partition=1, offset=7)
    True
    """

    value: Any
    key: Any = None
    timestamp: int | None = None
    partition: int | None = field(default=None, compare=False)
    offset: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class DeadLetter:
    """A record that its operator could not take: its bytes, what was wrong, at which operator, and where it was.

    >>> DeadLetter(b"{", "SerdeError: truncated", "orders", stream="orders", partition=0, offset=7).offset
    7
    """

    value: bytes | None
    error: str
    operator: str
    key: bytes | None = None
    stream: str | None = None
    partition: int | None = None
    offset: int | None = None


class Streams:
    """The streams of one application in an environment."""

    def __init__(self, graph: Graph, environment: Environment, now_ms: Callable[[], int]) -> None:
        self._graph = graph
        self._environment = environment
        self._now_ms = now_ms
        self._inputs = {spec.stream: spec for spec in graph.specs.values() if isinstance(spec, Input)}
        self.read = set(self._inputs)
        roles = [each for spec in graph.specs.values() for each in streams_of(graph, spec)]
        self.letters = {stream for stream, role in roles if role == "dead_letter"}
        self._outputs = {output.stream: (output, id) for id, spec in graph.specs.items() for output in outputs_of(spec)}

    def create(self, streams: Iterable[str], partitions: Mapping[str, int]) -> None:
        """Make the inputs that have names, and some that patterns stand for, with as many partitions as is said."""
        named = (name for name, spec in self._inputs.items() if not spec.is_pattern)
        for stream in (*named, *partitions, *streams):
            spec = self.read_as(stream)
            count, keyed = partitions.get(stream, spec.partitions or 1), spec.key_of is None
            config = StreamConfig(partitions=count, compacted=isinstance(spec, Table) and keyed)
            self._environment.create_stream(stream, config)

    def read_as(self, stream: str) -> Input:
        """Return the input that reads a stream, by its name or a pattern; raises ValueError where none does."""
        if stream in self._inputs:
            return self._inputs[stream]
        for spec in self._inputs.values():
            if spec.is_pattern and fnmatchcase(stream, spec.stream):
                return spec
        raise ValueError(f"the app reads no {stream}; it reads {', '.join(sorted(self._inputs))}")

    def partitions(self, stream: str) -> int:
        """Return how many partitions a stream has."""
        if stream not in self._environment.streams():
            known = ", ".join(sorted({*self._outputs, *self._environment.streams()}))
            raise ValueError(f"the app has no stream {stream!r}; it has {known}")
        return self._environment.streams()[stream].partitions

    def inputs(self) -> list[str]:
        """Return the streams that the app reads."""
        found = self._environment.streams()
        return [name for name in found if any(fnmatchcase(name, pattern) for pattern in self._inputs)]

    def by_partition(self, stream: str, given: Sequence[Any]) -> list[list[Record]]:
        """Return what a test gives an input, as records: a list, or a list per partition where it has several.

        For an input whose records carry keys, what is no `Record` is a (key, value) pair.
        """
        spec = self.read_as(stream)
        count = self.partitions(stream)
        parts = list(given) if count > 1 else [given]
        if len(parts) != count:
            raise ValueError(f"{stream!r} has {count} partitions, and there are {len(parts)} lists; give one for each")
        return [[_record(one, paired=spec.key is not None) for one in part] for part in parts]

    def append(self, stream: str, records: Sequence[Record], partition: int | None = None) -> None:
        """Append records as one batch to a partition; without one to that of each one's key."""
        batch = self._encoded(stream, records)
        count = self.partitions(stream)
        keys = batch.keys or [None] * len(records)
        places = [partition if partition is not None else 0 if key is None else murmur2(key) % count for key in keys]
        self._environment.append(
            Append(stream, place, batch.take([row for row, other in enumerate(places) if other == place]))
            for place in sorted(set(places))
        )

    def append_bytes(self, stream: str, data: bytes | None, key: bytes | None, partition: int) -> None:
        """Append a record as it is stored."""
        self.read_as(stream)
        self._environment.append([Append(stream, partition, Batch([data], [key], [self._now_ms()]))])

    def append_watermark(self, stream: str, watermark: int, partition: int | None = None) -> None:
        """Append what a producer says of the event time of a partition, or of all."""
        self.read_as(stream)
        places = range(self.partitions(stream)) if partition is None else [partition]
        self._environment.append(Append(stream, place, Batch([]), Control(OUTSIDE, watermark)) for place in places)

    def end(self, stream: str) -> None:
        """End a stream."""
        self.read_as(stream)
        self._environment.end_stream(stream)

    def records(self, stream: str) -> list[Record]:
        """Return the records of a stream, partition by partition: decoded, where the app says how."""
        value, key = self._decoders(stream)
        return [
            Record(
                None if row.value is None else value(row.value),
                None if row.key is None else key(row.key),
                row.timestamp,
                row.partition,
                row.offset,
            )
            for row in self._rows(stream)
        ]

    def written(self, stream: str, rows: Batch) -> list[Record]:
        """Return the rows of an output, whose values are decoded already, as its records."""
        none = [None] * len(rows)
        decode = self._decoders(stream)[1]
        return [
            Record(value, None if key is None else decode(key), timestamp, 0, offset)
            for offset, (value, key, timestamp) in enumerate(
                zip(rows.values, rows.keys or none, rows.timestamps or none, strict=True)
            )
        ]

    def dead_letters(self, stream: str) -> list[DeadLetter]:
        """Return the dead letters in a stream."""
        return [_letter(row) for row in self._rows(stream)]

    def _rows(self, stream: str) -> list[Stored]:
        return [
            row for place in range(self.partitions(stream)) for row in records_from(self._environment, stream, place, 0)
        ]

    def _encoded(self, stream: str, records: Sequence[Record]) -> Batch:
        spec = self.read_as(stream)
        encode_key = (spec.key or Tagged()).encode
        encode = spec.value.encode
        return Batch(
            [None if one.value is None and isinstance(spec, Table) else encode(one.value) for one in records],
            [None if one.key is None else encode_key(one.key) for one in records],
            [self._now_ms() if one.timestamp is None else one.timestamp for one in records],
        )

    def _decoders(self, stream: str) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
        """Return how values and keys of a stream are read; those of dead letters stay bytes."""
        if stream in self._outputs:
            output, id = self._outputs[stream]
            return output.value.decode, self._decode_key(output, id)
        if stream in self._inputs:
            spec = self._inputs[stream]
            return spec.value.decode, (spec.key or Tagged()).decode
        return bytes, bytes

    def _decode_key(self, output: Output, id: str) -> Callable[[bytes], Any]:
        if output.key is not None:
            return output.key.decode
        spec = self._graph.specs[id]
        above = self._graph.key_serde(self._graph.parents(id)[0]) if isinstance(spec, SendTo) else None
        return above.decode if above is not None else _text


def key_hash(spec: Input, given: Any) -> int | None:
    """Return the hash by which a record of an input lies in a partition; None where nothing says that it does."""
    carried = spec.key is not None
    record = _record(given, paired=carried)
    computed = spec.key_of(record.value) if spec.key_of is not None and spec.partitioned_by_key else None
    key = record.key if carried else computed
    return None if key is None else murmur2((spec.key or Tagged()).encode(key))


def _record(given: Any, paired: bool) -> Record:
    if isinstance(given, Record):
        return given
    if not paired:
        return Record(given)
    key, value = given
    return Record(value, key)


def _letter(row: Stored) -> DeadLetter:
    told = {name: data.decode(errors="replace") for name, data in row.headers.items()}
    partition, offset = told.get("partition"), told.get("offset")
    return DeadLetter(
        row.value,
        told.get("error", ""),
        told.get("operator", ""),
        row.key,
        told.get("stream"),
        None if partition is None else int(partition),
        None if offset is None else int(offset),
    )


def _text(key: bytes) -> Any:
    """Read a key as others would: as text, where it is that."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
