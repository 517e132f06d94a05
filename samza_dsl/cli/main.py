"""The command line: run and plan applications, look at streams, checkpoints and what else is kept."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from typer import Typer

from samza_dsl.cli.checkpoint import checkpoint, reset
from samza_dsl.cli.delete import delete, gc
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.job import job
from samza_dsl.cli.kafka import kafka
from samza_dsl.cli.output import say
from samza_dsl.cli.plan import plan
from samza_dsl.cli.reprocess import reprocess, take_over
from samza_dsl.cli.run import run
from samza_dsl.cli.state import state
from samza_dsl.cli.streams import streams
from samza_dsl.cli.verify import verify

commands = Typer(
    name="samza-dsl",
    help="Run and plan stream pipelines, and look at what they read and write.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    # Errors are told by `told`; a bug of ours is shown by Python, with all that it has.
    pretty_exceptions_enable=False,
)
commands.command()(run)
commands.command()(reprocess)
commands.command("take-over")(take_over)
commands.command()(plan)
commands.add_typer(streams, name="streams")
commands.add_typer(checkpoint, name="checkpoint")
commands.add_typer(state, name="state")
commands.add_typer(job, name="job")
commands.command()(reset)
commands.command()(delete)
commands.command()(gc)
commands.command()(verify)
commands.add_typer(kafka, name="kafka")


def _print_version(asked: bool) -> None:
    """Print the version that the package's metadata has, and end; the exit code is 0."""
    if asked:
        with told():
            try:
                say(f"samza-dsl {version('samza-dsl')}")
            except PackageNotFoundError:
                raise Mistake("samza-dsl is not installed, so it has no version: pip install samza-dsl") from None
        raise typer.Exit


@commands.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line."""
    commands()
