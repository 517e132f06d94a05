"""Partition counts of any topology: all that meets has as many, as was said or as the inputs have."""

import re
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from planner.checks.copartitioning import entries_of
from planner.model.errors import PlanError
from planner.model.graph import intermediate
from planner.model.plan import Options
from samza_dsl import App, count, tumbling
from tests.scale import examples


class Read(NamedTuple):
    """An input of so many partitions."""

    partitions: int


class Part(NamedTuple):
    """What repartitions an earlier stream."""

    of: int
    partitions: int | None


class Join(NamedTuple):
    """What joins two earlier streams."""

    left: int
    right: int


class Merge(NamedTuple):
    """What merges two earlier streams, and keeps state of both by key."""

    left: int
    right: int


class Look(NamedTuple):
    """What joins an earlier stream with a table of so many partitions: its rows of now, or of then."""

    of: int
    partitions: int
    is_versioned: bool


class Own(NamedTuple):
    """What joins an earlier stream with the table that another one makes."""

    left: int
    right: int


class Same(NamedTuple):
    """What joins an earlier stream with itself, mapped."""

    of: int


@st.composite
def topologies(draw):
    sizes = st.sampled_from((1, 2, 3, 8, 16))
    steps = [Read(size) for size in draw(st.lists(sizes, min_size=1, max_size=4))]
    for _ in range(draw(st.integers(1, 8))):
        earlier = st.integers(0, len(steps) - 1)
        pair = draw(st.lists(earlier, min_size=1, max_size=2, unique=True))
        if len(pair) == 2:
            steps.append(draw(st.sampled_from((Join, Merge, Own)))(*pair))
            continue
        parts = st.builds(Part, st.just(pair[0]), st.none() | st.sampled_from((2, 3)))
        tables = st.builds(Look, st.just(pair[0]), sizes, st.booleans())
        steps.append(draw(parts | tables | st.just(Same(pair[0]))))
    return steps


def built(steps, cap, mended=None):
    """Return the app; `mended` has, by operator, the partitions with which its streams are repartitioned before it."""
    app = App("sized", options=Options(max_partitions=cap))
    streams = []
    for number, step in enumerate(steps):
        id = f"op{number}"

        def side(place, name, id=id):
            if id not in (mended or {}):
                return streams[place]
            return streams[place].partition_by(abs, key_type=int, partitions=mended[id], op_id=f"{id}-{name}")

        if isinstance(step, Read):
            stream = app.input(f"in{number}", value=int, key=int, partitions=step.partitions)
        elif isinstance(step, Part):
            stream = streams[step.of].partition_by(abs, key_type=int, partitions=step.partitions, op_id=id)
        elif isinstance(step, Look):
            versioned = {"retention_ms": 1} if step.is_versioned else {}
            rows = app.table(f"rows{number}", value=int, key=int, partitions=step.partitions, **versioned)
            stream = side(step.of, "l").join(rows, max, op_id=id)
        elif isinstance(step, Same):
            stream = side(step.of, "l")
            stream = stream.join(stream.map(abs), max, within=(0, 1), op_id=id)
        elif isinstance(step, Join):
            stream = side(step.left, "l").join(side(step.right, "r"), max, within=(0, 1), op_id=id)
        elif isinstance(step, Own):
            stream = side(step.left, "l").join(side(step.right, "r").to_table(f"{id}-rows"), max, op_id=id)
        else:
            merged = side(step.left, "l").merge(side(step.right, "r"))
            stream = merged.scan(lambda seen, value: value, init=int, op_id=id)
        stream.sink(print)
        streams.append(stream)
    return app


def components(graph):
    """Return the sets of entries that must be of one size, by asking again and again until nothing changes."""
    found = [entries_of(graph, id) for id, spec in graph.specs.items() if spec.keyed]
    while True:
        pair = next(((a, b) for a in found for b in found if a is not b and a & b), None)
        if pair is None:
            return found
        found = [one for one in found if one is not pair[0] and one is not pair[1]] + [pair[0] | pair[1]]


def said(graph, entry):
    """Return the partitions that were said of an entry, or are those of the table that it is looked up in first."""
    spec = graph.specs[entry]
    tables = (join.table.partitions for join in graph.key_joins(entry) if spec.repartitions)
    return spec.partitions or next(tables, None)


def stream_of(graph, entry):
    return getattr(graph.specs[entry], "stream", None) or intermediate(graph.app, entry)


def planned(app):
    """Return the plan, or the refusal of one whose sizes contradict each other."""
    try:
        return app.plan()
    except PlanError as refusal:
        assume("would wait for itself" not in str(refusal))
        return refusal


VERSIONS = [Read(64), Look(0, 2, is_versioned=True)]
TWO_TABLES = [Read(1), Part(0, None), Look(1, 2, is_versioned=False), Look(2, 3, is_versioned=True)]
CHAIN = [Read(16), Read(16), Read(64), Part(1, None), Part(2, None), Join(0, 3), Join(3, 4)]
TORN = [Read(2), Read(3), Read(1), Part(2, None), Join(3, 0), Join(3, 1)]


@example(CHAIN, 256)
@example(CHAIN, 8)
@example(TORN, 256)
@given(topologies(), st.sampled_from((8, 256)))
@settings(max_examples=examples(120, 10_000))
def test_all_that_meets_is_of_one_size_wherever_there_is_one(steps, cap):
    app = built(steps, cap)
    graph, plan = app.graph(), planned(app)
    groups = components(graph)
    given = [{size for entry in group if (size := said(graph, entry)) is not None} for group in groups]
    free = [{entry for entry in group if said(graph, entry) is None} for group in groups]
    if isinstance(plan, PlanError):
        torn = [len(one) > 1 or (some and max(one, default=0) > cap) for one, some in zip(given, free, strict=True)]
        assert any(torn) or "and the table" in str(plan)
        return
    sizes = {stream.name: stream.partitions for stream in plan.streams}
    stage_of = {id: stage for stage in plan.stages for id in stage.operators}
    for group, have, some in zip(groups, given, free, strict=True):
        found = {sizes[stream_of(graph, entry)] for entry in group}
        alone = max((min(stage_of[entry].partitions, cap) for entry in some), default=0)
        assert found == (have or {alone})


@example(CHAIN, 8)
@example(TORN, 256)
@example(VERSIONS, 256)
@example(TWO_TABLES, 256)
@given(topologies(), st.sampled_from((8, 256)))
@settings(max_examples=examples(120, 10_000))
def test_a_refusal_can_be_followed(steps, cap):
    mended = {}
    for _ in steps:
        refusal = planned(built(steps, cap, mended))
        if not isinstance(refusal, PlanError):
            break
        text = str(refusal)
        id = re.search(r"'(op\d+)(-rows)?' at", text)[1]
        assert id not in mended, text
        advice = text.rpartition("write instead: ")[2]
        assert ".partition_by(" in advice, text
        count = re.search(r"partitions=(\d+)\)", advice)
        mended[id] = None if count is None else int(count[1])
    assert not isinstance(refusal, PlanError), refusal


def test_stages_come_behind_those_that_they_read():
    app = App("crossed")
    near, far = app.input("near", value=int), app.input("far", value=int, partitions=3)
    twice = far.partition_by(abs, op_id="first").map(abs).partition_by(abs, op_id="second")
    twice.map(abs).merge(near.map(abs)).sink(print)
    near.partition_by(abs, op_id="third").window(tumbling(seconds=1), count()).sink(print)
    known = {"near", "far"}
    for stage in app.plan().stages:
        assert known.issuperset(stage.inputs)
        known |= {intermediate("crossed", id) for id in stage.operators if id in ("first", "second", "third")}


def test_partitions_go_through_a_chain_of_joins():
    plan = built(CHAIN, 256).plan()
    assert {stream.name: stream.partitions for stream in plan.streams if stream.role == "intermediate"} == {
        "sized-op3": 16,
        "sized-op4": 16,
    }


@pytest.mark.parametrize("kind", ["table_join", "window"])
def test_more_partitions_than_there_may_be_are_not_advised(kind):
    app = App("capped", options=Options(max_partitions=4))
    numbers = app.input("numbers", value=int, key=abs, partitions=8)
    if kind == "window":
        numbers.window(tumbling(seconds=1), count()).sink(print)
    else:
        numbers.partition_by(abs, key_type=int, partitions=2).join(
            app.table("rows", value=int, key=int, partitions=8), max
        ).sink(print)
    with pytest.raises(PlanError) as refusal:
        app.plan()
    advice = str(refusal.value).rpartition("write instead: ")[2]
    assert ".partition_by(" in advice
    assert "partitions=" not in advice
