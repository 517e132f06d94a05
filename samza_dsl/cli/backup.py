"""The commands on whole data directories: verify one, back it up while it is in use, and restore it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from runtime.model.errors import SamzaError
from runtime.systems.log.backup import Backup, back_up, verify_backups
from runtime.systems.log.backup import restore as restored
from runtime.systems.log.environment import verify as findings_in
from samza_dsl.application.replica import KEPT, copies
from samza_dsl.cli.checkpoint import AppArgument, known, named
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import FAILED, Mistake, say_error, told
from samza_dsl.cli.output import say
from samza_dsl.settings.quantities import quantity_of
from samza_dsl.view.readable import watermark_of

TargetArgument = Annotated[Path, typer.Argument(metavar="TARGET", help="The directory of the backups.")]


def verify(
    backups: Annotated[
        Path | None, typer.Option(metavar="TARGET", help="Look at the backups in a directory, instead.")
    ] = None,
    data: DataOption = DEFAULT,
) -> None:
    """Look at every page and record of a data directory, and say what is not as it was written."""
    with told():
        findings = findings_in(data) if backups is None else verify_backups(backups)
        for finding in findings:
            say_error(finding)
        if findings:
            raise typer.Exit(FAILED)
        say(f"{data if backups is None else backups} is as it was written")


def backup(
    target: AppArgument,
    to: TargetArgument,
    keep: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep so many of the newest, not all.")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Go on until stopped, with one each '10s' where there is more.")
    ] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Back up the data directory of an application, which may be running, as of its last commit.

    All that lies in the directory is in it: streams, state and positions. The first backup in TARGET is a whole copy,
    each later one writes only what has changed since. With --every it is a copy on another disk that is as old as that
    time at most, and has the newest 10 unless --keep says how many.
    """
    with told():
        if environment is not None:
            raise Mistake(
                "on Kafka the streams, changelogs and checkpoints are topics, which brokers replicate, "
                "and its data directory can be made anew from them, and needs no backup"
            )
        every_ms = _interval_ms(every) if every is not None else None
        with opened(data, environment, kafka_options) as place:
            app, _ = named(target, place)
            known(place, app)
            if every_ms is None:
                say(_told(data, to, back_up(data, to, keep)))
                return
            over = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: over.set())
            for made in copies(data, to, keep or KEPT, lambda: over.wait(every_ms / 1_000)):
                if isinstance(made, SamzaError):
                    raise made
                if made is not None:
                    say(_told(data, to, made))


def _told(data: Path, to: Path, made: Backup) -> str:
    return f"backup {made.number} of {data} in {to}: {made.data_bytes:,} bytes, {made.new_bytes:,} of them written"


def _interval_ms(said: str) -> int:
    try:
        found = quantity_of("_ms", said)
    except ValueError as error:
        raise Mistake(f"--every {error}") from None
    if not found:
        raise Mistake("--every 0 leaves no time between two backups: write 10s")
    return found


def restore(
    source: TargetArgument,
    data: Annotated[Path, typer.Option(metavar="DIR", help="The data directory to make.")],
    number: Annotated[int | None, typer.Option("--backup", metavar="N", help="Which one; else the newest.")] = None,
) -> None:
    """Make a data directory from a backup, and verify all of it; an application goes on from there."""
    with told():
        found = restored(source, data, number)
        at = watermark_of(found.taken_ms // 1_000 * 1_000)
        say(f"{data} is backup {found.number} of {at} (UTC): verified, {found.data_bytes:,} bytes")
