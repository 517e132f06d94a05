"""The commands on an application's place in its inputs: checkpoint show and set, and reset."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import typer

from planner.plan import Plan
from runtime.checkpoint import Position
from runtime.commit import SHARED
from runtime.deletion import check_not_shared
from runtime.rewind import begin_anew, intermediate_streams
from runtime.systems.base import Environment
from samza_dsl.cli_data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli_errors import Mistake, told
from samza_dsl.cli_output import Column, print_rows, say
from samza_dsl.cli_plan import plan_of
from samza_dsl.load_app import load_app
from samza_dsl.positions import Moves, has_state, move_keeping, move_resetting
from samza_dsl.readable import watermark_of

checkpoint = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at how far an application has come, and move it."
)

AppArgument = Annotated[str, typer.Argument(metavar="APP", help="The application: its name, or its file as app.py.")]


@checkpoint.command()
def show(
    target: AppArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show how far an application has processed each partition of its inputs, as of its last commit."""
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        found = place.checkpoints(known(place, app))
        say(f"{app}, generation {place.generation(app)}\n")
        streams = place.streams()
        rows = [
            [task, *_row(place, streams, position)]
            for task in sorted(found, key=lambda task: (len(task), task))
            for position in found[task].positions
        ]
        columns = [Column("task", right=True), Column("system"), Column("stream"), Column("partition", right=True)]
        columns += [Column("next offset", right=True), Column("lag", right=True), Column("watermark (UTC)")]
        print_rows(columns, rows)
        for stream, length in sorted(found[SHARED].outputs.items() if SHARED in found else []):
            say(f"output {stream}: written up to {length:,}")


@checkpoint.command("set")
def set_position(
    target: AppArgument,
    stream: Annotated[str, typer.Argument(metavar="STREAM[:PARTITION]", help="All partitions, or one.")],
    offset: Annotated[str, typer.Argument(metavar="OFFSET", help="The next offset to read, or earliest, or latest.")],
    state: Annotated[
        Literal["reset", "keep"] | None,
        typer.Option(help="Drop the application's state; or keep it, so that records may be late."),
    ] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Set where an application, which must not be running, goes on reading.

    What it has written stays. An application with state needs --state: with "reset" state, timers, watermarks and
    what lies between stages are dropped, and tables are read anew, for which APP must be its file; with "keep" all
    stays as it was, and records that are read again are late wherever their windows have fired.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, plan = named(target, place)
        moves = _moves(place, known(place, app), stream, offset)
        if state is None and has_state(place, app):
            raise Mistake(
                f"the application {app!r} has state, and a rewind must say what becomes of it: --state reset, or "
                "--state keep (records that are read again are late wherever their windows have fired)"
            )
        if state == "reset" and plan is None:
            raise Mistake(
                f"--state reset needs the application's file in place of {app!r}, as its plan says which streams "
                "are tables: samza-dsl checkpoint set app.py ..."
            )
        check_not_shared(place, app)
        place.own(app)
        if state == "reset" and plan is not None:
            move_resetting(place, app, moves, plan)
        else:
            move_keeping(place, app, moves)
        for (name, partition), position in moves.items():
            say(f"{app} reads {name}, partition {partition}, from offset {position:,} on")


def reset(
    target: AppArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Drop an application's positions and state, and what lies between its stages; it must not be running.

    Its next run reads all inputs from their start. What it has written to its outputs stays there.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, plan = agreed(target, place, "Drop all positions and state of", yes)
        place.own(app)
        dropped = begin_anew(place, app, plan)
        say(f"{app} begins anew" + (f"; dropped {', '.join(sorted(dropped))}" if dropped else ""))


def named(target: str, environment: Environment) -> tuple[str, Plan | None]:
    """Return an application's name, and its plan where its file was named."""
    if not target.partition(":")[0].endswith(".py"):
        return target, None
    with told(loading=True):
        plan = plan_of(load_app(target), environment)
    return plan.app, plan


def agreed(target: str, environment: Environment, question: str, yes: bool) -> tuple[str, Plan | None]:
    """Return what `named` does of an application that nobody shares, once it was asked whether that shall be done.

    Raises `Mistake` where the answer is no.
    """
    app, plan = named(target, environment)
    check_not_shared(environment, known(environment, app))
    if not yes and not typer.confirm(f"{question} {app!r} in {environment}?"):
        raise Mistake("nothing was changed")
    return app, plan


def known(environment: Environment, app: str) -> str:
    """Return the name of an application that has run; raises `Mistake` for another."""
    if not environment.generation(app):
        raise Mistake(f"no application {app!r} has run on {environment}: check its name, which App(...) has, or --data")
    return app


def _moves(environment: Environment, app: str, said: str, offset: str) -> Moves:
    name, _, number = said.rpartition(":") if ":" in said else (said, "", "")
    positions = [one for found in environment.checkpoints(app).values() for one in found.positions]
    known = {one.stream for one in positions} - intermediate_streams(environment.checkpoints(app))
    if name not in known:
        raise Mistake(f"{app!r} has no position in {name!r}: it reads {', '.join(sorted(known)) or 'nothing yet'}")
    streams = environment.streams()
    count = streams[name].partitions if name in streams else 0
    partitions = sorted({*range(count), *(one.partition for one in positions if one.stream == name)})
    if number:
        if not number.isdecimal() or int(number) not in partitions:
            raise Mistake(f"{name!r} has no partition {number!r}: it has 0 to {partitions[-1]}")
        partitions = [int(number)]
    bound = {one.partition for one in positions if one.stream == name and one.system != "log"}
    return {(name, one): _offset(environment, name, one, offset, one in bound) for one in partitions}


def _offset(environment: Environment, stream: str, partition: int, said: str, bound: bool) -> int:
    if bound:
        if said == "earliest" or said.isdecimal():
            return 0 if said == "earliest" else int(said)
        raise Mistake(f"{stream!r} is bound to a file: give the number of a record, or earliest, not {said!r}")
    start, end, _ = environment.offsets(stream, partition)
    if said in ("earliest", "latest"):
        return start if said == "earliest" else end
    if not said.isdecimal() or not start <= int(said) <= end:
        raise Mistake(
            f"{said!r} is no offset of {stream!r}, partition {partition}: it has {start} to {end}; or say earliest or "
            "latest"
        )
    return int(said)


def _row(environment: Environment, streams: Collection[str], position: Position) -> list[str]:
    is_stream = position.system == "log" and position.stream in streams
    end = environment.offsets(position.stream, position.partition).end if is_stream else None
    watermark = max(position.watermark, min(position.producers.values(), default=position.watermark))
    return [
        position.system,
        position.stream,
        str(position.partition),
        f"{position.offset:,}",
        "-" if end is None else f"{end - position.offset:,}",
        watermark_of(watermark),
    ]
