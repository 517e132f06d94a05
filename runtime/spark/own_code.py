"""The code of samza-dsl itself as it goes to workers that have none, or that of another version."""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runtime.model.errors import SamzaError
from runtime.units.shipping import OURS

if TYPE_CHECKING:
    import pyarrow as pa

    from runtime.spark.connection import SparkConnection

T = TypeVar("T")

OTHER = "samza-dsl-of-another-version"
_NAME = f"(?:{'|'.join(sorted(OURS))})"
_LACKING = re.compile(
    rf"{OTHER}|No module named '{_NAME}[.']|cannot import name '\w+' from '{_NAME}[.']"
    rf"|Can't get attribute '\w+' on <module '{_NAME}[.']"
)


class OtherVersion(Exception):
    """The error of a worker that has another samza-dsl than the program that runs."""


class ToldTracebacks:
    """The tracebacks that PySpark's daemon prints, but for those of a task that Spark has let go of.

    Spark closes the sockets of tasks that it cancels, as where another one fails. What they still write meets that.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the error that is handled just now."""
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


@cache
def keep_daemon_quiet() -> None:
    """Make the daemon that has forked this worker tell of no broken pipes; a program of another name is left alone."""
    daemon: Any = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", None) == "pyspark.daemon" and hasattr(daemon, "traceback"):
        daemon.traceback = ToldTracebacks


def run_level_of(
    version: str, data: bytes, micro_batches: bytes, level: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the units of a level, as `run_level` does, where this is the version that the driver has."""
    keep_daemon_quiet()
    if version != own_version():
        raise OtherVersion(OTHER)
    from runtime.units.worker.worker import run_level

    yield from run_level(data, micro_batches, level, batches)


def with_own_code(connection: SparkConnection, run: Callable[[], T]) -> T:
    """Return what `run` returns; where workers lack samza-dsl, it goes to them and `run` is called again.

    So a job on workers that have it looks nowhere before it begins. Raises what `run` raises.
    """
    try:
        return run()
    except Exception as error:
        if not is_lacking(error):
            raise
    connection.add_zip(packed())
    try:
        return run()
    except Exception as error:
        if is_lacking(error):
            raise SamzaError(
                "workers of Spark have another version of samza-dsl than this program, and they import it before what "
                "is sent to them: install the same there, or take it out"
            ) from None
        raise


def is_lacking(error: Exception) -> bool:
    """Whether an error of Spark's says that a worker has not our code, or not the same.

    >>> is_lacking(RuntimeError("ModuleNotFoundError: No module named 'runtime.spark'"))
    True
    >>> is_lacking(RuntimeError("ModuleNotFoundError: No module named 'runtimes'"))
    False
    """
    return _LACKING.search(str(error)) is not None


@cache
def own_version() -> str:
    """Return a digest of the names and sizes of our files: a worker need not read all of them.

    Of another release some differ; a copy in a zip has the same.
    """
    digest = blake2b(digest_size=8)
    with _own_files() as found:
        for name in sorted(found):
            digest.update(f"{name} {found[name][0]} ".encode())
    return digest.hexdigest()


@cache
def packed() -> Path:
    """Return a zip of our packages, which is there as long as this process."""
    place = Path(_directory().name) / f"samza_dsl-{own_version()}.zip"
    pack(place)
    return place


def pack(place: Path) -> None:
    """Write a zip of our packages, from which Python imports them; the same code makes the same bytes."""
    with _own_files() as found, zipfile.ZipFile(place, "w") as made:
        for name in sorted(found):
            made.writestr(zipfile.ZipInfo(name), found[name][1](), zipfile.ZIP_DEFLATED)


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="samza-dsl-")


@contextmanager
def _own_files() -> Iterator[dict[str, tuple[int, Callable[[], bytes]]]]:
    """Yield our files, by their names below what our packages lie in, with their sizes and what reads them."""
    root = Path(__file__).parents[2]
    if root.is_dir():
        paths = (path for package in OURS for path in (root / package).rglob("*.py"))
        yield {path.relative_to(root).as_posix(): (path.stat().st_size, path.read_bytes) for path in paths}
        return
    with zipfile.ZipFile(root) as archive:
        infos = (info for info in archive.infolist() if info.filename.endswith(".py"))
        yield {
            info.filename: (info.file_size, partial(archive.read, info))
            for info in infos
            if info.filename.partition("/")[0] in OURS
        }
