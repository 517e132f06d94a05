"""A program that goes on from its checkpoint in the directory that it is given, and ends with what is in its inputs."""

import json
import sys
from pathlib import Path

from samza_dsl import App, Spark, count, tumbling

directory = Path(*sys.argv[1:2])
fails = "fails" in sys.argv


def passed(tick):
    tries = directory / "tries"
    if fails and tick[1] == 500:
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if len(tries.read_text()) == 1:
            raise OSError("the first attempt fails here")
    return tick


app = App("going-on")
ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1]).map(passed)
counts = ticks.partition_by(lambda tick: tick[0], partitions=2).window(tumbling(milliseconds=100), count())
told = counts.map(lambda pane: [pane.key, pane.start, pane.value])
told.send_to(app.output("log", value=list))
told.send_to(app.output("files", value=list))

if __name__ == "__main__":
    spark = Spark(
        master="local[2,3]",
        options={"spark.ui.enabled": "false"},
        checkpoint=directory / "checkpoint",
        max_records=int(sys.argv[2]),
        end=True,
    )
    run = app.run(directory / "data", on=spark, bind={"files": directory / "files.jsonl"})
    print(json.dumps(sorted(run.received("log"))))
