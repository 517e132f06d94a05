"""A batch engine on a pool of processes: all that it takes to run a program's units elsewhere than on Spark."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pyarrow as pa

from runtime.units.carried_error import told
from runtime.units.driver.application import Application
from runtime.units.driver.engine import BatchRun, run_together
from runtime.units.program import Program
from runtime.units.shuffle_rows import ORDER, SCHEMA, beginnings, from_bytes, to_bytes
from runtime.units.worker.worker import run_level


class ProcessPoolEngine:
    """Runs each level's units in the processes of a pool, and shuffles their rows in this one."""

    def __init__(self, pool: ProcessPoolExecutor, at_once: int) -> None:
        self.pool, self.at_once = pool, at_once

    def run(self, data: bytes, program: Program) -> pa.Table:
        """Run level by level: a share's rows are those of the targets that fall to it, in the order of the shuffle."""
        rows = pa.Table.from_batches([beginnings(program.levels[0])])
        for level, units in enumerate(program.levels):
            shares = min(self.at_once, len(units))
            sent = [self.pool.submit(run_share, data, level, to_share(rows, one, shares)) for one in range(shares)]
            try:
                rows = from_bytes(part for share in sent for part in share.result())
            except Exception as error:
                same = told(error)
                if same is None:
                    raise
                raise same from same.__cause__
        return rows


def to_share(rows: pa.Table, share: int, shares: int) -> list[bytes]:
    """Return the rows of one share's targets as they go to its process."""
    mine = rows.filter([target % shares == share for target in rows["target"].to_pylist()])
    return [to_bytes(batch) for batch in mine.sort_by([(name, "ascending") for name in ORDER]).to_batches()]


def run_share(data: bytes, level: int, rows: list[bytes]) -> list[bytes]:
    """Run a share of a level in this process; return what it leaves."""
    found = pa.Table.from_batches(from_bytes(rows).to_batches(), schema=SCHEMA)
    return [to_bytes(batch) for batch in run_level(data, b"", level, found.to_batches())]


@contextmanager
def process_pool(at_once: int = 2) -> Iterator[ProcessPoolEngine]:
    """Have an engine with so many processes during a block."""
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        yield ProcessPoolEngine(pool, at_once)


def run_in_pool(engine: ProcessPoolEngine, app, environment, bind=None) -> BatchRun:
    """Run an application of the fluent stream over what its inputs hold now, to its end."""
    application = Application(app.pipeline(), environment, bind or {})
    return run_together(engine, [application])[0]
