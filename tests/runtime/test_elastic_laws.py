"""Splits and merges at rest and live, over what keys, times and tables make hard: results are those without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import (
    App,
    Options,
    count,
    dead_letter,
    hopping,
    laws,
    session,
    sliding,
    testing,
    total,
    tumbling,
)
from samza_dsl.laws import check_laws
from samza_dsl.testing import Record, Schedule
from tests.scale import examples

NUMBERS = st.integers(0, 9)
KEYS = [None, *"abcdefg"]
APART = "apart"
SKEWED = ["a"] * 7 + [*"bcdefgh"]


class Hit(msgspec.Struct, frozen=True):
    """A record of the laws: its key, when it was, and a number."""

    user: str | None
    at: int
    n: int


class Row(msgspec.Struct, frozen=True):
    """A row of a table."""

    user: str
    name: str


def hits(keys: list[Any], step_ms: int = 4, size: int = 14) -> st.SearchStrategy[list[Record]]:
    """Draw records of these keys, some of one time, some late."""
    made = laws.events(
        lambda key, at: st.builds(Hit, st.just(key), st.just(at), NUMBERS),
        keys=keys,
        step_ms=step_ms,
        late_ms=3,
        max_size=size,
    )
    return made.map(lambda found: [Record(one, one.user, one.at) for one in found])


def hit(app: App, **options: Any) -> Any:
    """Return the input of an application, which siblings read together, or, told apart by its name, each by itself."""
    pace = {"max_ahead_ms": 3_600_000} if app.name == APART else {}
    return app.input("hits", value=Hit, key=str, timestamp=lambda one: one.at, **pace, **options)


def without_keys(app: App) -> None:
    """Process what has no key where no state is: it goes by its offset."""
    seen = hit(app)
    seen.map(lambda one: [one.user, one.n], op_id="pair").send_to(app.output("seen", value=list))
    moved = seen.partition_by(lambda one: one.user, key_type=str, op_id="again")
    moved.filter(lambda one: one.n > 2, op_id="few").send_to(app.output("few", value=Hit))


def without_keys_by_key(app: App) -> None:
    """Refuse what has no key where state is, once each; whoever has the first bucket tells of it."""
    seen = hit(app)
    seen.map(lambda one: [one.user, one.n], op_id="pair").send_to(app.output("seen", value=list))
    sums_of(seen, on_error=dead_letter("letters")).send_to(app.output("sums", value=list))


def sums_of(seen: Any, **options: Any) -> Any:
    """Return the running sum of each key."""
    return seen.scan(
        lambda so_far, one: so_far + one.n, init=int, emit=lambda key, sum: [key, sum], op_id="sums", **options
    )


def with_tables(app: App) -> None:
    """Join a table by key, and one that each task has whole."""
    seen = hit(app)
    by_key = app.table("names", value=Row, key=str)
    whole = app.table("towns", value=Row, key=str, broadcast=True)
    seen.join(by_key, lambda one, row: [one.user, one.n, row.name], op_id="named").send_to(
        app.output("named", value=list)
    )
    in_town = seen.join(whole, lambda one, row: [one.n, row.name], on=lambda one: f"t{one.n % 3}", op_id="in-town")
    in_town.send_to(app.output("in-town", value=list))
    towns = in_town.partition_by(lambda one: one[1], key_type=str, op_id="by-town")
    towns.window(tumbling(milliseconds=8), total(lambda one: one[0]), op_id="per-town").map(
        lambda pane: [pane.key, pane.start, pane.value]
    ).send_to(app.output("towns-seen", value=list))


async def answer(one: Hit) -> list[list[Any]]:
    """Return none, one or two answers."""
    return [[one.user, one.n, n] for n in range(one.n % 3)]


def remembering(app: App) -> None:
    """Keep the answers of calls."""
    seen = hit(app)
    asked = seen.async_flat_map(answer, remember=True, max_in_flight=2, op_id="asked")
    asked.send_to(app.output("answers", value=list))
    again = seen.partition_by(lambda one: f"n{one.n % 4}", key_type=str, op_id="by-n")
    again.async_flat_map(answer, remember="two", op_id="asked-again").send_to(app.output("more", value=list))


def on_message(one: Hit, context: Any) -> list[list[Any]]:
    """Count, and have it told when the clock of events is at the time of a record, or a bit further."""
    context.state += one.n
    context.set_timer(one.at + one.n % 3 * 4)
    return []


def on_timer(at: int, context: Any) -> list[list[Any]]:
    """Tell that a timer was due, and of how much."""
    return [[context.key, at]]


def with_timers(app: App) -> None:
    """Set timers that are due at the times of records that come later, or have come."""
    timed = hit(app).process(on_message, on_timer=on_timer, init=int, op_id="timed")
    timed.send_to(app.output("timed", value=list))


def in_windows(app: App) -> None:
    """Keep sessions that merge, and windows that overlap, and of what these say others."""
    seen = hit(app)
    visits = seen.window(session(milliseconds=4), total(lambda one: one.n), op_id="visits")
    told = visits.map(lambda pane: [pane.key, pane.start, pane.end, pane.value], op_id="visit")
    told.send_to(app.output("visits-seen", value=list))
    hops = seen.window(hopping(milliseconds=9, every_ms=3), count(), op_id="hops")
    hops.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("hops-seen", value=list))
    by_start = told.partition_by(lambda one: f"s{one[1] % 3}", key_type=str, op_id="by-start")
    by_start.window(session(milliseconds=5), count(), op_id="starts").map(
        lambda pane: [pane.key, pane.start, pane.end, pane.value]
    ).send_to(app.output("starts-seen", value=list))


def in_stages(app: App) -> None:
    """Keep state in several operators of each of two stages."""
    seen = hit(app)
    sums_of(seen).send_to(app.output("sums-seen", value=list))
    pairs = seen.join(
        seen.filter(lambda one: one.n > 4, op_id="large"),
        lambda one, other: [one.user, one.n + other.n],
        within=(-4, 4),
        op_id="pairs",
    )
    pairs.send_to(app.output("pairs-seen", value=list))
    moved = seen.partition_by(lambda one: f"n{one.n % 3}", key_type=str, op_id="by-n")
    windows = moved.window(tumbling(milliseconds=10), total(lambda one: one.n), op_id="totals")
    windows.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("totals-seen", value=list))
    # Later than any record: what one partition brings would else ask again for what was told when another was ahead.
    counted = moved.process(
        lambda one, context: context.set_timer(one.at // 10 * 10 + 1_000), on_timer=on_timer, init=int, op_id="tens"
    )
    counted.send_to(app.output("tens-seen", value=list))


def with_own_tables(app: App) -> None:
    """Keep the newest of each key as a table, and join two of these, whose rows change one after the other."""
    seen = hit(app)
    newest = seen.to_table("newest")
    newest.changes().map(lambda one: [one.key, one.old and one.old.n, one.new and one.new.n], op_id="change").send_to(
        app.output("changes", value=list)
    )
    large = seen.filter(lambda one: one.n > 4, op_id="larger").to_table("large")
    both = newest.join(large, lambda one, other: [one.user, one.n, other.n], op_id="both")
    both.changes().map(lambda change: change.new, op_id="pair").send_to(app.output("both-seen", value=list))


TABLES = {
    "names": st.just([(key, Row(key, key.upper())) for key in "abc"]),
    "towns": st.just([(f"t{n}", Row(f"t{n}", f"town {n % 2}")) for n in range(2)]),
}
APPS = [without_keys, without_keys_by_key, with_tables, remembering, with_timers, in_windows, in_stages]


def app_of(build: Callable[[App], None], is_apart: bool = False, **options: Any) -> App:
    """Return an application that commits often, or whose tasks read each by itself, one record at a time."""
    apart: dict[str, Any] = {"batch_records": 1, "max_uncommitted": 1, "commit_by": "task"} if is_apart else {}
    app = App(APART if is_apart else "elastic", Options(commit_interval_ms=5, **apart, **options))
    build(app)
    return app


def given_of(build: Callable[[App], None], keys: list[Any], **how: Any) -> dict[str, Any]:
    """Return what may come in the streams of an application."""
    return {"hits": hits(keys, **how), **(TABLES if build is with_tables else {})}


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("build", APPS, ids=lambda build: build.__name__)
def test_results_stay_where_tasks_are_split_and_merged_live_and_from_run_to_run(build, is_apart):
    keys = KEYS if build in (without_keys, without_keys_by_key) else SKEWED
    partitions = {"hits": 2, **({"names": 2, "towns": 1} if build is with_tables else {})}
    app, given = app_of(build, is_apart), given_of(build, keys)
    check_laws(app, given, partitions=partitions, rescale=True, examples=examples(18, 5_000))


FACTORS = st.lists(st.sampled_from((1, 2, 4, None)), min_size=2, max_size=5).map(tuple)
DISTURBED = st.builds(lambda one, factors: replace(one, factors=factors), laws.schedules(), FACTORS)
COMMITS = st.builds(testing.CrashPoint, st.sampled_from(("before_commit", "after_commit")), st.integers(2, 12))
BETWEEN = st.builds(Schedule, st.integers(0, 999), st.lists(COMMITS, min_size=1, max_size=4).map(tuple), FACTORS)
"""Crashes between commits: those of tasks that commit by themselves leave siblings at different places."""


def last_of(rows: list[list[Any]]) -> list[list[Any]]:
    """Return the last row of each key."""
    return sorted({row[0]: row for row in rows}.values())


def again(app: App) -> None:
    """Call, take several out of one, and bring together by another key, without state."""
    seen = hit(app)
    asked = seen.async_flat_map(answer, max_in_flight=2, op_id="asked")
    asked.send_to(app.output("answers", value=list))
    few = asked.filter(lambda one: one[1] != 4, op_id="few").partition_by(lambda one: f"n{one[1] % 3}", key_type=str)
    few.map(lambda one: [*one, "again"], op_id="again").send_to(app.output("again", value=list))


def in_windows_and_sums(app: App) -> None:
    """Keep state by keys, of which some records have none."""
    keyed = hit(app, on_error=dead_letter("letters"))
    sums_of(keyed, on_error=dead_letter("letters")).send_to(app.output("sums-seen", value=list))
    visits = keyed.window(session(milliseconds=4), count(), on_error=dead_letter("letters"), op_id="visits")
    visits.map(lambda pane: [pane.key, pane.start, pane.end, pane.value]).send_to(app.output("seen", value=list))
    lately = keyed.window(sliding(milliseconds=6), total(lambda one: one.n), on_error=dead_letter("letters"))
    lately.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("lately", value=list))


@given(hits(SKEWED), DISTURBED, st.booleans())
@settings(max_examples=examples(60, 5_000))
def test_own_tables_have_the_rows_that_they_have_without_splits_and_merges(found, schedule, is_apart):
    app = app_of(with_own_tables, is_apart)
    calm, disturbed = (testing.run(app, {"hits": found}, one) for one in (None, schedule))
    assert testing.unordered(calm)["changes"] == testing.unordered(disturbed)["changes"]
    assert last_of(calm["both-seen"]) == last_of(disturbed["both-seen"])


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
@given(hits(KEYS).map(lambda found: [found[::2], found[1::2]]), DISTURBED | BETWEEN)
@settings(max_examples=examples(36, 5_000))
def test_at_least_once_splits_and_merges_lose_nothing_and_make_nothing_up(is_apart, found, schedule):
    app = app_of(again, is_apart, guarantee="at_least_once")
    calm, disturbed = (testing.run(app, {"hits": found}, one, partitions={"hits": 2}) for one in (None, schedule))
    for stream, rows in calm.items():
        before, now = (Counter(map(repr, each)) for each in (rows, disturbed[stream]))
        assert now >= before, "nothing is lost"
        assert now.keys() == before.keys(), "nothing is there that was not asked for"


@given(hits(KEYS), st.sampled_from((2, 4, 8)), st.sampled_from((1, 2, None)), st.integers(0, 999), st.booleans())
@settings(max_examples=examples(60, 5_000))
def test_who_rolls_elasticity_back_finds_all_as_if_there_had_been_none(found, factor, then, seed, is_apart):
    """A program with a factor, one with another, and one without: a checkpoint of each is read by the next."""
    app = app_of(in_windows_and_sums, is_apart)
    schedule = Schedule(seed, factors=(factor, then, None, None))
    assert testing.unordered(testing.run(app, {"hits": found}, schedule)) == testing.unordered(
        testing.run(app, {"hits": found})
    )


def of_two_inputs(app: App) -> None:
    """Bring together what two inputs have, whose partitions have tasks of their own."""
    both = hit(app).merge(app.input("others", value=Hit, key=str, timestamp=lambda one: one.at), op_id="both")
    both.map(lambda one: [one.user, one.n], op_id="pair").send_to(app.output("seen", value=list))
    moved = both.partition_by(lambda one: f"n{one.n % 3}", partitions=3, key_type=str, op_id="by-n")
    moved.window(tumbling(milliseconds=8), total(lambda one: one.n), op_id="totals").map(
        lambda pane: [pane.key, pane.start, pane.value]
    ).send_to(app.output("totals-seen", value=list))


def test_tasks_by_stream_and_partition_are_split_and_merged_as_those_by_partition_are():
    app, found = app_of(of_two_inputs, group_by="stream_partition"), hits(KEYS, size=8)
    assert len(app.plan({"hits": 2, "others": 1}).stages[0].bases) == 3, "each partition of each input has a task"
    check_laws(
        app,
        {"hits": found, "others": found},
        partitions={"hits": 2, "others": 1},
        rescale=True,
        examples=examples(12, 2_000),
    )
