"""Does what Spark does with a program, in this process: schedules units, and shuffles, sorts and cuts their rows."""

import random
from contextlib import closing, contextmanager
from unittest.mock import patch

import pyarrow as pa

from runtime.assembly.history import beside
from runtime.model.clock import LoopClock
from runtime.run.settings import RunSettings
from runtime.spark.recomputation import staged_handover
from runtime.units.driver.application import Application
from runtime.units.driver.engine import BatchRun, finish
from runtime.units.program import Program
from runtime.units.shuffle_rows import ORDER, SCHEMA, beginnings
from runtime.units.worker import worker
from runtime.units.worker.worker import run_units
from tests.simulation.crash import NOW_MS
from tests.simulation.loop import VirtualLoop


def run_here(app, environment, bind=None, seed=0, span=None, handover=None):
    """Run `app` as Spark would, in virtual time, and return the finished run; with a `span`, beside itself."""
    graph, staged = app.graph(), staged_handover(app.graph(), handover)
    if span is not None:
        graph = beside(graph, "recomputing")
    return batch_here(app.pipeline().of(graph), environment, None, RunSettings(bind=bind, span=span), staged, seed=seed)


def batch_here(pipeline, data, on, settings, handover=None, watch=None, seed=0):
    """Do what `run_batch` does: run it, or publish what another driver has left."""
    application = Application(pipeline, data, settings.bind or {}, settings.span, handover)
    if application.is_unpublished:
        with closing(application):
            return BatchRun(application, application.go_on())
    program = Program((application.job,))
    with virtual_time(seed):
        rows = shuffled(program, random.Random(seed), LoopClock(NOW_MS))
    return finish([application], program, rows, 0.0)[0]


def shuffled(program, chance, clock):
    """Return what the last level leaves for the driver."""
    rows = pa.Table.from_batches([beginnings(program.levels[0])])
    for level, units in enumerate(program.levels):
        tasks = chance.randint(1, len(units))
        written = []
        for task in range(tasks):
            mine = rows.filter([(target - units.start) % tasks == task for target in rows["target"].to_pylist()])
            in_order = mine.sort_by([(name, "ascending") for name in ORDER])
            batches = in_order.to_batches(max_chunksize=chance.choice((1, 3, 10_000)))
            written += run_units(program, level, batches, clock)
        rows = pa.Table.from_batches(written, schema=SCHEMA)
    return rows


@contextmanager
def virtual_time(seed):
    """Let event loops that are made in a block be virtual ones."""
    with patch.object(worker, "new_event_loop", lambda: VirtualLoop(seed)):
        yield
