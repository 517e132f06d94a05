"""A program that only its own process can import: what it counts in each of its runs, and what befalls workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from runtime.units.driver import micro_batch_inputs as offered
from samza_dsl import App, Spark, count, tumbling

place, master, *runs = sys.argv[1:] if __name__ == "__main__" else (".", "")
shared = Path(place)
what = "nothing"


class Tick(msgspec.Struct):
    key: str
    at: int


def befallen(tick: Tick) -> Tick:
    """Meet what is to happen, at the first attempt."""
    if tick.at == 5_000 and "nothing" not in what:
        try:
            (shared / what / "befallen").touch(exist_ok=False)
        except FileExistsError:
            (shared / what / "again").touch()
            return tick
        if "executor" in what:
            os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        threading.Event().wait(20)
    return tick


app = App("counting")
ticks = app.input("ticks", value=Tick, timestamp=lambda tick: tick.at).map(befallen)
panes = ticks.partition_by(lambda tick: tick.key, partitions=3).window(tumbling(seconds=1), count())
panes.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts"))

if __name__ == "__main__":
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.speculation": str(any("slow" in one for one in runs)).lower(),
        "spark.speculation.interval": "500ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "1s",
    }
    offered.MOST_BYTES = 20_000
    for what in runs:
        goes_on = {"checkpoint": shared / what / "checkpoint", "end": True} if "on" in what.split("-") else {}
        run = app.run(
            on=Spark(master=master, options=options, **goes_on),
            bind={"ticks": shared / "in", "counts": shared / what / "out.jsonl"},
        )
        print(run.metrics().commits)
