"""The commands that run a Kafka broker on this machine, to develop and test with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.systems.kafka.broker import broker as kafka_broker
from samza_dsl.cli.errors import FAILED, told
from samza_dsl.cli.output import say

kafka = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run a real Kafka broker on this machine, to develop with."
)

DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the broker keeps its data.")]
DEFAULT = Path(".samza-dsl-kafka")


@kafka.command()
def start(
    directory: DirectoryOption = DEFAULT,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="A free one where none is given.")] = None,
    heap_mb: Annotated[int, typer.Option("--heap-mb", min=128, help="How much memory it may take.")] = 512,
) -> None:
    """Start a broker, and say where it is; the first time Kafka is fetched (39 MB). It listens on loopback alone.

    With SAMZA_DSL_KAFKA=3.9.1 it is one of the last 3.x, in place of 4.1.
    """
    with told():
        broker = kafka_broker.start(directory, port, heap_mb)
        say(f"a Kafka broker runs in {directory}: kafka://{broker.bootstrap} (process {broker.pid})")


@kafka.command()
def stop(directory: DirectoryOption = DEFAULT) -> None:
    """Stop the broker; what it holds stays."""
    with told():
        broker = kafka_broker.stop(directory)
        say(f"no broker runs in {directory}" if broker is None else f"the broker in {directory} has stopped")


@kafka.command()
def status(directory: DirectoryOption = DEFAULT) -> None:
    """Say whether a broker runs, and where; the exit code is 1 when none does."""
    with told():
        broker = kafka_broker.running(directory)
        if broker is None:
            say(f"no broker runs in {directory}")
            # So that a script can ask.
            raise typer.Exit(FAILED)
        say(f"a Kafka broker runs in {directory}: kafka://{broker.bootstrap} (process {broker.pid})")
