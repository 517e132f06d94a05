"""One list of pipelines that use every operator, with what comes in; every runner comes to the same with each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from operators.partition_by import murmur2
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import (
    App,
    Options,
    Pane,
    Revision,
    after_count,
    aggregate,
    approximate_distinct,
    by_clock,
    collect,
    count,
    counted,
    daily,
    dead_letter,
    distinct,
    first,
    fold,
    hopping,
    last,
    maximum,
    mean,
    minimum,
    quantiles,
    ranges,
    reduce,
    remote_table,
    retry,
    session,
    skip,
    sliding,
    top_k,
    total,
    tumbling,
    whole,
    windows_by,
)
from tests.simulation.crash import Row, fill, memory

PARTITIONS = 3
NEVER_MS = 9_000_000_000_000
"""When alarms are set for that only the end of the inputs brings about."""
KEYS = tuple("abcdefg")


class Event(msgspec.Struct, frozen=True, order=True):
    """What comes in: a number of a key, at a time in ms."""

    number: int
    key: str
    at: int


PIPELINES: dict[str, Callable[[App], None]] = {}


def pipeline(build: Callable[[App], None]) -> Callable[[App], None]:
    """Add a pipeline to the list, under its name."""
    PIPELINES[build.__name__] = build
    return build


def app_of(name: str, options: Options | None = None) -> App:
    """Return the application of one of the pipelines."""
    app = App(name.replace("_", "-"), options)
    PIPELINES[name](app)
    return app


def filled(seed: int = 0) -> MemoryEnvironment:
    """Return an environment with all streams that the pipelines read, each of which has ended."""
    environment, chance = memory(), random.Random(seed)
    for stream, size in (("events", 40), ("more", 40), ("slow", 40), ("orders-1", 9), ("orders-2", 9)):
        fill(environment, stream, _parts(chance, size), chance)
    rows = [(key, msgspec.json.encode(Event(number, key, number)), number) for number, key in enumerate(KEYS[:5])]
    for stream in ("rows", "others", "versions"):
        parts: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        for key, value, at in rows:
            parts[_place(key)].append((key.encode(), value, at))
        parts[_place("a")] += [(b"a", msgspec.json.encode(Event(90, "b", 60)), 60), (b"zz", None, 61)]
        fill(environment, stream, parts)
    fill(environment, "few", [[(key.encode(), value, at) for key, value, at in rows]])
    fill(environment, "dirty", [[(b"a", b"7", 1), (b"b", b"seven", 2), (b"c", b"0", 3), (b"a", b"9", 4)]])
    fill(environment, "strings", [[(b"a", b"a", 1), (b"b", b"c", 2), (b"c", b"a", 3)]])
    return environment


def _place(key: str) -> int:
    return murmur2(key.encode()) % PARTITIONS


def _parts(chance: random.Random, size: int) -> list[list[Row]]:
    """Return events by partition: those of a key lie in one, in disorder, and some of them late."""
    parts: list[list[Row]] = []
    for partition in range(PARTITIONS):
        keys, now, rows = [key for key in KEYS if _place(key) == partition], 0, []
        for _ in range(size):
            now += chance.randint(0, 30)
            event = Event(chance.randint(0, 99), chance.choice(keys), max(now - chance.choice((0, 0, 10, 200)), 0))
            rows.append((event.key.encode(), msgspec.json.encode(event), event.at))
        parts.append(rows)
    return parts


def events(app: App, stream: str = "events") -> Any:
    return app.input(stream, value=Event, key=str, timestamp=lambda event: event.at, max_disorder_ms=20)


def told(app: App, panes: Any) -> None:
    """Send panes on as plain values."""
    panes.map(lambda pane: (pane.key, pane.start, pane.end, pane.value)).send_to(app.output("out"))


@pipeline
def stateless(app: App) -> None:
    kept = events(app).filter(lambda event: event.number % 3).map(lambda event: event.number)
    arms = kept.branch(lambda n: "odd" if n % 2 else ("even", "odd"), into=("odd", "even"))
    arms["odd"].flat_map(lambda n: [n, -n]).send_to(app.output("odd", value=int))
    arms["even"].merge(arms["odd"].map(abs)).send_to(app.output("even", value=int, partitions=2))


@pipeline
def policies(app: App) -> None:
    numbers = app.input("dirty", value=int, key=str, on_error=dead_letter("letters"))
    numbers.map(lambda n: 10 // n, on_error=dead_letter("letters")).send_to(app.output("quotients", value=int))
    numbers.map(lambda n: 10 // n, op_id="again", on_error=retry(2, then=skip)).send_to(app.output("again", value=int))


@pipeline
def asynchronous(app: App) -> None:
    async def doubled(event: Event) -> list[int]:
        await asyncio.sleep(0)
        return [event.number, event.number * 2]

    async def seen(event: Event, context: Any) -> list[tuple[str, int]]:
        await asyncio.sleep(0)
        context.state += 1
        return [(event.key, context.state)]

    events(app).async_flat_map(doubled, order="none").send_to(app.output("doubled", value=int))
    keyed = events(app, "more").partition_by(lambda event: event.key, partitions=2)
    keyed.async_flat_map(seen, init=int, op_id="seen").send_to(app.output("seen"))


@pipeline
def partitioned(app: App) -> None:
    read = events(app)
    by = read.partition_by(lambda event: event.key, partitions=4, by=ranges(["c", "e", "f"]))
    by.scan(lambda state, event: state + event.number, init=int).send_to(app.output("sums", value=int))
    read.broadcast(partitions=2).map(lambda event: event.number).send_to(app.output("copies", value=int))


@pipeline
def aggregations(app: App) -> None:
    number = lambda event: event.number  # noqa: E731
    parts = aggregate(
        dict,
        count=count(),
        total=total(number),
        mean=mean(number),
        maximum=maximum(number),
        minimum=minimum(number),
        first=first(number),
        last=last(number),
        top=top_k(2, by=number),
        distinct=distinct(number),
        about=approximate_distinct(number),
        quantiles=quantiles([0.5, 0.9], number),
        largest=reduce(lambda one, other: max(one, other)),
        folded=fold(int, lambda held, event: held + event.number),
    )
    told(app, events(app).partition_by(lambda event: event.key, partitions=2).window(tumbling(milliseconds=100), parts))


@pipeline
def window_kinds(app: App) -> None:
    keyed = events(app).partition_by(lambda event: event.key, partitions=2)
    hops, gaps = hopping(milliseconds=100, every_ms=40), session(milliseconds=25)
    told_of = {"hops": hops, "gaps": gaps, "days": daily("America/New_York"), "sliding": sliding(milliseconds=50)}
    told_of |= {"five": counted(5), "all": whole()}
    for name, windows in told_of.items():
        panes = keyed.window(windows, collect(), op_id=name, late=dead_letter(f"late-{name}"))
        values = panes.map(
            lambda pane: (pane.key, sorted(event.number for event in pane.value)), op_id=f"{name}-values"
        )
        values.send_to(app.output(f"out-{name}"))


@pipeline
def triggers(app: App) -> None:
    how = {"early": after_count(3), "allowed_lateness_ms": 100, "late": dead_letter("too-late")}
    panes = events(app).window(tumbling(milliseconds=100), count(), **how)
    told(app, panes.map(lambda pane: pane))
    final = events(app, "more").window(session(milliseconds=30), count(), emit="final", op_id="final")
    final.map(lambda pane: (pane.key, pane.end, pane.value), op_id="ends").send_to(app.output("final"))
    again = events(app, "slow").window(sliding(milliseconds=50), count(), allowed_lateness_ms=60, op_id="slid-again")
    again.map(lambda pane: pane, op_id="told-again").send_to(app.output("slid"))


@pipeline
def retractions(app: App) -> None:
    how = {"early": after_count(4), "panes": "retracting", "allowed_lateness_ms": 200}
    counts = events(app).window(tumbling(milliseconds=100), count(), **how)
    counts.revisions().send_to(app.output("revised", value=Revision[Pane[str, int]]))
    sums = counts.map(lambda pane: pane.value).partition_by(lambda n: "all", partitions=1, op_id="together")
    totals = sums.window(tumbling(milliseconds=500), total(lambda n: n), panes="retracting", op_id="totals")
    totals.revisions().send_to(app.output("totals", value=Revision[Pane[str, int]]))


@pipeline
def of_all(app: App) -> None:
    panes = events(app).window_all(tumbling(milliseconds=100), count(), op_id="of-all")
    panes.map(lambda pane: (pane.start, pane.value)).send_to(app.output("out"))


@pipeline
def windows_of_rows(app: App) -> None:
    rows = app.table("rows", key=str, value=Event)
    choose = windows_by(rows, lambda row: tumbling(milliseconds=50 if row is None else 100))
    told(app, events(app).window(choose, count()))


@pipeline
def joins_of_streams(app: App) -> None:
    left, right = events(app), events(app, "more")
    pair = lambda one, other: (one and one.number, other and other.number)  # noqa: E731
    left.join(right, pair, within=(-20, 30), how="outer", late=dead_letter("late")).send_to(app.output("pairs"))
    keys = {"partitions": 2}
    there, here = (
        stream.partition_by(lambda event: event.number % 5, op_id=name, **keys)
        for name, stream in (("there", left), ("here", right))
    )
    met = there.join_windows(here, tumbling(milliseconds=100), pair, how="left")
    met.map(lambda pane: (pane.key, pane.start, sorted(pane.value, key=repr))).send_to(app.output("met"))


@pipeline
def nearest(app: App) -> None:
    pair = lambda one, other: (one.number, other and other.number)  # noqa: E731
    left, right = events(app), events(app, "more")
    left.join_asof(right, pair, how="left", late=dead_letter("late")).send_to(app.output("before"))
    fifths = (lambda event: event.number % 5, lambda event: event.number % 3)
    left.join_asof(right, pair, on=fifths, tolerance=40, op_id="within").send_to(app.output("within"))
    there, here = (stream.partition_by(lambda event: event.number % 3, partitions=2) for stream in (left, right))
    for how in ({"direction": "forward"}, {"direction": "nearest", "how": "left"}):
        near = there.join_asof(here, pair, tolerance=40, op_id=how["direction"], **how)
        near.send_to(app.output(how["direction"]))


@pipeline
def joins_of_tables(app: App) -> None:
    rows, few = app.table("rows", key=str, value=Event), app.table("few", key=str, value=Event, broadcast=True)
    versions = app.table("versions", key=str, value=Event, retention_ms=1_000, timestamp=lambda event: event.at)
    number = lambda event, row: (event.number, row and row.number)  # noqa: E731
    read = events(app)
    read.join(rows, number).send_to(app.output("by-key"))
    read.join(few, number, on=lambda event: event.key, how="left").send_to(app.output("broadcast"))
    events(app, "more").join(versions, number, how="left", late=dead_letter("late")).send_to(app.output("as-of"))


@pipeline
def malformed_rows(app: App) -> None:
    rows = app.table("dirty", key=str, value=int, on_error=dead_letter("letters"))
    numbers = app.input("strings", value=str, key=str)
    numbers.join(rows, lambda text, row: (text, row)).send_to(app.output("first"))
    again = numbers.partition_by(lambda text: text, partitions=1, key_type=str)
    again.join(rows, lambda text, row: (text, row), op_id="again").send_to(app.output("again"))


@pipeline
def tables_of_tables(app: App) -> None:
    rows, others = app.table("rows", key=str, value=Event), app.table("others", key=str, value=Event)
    by_key = rows.join(others, lambda row, other: (row.number, other.number))
    newest = fold(lambda: None, lambda row, change: change.new)
    told(app, by_key.changes().window(whole(), newest, op_id="newest"))
    versions = app.table("versions", key=str, value=Event)
    named = rows.join(versions, lambda row, other: (row.number, other and other.at), on=lambda row: row.key, how="left")
    last_named = named.changes().window(whole(), newest, op_id="last")
    last_named.map(lambda pane: (pane.key, pane.value), op_id="rows-of-rows").send_to(app.output("named"))


@pipeline
def own_tables(app: App) -> None:
    table = events(app).map(lambda event: event.number).to_table("own")
    newest = fold(lambda: None, lambda row, change: change.new)
    told(app, table.changes().window(whole(), newest, op_id="newest-own"))
    met = events(app, "more").join(table, lambda event, row: event.number, how="left", op_id="met")
    met.send_to(app.output("met-or-not"))


@pipeline
def remote(app: App) -> None:
    async def fetch(numbers: list[int]) -> dict[int, str]:
        await asyncio.sleep(0)
        return {number: f"n{number}" for number in numbers if number}

    named = events(app).join(remote_table(fetch), lambda event, name: (event.number, name), on=lambda e: e.number % 4)
    named.send_to(app.output("named"))


@pipeline
def processed(app: App) -> None:
    def on_message(event: Event, context: Any) -> list[Any]:
        context.state += 1
        context.list("numbers").append(event.number)
        context.map("times")[str(event.number)] = event.at
        context.set_timer(10 * (event.at // 10) + 500)
        context.set_alarm(NEVER_MS)
        return [("odd" if event.number % 2 else "even", (event.key, context.state))]

    def on_timer(at_ms: int, context: Any) -> list[Any]:
        return [("timed", (context.key, at_ms, len([*context.list("numbers")]), len([*context.map("times")])))]

    def on_alarm(at_ms: int, context: Any) -> list[Any]:
        return [("rung", (context.key,))]

    arms = ("odd", "even", "timed", "rung")
    functions = {"on_timer": on_timer, "on_alarm": on_alarm, "init": int, "into": arms}
    streams = events(app).process(on_message, **functions)
    for arm in arms:
        streams[arm].send_to(app.output(arm))


@pipeline
def deduplicated(app: App) -> None:
    once = (
        events(app)
        .partition_by(lambda event: event.key)
        .deduplicate(lambda event: f"{event.key}{event.number}", within_ms=10_000)
    )
    once.map(lambda event: (event.key, event.number)).send_to(app.output("once"))
    events(app, "more").sample(0.5, by=lambda event: event.number).send_to(app.output("some", value=Event))


@pipeline
def by_the_clock(app: App) -> None:
    counts = events(app).throttle(per_second=100_000).window(by_clock(tumbling(hours=1)), count())
    counts.map(lambda pane: pane.key).send_to(app.output("keys"))


@pipeline
def own_task(app: App) -> None:
    out = app.output("sums", value=int)

    def add_up(message: Any, context: Any) -> None:
        context.put(message.key, context.get(message.key, 0) + message.value.number)
        context.send(out, context.get(message.key))

    app.task(events(app), add_up, outputs=[out], op_id="adding")


@pipeline
def patterns(app: App) -> None:
    orders = app.input("orders-*", value=Event, key=str, timestamp=lambda event: event.at, max_disorder_ms=1_000)
    told(app, orders.partition_by(lambda event: event.key, partitions=2).window(tumbling(milliseconds=100), count()))


@pipeline
def deep(app: App) -> None:
    counts = events(app).partition_by(lambda event: event.key, partitions=3).window(tumbling(milliseconds=50), count())
    by_start = counts.partition_by(lambda pane: pane.start, partitions=2, op_id="by-start")
    sums = by_start.window(tumbling(milliseconds=100), total(lambda pane: pane.value), op_id="sums")
    beside = events(app, "more").partition_by(lambda event: event.number % 3, partitions=2, op_id="beside")
    largest = sums.map(lambda pane: pane.value).partition_by(lambda n: n % 3, partitions=2, op_id="by-sum")
    both = largest.merge(beside.map(lambda event: event.number)).window(whole(), maximum(lambda n: n), op_id="both")
    both.map(lambda pane: (pane.key, pane.value), op_id="most").send_to(app.output("largest"))
    sums.map(lambda pane: pane.value, op_id="values").send_to(app.output("sums"))


@pipeline
def called(app: App) -> None:
    events(app).sink(lambda event: None)
    events(app, "more").sink(_awaited)


async def _awaited(event: Event) -> None:
    await asyncio.sleep(0)
