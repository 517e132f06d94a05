"""What a test puts into the streams of an application and finds in them: values, not bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from operators.base import Batch
from operators.io import Input, Output, SendTo, Table
from operators.partition_by import murmur2
from planner.graph import Graph
from planner.passes import streams_of
from runtime.bindings import WRITTEN, outputs_of
from runtime.control import to_ms
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
        self._own = {stream for stream, role in roles if role in WRITTEN}

    def create(self, streams: Iterable[str], partitions: Mapping[str, int]) -> None:
        """Make the inputs that have names, and some that patterns stand for, with as many partitions as is said."""
        named = (name for name, spec in self._inputs.items() if not spec.is_pattern)
        for stream in (*named, *partitions, *streams):
            spec = self.read_as(stream)
            self._create(stream, spec, partitions.get(stream, spec.partitions or 1))

    def appear(self, stream: str) -> None:
        """Make a stream that a pattern stands for, where it is absent, with as many partitions as others of it have."""
        spec, found = self.read_as(stream), self._environment.streams()
        if stream not in found:
            counts = (config.partitions for name, config in found.items() if spec.matches(name))
            self._create(stream, spec, spec.partitions or max(counts, default=1))

    def read_as(self, stream: str) -> Input:
        """Return the input that reads a stream, by its name or a pattern; raises ValueError where none does."""
        return reader_of(self._inputs.values(), stream)

    def partitions(self, stream: str) -> int:
        """Return how many partitions a stream has."""
        if stream not in self._environment.streams():
            known = ", ".join(sorted({*self._outputs, *self._environment.streams()}))
            raise ValueError(f"the app has no stream {stream!r}; it has {known}")
        return self._environment.streams()[stream].partitions

    def inputs(self) -> list[str]:
        """Return the streams that the app reads."""
        found = self._environment.streams()
        return [name for name in found if self._is_read(name)]

    def check_patterns(self) -> None:
        """Raise ValueError where a pattern stands for no stream: what reads it would wait for one."""
        found = self.inputs()
        for pattern, spec in self._inputs.items():
            if not any(map(spec.matches, found)):
                name = pattern.replace("*", "1").replace("?", "1")
                raise ValueError(f"no stream matches {pattern!r}; give one, such as {{{name!r}: [...]}}")

    def check_partition(self, stream: str, partition: int) -> None:
        """Raise ValueError where the app does not read such a partition."""
        _check_partition(self.read_as(stream), self.partitions(stream), partition)

    def by_partition(self, stream: str, given: Sequence[Any]) -> list[list[Record]]:
        """Return what a test gives an input, as records: a list, or a list per partition where it has several.

        For an input whose records carry keys, what is no `Record` is a (key, value) pair. Raises ValueError for what
        has another shape.
        """
        spec, count = self.read_as(stream), self.partitions(stream)
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise ValueError(f"{stream!r} is given {given!r}; give a list of what comes")
        parts = list(given) if count > 1 else [list(given)]
        if len(parts) != count:
            raise ValueError(f"{stream!r} has {count} partitions, and there are {len(parts)} lists; give one for each")
        for part in parts:
            if not isinstance(part, list):
                raise ValueError(f"{stream!r} has {count} partitions; give a list for each of them, not {part!r}")
        found = [[_record(one, spec) for one in part] for part in parts]
        for place, records in enumerate(found):
            for record in records:
                if record.partition not in (None, place):
                    raise ValueError(f"{stream!r} has in the list of its partition {place} {record}")
        return found

    def append(self, stream: str, records: Sequence[Record], partition: int | None = None) -> None:
        """Append records as one batch to a partition; without one to that of each one's key, or the first."""
        self.appear(stream)
        spec, count = self.read_as(stream), self.partitions(stream)
        batch = self._encoded(spec, records)
        places = []
        for record, stored in zip(records, batch.keys or (), strict=True):
            aimed = (
                record if partition is None or record.partition is not None else replace(record, partition=partition)
            )
            place = place_of(spec, count, aimed)
            places.append(place if place is not None else 0 if stored is None else murmur2(stored) % count)
        self._environment.append(
            Append(stream, place, batch.take([row for row, other in enumerate(places) if other == place]))
            for place in sorted(set(places))
        )

    def append_bytes(self, stream: str, data: bytes | None, key: bytes | None, partition: int) -> None:
        """Append a record as it is stored."""
        self.appear(stream)
        self._environment.append([Append(stream, partition, Batch([data], [key], [self._now_ms()]))])

    def append_watermark(self, stream: str, watermark: int, partition: int | None = None) -> None:
        """Append what a producer says of the event time of a partition, or of all."""
        self.appear(stream)
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
        """Return the rows of an output, whose values are decoded already, as its records, as they were written."""
        none = [None] * len(rows)
        decode = self._decoders(stream)[1]
        return [
            Record(value, None if key is None else decode(key), timestamp, offset=offset)
            for offset, (value, key, timestamp) in enumerate(
                zip(rows.values, rows.keys or none, rows.timestamps or none, strict=True)
            )
        ]

    def dead_letters(self, stream: str) -> list[DeadLetter]:
        """Return the dead letters in a stream; raises ValueError for one that is for others."""
        if stream in self._outputs or stream in self._inputs:
            what = f"an output: run.received({stream!r})" if stream in self._outputs else "an input"
            known = ", ".join(sorted(self.letters)) or "none"
            raise ValueError(f"{stream!r} is {what}; streams of dead letters of the app: {known}")
        return [_letter(row) for row in self._rows(stream)]

    def _rows(self, stream: str) -> list[Stored]:
        return [
            row for place in range(self.partitions(stream)) for row in records_from(self._environment, stream, place, 0)
        ]

    def _is_read(self, stream: str) -> bool:
        return stream not in self._own and any(spec.matches(stream) for spec in self._inputs.values())

    def _create(self, stream: str, spec: Input, partitions: int) -> None:
        compacted = isinstance(spec, Table) and spec.key_of is None
        self._environment.create_stream(stream, StreamConfig(partitions=partitions, compacted=compacted))

    def _encoded(self, spec: Input, records: Sequence[Record]) -> Batch:
        for one in records:
            if one.timestamp is not None and type(one.timestamp) is not int:
                raise ValueError(f"timestamp={one.timestamp!r} is no time in whole ms since the epoch")
        encode_key = (spec.key or Tagged()).encode
        encode = spec.value.encode
        return Batch(
            [None if one.value is None and spec.tombstones else encode(one.value) for one in records],
            [None if one.key is None else encode_key(one.key) for one in records],
            [self._now_ms() if one.timestamp is None else one.timestamp for one in records],
        )

    def _decoders(self, stream: str) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
        """Return how values and keys of a stream are read; those of dead letters stay bytes."""
        if stream in self._outputs:
            output, id = self._outputs[stream]
            return output.value.decode, self._decode_key(output, id)
        if self._is_read(stream):
            spec = self.read_as(stream)
            return spec.value.decode, (spec.key or Tagged()).decode
        return bytes, bytes

    def _decode_key(self, output: Output, id: str) -> Callable[[bytes], Any]:
        if output.key is not None:
            return output.key.decode
        spec = self._graph.specs[id]
        above = self._graph.key_serde(self._graph.parents(id)[0]) if isinstance(spec, SendTo) else None
        return above.decode if above is not None else _text


def reader_of(inputs: Iterable[Input], stream: str) -> Input:
    """Return the input that reads a stream, by its name or a pattern; raises ValueError where none does."""
    known = sorted(inputs, key=lambda spec: (spec.is_pattern, spec.stream))
    for spec in known:
        if spec.matches(stream):
            return spec
    raise ValueError(f"the app reads no {stream}; it reads {', '.join(sorted(spec.stream for spec in known))}")


def place_of(spec: Input, partitions: int, given: Any) -> int | None:
    """Return the partition that a record of an input has to be in, by itself or by its key; None for any."""
    record = _record(given, spec)
    if record.partition is not None:
        _check_partition(spec, partitions, record.partition)
        return record.partition
    if spec.key is not None:
        key = None if record.key is None else spec.key.encode(record.key)
    else:
        key = _computed_key(spec, record.value)
    return None if key is None else murmur2(key) % partitions


def time_of(spec: Input, given: Any) -> int:
    """Return the event time of a record of an input, in ms; 0 where it has none, or none that can be read."""
    record = _record(given, spec)
    try:
        at = record.timestamp if spec.timestamp_of is None else to_ms([spec.timestamp_of(record.value)])[0]
    except Exception:
        return 0
    return at or 0


def _check_partition(spec: Input, partitions: int, partition: int) -> None:
    if partition not in range(partitions):
        raise ValueError(f"{spec.stream!r} has no partition {partition}; it has 0 to {partitions - 1}")


def _computed_key(spec: Input, value: Any) -> bytes | None:
    """Return the key by which the writer of an input has partitioned it; None where it has not, or can't have."""
    if spec.key_of is None or not spec.partitioned_by_key:
        return None
    try:
        key = spec.key_of(value)
        return None if key is None else Tagged().encode(key)
    except Exception:
        return None


def _record(given: Any, spec: Input) -> Record:
    if isinstance(given, Record):
        return given
    if spec.key is None:
        return Record(given)
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError(
            f"{spec.stream!r} carries keys; give (key, value) pairs or testing.Record(value, key=...), not {given!r}"
        )
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
