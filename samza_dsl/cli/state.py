"""The commands on the state of single operators: what is stored, and how one's is dropped or given to another."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.model.flow import counted
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.opening.deletion import check_not_shared
from runtime.opening.rewind import check_move, no_state_error
from runtime.opening.stored_state import StoredOperator, finish, forget, move, stored
from runtime.ports.environment import Environment, typed
from samza_dsl.cli.checkpoint import AppArgument, known
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import plan_of
from samza_dsl.cli.settings import loaded
from samza_dsl.view.readable import watermark_of

state = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the state of operators, and change it.")

FileArgument = Annotated[str, typer.Argument(metavar="APP", help="The application's file, as app.py or app.py:name.")]


@state.command("list")
def list_stored(
    target: AppArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """List the operators that have stored state, with how much, as of the last commit.

    Where APP is the application's file it is also told which of them the application still has.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, planned = _loaded(target, place)
        found = stored(place, known(place, app))
        columns = [Column("operator"), Column("keys", right=True), Column("bytes", right=True)]
        columns += [Column("tasks", right=True), Column("unread", right=True), Column("since (UTC)")]
        columns += [Column("in the plan")] * (planned is not None) + [Column("kept as")]
        print_rows(columns, [_row(one, planned) for one in found])


@state.command("forget")
def forget_stored(
    target: AppArgument,
    operators: Annotated[list[str], typer.Argument(metavar="OP...", help="The operators, as state list has them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Drop the state of some operators of an application, which must not be running; all other state stays.

    Each begins with nothing and reads on from where its inputs are; a table is read anew. Of an operator that ends a
    stage, such as a partition_by, the records go that the next stage has not read.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = _loaded(target, place)
        _own(place, app)
        found = {one.operator: one for one in stored(place, app)}
        # All of them are looked at before any is dropped.
        for operator in operators:
            if operator not in found:
                raise no_state_error(app, operator, found)
        what = ", ".join(f"{_said(found[operator])} of {operator!r}" for operator in operators)
        if not yes and not typer.confirm(f"Drop {what} in {app!r} in {place}?"):
            raise Mistake("nothing was changed")
        forget(place, app, operators)
        say(f"{app} has dropped {what}")


@state.command("move")
def move_stored(
    target: FileArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The id under which the state is stored.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The id of the operator that is to have it.")],
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Give the state of an operator to another of the same kind, in an application that must not be running.

    This is what keeps the state of an operator that was renamed.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, planned = _loaded(target, place)
        if planned is None:
            raise Mistake(
                f"a move needs the application's file in place of {target!r}, as its plan says what {new!r} can hold: "
                f"{typed(place, f'state move app.py {old} {new}')}"
            )
        _own(place, app)
        check_move(place, *planned, old, new)
        move(place, app, old, new)
        say(f"{app} has moved the state of {old!r} to {new!r}")


def _loaded(target: str, place: Environment) -> tuple[str, tuple[Plan, Graph] | None]:
    """Return an application's name, and its plan and graph where its file was named."""
    if not target.partition(":")[0].endswith(".py"):
        return target, None
    with told(loading=True):
        app = loaded(target)
        return app.name, (plan_of(app, place), app.graph())


def _own(place: Environment, app: str) -> None:
    """Own an application that nobody runs, and complete what a crash has left half done; raises `Owned`."""
    check_not_shared(place, known(place, app))
    place.own(app)
    finish(place, app)


def _said(one: StoredOperator) -> str:
    said = [counted(one.entries, "key")] if one.tasks or one.unread is None else []
    return " and ".join([*said, *([f"{counted(one.unread, 'unread record')}"] if one.unread is not None else [])])


def _row(one: StoredOperator, planned: tuple[Plan, Graph] | None) -> list[str]:
    sizes = [f"{size:,}" if one.tasks else "-" for size in (one.entries, one.size_bytes, one.tasks)]
    row = [one.operator, *sizes, "-" if one.unread is None else f"{one.unread:,}"]
    # To the second: milliseconds say nothing here.
    row.append("-" if one.since_ms is None else watermark_of(one.since_ms // 1_000 * 1_000))
    if planned is not None:
        row.append("yes" if one.operator in planned[1].specs else "no")
    return [*row, one.means or "-"]
