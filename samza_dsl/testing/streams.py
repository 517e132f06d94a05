"""The streams of an application under test, which take and give values, not bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from operators.core.base import Batch, Headers, Output
from operators.io import Input, SendTo
from operators.partition_by import murmur2
from planner.model.graph import Graph
from planner.passes import streams_of
from runtime.assembly.bindings import WRITTEN
from runtime.encoding.keys import bytes_of_key
from runtime.encoding.serdes import Tagged
from runtime.ports.environment import GrowingEnvironment
from runtime.ports.streams import OUTSIDE, Append, Control, StreamConfig
from runtime.reading.watermarks import to_ms
from samza_dsl.application.app import App
from samza_dsl.data.records import StoredRecord as Stored
from samza_dsl.data.records import records_from


@dataclass(frozen=True)
class Record:
    """A value with its key, `timestamp` (ms), partition, offset and headers.

    Partition and offset do not count in a comparison.

    >>> Record(12, key="AA", timestamp=0) == Record(12, key="AA", timestamp=0, partition=1, offset=7)
    True
    """

    value: Any
    key: Any = None
    timestamp: int | None = None
    partition: int | None = field(default=None, compare=False)
    offset: int | None = field(default=None, compare=False)
    headers: Mapping[str, bytes | None] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        headers = f", headers={self.headers}" if self.headers else ""
        place = f"partition={self.partition}, offset={self.offset}"
        return f"Record(value={self.value!r}, key={self.key!r}, timestamp={self.timestamp}, {place}{headers})"


@dataclass(frozen=True)
class DeadLetter:
    """A record that its operator could not take: its bytes, the error, the operator, and its place in its stream.

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
    """The streams of one application in an environment.

    All records are in the environment, which outlives the process. The test's thread calls it while the loop stands.
    """

    def __init__(self, graph: Graph, environment: GrowingEnvironment, now_ms: Callable[[], int]) -> None:
        self._graph = graph
        self._environment = environment
        self._now_ms = now_ms
        self._inputs = {spec.stream: spec for spec in graph.inputs.values()}
        self.read = set(self._inputs)
        roles = [each for spec in graph.specs.values() for each in streams_of(graph, spec)]
        self.letters = {stream for stream, role in roles if role == "dead_letter"}
        self._outputs = {output.stream: (output, id) for id, spec in graph.specs.items() for output in spec.outputs}
        self._own = {stream for stream, role in roles if role in WRITTEN}

    def create(self, streams: Iterable[str], partitions: Mapping[str, int]) -> None:
        """Create the inputs that have names, and the given streams that patterns match, with so many partitions."""
        named = (name for name, spec in self._inputs.items() if not spec.is_pattern)
        for stream in (*named, *partitions, *streams):
            spec = self.read_as(stream)
            self._create(stream, spec, partitions.get(stream, spec.partitions or 1))

    def appear(self, stream: str) -> None:
        """Create a stream that a pattern matches, where it is absent, with as many partitions as its other streams."""
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
        """Raise ValueError where a pattern matches no stream: its reader would wait for one for ever."""
        found = self.inputs()
        for pattern, spec in self._inputs.items():
            if not any(map(spec.matches, found)):
                name = pattern.replace("*", "1").replace("?", "1")
                raise ValueError(f"no stream matches {pattern!r}; give one, such as {{{name!r}: [...]}}")

    def check_partition(self, stream: str, partition: int) -> None:
        """Raise ValueError where the app does not read such a partition."""
        _check_partition(self.read_as(stream), self.partitions(stream), partition)

    def by_partition(self, stream: str, given: Sequence[object]) -> list[list[Record]]:
        """Return the records that a test gives an input, by partition, from one list or a list per partition.

        For an input whose records carry keys, anything but a `Record` is a (key, value) pair. Raises ValueError for
        another shape.
        """
        spec, count = self.read_as(stream), self.partitions(stream)
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise ValueError(f"{stream!r} is given {given!r}; give a list of what comes")
        parts: list[object] = list(given) if count > 1 else [list(given)]
        if len(parts) != count:
            raise ValueError(f"{stream!r} has {count} partitions, and there are {len(parts)} lists; give one for each")
        for part in parts:
            if not isinstance(part, list):
                raise ValueError(f"{stream!r} has {count} partitions; give a list for each of them, not {part!r}")
        found = [[_record(one, spec) for one in part] for part in parts if isinstance(part, list)]
        for place, records in enumerate(found):
            for record in records:
                if record.partition not in (None, place):
                    raise ValueError(f"{stream!r} has in the list of its partition {place} {record}")
        return found

    def time_of_most(self, inputs: Mapping[str, Sequence[object]]) -> int:
        """Return the time (ms) at which most records of inputs with `max_ahead_ms` are in time; 0 without such inputs.

        It is the latest of their times that no gap longer than is allowed divides from the middle one.
        """
        found = [0]
        for stream, given in inputs.items():
            spec = self.read_as(stream)
            if spec.max_ahead_ms is not None:
                parts = self.by_partition(stream, given)
                times = sorted(at for records in parts for one in records if (at := time_of(spec, one)))
                at = len(times) // 2
                # From the middle on, since a few wrong times may lie far ahead: they are to meet `on_error` here too.
                while at + 1 < len(times) and times[at + 1] - times[at] <= spec.max_ahead_ms:
                    at += 1
                found += times[at : at + 1]
        return max(found)

    def append(self, stream: str, records: Sequence[Record], partition: int | None = None) -> None:
        """Append records to a partition as one batch; without `partition`, each to that of its key, or the first."""
        self.appear(stream)
        spec, count = self.read_as(stream), self.partitions(stream)
        batch = self._encoded(spec, records)
        places = []
        for record, stored in zip(records, batch.keys or (), strict=True):
            aimed = (
                record if partition is None or record.partition is not None else replace(record, partition=partition)
            )
            place = place_of(spec, count, aimed)
            # Records of a test lie where their writer would put them, so Kafka's own hash of the key decides.
            places.append(place if place is not None else 0 if stored is None else murmur2(stored) % count)
        assert len(places) == len(batch), "a record has no partition"
        self._environment.append(
            Append(stream, place, batch.take([row for row, other in enumerate(places) if other == place]))
            for place in sorted(set(places))
        )

    def can_grow(self, stream: str, left: Mapping[int, Sequence[Record]]) -> bool:
        """Whether a stream may have more partitions: what is `left` for each lies where the hash of its key says."""
        spec, count = self.read_as(stream), self.partitions(stream)
        lies_by_key = spec.partitioned_by_key if spec.key_of is not None else spec.key is not None
        if not lies_by_key or spec.partitions is not None or spec.is_pattern:
            return False
        return all(
            _by_key(spec, one, count, partition) == partition for partition, records in left.items() for one in records
        )

    def grow(self, stream: str, times: int, left: Mapping[int, Sequence[Record]]) -> dict[int, list[Record]]:
        """Give a stream so many times as many partitions, and return what is `left` for each where it goes then."""
        spec, count = self.read_as(stream), self.partitions(stream) * times
        self._environment.grow_stream(stream, count)
        found: dict[int, list[Record]] = {}
        for partition, records in left.items():
            for one in records:
                to = _by_key(spec, one, count, partition)
                found.setdefault(to, []).append(replace(one, partition=None))
        return found

    def append_bytes(self, stream: str, data: bytes | None, key: bytes | None, partition: int) -> None:
        """Append a record as it is stored."""
        self.appear(stream)
        self._environment.append([Append(stream, partition, Batch([data], [key], [self._now_ms()]))])

    def append_watermark(self, stream: str, watermark: int, partition: int | None = None) -> None:
        """Append a producer's watermark (ms) to a partition, or to all."""
        self.appear(stream)
        places = range(self.partitions(stream)) if partition is None else [partition]
        self._environment.append(Append(stream, place, Batch([]), Control(OUTSIDE, watermark)) for place in places)

    def end(self, stream: str) -> None:
        """End a stream."""
        self.read_as(stream)
        self._environment.end_stream(stream)

    def records(self, stream: str) -> list[Record]:
        """Return the records of a stream, partition by partition: decoded, where the app says how."""
        return [self.decoded(stream, row) for row in self._rows(stream)]

    def decoded(self, stream: str, row: Stored) -> Record:
        """Return a stored record with its values, where the app says how."""
        value, key = self._decoders(stream)
        return Record(
            None if row.value is None else value(row.value),
            None if row.key is None else key(row.key),
            row.timestamp,
            row.partition,
            row.offset,
            row.headers,
        )

    def encoder(self, stream: str) -> Callable[[Any], bytes]:
        """Return what makes bytes of the values of an output; dead letters are bytes."""
        return self._outputs[stream][0].value.encode if stream in self._outputs else bytes

    def written(self, stream: str, rows: Batch) -> list[Record]:
        """Return the rows of an output, whose values are decoded already, as its records, as they were written."""
        none = [None] * len(rows)
        decode = self._decoders(stream)[1]
        return [
            Record(value, None if key is None else decode(key), timestamp, offset=offset, headers=headers or {})
            for offset, (value, key, timestamp, headers) in enumerate(
                zip(rows.values, rows.keys or none, rows.timestamps or none, rows.headers or none, strict=True)
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
        compacted = spec.looked_into and spec.key_of is None
        self._environment.create_stream(stream, StreamConfig(partitions=partitions, compacted=compacted))

    def _encoded(self, spec: Input, records: Sequence[Record]) -> Batch:
        for one in records:
            if one.timestamp is not None and type(one.timestamp) is not int:
                raise ValueError(f"timestamp={one.timestamp!r} is no time in whole ms since the epoch")
        encode_key = partial(bytes_of_key, spec.key or Tagged())
        encode = spec.value.encode
        headers: list[Headers | None] = [dict(one.headers) or None for one in records]
        return Batch(
            [None if one.value is None and spec.reads_none else encode(one.value) for one in records],
            [None if one.key is None else encode_key(one.key) for one in records],
            [self._now_ms() if one.timestamp is None else one.timestamp for one in records],
            headers=headers if any(headers) else None,
        )

    def _decoders(self, stream: str) -> tuple[Callable[[bytes], object], Callable[[bytes], object]]:
        """Return the decoders of values and keys of a stream; dead letters stay bytes."""
        if stream in self._outputs:
            output, id = self._outputs[stream]
            return output.value.decode, self._decode_key(output, id)
        if self._is_read(stream):
            spec = self.read_as(stream)
            return spec.value.decode, (spec.key or Tagged()).decode
        return bytes, bytes

    def _decode_key(self, output: Output, id: str) -> Callable[[bytes], object]:
        if output.key is not None:
            return output.key.decode
        is_sent = id in self._graph.of(SendTo)
        above = self._graph.key_serde(self._graph.parents(id)[0]) if is_sent else None
        return above.decode if above is not None else _text


def reader_of(inputs: Iterable[Input], stream: str) -> Input:
    """Return the input that reads a stream, by its name or a pattern; raises ValueError where none does."""
    # Names before patterns: a stream that both match is read by the input that names it.
    known = sorted(inputs, key=lambda spec: (spec.is_pattern, spec.stream))
    for spec in known:
        if spec.matches(stream):
            return spec
    raise ValueError(f"the app reads no {stream}; it reads {', '.join(sorted(spec.stream for spec in known))}")


def place_of(spec: Input, partitions: int, given: object) -> int | None:
    """Return the partition that a record of an input has to be in, by itself or by its key; None for any."""
    record = _record(given, spec)
    if record.partition is not None:
        _check_partition(spec, partitions, record.partition)
        return record.partition
    if spec.key is not None:
        key = None if record.key is None else bytes_of_key(spec.key, record.key)
    else:
        key = _computed_key(spec, record.value)
    return None if key is None else murmur2(key) % partitions


def _by_key(spec: Input, record: Record, partitions: int, keyless: int) -> int:
    """Return where the hash of a record's key puts it among so many partitions; without a key it is `keyless`."""
    place = place_of(spec, partitions, replace(record, partition=None))
    return keyless if place is None else place


def time_of(spec: Input, given: object) -> int:
    """Return the event time of a record of an input, in ms; 0 where it has none, or none that can be read."""
    record = _record(given, spec)
    try:
        at = record.timestamp if spec.timestamp_of is None else spec.timestamp_of(record.value)
        return 0 if at is None else to_ms([at], unit=spec.unit)[0]
    except Exception:
        return 0


def check_app(said: str, app: object, inputs: object) -> None:
    """Raise ValueError where a test says another thing than an App, and a dict of what its inputs are given."""
    if not isinstance(app, App):
        raise ValueError(f"{said}(...) got {app!r}, which is no App; write instead: {said}(app, {{'flights': [...]}})")
    if not isinstance(inputs, Mapping | None):
        raise ValueError(f"{said}(app, {inputs!r}) names no streams; write instead: {said}(app, {{'flights': [...]}})")


def _check_partition(spec: Input, partitions: int, partition: int) -> None:
    if partition not in range(partitions):
        raise ValueError(f"{spec.stream!r} has no partition {partition}; it has 0 to {partitions - 1}")


def _computed_key(spec: Input, value: object) -> bytes | None:
    """Return the key by which the writer of an input has partitioned it; None where it has not, or can't have."""
    if spec.key_of is None or not spec.partitioned_by_key:
        return None
    try:
        key = spec.key_of(value)
        return None if key is None else Tagged().encode(key)
    except Exception:
        return None


def _record(given: object, spec: Input) -> Record:
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
    told = {name: (data or b"").decode(errors="replace") for name, data in row.headers.items()}
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


def _text(key: bytes) -> str | bytes:
    """Read a key as others would: as text, where it is that."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
