"""The command that compares a program with what has run, and changes what is kept to what the program would have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from planner.model.flow import counted
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.picture.drawing import to_html, to_svg
from runtime.assembly.bindings import Bindings
from runtime.job.pipeline import Pipeline
from runtime.model.errors import Owned
from runtime.opening.evolution import Decisions, Evolved, anew_of, evolved
from runtime.opening.rewind import check_move
from runtime.opening.shared_run import SharedEnvironment
from runtime.opening.stored_state import forget, move
from runtime.ports.environment import Environment, SnapshotEnvironment
from runtime.reprocessing.ahead import Ahead
from runtime.reprocessing.backfill import Backfill, Undrained, backfill_of, over_history
from runtime.run.driver import Watched
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.spark.session import Spark, check_installed
from runtime.stored_state.entries import entries_of, unreadable
from runtime.stored_state.replacement import Change, converted
from samza_dsl.application.app import App
from samza_dsl.application.loading import load_function
from samza_dsl.cli.checkpoint import known
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import FAILED, Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import written_to
from samza_dsl.cli.reprocess import archives_of, inputs_bound
from samza_dsl.cli.run import MasterOption, bindings_of
from samza_dsl.cli.settings import kafka_said, loaded
from samza_dsl.cli.state import FileArgument, YesOption, confirm, owned_here, planned_of


def evolve(
    target: FileArgument,
    apply: Annotated[bool, typer.Option("--apply", help="Do what is listed.")] = False,
    forget_said: Annotated[
        list[str] | None, typer.Option("--forget", metavar="OP", help="With --apply: drop the state of an operator.")
    ] = None,
    convert: Annotated[
        list[str] | None,
        typer.Option(metavar="OP=MODULE:FUNCTION", help="With --apply: convert the state of an operator."),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="Compute state anew from here on down: a function of OP was changed."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="Compute nothing anew for OP: it keeps what it has, or begins with nothing."),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="[NAME=]PATH", help="Read history from an archive, in the place of an input."),
    ] = None,
    bind: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="What the live run binds: files, or Kafka topics.")
    ] = None,
    on: Annotated[Literal["spark"] | None, typer.Option(help="Compute the history of until now on Spark.")] = None,
    master: MasterOption = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it on a page that needs no network.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it as a picture.")] = None,
    was: Annotated[
        str | None,
        typer.Option(metavar="APP", help="The program that has run: is drawn, and with --apply ends what it has left."),
    ] = None,
    yes: YesOption = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Compare a program with what has run: which operators are kept, changed, added and dropped, and what that means.

    With --apply the state of what was changed or added is computed anew from history, up to where the application has
    come: outputs of before are not written again. State of operators that were renamed is moved, and other state is
    dropped and converted as is said. Each change is done or not begun; where the command is killed, the same command
    does the rest. Without --apply nothing is changed, and the exit code is 1 where a run would be refused.
    """
    with told(), opened(data, environment, kafka_options) as place:
        live = {} if not bind else inputs_bound(loaded(target), bind, kafka_said())
        known(place, (planned := planned_of(target, place, "evolve app.py", live)[1])[0].app)
        if not apply:
            _check_for_apply([*(forget_said or []), *(convert or [])], was, html or svg)
        unread = _unreadable(place, planned)
        said = _decisions(planned, forget_said, convert, again, keep, unread)
        before = None if was is None else planned_of(was, place, "evolve app.py --was app-before.py", live)[1][0]
        if html is not None or svg is not None:
            _draw(planned[0], _marks(place, planned, live, said), before, html, svg)
        if not apply:
            raise typer.Exit(FAILED if _told_of(place, planned, live, said, unread) else 0)
        with told(loading=True):
            changes = {id: load_function(function) for id, function in map(_conversion, convert or ())}
            application = loaded(target)
            former = None if was is None else _former(loaded(was), bind)
            archives = archives_of(application, sources)
        asked = _AskedEvolution(said, changes, live, archives, on is not None, master, yes, former)
        _apply(place, application.pipeline(), planned, asked)
        if _told_of(place, planned, live, Decisions(), _unreadable(place, planned)):
            raise typer.Exit(FAILED)


def _check_for_apply(changed: Collection[str], was: str | None, drawn: Path | None) -> None:
    """Raise `Mistake` for what is about `--apply` where that is not said."""
    if changed:
        raise Mistake("--forget and --convert are about what --apply does: add it, or leave them out")
    if was is not None and drawn is None:
        raise Mistake("--was is drawn, or ends what it has left: add --html FILE, --svg FILE or --apply")


def _draw(plan: Plan, marks: dict[str, str], was: Plan | None, html: Path | None, svg: Path | None) -> None:
    """Draw a plan with what becomes of its operators, beside the one that it `was`, into those files that are given."""
    for file, draw in ((html, to_html), (svg, to_svg)):
        if file is not None:
            written_to(file, draw(plan, marks=marks, was=was))


def _marks(
    place: Environment, planned: tuple[Plan, Graph], live: Mapping[str, object], said: Decisions
) -> dict[str, str]:
    """Return the words on what becomes of each operator that has run, or that keeps state."""
    found = {one.operator: one for one in _compared(place, planned, live)}
    anew = anew_of(planned[1], found, said)
    return {
        id: " · ".join(
            [
                one.what,
                *([counted(one.entries, "key")] if one.entries else []),
                *(["computed anew"] if id in anew else []),
            ]
        )
        for id, one in found.items()
    }


class _AskedEvolution(NamedTuple):
    """The request that a program's change be applied, with what the live run binds and where history lies elsewhere.

    `former` brings what has run to its end, where that has something to read or to write before.
    """

    said: Decisions
    changes: Mapping[str, Change]
    live: Mapping[str, object]
    archives: Mapping[str, object]
    on_spark: bool
    master: str | None
    yes: bool
    former: Callable[[Environment], Watched] | None


def _former(app: App, bind: Collection[str] | None) -> Callable[[Environment], Watched]:
    """Return what lets the program that has run empty what lies between its stages, and write what is due."""
    bound = bindings_of(app, [*(bind or [])], kafka_said())
    settings = RunSettings(bind=bound, until_now=True, drains=True)
    return lambda place: run_blocking(app.pipeline(), place, settings)


def _apply(place: Environment, pipeline: Pipeline, planned: tuple[Plan, Graph], asked: _AskedEvolution) -> None:
    """Do what a program's change asks for, after its user has said yes; what is computed is so beside a live run."""
    app, ahead = planned[0].app, _ahead(place, pipeline, asked)
    is_live = not _is_ours(place, app)
    if is_live:
        backfill, steps = _decided(place, pipeline, planned, asked, is_ahead=True)
    else:
        backfill, steps = _at_rest(place, pipeline, planned, asked)
    words = [*([_history(backfill)] if backfill else []), *(step.says for step in steps)]
    if not words:
        if not is_live:
            ahead.drop()
        say(f"nothing is to be done for the state of {app}")
        return
    if is_live and backfill is None:
        owned_here(place, app)  # which says what is in the way
    confirm(f"{app}: {'; '.join(words)}?", asked.yes)
    if is_live:
        _follow(place, pipeline, planned, asked, ahead)
        backfill, steps = _at_rest(place, pipeline, planned, asked)
    # First: where a function of the user's fails on history, nothing is changed.
    if backfill is not None:
        if not ahead.join(backfill):
            raise Mistake("it was stopped, and nothing was changed")
        say(f"{app}: {_history(backfill)}; outputs of before are not written again")
    for step in steps:
        _take(place, planned, step, asked.changes)
        say(f"{app}: {step.says}")


def _ahead(place: Environment, pipeline: Pipeline, asked: _AskedEvolution) -> Ahead:
    """Return what computes history: here, or all that there is at first on Spark, and then here."""
    run = partial(over_history, place)
    if not asked.on_spark:
        return Ahead(place, pipeline, run)
    check_installed()
    from runtime.spark.recomputation import backfill_on_spark

    return Ahead(place, pipeline, run, partial(backfill_on_spark, place, on=Spark(master=asked.master)))


def _is_ours(place: Environment, app: str) -> bool:
    """Own an application where no run has it; what a crash has left half done is completed."""
    # On brokers to own it fences the run that has it.
    if isinstance(place, SharedEnvironment) and place.runs(app).is_run():
        return False
    try:
        owned_here(place, app)
    except Owned:
        return False
    return True


def _follow(
    place: Environment, pipeline: Pipeline, planned: tuple[Plan, Graph], asked: _AskedEvolution, ahead: Ahead
) -> None:
    """Compute beside the live run until that has ended."""
    app = planned[0].app

    def look() -> Backfill:
        found, _ = _decided(place, pipeline, planned, asked, is_ahead=True)
        assert found is not None, "a run does not go back"
        return found

    def tell(backfill: Backfill) -> None:
        say(f"{app}: {_history(backfill)} beside its run: stop that, and it joins where the run ends")

    if not ahead.follow(look, lambda: _is_ours(place, app), tell):
        raise Mistake("it was stopped, and nothing was changed")


def _decided(
    place: Environment,
    pipeline: Pipeline,
    planned: tuple[Plan, Graph],
    asked: _AskedEvolution,
    *,
    is_ahead: bool = False,
) -> tuple[Backfill | None, list[_Step]]:
    """Return what is to be computed, None where nothing was read that operators could have missed, and what else is."""
    found = {one.operator: one for one in _compared(place, planned, asked.live)}
    steps = _steps(found, asked.said, asked.changes)
    if not (operators := anew_of(planned[1], found, asked.said)):
        return None, steps
    backfill = backfill_of(place, pipeline, operators, {**asked.live, **asked.archives}, is_ahead=is_ahead)
    return (backfill if backfill.reads else None), steps


def _at_rest(
    place: Environment, pipeline: Pipeline, planned: tuple[Plan, Graph], asked: _AskedEvolution
) -> tuple[Backfill | None, list[_Step]]:
    """Return the same of what this process owns, where needed behind what the program that has run had still to do."""
    try:
        return _decided(place, pipeline, planned, asked)
    except Undrained:
        if asked.former is None:
            raise
        app = planned[0].app
        confirm(f"{app}: lets the program that has run read and write what is left first?", asked.yes)
        if asked.former(place).stopping:
            raise Mistake("it was stopped, and nothing was changed") from None
        say(f"{app}: the program that has run has read and written what was left")
        owned_here(place, app)
        return _decided(place, pipeline, planned, asked)


def _history(backfill: Backfill) -> str:
    return f"computes {_named(backfill.operators)} from history ({backfill.told})"


def _decisions(
    planned: tuple[Plan, Graph],
    forgotten: Collection[str] | None,
    convert: Collection[str] | None,
    again: Collection[str] | None,
    kept: Collection[str] | None,
    unread: Collection[str],
) -> Decisions:
    """Return what a user says of operators; raises `Mistake` for one that the program does not have.

    Those whose state can't be read are computed again where nothing else is said.
    """
    plan, graph = planned
    for id in (*(again or ()), *(kept or ())):
        if id not in graph.specs:
            raise Mistake(f"{plan.app} has no operator {id!r}: it has {', '.join(graph.specs)}")
    converted = [_conversion(one)[0] for one in convert or ()]
    anew = {*unread} - {*(forgotten or ()), *converted, *(kept or ())}
    return Decisions(forgotten or (), converted, [*(again or ()), *sorted(anew)], kept or ())


class _Step(NamedTuple):
    """A change of the state of one operator, and the words for it."""

    does: str
    operator: str
    says: str
    heir: str = ""


def _steps(found: Mapping[str, Evolved], said: Decisions, changes: Mapping[str, Change]) -> list[_Step]:
    """Return what is to be done beside; raises `Mistake` for what nobody has said, and for what is said of others."""
    for id in (*said.forgotten, *changes):
        if id not in found:
            raise Mistake(f"{id!r} has no state: see samza-dsl evolve without --apply")
    # Where the command was killed, what it has done is not done again.
    steps = [_Step("forget", id, f"drops the state of {id!r}") for id in said.forgotten if found[id].entries]
    steps += [_Step("convert", id, f"converts the state of {id!r}") for id in changes]
    handled = {*said.forgotten, *changes}
    left = [one for id, one in found.items() if one.complaints and id not in handled]
    for one in left:
        if one.anew and one.operator not in said.kept:
            continue
        if not one.heir:
            instead = f"--forget {one.operator}" + f", or --convert {one.operator}=MODULE:FUNCTION" * any(
                complaint.convert for complaint in one.complaints
            )
            raise Mistake(f"{one.operator!r}: {one.complaints[0].wrong}: say {instead}; nothing was changed")
        steps.append(_Step("move", one.operator, f"moves the state of {one.operator!r} to {one.heir!r}", one.heir))
    return steps


def _take(place: Environment, planned: tuple[Plan, Graph], step: _Step, changes: Mapping[str, Change]) -> None:
    app = planned[0].app
    if step.does == "forget":
        forget(place, app, [step.operator])
    elif step.does == "move":
        check_move(place, *planned, step.operator, step.heir)
        move(place, app, step.operator, step.heir)
    else:
        assert isinstance(place, SnapshotEnvironment), "a place of commands"
        with closing(place.snapshot(app)) as snapshot:
            entries = entries_of(snapshot, step.operator)
            converted(place, *planned, step.operator, entries, changes[step.operator])


def _conversion(said: str) -> tuple[str, str]:
    operator, equals, function = said.partition("=")
    if not equals:
        raise Mistake(f"--convert {said} names no function: write --convert OP=module:function")
    return operator, function


def _compared(place: Environment, planned: tuple[Plan, Graph], live: Mapping[str, object]) -> list[Evolved]:
    with closing(Bindings(place, planned[1], live)) as bindings:
        return evolved(place, *planned, bindings.partition_counts(planned[1]))


def _unreadable(place: Environment, planned: tuple[Plan, Graph]) -> dict[str, str]:
    """Return why what operators of a program have kept can't be read by it, by those of which that is so."""
    plan, graph = planned
    assert isinstance(place, SnapshotEnvironment), "a place of commands"
    with closing(place.snapshot(plan.app)) as snapshot:
        kept = [id for id in place.stores(plan.app) if id in graph.specs]
        return unreadable(snapshot, plan, graph, kept)


def _told_of(
    place: Environment,
    planned: tuple[Plan, Graph],
    live: Mapping[str, object],
    said: Decisions,
    unread: Mapping[str, str],
) -> bool:
    """Print what becomes of each operator; return whether a run would be refused, or fail as it reads its state."""
    found = _compared(place, planned, live)
    columns = [Column("operator"), Column("now"), Column("keys", right=True), Column("what it means")]
    rows = []
    for one in found:
        is_unread = one.operator in unread and not one.complaints
        means = f"what it keeps can't be read: {unread[one.operator]}" if is_unread else one.means
        rows.append([one.operator, "changed" if is_unread else one.what, f"{one.entries:,}", means])
    print_rows(columns, rows)
    refused = [one for one in found if one.complaints]
    for one in refused:
        first = one.complaints[0]
        drop = f"drop it: --apply --forget {one.operator}"
        anew = "compute it anew from history: --apply" if one.anew else ""
        ways = [anew or (f"move it to {one.heir!r}: --apply" if one.heir else first.instead), first.convert, drop]
        say(f"{one.operator}: {'; or '.join(filter(None, ways))}")
    if operators := anew_of(planned[1], {one.operator: one for one in found}, said):
        say(f"--apply computes {_named(operators)} anew from history; --keep OP leaves one as it is")
    return bool(refused or unread)


def _named(operators: Iterable[str]) -> str:
    return ", ".join(map(repr, operators))
