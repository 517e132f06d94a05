"""A program that writes two files and a stream on Spark, and is killed between any two of them."""

import os
import signal
import sys
from pathlib import Path

from runtime.units.publication.intent import Intent
from samza_dsl import App, Spark

directory = Path(*sys.argv[1:2])
app = App("writing")
numbers = app.input("numbers", value=int)
for name in ("first", "second", "third"):
    numbers.send_to(app.output(name, value=int))


def dies_after(number, real=Intent.rename):
    """Have files put in their places, but so many of them alone before the process dies."""

    def dies(self):
        real(Intent(self.renames[:number], self.rows, self.topics, self.metrics))
        os.kill(os.getpid(), signal.SIGKILL)

    return dies


if __name__ == "__main__":
    for number in sys.argv[2:3]:
        Intent.rename = dies_after(int(number))
    bind = {name: directory / f"{name}.jsonl" for name in ("numbers", "first", "second")}
    run = app.run(directory / "data", bind=bind, on=Spark(master="local[1]", options={"spark.ui.enabled": "false"}))
    print(run.metrics().received("numbers"), *sorted(run.received("third")))
