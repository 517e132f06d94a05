"""A loop that reads its keys itself does what one does that is handed a column of keys."""

import gc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.levers import Levers
from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure
from runtime.model.garbage import collector_resting
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options, dead_letter, fail, skip
from tests.runtime.test_keys import KEYS
from tests.scale import examples


def counting(on_error=fail, keys_of=lambda key: key):
    app = App("counting")
    numbers = app.input("keys", key=keys_of).filter(lambda key: key != "x", on_error=on_error)
    numbers.scan(lambda count, key: count + 1, init=int, emit=lambda key, count: (key, count)).send_to(
        app.output("out")
    )
    return app


def ran(app, keys, columns, **levers):
    sink = ListSink(columns=columns)
    bind = {"keys": ListSource(keys, [*range(len(keys))]), "out": sink}
    environment = MemoryEnvironment()
    with suppress(OperatorFailure):
        run_blocking(
            Pipeline(app.graph(), Options(inline=False)), environment, RunSettings(bind=bind, levers=Levers(**levers))
        )
        return [*map(repr, sink.values)], sink.keys, sink.timestamps
    return None


@settings(max_examples=examples(100, 5_000))
@given(KEYS, st.sampled_from([(), ("keys",), ("timestamps",), ("keys", "timestamps")]), st.sampled_from([fail, skip]))
def test_whatever_the_keys_are_they_are_held_as_in_a_column(keys, columns, on_error):
    app = counting(on_error)
    assert ran(app, keys, columns) == ran(app, keys, columns, reading=False)


def test_the_plan_shows_where_keys_are_read():
    plan = counting().plan()
    assert "user_key = value" in plan.source(plan.stages[0].id)


@pytest.mark.parametrize("policy", [skip, dead_letter("bad")])
def test_keys_that_may_be_bad_are_read_before(app, policy):
    app.input("keys", key=len, on_error=policy).scan(lambda count, key: 1).send_to(app.output("out"))
    assert not app.plan().stages[0].segments[0].reading


def test_a_key_that_can_not_be_read_is_told_of_with_the_record(app, tmp_path):
    app.input("keys", key=lambda text: text["id"]).scan(lambda count, _: 1).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match=r"input 'keys' at .*: KeyError: 'id', on the key of keys/0 at 1;"):
        app.run(data=tmp_path, bind={"keys": [{"id": 1}, {}, {"id": 2}], "out": ListSink()})


def resting():
    with collector_resting():
        return gc.isenabled()


def test_the_collector_rests_only_where_it_was_at_work():
    assert (resting(), gc.isenabled()) == (False, True)
    gc.disable()
    try:
        assert (resting(), gc.isenabled()) == (False, False)
    finally:
        gc.enable()


def test_the_collector_rests_while_many_messages_are_run_at_once():
    seen = []
    app = App("watching")
    app.input("keys").map(lambda number: seen.append(gc.isenabled()) or number).send_to(app.output("out"))
    ran(app, [*range(20_000)], ())
    assert seen[0], "the first messages tell how long they take"
    assert not seen[-1]
    assert gc.isenabled()
