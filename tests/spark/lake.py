"""Kills runs on Spark with -9 while they write to Delta and Iceberg, by command, and counts what the tables have."""

# It makes an environment with the newest PySpark that both formats support, and fetches their jars:
# python -m tests.spark.lake --kills 50
# python -m tests.spark.lake --kills 50 --streaming
# python -m tests.spark.lake --kills 50 --connect
# python -m tests.spark.lake --kills 20 --workers

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from runtime.systems.kafka.broker.jars import cache_directory
from tests.spark.lake_job import BATCHES, ROWS

PYSPARK = "pyspark==4.1.*"
JARS = ("io.delta:delta-spark_2.13:4.1.0", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0")
FETCH = """\
import sys
from jgo.maven import MavenContext, PythonResolver
maven = MavenContext(resolver=PythonResolver())
for name in sys.argv[1:]:
    asked, brought = maven.resolver.resolve([maven.create_dependency(name)])
    print(*(jar.artifact.resolve() for jar in (*asked, *brought)), sep="\\n")
"""
WANTED = ("delta-spark", "delta-storage", "unitycatalog-client", "antlr4-runtime", "iceberg-spark-runtime")
"""The jars that Spark does not have itself."""
LONGEST_S = 2.0
"""The most that a run goes on for, once it writes, before it is killed."""


def environment(name: str = "lake", pyspark: str = PYSPARK) -> Path:
    """Return the Python of an environment that has what this one has, but another PySpark."""
    place = cache_directory() / name
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", pyspark], check=True)
        (here,) = (path for path in sys.path if path.endswith("site-packages"))
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "rest.pth").write_text(here)
    return python


def jars() -> list[str]:
    """Return the jars of both formats."""
    found = subprocess.run([sys.executable, "-c", FETCH, *JARS], check=True, capture_output=True, text=True)
    return [path for path in found.stdout.split() if Path(path).name.startswith(WANTED)]


class Runs:
    """Runs of the job in a directory, each in a group of processes of its own."""

    def __init__(self, python: Path, directory: Path, with_jars: list[str]) -> None:
        self._python, self._directory, self._jars = python, directory, with_jars

    def run(self, how: str, table: str, mode: str, kill_after_s: float | None = None) -> bool:
        """Run the job; kill it so long after it has begun to write. Return whether it came to its end."""
        command = [self._python, "-m", "tests.spark.lake_job", str(self._directory), how, table, mode, *self._jars]
        own = {**os.environ, "PYSPARK_PYTHON": str(self._python)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=own
        ) as job:
            assert job.stdout is not None
            for line in job.stdout:
                if kill_after_s is not None and line == "writing\n":
                    try:
                        job.wait(kill_after_s)
                    except subprocess.TimeoutExpired:
                        os.killpg(job.pid, signal.SIGKILL)
            _, told = job.communicate()
        if job.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the job failed:\n{told}")
        return job.returncode == 0

    def anew(self) -> None:
        """Forget all that runs have left, tables too."""
        for left in self._directory.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def counted(self, table: str) -> tuple[int, int, int]:
        """Return how many rows a table has, how many different ones, and how many versions of it hold rows."""
        command = [self._python, "-m", "tests.spark.lake_job", str(self._directory), "count", table, "", *self._jars]
        own = {**os.environ, "PYSPARK_PYTHON": str(self._python)}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=own).stdout
        _, *found = next(line for line in told.splitlines() if line.startswith("rows ")).split()
        rows, distinct, versions = map(int, found)
        return rows, distinct, versions


def killed(runs: Runs, how: str, table: str, mode: str, kills: int, chance: random.Random) -> str:
    """Kill runs as often as is asked for, and count after each that came to its end; return what there was then."""
    dead, whole = 0, 0
    while dead < kills or not whole:
        is_killed = dead < kills
        if not runs.run(how, table, mode, chance.uniform(0, LONGEST_S) if is_killed else None):
            dead += 1
            continue
        whole += 1
        rows, distinct, versions = runs.counted(table)
        times = whole if mode == "append" and how != "streaming" else 1
        expected = (times * ROWS, ROWS)
        assert (rows, distinct) == expected, (table, mode, whole, rows, distinct)
        # A run, or a micro-batch of the only one, is one version of the table: written twice it would be two.
        most = BATCHES if how == "streaming" else whole
        assert versions <= most, (table, mode, whole, versions)
        if how == "streaming" and whole:
            runs.anew()
            whole, table_rows = 0, rows
            if dead >= kills:
                return f"{dead} kills, {table_rows:,} rows in {versions} versions: each micro-batch once"
    return f"{dead} kills, {whole} whole runs, {rows:,} rows in {versions} versions: each run once"


def main() -> None:
    """Kill as often as was asked for, for each format and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each format and mode")
    parser.add_argument("--seed", type=int, default=1)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--streaming", dest="how", action="store_const", const="streaming", help="in micro-batches")
    way.add_argument("--connect", dest="how", action="store_const", const="connect", help="through Spark Connect")
    way.add_argument("--workers", action="store_true", help="executors and Python workers alone, as the driver goes on")
    parser.add_argument("--modes", default="append,overwrite,merge")
    said = parser.parse_args()
    python, found, chance = environment(), jars(), random.Random(said.seed)
    if said.workers:
        # One session for all of it: only what a driver has begun dies.
        command = [python, "-m", "tests.spark.lost_workers", "--kills", str(said.kills), "--seed", str(said.seed)]
        command += ["--into", "delta,iceberg", "--modes", said.modes, "--jars", *found]
        raise SystemExit(subprocess.run(command, env={**os.environ, "PYSPARK_PYTHON": str(python)}).returncode)
    for mode in said.modes.split(","):
        for form, table in (("delta", "delta:{}/delta"), ("iceberg", "iceberg:lake.db.rows")):
            with tempfile.TemporaryDirectory(prefix="samza-dsl-lake-") as directory:
                how = said.how or "batch"
                runs = Runs(python, Path(directory), found)
                told = killed(runs, how, table.format(directory), mode, said.kills, chance)
                print(f"{form}, {mode}: {told}", flush=True)


if __name__ == "__main__":
    main()
