"""The streams of a data directory, from Python: write records to one, archive one, and list all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from operators.core.base import Batch, Serde, Site
from operators.core.durations import Duration
from operators.core.sites import here
from operators.core.wording import shown, words_of
from planner.model.errors import refuse
from runtime.encoding.formats.subjects import placed
from runtime.encoding.serdes import Natural, encode_all
from runtime.encoding.storable import read_back
from runtime.model.errors import SamzaError
from runtime.ports.environment import directory_of
from runtime.ports.streams import END, Append, StreamConfig, contradicted
from runtime.reading.event_times import as_given, misread
from runtime.reading.watermarks import to_ms
from samza_dsl.data.json_lines import partition_for
from samza_dsl.fluent.arguments import Compression
from samza_dsl.fluent.checks import DATA, check_function, check_name, check_whole, kept_said, serde_said
from samza_dsl.fluent.pace import Unit, check_unit

if TYPE_CHECKING:
    from runtime.run.settings import Cluster
    from runtime.systems.files.archive import Kind
    from runtime.systems.log.environment import LogEnvironment

V = TypeVar("V")

RECORDS_PER_BATCH = 5_000
"""The records of one batch that is written."""


class StreamSummary(msgspec.Struct, frozen=True):
    """A stream as it is: `size_bytes` is what its records take, `ended` says that it takes no more.

    `intermediate` ones lie between the stages of an application.

    >>> StreamSummary("flights", partitions=4, records=100, size_bytes=14_000, ended=False).records
    100
    """

    name: str
    partitions: int
    records: int
    size_bytes: int
    ended: bool
    compacted: bool = False
    intermediate: bool = False


def produce(
    stream: str,
    values: Iterable[V],
    *,
    data: str | Path = DATA,
    environment: Cluster = None,
    value: type[V] | Serde | None = None,
    key: Callable[[V], object] | None = None,
    timestamp: Callable[[V], int | datetime] | None = None,
    partitions: int | None = None,
    retention_ms: Duration | None = None,
    retention_bytes: int | None = None,
    compression: Compression | None = None,
    end: bool = False,
    unit: Unit | None = None,
) -> int:
    """Write records to a stream of the embedded log in `data`, all or none, and return how many there were.

    With `environment`, a `KafkaCluster` or its address ("kafka://host:9092"), the stream is a topic there.

    The stream is made where it is absent, with `partitions` (1), and the retention and compression that `app.output`
    describes. `value` is the type or serde by which an input reads
    it; without it values are written as JSON. `key` gives a value's key: text and bytes are stored as they are, other
    keys as JSON; one key's records are in one partition, and those without go to the partitions in turn. `timestamp`
    gives the record's time, as ms since the epoch, or in another `unit` ("s", "us", "ns"), or as an aware datetime;
    without it, it is now. `end` ends the stream:
    it takes nothing more, and a run that reads it comes to its end. Everything is in memory until it is written, so an
    endless source is written a part at a time.

    Raises PlanError for a malformed argument, SamzaError for what can't be written; what `key` and `timestamp` raise
    goes through.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as data:
    ...     produce("flights", [{"carrier": "AA"}, {"carrier": "UA"}], key=lambda f: f["carrier"], data=data, end=True)
    ...     list_streams(data)[0].ended
    2
    True
    """
    site = here()
    directory_of(data, site)
    check_name(site, "a stream", stream)
    check_whole(site, "partitions", partitions, optional=True)
    retention = kept_said(site, retention_ms, retention_bytes, compression)
    for said, function in (("produce(key=...)", key), ("produce(timestamp=...)", timestamp)):
        if function is not None:
            check_function(site, said, function, 1)
    serde = placed(serde_said(site, "value", value), stream)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        # Of a text each letter would be a value, and of a dict each key.
        raise refuse(site, f"the values {shown(values)} are no list of values", f"produce({stream!r}, [...])")
    # All or none: nothing is written before the last value was made, encoded and keyed.
    found = list(values)
    try:
        encoded = encode_all(read_back(serde), found)
    except Exception as error:
        raise SamzaError(f"{site}: a value can't be written to {stream!r} as {serde}: {words_of(error)}") from error
    batch = Batch(
        encoded,
        None if key is None else encode_all(Natural(), list(map(key, found))),
        None if timestamp is None else _times(site, list(map(timestamp, found)), unit),
    )
    # Imported late, here and below: a program that imports the package, or asks a command for help, opens nothing.
    from runtime.run.settings import open_environment

    with closing(open_environment(data, environment)) as log:
        wanted = StreamConfig(
            partitions=partitions or 1,
            retention_ms=retention,
            retention_bytes=retention_bytes,
            compression=compression,
        )
        config = log.create_stream(stream, wanted)
        name = contradicted(config, {**msgspec.structs.asdict(wanted), "partitions": partitions})
        if name is not None:
            has = getattr(config, name) or "none"
            wrong = f"{name}={getattr(wanted, name)!r}, and the stream {stream!r} exists and has {has}"
            raise refuse(site, wrong, f"{name}= left out, or another stream")
        check_writable(site, stream, config)
        log.append(_appends(stream, config.partitions, batch, end), {stream: config.partitions})
    return len(found)


def _times(site: Site, said: list[int | datetime], unit: Unit | None) -> list[int]:
    check_unit(site, unit)
    times = to_ms(said, unit=unit)
    found = misread(as_given(times, unit or "ms"), unit or "ms") if times and unit != "ms" else None
    if found is not None:
        meant = "; or unit='ms', if ms are meant" if unit is None else f" in the place of unit={unit!r}"
        raise refuse(site, f"timestamp= returned {found.wrong}", found.instead + meant)
    return times


def archive(stream: str, to: str | Path, *, data: str | Path = DATA, kind: Kind = "parquet") -> int:
    """Write what a stream holds to an archive in the directory `to`, from where that ends; return its records.

    Every record keeps its partition, offset, time and bytes, so that what an application makes of the archive, which
    is bound in the place of the stream, is what it made of the stream. Files are "parquet" or "jsonl". Raises
    SamzaError where there is no such stream, or where `to` holds something else.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     _ = produce("numbers", [1, 2, 3], data=f"{directory}/data")
    ...     archive("numbers", f"{directory}/numbers", data=f"{directory}/data", kind="jsonl")
    3
    """
    from runtime.systems.files.archive import archive_stream
    from runtime.systems.log.environment import LogEnvironment
    from runtime.systems.log.recovery import DATA_FILE

    if not (directory_of(data, here()) / DATA_FILE).is_file():
        raise SamzaError(f"there is no data directory at {data}: say where it is, archive(..., data=...)")
    with closing(LogEnvironment(data)) as log:
        return archive_stream(log, stream, Path(to), kind).rows


def list_streams(data: str | Path = DATA) -> list[StreamSummary]:
    """Return the streams of the embedded log in `data`, by name; none where there is no such directory.

    >>> list_streams("nowhere")
    []
    """
    from runtime.systems.log.environment import LogEnvironment
    from runtime.systems.log.recovery import DATA_FILE

    if not (directory_of(data, here()) / DATA_FILE).is_file():
        return []
    with closing(LogEnvironment(data)) as log:
        return [_summary(log, name, config) for name, config in sorted(log.streams().items())]


def check_writable(where: Site | None, stream: str, config: StreamConfig) -> None:
    """Refuse to write to a stream that only an app writes and reads; raises PlanError."""
    if config.intermediate:
        raise refuse(where, f"{stream!r} lies between the stages of an app", "another stream")


def _summary(log: LogEnvironment, name: str, config: StreamConfig) -> StreamSummary:
    records, size_bytes = log.stream_stats(name)
    ended = all(log.offsets(name, partition).ended for partition in range(config.partitions))
    return StreamSummary(
        name,
        config.partitions,
        records,
        size_bytes,
        ended,
        compacted=config.compacted,
        intermediate=config.intermediate,
    )


def _appends(stream: str, partitions: int, batch: Batch, end: bool) -> Iterator[Append]:
    """Yield the rows of each partition in batches, and with the last one its end."""
    for partition, rows in enumerate(_rows_of(partitions, batch)):
        # At least one batch for each partition: an end must be written where there is no row, too.
        for start in range(0, max(len(rows), 1), RECORDS_PER_BATCH):
            part = rows[start : start + RECORDS_PER_BATCH]
            is_last = start + RECORDS_PER_BATCH >= len(rows)
            yield Append(stream, partition, batch.take(part), END if end and is_last else None)


def _rows_of(partitions: int, batch: Batch) -> Sequence[Sequence[int]]:
    """Return the rows of each partition: by the key, in turn where there is none."""
    if batch.keys is None or partitions == 1:
        return [range(first, len(batch), partitions) for first in range(partitions)]
    rows: list[list[int]] = [[] for _ in range(partitions)]
    for row, key in enumerate(batch.keys):
        rows[partition_for(key, row, partitions)].append(row)
    return rows
