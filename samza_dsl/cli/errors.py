"""Prints the errors of commands, and sets the exit code: 1 for a failed run, 2 for a mistake before it."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import typer

from operators.core.wording import askable
from planner.model.errors import PlanError
from planner.model.flow import plain
from runtime.functions.user_lines import deepest, user_lines
from runtime.model.errors import INTERRUPTED, ExitAsked, SamzaError
from samza_dsl.application.loading import CantLoad
from samza_dsl.settings import logs
from samza_dsl.settings.sources import WrongSetting

_log = logging.getLogger("samza_dsl")
FAILED, MISTAKEN = 1, 2
EXIT_CODES: Mapping[str, str] = {
    "0": "come to the end of its inputs, or was stopped",
    str(FAILED): "failed",
    str(MISTAKEN): "found a mistake in the application, in an option or in what is bound",
    "N": "been asked to end by a function of yours",
    str(INTERRUPTED): "been interrupted by a function of yours",
    "128 + N": "been killed by signal N",
}
"""The exit codes of a run, and what it has done then; docs/operations.md has them with what to do."""
WHERE_TYPED: ContextVar[str] = ContextVar("WHERE_TYPED")
"""The flag that says where the streams and state of this command are, if it was typed; other commands need it, too."""
COMMAND = re.compile(r"samza-dsl (?:reset|checkpoint|state|streams|evolve|scale|job|fork|run)\b(?:[^:;]|:(?=\S))*")
"""A command that an error names, up to what may be the end of it: addresses have colons, too."""
SAID_ELSEWHERE: ContextVar[Mapping[str, str]] = ContextVar("SAID_ELSEWHERE")
"""The flags and options that nobody typed, and their texts in quotes, with the file or variable that says them."""
QUOTES = "'\""
NAME = re.compile(r"--[\w-]+|\w+")
"""What may be the name of a flag or an option in an error."""


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
    except Exception as raised:
        error = askable(raised)
        lines = user_lines(deepest(error))
        expected = isinstance(error, PlanError | CantLoad | Mistake | WrongSetting | SamzaError)
        # What is neither ours to say nor raised by the user's code is a bug of the library: its traceback is wanted
        # whole.
        if whole or not (expected or lines or isinstance(error, SyntaxError)):
            if not _logs_json():
                raise
            with logs.told(**logs.fields_of(error)):
                _log.error("%s", "".join(traceback.format_exception_only(error)).rstrip(), exc_info=error)
            raise typer.Exit(FAILED) from None
        is_mistake = loading or isinstance(error, PlanError | CantLoad | Mistake | WrongSetting)
        # A PlanError names the line itself.
        with logs.told(**logs.fields_of(error)):
            _say(error, [] if isinstance(error, PlanError) else lines, named=not expected)
        # Without a cause, so that Python prints no traceback behind what was said.
        failed = error.code if isinstance(error, ExitAsked) else FAILED
        raise typer.Exit(MISTAKEN if is_mistake else failed) from None


def say_error(text: str, *following: str) -> None:
    """Print an error and what follows it; where the log is of JSON, as one line of that.

    The text has nothing in it that steers a terminal, and none of it shows a secret.
    """
    if _logs_json():
        _log.error("%s", "\n".join([text, *following]))
        return
    colour = typer.colors.RED if sys.stderr.isatty() else None
    typer.echo(f"{typer.style('error:', fg=colour, bold=bool(colour))} {logs.redacted(text)}", err=True)
    for line in following:
        typer.echo(logs.redacted(line), err=True)


def _logs_json() -> bool:
    settings = logs.configured()
    return settings is not None and settings.format == "json"


def _say(error: Exception, lines: list[str], *, named: bool) -> None:
    told = traceback.format_exception_only(error) if named else str(error).splitlines() or [type(error).__name__]
    words = [line.rstrip("\n") for line in told]
    if isinstance(error, SyntaxError):
        say_error("the application can't be read as Python:", *words)
        return
    following = ["in your program:", *lines] if lines else []
    named_there = {word for line in words for word in NAME.findall(line)}
    for name, where in SAID_ELSEWHERE.get({}).items():
        is_named = name in named_there or (name[0] in QUOTES and any(name in line for line in words))
        if is_named and not any(where in line for line in words):
            following.append(f"{name} is said by {where}")
    commands = [word for line in words for word in COMMAND.findall(line)]
    where = WHERE_TYPED.get("")
    if where and any(where not in command for command in commands):
        following.append(f"each of these commands takes {where}, as this one did")
    say_error("\n".join(map(plain, words)), *following)
