"""Runs a keyed stage on Spark with far more state than memory: python -m tests.spark.large_state --gib 3."""

import argparse
import hashlib
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.memory import anonymous_mib
from samza_dsl import App, Spark
from tests.scale import positive

STATE_BYTES, ROWS = 256, 100_000
"""What a key's state takes, and how many rows are written at a time."""
PARTITIONS = 2
MOST_MIB = 1024
"""The most memory of its own that a worker may come to."""


def state_of(id: int) -> bytes:
    """Return what is kept of a key: it can be told from any other's, and not be compressed."""
    return hashlib.shake_128(id.to_bytes(8, "big")).digest(STATE_BYTES)


def seen(row: dict, context) -> list[dict]:
    """Keep the state of a key that is new, and tell which key comes again with the state that it had."""
    if context.state is None:
        context.state = state_of(row["id"])
        return []
    assert context.state == state_of(row["id"]), "state is what was kept"
    return [row]


def app() -> App:
    """Return the application: each key comes twice, and it tells those that it has seen before."""
    twice = App("large-state")
    rows = twice.input("rows", value=dict, partitions=PARTITIONS)
    keyed = rows.partition_by(lambda row: row["id"], partitions=PARTITIONS, op_id="by-id")
    keyed.process(seen, op_id="seen").send_to(twice.output("again", value=dict))
    return twice


def write_rows(folder: Path, keys: int) -> None:
    """Write each key twice, once in each of two files."""
    folder.mkdir()
    for part in range(PARTITIONS):
        with pq.ParquetWriter(folder / f"{part}.parquet", pa.schema([("id", pa.int64())])) as writer:
            for first in range(0, keys, ROWS):
                writer.write(pa.table({"id": range(first, min(first + ROWS, keys))}))


@contextmanager
def watched():
    """Watch what memory of their own the workers take; yields a list that has the most of them at the end, in MiB."""
    most, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            most[0] = max([most[0], *(anonymous_mib(one) or 0 for one in workers())])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def workers() -> list[str]:
    """Return the processes that are Spark's workers in Python."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def trial(folder: Path, gib: float) -> str:
    """Run it once, and return what it came to; raises AssertionError where anything is not as it should be."""
    keys = round(gib * 2**30 / STATE_BYTES)
    write_rows(folder / "rows", keys)
    on = Spark(master="local[2]", options={"spark.driver.memory": "1g", "spark.local.dir": str(folder / "local")})
    began = time.monotonic()
    with watched() as most:
        app().run(on=on, bind={"rows": str(folder / "rows"), "again": str(folder / "again.parquet")})
    took_s = time.monotonic() - began
    ids = pq.read_table(folder / "again.parquet")["id"]
    assert (len(ids), pc.count_distinct(ids).as_py()) == (keys, keys), "each key comes again once"
    assert (pc.min(ids).as_py(), pc.max(ids).as_py()) == (0, keys - 1)
    assert most[0] < MOST_MIB, f"a worker took {most[0]:.0f} MiB"
    return f"{gib} GiB of state of {keys:,} keys: {took_s:.0f} s, and at most {most[0]:.0f} MiB in a worker"


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="Run a keyed stage on Spark with far more state than memory.")
    parser.add_argument("--mib", type=positive, default=3 * 1024)
    with tempfile.TemporaryDirectory() as folder:
        print(trial(Path(folder), parser.parse_args().mib / 1024), flush=True)


if __name__ == "__main__":
    main()
