"""An application that is run on Spark in a process of its own, in each of the ways in which people begin one."""

import os
import sys
from pathlib import Path

from msgspec import Struct

from samza_dsl import App, SamzaError, Spark, count, tumbling


class Tick(Struct, frozen=True):
    """A tick of a key."""

    key: str
    at: int


class Total(Struct, frozen=True):
    """How many ticks a key has."""

    key: str
    ticks: int


TICKS = [Tick(f"K{n % 3}", n * 100) for n in range(30)]


def app():
    """Return an application that counts ticks by key."""
    made = App("ways")
    ticks = made.input("ticks", value=Tick, timestamp=lambda tick: tick.at)
    totals = ticks.partition_by(lambda tick: tick.key, partitions=2, op_id="by-key").window(tumbling(hours=1), count())
    totals.map(lambda pane: Total(pane.key, pane.value), op_id="totalled").send_to(made.output("totals", value=Total))
    return made


def through_connect(data):
    """Run through Spark Connect: frames in and out, tables, a stage alone, and a function that fails."""
    from pyspark.sql import SparkSession

    begun = SparkSession.builder.remote("local[2]").config("spark.sql.warehouse.dir", f"{data}/tables")
    session = begun.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    frame = session.createDataFrame([(tick.key, tick.at) for tick in TICKS], "key string, at long")
    done = app().run(data / "frames", on=Spark(session), bind={"ticks": frame}, collect=True)
    print(sorted(map(tuple, done.output("totals").collect())))
    app().run(data / "table", on=Spark(session), bind={"ticks": TICKS, "totals": "table:totals"})
    print(sorted(map(tuple, session.table("totals").collect())))
    alone = App("alone")
    alone.input("ticks", value=Tick).map(lambda tick: tick.at).send_to(alone.output("times", value=int))
    print(len(alone.run(data / "alone", on=Spark(session), bind={"ticks": TICKS}).received("times")))
    failing = App("failing")
    failing.input("ticks", value=Tick).map(lambda tick: 1 // 0, op_id="broken").send_to(
        failing.output("none", value=int)
    )
    try:
        failing.run(data / "failing", on=Spark(session), bind={"ticks": TICKS})
    except SamzaError as error:
        print(error, flush=True)
    # To stop a session whose server lives in this process asks that server again and again, which is gone by then.
    os._exit(0)


def main(way, data):
    """Run it as is said, and print what came out."""
    if way == "connect":
        through_connect(data)
        return
    master = None if way == "submit" else "local[2]"
    done = app().run(data, on=Spark(master=master), bind={"ticks": TICKS})
    print(sorted((total.key, total.ticks) for total in done.received("totals")), os.environ.get("PYSPARK_PYTHON", ""))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
