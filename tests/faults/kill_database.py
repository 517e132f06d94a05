"""Kills a run that writes to a database, or lets another take it over while it is stopped, and counts the rows."""

import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec
import psycopg
import redis

from operators.core.base import Batch
from runtime.model.errors import Fenced
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, SamzaError, connectors, dead_letter
from samza_dsl.connectors import PositionedSink
from tests.databases import postgres, redis_server
from tests.faults import broken
from tests.faults.processes import Child, child, wait_until
from tests.faults.trials import Missed, Order, Verdict, one_by_one

KINDS = ("sqlite", "postgres", "duckdb", "redis")
SERVERS = {"postgres": postgres, "redis": redis_server}
SAFEGUARD = "positions in the transaction of the rows"
NUMBERS, ACCOUNTS = 1_500, 7
REFUSED = 101
"""A table has no number that this divides: those are dead letters."""
WAIT_S = 1.5
"""How long who takes over is waited for, until the one that was stopped goes on: it may hold a lock."""
PATIENCE_S = 120.0
AT_WORK = 0.8
"""The part of the runs that are killed or stopped as they write; the others are so wherever they are."""


MakePlace = Callable[[int, Path], "Place"]


class Booking(msgspec.Struct):
    """A number, and how many its account has had with it."""

    account: int
    count: int
    number: int


CONNECT: dict[str, Callable[[str], Any]] = {
    "sqlite": sqlite3.connect,
    "duckdb": duckdb.connect,
    "postgres": psycopg.connect,
}


class Place(NamedTuple):
    """A database to write to: its kind, where it is, a table for rows that are appended, one by key."""

    kind: str
    where: str
    suffix: str

    def sinks(self) -> dict[str, PositionedSink]:
        if self.kind == "redis":
            bookings = connectors.redis_stream(self.where, f"bookings_{self.suffix}")
            return {
                "bookings": bookings,
                "newest": connectors.redis_hashes(self.where, f"newest_{self.suffix}", "account"),
            }
        make = getattr(connectors, self.kind)
        by_key = make(self.where, f"newest_{self.suffix}", key="account")
        return {"bookings": make(self.where, f"bookings_{self.suffix}"), "newest": by_key}

    def make(self) -> None:
        """Make the table of rows that are appended, which refuses some."""
        if self.kind != "redis":
            with closing(CONNECT[self.kind](self.where)) as connection:
                columns = f"account BIGINT, count BIGINT, number BIGINT CHECK (number % {REFUSED} <> 0)"
                connection.execute(f"CREATE TABLE bookings_{self.suffix} ({columns})")
                connection.commit()

    def rows(self, table: str) -> list[tuple[int, ...]]:
        if self.kind == "redis":
            with closing(redis.Redis.from_url(self.where)) as client:
                is_stream = client.exists(f"{table}_{self.suffix}")
                added = [fields for _, fields in client.xrange(f"{table}_{self.suffix}")] if is_stream else []
                found = added or [client.hgetall(key) for key in client.scan_iter(f"{table}_{self.suffix}:*")]
            return [tuple(int(row[name.encode()]) for name in Booking.__struct_fields__) for row in found]
        with closing(CONNECT[self.kind](self.where)) as connection:
            return connection.execute(f"SELECT account, count, number FROM {table}_{self.suffix}").fetchall()


def bookings() -> App:
    app = App("bookings", Options(batch_records=20, max_uncommitted=25))

    def booked(number, context):
        context.state = (context.state or 0) + 1
        return [Booking(context.key, context.state, number)]

    numbers = app.input("numbers", value=int)
    booked_ = numbers.partition_by(lambda n: n % ACCOUNTS, partitions=2, op_id="by").process(booked, op_id="book")
    booked_.send_to(app.output("bookings", value=Booking), on_error=dead_letter("refused"))
    booked_.send_to(app.output("newest", value=Booking, partitions=2))
    return app


def fill(data: Path) -> None:
    with closing(LogEnvironment(data, sync=False)) as log:
        log.create_stream("numbers", StreamConfig())
        log.append([Append("numbers", 0, Batch([b"%d" % number for number in range(NUMBERS)]))])
        log.end_stream("numbers")


def mark_of(data: Path) -> Path:
    """Return the file that is there once a run has begun to write to a database."""
    return data.with_name(f"has-written-{data.name}")


def marking(sink: PositionedSink, data: Path) -> PositionedSink:
    """Return a sink that leaves the mark of a run as it writes."""

    def write(*given: Any) -> None:
        mark_of(data).touch()
        sink.write(*given)

    return replace(sink, write=write)


def run(data: Path, place: Place, without: str | None = None) -> str:
    """Run to the end; return how it ended."""
    broken.switch_off(without)
    try:
        bookings().run(data, bind={output: marking(sink, data) for output, sink in place.sinks().items()})
    except Fenced:
        return "fenced"
    except SamzaError as error:
        # Copied before the first commit, both of them have never written there, as far as they know.
        # Or the one that was stopped has written more before this one came to claim the place.
        if "earlier life" not in str(error) and "of another time" not in str(error):
            raise
        return "refused"
    return "ended"


def ended(data: Path, place: Place, without: str | None) -> str:
    """Run to the end; return whether it came there, or had less than the database has already."""
    with child(run, data, place, without) as process:
        assert wait(process, PATIENCE_S), "the last run does not end"
        return str(process.result())


def letters(data: Path) -> list[int]:
    """Return the numbers that are dead letters in a data directory, in order."""
    with closing(LogEnvironment(data, sync=False)) as log:
        read = log.read("refused", 0, 0, NUMBERS) if "refused" in log.streams() else None
        found: list[int] = []
        while read is not None:
            found += [msgspec.json.decode(value, type=Booking).number for value in read.batch.values if value]
            read = log.read("refused", 0, read.next_offset, NUMBERS)
    return sorted(found)


def wrong_in(place: Place, refused: Sequence[list[int]]) -> list[str]:
    """Return what is wrong with the rows at the end: each number there once, and the newest of each account.

    What is `refused` are the dead letters of each data directory. A letter lies where it was written: whoever has gone
    on with a copy of a directory has those alone that come behind the copy.
    """
    found = Counter(number for _, _, number in place.rows("bookings"))
    if place.kind != "redis":
        expected = [*range(0, NUMBERS, REFUSED)]
        if any(found[number] for number in expected):
            return ["a table has rows that it refuses"]
        together = sorted({number for found in refused for number in found})
        if together != expected or any(len({*found}) < len(found) for found in refused):
            return [f"the dead letters are {refused}, and not {expected}"]
        found |= Counter(expected)
    lost = [number for number in range(NUMBERS) if not found[number]]
    doubled = [number for number, times in found.items() if times > 1]
    wrong = [f"{len(lost)} rows are lost, as {lost[0]}"] if lost else []
    wrong += [f"{len(doubled)} rows are there twice, as {doubled[0]}"] if doubled else []
    numbers = {account: [n for n in range(NUMBERS) if n % ACCOUNTS == account] for account in range(ACCOUNTS)}
    newest = {account: (account, len(of), of[-1]) for account, of in numbers.items()}
    if (rows := sorted(place.rows("newest"))) != sorted(newest.values()):
        wrong.append(f"by key there is {rows}")
    return wrong


def wait(process: Child, seconds: float) -> bool:
    """Wait for the end of a process at most so long; return whether it has ended."""
    until = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def wait_for_work(process: Child, data: Path) -> None:
    """Wait until a run writes to its database, or has ended."""
    wait_until(lambda: mark_of(data).exists() or process.poll() is not None, PATIENCE_S)


def trial(
    make_place: MakePlace, typical_s: dict[str, float], without: str | None, seed: int, work: Path
) -> dict[str, int]:
    """Kill a run twice, or stop it and have a copy of its data directory taken over; then run to the end."""
    chance, place, data = random.Random(seed), make_place(seed, work), work / "data"
    fill(data)
    if place.kind not in typical_s:
        typical_s[place.kind] = undisturbed_s(data, place._replace(suffix=f"{place.suffix}_undisturbed"))
    place.make()
    counts: Counter[str] = Counter()
    former: list[Path] = []
    for _ in range(2):
        # Nobody else opens a file of DuckDB while the one that was stopped has it.
        is_zombie = place.kind != "duckdb" and chance.random() < 0.4
        mark_of(data).unlink(missing_ok=True)
        with child(run, data, place, without) as process:
            if chance.random() < AT_WORK:
                wait_for_work(process, data)
            if wait(process, chance.uniform(0, 0.8 * typical_s[place.kind])):
                process.result()
                break
            if is_zombie:
                former.append(data)
                data = taken_over(process, data, place, without, counts, chance)
            else:
                process.kill()
                counts[f"killed on {place.kind}"] += 1
    ends = [(one.name, ended(one, place, without)) for one in dict.fromkeys([data, *former])]
    assert "ended" in {end for _, end in ends}, f"no copy of the data directory goes on: {ends}"
    if not counts:
        raise Missed(f"a run on {place.kind} was over before it was killed")
    # Of heirs that were killed as well: what they have written to the place, with its letters, nobody writes again.
    wrong = wrong_in(place, [letters(one) for one in (work / "data", *work.glob("copy-*"))])
    assert not wrong, f"{place.kind}, {dict(counts)}: {'; '.join(wrong)}"
    return dict(counts)


def undisturbed_s(data: Path, place: Place) -> float:
    """Return how long a run writes that nobody kills."""
    copy = data.with_name("undisturbed")
    shutil.copytree(data, copy)
    place.make()
    with child(run, copy, place) as process:
        wait_for_work(process, copy)
        began = time.monotonic()
        assert process.result() == "ended" and not wrong_in(place, [letters(copy)])
    return time.monotonic() - began


def taken_over(
    zombie: Child, data: Path, place: Place, without: str | None, counts: Counter[str], chance: random.Random
) -> Path:
    """Stop a run, take it over from a copy of its data directory, and let it go on; return the copy."""
    zombie.send(signal.SIGSTOP)
    copy = data.with_name(f"copy-{counts.total()}")
    shutil.copytree(data, copy)
    with child(run, copy, place, without) as heir:
        wait(heir, chance.uniform(0, WAIT_S))
        zombie.send(signal.SIGCONT)
        if chance.random() < 0.5:
            heir.kill()
        assert wait(heir, PATIENCE_S) and wait(zombie, PATIENCE_S), "a run hangs that was taken over, or its heir"
    # It is fenced, unless its heir died before it could claim the place, or found all done: then its own data goes on.
    end = zombie.result()
    counts[f"zombie on {place.kind} {end}"] += 1
    return data if end == "ended" else copy


@contextmanager
def database(kind: str) -> Iterator[MakePlace]:
    """Yield what makes places of a kind; a server is started where it needs one."""
    if kind in SERVERS:
        with SERVERS[kind].running() as url:
            yield lambda seed, work: Place(kind, url, str(seed))
    else:
        yield lambda seed, work: Place(kind, str(work / f"rows.{kind}"), "1")


def campaign(order: Order) -> Verdict:
    """Make as many trials on each kind of database, or all on the one that is ordered."""
    kinds = [order.kind] if order.kind else KINDS
    each, found = replace(order, times=-(-order.times // len(kinds))), Verdict()
    for kind in kinds:
        with database(kind) as make_place:
            found.add(one_by_one(each, partial(trial, make_place, {}, SAFEGUARD if order.broken else None)))
    return found
