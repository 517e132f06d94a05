"""What passes through a driver is in its memory part by part, however much it is."""

import random
import tracemalloc
from contextlib import closing

import pytest

from operators.core.base import Batch
from runtime.model.clock import LoopClock
from runtime.systems.log import staging as log_staging
from runtime.systems.log.environment import LogEnvironment
from runtime.units.driver.application import Application
from runtime.units.driver.engine import finish
from runtime.units.program import Program
from samza_dsl import App, dead_letter
from tests.simulation.crash import NOW_MS
from tests.spark.shuffling import shuffled, virtual_time

ROWS, MOST_BYTES = 80_000, 12 << 20
"""Rows of a hundred bytes, and how much more memory a driver may take at a time."""


class Counting:
    """A bound output that counts its rows."""

    name, partitions, columns = "counting", 1, frozenset()

    def __init__(self):
        self.rows, self.largest = 0, 0

    def serde(self, declared):
        return declared

    def recover(self, position):
        self.rows = 0

    def write(self, batch: Batch):
        self.rows += len(batch)
        self.largest = max(self.largest, len(batch))

    def flush(self):
        return self.rows

    def close(self):
        pass


def worded(number):
    if number % 4 == 0:
        raise ValueError(number)
    return f"{number:0100}"


def writing():
    app = App("writing")
    words = app.input("numbers", value=int).map(worded, on_error=dead_letter("refused"))
    words.send_to(app.output("logged", value=str))
    words.send_to(app.output("given", value=str))
    return app


@pytest.mark.ci
def test_a_driver_holds_few_of_the_rows_that_pass_through_it(tmp_path, monkeypatch):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 200_000)
    (tmp_path / "numbers.jsonl").write_text("".join(f"{number}\n" for number in range(ROWS)))
    app, sink = writing(), Counting()
    bind = {"numbers": tmp_path / "numbers.jsonl", "given": sink}
    application = Application(app.pipeline(), tmp_path / "data", bind)
    program = Program((application.job,))
    with virtual_time(0):
        rows = shuffled(program, random.Random(0), LoopClock(NOW_MS))
    assert rows.nbytes < 10_000, "workers tell the driver where rows are, and not these"
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    finish([application], program, rows, 0.0)
    most = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert most < MOST_BYTES, f"{ROWS * 100:,} bytes passed through, and {most:,} were held at a time"
    assert sink.rows == ROWS * 3 // 4 and sink.largest <= 10_000
    with closing(LogEnvironment(tmp_path / "data")) as log:
        assert [log.stream_stats(name)[0] for name in ("logged", "refused")] == [ROWS * 3 // 4, ROWS // 4]
    assert not (tmp_path / "data" / "spark").exists() or not any((tmp_path / "data" / "spark").iterdir())
