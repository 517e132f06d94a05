"""The command that runs an application, with a view of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from runtime.assembly.bindings import letters_of
from runtime.assembly.distinct_places import ANOTHER
from runtime.model.errors import SamzaError
from runtime.model.metrics import Metrics
from runtime.model.sizing import ByLoad
from runtime.model.state_choice import Forget
from runtime.model.urls import shown_url
from runtime.spark.session import Spark
from runtime.systems.connectors.schemes import connected_sink, connected_source, is_connected
from runtime.systems.files.files import check_on_this_machine, open_sink, open_source
from runtime.systems.files.places.locations import is_remote, local_path
from runtime.systems.files.places.tables import check_written_anywhere, into_table, only_on_spark
from runtime.systems.host.addresses import ANY_PORT, address_of, advertised
from runtime.systems.kafka.client.topic import topic_of
from samza_dsl.application.app import App
from samza_dsl.application.run_request import RunRequest, served
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, cluster_at, options_in
from samza_dsl.cli.errors import SAID_ELSEWHERE, Mistake, told
from samza_dsl.cli.settings import loaded

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="The file of the application, as app.py or app.py:name; or its module.")
]
StartOption = Annotated[bool, typer.Option("--from-start", help="Read all inputs from their start again.")]
NowOption = Annotated[bool, typer.Option("--until-now", help="Stop at what the inputs hold now.")]
DrainOption = Annotated[
    bool, typer.Option("--drain", help="Read no more of the inputs, empty what lies between stages, and end.")
]
StateOption = Annotated[
    Literal["reset", "keep"] | None,
    typer.Option(help="With --from-start: drop the state; or keep it, so that records may be late."),
]
ForgetOption = Annotated[
    list[str] | None,
    typer.Option(metavar="OP", help="Drop the state of an operator that does not fit the application any more."),
]
BindOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH",
        help="Read or write a file (.jsonl, .csv, .parquet), a Kafka topic (kafka://HOST:PORT/TOPIC), or what a "
        "connector has (sqlite:///FILE?table=NAME, postgres://, duckdb://), instead; read a folder, a glob or a URL, "
        "or what comes to one (growing:FOLDER), and write files into one (rolling:FOLDER); and on Spark a table "
        "(table:NAME, delta:PATH, iceberg:NAME).",
    ),
]
ContainersOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Share the tasks among so many processes.", show_default=True)
]
JoinOption = Annotated[
    bool, typer.Option("--join", help="Share the tasks of the run in containers that goes on here, and begin none.")
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
AutosizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="min=N,max=N",
        help="Run in more containers while it is behind, and in fewer while they have little to do.",
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
MetricsOption = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST]:PORT",
        help="Serve /metrics for Prometheus, /livez and /readyz; to this machine alone unless a host is given.",
    ),
]
TokenOption = Annotated[
    Path | None, typer.Option("--metrics-token-file", metavar="FILE", help="Show metrics to who has the token in it.")
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="With --environment: the address at which other machines ask for state here, if it is not the machine's.",
    ),
]
ReadyLagOption = Annotated[
    int | None,
    typer.Option("--ready-lag", min=0, metavar="N", help="Be ready while no more records than that wait to be read."),
]
TelemetryOption = Annotated[
    bool, typer.Option("--opentelemetry", help="Tell metrics and spans to OpenTelemetry's providers of the program.")
]
UI_ADDRESS = ":9465"
UiAddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        "--ui-address",
        metavar="[HOST]:PORT",
        help="Where to serve it; this machine alone unless a host is given.",
    ),
]
UiOption = Annotated[bool, typer.Option("--ui", help="Serve a page that shows the run live as well, at :9464/.")]
ActionsOption = Annotated[
    bool,
    typer.Option("--ui-allow-actions", help="Let who sees the page commit, stop, scale, and send dead letters again."),
]
ReplicaOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep up a copy of the data directory there, on another disk, for `restore`."),
]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")]


def run(
    target: AppArgument,
    from_start: StartOption = False,
    until_now: NowOption = False,
    drain: DrainOption = False,
    state: StateOption = None,
    forget: ForgetOption = None,
    bind: BindOption = None,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    containers: ContainersOption = 1,
    join: JoinOption = False,
    host_id: HostOption = None,
    placement: PlacementOption = "sticky",
    standby: StandbyOption = 0,
    autosize: AutosizeOption = None,
    on: OnOption = None,
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    end: EndOption = False,
    metrics: MetricsOption = None,
    metrics_token_file: TokenOption = None,
    advertise: AdvertiseOption = None,
    ready_lag: ReadyLagOption = None,
    opentelemetry: TelemetryOption = False,
    ui: UiOption = False,
    ui_allow_actions: ActionsOption = False,
    replica: ReplicaOption = None,
    data: DataOption = DEFAULT,
    traceback: TracebackOption = False,
) -> None:
    """Run an application until its inputs end, or Ctrl-C: it then completes what it began, and commits.

    What it has committed it does not do again. A second Ctrl-C stops at once, and loses nothing either.

    Exit codes: 0 when it has ended or was stopped, with all committed; 1 when it has failed; 2 for a mistake in the
    application or in the options, before anything was run; N when a function has called sys.exit(N), and 130 when one
    has raised KeyboardInterrupt; 128 + N when the signal N has killed it.
    """
    with told(whole=traceback, loading=True):
        app = loaded(target)
    with told(whole=traceback):
        _check_where_it_begins(on, from_start, drain, state, forget)
        _check_on_spark(on, from_start or (until_now and not checkpoint) or containers > 1 or join)
        # Options that would do nothing are refused: who says one takes it to hold.
        _check_about_spark(on, master, checkpoint, end)
        sizing = _sizing_said(autosize, on is None and not (until_now or drain))
        options = options_in(kafka_options)
        bound = bindings_of(app, bind or [], options, on=on, writes_directories=checkpoint is not None)
        cluster = cluster_at(environment, options) if environment is not None else None
        served_at = _metrics_said(metrics, metrics_token_file, ready_lag, opentelemetry, ui, ui_allow_actions)
        served_at = _advertised(served_at, advertise, on_brokers=cluster is not None)
        request = RunRequest(data, environment=cluster, bind=bound, until_now=until_now or drain, live=True)
        copied_to = _replica_said(replica, on is None and cluster is None)
        request = replace(request, drains=drain, metrics=served_at, replica=copied_to)
        if on is not None:
            served(app, replace(request, on=Spark(master=master, checkpoint=checkpoint, end=end)))
            return
        several = containers > 1 or sizing is not None or join
        host_id = _host_said(host_id, cluster is not None)
        _check_about_containers(cluster is not None, placement, standby, several)
        if join and (from_start or drain or sizing is not None):
            raise Mistake(
                "--join is about a run that goes on: leave --from-start, --drain and --autosize to its beginner"
            )
        kept = Forget(*forget) if forget else state
        request = replace(request, from_start=from_start, state=kept, containers=containers, join=join)
        served(app, replace(request, host_id=host_id, placement=placement, standby=standby, autosize=sizing))


def _check_on_spark(on: str | None, is_of_here: bool) -> None:
    if on is not None and is_of_here:
        raise Mistake(
            "--on spark reads what the inputs hold from their start, and shares tasks by itself: leave "
            "--from-start, --until-now, --containers and --join out; with --checkpoint it may be --until-now"
        )


def _host_said(host_id: str | None, on_brokers: bool) -> str | None:
    if host_id is None or on_brokers:
        return host_id
    if "--host-id" in SAID_ELSEWHERE.get({}):
        return None
    raise Mistake("--host-id tells machines apart that share a cluster: add --environment, or leave it out")


def _check_about_containers(on_brokers: bool, placement: str, standby: int, several: bool) -> None:
    if placement != "sticky" and not several:
        raise Mistake("--placement is about tasks that containers share: add --containers, or leave it out")
    if standby and not (on_brokers and several):
        raise Mistake(
            "--standby is about machines that share tasks: add --environment and --containers, or leave it out"
        )


def _sizing_said(said: str | None, can_be: bool) -> ByLoad | None:
    """Return how a run is to be sized: `min=1,max=8`, and `behind_s=` if it is not ten seconds."""
    if said is None:
        return None
    if not can_be:
        raise Mistake("--autosize is for a run in containers that goes on: give --containers, or leave it out")
    pairs = [one.partition("=") for one in said.split(",")]
    try:
        return msgspec.convert({name.strip(): value.strip() for name, _, value in pairs}, ByLoad, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise Mistake(f"--autosize {said}: {error}: write --autosize min=1,max=8") from None


def drain(
    target: AppArgument,
    containers: ContainersOption = 1,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    data: DataOption = DEFAULT,
    traceback: TracebackOption = False,
) -> None:
    """Empty what lies between an application's stages: process it, read no more of its inputs, and end.

    It is the program that has run: end its run first. No record is between stages then, so that the next version may
    hand on what it likes there. State, timers and windows stay as they are, and inputs go on where they were.
    """
    run(
        target,
        drain=True,
        containers=containers,
        environment=environment,
        kafka_options=kafka_options,
        data=data,
        traceback=traceback,
    )


def _check_where_it_begins(
    on: str | None, from_start: bool, drain: bool, state: str | None, forget: list[str] | None
) -> None:
    if state is not None and not from_start:
        raise Mistake("--state says what becomes of the state in a rewind: add --from-start, or leave it out")
    if forget and from_start:
        raise Mistake("--forget is about a run that goes on where it was: leave --from-start or --forget out")
    if on is not None and forget:
        raise Mistake("--forget is about state here, and Spark's lies in its checkpoint: leave it out")
    if drain and (from_start or on is not None):
        raise Mistake("--drain goes on where a run here was, and reads nothing: leave --from-start and --on out")


def _metrics_said(
    address: str | None,
    token_file: Path | None,
    ready_lag: int | None,
    opentelemetry: bool,
    ui: bool,
    ui_allow_actions: bool,
) -> Metrics | None:
    if ui_allow_actions and not ui:
        raise Mistake("--ui-allow-actions is about the page: add --ui, or leave it out")
    address = ":9464" if ui and address is None else address
    said = [name for name, value in (("metrics-token-file", token_file), ("ready-lag", ready_lag)) if value is not None]
    # A file may say them for all commands: only who types one takes it to hold.
    said = [name for name in said if f"--{name}" not in SAID_ELSEWHERE.get({})]
    if said and address is None:
        raise Mistake(f"--{said[0]} is about what is served: add --metrics :9464, or leave it out")
    if address is None:
        return Metrics(address=None, opentelemetry=True) if opentelemetry else None
    try:
        address_of(address)
    except ValueError as error:
        raise Mistake(f"--metrics: {error}: write --metrics :9464, or --metrics 0.0.0.0:9464") from None
    found = Metrics(address=address, token_file=token_file, ready_lag=ready_lag, opentelemetry=opentelemetry, ui=ui)
    return replace(found, ui_allow_actions=ui_allow_actions)


def _replica_said(replica: Path | None, on_log: bool) -> Path | None:
    if replica is not None and not on_log:
        if "--replica" in SAID_ELSEWHERE.get({}):
            return None
        raise Mistake(
            "--replica is a copy of the embedded log: brokers keep copies of topics, and Spark has a checkpoint of its "
            "own; leave it out"
        )
    return replica


def _advertised(served_at: Metrics | None, said: str | None, on_brokers: bool) -> Metrics | None:
    """Return what is served, with the address at which others ask there."""
    if said is None or (not on_brokers and "--advertise" in SAID_ELSEWHERE.get({})):
        return served_at
    if not on_brokers or served_at is None or served_at.address is None or served_at.token_file is None:
        raise Mistake(
            "--advertise is where other machines of a cluster ask for state, who have a token: add --environment, "
            "--metrics 0.0.0.0:9464 and --metrics-token-file, or leave it out"
        )
    try:
        advertised(said, ANY_PORT)
    except ValueError as error:
        raise Mistake(f"--advertise: {error}: write --advertise HOST, or HOST:PORT") from None
    return replace(served_at, advertise=said)


def _check_about_spark(on: str | None, master: str | None, checkpoint: Path | None, end: bool) -> None:
    said = [name for name, value in (("master", master), ("checkpoint", checkpoint), ("end", end)) if value]
    if said and on is None:
        raise Mistake(f"--{said[0]} is about Spark: add --on spark, or leave it out")
    if end and checkpoint is None:
        raise Mistake("--end is about a run that goes on: add --checkpoint DIR; without one, inputs end anyway")


def bindings_of(
    app: App,
    said: list[str],
    options: Mapping[str, object],
    on: str | None = None,
    writes_directories: bool = False,
) -> dict[str, object]:
    """Return what `--bind name=path` names; Kafka's clients have `options`. Raises `Mistake` for what can't be bound.

    A run that `writes_directories` checks these itself.
    """
    graph = app.graph()
    read = {spec.stream for spec in graph.inputs.values()}
    written = {output.stream for spec in graph.specs.values() for output in spec.outputs}
    letters = letters_of(graph)
    bound: dict[str, object] = {}
    for binding in said:
        name, equals, path = binding.partition("=")
        if not equals or not path:
            raise Mistake(f"--bind {binding} names no file: write --bind flights=flights.jsonl")
        if name in bound:
            raise Mistake(f"--bind {name}=... is given twice: a stream is bound to one place")
        if name not in read | written | letters:
            known = f"it reads {', '.join(sorted(read))} and writes {', '.join(sorted(written | letters)) or 'nothing'}"
            raise Mistake(f"--bind {name}=...: the application {app.name!r} has no stream {name!r}; {known}")
        try:
            topic = topic_of(path)
            if path.startswith(ANOTHER) and name in read:
                raise SamzaError(f'an input reads the stream of its name: app.input("{path.removeprefix(ANOTHER)}")')
            if path.startswith(ANOTHER) and name in written | letters:
                bound[name] = path
                continue
            if name in letters - read - written:
                raise SamzaError(f"dead letters are bound to another stream alone: write {name}={ANOTHER}{name}-2")
            if topic is not None:
                bound[name] = replace(topic, options=options)
                continue
            if is_connected(path):
                # A run on Spark refuses it, in words about that.
                # Made once to be looked at: each process of the run makes its own.
                _ = connected_source(path) if name in read else connected_sink(path)
                bound[name] = path
                continue
            if name in read and on is not None and (is_remote(path) or only_on_spark(path)):
                bound[name] = path  # which the session opens
                continue
            if name in written and (into := into_table(path)) is not None:
                if on is None:
                    check_written_anywhere(into)
                bound[name] = into
                continue
            if name in read:
                # Opened once to be looked at: a mistyped path is told before anything begins, and with the word that
                # was typed.
                open_source(path).close()
                bound[name] = path
                continue
            check_on_this_machine(path)
            bound[name] = local_path(path)
            if not writes_directories:
                open_sink(local_path(path)).close()
        except SamzaError as error:
            raise Mistake(f"--bind {name}={shown_url(path)}: {error}") from error
    return bound
