"""A back-fill ahead of a stop: history is computed beside the live run, so that what is left at its end is short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from msgspec.structs import replace

from runtime.assembly.history import HISTORY
from runtime.job.pipeline import Pipeline
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.ports.commits import Commit
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.reprocessing.backfill import Backfill, Runs, drop_backfill, run_backfill
from runtime.run.driver import Watched

LOOK_MS, BROKERS_LOOK_MS = 50.0, 500.0
"""The ms between two looks whether the live run has ended, and those where brokers are asked for it."""
LEAST_REST_MS = 1_000.0
"""The ms for which history rests at least between two rounds, so that the live run has the machine."""


class Ahead:
    """The state of operators as it was computed so far, up to where the live run was at the last look.

    Nothing of the live application is read but its checkpoints and inputs, and nothing of it is changed, before `join`.
    A process that is killed leaves state under a name of its own, which the next back-fill drops.
    """

    def __init__(self, environment: Environment, pipeline: Pipeline, run: Runs) -> None:
        self._environment, self._pipeline, self._run = environment, pipeline, run
        self._done: Backfill | None = None

    def behind(self, backfill: Backfill) -> int:
        """Return how many offsets lie between what is computed and where a back-fill ends."""
        done = self._done
        starts = done.until if done is not None and backfill.goes_on_from(done) else backfill.starts
        return sum(end - starts[place] for place, end in backfill.until.items())

    def compute(self, backfill: Backfill) -> Watched:
        """Compute up to the end of a back-fill, on from where the last one has come."""
        self._begin(backfill)
        done = self._run(backfill.part, backfill.span, backfill.bound)
        self._done = None if done.stopping else backfill
        return done

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
                if self.behind(backfill) and self.compute(backfill).stopping:
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

    def join(self, backfill: Backfill) -> Watched:
        """Compute the rest, and let it join the application, which this process owns by now."""
        return run_backfill(self._environment, self._pipeline, backfill, self._run, begin=self._begin)

    def drop(self) -> None:
        """Drop what was computed."""
        drop_backfill(self._environment, self._pipeline.graph.app)

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
