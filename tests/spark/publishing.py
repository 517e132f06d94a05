"""A program that counts on Spark into topics, and is killed before or behind a transaction."""

import os
import signal
import sys
from pathlib import Path

from runtime.systems.kafka.streams import publication as kafka_published
from samza_dsl import App, Options, Spark, count, dead_letter, tumbling

directory, address, most, *how = sys.argv[1:] if __name__ == "__main__" else (".", "", "0")
begun = 0


async def transact(self, pending, reached, real=kafka_published.KafkaPublisher._transact):
    """Die before a transaction, or right behind it."""
    global begun
    begun += 1
    if begun == 2 * int(most) - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await real(self, pending, reached)
    if begun == 2 * int(most):
        os.kill(os.getpid(), signal.SIGKILL)


def counting(prefix=""):
    """Return what counts ticks by key and time, with what the names of its streams begin with."""
    app = App(f"{prefix}counting", Options(max_uncommitted=100))
    letters = dead_letter(f"{prefix}letters")
    ticks = app.input(f"{prefix}ticks", value=list, key=str, timestamp=lambda tick: tick[1], on_error=letters)
    counts = ticks.partition_by(lambda tick: tick[0], partitions=2).window(tumbling(milliseconds=100), count())
    told = counts.map(lambda pane: [pane.key, pane.start, pane.value])
    told.send_to(app.output(f"{prefix}counts", value=list, key=str, partitions=3))
    ticks.send_to(app.output(f"{prefix}copies", value=list, key=str, partitions=2))
    return app


if __name__ == "__main__":
    kafka_published.ROWS, kafka_published.KafkaPublisher._transact = 40, transact
    spark = Spark(
        master="local[2]",
        options={"spark.ui.enabled": "false"},
        **({"checkpoint": Path(directory, "checkpoint"), "max_records": 20, "end": True} if "on" in how else {}),
    )
    if "environment" in how:
        cluster, _, prefix = address.rpartition("/")
        bind = {f"{prefix}-copies": f"{address}-copies"}
        counting(f"{prefix}-").run(Path(directory, "data"), on=spark, bind=bind, environment=cluster)
    else:
        bind = {name: f"{address}-{name}" for name in ("ticks", "counts", "copies")}
        counting().run(Path(directory, "data"), on=spark, bind=bind)
