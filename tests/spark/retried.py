"""A program whose only task fails in its first attempt, when half of what it writes is written."""

import json
import sys
from pathlib import Path

from runtime.model.clock import sleep_ms
from samza_dsl import App, Options, Spark

directory = Path(*sys.argv[1:2])
tries = directory / "tries.json"


def passed(number):
    if number == 0:
        before = json.loads(tries.read_text())["tries"] if tries.exists() else 0
        tries.write_text(json.dumps({"tries": before + 1}))
    if number == 50 and json.loads(tries.read_text())["tries"] == 1:
        raise OSError("the first attempt fails here")
    return number


app = App("retried", Options(max_uncommitted=10, batch_records=10))
app.input("numbers", value=int).map(passed).send_to(app.output("out", value=int))

if __name__ == "__main__":
    (directory / "numbers.jsonl").write_text("".join(f"{number}\n" for number in range(100)))
    bind = {"numbers": directory / "numbers.jsonl", "out": directory / "out.jsonl"}
    seen = []

    async def watch(run):
        """Note what is seen of it."""
        try:
            while True:
                seen.append(run.metrics().received("map-numbers"))
                await sleep_ms(10)
        finally:
            seen.append(run.metrics().received("map-numbers"))

    app.run(on=Spark(master="local[1,3]", options={"spark.ui.enabled": "false"}), bind=bind, watch=watch)
    print(json.dumps(seen))
