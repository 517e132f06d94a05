"""The command line: run and plan applications, look at streams, checkpoints and what else is kept."""

from __future__ import annotations

from typer import Typer

from samza_dsl.cli_checkpoint import checkpoint, reset
from samza_dsl.cli_delete import delete, gc
from samza_dsl.cli_job import job
from samza_dsl.cli_kafka import kafka
from samza_dsl.cli_plan import plan
from samza_dsl.cli_reprocess import reprocess, take_over
from samza_dsl.cli_run import run
from samza_dsl.cli_streams import streams
from samza_dsl.cli_verify import verify

commands = Typer(
    name="samza-dsl",
    help="Run and plan stream pipelines, and look at what they read and write.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
commands.command()(run)
commands.command()(reprocess)
commands.command("take-over")(take_over)
commands.command()(plan)
commands.add_typer(streams, name="streams")
commands.add_typer(checkpoint, name="checkpoint")
commands.add_typer(job, name="job")
commands.command()(reset)
commands.command()(delete)
commands.command()(gc)
commands.command()(verify)
commands.add_typer(kafka, name="kafka")


def main() -> None:
    """Run the command line."""
    commands()
