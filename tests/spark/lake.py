"""Kills runs on Spark with -9 while they append to Delta and Iceberg, by command, and counts what the tables have."""

# It makes an environment with the newest PySpark that both formats support, and fetches their jars:
# python -m tests.spark.lake --kills 50

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from runtime.systems.kafka.broker.jars import cache_directory
from tests.spark.lake_job import ROWS

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


def environment() -> Path:
    """Return the Python of an environment that has what this one has, but another PySpark."""
    place = cache_directory() / "lake"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PYSPARK], check=True)
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

    def run(self, table: str, kill_after_s: float | None = None) -> bool:
        """Run the job; kill it so long after it has begun to write. Return whether it came to its end."""
        command = [self._python, "-m", "tests.spark.lake_job", str(self._directory), table, *self._jars]
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

    def counted(self, form: str) -> tuple[int, int]:
        """Return how many rows a table has, and how many different ones."""
        command = [self._python, "-m", "tests.spark.lake_job", str(self._directory), "count", form, *self._jars]
        own = {**os.environ, "PYSPARK_PYTHON": str(self._python)}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=own).stdout
        _, rows, distinct = next(line for line in told.splitlines() if line.startswith("rows ")).split()
        return int(rows), int(distinct)


def main() -> None:
    """Kill as often as was asked for, and count after each run that came to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    python, found, chance = environment(), jars(), random.Random(said.seed)
    for form, table in (("delta", "delta:{}/delta"), ("iceberg", "iceberg:lake.db.rows")):
        with tempfile.TemporaryDirectory(prefix="samza-dsl-lake-") as directory:
            runs, killed, whole = Runs(python, Path(directory), found), 0, 0
            while killed < said.kills:
                if runs.run(table.format(directory), chance.uniform(0, LONGEST_S)):
                    whole += 1
                    rows, distinct = runs.counted(form)
                    assert (rows, distinct) == (whole * ROWS, ROWS), (form, whole, rows, distinct)
                else:
                    killed += 1
            whole += runs.run(table.format(directory))
            rows, distinct = runs.counted(form)
            assert (rows, distinct) == (whole * ROWS, ROWS), (form, whole, rows, distinct)
            print(f"{form}: {killed} kills, {whole} whole runs, {rows:,} rows: each once in each run", flush=True)


if __name__ == "__main__":
    main()
