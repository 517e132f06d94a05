"""As-of joins end to end, against a look through the whole history: disorder, ties, late records, ends and crashes."""

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.identity import identity
from runtime.encoding.serdes import Tagged
from samza_dsl import App, Options, dead_letter, testing
from samza_dsl.testing import Record
from tests.runtime.histories import Event, check_results, crashing, stamped, stored, window_below
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_through

HOW = ("inner", "left")
SIGNS = {"backward": (-1,), "forward": (1,), "nearest": (-1, 1)}


class Met(msgspec.Struct, frozen=True):
    """What a join makes of two records, by number."""

    key: str
    left: int
    right: int | None


def meet(left, right):
    return Met(left.key, left.number, right and right.number)


@st.composite
def histories(draw, partitions):
    """Draw the records of both sides, by partition: of few keys and times, so that many are of one time, some late."""
    number, sides = 0, []
    for _ in range(2):
        parts = []
        for _ in range(partitions):
            now, part = 0, []
            moves = st.tuples(st.sampled_from("aab"), st.integers(0, 3), st.sampled_from((0, 0, 1, 5)))
            for key, step, back in draw(st.lists(moves, min_size=draw(st.integers(0, 8)), max_size=12)):
                now += step * 5
                part.append(Event(number, key, max(now - back * 5, 0)))
                number += 1
            parts.append(part)
        sides.append(parts)
    return sides


def joined(lefts, rights, direction, tolerance, how):
    """Return the results, each with its time and stamp: for each left record a look through all right ones."""
    found = Counter()
    for left, stamp in lefts:
        near = [
            (-abs(right.at - left.at), -right.at, its_stamp, identity(right), right)
            for right, its_stamp in rights
            if right.key == left.key and any((right.at - left.at) * sign >= 0 for sign in SIGNS[direction])
            if tolerance is None or abs(right.at - left.at) <= tolerance
        ]
        right = max(near, default=[None], key=lambda one: one[:-1])[-1]
        if right is not None or how == "left":
            found[meet(left, right), left.at, stamp] += 1
    return found


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("direction", SIGNS)
@given(
    data=st.data(),
    crashes=crashing(),
    disorder=st.sampled_from((0, 5, 30)),
    tolerance=st.none() | st.integers(0, 40),
    batch_records=st.sampled_from((1, 3, 2_000)),
    most=st.sampled_from((2, 1_000)),
    layout=st.sampled_from(("one partition", "partition_by", "on", "memory of one run")),
    below=st.sampled_from(("window", "window behind a partition_by", "nothing")),
)
@settings(max_examples=examples(30, 2_000))
def test_a_run_comes_to_what_its_histories_say(
    how, direction, data, crashes, disorder, tolerance, batch_records, most, layout, below
):
    many = layout in ("partition_by", "on")
    left, right = data.draw(histories(data.draw(st.integers(1, 3)) if many else 1))
    store = "memory" if layout == "memory of one run" else "lmdb"
    tolerance = 15 if tolerance is None and direction != "backward" else tolerance

    def app():
        app = App("nearest", Options(batch_records=batch_records, max_uncommitted=most))
        named = {"value": Event, "timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        sides = [app.input(name, key=None if many else lambda e: e.key, **named) for name in ("left", "right")]
        if layout == "partition_by":
            sides = [side.partition_by(lambda e: e.key, partitions=2) for side in sides]
        on = {"on": (lambda e: e.key, lambda e: e.key)} if layout == "on" else {}
        said = {"direction": direction, "tolerance": tolerance, "how": how, "late": dead_letter("late"), **on}
        found = sides[0].join_asof(sides[1], meet, store=store, op_id="found", **said)
        found.send_to(app.output("found", value=Met))
        window_below(app, found, below)
        return app

    environment = memory()
    fill(environment, "left", stored(left))
    fill(environment, "right", stored(right))
    run_through(app, environment, crashes if store == "lmdb" else ())
    (lefts, late_lefts), (rights, late_rights) = stamped(left, disorder), stamped(right, disorder)
    expected = joined(lefts, rights, direction, tolerance, how)
    check_results(environment, "found", Met, expected, late_lefts + late_rights, below)


@pytest.mark.parametrize("made", [np.array, str, lambda part: {(part,): part}])
def test_of_one_time_and_stamp_it_is_the_same_whichever_partition_was_read_first(made):
    app = App("ties")
    named = {"value": int, "timestamp": lambda n: 10}
    left, right = app.input("left", **named), app.input("right", **named, partitions=3)
    sides = [side.partition_by(lambda n: "k", op_id=f"by-{at}") for at, side in enumerate((left, right))]
    found = sides[0].join_asof(sides[1].map(lambda n: (made(n), n)), lambda n, other: other[1], op_id="nearest")
    found.send_to(app.output("out", value=int))
    given_ = {"left": [0], "right": [[1], [2], [3]]}
    seen = {tuple(testing.run(app, given_, testing.Schedule(seed))["out"]) for seed in range(10)}
    assert seen == {(3,)}


@pytest.fixture
def app():
    return App("joins")


def both(app, **said):
    return app.input("left", value=int, key=str), app.input("right", value=int, key=str, **said)


def plus(left, right):
    return [left, right]


def test_a_message_waits_for_the_watermark_of_both_also_through_a_crash(app):
    left, right = both(app)
    left.join_asof(right, plus, direction="nearest", tolerance=10, how="left").send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("left", 1, key="k", timestamp=100)
        run.advance_watermark("left", 1_000)
        run.send("right", 7, key="k", timestamp=95)
        assert run.read("out") == []
        run.crash()
        run.restart()
        run.send("right", 8, key="k", timestamp=102)
        run.send("right", 9, key="k", timestamp=110)
        assert run.read("out") == []
        run.crash()
        run.restart()
        run.advance_watermark("right", 111)
        assert run.read("out") == [[1, 8]]
        run.end()
        assert run.read("out") == []


def test_a_side_that_is_idle_keeps_messages_waiting_no_longer_than_was_said(app):
    left, right = both(app, idle_after_ms=5_000)
    left.join_asof(right, plus, late=dead_letter("late")).send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("right", 7, key="k", timestamp=90)
        run.send("left", 1, 2, key="k", timestamp=100)
        run.advance_watermark("left", 200)
        run.advance_time(seconds=4)
        assert run.read("out") == []
        run.advance_time(seconds=2)
        assert run.read("out") == [[1, 7], [2, 7]]
        run.send("right", 8, key="k", timestamp=150)
        run.send("right", 9, key="k", timestamp=250)
        run.send("left", 3, key="k", timestamp=260)
        run.end()
        assert run.read("out") == [[3, 9]]
        assert [letter.value for letter in run.dead_letters("late")] == [Tagged().encode(8)]


def test_what_is_late_says_where_it_came_from(app):
    left, right = both(app)
    left.join_asof(right, plus, late=dead_letter("late"), op_id="nearest").sink(print)
    with testing.running(app) as run:
        run.send("right", 1, 2, key="k", timestamp=100)
        run.send("right", 3, key="k", timestamp=99)
        letters = run.dead_letters("late")
        assert [(one.operator, one.stream, one.offset) for one in letters] == [("nearest", "right", 2)]
        assert next(one for one in run.metrics().operators if one.operator == "nearest").late == 1


def test_a_stream_is_joined_with_what_it_had_before(app):
    left, _ = both(app)
    _.sink(print)
    even, odd = left.filter(lambda n: n % 2 == 0), left.filter(lambda n: n % 2)
    even.join_asof(odd, plus, tolerance=5).send_to(app.output("out", value=list))
    given_ = [Record(n, "k", at) for n, at in enumerate((0, 3, 5, 20, 27, 30, 30))]
    assert testing.unordered(testing.run(app, {"left": given_}))["out"] == [[2, 1], [6, 5]]


def test_keys_of_on_are_given_to_both_and_have_ids_of_their_own(app):
    left, right = both(app)
    found = left.join_asof(right, plus, on=(lambda n: n % 10, lambda n: n), op_id="by")
    found.send_to(app.output("out", value=list))
    given_ = {
        "left": [Record(n, "k", 10) for n in (11, 12, 23)],
        "right": [Record(n, "other", at) for n, at in ((1, 4), (3, 10), (2, 11))],
    }
    assert testing.unordered(testing.run(app, given_))["out"] == [[11, 1], [23, 3]]
    assert {one.id for one in app.plan().operators} >= {"by", "by-left", "by-right"}


async def same(value):
    return [value]


def test_joins_lie_below_and_above_async_operators_and_each_other(app):
    left, right = both(app)
    third = app.input("third", value=int, key=str)
    once = left.async_flat_map(same).join_asof(right, plus, how="left", tolerance=10, direction="forward")
    twice = once.async_flat_map(same).join_asof(third, lambda one, row: [*one, row], how="left", op_id="twice")
    twice.send_to(app.output("all", value=list))
    given_ = {
        "left": [Record(1, "k", 10), Record(2, "k", 100)],
        "right": [Record(3, "k", 15), Record(4, "k", 111)],
        "third": [Record(5, "k", 60), Record(6, "l", 205)],
    }
    for seed in range(10):
        schedule = testing.Schedule(seed, (testing.CrashPoint("turn", 5 + seed),))
        assert testing.run(app, given_, schedule)["all"] == [[1, 3, None], [2, None, 5]]


def test_a_message_on_which_it_fails_meets_the_policy_alone(app):
    def picky(left, right):
        if left == 2:
            raise ValueError("not this one")
        return [left, right]

    left, right = both(app)
    left.join_asof(right, picky, on_error=dead_letter("bad")).send_to(app.output("out", value=list))
    given_ = {"left": [Record(n, "k", n) for n in (1, 2, 3)], "right": [Record(9, "k", 0)]}
    results = testing.run(app, given_)
    assert results["out"] == [[1, 9], [3, 9]]
    assert len(results["bad"]) == 1


def test_the_plan_says_what_it_is_and_that_no_order_matters(app):
    left, right = both(app)
    left.join_asof(right, plus, direction="forward", tolerance=5_000, op_id="nearest").sink(print)
    (planned,) = (one for one in app.plan({"left": 1, "right": 1}).operators if one.id == "nearest")
    assert (planned.label, planned.by_order) == ("inner as-of join, forward, within 5,000 ms", "")
