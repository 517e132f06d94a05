"""The errors of Spark as a person reads them, without stacks: what failed, and what to do where that is known."""

from __future__ import annotations

import re

from runtime.functions.user_lines import is_users
from runtime.model.errors import SamzaError

_MOST_RECENT = re.compile(r"most recent failure: (?:Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): )?(.*)")
_CLASS = re.compile(r"^(?:(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): )+")
_LOST = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Connection reset|EOFException")
_STACK = re.compile(r"\s+at \S|\s*\.\.\. \d+ (?:more|elided)|Driver stacktrace:|Caused by: |\s*$")
_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_ADVICE = re.compile(r"\s*(?:Consider setting|== DataFrame ==) .*")
_JARS = re.compile(r"DATA_SOURCE_NOT_FOUND|Class org\.apache\.hadoop\.fs\S+ not found|No FileSystem for scheme")
_FATAL = "Fatal Python error: "
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')


def as_said(error: Exception, doing: str = "Spark could not run it") -> SamzaError:
    """Return the error for what Spark has raised.

    >>> print(as_said(RuntimeError("Job aborted: Lost task 1.0: java.io.IOException: no space")))
    Spark could not run it: Job aborted: Lost task 1.0: java.io.IOException: no space
    """
    text = str(error)
    words = _words(text)
    if _LOST.search(words):
        return SamzaError(
            f"{doing}: a worker died, {words}. The system may have ended it for want of memory "
            "(spark.executor.memoryOverhead), or something that a function of yours calls has crashed; a run without "
            "Spark shows where"
        )
    if "stopped SparkContext" in words:
        return SamzaError(f"{doing}: its master is not there, or the session was stopped meanwhile")
    missing = re.search(r"ModuleNotFoundError: (No module named \S+)", words)
    if missing is not None:
        return SamzaError(f"{doing}: {missing[1]}, in a worker: install there what your program imports")
    if _JARS.search(words):
        return SamzaError(
            f"{doing}: {words}. Its session lacks the jars that know it: Spark(options={{'spark.jars.packages': "
            "'org.apache.hadoop:hadoop-aws:3.4.2'}), or the like of Delta and Iceberg, of the versions of your Spark"
        )
    if "CANNOT_MERGE_SCHEMAS" in words:
        return SamzaError(
            f"{doing}: {words}: its files have a column of several types: bind them as a frame whose types you say, "
            "session.read.schema('id long, ...').parquet(...)"
        )
    return SamzaError(f"{doing}: {words}")


def _words(text: str) -> str:
    """Return the words in which a failure is told, of all that is told with them."""
    found = _MOST_RECENT.search(text)
    if found is not None:
        text = text[found.start(1) :]
    if _TRACEBACK in text:
        return _of_traceback(text)
    # Earlier versions tell of the task that writes, and only behind its stack of what has failed in it.
    causes = _CAUSE.findall(text.partition("Driver stacktrace:")[0]) if "[TASK_WRITE_FAILED]" in text else ()
    text = causes[-1] if causes else text
    lines = [line for line in text.splitlines() if not line.startswith("An error occurred while calling ")]
    kept: list[str] = []
    for line in lines:
        if kept and _STACK.match(line):
            break
        kept.append(_CLASS.sub("", line.removeprefix(": ")))
    said = _ADVICE.sub("", " ".join(filter(None, kept))).strip().rstrip(".:")
    return _with_crash(said, text)


def _of_traceback(text: str) -> str:
    """Return what the last traceback of Python in a text ends with."""
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    words = [line for line in lines if line.strip() and not line[0].isspace() and not _STACK.match(line)]
    return words[0] if words else text.splitlines()[0]


def _with_crash(said: str, text: str) -> str:
    """Return words with the line of Python at which a worker crashed, where it could still tell that."""
    if _FATAL not in text:
        return said
    fatal, *frames = text.partition(_FATAL)[2].splitlines()
    users = (found for frame in frames if (found := _FRAME.match(frame)) is not None and is_users(found[1]))
    where = next((f" at {frame[1]}:{frame[2]}" for frame in users), "")
    return f"{said.partition(_FATAL)[0].rstrip(' :')}: {fatal}{where}"
