"""B18f: what the smallest micro-batch on Spark takes, from what comes to the commit that has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.model.clock import SystemClock
from runtime.spark.streaming import MicroBatchRun
from runtime.units.driver.micro_batch_application import MicroBatchSettings, Streamed
from samza_dsl import App, Spark, count, produce, tumbling

RECORDS = 100
PARTITIONS = 4
BATCHES = 20


class MicroBatchFloor(Shape):
    """A hundred records of the log at a time, without a shuffle and through one; the first batch is left out."""

    description = ShapeDescription(
        name="B18f",
        title="a micro-batch of 100 records on Spark, from the embedded log to it, ms",
        rounds=1,
        quick_scale=0.1,
        begins_slowly=True,
    )

    def figures(self) -> Figures:
        session = Spark(master="local[2]", options={"spark.ui.enabled": "false", "spark.log.level": "ERROR"}).opened()
        curve: dict[str, float] = {}
        for name, build in (("stateless", stateless), ("through a shuffle", keyed)):
            took: list[float] = []
            for number in range(self.rounds):
                took += self._batches(session, build, self.scratch / f"{build.__name__}-{number}")
            curve |= {f"{name}, p50": median(took) * 1e3, f"{name}, longest": max(took) * 1e3}
        return Figures(None, curve)

    def _batches(self, session: object, build: Callable[[], App], place: Path) -> list[float]:
        app, data, took = build(), place / "data", []
        send(data)
        settings = MicroBatchSettings(place / "checkpoint", most_records=1_000_000)
        streamed = Streamed(app.pipeline(), data, {}, settings, SystemClock())
        with closing(streamed):
            stream = MicroBatchRun(session, streamed)  # type: ignore[arg-type]
            for _ in range(self.scaled(BATCHES) + 1):
                began = perf_counter()
                batch = streamed.next()
                assert batch is not None
                stream.run_one(batch)
                took.append(perf_counter() - began)
                send(data)
        return took[1:]


def stateless() -> App:
    app = App("floor-stateless")
    app.input("numbers", value=int, partitions=PARTITIONS).map(abs).send_to(app.output("out", value=int))
    return app


def keyed() -> App:
    app = App("floor-keyed")
    numbers = app.input("numbers", value=int, timestamp=abs, partitions=PARTITIONS)
    counts = numbers.partition_by(lambda n: n % 10, partitions=PARTITIONS).window(tumbling(milliseconds=50), count())
    counts.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    return app


def send(data: Path) -> None:
    """Append records to all partitions."""
    produce("numbers", range(RECORDS), value=int, key=str, data=data, partitions=PARTITIONS)
