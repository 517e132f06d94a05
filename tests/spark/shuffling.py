"""Does what Spark does with a program, in this process: schedules units, and shuffles, sorts and cuts their rows."""

import random
from contextlib import closing, contextmanager
from unittest.mock import patch

import pyarrow as pa

from runtime.clock import LoopClock
from runtime.history import beside
from runtime.spark import worker
from runtime.spark.application import Application
from runtime.spark.batch import SparkRun, finish
from runtime.spark.program import Program
from runtime.spark.recompute import staged_handover
from runtime.spark.rows import ORDER, SCHEMA, beginnings
from runtime.spark.worker import run_units
from tests.simulation.crash import NOW_MS
from tests.simulation.loop import VirtualLoop


def run_here(app, environment, bind=None, seed=0, span=None, handover=None):
    """Run `app` as Spark would, in virtual time, and return the finished run; with a `span`, beside itself."""
    graph, staged = app.graph(), staged_handover(app.graph(), handover)
    if span is not None:
        graph = beside(graph, "recomputing")
    return batch_here(graph, app.options, app.around, environment, bind=bind, span=span, handover=staged, seed=seed)


def batch_here(graph, options, around, data, *, on=None, bind=None, span=None, handover=None, watch=None, seed=0):
    """Do what `run_batch` does: run it, or publish what another driver has left."""
    application = Application(graph, options, around, data, bind or {}, span, handover)
    if application.is_unpublished:
        with closing(application):
            return SparkRun(application, application.go_on())
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
