"""Joins by windows end to end, against a filter over the histories: disorder, late records, many streams, crashes."""

from collections import Counter, defaultdict
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.encoding.serdes import Tagged
from samza_dsl import (
    App,
    Options,
    Pane,
    count,
    dead_letter,
    duration_ms,
    hopping,
    session,
    testing,
    tumbling,
    windows_by,
)
from samza_dsl.testing import Record
from tests.planner.refusal import refused
from tests.runtime.histories import Event, crashing, number_of, stamps, stored, values_in
from tests.scale import examples
from tests.simulation.crash import fill, memory, run_through

SIZE, STEP = 50, 20
NAMES = ("first", "second", "third")
WINDOWS = {"tumbling": tumbling(milliseconds=SIZE), "hopping": hopping(milliseconds=SIZE, every_ms=STEP)}


@st.composite
def histories(draw, streams, partitions):
    """Draw the records of streams, by partition, some of them late."""
    number, found = 0, []
    for _ in range(streams):
        parts = []
        for _ in range(partitions):
            now, part = 0, []
            moves = st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.sampled_from((0, 0, 7, 25, 80)))
            for key, step, back in draw(st.lists(moves, max_size=8)):
                now += step
                part.append(Event(number, key, max(now - back, 0)))
                number += 1
            parts.append(part)
        found.append(parts)
    return found


def starts(at, kind):
    """Return when the windows begin that a time is in."""
    step = SIZE if kind == "tumbling" else STEP
    return list(range(at // step * step, at - SIZE, -step))


def joined(history, kind, disorder, how):
    """Return the results by key and start, and the numbers of the records that are late at all of their windows."""
    held, late = defaultdict(lambda: [[] for _ in history]), []
    for side, parts in enumerate(history):
        for part in parts:
            for event, stamp in stamps(part, disorder):
                fit = [start for start in starts(event.at, kind) if start + SIZE > stamp]
                for start in fit:
                    held[event.key, start][side].append(event.number)
                late += [event.number] * (not fit)
    found = {}
    for place, sides in held.items():
        there = [bool(side) for side in sides]
        if {"inner": all(there), "left": there[0], "outer": True}[how]:
            found[place] = Counter(product(*(side or [None] for side in sides)))
    return found, late


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
@given(
    data=st.data(),
    streams=st.integers(2, 3),
    many=st.booleans(),
    disorder=st.integers(0, 30),
    batch_records=st.sampled_from((1, 3, 2_000)),
    crashes=crashing(),
)
@settings(max_examples=examples(16, 2_000))
def test_a_pane_has_each_choice_of_what_the_streams_have_in_its_window(
    how, kind, data, streams, many, disorder, batch_records, crashes
):
    history = data.draw(histories(streams, 2 if many else 1))

    def app():
        app = App("joining", Options(batch_records=batch_records))
        named = {"value": Event, "timestamp": lambda e: e.at, "max_disorder_ms": disorder}
        sides = [app.input(name, key=None if many else lambda e: e.key, **named) for name in NAMES[:streams]]
        first, *others = [side.partition_by(lambda e: e.key, partitions=3) for side in sides] if many else sides
        numbers = lambda *events: [event and event.number for event in events]  # noqa: E731
        late = dead_letter("late")
        panes = first.join_windows(others, WINDOWS[kind], numbers, how=how, late=late, op_id="panes")
        panes.send_to(app.output("panes", value=Pane[str, list]))
        return app

    environment = memory()
    for name, parts in zip(NAMES, history, strict=False):
        fill(environment, name, stored(parts))
    run_through(app, environment, crashes)
    panes = [pane for pane, _ in values_in(environment, "panes", Pane[str, list])]
    expected, late = joined(history, kind, disorder, how)
    assert {(pane.key, pane.start): Counter(map(tuple, pane.value)) for pane in panes} == expected
    assert len(panes) == len(expected)
    assert number_of(environment, "late") == len(late)


@pytest.fixture
def app():
    return App("joins")


def both(app):
    return [app.input(name, value=int, key=str) for name in ("left", "right")]


def together(*values):
    return list(values)


def test_a_late_value_makes_a_pane_of_all_that_the_window_has_and_one_too_late_is_told(app):
    left, right = both(app)
    panes = left.join_windows(
        right, tumbling(milliseconds=10), together, allowed_lateness_ms=10, late=dead_letter("late"), op_id="panes"
    )
    panes.map(lambda pane: (pane.timing, pane.value)).send_to(app.output("out", value=tuple))
    with testing.running(app) as run:
        run.send("left", 1, key="k", timestamp=1)
        run.send("right", 2, key="k", timestamp=2)
        for stream in ("left", "right"):
            run.advance_watermark(stream, 12)
        run.send("left", 3, key="k", timestamp=3)
        for stream in ("left", "right"):
            run.advance_watermark(stream, 20)
        run.send("right", 4, key="k", timestamp=4)
        run.end()
        assert run.read("out") == [("on_time", [[1, 2]]), ("late", [[1, 2], [3, 2]])]
        assert [(letter.stream, letter.value) for letter in run.dead_letters("late")] == [("right", Tagged().encode(4))]


def test_sessions_are_of_all_streams_together(app):
    left, right = both(app)
    panes = left.join_windows(right, session(milliseconds=10), together, how="outer")
    panes.map(lambda pane: (pane.start, pane.end, pane.value)).send_to(app.output("out", value=tuple))
    given_ = {"left": [Record(1, "k", 0), Record(2, "k", 16)], "right": [Record(3, "k", 8), Record(4, "k", 40)]}
    assert testing.run(app, given_)["out"] == [(0, 26, [[1, 3], [2, 3]]), (40, 50, [[None, 4]])]


def test_a_stream_is_joined_with_itself(app):
    left, right = both(app)
    right.sink(print)
    left.join_windows(left, tumbling(milliseconds=10), together).flat_map(lambda pane: pane.value).send_to(
        app.output("out", value=list)
    )
    assert testing.run(app, {"left": [Record(1, "k", 0), Record(2, "k", 1)]})["out"] == [[1, 1], [1, 2], [2, 1], [2, 2]]


def test_what_is_withdrawn_is_joined_no_more(app):
    left, right = both(app)
    how = {"allowed_lateness_ms": 1_000, "panes": "retracting"}
    counted = left.window(tumbling(milliseconds=10), count(), **how, op_id="counted")
    numbers = counted.map(lambda pane: pane.value)
    numbers.join_windows(right, tumbling(milliseconds=100), together).flat_map(lambda pane: pane.value).send_to(
        app.output("out", value=list)
    )
    with testing.running(app) as run:
        run.send("left", *(Record(0, "k", at) for at in (1, 50, 2)))
        run.send("right", Record(7, "k", 3))
        run.end()
        assert sorted(run.read("out")) == [[1, 7], [2, 7]]


def test_a_final_join_has_what_is_left(app):
    left, right = both(app)
    counted = left.window(tumbling(milliseconds=10), count(), allowed_lateness_ms=1_000, panes="retracting")
    how = {"allowed_lateness_ms": 1_000, "emit": "final"}
    joined = counted.map(lambda pane: pane.value).join_windows(right, tumbling(milliseconds=100), together, **how)
    joined.flat_map(lambda pane: pane.value).send_to(app.output("out", value=list))
    with testing.running(app) as run:
        run.send("right", Record(7, "k", 3), Record(7, "k", 400))
        run.send("left", *(Record(0, "k", at) for at in (1, 400, 2)))
        assert run.read("out") == []
        run.end()
        assert sorted(run.read("out")) == [[1, 7], [2, 7]]


def test_what_may_be_withdrawn_from_a_join_that_has_fired_is_refused(app):
    left, right = both(app)
    counted = left.window(tumbling(milliseconds=10), count(), panes="retracting", op_id="counted")
    with refused("a join that has emitted what is withdrawn then has no pane to say so", ".revisions() before it", app):
        joined = counted.join_windows(right, tumbling(seconds=1), together, allowed_lateness_ms=1)  # here
        joined.send_to(app.output("out", value=list))


@pytest.mark.parametrize(
    ("others", "said", "wrong"),
    [
        ("right", {"how": "full"}, "how='full' is not a join of 2 streams in windows"),
        ("two", {"how": "right"}, "how='right' is not a join of 3 streams in windows"),
        ("none", {}, "join_windows([]) has nothing to join with"),
        ("word", {}, "join_windows(...) got 'right', which is no MessageStream"),
        ("two", {"with_": max, "windows": 5}, "got 5, which is not a kind of window"),
        ("two", {"with_": abs}, "join_windows(with_=...) calls abs with 3 arguments"),
        ("right", {"emit": "last"}, "emit='last' does not say which panes are emitted"),
        ("right", {"late": "late"}, "join_windows(late=...) got 'late'"),
        ("right", {"store": "disk"}, "store='disk' is not a kind of store"),
        ("right", {"allowed_lateness_ms": -1}, "allowed_lateness_ms=-1 is not a whole number"),
    ],
)
def test_a_join_by_windows_that_can_not_be(app, others, said, wrong):
    left, right = both(app)
    streams = {"right": right, "two": [right, right], "none": [], "word": ["right"]}[others]
    with refused(wrong, ""):
        left.join_windows(streams, **{"windows": tumbling(hours=1), "with_": together} | said)


def test_windows_that_look_at_values_are_refused(app):
    left, right = both(app)
    settings = app.table("settings", key=str, value=int)
    with refused("windows that look at values have no one kind of them here", "tumbling(hours=1)"):
        left.join_windows(right, windows_by(settings, lambda row: tumbling(milliseconds=row)), together)


def test_streams_in_other_partitions_are_refused(app):
    left = app.input("left", value=int, key=str, partitions=2)
    right = app.input("right", value=int, key=str, partitions=3)
    with refused("streams of 2 partitions by hash and 3 partitions by hash are joined", "partitions=3", app):
        left.join_windows(right, tumbling(milliseconds=duration_ms(hours=1)), together).sink(print)
