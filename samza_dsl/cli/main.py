"""The command line: run and plan applications, look at streams, checkpoints and what else is kept."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from runtime.model.garbage import collector_resting


class Command(NamedTuple):
    """A command as `--help` lists it, and its place: a module of this folder, and the name in it."""

    module: str
    name: str
    summary: str


COMMANDS = {
    "run": Command("run", "run", "Run an application until its inputs end, or Ctrl-C."),
    "drain": Command("run", "drain", "Empty what lies between an application's stages."),
    "reprocess": Command("reprocess", "reprocess", "Compute the results of history anew."),
    "take-over": Command("reprocess", "take_over", "Let an application go on from a handover."),
    "evolve": Command("evolve", "evolve", "Compare a program with what has run, and change its state."),
    "fork": Command("reprocess", "fork", "Run a changed application beside the live one."),
    "diff": Command("reprocess", "diff", "Compare the results in two streams."),
    "config": Command("settings", "config", "Show each setting of a run, and where it is said."),
    "plan": Command("plan", "plan", "Show how an application will run."),
    "reset": Command("checkpoint", "reset", "Drop an application's positions and state."),
    "delete": Command("job", "delete", "Mark an application as deleted."),
    "gc": Command("job", "gc", "Remove what deleted applications have left."),
    "verify": Command("backup", "verify", "Look at every page and record of a data directory."),
    "backup": Command("backup", "backup", "Back up a data directory that is in use."),
    "restore": Command("backup", "restore", "Make a data directory from a backup."),
    "why": Command("streams", "why", "Tell which records led to a row of an output."),
    "streams": Command("streams", "streams", "Look at streams, write to them, end and delete them."),
    "checkpoint": Command("checkpoint", "checkpoint", "Look at how far an application has come, and move it."),
    "state": Command("state", "state", "Look at the state of operators, and change it."),
    "scale": Command("job", "scale", "Split or merge an application's tasks while it runs."),
    "ui": Command("job", "ui", "Serve a page that shows all runs live."),
    "job": Command("job", "job", "Look at how an application is run."),
    "kafka": Command("kafka", "kafka", "Run a real Kafka broker on this machine, to develop with."),
}
"""All commands, in the order in which `--help` lists them."""


class Imported(Mapping[str, object]):
    """The commands by name, as click calls them: the module of each is imported when it is asked for."""

    def __getitem__(self, name: str) -> object:
        """Import a command; a group of commands is a group here, too."""
        found = COMMANDS[name]
        from samza_dsl.cli.settings import settling

        command = getattr(import_module(f"samza_dsl.cli.{found.module}"), found.name)
        if isinstance(command, Typer):
            command = _settling(command, name, settling)
            group = get_group(command)
            group.name = name
            return group
        alone = Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name)(settling(command, name))
        return get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _settling(group: Typer, name: str, settling: Callable[[Callable[..., None], str], Callable[..., None]]) -> Typer:
    """Return a group whose commands take settings from files and variables; the one given stays as it is."""
    found = copy(group)
    found.registered_commands = [copy(one) for one in group.registered_commands]
    for one in found.registered_commands:
        assert one.callback is not None, "a command is a function"
        one.name = one.name or one.callback.__name__.replace("_", "-")
        one.callback = settling(one.callback, f"{name} {one.name}")
    return found


class LateCommands(TyperGroup):
    """The group of all commands: `--help` imports none of them, as most import all that runs an application."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Read only: nobody adds a command but here.
        self.commands = cast("Any", Imported())

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of all commands, in their order."""
        return [*COMMANDS]

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """Write the list of commands into the help, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


commands = Typer(
    name="samza-dsl",
    cls=LateCommands,
    help="Run and plan stream pipelines, and look at what they read and write.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    # Errors are told by `told`; a bug of ours is shown by Python, with all that it has.
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    """Print the version that the package's metadata has, and end; the exit code is 0."""
    if asked:
        # Imported late, as the commands are.
        from samza_dsl.cli.errors import Mistake, told
        from samza_dsl.cli.output import say

        with told():
            try:
                say(f"samza-dsl {version('samza-dsl')}")
            except PackageNotFoundError:
                raise Mistake("samza-dsl is not installed, so it has no version: pip install samza-dsl") from None
        raise typer.Exit


@commands.callback()
def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="SAMZA_DSL_CONFIG",
            help="A file of settings, in place of samza-dsl.toml or pyproject.toml here.",
        ),
    ] = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    ctx.obj = (config, os.environ)


def main() -> None:
    """Run the command line, in a process that is there for it."""
    named = next((argument for argument in sys.argv[1:] if argument in COMMANDS), None)
    if named is not None:
        with collector_resting():
            import_module(f"samza_dsl.cli.{COMMANDS[named].module}")
    # What was imported is in use to the end: to look through it for cycles, then and at the end, is a fifth of the
    # processor's time of a short command.
    gc.freeze()
    commands()
