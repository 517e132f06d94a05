"""The command that runs an application, with a view of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from operators.io import Input
from runtime.bindings import ANOTHER, outputs_of
from runtime.errors import SamzaError
from runtime.spark.session import Spark
from runtime.systems.files import open_sink, open_source
from runtime.systems.kafka_topic import KafkaCluster, topic_of
from samza_dsl.app import App
from samza_dsl.cli_data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, options_in
from samza_dsl.cli_errors import Mistake, told
from samza_dsl.load_app import load_app

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="The file of the application, as app.py or app.py:name; or its module.")
]
StartOption = Annotated[bool, typer.Option("--from-start", help="Read all inputs from their start again.")]
NowOption = Annotated[bool, typer.Option("--until-now", help="Stop at what the inputs hold now.")]
StateOption = Annotated[
    Literal["reset", "keep"] | None,
    typer.Option(help="With --from-start: drop the state; or keep it, so that records may be late."),
]
BindOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH",
        help="Read or write a file (.jsonl, .csv, .parquet), or a Kafka topic (kafka://HOST:PORT/TOPIC), instead.",
    ),
]
ContainersOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Share the tasks among so many processes.", show_default=True)
]
HostOption = Annotated[
    str | None, typer.Option("--host-id", metavar="NAME", help="What this machine is called, if not by its own name.")
]
PlacementOption = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Give tasks to where their state is (sticky), to all in turn (round_robin), or by MODULE:FUNCTION.",
    ),
]
StandbyOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Keep a copy of each task's state on so many other machines.", show_default=True
    ),
]
OnOption = Annotated[
    Literal["spark"] | None,
    typer.Option(help="Run on Spark over what the inputs hold now, and write the whole of the outputs."),
]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="With --on spark: its cluster; else all cores of this machine.")
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="With --on spark: go on and on in micro-batches, and from there the next time."),
]
EndOption = Annotated[
    bool, typer.Option("--end", help="With --checkpoint: what the inputs hold is all there will be, and they end.")
]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")]


def run(
    target: AppArgument,
    from_start: StartOption = False,
    until_now: NowOption = False,
    state: StateOption = None,
    bind: BindOption = None,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    containers: ContainersOption = 1,
    host_id: HostOption = None,
    placement: PlacementOption = "sticky",
    standby: StandbyOption = 0,
    on: OnOption = None,
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    end: EndOption = False,
    data: DataOption = DEFAULT,
    traceback: TracebackOption = False,
) -> None:
    """Run an application until its inputs end, or Ctrl-C: it then completes what it began, and commits.

    What it has committed it does not do again. A second Ctrl-C stops at once, and loses nothing either.
    """
    with told(whole=traceback, loading=True):
        app = load_app(target)
    with told(whole=traceback):
        if state is not None and not from_start:
            raise Mistake("--state says what becomes of the state in a rewind: add --from-start, or leave it out")
        if on is not None and (from_start or (until_now and not checkpoint) or containers > 1):
            raise Mistake(
                "--on spark reads what the inputs hold from their start, and shares tasks by itself: leave "
                "--from-start, --until-now and --containers out; with --checkpoint it may be --until-now"
            )
        _check_about_spark(on, master, checkpoint, end)
        options = options_in(kafka_options)
        bound = bindings_of(app, bind or [], options, writes_directories=checkpoint is not None)
        cluster = KafkaCluster(environment, options) if environment is not None else None
        if on is not None:
            spark = Spark(master=master, checkpoint=checkpoint, end=end)
            app.run(data, bind=bound, on=spark, until_now=until_now, environment=cluster, live=True)
            return
        how: dict[str, Any] = {"bind": bound, "from_start": from_start, "until_now": until_now, "state": state}
        if host_id is not None and cluster is None:
            raise Mistake("--host-id tells machines apart that share a cluster: add --environment, or leave it out")
        if placement != "sticky" and containers == 1:
            raise Mistake("--placement is about tasks that containers share: add --containers, or leave it out")
        if standby and (cluster is None or containers == 1):
            raise Mistake(
                "--standby is about machines that share tasks: add --environment and --containers, or leave it out"
            )
        where: dict[str, Any] = {"environment": cluster, "host_id": host_id, "placement": placement, "standby": standby}
        app.run(data, live=True, containers=containers, **where, **how)


def _check_about_spark(on: str | None, master: str | None, checkpoint: Path | None, end: bool) -> None:
    said = [name for name, value in (("master", master), ("checkpoint", checkpoint), ("end", end)) if value]
    if said and on is None:
        raise Mistake(f"--{said[0]} is about Spark: add --on spark, or leave it out")
    if end and checkpoint is None:
        raise Mistake("--end is about a run that goes on: add --checkpoint DIR; without one, inputs end anyway")


def bindings_of(
    app: App, said: list[str], options: Mapping[str, Any], writes_directories: bool = False
) -> dict[str, Any]:
    """Open what `--bind name=path` names, Kafka's clients with `options`; raises `Mistake` for what can't be bound.

    What `writes_directories` looks at these itself.
    """
    specs = app.graph().specs.values()
    read = {spec.stream for spec in specs if isinstance(spec, Input)}
    written = {output.stream for spec in specs for output in outputs_of(spec)}
    bound: dict[str, Any] = {}
    for binding in said:
        name, equals, path = binding.partition("=")
        if not equals or not path:
            raise Mistake(f"--bind {binding} names no file: write --bind flights=flights.jsonl")
        if name in bound:
            raise Mistake(f"--bind {name}=... is given twice: a stream is bound to one place")
        if name not in read | written:
            known = f"it reads {', '.join(sorted(read))} and writes {', '.join(sorted(written)) or 'nothing'}"
            raise Mistake(f"--bind {name}=...: the application {app.name!r} has no stream {name!r}; {known}")
        try:
            topic = topic_of(path)
            if path.startswith(ANOTHER) and name in written:
                bound[name] = path
                continue
            if topic is not None:
                bound[name] = replace(topic, options=options)
                continue
            if name in read:
                open_source(Path(path)).close()
            elif not writes_directories:
                open_sink(Path(path)).close()
        except SamzaError as error:
            raise Mistake(f"--bind {binding}: {error}") from error
        bound[name] = Path(path)
    return bound
