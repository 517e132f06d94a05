"""Rows that the driver is to put where they belong once a run is through: until then they lie in files of attempts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from runtime.spark.frames import frames
from runtime.spark.rows import Part, Report
from runtime.spark.staged_topics import place_of
from runtime.systems.base import system_errors_told

_decode = msgspec.msgpack.Decoder(Part).decode


class StagedRows:
    """The directory under `data` where attempts of one application write rows; what others have left there goes."""

    def __init__(self, data: Path, app: str) -> None:
        self.directory = (place_of(data, app) / "rows").absolute()
        self.remove()
        with system_errors_told(self.directory, "made"):
            self.directory.mkdir(parents=True)

    def remove(self) -> None:
        """Remove what attempts have written."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):  # rows for topics lie beside it
            self.directory.parent.rmdir()


class ToldRows:
    """What attempts that count have for the driver, as often as it is asked for: one part at a time is in memory.

    It is what they have told it themselves, and what lies in their files.
    """

    def __init__(self, parts: Iterable[Part], reports: Sequence[Report]) -> None:
        self._parts = parts
        self._files = [Path(report.rows) for report in reports if report.rows is not None]

    def __iter__(self) -> Iterator[Part]:
        yield from self._parts
        for file in self._files:
            yield from map(_decode, frames(file))
