"""Shows what memory a driver takes for rows of the log: python -m tests.spark.driver_memory --rows 3000000."""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.memory import growth_mib
from samza_dsl import App, Spark, dead_letter
from tests.scale import positive

PARTITIONS, BAD = 4, 10
"""The files of the input, and of how many numbers one is told of by a dead letter."""


def tenfold(number: int) -> str:
    """Return a number in words of forty letters; one in ten is refused."""
    if number % BAD == 0:
        raise ValueError(number)
    return f"{number:040}"


def app() -> App:
    """Return what writes each number to the log, as a result or as a dead letter."""
    writing = App("driver-memory")
    numbers = writing.input("numbers", value=int)
    numbers.map(tenfold, on_error=dead_letter("refused")).send_to(writing.output("words", value=str))
    return writing


def write_numbers(folder: Path, rows: int) -> None:
    """Write the numbers to files."""
    folder.mkdir()
    for part in range(PARTITIONS):
        (folder / f"{part}.jsonl").write_text("".join(f"{number}\n" for number in range(part, rows, PARTITIONS)))


def trial(folder: Path, rows: int) -> str:
    """Run it once, and return what it came to; raises AssertionError where rows are not all there."""
    from runtime.systems.log.environment import LogEnvironment

    write_numbers(folder / "numbers", rows)
    on = Spark(master="local[2]", options={"spark.driver.memory": "2g", "spark.ui.enabled": "false"})
    on.opened()
    began = time.monotonic()
    growth = growth_mib(lambda: app().run(folder / "data", on=on, bind={"numbers": str(folder / "numbers")}))
    took_s = time.monotonic() - began
    log = LogEnvironment(folder / "data")
    found = [log.stream_stats(name)[0] for name in ("words", "refused")]
    log.close()
    assert found == [rows - len(range(0, rows, BAD)), len(range(0, rows, BAD))], found
    return f"{rows:,} rows for the log: {took_s:.0f} s, and the driver's own memory grew by {growth or 0:.0f} MiB"


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="Show what memory a driver takes for rows of the embedded log.")
    parser.add_argument("--rows", type=positive, default=3_000_000)
    with tempfile.TemporaryDirectory() as folder:
        print(trial(Path(folder), parser.parse_args().rows), flush=True)


if __name__ == "__main__":
    main()
