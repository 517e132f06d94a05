"""The commands on the state of single operators: it is looked at, written to files, changed, moved and dropped."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import typer

from planner.model.flow import counted
from planner.model.graph import Graph
from planner.model.plan import Plan
from planner.picture.drawing import to_html, to_svg
from runtime.assembly.bindings import Bindings
from runtime.encoding.serdes import to_json
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Owned, SamzaError
from runtime.opening.deletion import check_not_shared
from runtime.opening.evolution import Decisions, Evolved, anew_of, evolved
from runtime.opening.rewind import check_move, no_state_error
from runtime.opening.shared_run import SharedEnvironment
from runtime.opening.stored_state import CHANGING, STAGED, StoredOperator, finish, forget, move, stored
from runtime.ports.environment import Environment, SnapshotEnvironment, typed
from runtime.ports.state import StateSnapshot
from runtime.reprocessing.ahead import Ahead
from runtime.reprocessing.backfill import Backfill, Undrained, backfill_of, over_history
from runtime.run.driver import Watched
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.spark.session import Spark, check_installed
from runtime.stored_state.entries import OPERATOR, TASK, VALUE, Row, Stored, StoredEntries, entries_of, unreadable
from runtime.stored_state.replacement import Change, check_convert, converted, imported
from runtime.stored_state.row_files import check_suffix, read_lines, read_rows, write_lines, write_rows
from runtime.systems.connectors.places import pulled_places
from samza_dsl.application.app import App
from samza_dsl.application.loading import load_function
from samza_dsl.cli.checkpoint import AppArgument, known
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import FAILED, Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import plan_of, written_to
from samza_dsl.cli.reprocess import archives_of, inputs_bound
from samza_dsl.cli.run import MasterOption, bindings_of
from samza_dsl.cli.settings import kafka_said, loaded
from samza_dsl.view.readable import watermark_of

state = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the state of operators, and change it.")

SHOWN = 20
"""The entries that are shown where nobody says how many."""
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
OperatorArgument = Annotated[str, typer.Argument(metavar="OP", help="The operator, as state list has it.")]
FileArgument = Annotated[str, typer.Argument(metavar="APP", help="The application's file, as app.py or app.py:name.")]


@state.command("list")
def list_stored(
    target: AppArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """List the operators that have stored state, with how much, as of the last commit, and what databases keep for it.

    Where APP is the application's file it is also told which of them the application still has.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, planned = _loaded(target, place)
        found = stored(place, known(place, app))
        columns = [Column("operator"), Column("keys", right=True), Column("bytes", right=True)]
        columns += [Column("tasks", right=True), Column("unread", right=True), Column("since (UTC)")]
        columns += [Column("in the plan")] * (planned is not None) + [Column("kept as")]
        print_rows(columns, [_row(one, planned) for one in found])
        for one in found:
            if one.lost:
                drop = typed(place, f"state forget {app} {one.operator}")
                say(f"{one.operator} has less than was committed, as {one.lost}: {drop}")
        for pulled in pulled_places(place, app):
            say(pulled.told(app))


@state.command("forget")
def forget_stored(
    target: AppArgument,
    operators: Annotated[list[str], typer.Argument(metavar="OP...", help="The operators, as state list has them.")],
    yes: YesOption = False,
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
        check_not_shared(place, known(place, app))
        # Before it is owned: the state of an owner is brought here, which can't be where some of it is lost.
        found = {one.operator: one for one in stored(place, app)}
        if place.checkpoints(app).get(CHANGING, Checkpoint(0)).meanings:
            _own(place, app)
            found = {one.operator: one for one in stored(place, app)}
        # All of them are looked at before any is dropped.
        for operator in operators:
            if operator not in found:
                raise no_state_error(app, operator, found)
        what = ", ".join(f"{_said(found[operator])} of {operator!r}" for operator in operators)
        _confirm(f"Drop {what} in {app!r} in {place}?", yes)
        _own(place, app)
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
        app, planned = _planned(target, place, f"state move app.py {old} {new}")
        _own(place, app)
        check_move(place, *planned, old, new)
        move(place, app, old, new)
        say(f"{app} has moved the state of {old!r} to {new!r}")


@state.command("show")
def show_stored(
    target: AppArgument,
    operator: OperatorArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many entries at most.")] = SHOWN,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show entries of an operator's state as of the last commit, while the application runs or not.

    All kinds are shown: states, lists, maps and timers, windows, rows of joins and tables. Values are as JSON; what
    that has no form for is an object with a word under "$".
    """
    with told(), opened(data, environment, kafka_options) as place, _looked_at(target, place) as look:
        rows = look.rows(operator)
        print_entries(islice(rows, limit))
        if next(rows, None) is not None:
            say(f"... and more: --limit N shows them, and {look.typed(f'state export {target} {operator}')} has all")


@state.command("get")
def get_stored(
    target: FileArgument,
    operator: OperatorArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as JSON or as plain text.")],
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Print all that an operator keeps of a key as of the last commit, as JSON lines; exit 1 where it keeps nothing.

    It looks at every entry of the operator, as timers and windows lie by time.
    """
    with told(), opened(data, environment, kafka_options) as place, _looked_at(target, place) as look:
        found = 0
        for row in look.rows_of_key(operator, key):
            say(to_json(row).decode())
            found += 1
        if not found:
            raise SamzaError(f"{operator!r} of {look.app!r} keeps nothing of the key {key!r}")


@state.command("export")
def export_stored(
    target: AppArgument,
    operators: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="The operators; without any, all that have state.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="A file .jsonl or .parquet, in place of printing it.")
    ] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Write the state of operators as of one commit, as JSON lines or Parquet, while the application runs or not.

    On Kafka each task is as of its own last commit. A file is there as a whole or not at all; state import takes it.
    """
    with told():
        if file is not None:
            check_suffix(file)
        with opened(data, environment, kafka_options) as place, _looked_at(target, place) as look:
            chosen = operators or look.operators
            for operator in chosen:
                look.check(operator)

            def rows() -> Iterator[Row]:
                for operator in chosen:
                    yield from look.rows(operator)

            if file is None:
                write_lines(sys.stdout.buffer, rows())
                return
            count = write_rows(file, rows)
            say(f"{file} has {_entries(count)} of {', '.join(chosen) or 'no operator'}")


@state.command("import")
def import_stored(
    target: FileArgument,
    operators: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="The operators; without any, all that the file has.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file .jsonl or .parquet, in place of JSON lines.")
    ] = None,
    yes: YesOption = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Replace the state of operators by the entries of a file, in an application that must not be running.

    All of it is replaced at once: what the file does not have is gone, and where the command is killed all is as it
    was, or done. Entries go to the task of their key, whatever task the file says.
    """
    with told():
        if file is not None:
            check_suffix(file)
        elif not yes:
            raise Mistake("what is read from the standard input can't be asked about: say --yes, or --from FILE")
        with opened(data, environment, kafka_options) as place:
            app, planned = _planned(target, place, "state import app.py --from FILE")
            _own(place, app)
            _confirm(f"Replace state of {app!r} in {place} by what {file} has?", yes)
            left = Counter[str]()

            def chosen() -> Iterator[tuple[str, Row]]:
                for where, row in read_lines(sys.stdin.buffer, "stdin") if file is None else read_rows(file):
                    if not operators or row.get(OPERATOR) in operators:
                        yield where, row
                    else:
                        left[str(row.get(OPERATOR))] += 1

            counts = imported(place, *planned, chosen())
            told_of = ", ".join(f"{_entries(count)} of {one!r}" for one, count in counts.items())
            others = ", ".join(f"{_entries(count)} of {one!r}" for one, count in left.items())
            say(f"{app} has {told_of or 'what it had: no entry was given'}{others and f'; left out: {others}'}")


@state.command("convert")
def convert_stored(
    target: FileArgument,
    operator: OperatorArgument,
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="A function of a StateEntry: module:name, or file.py:name.")
    ],
    yes: YesOption = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Replace each entry of an operator's state by what a function makes of it; the application must not be running.

    The function is called with a StateEntry for each state, window, row or value of a list or map, and returns
    entry.of(value), or None to drop it. Where it raises, or the command is killed before its end, all is as it was.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, planned = _planned(target, place, f"state convert app.py {operator} {function}")
        with told(loading=True):
            change = load_function(function)
        _own(place, app)
        check_convert(place, *planned, operator)
        _confirm(f"Convert the state of {operator!r} of {app!r} in {place} by {function}?", yes)
        assert isinstance(place, SnapshotEnvironment), "a place of commands"
        with closing(place.snapshot(app)) as snapshot:
            before, now = converted(place, *planned, operator, entries_of(snapshot, operator), change)
        kept = "" if before == now else f", {before - now:,} of which are dropped"
        say(f"{app} has converted {_entries(before)} of {operator!r}{kept}")


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
        known(place, (planned := _planned(target, place, "evolve app.py", live)[1])[0].app)
        if not apply:
            _check_for_apply([*(forget_said or []), *(convert or [])], was, html or svg)
        unread = _unreadable(place, planned)
        said = _decisions(planned, forget_said, convert, again, keep, unread)
        before = None if was is None else _planned(was, place, "evolve app.py --was app-before.py", live)[1][0]
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
        _own(place, app)  # which says what is in the way
    _confirm(f"{app}: {'; '.join(words)}?", asked.yes)
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
        _own(place, app)
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
        _confirm(f"{app}: lets the program that has run read and write what is left first?", asked.yes)
        if asked.former(place).stopping:
            raise Mistake("it was stopped, and nothing was changed") from None
        say(f"{app}: the program that has run has read and written what was left")
        _own(place, app)
        return _decided(place, pipeline, planned, asked)


def _confirm(question: str, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        raise Mistake("nothing was changed")


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


class _Look(NamedTuple):
    """A look at the state of an application, whose plan is known where its file was named."""

    place: Environment
    app: str
    planned: tuple[Plan, Graph] | None
    snapshot: StateSnapshot

    @property
    def operators(self) -> list[str]:
        """The operators that have state."""
        return [store for store in self.place.stores(self.app) if not store.startswith(STAGED)]

    def typed(self, words: str) -> str:
        return typed(self.place, words)

    def check(self, operator: str) -> None:
        """Raise SamzaError where an operator has no state."""
        if operator not in self.operators:
            raise no_state_error(self.app, operator, self.operators)

    def rows(self, operator: str) -> Iterator[Row]:
        """Yield the entries of an operator."""
        form, entries = self._of(operator)
        return map(form.row, entries)

    def rows_of_key(self, operator: str, text: str) -> Iterator[Row]:
        """Yield the entries of a key as it is typed."""
        form, entries = self._of(operator)
        if self.planned is None or operator not in self.planned[1].specs:
            raise Mistake(f"{operator!r} is in no plan, so that nobody knows where its keys lie: export it")
        keys = form.keys_said(text)
        return (form.row(one) for one in entries if any(form.has_key(one, key) for key in keys))

    def _of(self, operator: str) -> tuple[StoredEntries, Iterator[Stored]]:
        self.check(operator)
        plan, graph = self.planned or (None, None)
        return StoredEntries(plan, graph, operator), entries_of(self.snapshot, operator)


@contextmanager
def _looked_at(target: str, place: Environment) -> Iterator[_Look]:
    """Look at the state of an application as of one commit."""
    app, planned = _loaded(target, place)
    known(place, app)
    assert isinstance(place, SnapshotEnvironment), "a place of commands"
    if place.checkpoints(app).get(CHANGING, Checkpoint(0)).meanings:
        raise SamzaError(
            f"a change of the state of {app!r} has begun and is not at its end: look again when it is; where it was "
            "killed, the next run or change of state completes it"
        )
    with closing(place.snapshot(app)) as snapshot:
        yield _Look(place, app, planned, snapshot)


def print_entries(rows: Iterable[Row]) -> None:
    """Print entries of state, each kind of part of their places in a column of its own."""
    found = [*rows]
    # Who asks for one operator knows it.
    left_out = (VALUE,) if len({row[OPERATOR] for row in found}) > 1 else (OPERATOR, VALUE)
    beside = [name for name in dict.fromkeys(name for row in found for name in row) if name not in left_out]
    columns = [Column(name, right=name == TASK) for name in beside]
    cells = [[*(_text(row[name]) if name in row else "" for name in beside), _text(row[VALUE])] for row in found]
    print_rows([*columns, Column(VALUE)], cells)


def _entries(count: int) -> str:
    return f"{count:,} entr{'y' if count == 1 else 'ies'}"


def _text(value: object) -> str:
    # Text as it is, unless it could be taken for something else.
    plain = isinstance(value, str) and value.isidentifier() and value not in ("null", "true", "false")
    return str(value) if plain else to_json(value).decode()


def _planned(
    target: str, place: Environment, words: str, bind: Mapping[str, object] = MappingProxyType({})
) -> tuple[str, tuple[Plan, Graph]]:
    """Return an application's name, its plan and its graph; raises `Mistake` where its file was not named."""
    app, planned = _loaded(target, place, bind)
    if planned is None:
        raise Mistake(
            f"this needs the application's file in place of {target!r}, as its plan says what an operator keeps: "
            f"{typed(place, words)}"
        )
    return app, planned


def _loaded(
    target: str, place: Environment, bind: Mapping[str, object] = MappingProxyType({})
) -> tuple[str, tuple[Plan, Graph] | None]:
    """Return an application's name, and its plan and graph where its file was named."""
    if not target.partition(":")[0].endswith(".py"):
        return target, None
    with told(loading=True):
        app = loaded(target)
        return app.name, (plan_of(app, place, bind), app.graph())


def _own(place: Environment, app: str) -> None:
    """Own an application that nobody runs, and complete what a crash has left half done; raises `Owned`."""
    check_not_shared(place, known(place, app))
    place.own(app)
    finish(place, app)


def _said(one: StoredOperator) -> str:
    if one.lost:
        return "what is left"
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
