"""The commands on history: reprocess an application over it, and have the live one go on from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from runtime.model.history import ALL, Point
from runtime.spark.session import Spark
from runtime.systems.kafka.client.topic import KafkaCluster
from samza_dsl.application.app import App
from samza_dsl.application.reprocessing import NAME, ReprocessRequest, reprocessed
from samza_dsl.application.run_request import RunRequest
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, options_in
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import say
from samza_dsl.cli.run import AppArgument, BindOption, ContainersOption, MasterOption, TracebackOption, bindings_of
from samza_dsl.cli.settings import loaded

UNITS_S = {"s": 1, "min": 60, "h": 3_600}
PLACES: Mapping[str, Literal["earliest", "latest"]] = {"earliest": "earliest", "latest": "latest"}
KINDS = ("parquet:", "jsonl:", "csv:")
"""The kinds that may be written before a path, which says its kind by its suffix anyway."""
ThrottleOption = Annotated[str | None, typer.Option(metavar="RATE", help="Read so many records at most, as 10_000/s.")]


def reprocess(
    target: AppArgument,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="[NAME=]PATH", help="Read an archive or files in the place of an input."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="[NAME=]PATH", help="Write a file, or stream:NAME, in the place of an output."),
    ] = None,
    bind: BindOption = None,
    start: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]POINT", help="Begin at an offset, or at a time such as 2025-01-01 (UTC)."),
    ] = None,
    until: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]POINT", help="Stop before an offset or a time; else now.")
    ] = None,
    throttle: ThrottleOption = None,
    handover: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fire nothing at the end, and write state and positions for take-over."),
    ] = None,
    merge_into: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]STREAM", help="Append what no live result of the same key and window is there for."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What it is called behind the application's name.")] = NAME,
    containers: ContainersOption = 1,
    on: Annotated[Literal["spark"] | None, typer.Option(help="Run on Spark.")] = None,
    master: MasterOption = None,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    data: DataOption = DEFAULT,
    traceback: TracebackOption = False,
) -> None:
    """Compute the results of history anew, beside the live run of the application, which goes on untouched.

    What is stopped by Ctrl-C goes on where it was when the same command is given again.
    """
    with told(whole=traceback, loading=True):
        app = loaded(target)
    with told(whole=traceback):
        if master is not None and on is None:
            raise Mistake("--master is about Spark: add --on spark, or leave it out")
        options = options_in(kafka_options)
        cluster = KafkaCluster(environment, options) if environment is not None else None
        said = [*_inputs_said(app, sources), *_outputs_said(app, "--to", outputs), *(bind or [])]
        bound = bindings_of(app, said, options, on=on)
        run = RunRequest(data, environment=cluster, bind=bound, live=True, containers=1 if on else containers)
        request = ReprocessRequest(
            run=run if on is None else replace(run, on=Spark(master=master)),
            start=_points("--start", start),
            until=_points("--until", until),
            per_second=None if throttle is None else rate_of(throttle),
            handover=handover,
            merge_into=dict(one.split("=", 1) for one in _outputs_said(app, "--merge-into", merge_into)),
            name=name,
        )
        reprocessed(app, request)
        if handover is not None:
            say(f"handed over to {handover}: stop {app.name}, then samza-dsl take-over {target} {handover}")


def take_over(
    target: AppArgument,
    handover: Annotated[Path, typer.Argument(metavar="DIR", help="What a reprocessing has handed over.")],
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PLACE", help="Where a stream goes on: earliest, latest, or an offset."),
    ] = None,
    bind: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="What the live run binds: files, or Kafka topics.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    data: DataOption = DEFAULT,
    traceback: TracebackOption = False,
) -> None:
    """Let an application, which must not be running, go on from a handover when it runs next.

    What it remembered until now is dropped. What it has written to its outputs stays there.
    """
    with told(whole=traceback, loading=True):
        app = loaded(target)
    with told(whole=traceback):
        places = dict(_place(one) for one in at or [])
        if not yes and not typer.confirm(f"Put {handover} in the place of all positions and state of {app.name!r}?"):
            raise Mistake("nothing was changed")
        options = options_in(kafka_options)
        cluster = KafkaCluster(environment, options) if environment is not None else None
        bound = bindings_of(app, bind or [], options)
        app.take_over(handover, data, environment=cluster, at=places, bind=bound)
        say(f"{app.name} goes on from {handover}")


def archives_of(app: App, said: Iterable[str] | None) -> dict[str, object]:
    """Return what `--from NAME=PATH` puts in the place of inputs; raises `Mistake` for what can't be read."""
    return bindings_of(app, _inputs_said(app, said), {})


def rate_of(said: str) -> float:
    """Return a rate in records a second; raises `Mistake` for what is no rate.

    >>> rate_of("10_000/s"), rate_of("600/min")
    (10000.0, 10.0)
    """
    number, _, unit = said.partition("/")
    try:
        found = float(number) / UNITS_S[unit or "s"]
    except (ValueError, KeyError):
        found = 0.0
    # Written so that nan is refused as well.
    if not found > 0:
        raise Mistake(f"--throttle {said} is no rate: write --throttle 10_000/s, or 600/min")
    return found


def _inputs_said(app: App, said: Iterable[str] | None) -> list[str]:
    return _named("--from", said, {spec.stream for spec in app.graph().inputs.values()})


def _outputs_said(app: App, option: str, said: Iterable[str] | None) -> list[str]:
    return _named(option, said, {output.stream for spec in app.graph().specs.values() for output in spec.outputs})


def _named(option: str, said: Iterable[str] | None, streams: set[str]) -> list[str]:
    """Return bindings with their names: of one without, that of the only stream there is."""
    found = []
    for one in said or []:
        name, equals, path = one.partition("=")
        # Folders may be named for fields: data/day=2026-01-01 has no name in front.
        if not equals or (name not in streams and "/" in name):
            if len(streams) != 1:
                known = ", ".join(sorted(streams))
                raise Mistake(f"{option} {one} names none of the streams {known}: write {option} NAME={one}")
            (name,), path = streams, one
        if name not in streams:
            raise Mistake(f"{option} {one}: there is no stream {name!r} here, but {', '.join(sorted(streams))}")
        kind = next((kind for kind in KINDS if path.startswith(kind)), "")
        found.append(f"{name}={path.removeprefix(kind)}")
    return found


def _points(option: str, said: Iterable[str] | None) -> Mapping[str, Point] | None:
    points: dict[str, Point] = {}
    for one in said or []:
        name, _, point = one.rpartition("=")
        points[name or ALL] = _point(option, one, point)
    return points or None


def _point(option: str, said: str, point: str) -> Point:
    if point.replace("_", "").isdecimal():
        return int(point)
    try:
        at = datetime.fromisoformat(point)
    except ValueError as error:
        raise Mistake(
            f"{option} {said} is no place in a stream: write an offset, or a time such as 2025-01-01 or "
            "2025-01-01T06:30:00+02:00"
        ) from error
    # A time without a zone is UTC, as all times that commands print are.
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _place(said: str) -> tuple[str, int | Literal["earliest", "latest"]]:
    name, _, place = said.partition("=")
    if name and place in PLACES:
        return name, PLACES[place]
    if name and place.isdecimal():
        return name, int(place)
    raise Mistake(f"--at {said} says no place: write --at flights=earliest, =latest, or an offset")
