"""The commands on history: reprocess an application over it, and have the live one go on from there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from operators.core.sites import here
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings, letters_of
from runtime.assembly.distinct_places import ANOTHER
from runtime.assembly.history import beside
from runtime.job.pipeline import Pipeline
from runtime.model.history import ALL, HistorySpan, Point
from runtime.opening.evolution import Decisions, anew_of, evolved
from runtime.opening.stored_state import finish, forget, move
from runtime.ports.connectors import PushedSource
from runtime.ports.environment import Environment, SnapshotEnvironment, own_whole, where_typed
from runtime.reprocessing.backfill import backfill_of, over_history, run_backfill
from runtime.reprocessing.fork import check_countable, difference, fork_now, forked, is_forked, note_fork, starts_of
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.spark.session import Spark
from runtime.systems.connectors.schemes import connected_source
from samza_dsl.application.app import App
from samza_dsl.application.reprocessing import NAME, ReprocessRequest, reprocessed
from samza_dsl.application.run_request import RunRequest, ended, run_live
from samza_dsl.cli.data import (
    DEFAULT,
    DataOption,
    EnvironmentOption,
    KafkaOption,
    cluster_at,
    config_of,
    opened,
    options_in,
)
from samza_dsl.cli.errors import FAILED, Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import plan_of
from samza_dsl.cli.run import AppArgument, BindOption, ContainersOption, MasterOption, TracebackOption, bindings_of
from samza_dsl.cli.settings import loaded
from samza_dsl.fluent.checks import check_name

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
        cluster = cluster_at(environment, options) if environment is not None else None
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
        cluster = cluster_at(environment, options) if environment is not None else None
        bound = bindings_of(app, bind or [], options)
        app.take_over(handover, data, environment=cluster, at=places, bind=bound)
        say(f"{app.name} goes on from {handover}")


def fork(
    target: AppArgument,
    changed: Annotated[str, typer.Argument(metavar="CHANGED", help="The file of the changed application, app2.py.")],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="The fork's name behind the application's.")],
    at: Annotated[
        str, typer.Option(metavar="POINT", help="The cut: now, or an offset or a time to which history is computed.")
    ] = "now",
    bind: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="What the live run binds its inputs to.")
    ] = None,
    until_now: Annotated[bool, typer.Option("--until-now", help="End with what the inputs hold now.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Run a changed application beside the live one, on its state as of a cut; the live run goes on untouched.

    Its outputs are streams or topics of their own, NAME-output, which samza-dsl diff compares. What it keeps is
    computed from history where the change asks for that. The same command again goes on where it was.
    """
    with told(whole=traceback, loading=True):
        old, new = loaded(target), loaded(changed)
    with told(whole=traceback):
        check_name(here(), "a fork", name)
        options = options_in(kafka_options)
        cluster = cluster_at(environment, options) if environment is not None else None
        read = inputs_bound(new, _meant_for(new, old, bind), options)
        with opened(data, environment, kafka_options) as place:
            _fork(place, old, new, _AskedFork(name, at, inputs_bound(old, _meant_for(old, new, bind), options), read))
            written = sorted(one.name for one in plan_of(new, place, read)[0].results)
            where = where_typed(place)
        own = beside(new.graph(), name)
        bound = {**read, **{stream: ANOTHER + forked(name, stream) for stream in written}}
        request = RunRequest(data, cluster, bound, until_now=until_now, live=True, beside=name).viewed()
        ended(run_live(new, own, request), is_shown=True)
        for stream in written:
            say(f"compare: samza-dsl diff {stream} {forked(name, stream)}{where}")


def inputs_bound(app: App, said: Iterable[str] | None, options: Mapping[str, object]) -> dict[str, object]:
    """Return the places that a live run binds its inputs to; what is pushed there is read where the run keeps it."""
    read = {spec.stream for spec in app.graph().inputs.values()}
    return {
        name: what
        for name, what in bindings_of(app, [*(said or [])], options).items()
        if name in read and not (isinstance(what, str) and isinstance(connected_source(what), PushedSource))
    }


def _meant_for(app: App, other: App, said: Iterable[str] | None) -> list[str]:
    """Return what is said of streams that an application has, or that another one does not have either."""
    mine, others = (
        {one.stream for spec in which.graph().specs.values() for one in spec.outputs}
        | {spec.stream for spec in which.graph().inputs.values()}
        for which in (app, other)
    )
    return [one for one in said or [] if (name := one.partition("=")[0]) in mine or name not in others]


class _AskedFork(NamedTuple):
    """The request of a fork, with what the live run binds its inputs to, and what the fork does."""

    name: str
    at: str
    live: Mapping[str, object]
    own: Mapping[str, object]


def _fork(place: Environment, old: App, new: App, asked: _AskedFork) -> None:
    """Make a fork where there is none, and let its state be that of the changed application."""
    name, at = asked.name, asked.at
    assert isinstance(place, SnapshotEnvironment), "a place of commands"
    own, written = f"{new.name}.{name}", {one.stream for spec in old.graph().specs.values() for one in spec.outputs}
    if old.name != new.name:
        raise Mistake(f"{old.name!r} is forked, and the changed application is named {new.name!r}: name it as that one")
    if not is_forked(place, own):
        if at == "now":
            fork_now(place, old.name, own, written)
        else:
            scratch = {one.name: f"{own}.{one.name}" for one in plan_of(old, place, asked.live)[0].results}
            check_countable(place, scratch)
            bind = {**asked.live, **{stream: ANOTHER + other for stream, other in scratch.items()}}
            span = HistorySpan(until={ALL: _point("--at", at, at)}, hands_over=True)
            part = old.pipeline().of(beside(old.graph(), name))
            if run_blocking(part, place, RunSettings(span=span, bind=bind)).stopping:
                raise Mistake("it was stopped, and there is no fork yet: the same command goes on")
            place.own(own)
            note_fork(place, own, scratch)
        say(f"{own} is forked from {old.name} at {at}")
    own_whole(place, own)
    finish(place, own)
    _evolve(place, new.pipeline().of(beside(new.graph(), name)), asked.own)


def _evolve(place: Environment, pipeline: Pipeline, bind: Mapping[str, object]) -> None:
    """Let the state of a fork be that of its own program."""
    graph, app = pipeline.graph, pipeline.graph.app
    with closing(Bindings(place, graph, bind)) as bindings:
        counts = bindings.partition_counts(graph)
    found = {one.operator: one for one in evolved(place, make_plan(graph, pipeline.options, counts), graph, counts)}
    left = [one for one in found.values() if one.complaints and not one.anew and not one.heir]
    # What the changed program does not have any more is nobody's, and the live run has its own.
    gone = [one.operator for one in left if one.what == "dropped"]
    if refused := [one for one in left if one.what != "dropped"]:
        raise Mistake(f"{refused[0].operator!r}: {refused[0].complaints[0].wrong}: write it as the live run has it")
    operators = anew_of(graph, found, Decisions())
    backfill = backfill_of(place, pipeline, operators, bind) if operators else None
    if backfill is not None and backfill.reads:
        if run_backfill(place, pipeline, backfill, partial(over_history, place)).stopping:
            raise Mistake("it was stopped: the same command goes on")
        say(f"{app} computes {', '.join(map(repr, operators))} from history ({backfill.told})")
    if gone:
        forget(place, app, gone)
    for one in found.values():
        if one.heir:
            move(place, app, one.operator, one.heir)


def diff(
    first: Annotated[str, typer.Argument(metavar="STREAM", help="A stream, as of the live application.")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Another stream, as of a fork.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="Show so many of the results at most.")] = 20,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Compare the results in two streams, in whatever order and partitions they are; exit 1 where they differ.

    Where one is written by a fork and the other by what it was forked from, those of before the fork are left out.
    """
    with told(), opened(data, environment, kafka_options) as place:
        assert isinstance(place, SnapshotEnvironment), "a place of commands"
        streams = (first, second)
        for stream in streams:
            config_of(place, stream)
        found = difference(place, streams, starts_of(place, streams))
        counts = [only.total() for only in found.only]
        say(f"{found.both:,} in both, {counts[0]:,} in {first} alone, {counts[1]:,} in {second} alone")
        told_of = [(stream, *one) for stream, only in zip(streams, found.only, strict=True) for one in only.elements()]
        told_of.sort(key=lambda one: (one[1] or b"", one[2] or 0, one[0] == second))
        columns = [Column("only in"), Column("time (ms)", right=True), Column("key"), Column("value")]
        if told_of and limit:
            print_rows(columns, [[one, str(at), _text(key), _text(value)] for one, key, at, value in told_of[:limit]])
        if any(counts):
            raise typer.Exit(FAILED)


def _text(stored: bytes | None) -> str:
    return "-" if stored is None else stored.decode(errors="backslashreplace")


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
    graph = app.graph()
    # Dead letters are bound by their name alone, so that a path without one is that of the only output.
    letters = letters_of(graph) if option == "--to" else set()
    return _named(option, said, {output.stream for spec in graph.specs.values() for output in spec.outputs}, letters)


def _named(option: str, said: Iterable[str] | None, streams: set[str], also: Collection[str] = ()) -> list[str]:
    """Return bindings with their names: of one without, that of the only stream there is; some are named alone."""
    found = []
    for one in said or []:
        name, equals, path = one.partition("=")
        # Folders may be named for fields: data/day=2026-01-01 has no name in front.
        if not equals or (name not in streams and name not in also and "/" in name):
            if len(streams) != 1:
                known = ", ".join(sorted(streams))
                raise Mistake(f"{option} {one} names none of the streams {known}: write {option} NAME={one}")
            (name,), path = streams, one
        if name not in streams and name not in also:
            known = ", ".join(sorted({*streams, *also}))
            raise Mistake(f"{option} {one}: there is no stream {name!r} here, but {known}")
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
