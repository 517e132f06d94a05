"""Origins of rows: of any pipeline the fewest records give the row again, and none of them can be left out."""

import random
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import ModuleType
from zlib import crc32

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import Commit
from runtime.ports.streams import StreamConfig
from samza_dsl import App, count, dead_letter, tumbling
from samza_dsl.testing.origins import InputHistory, NoOrigins, Search, origins, row_at, shortest_prefix, smallest
from samza_dsl.testing.regression import Literals, module_of, test_of
from tests.building import build
from tests.scale import examples
from tests.simulation.crash import append_rows, fill, memory, run_once
from tests.strategies import pipelines, records, stored, tables

test_of.__test__ = False


def passes(source, app):
    """Run a test that was written for an application."""
    module = ModuleType("an_app_under_test")
    module.app = app
    sys.modules[module.__name__] = module
    try:
        found: dict[str, object] = {}
        exec(source, found)
        for name, test in found.items():
            if name.startswith("test_"):
                test()
    finally:
        del sys.modules[module.__name__]
    return [name for name in found if name.startswith("test_")]


@given(st.data(), st.integers(0, 99))
@settings(max_examples=examples(6, 200), deadline=None)
def test_the_fewest_records_of_any_pipeline_give_the_row_again(data, seed):
    pipeline = data.draw(pipelines(most=4))
    parts = data.draw(records(pipeline.partitions, most=6, nulls=pipeline.nulls))
    environment = memory()
    for stream, events in pipeline.split(parts).items():
        fill(environment, stream, stored(events), random.Random(seed))
    for stream, rows in tables(pipeline).items():
        fill(environment, stream, rows)
    run_once(build(pipeline), environment, seed)
    there = environment.streams()
    rows = [
        (output, partition, offset)
        for output in pipeline.outputs()
        for partition in range(there[output].partitions)
        for offset in range(environment.offsets(output, partition).end)
    ]
    assume(rows)
    output, partition, offset = data.draw(st.sampled_from(rows))
    app = build(pipeline)
    found = origins(app, environment, output, partition, offset, most_runs=150)
    row, history = row_at(environment, output, partition, offset), InputHistory(environment, app.graph())
    assert {*map(place_of, found.records)} <= {*map(place_of, history.records)}
    search = Search(app, output, [row], history, most_runs=150)
    made = search.count(found.records, found.with_end)
    assert made
    for place in range(len(found.records)) if found.is_fewest else ():
        rest = [*found.records[:place], *found.records[place + 1 :]]
        assert search.count(rest, found.with_end) < made
    assert passes(test_of(app, found, "an_app_under_test", "app"), app)


def place_of(one):
    return one.stream, one.stored.partition, one.stored.offset


def shop(limit=100):
    app = App("shop")
    orders = app.input("orders", value=list, key=lambda order: order[0], partitioned_by_key=True)

    def full(order, context):
        context.state = (context.state or 0) + order[1]
        if context.state <= limit:
            return []
        context.state = 0
        return [order[0]]

    orders.process(full, op_id="sum").send_to(app.output("alerts", value=str))
    return app


def ran(app, *parts, stream="orders"):
    environment = memory()
    fill(environment, stream, [[(None, msgspec.json.encode(row), at) for at, row in enumerate(part)] for part in parts])
    run_once(app, environment)
    return environment


def noted(state, again=False):
    """Tell of each record what all up to it come to, in the order in which they came."""
    app = App("noted")
    left, right = (app.input(name, value=list, key=lambda one: one[0], partitioned_by_key=not again) for name in "ab")
    merged = left.merge(right)
    if again:
        merged = merged.partition_by(lambda one: one[0], partitions=2, op_id="by")
    merged.scan(state, emit=lambda one, total: [one[0], total], op_id="note").send_to(app.output("notes", value=list))
    return app


FOLDS = {
    "a list": lambda total, one: [*(total or ()), one[1]],
    "a number": lambda total, one: (total or 1) * 3 + one[1],
    "the first": lambda total, one: one[1] if total is None else total,
    "differences": lambda total, one: one[1] - (total or 0),
}


@given(st.data())
@settings(max_examples=examples(15, 200), deadline=None)
def test_a_row_comes_again_whatever_the_order_in_which_partitions_met(data):
    """Whoever wrote it took the partitions' records in an order that is noted nowhere, also against their times."""
    state = FOLDS[data.draw(st.sampled_from(sorted(FOLDS)))]
    environment, partitions, again = memory(), data.draw(st.integers(1, 2)), data.draw(st.booleans())
    for stream in "ab":
        environment.create_stream(stream, StreamConfig(partitions=partitions))
    one = st.tuples(st.sampled_from("ab"), st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 9)), max_size=4))
    for stream, rows in data.draw(st.lists(one, min_size=1, max_size=7)):
        for key, number in rows:
            row = (key.encode(), msgspec.json.encode([key, number]), data.draw(st.integers(0, 20)))
            partition = data.draw(st.integers(0, partitions - 1)) if again else crc32(key.encode()) % partitions
            append_rows(environment, stream, partition, [row])
        run_once(noted(state, again), environment, until_now=True)
    found = environment.streams().get("notes")
    numbers = range(found.partitions) if found else ()
    places = [(number, offset) for number in numbers for offset in range(environment.offsets("notes", number).end)]
    assume(places)
    place = data.draw(st.sampled_from(places))
    found = origins(noted(state, again), environment, "notes", *place)
    assert found.made.value == msgspec.json.decode(row_at(environment, "notes", *place).value)
    assert passes(test_of(noted(state, again), found, "an_app_under_test", "app"), noted(state, again))


def offsets(found):
    return [one.stored.offset for one in found.records]


def test_the_state_before_is_told_and_the_record_that_the_row_comes_with():
    environment = ran(shop(), [["a", 60], ["b", 90], ["a", 30], ["a", 50], ["b", 5]])
    found = origins(shop(), environment, "alerts", 0, 0)
    assert offsets(found) == [0, 3]
    assert [(row["key"], row["value"]) for row in found.before] == [("a", 60)]
    assert found.is_fewest and not found.with_end and not found.fired


def test_of_rows_that_are_alike_each_has_its_own_record():
    environment = memory()
    amounts = [60, 60, 10, 30, 70]
    fill(environment, "orders", [[(None, msgspec.json.encode(["a", amount]), 0) for amount in amounts]])
    run_once(shop(), environment)
    assert environment.offsets("alerts", 0).end == 2
    assert offsets(origins(shop(), environment, "alerts", 0, 0)) == [0, 1]
    assert offsets(origins(shop(), environment, "alerts", 0, 1))[-1] == 4


@pytest.mark.parametrize("unit", ["ms", "s"])
def test_records_near_a_row_are_found_by_their_event_time(unit):
    """Records are often stored long after what they tell of, as history is that was taken in at once."""
    app = App("panes")
    orders = app.input("orders", value=list, timestamp=lambda order: order[1], unit=unit)
    orders.window_all(tumbling(seconds=10), count()).send_to(app.output("panes"))
    scale = 1_000 if unit == "ms" else 1
    rows = [(None, msgspec.json.encode(["k", at * scale]), 1_700_000_000_000 + at) for at in range(3_000)]
    environment = memory()
    fill(environment, "orders", [rows[::2], rows[1::2]])
    run_once(app, environment)
    row = row_at(environment, "panes", 0, 150)
    search = Search(app, "panes", [row], InputHistory(environment, app.graph()), 2)
    found, with_end = search.begin()
    assert len(found) < 600 and not with_end


def commit_at(environment, position, offset):
    """Return a commit that has read less of the input."""
    generation = environment.generation("shop")
    checkpoint = Checkpoint(generation, (msgspec.structs.replace(position, offset=offset),))
    return Commit("shop", generation, [], [], {"0": checkpoint})


def counted():
    app = App("counted")
    rows = app.input("in", value=list, key=lambda row: row[0], timestamp=lambda row: row[1], partitioned_by_key=True)
    windows = rows.window(tumbling(milliseconds=100), count(), op_id="count")
    windows.map(lambda pane: [pane.key, pane.value]).send_to(app.output("out", value=list))
    return app


def test_a_pane_has_the_record_that_let_it_fire_and_the_window_that_fired():
    environment = ran(counted(), [["a", 10], ["b", 20], ["a", 30], ["b", 150], ["b", 160], ["a", 999]], stream="in")
    found = origins(counted(), environment, "out", 0, 0)
    assert [one.stored.offset for one in found.records][:2] == [0, 2] and len(found.records) == 3
    assert [row["key"] for row in found.fired] == ["a"]
    last = environment.offsets("out", 0).end - 1
    assert origins(counted(), environment, "out", 0, last).with_end


def test_a_look_for_records_says_nothing(caplog):
    """Times of ms that would be days of today are told of a run, and not of each run on a part of its records."""
    environment = memory()
    rows = [["a", 19_000 + number * 100] for number in range(40)]
    fill(environment, "in", [[(None, msgspec.json.encode(row), 1_790_000_000_000) for row in rows]])
    run_once(counted(), environment)
    assert caplog.records, "a run says it"
    caplog.clear()
    assert origins(counted(), environment, "out", 0, 20).runs > 5
    assert caplog.records == []
    ran(counted(), rows, stream="in")
    assert caplog.records, "and runs behind it do"


def test_a_dead_letter_has_its_record():
    def refused(row):
        if row[1] == 3:
            raise ValueError("no three")
        return row

    app = App("letters")
    rows = app.input("in", value=list, key=lambda row: row[0], partitioned_by_key=True)
    rows.map(refused, on_error=dead_letter("wrong")).send_to(app.output("out", value=list))
    environment = ran(app, [["a", 1], ["a", 3], ["b", 2]], stream="in")
    assert offsets(origins(app, environment, "wrong", 0, 0)) == [1]


def test_sinks_are_not_called_and_nothing_is_written():
    called = []
    again = App("sunk")
    stream = again.input("orders", value=list)
    stream.sink(called.append)

    async def awaited(value):
        called.append(value)

    stream.sink(awaited)
    stream.send_to(again.output("out", value=list))
    environment = ran(again, [["a", 1], ["b", 2]])
    before, commits = len(called), environment.version()
    assert offsets(origins(again, environment, "out", 0, 1)) == [1]
    assert len(called) == before and environment.version() == commits


def test_what_does_not_come_again_says_so():
    environment = ran(shop(), [["a", 60], ["a", 50]])
    with pytest.raises(NoOrigins, match="does not come again from 2 records"):
        origins(shop(limit=10_000), environment, "alerts", 0, 0)
    with pytest.raises(NoOrigins, match="it writes alerts"):
        origins(shop(), environment, "out", 0, 0)
    with pytest.raises(NoOrigins, match="has no record at 7"):
        origins(shop(), environment, "alerts", 0, 7)
    app = App("other")
    app.input("others", value=str).send_to(app.output("alerts", value=str))
    with pytest.raises(NoOrigins, match="nothing of the inputs others"):
        origins(app, environment, "alerts", 0, 0)


def test_where_runs_are_used_up_there_may_be_fewer():
    environment = ran(shop(), [["a", 1]] * 99 + [["a", 99]])
    found = origins(shop(), environment, "alerts", 0, 0, most_runs=5)
    assert not found.is_fewest and found.runs == 5
    assert Search(shop(), "alerts", [found.row], InputHistory(environment, shop().graph()), 9).makes(
        found.records, False
    )


def test_records_that_were_not_read_yet_are_no_part_of_it():
    environment = memory()
    fill(environment, "orders", [[(None, b'["a",60]', at) for at in range(9)]])
    app = shop()
    run_once(app, environment)
    positions = environment.checkpoints("shop")["0"].positions
    environment.commit(commit_at(environment, positions[0], 4))
    assert [one.stored.offset for one in InputHistory(environment, app.graph()).records] == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 60), unique=True, max_size=30), st.data())
def test_the_smallest_part_is_found_whatever_it_is(items, data):
    needed = data.draw(st.lists(st.sampled_from(items), unique=True) if items else st.just([]))
    assert sorted(smallest(items, lambda some: {*needed} <= {*some})) == sorted(needed)
    prefix = shortest_prefix(items, lambda some: {*needed} <= {*some})
    assert {*needed} <= {*prefix} and (not needed or prefix[-1] in needed)


class Colour(Enum):
    RED = 1


class Point(msgspec.Struct):
    x: int
    at: datetime


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.just(Colour.RED)
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.timedeltas()
    | st.builds(Point, st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
@example({"a": float("-inf"), "at": datetime(2026, 1, 1, tzinfo=UTC), "for": timedelta(1), "of": Decimal("1.50")})
def test_a_value_as_python_is_that_value(value):
    literals = Literals()
    source = literals.of(value)
    found: dict[str, object] = {}
    exec("\n".join([*literals.imports, f"value = {source}"]), found)
    assert found["value"] == value


def test_the_names_of_modules_are_those_that_a_test_beside_the_program_imports():
    app = shop()
    assert module_of("jobs/shop.py", app) == ("shop", "app")
    assert module_of("jobs/shop.py:other", app) == ("shop", "other")
    assert module_of("package.shop", app) == ("package.shop", "app")
