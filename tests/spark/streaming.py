"""Does what a run on Spark that goes on does, in this process: one micro-batch after the other, cut at random."""

import os
import random
from unittest.mock import patch

from runtime.model.clock import LoopClock
from runtime.units.driver.engine import told_by
from runtime.units.driver.micro_batch_application import MicroBatchSettings, Streamed
from runtime.units.driver.micro_batch_inputs import Offered
from runtime.units.program import Program
from tests.simulation.crash import NOW_MS
from tests.spark.shuffling import shuffled, virtual_time


class StandingClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self):
        self.ms = 0.0

    def now_ms(self):
        return int(NOW_MS + self.ms)

    def elapsed_ms(self):
        return self.ms


class CutAtRandom(Offered):
    """Offers a few records of each partition, or none."""

    chance, sizes = random.Random(0), (0, 0, 1, 2, 5, 30)

    def _end(self, place, start, found):
        return min(super()._end(place, start, found), start + self.chance.choice(self.sizes))


def opened(app, environment, directory, bind=None, clock=None, cluster=None, **how):
    """Return an application that goes on from its checkpoint."""
    settings = MicroBatchSettings(directory, **{"most_records": 1_000, **how})
    return Streamed(
        app.pipeline(),
        environment,
        bind or {},
        settings,
        clock or StandingClock(),
        cluster,
    )


def one_batch(streamed, batch, seed=0):
    """Run a micro-batch, and let it count."""
    program = Program((streamed.job,)).at([batch])
    scratch = {"SPARK_LOCAL_DIRS": str(batch.directory.parent / "scratch")}
    with virtual_time(seed), patch.dict(os.environ, scratch):
        rows = shuffled(program, random.Random(seed), LoopClock(NOW_MS))
    parts, reports = told_by(rows, program)
    streamed.commit(batch, parts[0], reports[0], program.units)


def stream_here(app, environment, directory, bind=None, seed=0, **how):
    """Run `app()` to the end of its inputs, a new run after some micro-batches; return how many these were."""
    CutAtRandom.chance = chance = random.Random(seed)
    while True:
        with patch("runtime.units.driver.micro_batch_application.Offered", CutAtRandom):
            streamed = opened(app(), environment, directory, bind, **how)
        try:
            while not streamed.is_over and chance.random() < 0.9:
                batch = streamed.next()
                if batch is not None:
                    one_batch(streamed, batch, chance.randint(0, 99))
            if streamed.is_over:
                return streamed.manifest.batch
        finally:
            streamed.close()
