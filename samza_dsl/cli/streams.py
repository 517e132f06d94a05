"""The commands on the streams of a data directory or a cluster: list, show, tail, produce, delete, describe, end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from planner.model.flow import counted
from runtime.model.clock import sleep_ms
from runtime.ports.environment import Environment, GrowingEnvironment, LiveEnvironment
from runtime.ports.live_streams import ReadingPort
from runtime.ports.streams import StreamConfig, check_config, contradicted
from runtime.systems.files.archive import Kind, archive_stream, is_archive, read_manifest
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, config_of, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.settings import loaded
from samza_dsl.cli.state import FileArgument, print_entries
from samza_dsl.data.json_lines import write_lines
from samza_dsl.data.records import StoredRecord, last_records, read_on, records_from, rows_of
from samza_dsl.data.streams import StreamSummary, check_writable, list_streams
from samza_dsl.fluent.arguments import Compression
from samza_dsl.testing.origins import MOST_RUNS, Origins, origins
from samza_dsl.testing.regression import module_of, test_of
from samza_dsl.view.readable import text_of, time_of

POLL_MS = 200
LOOK_EVERY = 10
"""The polls from one look at the partitions of a stream that is followed to the next."""

streams = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at streams, write to them, end and delete them."
)


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The stream.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition.")]


@streams.command()
def archive(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The stream.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the archive.")],
    kind: Annotated[Kind, typer.Option("--as", help="What its files are.")] = "parquet",
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Write what a stream holds to an archive, for reprocessing: from where the archive ends, if there is one.

    Every record keeps its partition, offset, time and bytes, so that what an application makes of the archive is what
    it made of the stream.
    """
    with told(), opened(data, environment, kafka_options) as place:
        config_of(place, name)
        # An archive goes on where it ends: what is told is only what came now.
        before = read_manifest(to).rows if is_archive(to) else 0
        found = archive_stream(place, name, to, kind)
        say(f"archived {counted(found.rows - before, 'record')} of {name} to {to}, which has {found.rows:,}")


@streams.command("list")
def list_all(
    data: DataOption = DEFAULT, environment: EnvironmentOption = None, kafka_options: KafkaOption = None
) -> None:
    """List all streams: partitions, records and their bytes as stored, and whether they have ended.

    Of topics it is told how many offsets they hold, which are a few more than records, and nothing is read.
    """
    with told(), opened(data, environment, kafka_options) as place:
        if isinstance(place, LiveEnvironment):
            # To count records a topic would have to be read whole.
            _list_ranges(place)
            return
        rows = [
            [one.name, f"{one.partitions:,}", f"{one.records:,}", f"{one.size_bytes:,}", _traits(one)]
            for one in list_streams(data)
        ]
        columns = [Column(heading, right=True) for heading in ("partitions", "records", "bytes")]
        print_rows([Column("stream"), *columns, Column("")], rows)


@streams.command()
def grow(
    name: NameArgument,
    partitions: Annotated[int, typer.Option(min=1, help="How many it is to have.")],
    data: DataOption = DEFAULT,
) -> None:
    """Give a stream of the embedded log more partitions; an application that reads it goes on with all of them.

    What is kept by its keys moves to where they are from then on. Topics grow by Kafka's own tools.
    """
    with told(), opened(data, None, None) as place:
        before = config_of(place, name).partitions
        assert isinstance(place, GrowingEnvironment), "a data directory is the embedded log"
        now = place.grow_stream(name, partitions).partitions
        say(f"{name} has {counted(now, 'partition')}, and had {before:,}")


@streams.command()
def show(
    name: NameArgument,
    limit: Annotated[int, typer.Option(min=0, help="How many records at most.")] = 20,
    start: Annotated[int | None, typer.Option("--from", min=0, help="The first offset in each partition.")] = None,
    partition: PartitionOption = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show records from the start, or from an offset on: one partition after the other."""
    with told(), opened(data, environment, kafka_options) as place:
        found = (
            record
            for number in _partitions(place, name, partition)
            for record in records_from(place, name, number, _first(place, name, number, start))
        )
        _print_records(islice(found, limit))


@streams.command()
def tail(
    name: NameArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="How many records at first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    partition: PartitionOption = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show the last records, by their time, and with --follow those that are written from then on."""
    with told(), opened(data, environment, kafka_options) as place:
        numbers = _partitions(place, name, partition)
        # Before the records are read: what is written meanwhile is then followed, and not passed over.
        reached = {number: place.offsets(name, number).end for number in numbers}
        found = last_records(place, name, numbers, last)
        _print_records(found, heading=not follow)
        for record in found:
            reached[record.partition] = max(reached[record.partition], record.offset + 1)
        if follow:
            try:
                asyncio.run(_follow(place, name, reached, grows=partition is None))
            except KeyboardInterrupt:
                raise typer.Exit from None


@streams.command("produce")
def produce_lines(
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A file of JSON lines; without it stdin is read.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="FIELD", help="The field of each value that is its key.")] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="How many, where the stream is made.")] = None,
    retention_ms: Annotated[int | None, typer.Option(min=1, help="How long a stream made here keeps records.")] = None,
    retention_bytes: Annotated[int | None, typer.Option(min=1, help="How much a partition made here keeps.")] = None,
    compression: Annotated[Compression | None, typer.Option(help="How a stream made here is compressed.")] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Write JSON lines to a stream, which is made where it is absent.

    A key of text is stored as it is, any other as JSON: as key=str, or another type, reads it.
    """
    with told(), opened(data, environment, kafka_options, may_be_new=True) as place:
        wanted = StreamConfig(
            partitions=partitions or 1,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            compression=compression,
        )
        # Before anything is made or read, also where the stream exists.
        check_config(name, wanted)
        if (config := place.streams().get(name)) is not None:
            check_writable(None, name, config)
            _refuse_otherwise(name, config, {**msgspec.structs.asdict(wanted), "partitions": partitions})
        if file is None:
            written = write_lines(place, name, sys.stdin.buffer, key, wanted)
        else:
            with file.open("rb") as lines:
                written = write_lines(place, name, lines, key, wanted)
        say(f"wrote {written:,} records to {name}")


@streams.command()
def delete(
    name: NameArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Delete a stream with all that is in it.

    What has read it reads no new stream of that name before it is told where: see samza-dsl checkpoint set.
    """
    with told(), opened(data, environment, kafka_options) as place:
        config = config_of(place, name)
        if config.intermediate:
            raise Mistake(f"{name!r} lies between the stages of an application: samza-dsl reset APP.py drops it")
        held = [counted(config.partitions, "partition")]
        # On a cluster all records would have to be read for this.
        if not isinstance(place, LiveEnvironment):
            held.append(counted(place.stream_stats(name)[0], "record"))
        place.delete_stream(name)
        say(f"deleted {name}: {', '.join(held)}")


@streams.command()
def describe(
    name: NameArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Describe a stream: how it was made, and the offsets of each partition."""
    with told(), opened(data, environment, kafka_options) as place:
        config = config_of(place, name)
        if isinstance(place, LiveEnvironment):
            config = place.described(name)
        kept = [f"{config.retention_ms:,} ms" if config.retention_ms is not None else ""]
        kept.append(f"{config.retention_bytes:,} bytes" if config.retention_bytes is not None else "")
        say(f"stream       {name}")
        say(f"partitions   {config.partitions}")
        say(f"compacted    {'yes, keeps the newest of each key' if config.compacted else 'no'}")
        say(f"compression  {config.compression or 'none'}")
        kept.append("until it is consumed" if config.intermediate else "")
        say(f"retention    {', '.join(filter(None, kept)) or 'keeps everything'}\n")
        rows = []
        for number in range(config.partitions):
            start, end, ended = place.offsets(name, number)
            rows.append([str(number), f"{start:,}", f"{end:,}", "ended" if ended else "open"])
        columns = [Column("partition", right=True), Column("start", right=True), Column("end", right=True), Column("")]
        print_rows(columns, rows)


@streams.command()
def end(
    name: NameArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """End a stream: nothing can be written to it any more, and runs that read it come to their end."""
    with told(), opened(data, environment, kafka_options) as place:
        check_writable(None, name, config_of(place, name))
        place.end_stream(name)
        say(f"{name} has ended")


def _refuse_otherwise(name: str, config: StreamConfig, said: Mapping[str, object]) -> None:
    """Raise `Mistake` where options ask for another stream than the one that exists."""
    option = contradicted(config, said)
    if option is not None:
        has = f"{getattr(config, option) or 'no'} {option.replace('_', ' ')}"
        flag = f"--{option.replace('_', '-')}"
        raise Mistake(f"the stream {name!r} exists and has {has}: leave {flag} out, or write to another stream")


async def _follow(environment: Environment, name: str, reached: dict[int, int], *, grows: bool) -> None:
    """Print what is written from the offsets on that are `reached`; of a stream that `grows` in its new partitions."""
    seen = -1
    reading: Environment | ReadingPort = environment
    for turn in count():
        if grows and turn % LOOK_EVERY == 0:
            config = environment.streams([name]).get(name)
            if config is not None and (more := range(len(reached), config.partitions)):
                reached.update(dict.fromkeys(more, 0))
                seen = -1
                if isinstance(environment, LiveEnvironment):
                    reading = environment.reader(len(reached))  # which sees all that there are as it begins
        ended = all(reading.offsets(name, number).ended for number in reached)
        # Asked before reading: what is written meanwhile changes the version again. Behind an end there may be records
        # left.
        if ended or environment.version() != seen:
            seen = environment.version()
            for number in reached:
                while (read := read_on(reading, name, number, reached[number])) is not None:
                    _print_records(rows_of(number, read), heading=False)
                    reached[number] = read.next_offset
        if ended:
            return
        await sleep_ms(POLL_MS)


def _print_records(records: Iterable[StoredRecord], *, heading: bool = True) -> None:
    rows = (
        [
            str(record.partition),
            str(record.offset),
            time_of(record.timestamp),
            text_of(record.key),
            " ".join([text_of(record.value), *_headers(record)]),
        ]
        for record in records
    )
    columns = [Column("partition", right=True), Column("offset", right=True), Column("time (UTC)"), Column("key")]
    print_rows([*columns, Column("value")], rows, heading=heading)


def _headers(record: StoredRecord) -> list[str]:
    return [f"[{name}: {text_of(value)}]" for name, value in record.headers.items()]


def _partitions(environment: Environment, name: str, partition: int | None) -> list[int]:
    count = config_of(environment, name).partitions
    if partition is None:
        return list(range(count))
    if partition >= count:
        raise Mistake(f"the stream {name!r} has no partition {partition}: it has 0 to {count - 1}")
    return [partition]


def _first(environment: Environment, name: str, partition: int, start: int | None) -> int:
    """Return the first offset to show; one that retention has removed, or that is yet to come, becomes the nearest."""
    first, end, _ = environment.offsets(name, partition)
    return first if start is None else min(max(start, first), end)


def _list_ranges(environment: LiveEnvironment) -> None:
    configs, rows = environment.streams(), []
    for name, ranges in environment.ranges().items():
        # Others may make a topic between the two looks: the next list has it.
        if name in configs:
            held = sum(end - start for start, end, _ in ranges)
            rows.append([name, f"{len(ranges):,}", f"{held:,}", "intermediate" if configs[name].intermediate else ""])
    columns = [Column(heading, right=True) for heading in ("partitions", "offsets")]
    print_rows([Column("stream"), *columns, Column("")], rows)


def _traits(stream: StreamSummary) -> str:
    return ", ".join(word for word in ("intermediate", "compacted", "ended") if getattr(stream, word))


def why(
    target: FileArgument,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The output, or the stream of dead letters.")],
    place: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="The row, as streams show has it.")],
    pytest: Annotated[
        Path | None, typer.Option("--pytest", metavar="FILE", help="Write a test that gives the same row.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Look for fewer records in so many runs.")] = MOST_RUNS,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Tell which input records led to a row of an output, which state was there before, and which timers have fired.

    The application's functions run again on parts of its inputs, in virtual time, until none of the records can be left
    out; sinks do nothing, and nothing is written. The row has to come of what the inputs still have, of this program,
    and of nothing else: not of the clock, or of what async functions are told elsewhere.
    """
    partition, _, offset = place.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise Mistake(f"{place!r} is no place in a stream: write PARTITION:OFFSET, as 0:7")
    with told():
        app = loaded(target)
    with told(), opened(data, environment, kafka_options) as where:
        found = origins(app, where, output, int(partition), int(offset), runs)
        _print_origins(found)
        if pytest is not None:
            source = test_of(app, found, *module_of(target, app))
            pytest.write_text(source)
            say(f"\nwrote {pytest}, which gives the same row")


def _print_origins(found: Origins) -> None:
    row = found.row
    say(f"{found.output}/{row.partition} at {row.offset}: {text_of(row.key)}, {text_of(row.value)}")
    count = counted(len(found.records), "record")
    which = "and none of them can be left out" if found.is_fewest else "and more --runs may find fewer"
    say(f"\nled to by {count}, {which} ({counted(found.runs, 'run')}):")
    last = len(found.records) - 1 if not found.with_end else None
    columns = [Column("stream"), Column("partition", right=True), Column("offset", right=True), Column("time (UTC)")]
    cells = [
        [
            one.stream,
            str(one.stored.partition),
            str(one.stored.offset),
            time_of(one.stored.timestamp),
            "the row comes with it" if number == last else "",
            text_of(one.stored.key),
            text_of(one.stored.value),
        ]
        for number, one in enumerate(found.records)
    ]
    print_rows([*columns, Column(""), Column("key"), Column("value")], cells)
    if found.with_end:
        say("\nthe row comes with the end of the inputs")
    if found.before:
        say("\nthe state that these have made before:")
        print_entries(found.before)
    if found.fired:
        say("\nwhat has fired, and is gone behind the row:")
        print_entries(found.fired)
