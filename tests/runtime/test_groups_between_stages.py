"""Values that are grouped for windows before a repartitioning come to what rows come to, whatever stops or fails."""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.codegen.aggregating import compiled
from planner.model.levers import ALL
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import (
    App,
    Options,
    aggregate,
    collect,
    count,
    dead_letter,
    fail,
    first,
    hopping,
    maximum,
    mean,
    skip,
    top_k,
    total,
    tumbling,
)
from samza_dsl.testing.environment import CrashPoint
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through

KEYS = st.sampled_from(["a", "b", "é", 1, 2, -7, (1, "x"), True])
RECORDS = st.lists(st.tuples(KEYS, st.integers(-20, 60), st.none() | st.integers(0, 9)), max_size=25)
WINDOWS = {
    "tumbling": tumbling(milliseconds=5),
    "hopping": hopping(milliseconds=6, every_ms=2),
    "long": tumbling(milliseconds=50),
}
AGGREGATIONS = {
    "count": count,
    "collect": collect,
    "mean": lambda: mean(lambda r: r[2]),
    "first": lambda: first(lambda r: r[2]),
    "top": lambda: top_k(2, by=lambda r: r[1]),
    "several": lambda: aggregate(
        dict, n=count(), most=maximum(lambda r: r[2]), sum=total(lambda r: r[2]), first=first(lambda one: one[2])
    ),
    "raising": lambda: total(lambda r: 10 // ((r[2] or 0) - 3)),
}
POLICIES = {"fail": fail, "skip": skip, "letter": dead_letter("bad")}


@st.composite
def pipelines(draw):
    """Draw what makes an application, given options, and the records of its partitions.

    Where the order of values matters there is one: that of records of different partitions is nobody's.
    """
    windows, aggregation = draw(st.sampled_from([*WINDOWS])), draw(st.sampled_from([*AGGREGATIONS]))
    partitions, policy = draw(st.integers(1, 4)), draw(st.sampled_from([*POLICIES]))
    lateness = draw(st.sampled_from([0, 0, 10]))
    late = draw(st.booleans())
    declared = draw(st.booleans())

    def make(options):
        app = App("groups", options)
        records = app.input("in", timestamp=lambda r: r[1], max_disorder_ms=15, value=tuple)
        kept = records.filter(lambda r: r[2] != 5)
        keyed = kept.partition_by(
            lambda r: r[0], partitions=partitions, op_id="by", **({"value": tuple} if declared else {})
        )
        panes = keyed.window(
            WINDOWS[windows],
            AGGREGATIONS[aggregation](),
            allowed_lateness_ms=lateness,
            late=dead_letter("late") if late else None,
            on_error=POLICIES[policy],
            op_id="windows",
        )
        panes.map(lambda p: [repr(p.key), p.start, p.end, p.index, repr(p.value)]).send_to(app.output("out"))
        return app

    by_order = aggregation in ("collect", "first", "top", "several")
    return make, draw(st.lists(RECORDS, min_size=1, max_size=1 if by_order else 3))


def told(failure):
    """Return what an error says but for the place: rows have one in the log, and what is handed on has none."""
    return re.split(r",? on (a message|one record of|what groups-by|groups-by)|; ", str(failure))[0]


def outcome(app, parts, levers):
    """Return what a run in memory leaves: its outputs and letters, or the error that ended it."""
    sink, environment = ListSink(), MemoryEnvironment()
    source = ListSource(parts if len(parts) > 1 else parts[0], partitions=len(parts))
    run = Run(
        Pipeline(app.graph(), app.options, app.around),
        environment,
        RunSettings(bind={"in": source, "out": sink}, levers=levers),
    )
    try:
        asyncio.run(run.drive())
    except SamzaError as failure:
        return told(failure)
    found = [rows_of(environment, name) for name in ("bad", "late")]
    letters = [sorted(repr(row[:2]) for row in rows[0]) for rows in found if rows]
    return sorted(map(json.dumps, sink.values)), letters


@given(pipelines(), st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=examples(150, 5_000), deadline=None)
def test_groups_come_to_what_rows_come_to(pipeline, batch_records, max_uncommitted):
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=max_uncommitted)
    rows = outcome(make(options), parts, replace(ALL, folding=False))
    assert outcome(make(options), parts, ALL) == rows
    if not isinstance(rows, str):  # whose first failure may be another one
        assert outcome(make(options), parts, replace(ALL, relays=False)) == rows


@given(
    pipelines(),
    st.integers(1, 10),
    st.lists(st.builds(CrashPoint, st.sampled_from(["before_commit", "after_commit"]), st.integers(1, 4)), max_size=3),
)
@settings(max_examples=examples(60, 2_000), deadline=None)
def test_they_do_so_however_often_the_run_dies(pipeline, batch_records, crashes):
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=5, commit_interval_ms=5)
    stored = [[(None, json.dumps(list(r)).encode(), 0) for r in rows if not isinstance(r[0], tuple)] for rows in parts]
    outcomes = []
    for levers, deaths in ((replace(ALL, folding=False, relays=False), []), (ALL, crashes)):
        environment = memory()
        fill(environment, "in", stored)
        try:
            run_through(lambda: make(options), environment, deaths, levers=levers)
        except SamzaError as failure:
            outcomes.append(told(failure))
            continue
        outcomes.append(sorted(value for rows in rows_of(environment, "out") for _, value, _ in rows))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("aggregation", [*AGGREGATIONS])
def test_what_is_written_for_an_aggregation_is_what_it_does(aggregation):
    plain = AGGREGATIONS[aggregation]()
    made = compiled(plain)
    values = [("a", n, None if n % 4 == 0 else n + 4) for n in range(9)]
    assert made.init() == plain.init()
    for stop in range(9):
        assert made.add(made.init(), values[:stop]) == plain.add(plain.init(), values[:stop])
    state = made.add(made.add(made.init(), values[:4]), values[4:])
    assert made.finish(state) == plain.finish(plain.add(plain.add(plain.init(), values[:4]), values[4:]))
