"""The stored state of every operator as rows: each comes back byte for byte, and replaced state is gone on from."""

import json
from contextlib import closing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.state.noted_dues import NOTED
from runtime.encoding.json_text import to_json
from runtime.model.errors import SamzaError
from runtime.opening.stored_state import STAGED
from runtime.ports.streams import Append, StreamConfig
from runtime.stored_state.entries import StoredEntries, entries_of
from runtime.stored_state.replacement import converted, imported
from samza_dsl import App, StateEntry, testing
from tests.amounts import Amount, Cents
from tests.runtime.test_declared_state import SIDED
from tests.runtime.test_declared_state import STEPS as DECLARED
from tests.runtime.test_declared_state import app_of as declared_app
from tests.runtime.test_entry_buckets import ROWS, STEPS, Given, encoded, in_time
from tests.scale import examples
from tests.simulation.crash import memory, run_once

APP = "parts"


def made(step):
    """Return the application of a step."""
    app = App(APP)
    found = STEPS[step](Given(app, (0, 1)))
    if found is not None:
        found.send_to(app.output("out"))
    return app


def append(environment, rows, others):
    for name, values in (("in", rows), ("other", others)):
        if values:
            data = [encoded(*value) for value in values]
            environment.append([Append(name, 0, Batch(data, timestamps=[0] * len(data)))])


def opened():
    environment = memory()
    for name in ("in", "other"):
        environment.create_stream(name, StreamConfig())
    return environment


def rows_of(app, environment, plan=None):
    """Return all state as rows, through the text of JSON."""
    plan, graph = plan or app.plan(), app.graph()
    rows = []
    with closing(environment.snapshot(APP)) as snapshot:
        for operator in environment.stores(APP):
            form = StoredEntries(plan, graph, operator)
            for one in entries_of(snapshot, operator):
                row = msgspec.json.decode(to_json(form.row(one)))
                assert form.stored(row) == one
                rows.append(row)
    return rows


def state_of(environment):
    return {(store, task): [*environment.state_range(APP, store, task)] for store, task in environment.state_stats(APP)}


def noted_apart(state):
    """Return a state without the times at which windows are to be looked at, which may lie before these are due."""
    return {place: [one for one in entries if one[0][:1] != NOTED] for place, entries in state.items()}


def out(environment):
    if "out" not in environment.streams():
        return []
    end, found, offset = environment.offsets("out", 0).end, [], 0
    while offset < end:
        read = environment.read("out", 0, offset)
        found += zip(read.batch.keys or [None] * len(read.batch.values), read.batch.values, strict=True)
        offset = read.next_offset
    return found


@pytest.mark.parametrize("step", STEPS)
@given(rows=ROWS, others=ROWS, cut=st.integers(0, 40))
@settings(max_examples=examples(8, 160), deadline=None)
def test_state_that_was_exported_and_imported_is_gone_on_from(step, rows, others, cut):
    rows, others = in_time(rows), in_time(others)
    whole, again = opened(), opened()
    for environment in (whole, again):
        append(environment, rows[:cut], others[:cut])
        run_once(made(step), environment, until_now=True)
    app = made(step)
    stored = rows_of(app, again)
    before = state_of(again)
    again.own(APP)
    again.forget(APP, again.stores(APP))
    counts = imported(again, app.plan(), app.graph(), (("a row", row) for row in stored))
    assert state_of(again) == before
    assert sum(counts.values()) == len(stored)
    if "clock" in step:
        return  # of which no two runs read their records at the same times
    for environment in (whole, again):
        append(environment, rows[cut:], others[cut:])
        run_once(made(step), environment, until_now=True)
    assert out(again) == out(whole)
    assert noted_apart(state_of(again)) == noted_apart(state_of(whole))


@pytest.mark.parametrize("step", STEPS)
@given(rows=ROWS, others=ROWS)
@settings(max_examples=examples(4, 80), deadline=None)
def test_a_conversion_that_changes_nothing_leaves_all_as_it_was(step, rows, others):
    rows, others = in_time(rows), in_time(others)
    environment = opened()
    append(environment, rows, others)
    run_once(made(step), environment, until_now=True)
    app = made(step)
    before = state_of(environment)
    environment.own(APP)
    for operator in environment.stores(APP):
        with closing(environment.snapshot(APP)) as snapshot:
            stored = [*entries_of(snapshot, operator)]
        assert converted(environment, app.plan(), app.graph(), operator, stored, lambda entry: entry) == (
            len(stored),
            len(stored),
        )
    assert state_of(environment) == before
    run_once(made(step), environment, until_now=True)


def test_a_conversion_that_fails_changes_nothing():
    environment, app = opened(), made("scan")
    append(environment, [("a", 1, 1), ("b", 2, 2)], [])
    run_once(made("scan"), environment, until_now=True)
    before = state_of(environment)
    environment.own(APP)

    def fails(entry):
        if entry.key == "b":
            raise ZeroDivisionError
        return entry.of(None)

    with closing(environment.snapshot(APP)) as snapshot:
        stored = [*entries_of(snapshot, "it")]
    with pytest.raises(ZeroDivisionError):
        converted(environment, app.plan(), app.graph(), "it", stored, fails)
    assert state_of(environment) == before

    def collides(entry):
        return StateEntry(kind="state", key="a", value=1, task=0)

    with pytest.raises(SamzaError, match="another entry of 'it' has the same place"):
        converted(environment, app.plan(), app.graph(), "it", stored, collides)
    assert state_of(environment) == before
    assert not any(store.startswith(STAGED) for store in environment.stores(APP))


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({}, "no operator 'None' that keeps state"),
        ({"operator": "it"}, "has no 'value'"),
        (
            {"operator": "it", "kind": "timer", "key": "a", "value": 1},
            "keeps nothing of the kind 'timer': it has state",
        ),
        ({"operator": "it", "kind": "state", "value": 1}, "this is no state of 'it': it has no 'key'"),
        (
            {"operator": "it", "kind": "state", "key": "a", "value": {"$": "record", "class": "no:Such", "of": {}}},
            "no:Such",
        ),
        ({"operator": "it", "kind": "state", "key": "a", "value": {"$": "encoded", "of": 1}}, "holds no bytes"),
    ],
)
def test_a_row_that_is_none_is_refused_and_nothing_is_changed(row, wrong):
    environment, app = opened(), made("scan")
    append(environment, [("a", 1, 1)], [])
    run_once(made("scan"), environment, until_now=True)
    before = state_of(environment)
    environment.own(APP)
    rows = [*rows_of(app, environment), row]
    with pytest.raises(SamzaError, match=wrong):
        imported(environment, app.plan(), app.graph(), (("line 1", json.loads(json.dumps(one))) for one in rows))
    assert state_of(environment) == before


@pytest.mark.parametrize("made", [(lambda n: {"cents": n}, None), (Amount, Cents())], ids=["any", "by a serde"])
@pytest.mark.parametrize("step", DECLARED)
def test_what_a_serde_keeps_comes_back_and_is_shown_as_it_reads_it(step, made):
    make, state = made
    app = declared_app(step, make, state)
    with testing.running(app) as run:
        key = {"key": "k"} if "tables" in step else {}
        run.send("in", 1, **key)
        if step in SIDED:
            run.send("other", 2, **key)
        environment = run._process.environment
        plan, graph = app.plan(), app.graph()
        with closing(environment.snapshot(app.name)) as snapshot:
            for operator in environment.stores(app.name):
                form = StoredEntries(plan, graph, operator)
                for one in entries_of(snapshot, operator):
                    row = msgspec.json.decode(to_json(form.row(one)))
                    assert form.stored(row) == one
                    assert form.changed(one, lambda entry: entry) == one
