"""The log of a process that the command line runs: a line of text or JSON each, with the place it comes from."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from operators.core.wording import traced
from planner.model.flow import plain
from runtime.functions.user_lines import place_now

# Only the command line calls `configure`: a program that runs applications by itself has a log of its own.
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
HIDDEN = "***"
_LEAST_SECRET = 4
"""Shorter values are not looked for in lines: they would be found in anything."""
_hidden: set[str] = set()
"""The secrets of this process, which no line may have."""
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The fields of a record that are not `extra=` of whoever logs."""
_FIELDS = {"time", "level", "logger", "app", "container", "task", "operator", "error"}
"""The fields that say where a line comes from, which no `extra=` may replace; Python itself refuses `message`."""


class LogSettings(NamedTuple):
    """The format and least level of the log, and the fields that all of its lines have, such as `app`."""

    format: str
    level: str
    fields: Mapping[str, str]


_configured: LogSettings | None = None
_told: list[Mapping[str, str]] = []
"""The fields that all lines have besides, as long as the blocks last that say them."""
_ENDED = "_samza_dsl_ended"
"""The attribute by which an error brings the fields of the blocks that it has ended."""


def configure(format: str, level: str, fields: Mapping[str, str] | None = None) -> None:
    """Write this process's log to standard error, each line with these fields and where it comes from.

    A second call replaces what the first has set. What the program has given the root logger otherwise stays.
    """
    global _configured
    assert format in FORMATS and level in LEVELS, "the command line offers no others"
    _configured = LogSettings(format, level, dict(fields or {}))
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LogHandler)]:
        root.removeHandler(handler)
    handler = LogHandler(_configured)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)  # else Python writes them to standard error in lines of its own


@contextmanager
def told(**fields: str) -> Iterator[None]:
    """Let all lines have these fields as well during a block; blocks may begin and end in any order.

    So has the line that tells of an error which ends the block.
    """
    _told.append(fields)
    try:
        yield
    except Exception as error:
        vars(error)[_ENDED] = {**fields, **fields_of(error)}
        raise
    finally:
        # By what it is: others may say just the same.
        _told[:] = [one for one in _told if one is not fields]


def fields_of(error: Exception) -> dict[str, str]:
    """Return the fields of the blocks that an error has ended."""
    found: dict[str, str] = vars(error).get(_ENDED, {})
    return found


def configured() -> LogSettings | None:
    """Return how the log of this process is written, for the containers that it starts; None where nobody has said."""
    return _configured


def unconfigure() -> None:
    """Take back what `configure` has set, for who calls the command line within a program that goes on."""
    global _configured
    _configured = None
    logging.captureWarnings(False)
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LogHandler)]:
        root.removeHandler(handler)
        root.setLevel(logging.WARNING)


def hide(secret: str) -> None:
    """Keep a secret out of every line of the log from now on."""
    if len(secret) >= _LEAST_SECRET:
        _hidden.add(secret)


def redacted(text: str) -> str:
    """Return a text without the secrets that this process knows."""
    # The longest first: one may be a part of another.
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


class LogHandler(logging.Handler):
    """Writes each record as one line to standard error; where a record comes from is asked for only then."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; an error in it is told as logging tells all such."""
        try:
            # Asked for at each line: whoever captures standard error has put another one in its place. Written at once
            # with its end: containers share it, and two lines would be mixed.
            sys.stderr.write(f"{line_of(record, self._settings)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def line_of(record: logging.LogRecord, settings: LogSettings) -> str:
    """Return the line of a record, in which nothing ends it or steers a terminal, and which shows no secret."""
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found: dict[str, object] = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
    found |= {"logger": record.name, **settings.fields}
    for said in _told:
        found |= said
    task, operator = place_now()
    found |= {} if task is None else {"task": task}
    found |= {} if operator is None else {"operator": operator}
    named = {str(name): value for name, value in vars(record).items()}  # who logs may name a field by a number
    own = {name: value for name, value in named.items() if name not in _OWN and not name.startswith("_")}
    # Who looks for an application's lines, or sorts them by time, has to find what it is and was.
    found |= {f"extra.{name}" if name in _FIELDS else name: value for name, value in own.items()}
    if record.exc_info and record.exc_info[1] is not None:
        found["error"] = traced(record.exc_info[1])
    # Redacted before it is escaped, value by value: a secret with a quote is another text behind it.
    if settings.format == "json":
        return json.dumps({redacted(name): _clean(value) for name, value in found.items()}, ensure_ascii=False)
    lead = " ".join(redacted(str(found.pop(name))) for name in ("time", "level", "message"))
    fields = (f"{redacted(name)}={_quoted(redacted(str(value)))}" for name, value in found.items())
    return plain(" ".join([lead, *fields]))


def _clean(value: object) -> object:
    # JSON has no NaN and no infinity: who reads a line with one can't read any of it.
    is_plain = isinstance(value, int | bool | None) or (isinstance(value, float) and math.isfinite(value))
    text = redacted(str(value))
    return value if is_plain and text == str(value) else text


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and not any(one.isspace() or one in '="' for one in text) else json.dumps(text)
