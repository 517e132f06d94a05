"""X2: what a pipeline of two stages takes on Kafka where each task commits by itself, beside all of them together."""

from __future__ import annotations

import shutil
from statistics import median
from time import perf_counter, process_time
from typing import Literal

from benchmarks.broker import PARTITIONS, bootstrap, filled_topic, fresh_name, records_in
from benchmarks.messages import increased, itself, lines, to_count
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription, Took
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from samza_dsl import App, Options

LINES = 100_000
"""Of ten words each."""
COMMIT_MS = 1_000


class StagesOnKafka(Shape):
    """Words are counted behind a `partition_by`: through a topic, and handed on in memory, in turn."""

    description = ShapeDescription(
        name="X2",
        title="word count through a partition_by on Kafka, each of 4 tasks commits by itself ÷ all of them together",
    )

    def figures(self) -> Figures:
        words = [word for line in lines(self.scaled(LINES)) for word in line.split()]
        source = filled_topic("words", [[(None, b'"%s"' % word.encode()) for word in words[n::4]] for n in range(4)])
        found = [
            (self._took(source, "task", len(words)), self._took(source, "container", len(words)))
            for _ in range(self.rounds)
        ]
        curve = {
            "thousand words a second, by task": len(words) / 1_000 / median(own.seconds for own, _ in found),
            "thousand words a second, together": len(words) / 1_000 / median(one.seconds for _, one in found),
            "times the processor": median(own.cpu_seconds / one.cpu_seconds for own, one in found),
        }
        return Figures(median(own.seconds / one.seconds for own, one in found), curve)

    def _took(self, source: str, commit_by: Literal["task", "container"], words: int) -> Took:
        name, data = fresh_name("counting"), self.scratch / "data"
        shutil.rmtree(data, ignore_errors=True)
        app = App(name, Options(commit_by=commit_by, commit_interval_ms=COMMIT_MS))
        counts = app.input(source, value=str).partition_by(itself, op_id="by-word")
        counts = counts.scan(increased, emit=to_count, op_id="counting")
        counts.send_to(app.output(f"{name}-counts", partitions=PARTITIONS))
        where = {"environment": f"kafka://{bootstrap()}", "until_now": True}
        began, cpu_began = perf_counter(), process_time()
        run_blocking(app.pipeline(), data, RunSettings(**where))
        took = Took(perf_counter() - began, process_time() - cpu_began)
        counted = sum(map(len, records_in(f"{name}-counts")))
        assert counted == words, f"{counted:,} counts of {words:,} words"
        return took
