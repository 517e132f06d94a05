"""Kills executors and Python workers alone with -9, while their driver goes on, and counts what outputs have."""

# python -m tests.spark.lost_workers --kills 20 --seed 3 --into folder,table
# Delta and Iceberg need an environment of their own, which the command of kills makes:
# python -m tests.spark.lake --workers --kills 20

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from runtime.spark.table_writer import TableWriter
from runtime.units.driver import micro_batch_inputs
from samza_dsl import App, IntoTable, Spark
from tests.scale import positive
from tests.spark.classes import options as java_options

FILES, ROWS, KEYS, BATCHES = 4, 4_000, 7, 3
"""The files of the input, its rows in all, their keys, and the micro-batches that files are cut into."""
KINDS = ("executor", "daemon", "worker")
"""What dies: an executor of the JVM, the Python that forks its workers, or one of these."""
LONGEST_S = 1.5
"""The most that a table is written for before an executor dies."""
MOST_FAILURES = 20
"""The attempts of a task: of an executor that was killed, Spark takes each task for one that has failed."""
PLACES = {
    "folder": "{}/folder",
    "table": "table:lost_rows",
    "delta": "delta:{}/delta",
    "iceberg": "iceberg:lake.db.rows",
}
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


class Row(Struct, frozen=True):
    """A row of the output."""

    key: str
    number: int


@dataclass(frozen=True)
class Deaths:
    """The numbers at which a process dies, each once: the first to come there takes the file that says which one."""

    place: Path
    before: frozenset[int]
    behind: frozenset[int]

    def mapped(self, number: int) -> Row:
        """Return the row of a number, in front of the shuffle."""
        if number in self.before:
            self.meet(f"before-{number}")
        return Row(f"K{number % KEYS}", number)

    def same(self, row: Row) -> Row:
        """Return a row, behind the shuffle, whose files go with an executor."""
        if row.number in self.behind:
            self.meet(f"behind-{row.number}")
        return row

    def meet(self, name: str) -> None:
        """Die if nobody did so here; an executor's worker goes on behind its death, for as long as it may."""
        try:
            (self.place / name).rename(self.place / f"{name}.dead")
        except FileNotFoundError:
            return
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        victims = {"worker": os.getpid(), "daemon": daemon, "executor": executor}
        os.kill(victims[(self.place / f"{name}.dead").read_text()], signal.SIGKILL)


def deaths(place: Path, kills: int, chance: random.Random) -> Deaths:
    """Draw where processes die, and of which kind these are."""
    found: dict[str, set[int]] = {"before": set(), "behind": set()}
    place.mkdir()
    for _ in range(kills):
        when, number = chance.choice([*found]), chance.randrange(ROWS)
        found[when].add(number)
        (place / f"{when}-{number}").write_text(chance.choice(KINDS))
    return Deaths(place, frozenset(found["before"]), frozenset(found["behind"]))


def pipeline(deaths: Deaths) -> App:
    """Return what writes each number behind a shuffle."""
    app = App("lost")
    rows = app.input("numbers", value=int).map(deaths.mapped)
    keyed = rows.partition_by(lambda row: row.key, partitions=3, value=Row)
    keyed.map(deaths.same).send_to(app.output("rows", value=Row))
    return app


class WritesLost:
    """Kills an executor while a table is written, once in a run, at a moment that chance says."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._armed, self.dead = chance, False, 0
        for name in ("write", "write_parted"):
            setattr(TableWriter, name, self._lossy(getattr(TableWriter, name)))

    def _lossy(self, write: Callable[..., None]) -> Callable[..., None]:
        def lossy(*arguments: object, **named: object) -> None:
            over = threading.Event()
            killer = threading.Thread(target=self._kill, args=(over,))
            killer.start()
            try:
                write(*arguments, **named)
            finally:
                over.set()
                killer.join()

        return lossy

    def arm(self) -> None:
        """Kill in the next write."""
        self._armed = True

    def _kill(self, over: threading.Event) -> None:
        over.wait(self._chance.uniform(0, LONGEST_S))
        found = executors_below(os.getpid())
        if self._armed and found and not over.is_set():
            os.kill(self._chance.choice(found), signal.SIGKILL)
            self.dead += 1
            self._armed = False


def executors_below(process: int) -> list[int]:
    """Return the executors that a process has begun, by way of its JVM."""
    parents, said = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            said[int(place.name)] = (place / "cmdline").read_bytes()
    found = [one for one, line in said.items() if b"CoarseGrainedExecutorBackend" in line]
    return sorted(one for one in found if parents.get(parents[one]) == process)


class Trials:
    """Runs in one session on executors of their own, each of which loses some."""

    def __init__(self, directory: Path, jars: list[str], chance: random.Random) -> None:
        forms = [form for form in EXTENSIONS if jars]
        options = {
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": java_options(),
            "spark.task.maxFailures": str(MOST_FAILURES),
            "spark.stage.maxConsecutiveAttempts": str(MOST_FAILURES),
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.jars": ",".join(jars),
            "spark.sql.extensions": ",".join(EXTENSIONS[form] for form in forms),
        }
        if forms:
            options |= {
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.lake.type": "hadoop",
                "spark.sql.catalog.lake.warehouse": str(directory / "iceberg"),
            }
        self.spark = Spark(master="local-cluster[2,1,1024]", options=options)
        self.session = self.spark.opened()
        self.writes = WritesLost(chance)
        self._directory, self._chance, self.dead = directory, chance, 0
        (directory / "numbers").mkdir()
        for file in range(FILES):
            lines = "".join(f"{number}\n" for number in range(file, ROWS, FILES))
            (directory / "numbers" / f"{file}.jsonl").write_text(lines)
        micro_batch_inputs.MOST_BYTES = len(lines) // BATCHES + 100  # as it ends behind a line

    def run(self, into: str, mode: str, goes_on: bool, kills: int) -> str:
        """Run once, lose so many, and return what came of it; raises AssertionError where that is not all, once."""
        own = self._directory / f"run-{into}-{mode}-{goes_on}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        where = PLACES[into].format(own)
        self.begin(into, where, mode)
        before, planned = self.writes.dead, deaths(own / "deaths", kills, self._chance)
        self.writes.arm()
        on = Spark(self.session)
        if goes_on:
            on = Spark(self.session, checkpoint=own / "checkpoint", end=True)
        parted = {"partition_by": "key"} if into == "folder" else {"mode": mode}
        bound = IntoTable(where, **parted, key="number" if mode == "merge" else ())
        bind = {"numbers": self._directory / "numbers", "rows": bound}
        run = pipeline(planned).run(own / "data", on=on, bind=bind)
        rows = self.written(into, where)
        expected = sorted((f"K{number % KEYS}", number) for number in range(ROWS))
        assert rows == expected, f"{into}, {mode}: {len(rows):,} rows, {len(set(rows)):,} different ones of {ROWS:,}"
        left = [path for path in (own / "data").rglob("*") if path.is_file() and "spark" in path.parts]
        assert not left, f"attempts have left {left}"
        if goes_on:
            kept = json.loads((own / "checkpoint" / "manifest.json").read_bytes())
            files = {name for unit in kept["units"].values() for name, _ in unit["files"]}
            assert {file.name for file in (own / "checkpoint" / "state").iterdir()} == files, "attempts have left state"
        met = [f"{file.read_text()} {file.name.partition('-')[0]}" for file in planned.place.glob("*.dead")]
        met += ["executor writing"] * (self.writes.dead - before)
        self.dead += len(met)
        commits = run.metrics().commits
        return f"{len(met)} killed ({', '.join(sorted(met))}), {commits} commits, {len(rows):,} rows: each once"

    def begin(self, into: str, where: str, mode: str) -> None:
        """Have no table there, or for a merge one with a row of before."""
        name = where.partition(":")[2]
        if into == "folder":
            return
        target = f"delta.`{name}`" if into == "delta" else name
        if into != "delta":
            self.session.sql(f"DROP TABLE IF EXISTS {target}")
        if mode == "append":
            return
        using = {"table": "parquet"}.get(into, into)
        self.session.sql(f"CREATE TABLE {target} (key STRING, number BIGINT) USING {using}")
        self.session.sql(f"INSERT INTO {target} VALUES ('old', 0)")

    def written(self, into: str, where: str) -> list[tuple[str, int]]:
        """Return the rows of an output, sorted."""
        name = where.partition(":")[2]
        reader = self.session.read
        found = {
            "folder": lambda: reader.parquet(where),
            "delta": lambda: reader.format("delta").load(name),
        }.get(into, lambda: self.session.table(name))()
        return sorted((row.key, row.number) for row in found.collect())


def main() -> None:
    """Lose executors and workers as often as was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=positive, default=20, help="for each output, mode, and way to run")
    parser.add_argument("--each", type=positive, default=3, help="the kills of a run, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--into", default="folder,table")
    parser.add_argument("--modes", default="append,overwrite,merge")
    parser.add_argument("--ways", default="batch,streaming")
    parser.add_argument("--jars", nargs="*", default=[])
    said = parser.parse_args()
    chance = random.Random(said.seed)
    with tempfile.TemporaryDirectory(prefix="samza-dsl-lost-") as directory:
        trials = Trials(Path(directory), said.jars, chance)
        for into in said.into.split(","):
            modes = {"folder": ["append"], "table": ["append", "overwrite"]}.get(into, ["append", "overwrite", "merge"])
            for mode in filter(said.modes.split(",").__contains__, modes):
                for way in said.ways.split(","):
                    before = trials.dead
                    while trials.dead - before < said.kills:
                        told = trials.run(into, mode, way == "streaming", said.each)
                        print(f"{into}, {mode}, {way}: {told}", flush=True)
        trials.session.stop()


if __name__ == "__main__":
    main()
