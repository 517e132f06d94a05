"""A back-fill ahead of a stop: history is computed beside the live run, so that what is left at its end is short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace as but
from math import inf

from msgspec.structs import replace

from runtime.assembly.history import HISTORY
from runtime.job.pipeline import Pipeline
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.reprocessing.backfill import Backfill, Runs, drop_backfill, run_backfill

LOOK_MS, BROKERS_LOOK_MS = 50.0, 500.0
"""The ms between two looks whether the live run has ended, and those where brokers are asked for it."""
LEAST_REST_MS = 1_000.0
"""The ms for which history rests at least between two rounds, so that the live run has the machine."""
MOST_WAIT_MS = 60_000.0
"""The ms for which a commit of the live run is waited for that leaves nothing to write."""
First = Callable[[Backfill], bool]
"""Computes a back-fill up to its cut, and lets a run under its name go on from there; False where it was stopped."""


class Ahead:
    """The state of operators as it was computed so far, up to where the live run was at the last look.

    Nothing of the live application is read but its checkpoints and inputs, and nothing of it is changed, before `join`.
    A process that is killed leaves state under a name of its own, which the next back-fill drops. All that is there at
    first may be computed elsewhere, by `first`; `run` then goes on from there.
    """

    def __init__(self, environment: Environment, pipeline: Pipeline, run: Runs, first: First | None = None) -> None:
        self._environment, self._pipeline, self._run, self._first = environment, pipeline, run, first
        self._done: Backfill | None = None

    def behind(self, backfill: Backfill) -> int:
        """Return how many offsets lie between what is computed and where a back-fill ends."""
        done = self._done
        starts = done.until if done is not None and backfill.goes_on_from(done) else backfill.starts
        return sum(end - starts[place] for place, end in backfill.until.items())

    def compute(self, backfill: Backfill) -> bool:
        """Compute up to the end of a back-fill, on from where the last has come; return False where it is stopped."""
        if self._is_first(backfill):
            return self._compute_first(backfill)
        self._begin(backfill)
        is_through = not self._run(backfill.part, backfill.span, backfill.bound).stopping
        self._done = backfill if is_through else None
        return is_through

    def follow(
        self, look: Callable[[], Backfill], is_ours: Callable[[], bool], tell: Callable[[Backfill], None]
    ) -> bool:
        """Compute beside a live run, round by round, until the application `is_ours`; return False where it is stopped.

        `look` returns the back-fill up to where the run is. `tell` is called once the rounds are short.
        """
        next_ms, before_ms, told = monotonic_ms(), inf, False
        look_ms = BROKERS_LOOK_MS if isinstance(self._environment, LiveEnvironment) else LOOK_MS
        try:
            while not is_ours():
                if monotonic_ms() < next_ms:
                    asyncio.run(sleep_ms(look_ms))
                    continue
                began_ms, backfill = monotonic_ms(), look()
                if backfill.left and self._is_first(backfill) and began_ms - next_ms < MOST_WAIT_MS:
                    asyncio.run(sleep_ms(look_ms))
                    continue
                if self.behind(backfill) and not self.compute(backfill):
                    self.drop()
                    return False
                took_ms = monotonic_ms() - began_ms
                # Where the machine is busy, rounds come to an end at which they get no shorter.
                if not told and (took_ms < LEAST_REST_MS or took_ms > before_ms / 2):
                    tell(backfill)
                    told = True
                before_ms = took_ms
                next_ms = monotonic_ms() + (max(LEAST_REST_MS, took_ms) if told else 0)
        except BaseException:
            self.drop()
            raise
        return True

    def join(self, backfill: Backfill) -> bool:
        """Compute the rest, and let it join the application, which this process owns by now.

        Return False, and leave the application as it was, where it is stopped.
        """
        if self._is_first(backfill) and not self._compute_first(backfill):
            self.drop()
            return False
        return not run_backfill(self._environment, self._pipeline, backfill, self._run, begin=self._begin).stopping

    def drop(self) -> None:
        """Drop what was computed."""
        drop_backfill(self._environment, self._pipeline.graph.app)

    def _is_first(self, backfill: Backfill) -> bool:
        """Whether a back-fill is computed from the start, elsewhere."""
        return self._first is not None and (self._done is None or not backfill.goes_on_from(self._done))

    def _compute_first(self, backfill: Backfill) -> bool:
        assert self._first is not None, "something else computes what is first"
        self.drop()
        # Nothing ends there: who goes on from it closes what has ended.
        backfill = but(backfill, ended=())
        is_through = self._first(backfill)
        self._done = backfill if is_through else None
        return is_through

    def _begin(self, backfill: Backfill) -> None:
        """Let what is computed go on to another end, or begin anew."""
        if self._done is None or not backfill.goes_on_from(self._done):
            self.drop()
            return
        environment, own = self._environment, backfill.app
        generation = environment.own(own)
        noted = environment.checkpoints(own)[HISTORY]
        ends = {**noted.outputs, **backfill.ends}
        environment.commit(Commit(own, generation, [], [], {HISTORY: replace(noted, outputs=ends)}))
