"""The command that plans an application, and draws the plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from planner.codegen import explanation
from planner.columnar.combining import combined
from planner.columnar.spark_ways import to_text
from planner.model.graph import Graph
from planner.model.plan import Plan, whole
from planner.passes import plan as make_plan
from runtime.assembly.bindings import Bindings
from runtime.encoding.formats.rows import type_of_rows
from runtime.opening.regrouping import as_run
from runtime.ports.environment import Environment
from runtime.systems.connectors.places import PulledPlace, pulled_places
from runtime.systems.connectors.schemes import promise_of
from runtime.units.driver.connected import Connected
from samza_dsl.application.app import App
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, check_of_a_cluster, exists, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.run import AppArgument, BindOption, TracebackOption, bindings_of
from samza_dsl.cli.settings import loaded


def plan(
    target: AppArgument,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that needs no network.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz' language.")] = False,
    source: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Print the Python that a stage's operators were fused into.")
    ] = None,
    on: Annotated[
        Literal["live", "spark"] | None,
        typer.Option(help="Tell what of it is compiled in a live run, or native on Spark, and why the rest is not."),
    ] = None,
    bind: BindOption = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show how an application will run: its stages, operators, streams and stores, as text or in another form.

    Streams that exist in the data directory, or on the cluster, have the partitions that they have there. With --bind
    it says what each place promises. What a database keeps for the application, as slots and triggers, is told as well.
    """
    with told(whole=traceback, loading=True):
        app = loaded(target)
    with told(whole=traceback):
        chosen = [name for name, on in {"--json": as_json, "--mermaid": mermaid, "--dot": dot}.items() if on]
        chosen += ["--source"] if source is not None else []
        chosen += ["--on"] if on is not None else []
        if len(chosen) > 1:
            raise Mistake(f"{' and '.join(chosen)} can't be printed together: choose one")
        pulled: list[PulledPlace] = []
        check_of_a_cluster(environment, kafka_options)
        if environment is None and not exists(data):
            planned, graph = app.plan(), app.graph()
        else:
            with opened(data, environment, kafka_options) as place:
                (planned, graph), pulled = plan_of(app, place), pulled_places(place, app.name)
        bound = bindings_of(app, bind or [], {})
        if on == "spark":
            # What a run there would refuse is told before it.
            Connected(app.graph(), bound, data, environment is not None)
        planned = with_places(planned, bound)
        for file, draw in ((html, planned.to_html), (svg, planned.to_svg)):
            if file is not None:
                written_to(file, draw())
        if chosen or (html is None and svg is None):
            typer.echo(_text(planned, chosen[0] if chosen else "", source))
            for one in pulled if not chosen else ():
                typer.echo(one.told(app.name))
            if on is not None:
                typer.echo("\n" + (on_spark(planned, app) if on == "spark" else live(planned, graph, app)))


def plan_of(
    app: App, environment: Environment, bind: Mapping[str, object] = MappingProxyType({})
) -> tuple[Plan, Graph]:
    """Plan an application as it is run in an environment, for the streams that exist there, and for what is bound."""
    graph = as_run(app.graph(), environment.checkpoints(app.name))
    with closing(Bindings(environment, graph, bind)) as bindings:
        counts = bindings.partition_counts(graph)
        return make_plan(graph, app.options, counts, wrapped=bool(app.around)), graph


def with_places(planned: Plan, bound: Mapping[str, object]) -> Plan:
    """Return a plan whose streams say what they are bound to, and what that promises."""
    streams = tuple(
        replace(one, bound=promise_of(bound[one.name], bool(one.written_by))) if one.name in bound else one
        for one in planned.streams
    )
    return replace(planned, streams=streams)


def live(planned: Plan, graph: Graph, app: App) -> str:
    """Return as text how each operator runs in a live run, and why it is not cheaper."""
    return explanation.to_text(planned, graph, wrapped=bool(app.around))


def on_spark(planned: Plan, app: App) -> str:
    """Return as text how each operator of a plan runs on Spark, and why it is not cheaper."""
    graph = combined(app.graph())
    streams = (one for one in planned.streams if one.role != "intermediate")
    counts = {one.name: one.partitions for one in streams if one.partitions is not None}
    planned = make_plan(graph, whole(planned.options), counts, wrapped=bool(app.around))
    kinds = {spec.op_id or "": type_of_rows(spec.value) for spec in graph.flowing}
    return to_text(planned, graph, kinds, wrapped=bool(app.around))


def _text(planned: Plan, form: str, stage: str | None) -> str:
    if stage is not None:
        known = [one.id for one in planned.stages]
        if stage not in known:
            raise Mistake(f"--source {stage}: the plan has no such stage; it has {', '.join(known)}")
        return planned.source(stage) or f"# {stage} has nothing to fuse"
    forms = {"--json": planned.to_json, "--mermaid": planned.to_mermaid, "--dot": planned.to_dot}
    return forms.get(form, planned.to_text)()


def written_to(file: Path, text: str) -> None:
    """Write a drawing to a file, and say so; raises `Mistake` where it can't be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"can't write {file}: {error.strerror}; check the path and its permissions") from error
    typer.echo(f"wrote {file}", err=True)
