"""L2: an idle run on the embedded log: how soon it commits what another process appends, and what it takes at rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from select import select
from statistics import median
from time import perf_counter, sleep

from benchmarks.messages import increased, itself, to_count
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from benchmarks.shapes.start_up import cpu_seconds
from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options

INTERVALS_MS = (10, 1_000, 60_000)
APPENDS = 200
APART_S = 0.1
IDLE_S = 30.0
PATIENCE_S = 60.0
MOST_MS, MOST_BEYOND_MS, MOST_SHARE = 5.0, 2.0, 0.002
"""The bars: from the end of an append to its committed output, at the median; and of a core while nothing comes.

A commit is a synced transaction, as an append is: where the disk takes long for one, the ms beyond that count.
"""


def _counting(interval_ms: int) -> App:
    app = App("low-rate", Options(commit_interval_ms=interval_ms))
    words = app.input("words", value=str)
    counts = words.partition_by(itself, partitions=1, op_id="by-word")
    counts.scan(increased, emit=to_count, op_id="counting").send_to(app.output("counts"))
    return app


class LowRate(Shape):
    """One record after the other, a tenth of a second apart, through a repartitioning and a count of its key."""

    description = ShapeDescription(
        name="L2",
        title="an idle run on the log: from append to committed output, over 5 ms, and % of a core, over 0.2: at worst",
        bar=1.0,
        rounds=1,
        quick_scale=0.02,
    )

    def figures(self) -> Figures:
        curve: dict[str, float] = {}
        worst = 0.0
        for interval_ms in INTERVALS_MS:
            appends, latencies, share = self._at(interval_ms)
            place = min(int(0.99 * len(latencies)), len(latencies) - 1)
            curve |= {
                f"{interval_ms} ms: append, p50 in ms": median(appends),
                f"{interval_ms} ms: to committed output, p50 in ms": median(latencies),
                f"{interval_ms} ms: to committed output, p99 in ms": sorted(latencies)[place],
                f"{interval_ms} ms: % of a core while idle": share * 100,
            }
            most_ms = max(MOST_MS, median(appends) + MOST_BEYOND_MS)
            worst = max(worst, median(latencies) / most_ms, share / MOST_SHARE)
        return Figures(worst, curve)

    def _at(self, interval_ms: int) -> tuple[list[float], list[float], float]:
        """Return the ms that each append took, the ms from its end to its output, and the share of a core at rest."""
        path = self.scratch / f"{interval_ms}"
        log = LogEnvironment(path)
        log.create_stream("words", StreamConfig())
        log.create_stream("counts", StreamConfig())
        ear = log.listener()
        assert ear is not None, "this is measured where the system has inotify"
        run = subprocess.Popen([sys.executable, "-m", __name__, str(path), f"{interval_ms}"])
        appends, latencies = [], []
        try:
            for number in range(max(self.scaled(APPENDS), 1) + 1):
                sleep(APART_S)
                began = perf_counter()
                log.append([Append("words", 0, Batch([b'"word-%d"' % (number % 10)]))])
                durable = perf_counter()
                while log.offsets("counts", 0).end <= number:
                    assert select([ear], [], [], PATIENCE_S)[0], "the run wrote nothing"
                    ear.take()
                if number:  # the first waits for the run to start
                    appends.append((durable - began) * 1e3)
                    latencies.append((perf_counter() - durable) * 1e3)
            idle_s = max(IDLE_S * self.scale, 1.0)
            began, taken = perf_counter(), cpu_seconds(run.pid)
            sleep(idle_s)
            return appends, latencies, (cpu_seconds(run.pid) - taken) / (perf_counter() - began)
        finally:
            run.terminate()
            run.wait()
            ear.close()
            log.close()


if __name__ == "__main__":
    _counting(int(sys.argv[2])).run(Path(sys.argv[1]))
