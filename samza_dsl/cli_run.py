"""The command that runs an application, with a view of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from operators.io import Input
from runtime.bindings import outputs_of
from runtime.errors import SamzaError
from runtime.systems.files import open_sink, open_source
from samza_dsl.app import App
from samza_dsl.cli_data import DEFAULT, DataOption
from samza_dsl.cli_errors import Mistake, told
from samza_dsl.load_app import load_app

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="The file of the application, as app.py or app.py:name; or its module.")
]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")]


def run(
    target: AppArgument,
    from_start: Annotated[bool, typer.Option("--from-start", help="Read all inputs from their start again.")] = False,
    until_now: Annotated[bool, typer.Option("--until-now", help="Stop at what the inputs hold now.")] = False,
    state: Annotated[
        Literal["reset", "keep"] | None,
        typer.Option(help="With --from-start: drop the state; or keep it, so that records may be late."),
    ] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Read or write a file (.jsonl, .csv, .parquet) in a stream's place."),
    ] = None,
    containers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Share the tasks among so many processes.", show_default=True)
    ] = 1,
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
        bound = bindings_of(app, bind or [])
        how: dict[str, Any] = {"bind": bound, "from_start": from_start, "until_now": until_now, "state": state}
        app.run(data, live=True, containers=containers, **how)


def bindings_of(app: App, said: list[str]) -> dict[str, Any]:
    """Open what `--bind name=path` names; raises `Mistake` for what is no stream of the application, or no file."""
    specs = app.graph().specs.values()
    read = {spec.stream for spec in specs if isinstance(spec, Input)}
    written = {output.stream for spec in specs for output in outputs_of(spec)}
    bound: dict[str, Any] = {}
    for binding in said:
        name, equals, path = binding.partition("=")
        if not equals or not path:
            raise Mistake(f"--bind {binding} names no file: write --bind flights=flights.jsonl")
        if name in bound:
            raise Mistake(f"--bind {name}=... is given twice: a stream is bound to one file or directory")
        if name not in read | written:
            known = f"it reads {', '.join(sorted(read))} and writes {', '.join(sorted(written)) or 'nothing'}"
            raise Mistake(f"--bind {name}=...: the application {app.name!r} has no stream {name!r}; {known}")
        try:
            open_source(Path(path)).close() if name in read else open_sink(Path(path)).close()
        except SamzaError as error:
            raise Mistake(f"--bind {binding}: {error}") from error
        bound[name] = Path(path)
    return bound
