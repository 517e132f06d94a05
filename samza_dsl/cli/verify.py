"""The command that verifies a data directory."""

from __future__ import annotations

import typer

from runtime.systems.log.environment import verify as findings_in
from samza_dsl.cli.data import DEFAULT, DataOption
from samza_dsl.cli.errors import FAILED, say_error, told
from samza_dsl.cli.output import say


def verify(data: DataOption = DEFAULT) -> None:
    """Look at every page and record of a data directory, and say what is not as it was written."""
    with told():
        findings = findings_in(data)
        for finding in findings:
            say_error(finding)
        if findings:
            raise typer.Exit(FAILED)
        say(f"{data} is as it was written")
