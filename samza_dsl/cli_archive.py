"""The command that archives a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.flow import counted
from runtime.systems.archive import Kind, archive_stream, is_archive, read_manifest
from samza_dsl.cli_data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, config_of, opened
from samza_dsl.cli_errors import told
from samza_dsl.cli_output import say


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
        before = read_manifest(to).rows if is_archive(to) else 0
        found = archive_stream(place, name, to, kind)
        say(f"archived {counted(found.rows - before, 'record')} of {name} to {to}, which has {found.rows:,}")
