"""The data directory as the commands open it: one that exists, unless the command makes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from runtime.systems.base import StreamConfig
from runtime.systems.log import LogEnvironment
from runtime.systems.log_recovery import DATA_FILE
from samza_dsl.checks import DATA
from samza_dsl.cli_errors import Mistake

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="The directory of the embedded log.")]
DEFAULT = Path(DATA)


def exists(path: Path) -> bool:
    """Whether there is a data directory at `path`."""
    return (path / DATA_FILE).is_file()


@contextmanager
def opened(path: Path) -> Iterator[LogEnvironment]:
    """Open the data directory at `path` for a block; raises `Mistake` where there is none."""
    if not exists(path):
        raise Mistake(
            f"there is no data directory at {path}: a run makes one, and `samza-dsl streams produce` too; "
            "say where it is with --data DIR"
        )
    with closing(LogEnvironment(path)) as environment:
        yield environment


def config_of(environment: LogEnvironment, stream: str) -> StreamConfig:
    """Return a stream's configuration; raises `Mistake`, with the streams that there are, for another name."""
    streams = environment.streams()
    if stream not in streams:
        known = ", ".join(sorted(streams)) or "none yet"
        raise Mistake(f"there is no stream {stream!r} in {environment.path}; its streams: {known}")
    return streams[stream]
