"""A table of the application's own against a dict, and the join with it against that with a table that is read."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.joins.changes import Change
from operators.joins.own_table import OwnTableJoinOperator, OwnTableOperator
from planner.model.errors import PlanError
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.ports.streams import Append, StreamConfig
from runtime.stores.memory import MemoryStore
from samza_dsl import App, testing
from tests.scale import examples
from tests.simulation.crash import memory, run_once

KEYS = st.sampled_from(["a", "b", 3, (4, "d")])
ROWS = st.none() | st.integers(0, 9) | st.lists(st.integers(0, 3), max_size=2)


def batch_of(told):
    values, keys, times = map(list, zip(*told, strict=True))
    return Batch(values, KeySerde(Tagged()).hold(keys), times, times)


@given(batches=st.lists(st.lists(st.tuples(ROWS, KEYS, st.integers(-5, 20)), min_size=1, max_size=5), max_size=8))
@settings(max_examples=examples(60, 2_000))
def test_a_table_is_a_dict_and_tells_each_change(batches):
    operator, table, found, expected = OwnTableOperator(MemoryStore(), KeySerde(Tagged())), {}, [], []
    for batch in batches:
        changes = operator.process(batch_of(batch))
        found += [] if changes is None else zip(changes.values, changes.timestamps, changes.stamps, strict=True)
        for row, key, at in batch:
            old = table.pop(key, None)
            if row is not None:
                table[key] = row
            if old is not None or row is not None:
                expected.append((Change(key, old, row), at, at))
    assert found == expected
    assert len(list(operator.store.range())) == len(table)


@pytest.mark.parametrize("left", [True, False])
@given(told=st.lists(st.tuples(st.booleans(), ROWS, KEYS, st.integers(-5, 20)), min_size=1, max_size=20))
@settings(max_examples=examples(60, 2_000))
def test_a_message_meets_the_row_that_its_key_has_by_then(left, told):
    operator = OwnTableJoinOperator(left, lambda value, row: (value, row), MemoryStore(), KeySerde(Tagged()))
    sided = [((1, Change(key, None, row)) if is_row else (0, row), key, at) for is_row, row, key, at in told]
    joined, table, expected = operator.process(batch_of(sided)), {}, []
    for is_row, row, key, at in told:
        if is_row:
            table[key] = row
        elif left or table.get(key) is not None:
            expected.append(((row, table.get(key)), at))
    assert ([] if joined is None else list(zip(joined.values, joined.timestamps, strict=True))) == expected


def app_of(is_own, how):
    app = App("joining")
    numbers = app.input("numbers", value=int, key=str)
    if is_own:
        table = app.input("rows", key=str).to_table("own")
    else:
        table = app.table("rows", key=str)
    numbers.join(table, lambda n, row: [n, row], how=how, op_id="it").send_to(app.output("out"))
    return app


PHASES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9) | st.lists(st.integers(0, 3))), max_size=4),
        st.lists(st.sampled_from("abc"), max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("how", ["inner", "left"])
@given(phases=PHASES)
@settings(max_examples=examples(25, 500), deadline=None)
def test_rows_that_were_there_before_a_message_are_met_as_those_of_a_table_that_is_read(how, phases):
    found = []
    for is_own in (True, False):
        environment = memory()
        for name in ("rows", "numbers"):
            environment.create_stream(name, StreamConfig())
        for rows, numbers in phases:
            for name, told in (("rows", rows), ("numbers", [(key, n) for n, key in enumerate(numbers)])):
                if told:
                    data = [json.dumps(value).encode() for _, value in told]
                    environment.append(
                        [Append(name, 0, Batch(data, [key.encode() for key, _ in told], [0] * len(told)))]
                    )
                # Each phase is a run of its own: what was kept by the one before is there.
                run_once(app_of(is_own, how), environment, until_now=True)
        end = environment.offsets("out", 0).end
        out, offset = [], 0
        while offset < end:
            read = environment.read("out", 0, offset)
            out += zip(read.batch.keys, read.batch.values, strict=True)
            offset = read.next_offset
        found.append(out)
    assert found[0] == found[1]


def test_a_table_is_joined_with_tables_and_removes_rows():
    app = App("tables")
    names = app.input("names", value=str, key=str).map(lambda name: name or None).to_table("own")
    ages = app.table("ages", key=str, value=int)
    names.join(ages, lambda name, age: f"{name}, {age}").changes().send_to(app.output("people"))
    with testing.running(app) as run:
        run.send("ages", 40, key="a")
        run.send("names", "Ann", key="a")
        run.crash()
        run.restart()
        run.send("names", "", key="a")
        assert run.received("people") == [Change("a", None, "Ann, 40"), Change("a", "Ann, 40", None)]


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"on": str}, r"no on="),
        ({"how": "outer"}, 'how="inner" or how="left"'),
        ({"within": (0, 1)}, "within= is of a join of two streams"),
    ],
)
def test_what_only_other_joins_have_is_refused(how, wrong):
    app = App("refused")
    numbers = app.input("numbers", value=int, key=str)
    with pytest.raises(PlanError, match=wrong):
        numbers.join(numbers.to_table("own"), max, **how)
