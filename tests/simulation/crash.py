"""An environment whose process dies at a chosen moment, and runs that are started again until they are through."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from operators.core.base import Batch
from runtime.model.clock import LoopClock
from runtime.model.errors import Repartitioned
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App
from samza_dsl.testing.environment import Crash, CrashPoint, Doom
from tests.simulation.loop import simulate

NOW_MS = 1_700_000_000_000

Row = tuple[bytes | None, bytes | None, int]
"""The key, the value and the timestamp of a stored record."""


class Watched:
    """An environment that counts commits, shows each to `on_commit` when it is durable, and dies at a crash point."""

    def __init__(
        self,
        inner: Environment,
        crash: CrashPoint | None = None,
        on_commit: Callable[[Commit], None] | None = None,
    ) -> None:
        self.commits: list[Commit] = []
        self._inner = inner
        self._doom = Doom(crash)
        self._on_commit = on_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commit: Commit) -> None:
        self._doom.meet("before_commit")
        self._inner.commit(commit)
        self.commits.append(commit)
        if self._on_commit is not None:
            self._on_commit(commit)
        self._doom.meet("after_commit")

    def at_turn(self, turn: int) -> None:
        self._doom.meet("turn")


def memory() -> MemoryEnvironment:
    """Return an empty environment whose wall clock stands still."""
    return MemoryEnvironment(now_ms=lambda: NOW_MS)


def append_rows(environment: Environment, stream: str, partition: int, rows: Sequence[Row]) -> None:
    """Append rows, of which there are some, to a partition."""
    keys, values, timestamps = zip(*rows, strict=True)
    environment.append([Append(stream, partition, Batch(list(values), list(keys), list(timestamps)))])


def fill(
    environment: Environment, stream: str, partitions: Sequence[Sequence[Row]], sizes: random.Random | None = None
) -> None:
    """Append rows to a stream and end it: all of a partition at once, or in batches of random sizes."""
    environment.create_stream(stream, StreamConfig(partitions=len(partitions)))
    for partition, rows in enumerate(partitions):
        start = 0
        while start < len(rows):
            stop = len(rows) if sizes is None else start + sizes.randint(1, 5)
            append_rows(environment, stream, partition, rows[start:stop])
            start = stop
    environment.end_stream(stream)


def rows_of(environment: Environment, stream: str, ends: dict[int, int] | None = None) -> list[list[Row]]:
    """Return what each partition of a stream holds, in order; `ends` are offsets to stop before."""
    if stream not in environment.streams():
        return []
    found = []
    for partition in range(environment.streams()[stream].partitions):
        rows: list[Row] = []
        offset, end = 0, None if ends is None else ends.get(partition, 0)
        while (end is None or offset < end) and (read := environment.read(stream, partition, offset)):
            batch = read.batch
            none = [None] * len(batch)
            columns = zip(batch.keys or none, batch.values, batch.timestamps or none, batch.offsets or (), strict=True)
            rows += [(key, value, at) for key, value, at, place in columns if end is None or place < end]
            offset = read.next_offset
        found.append(rows)
    return found


def run_once(
    app: App, environment: Environment, seed: int | None = None, bind: dict[str, Any] | None = None, **how: Any
) -> Run:
    """Run `app` to its end, or to a crash, in virtual time; anew where it has moved to other partitions."""

    async def main() -> Run:
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(NOW_MS), bind=bind, **how))
        await run.drive()
        return run

    while True:
        try:
            return simulate(main, seed, getattr(environment, "at_turn", None))
        except Repartitioned:
            how = {**how, "from_start": False, "state": None}


def run_through(
    app: Callable[[], App],
    environment: Environment,
    crashes: Sequence[CrashPoint] = (),
    seed: int | None = None,
    on_commit: Callable[[Commit], None] | None = None,
    bind: dict[str, Any] | None = None,
    **how: Any,
) -> int:
    """Run an application, once more after each crash, until it ends by itself; return how often it crashed."""
    died = 0
    for number, crash in enumerate([*crashes, None]):
        watched = Watched(environment, crash, on_commit)
        try:
            run_once(app(), watched, None if seed is None else seed + number, bind, **how)
        except Crash:
            died += 1
        else:
            break
    return died
