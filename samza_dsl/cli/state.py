"""The commands on the state of single operators: it is looked at, written to files, changed, moved and dropped."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer

from planner.model.flow import counted
from planner.model.graph import Graph
from planner.model.plan import Plan
from runtime.encoding.json_text import to_json
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import SamzaError
from runtime.opening.deletion import check_not_shared
from runtime.opening.rewind import check_move, no_state_error
from runtime.opening.stored_state import CHANGING, STAGED, StoredOperator, finish, forget, move, stored
from runtime.ports.environment import Environment, SnapshotEnvironment, typed
from runtime.ports.state import StateSnapshot
from runtime.stored_state.entries import OPERATOR, TASK, VALUE, Row, Stored, StoredEntries, entries_of
from runtime.stored_state.replacement import check_convert, converted, imported
from runtime.stored_state.row_files import check_suffix, read_lines, read_rows, write_lines, write_rows
from runtime.systems.connectors.places import pulled_places
from samza_dsl.application.loading import load_function
from samza_dsl.cli.checkpoint import AppArgument, known
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import plan_of
from samza_dsl.cli.settings import loaded
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
            owned_here(place, app)
            found = {one.operator: one for one in stored(place, app)}
        # All of them are looked at before any is dropped.
        for operator in operators:
            if operator not in found:
                raise no_state_error(app, operator, found)
        what = ", ".join(f"{_said(found[operator])} of {operator!r}" for operator in operators)
        confirm(f"Drop {what} in {app!r} in {place}?", yes)
        owned_here(place, app)
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
        app, planned = planned_of(target, place, f"state move app.py {old} {new}")
        owned_here(place, app)
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
            app, planned = planned_of(target, place, "state import app.py --from FILE")
            owned_here(place, app)
            confirm(f"Replace state of {app!r} in {place} by what {file} has?", yes)
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
        app, planned = planned_of(target, place, f"state convert app.py {operator} {function}")
        with told(loading=True):
            change = load_function(function)
        owned_here(place, app)
        check_convert(place, *planned, operator)
        confirm(f"Convert the state of {operator!r} of {app!r} in {place} by {function}?", yes)
        assert isinstance(place, SnapshotEnvironment), "a place of commands"
        with closing(place.snapshot(app)) as snapshot:
            before, now = converted(place, *planned, operator, entries_of(snapshot, operator), change)
        kept = "" if before == now else f", {before - now:,} of which are dropped"
        say(f"{app} has converted {_entries(before)} of {operator!r}{kept}")


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


def planned_of(
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
        return app.name, plan_of(app, place, bind)


def confirm(question: str, yes: bool) -> None:
    """Ask, unless that was answered before; raises `Mistake` where the answer is no."""
    if not yes and not typer.confirm(question):
        raise Mistake("nothing was changed")


def owned_here(place: Environment, app: str) -> None:
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
