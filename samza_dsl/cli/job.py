"""The command that shows the job model of an application: its options, and who runs which task where."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from planner.model.flow import counted
from runtime.job.job_model import Job, TaskOfJob, job_of
from samza_dsl.cli.checkpoint import AppArgument, known, named
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.scale import history

job = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at how an application is run.")


# Typer would make a lone command the command of its group: `job`, without `show`.
@job.callback()
def commands() -> None:
    """Look at how an application is run."""


@job.command()
def show(
    target: AppArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show the job model as it is now: options, containers and their hosts, and which partitions each task reads."""
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        found = job_of(place, known(place, app))
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        else:
            _print(found)


job.command("history")(history)


def _print(found: Job) -> None:
    model = f", job model {found.model}" if found.model else ""
    say(f"{found.app} on {found.environment}, generation {found.generation}{model}\n")
    if found.options is not None:
        options = msgspec.structs.asdict(found.options)
        print_rows([Column("option"), Column("value")], [[name, str(value)] for name, value in options.items()])
        say("")
    if found.containers:
        rows = [[one.name, one.host, counted(len(one.tasks), "task")] for one in found.containers]
        print_rows([Column("container"), Column("host"), Column("")], rows)
    else:
        say("no container is known to live")
    say("")
    has_standbys = any(one.standby for one in found.tasks)
    columns = [Column("task", right=True), Column("container"), Column("host"), Column("reads")]
    columns += [Column("standby")] if has_standbys else []
    print_rows(columns, (_row(one)[: len(columns)] for one in found.tasks))


def _row(task: TaskOfJob) -> list[str]:
    reads = ", ".join(f"{stream}:{partition}" for stream, partition in task.reads)
    return [task.name, task.container or "-", task.host or "-", reads, ", ".join(task.standby) or "-"]
