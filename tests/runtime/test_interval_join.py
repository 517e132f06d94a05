"""Interval joins end to end, against a nested loop over the histories: disorder, late records, ends and crashes."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, collect, dead_letter, testing, tumbling
from samza_dsl.testing import CrashPoint as Point
from samza_dsl.testing import Record
from tests.runtime.histories import Event, check_results, crashing, number_of, stamped, stored, values_in, window_below
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through

HOW = ("inner", "left", "right", "outer")
KEPT = ("lmdb", "memory")


class Pair(msgspec.Struct, frozen=True):
    """What a join makes of two records, by number."""

    key: str
    left: int | None
    right: int | None


def pair(left, right):
    key = right.key if left is None else left.key
    return Pair(key, left and left.number, right and right.number)


@st.composite
def histories(draw, partitions):
    """Draw the records of both sides, by partition: some close together, some of the same time, some late."""
    number, sides = 0, []
    for _ in range(2):
        parts = []
        for _ in range(partitions):
            now, part = 0, []
            moves = st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.sampled_from((0, 0, 7, 25, 80)))
            for key, step, back in draw(st.lists(moves, max_size=12)):
                now += step
                part.append(Event(number, key, max(now - back, 0)))
                number += 1
            parts.append(part)
        sides.append(parts)
    return sides


bounds = st.tuples(st.integers(-40, 60), st.integers(-40, 60)).map(sorted).map(tuple)


def joined(left, right, how, within):
    """Return the pairs, each with its time and stamp: a nested loop."""
    found = Counter()
    met = set()
    for one, one_stamp in left:
        for other, other_stamp in right:
            if one.key == other.key and within[0] <= other.at - one.at <= within[1]:
                found[pair(one, other), max(one.at, other.at), max(one_stamp, other_stamp)] += 1
                met |= {one.number, other.number}
    for event, stamp in left:
        if how in ("left", "outer") and event.number not in met:
            found[pair(event, None), event.at, stamp] += 1
    for event, stamp in right:
        if how in ("right", "outer") and event.number not in met:
            found[pair(None, event), event.at, stamp] += 1
    return found


def numbers_of(environment, stream):
    return Counter(msgspec.json.decode(row[1])["number"] for part in rows_of(environment, stream) for row in part)


@pytest.mark.parametrize("how", HOW)
@given(
    data=st.data(),
    within=bounds,
    crashes=crashing(),
    disorder=st.integers(0, 30),
    batch_records=st.sampled_from((1, 3, 2_000)),
    most=st.sampled_from((2, 1_000)),
    layout=st.sampled_from(("one partition", "partition_by", "partition_by one", "memory of one run")),
    below=st.sampled_from(("window", "window behind a partition_by", "nothing")),
)
@settings(max_examples=examples(30, 2_000))
def test_a_run_comes_to_what_its_histories_say(
    how, data, within, crashes, disorder, batch_records, most, layout, below
):
    many = layout.startswith("partition_by")
    left, right = data.draw(histories(data.draw(st.integers(1, 3)) if many else 1))
    store = "memory" if layout == "memory of one run" else "lmdb"

    def app():
        app = App("joining", Options(batch_records=batch_records, max_uncommitted=most))
        named = {"value": Event, "timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        sides = [app.input(name, key=None if many else lambda e: e.key, **named) for name in ("left", "right")]
        if many:
            partitions = 1 if layout.endswith("one") else 3
            sides = [side.partition_by(lambda e: e.key, partitions=partitions) for side in sides]
        pairs = sides[0].join(
            sides[1], pair, within=within, how=how, late=dead_letter("late"), store=store, op_id="pairs"
        )
        pairs.send_to(app.output("pairs", value=Pair))
        window_below(app, pairs, below)
        return app

    environment = memory()
    fill(environment, "left", stored(left))
    fill(environment, "right", stored(right))
    run_through(app, environment, crashes if store == "lmdb" else ())
    (lefts, late_left), (rights, late_right) = stamped(left, disorder), stamped(right, disorder)
    expected = joined(lefts, rights, how, within)
    check_results(environment, "pairs", Pair, expected, late_left + late_right, below)


@pytest.mark.parametrize("how", HOW)
@given(
    data=st.data(),
    within=bounds,
    crashes=crashing(),
    disorder=st.integers(0, 30),
    batch_records=st.sampled_from((1, 3, 2_000)),
)
@settings(max_examples=examples(30, 2_000))
def test_of_one_stream_the_newest_is_the_same_whatever_happens(how, data, within, crashes, disorder, batch_records):
    (part,), _ = data.draw(histories(1))

    def app():
        app = App("newest", Options(batch_records=batch_records))
        named = {"value": Event, "key": lambda e: e.key, "timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        events = app.input("events", **named)
        left, right = events.filter(lambda e: e.number % 3 > 0), events.filter(lambda e: e.number % 3 < 2)
        left.join(right, pair, within=within, how=how, keep="latest").send_to(app.output("pairs", value=Pair))
        return app

    environment = memory()
    fill(environment, "events", stored([part]))
    run_through(app, environment, crashes)
    found = [msgspec.json.decode(value, type=Pair) for rows in rows_of(environment, "pairs") for _, value, _ in rows]
    assert Counter(found) == newest([event for event, _ in stamped([part], disorder)[0]], how, within)


def newest(events, how, within):
    """Return what joins where each record, as it comes, meets the newest before it; one of both sides is left first."""
    (low, high), found, met, before = within, Counter(), set(), []
    for event in events:
        for side in "left" * (event.number % 3 > 0), "right" * (event.number % 3 < 2):
            if not side:
                continue
            ahead = [
                (other.at, place, other)
                for place, (its, other) in enumerate(before)
                if its != side and other.key == event.key
                if low <= (other.at - event.at if side == "left" else event.at - other.at) <= high
            ]
            if ahead:
                _, _, other = max(ahead, key=lambda one: one[:2])
                found[pair(event, other) if side == "left" else pair(other, event)] += 1
                met |= {(side, event.number), ("right" if side == "left" else "left", other.number)}
            before.append((side, event))
    for side, event in before:
        if how in (side, "outer") and (side, event.number) not in met:
            found[pair(event, None) if side == "left" else pair(None, event)] += 1
    return found


@pytest.fixture
def app():
    return App("joins")


def both(app, **said):
    return [app.input(name, value=int, key=str, **said) for name in ("left", "right")]


def plus(left, right):
    return [left, right]


def test_a_row_waits_until_the_watermark_of_both_sides_proves_that_nothing_comes(app):
    left, right = both(app)
    left.join(right, plus, within=(-5, 10), how="left").send_to(app.output("pairs", value=list))
    with testing.running(app) as run:
        run.send("left", 1, key="k", timestamp=100)
        run.advance_watermark("left", 1_000)
        run.advance_watermark("right", 110)
        assert run.read("pairs") == []
        run.crash()
        run.restart()
        assert run.read("pairs") == []
        run.advance_watermark("right", 111)
        assert run.read("pairs") == [[1, None]]
        run.crash()
        run.restart()
        run.end()
        assert run.read("pairs") == []


def test_a_window_below_waits_for_rows_that_may_still_come_out_of_the_join(app):
    left, right = both(app)
    pairs = left.join(right, plus, within=(0, 1_000), how="left")
    pairs.window(tumbling(milliseconds=50), collect()).map(lambda pane: pane.value).send_to(
        app.output("panes", value=list)
    )
    with testing.running(app) as run:
        run.send("left", 0, key="k", timestamp=0)
        run.send("left", 1, 2, key="l", timestamp=110)
        run.send("right", 3, key="l", timestamp=110)
        for watermark, expected in ((1_000, []), (1_001, [[[0, None]], [[1, 3], [2, 3]]])):
            run.advance_watermark("left", watermark)
            run.advance_watermark("right", watermark)
            assert run.read("panes") == expected


def test_what_is_late_says_where_it_came_from(app):
    left, right = both(app)
    left.join(right, plus, within=(0, 10), late=dead_letter("late"), op_id="pairs").sink(print)
    with testing.running(app) as run:
        run.send("right", 1, 2, key="k", timestamp=100)
        run.send("right", 3, key="k", timestamp=99)
        letters = run.dead_letters("late")
        assert [(one.operator, one.error, one.stream, one.offset) for one in letters] == [("pairs", "late", "right", 2)]
        assert next(one for one in run.metrics().operators if one.operator == "pairs").late == 1


def test_a_stream_is_joined_with_itself(app):
    left, _ = both(app)
    _.sink(print)
    left.join(left, plus, within=(1, 5)).send_to(app.output("pairs", value=list))
    given_ = [Record(n, "k", at) for n, at in enumerate((0, 3, 5, 20))]
    assert testing.unordered(testing.run(app, {"left": given_}))["pairs"] == [[0, 1], [0, 2], [1, 2]]


async def same(value):
    return [value]


def test_joins_lie_below_and_above_async_operators_and_each_other(app):
    left, right = both(app)
    third = app.input("third", value=int, key=str)
    pairs = left.async_flat_map(same).join(right, plus, within=(-5, 5), how="outer")
    pairs.async_flat_map(same).join(
        third, lambda two, one: [*(two or [None, None]), one], within=(-5, 5), how="outer", op_id="three"
    ).send_to(app.output("all", value=list))
    given_ = {
        "left": [Record(1, "k", 10), Record(2, "k", 100)],
        "right": [Record(3, "k", 12), Record(4, "k", 200)],
        "third": [Record(5, "k", 8), Record(6, "k", 205), Record(7, "k", 300)],
    }
    expected = [[1, 3, 5], [2, None, None], [None, 4, 6], [None, None, 7]]
    for seed in range(10):
        found = testing.run(app, given_, testing.Schedule(seed, (Point("turn", 5 + seed),)))
        assert sorted(found["all"], key=str) == sorted(expected, key=str)


@given(data=st.data(), crashes=crashing(), batch_records=st.sampled_from((1, 3, 2_000)), store=st.sampled_from(KEPT))
@settings(max_examples=examples(60, 2_000))
def test_a_record_or_a_row_on_which_it_fails_meets_the_policy_alone(data, crashes, batch_records, store):
    left, right = data.draw(histories(1))

    def picky(one, other):
        found = pair(one, other)
        if other is None and one.number % 2:
            raise ValueError("odd alone")
        return found

    def app():
        app = App("picky", Options(batch_records=batch_records))
        named = {"value": Event, "key": lambda e: e.key, "timestamp": lambda e: e.at, "max_disorder_ms": 100}
        sides = [app.input(name, **named) for name in ("left", "right")]
        pairs = sides[0].join(sides[1], picky, within=(-5, 20), how="outer", on_error=dead_letter("bad"), store=store)
        pairs.send_to(app.output("pairs", value=Pair))
        return app

    environment = memory()
    fill(environment, "left", stored(left))
    fill(environment, "right", stored(right))
    run_through(app, environment, crashes if store == "lmdb" else ())
    expected = joined(stamped(left, 100)[0], stamped(right, 100)[0], "outer", (-5, 20))
    bad = [one for one, _, _ in expected.elements() if one.right is None and one.left % 2]
    rows = [one for one, _ in values_in(environment, "pairs", Pair)]
    assert Counter(rows) + Counter(bad) == Counter(one for one, _, _ in expected.elements())
    assert number_of(environment, "bad") == len(bad)


def test_a_record_that_fails_to_join_one_of_several_leaves_nothing(app):
    def picky(one, other):
        if (one, other) == (2, 9):
            raise ValueError("not these")
        return [one, other]

    left, right = both(app)
    left.join(right, picky, within=(-10, 10), how="outer", on_error=dead_letter("bad")).send_to(
        app.output("pairs", value=list)
    )
    given_ = {"left": [Record(n, "k", n) for n in (1, 2, 3)], "right": [Record(9, "k", 5), Record(8, "k", 5)]}
    assert sorted(testing.run(app, given_)["pairs"]) == [[1, 8], [2, 8], [3, 8]]
