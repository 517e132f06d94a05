"""Streams that a bounded run fills: what goes there is visible at once, when the run is through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

from runtime.errors import EnvironmentFault
from runtime.systems.base import Append, Commit, Environment, StagingEnvironment


class Filling:
    """Fills streams that are there and empty, of which no more is in memory than the environment holds there."""

    def __init__(self, environment: Environment, app: str, generation: int) -> None:
        self._environment, self._app, self._generation = environment, app, generation
        self._rows: Counter[tuple[str, int]] = Counter()
        self._held: list[Append] = []

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """By stream and partition, how many rows were taken."""
        return [(stream, partition, rows) for (stream, partition), rows in self._rows.items()]

    def take(self, appends: Iterable[Append]) -> None:
        """Take rows on; nobody sees them yet."""
        counted = self._counted(appends)
        if isinstance(self._environment, StagingEnvironment):
            self._environment.stage(self._app, self._generation, counted)
        else:
            self._held += counted

    def publish(self) -> None:
        """Make all that was taken visible."""
        if not self._rows:
            return
        if isinstance(self._environment, StagingEnvironment):
            self._environment.publish(self._app, self._generation)
        else:
            self._environment.commit(Commit(self._app, self._generation, self._held, [], {}))

    def discard(self) -> None:
        """Remove what nobody will publish."""
        if isinstance(self._environment, StagingEnvironment):
            with suppress(EnvironmentFault):  # else whoever owns the application next does
                self._environment.discard(self._app)

    def _counted(self, appends: Iterable[Append]) -> Iterator[Append]:
        for append in appends:
            self._rows[append.stream, append.partition] += len(append.batch)
            yield append
