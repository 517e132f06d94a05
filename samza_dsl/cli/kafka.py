"""The commands that run a Kafka broker on this machine, to develop and test with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from planner.model.plan import Plan
from runtime.systems.kafka.broker import broker as kafka_broker
from samza_dsl.application.app import App
from samza_dsl.cli.data import EnvironmentOption, KafkaOption, cluster_at, options_in
from samza_dsl.cli.errors import FAILED, Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.run import AppArgument, BindOption, bindings_of
from samza_dsl.cli.settings import loaded

kafka = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a real Kafka broker on this machine, and tell what an application needs on a cluster.",
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


@kafka.command()
def topics(
    target: AppArgument,
    environment: EnvironmentOption = None,
    bind: BindOption = None,
    kafka_options: KafkaOption = None,
    principal: Annotated[str, typer.Option(metavar="User:NAME", help="Who is to run the application.")] = "User:NAME",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the topics, and allow the principal what it needs.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no broker: tell by the application alone.")] = False,
) -> None:
    """Tell all topics, settings and rights that an application needs on a cluster, and the commands that make them.

    Whoever may do so types these, or this command with --apply; the application itself then needs no right to make
    topics. Topics that are there have the partitions that they have. What --bind binds elsewhere needs no topic of its
    name, but where the run keeps records on their way: those topics are told in its place.
    """
    from runtime.assembly.needed_topics import on_cluster  # aiokafka, which takes long to import
    from runtime.systems.kafka import needs as needed

    with told(loading=True):
        app = loaded(target)
    with told():
        if environment is None:
            raise Mistake(
                "what an application needs is asked of a cluster: add --environment kafka://HOST:PORT, or say it by "
                "SAMZA_DSL_ENVIRONMENT or in samza-dsl.toml"
            )
        if apply and (offline or principal == "User:NAME"):
            raise Mistake(
                "--apply asks brokers, and allows somebody: leave --offline out, and add --principal User:NAME"
            )
        cluster = cluster_at(environment, options_in(kafka_options))
        there = {} if offline else asyncio.run(needed.found_on(cluster))
        bound = bindings_of(app, bind or [], {})
        plan, in_place = on_cluster(_planned(app, there), bound, cluster.topic("any").bootstrap)
        needs = needed.needs_of(plan, cluster, principal, in_place)
        if apply:
            done = asyncio.run(needed.applied(needs, cluster))
            for line in done or ["nothing to do"]:
                say(line)
            return
        if not offline:
            needs = asyncio.run(needed.compared(needs, cluster))
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(needs)).decode())
            return
        columns = [Column("topic"), Column("role"), Column("partitions", right=True), Column("on the cluster")]
        rows = [[one.name, one.role, str(one.partitions or "?"), one.state or "-"] for one in needs.topics]
        print_rows(columns, rows)
        typer.echo("")
        for line in needs.commands(cluster.topic("any").bootstrap):
            typer.echo(line)


def _planned(app: App, there: Mapping[str, int]) -> Plan:
    """Plan an application for the topics that there are, a pattern for the largest that matches it."""
    partitions = {stream.name: there[stream.name] for stream in app.plan().streams if stream.name in there}
    for spec in app.graph().inputs.values():
        if spec.is_pattern and (counts := [count for name, count in there.items() if spec.matches(name)]):
            partitions[spec.stream] = max(counts)
    return app.plan(partitions)
