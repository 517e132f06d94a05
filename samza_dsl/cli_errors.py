"""What the command line says when something fails, and the exit code: 1 for a failed run, 2 for a mistake before it."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from operators.sites import OURS
from planner.errors import PlanError
from planner.flow import plain
from runtime.errors import SamzaError
from runtime.talk import Elsewhere
from samza_dsl.load_app import CantLoad

FAILED, MISTAKEN = 1, 2
STANDARD_LIBRARY = sysconfig.get_path("stdlib")


class Mistake(Exception):
    """A command that can't be done as it was given: why, and what to write instead."""


@contextmanager
def told(*, whole: bool = False, loading: bool = False) -> Iterator[None]:
    """Turn errors of the block into a message and an exit code; `whole` lets them through with their traceback.

    Of what the user's code raised, its own lines are shown. While `loading` the application that is a mistake in it.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        lines = user_lines(_deepest(error))
        expected = isinstance(error, PlanError | CantLoad | Mistake | SamzaError)
        if whole or not (expected or lines or isinstance(error, SyntaxError)):
            raise
        is_mistake = loading or isinstance(error, PlanError | CantLoad | Mistake)
        _say(error, [] if isinstance(error, PlanError) else lines, named=not expected)
        raise typer.Exit(MISTAKEN if is_mistake else FAILED) from None


def say_error(text: str) -> None:
    """Print an error, with nothing in it that steers a terminal."""
    colour = typer.colors.RED if sys.stderr.isatty() else None
    typer.echo(f"{typer.style('error:', fg=colour, bold=bool(colour))} {text}", err=True)


def user_lines(error: BaseException) -> list[str]:
    """Return the lines of a traceback that are the user's program, and of what it called."""
    if isinstance(error, Elsewhere):
        return error.lines
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS) and not frame.filename.startswith("<")
    ]
    while frames and _is_installed(frames[0].filename):
        del frames[0]
    return "".join(traceback.format_list(frames)).splitlines()


def _say(error: Exception, lines: list[str], *, named: bool) -> None:
    told = traceback.format_exception_only(error) if named else str(error).splitlines() or [type(error).__name__]
    words = [line.rstrip("\n") for line in told]
    if isinstance(error, SyntaxError):
        say_error("the application can't be read as Python:")
        typer.echo("\n".join(words), err=True)
        return
    say_error("\n".join(map(plain, words)))
    if lines:
        typer.echo("\n".join(["in your program:", *lines]), err=True)


def _deepest(error: BaseException) -> BaseException:
    """The exception that all began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_installed(file: str) -> bool:
    return file.startswith(STANDARD_LIBRARY) or "site-packages" in file
