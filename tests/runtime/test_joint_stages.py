"""A stage that is run once for all tasks comes to what it comes to task by task, and leaves the same behind."""

import json
import random
from dataclasses import replace
from unittest.mock import patch
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.entry_keys import KEY, beyond
from operators.process import ENTRIES
from operators.state.key_collections import LIST, place_of
from planner.model.levers import ALL
from runtime.loop.chooser import HandedOn
from runtime.model.errors import SamzaError
from runtime.stores.joint import EntryPlaces
from samza_dsl import App, Options, count, dead_letter, fold, session, skip, tumbling, whole
from samza_dsl.testing.environment import CrashPoint
from tests.conformance import pipelines as conformance
from tests.conformance.pipelines import PARTITIONS, events, filled
from tests.conformance.test_runners import results
from tests.runtime.test_groups_between_stages import outcome, pipelines, told
from tests.scale import examples
from tests.simulation.crash import Crash, Watched, fill, memory, rows_of, run_once

APART = replace(ALL, joint=False)
points = st.builds(CrashPoint, st.sampled_from(["before_commit", "after_commit"]), st.integers(1, 4))


@given(pipelines(), st.integers(1, 30), st.integers(1, 30), st.booleans())
@settings(max_examples=examples(100, 5_000), deadline=None)
def test_a_stage_that_is_run_for_all_tasks_comes_to_what_each_comes_to(pipeline, batch_records, most, trust):
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=most)
    found = [outcome(make(options), parts, replace(levers, trust=trust)) for levers in (ALL, APART)]
    if not any(isinstance(one, str) for one in found):  # whose first failure may be another one
        assert found[0] == found[1]


@given(
    pipelines(),
    st.integers(1, 10),
    st.lists(points, max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 99),
)
@settings(max_examples=examples(100, 5_000), deadline=None)
def test_each_way_goes_on_with_what_the_other_has_left(pipeline, batch_records, crashes, joint, seed):
    """What is handed on is often left for a commit, which stores it for the partition of its key."""
    make, parts = pipeline
    options = Options(batch_records=batch_records, max_uncommitted=5, commit_interval_ms=5)
    stored = [[(None, json.dumps(list(r)).encode(), 0) for r in rows if not isinstance(r[0], tuple)] for rows in parts]
    outcomes, turns = [], HandedOn.turns
    for ways, dies in (([False], []), (joint, crashes)):
        environment, chance = memory(), random.Random(seed)
        fill(environment, "in", stored)
        with patch.object(HandedOn, "turns", lambda all: turns(all) if chance.random() < 0.7 else ()):  # noqa: B023
            try:
                for way, crash in zip(ways, [*dies, None], strict=False):
                    try:
                        run_once(make(options), Watched(environment, crash, None), levers=replace(ALL, joint=way))
                        break
                    except Crash:
                        pass
            except SamzaError as failure:
                outcomes.append(told(failure))
                continue
        outcomes.append(sorted(value for rows in rows_of(environment, "out") for _, value, _ in rows))
    assert outcomes[0] == outcomes[1]


def kept(app):
    """Keep states that are changed in place, lists and maps; leave out what some messages have done to them."""

    def on_message(event, context):
        context.state[str(event.number)] = len(context.list("last"))
        context.list("last").append([event.number])
        if len(context.list("last")) > 3:
            context.list("last").drop(2)
        context.map("times")[event.number] = event.at
        if event.number % 9 == 0:
            context.map("times").clear()
        if event.number % 10 == 3:
            raise ValueError(event.number)
        return [(context.key, sorted(context.state), [*context.list("last")], [*context.map("times").items()])]

    conformance.events(app).process(on_message, init=dict, on_error=skip).send_to(app.output("out"))


def looked_up(app):
    """Add up by key what is looked up in a table that all have, and count it within sessions."""
    read, few = conformance.events(app), app.table("few", key=str, value=conformance.Event, broadcast=True)
    found = read.join(few, lambda event, row: event.number + (row.number if row else 7), on=lambda event: event.key)
    sums = found.scan(lambda so_far, number: so_far + number, init=int, op_id="sums")
    sums.send_to(app.output("sums", value=int))
    conformance.told(app, sums.window(session(milliseconds=40), count(), op_id="gaps"))


def tables(app):
    """Join two tables of the application's own by key."""
    left, right = (conformance.events(app, stream).to_table(f"own-{stream}") for stream in ("events", "more"))
    both = left.join(right, lambda one, other: (one.number, other.number), op_id="both")
    newest = fold(lambda: None, lambda row, change: change.new)
    panes = both.changes().window(whole(), newest, op_id="newest")
    panes.map(lambda pane: (pane.key, pane.value), op_id="last").send_to(app.output("out"))


OPERATORS = {one.__name__: one for one in (kept, looked_up, tables)} | {
    name: conformance.PIPELINES[name]
    for name in ("joins_of_streams", "nearest", "own_tables", "triggers", "retractions")
}


def moved(app, stream="events"):
    """Read what the pipelines of the conformance suite read, behind a repartitioning by the keys that it has."""
    return events(app, stream).partition_by(
        lambda event: event.key, key_type=str, partitions=PARTITIONS, op_id=f"{stream}-moved"
    )


def behind(name, options):
    """Return one of the pipelines of the conformance suite, which use every operator, behind a repartitioning."""
    app = App(name.replace("_", "-"), options)
    with patch.object(conformance, "events", moved):
        OPERATORS[name](app)
    return app


@given(
    st.sampled_from([*OPERATORS]),
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from([True, True, False]), st.sampled_from([None, None, 2]), points), max_size=3),
    st.integers(0, 9),
)
@example("kept", 7, [(True, None, CrashPoint("after_commit", 2)), (False, 2, CrashPoint("before_commit", 3))], 1)
@settings(max_examples=examples(30, 2_000), deadline=None)
def test_each_way_goes_on_with_what_the_other_keeps(name, batch_records, runs, seed):
    """What is kept by a run that dies, once for all tasks or by task, split or not, the next one goes on with."""
    found, turns = [], HandedOn.turns
    for ways in ([(False, None, None)], [*runs, (True, None, None)]):
        environment, chance = filled(seed), random.Random(seed)
        with patch.object(HandedOn, "turns", lambda all: turns(all) if chance.random() < 0.7 else ()):  # noqa: B023
            for way, factor, crash in ways:
                options = Options(
                    batch_records=batch_records, max_uncommitted=10, commit_interval_ms=5, elasticity=factor
                )
                try:
                    run_once(behind(name, options), Watched(environment, crash), levers=replace(ALL, joint=way))
                    break
                except Crash:
                    pass
        found.append(results(behind(name, Options()), environment))
    assert found[0] == found[1]
    assert any(found[0].values())


def lettering(options):
    """Send what can't be shown to dead letters, behind a repartitioning."""
    app = App("lettering", options)
    keyed = app.input("in", timestamp=lambda r: r[1], value=tuple).partition_by(
        lambda r: r[0], partitions=4, op_id="by"
    )
    kept = keyed.filter(lambda r: 10 // (r[2] - 3) != 7, on_error=dead_letter("bad"), op_id="kept")
    kept.window(tumbling(milliseconds=5), count(), late=dead_letter("late"), op_id="counts").map(str).send_to(
        app.output("out")
    )
    return app


def letters(environment, stream):
    """Return the letters of a stream with what they say of where they are from."""
    found, offset = [], 0
    while (read := environment.read(stream, 0, offset)) is not None:
        found += zip(read.batch.keys, read.batch.values, map(repr, read.batch.headers), strict=True)
        offset = read.next_offset
    return sorted(found)


@pytest.mark.parametrize("batch_records", [1, 100])
def test_letters_say_the_partition_that_a_message_went_to(batch_records):
    found = []
    for levers in (ALL, APART):
        environment = memory()
        rows = [[key, at, key] for at in (1, 2, 40, 3) for key in range(8)]
        fill(environment, "in", [[(None, json.dumps(row).encode(), 0) for row in rows]])
        run_once(lettering(Options(batch_records=batch_records)), environment, levers=levers)
        found.append([letters(environment, name) for name in ("bad", "late")])
    assert found[0] == found[1]
    assert [len(one) for one in found[0]] == [4, 7]


@given(
    st.lists(st.sampled_from([*ENTRIES]), min_size=1, max_size=4),
    st.lists(st.binary(min_size=1, max_size=3) | st.just(b"\xff" * 300), min_size=1, max_size=9),
)
def test_entries_lie_by_their_keys_alone(firsts, keys):
    """Those of one kind are told at once, also where keys behind their lengths are of one length."""
    places = EntryPlaces(ENTRIES, crc32)
    for found in (firsts, firsts[:1]):
        for own in (keys, [key for key in keys if len(key) == len(keys[0])]):
            entries = [(first, key) for first in found for key in own]
            parts = {"name": "n", "entry": b"e", "index": 7, "at_ms": -3}
            made = [first + ENTRIES[first].bytes_of({**parts, KEY: key}) for first, key in entries]
            expected = [crc32(key) for _, key in entries]
            assert [*places.each(made)] == [*map(places.at, made)] == expected
    for place, key, first in ((place_of(LIST, key), key, LIST) for key in keys):
        assert places.between(place, beyond(place)) == crc32(key)
        assert places.between(place, None) == places.between(first, beyond(first)) is None
        assert places.between(place, beyond(place[:-1])) in (None, crc32(key))
