"""Kills a run that reads a table, while others write to it, and compares the table that it has built."""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from operators.joins.changes import Change
from runtime.systems.databases import postgres_changes, sqlite_changes
from samza_dsl import App, Options, connectors
from samza_dsl.connectors import Pulled
from tests.databases import postgres
from tests.faults import broken
from tests.faults.processes import Child, child
from tests.faults.trials import Order, Verdict, one_by_one

KINDS = ("sqlite", "postgres")
SAFEGUARD = "positions beside what was pulled"
ROWS, IDS, WRITES = 150, 300, 400
KILLS = 3
PATIENCE_S = 120.0


class Source(NamedTuple):
    """A table to read: its kind, where it is, its name, and the mark of a parameter."""

    kind: str
    where: str
    table: str

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.where, timeout=30.0, isolation_level=None)
        return psycopg.connect(self.where, autocommit=True)

    def rows(self) -> dict[int, str]:
        with closing(self.connect()) as connection:
            return dict(connection.execute(f"SELECT id, note FROM {self.table}").fetchall())


def make(source: Source) -> None:
    """Make the table, with some rows."""
    with closing(source.connect()) as connection:
        connection.execute(f"CREATE TABLE {source.table} (id INTEGER PRIMARY KEY, note TEXT)")
        if source.kind == "postgres":
            connection.execute(f"ALTER TABLE {source.table} REPLICA IDENTITY FULL")
        for n in range(0, IDS, IDS // ROWS):
            connection.execute(f"INSERT INTO {source.table} VALUES ({n}, 'begun')")


def write(source: Source, seed: int) -> None:
    """Change the table by transactions of a few statements, some of which are rolled back."""
    chance = random.Random(seed)
    with closing(source.connect()) as connection:
        for number in range(WRITES):
            connection.execute("BEGIN")
            for _ in range(chance.randint(1, 3)):
                one, other, note = chance.randrange(IDS), chance.randrange(IDS), f"'{number}'"
                connection.execute(
                    chance.choice(
                        (
                            f"INSERT INTO {{}} VALUES ({one}, {note}) ON CONFLICT (id) DO UPDATE SET note = {note}",
                            f"UPDATE {{}} SET note = {note} WHERE id BETWEEN {one} AND {one + 5}",
                            f"DELETE FROM {{}} WHERE id = {one}",
                            f"UPDATE {{}} SET id = {other} WHERE id = {one} AND NOT EXISTS "
                            f"(SELECT 1 FROM {{}} WHERE id = {other})",
                        )
                    ).format(source.table, source.table)
                )
            connection.execute(chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            time.sleep(chance.random() * 0.004)


def run(data: Path, source: Source, until_now: bool, without: str | None = None) -> list[Any]:
    """Copy changes to a stream; return all that is there at the end."""
    broken.switch_off(without)
    sqlite_changes.CHUNK_ROWS = postgres_changes.CHUNK_ROWS = 10
    app = App("reading", Options(max_uncommitted=50))
    app.input("rows", value=Change[int, dict[str, Any]], key=int).send_to(app.output("seen", key=int))
    pulled = getattr(connectors, f"{source.kind}_source")(source.where, source.table)

    def pull(reader: str, position: bytes) -> Pulled:
        found = pulled.pull(reader, position)
        if found.records:
            mark_of(data).touch()
        return found

    bound = replace(pulled, pull=pull, poll_ms=2)
    return app.run(data, bind={"rows": bound}, until_now=until_now).received("seen")


def mark_of(data: Path) -> Path:
    """Return the file that is there once a run has pulled something."""
    return data.with_name("has-pulled")


def built(changes: list[dict[str, Any]]) -> dict[int, str]:
    """Return the table that changes come to, each of which must follow from the one before of its key."""
    found: dict[int, Any] = {}
    for change in changes:
        key, old, new = change["key"], change["old"], change["new"]
        assert found.get(key) == old, f"{key} was {found.get(key)}, and {change} came"
        found.pop(key, None)
        if new is not None:
            found[key] = new
    return {key: row["note"] for key, row in found.items()}


def wait(process: Child, seconds: float) -> bool:
    """Wait for the end of a process at most so long; return whether it has ended."""
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    return process.poll() is not None


def trial(
    sources: Iterator[Callable[[int, Path], Source]], without: str | None, seed: int, work: Path
) -> dict[str, int]:
    """Kill a run some times while the table is written to; then run to the end."""
    chance, source, data = random.Random(seed), next(sources)(seed, work), work / "data"
    counts: Counter[str] = Counter()
    make(source)
    with child(write, source, seed) as writer:
        for number in range(KILLS):
            mark_of(data).unlink(missing_ok=True)
            with child(run, data, source, False, without) as process:
                # The last one is killed wherever it is, also as it starts; how long that takes is up to the machine.
                while number < KILLS - 1 and not mark_of(data).exists() and writer.poll() is None:
                    assert not wait(process, 0.002), process.result()
                assert not wait(process, chance.uniform(0, 0.8)), process.result()
                process.send(signal.SIGKILL)
                process.wait()
                counts[f"kills on {source.kind}"] += 1
        assert wait(writer, PATIENCE_S), "the writer does not end"
        writer.result()
    with child(run, data, source, True, without) as process:
        assert wait(process, PATIENCE_S), "the last run does not end"
        changes = process.result()
    found, wanted = built(changes), source.rows()
    wrong = {
        key: (found.get(key), wanted.get(key)) for key in found.keys() | wanted if found.get(key) != wanted.get(key)
    }
    assert not wrong, f"{source.kind}: rows differ, as built and as they are: {wrong}"
    if source.kind == "postgres":
        with closing(source.connect()) as connection:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    return dict(counts)


@contextmanager
def tables(kinds: Sequence[str]) -> Iterator[Iterator[Callable[[int, Path], Source]]]:
    """Yield what names tables of these kinds, of one after the other; a server is started where it is needed."""
    with ExitStack() as servers:
        url = servers.enter_context(postgres.running()) if "postgres" in kinds else ""

        def make(kind: str, seed: int, work: Path) -> Source:
            return (
                Source(kind, str(work / "rows.db"), "rows") if kind == "sqlite" else Source(kind, url, f"rows_{seed}")
            )

        yield cycle([partial(make, kind) for kind in kinds])


def campaign(order: Order) -> Verdict:
    """Make trials on all kinds of databases in turn, or on the one that is ordered."""
    with tables([order.kind] if order.kind else KINDS) as sources:
        return one_by_one(order, partial(trial, sources, SAFEGUARD if order.broken else None))
