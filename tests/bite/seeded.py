"""A bug that is seeded into a copy of the source: a small change, with what must catch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.simulation.scenario import Kind


@dataclass(frozen=True)
class Simulated:
    """Seeds of the simulation."""

    kind: Kind = "crashes"
    seeds: int = 10_000


@dataclass(frozen=True)
class Tested:
    """Tests, as pytest names them."""

    tests: str


@dataclass(frozen=True)
class Bug:
    """A small change of one file, `old` text for `new`, and what catches it."""

    name: str
    file: str
    old: str
    new: str
    caught_by: Simulated | Tested = Simulated()

    def seed(self, root: Path) -> None:
        """Put the bug into the source under `root`; raises Changed where that is not what it was made for."""
        path = root / self.file
        source = path.read_text()
        found = source.count(self.old)
        if found != 1:
            raise Changed(f"{self.file} has this {found} times, and the bug {self.name!r} wants it once:\n{self.old}")
        path.write_text(source.replace(self.old, self.new))


class Changed(Exception):
    """The source is not what a bug was made for: make it anew."""
