"""Where state is found by key, all records of a key come to one task, or the pipeline is refused."""

import re

import pytest

from planner.model.errors import PlanError
from runtime.ports.streams import StreamConfig
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, count, hash_, ranges, tumbling
from tests.planner.refusal import numbers_of, refused

HOURLY = tumbling(hours=1)
UNSAID = "the key of 'numbers' is a function, and nothing says that its 2 partitions are made by it"
WAY_OUT = ".partition_by(lambda value: ..., partitions=2) before it, or partitioned_by_key=True in app.input(...)"
UNSAID_OF_ROWS = "the key of 'rows' is a function, and nothing says that its 2 partitions are made by it"
TABLES_WAY_OUT = "broadcast=True and on=, key= the type of the stored key, or partitioned_by_key=True in app.table(...)"


@pytest.fixture
def app():
    return App("mistaken")


async def remember(value, context):
    return [value]


KEYED = {
    "window": lambda numbers, **said: numbers.window(HOURLY, count()),
    "process": lambda numbers, **said: numbers.process(lambda value, context: [value]),
    "async_flat_map": lambda numbers, **said: numbers.async_flat_map(remember),
    "asof_join": lambda numbers, **said: numbers.join_asof(numbers, max),
    "table_join": lambda numbers, **said: numbers.join(numbers.app.table("rows", value=int, key=abs, **said), max),
}
SAID = {"partitions": 2, "partitioned_by_key": True}


@pytest.mark.parametrize("kind", KEYED)
def test_state_by_a_key_of_which_nothing_says_where_it_lies(app, kind):
    KEYED[kind](numbers_of(app, key=abs, partitions=2).map(abs), **SAID).sink(print)
    with pytest.raises(PlanError) as refusal:
        app.plan()
    blamed = rf"{kind} '{kind}-numbers' at .*test_copartitioning.py:\d+: "
    assert re.match(blamed + re.escape(UNSAID), str(refusal.value))
    assert str(refusal.value).endswith(f"write instead: {WAY_OUT}")


def test_the_operator_that_needs_the_key_is_to_blame(app):
    with refused(UNSAID, WAY_OUT, app):
        mapped = numbers_of(app, key=abs, partitions=2).map(abs)
        mapped.window(HOURLY, count()).sink(print)  # here


@pytest.mark.parametrize("kind", KEYED)
def test_state_by_a_key_that_is_said_to_make_the_partitions(app, kind):
    KEYED[kind](numbers_of(app, key=abs, **SAID), **SAID).sink(print)
    app.plan()


@pytest.mark.parametrize("kind", KEYED)
def test_state_by_a_key_in_one_partition(app, kind):
    KEYED[kind](numbers_of(app, key=abs)).sink(print)
    app.plan()


@pytest.mark.parametrize("kind", KEYED)
def test_state_by_a_key_that_records_carry(app, kind):
    numbers = numbers_of(app, key=int, partitions=2)
    if kind == "table_join":
        numbers.join(app.table("rows", value=int, key=int, partitions=2), max).sink(print)
    else:
        KEYED[kind](numbers).sink(print)
    app.plan()


def test_state_behind_a_repartitioning(app):
    numbers_of(app, key=abs, partitions=2).partition_by(abs).window(HOURLY, count()).sink(print)
    app.plan()


def test_a_key_function_that_nothing_is_kept_by(app):
    numbers = numbers_of(app, key=abs, partitions=2)
    numbers.join(app.table("rows", value=int, key=abs, broadcast=True), max, on=abs).sink(print)
    app.plan()


def test_partitions_are_those_of_the_stream_that_exists(app):
    numbers_of(app, key=abs).window(HOURLY, count()).sink(print)
    app.plan({"numbers": 1})
    environment = MemoryEnvironment()
    environment.create_stream("numbers", StreamConfig(partitions=2))
    for at_planning in (lambda: app.plan({"numbers": 2}), lambda: app.run(environment)):
        with pytest.raises(PlanError, match="nothing says that its 2 partitions are made by it"):
            at_planning()


def test_one_of_two_merged_inputs_does_not_say_where_its_keys_lie(app):
    others = app.input("others", value=int, key=abs, partitions=2, partitioned_by_key=True)
    with refused(UNSAID, WAY_OUT, app):
        others.merge(numbers_of(app, key=abs, partitions=2)).process(max).sink(print)


def test_inputs_that_their_writers_partition_alike(app):
    others = app.input("others", value=int, key=abs, **SAID)
    others.merge(numbers_of(app, key=abs, **SAID)).process(max).sink(print)
    app.plan()


def test_inputs_of_which_the_writers_made_other_numbers_of_partitions(app):
    others = app.input("others", value=int, key=abs, partitions=3, partitioned_by_key=True)
    wrong = "streams of 2 partitions by the writer and 3 partitions by the writer are merged above"
    with refused(wrong, ".partition_by(...) before it", app):
        others.merge(numbers_of(app, key=abs, **SAID)).process(max).sink(print)


@pytest.mark.parametrize("by", [hash_, ranges([10])])
def test_what_a_writer_has_partitioned_does_not_meet_what_is_repartitioned_here(app, by):
    others = app.input("others", value=int).partition_by(abs, by=by, partitions=2)
    wrong = f"streams of 2 partitions by {by} and 2 partitions by the writer are merged above, so equal keys"
    with refused(wrong, ".partition_by(...) before it", app):
        others.merge(numbers_of(app, key=abs, **SAID)).process(max).sink(print)


def test_a_table_of_which_nothing_says_where_its_keys_lie(app):
    rows = app.table("rows", value=int, key=abs, partitions=2)
    with refused(UNSAID_OF_ROWS, TABLES_WAY_OUT, app):
        numbers_of(app, key=abs, **SAID).join(rows, max).sink(print)


def test_a_table_that_its_writer_has_partitioned_joined_with_what_is_repartitioned_here(app):
    rows = app.table("rows", value=int, key=abs, **SAID)
    wrong = "the stream is partitioned by hash, the table by the writer"
    with refused(wrong, "broadcast=True and on=, or key= the type of the stored key in app.table(...)", app):
        numbers_of(app).partition_by(abs).join(rows, max).sink(print)


def test_a_table_in_one_partition_joined_with_what_is_repartitioned_here(app):
    rows = app.table("rows", value=int, key=abs)
    numbers_of(app).partition_by(abs).join(rows, max).sink(print)
    app.plan()


KEYS = ({"key": int}, {"key": abs, "partitioned_by_key": True})


def keep_by_key(app, kind, key):
    """Read a pattern, of which `kind` keeps state by `key`; what it is joined with has 8 partitions."""
    orders = app.input("orders-*", value=int, **key).map(abs)
    kept = orders.join(app.table("rows", value=int, partitions=8, **key), max) if kind == "table_join" else None
    (kept or KEYED[kind](orders)).sink(print)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", KEYED)
def test_streams_of_unequal_sizes_under_one_pattern_where_equal_keys_must_meet(app, kind, key):
    keep_by_key(app, kind, key)
    blamed = rf"{kind} '{kind}-orders-_' at .*test_copartitioning.py:\d+: "
    wrong = "'orders-*' reads 'orders-a' of 4 and 'orders-b' of 8 partitions, so equal keys do not meet"
    with pytest.raises(PlanError) as refusal:
        app.plan({"orders-a": 4, "orders-b": 8, "orders-c": 8, "returns": 3})
    assert re.match(blamed + re.escape(wrong), str(refusal.value))
    instead = "write instead: .partition_by(lambda value: ..., partitions=8) before it, or streams of equal sizes"
    assert str(refusal.value).endswith(instead)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("counts", [{"orders-*": 8}, {"orders-a": 8, "orders-b": 8, "returns": 3}, {"orders-a": 8}])
@pytest.mark.parametrize("kind", KEYED)
def test_streams_of_equal_sizes_under_one_pattern(app, kind, counts, key):
    keep_by_key(app, kind, key)
    assert app.plan(counts).stream("orders-*").partitions == 8


def test_streams_of_unequal_sizes_under_one_pattern_where_nothing_is_kept_by_key(app):
    app.input("orders-*", value=int, key=int).send_to(app.output("copies", value=int))
    assert app.plan({"orders-a": 4, "orders-b": 8}).stream("orders-*").partitions == 8


def test_streams_of_unequal_sizes_under_one_pattern_that_are_repartitioned(app):
    orders = app.input("orders-*", value=int, key=int, partitions=9)
    orders.partition_by(abs).window(HOURLY, count()).sink(print)
    assert app.plan({"orders-a": 4, "orders-b": 8}).stream("orders-*").partitions == 9


def test_what_the_app_writes_is_not_read_by_its_pattern(app):
    orders = app.input("orders-*", value=int, key=int)
    orders.window(HOURLY, count()).send_to(app.output("orders-counted"))
    assert app.plan({"orders-a": 4, "orders-counted": 8}).stream("orders-*").partitions == 4


def test_more_partitions_said_of_a_pattern_than_its_streams_have_where_equal_keys_must_meet(app):
    app.input("orders-*", value=int, key=int, partitions=9).window(HOURLY, count()).sink(print)
    wrong = "9 partitions of 'orders-*' are read, and 'orders-a' has 4, so equal keys do not meet"
    instead = "partitions=4 in app.input('orders-*'), or .partition_by(lambda value: ..., partitions=9) before it"
    with pytest.raises(PlanError, match=re.escape(f"{wrong}; write instead: {instead}")):
        app.plan({"orders-a": 4, "orders-b": 4})


def test_unequal_streams_that_exist_at_the_start(app):
    app.input("orders-*", value=int, key=int).window(HOURLY, count()).sink(print)
    environment = MemoryEnvironment()
    environment.create_stream("orders-between", StreamConfig(partitions=8, intermediate=True))
    for number, stream in enumerate(("orders-a", "orders-b"), 1):
        environment.create_stream(stream, StreamConfig(partitions=number))
    with pytest.raises(PlanError, match="reads 'orders-a' of 1 and 'orders-b' of 2 partitions"):
        app.run(environment)


def test_a_table_of_as_many_partitions_as_another_stream_of_the_stage_has(app):
    rows = app.table("rows", value=int, key=int, partitions=4)
    wrong = "the stream has 2 partitions and the table 'rows' 4, so equal keys do not meet"
    with refused(wrong, ".partition_by(..., key_type=..., partitions=4) before it, or broadcast=True", app):
        joined = numbers_of(app, key=int, partitions=2).join(rows, max)  # here
        joined.merge(app.input("others", value=int, key=int, partitions=4)).sink(print)


@pytest.mark.parametrize("said", [{}, {"key": int}])
def test_a_promise_about_a_key_that_is_no_function(app, said):
    wrong = "input(partitioned_by_key=True) is about a key that is a function"
    with refused(wrong, "key=lambda value: value.id, or leave partitioned_by_key out"):
        app.input("numbers", value=int, partitioned_by_key=True, **said)


def test_a_promise_about_the_stored_key_of_a_table(app):
    wrong = "table(partitioned_by_key=True) is about a key that is a function"
    with refused(wrong, "key=lambda value: value.id, or leave partitioned_by_key out"):
        app.table("rows", value=int, key=int, partitioned_by_key=True)


@pytest.mark.parametrize("kind", ["input", "table"])
def test_a_promise_that_is_neither_yes_nor_no(app, kind):
    with refused(f"{kind}(partitioned_by_key=...) got 'yes', which is no bool", "partitioned_by_key=True"):
        getattr(app, kind)("numbers", value=int, key=abs, partitioned_by_key="yes")


def test_streams_of_other_partition_counts_are_not_joined(app):
    left, right = numbers_of(app, key=int, partitions=2), app.input("others", key=int, partitions=3)
    wrong = "streams of 2 partitions by hash and 3 partitions by hash are joined, so equal keys do not meet"
    with refused(wrong, ".partition_by(..., partitions=3) on both", app):
        left.join(right, max, within=(0, 1)).sink(print)


def test_streams_of_other_partitioners_are_not_joined(app):
    left = numbers_of(app).partition_by(abs, key_type=int, by=ranges([5]))
    right = app.input("others", key=int, partitions=2)
    with refused("are joined, so equal keys do not meet", ".partition_by(..., partitions=2) on both", app):
        left.join(right, max, within=(0, 1)).sink(print)


@pytest.mark.parametrize(("one", "other", "size"), [(None, None, 5), (3, None, 3), (None, 7, 7), (4, 4, 4)])
def test_what_is_repartitioned_has_as_many_partitions_as_what_it_is_joined_with(app, one, other, size):
    left = numbers_of(app, partitions=2).partition_by(abs, partitions=one)
    right = app.input("others", value=int, partitions=5).partition_by(abs, partitions=other)
    left.join(right, max, within=(0, 1)).sink(print)
    plan = app.plan()
    assert [stream.partitions for stream in plan.streams if stream.role == "intermediate"] == [size, size]
    assert plan.stages[-1].partitions == size


@pytest.mark.parametrize("size", [1, 4])
def test_what_is_repartitioned_has_as_many_partitions_as_an_input_that_it_is_joined_with(app, size):
    left = numbers_of(app, partitions=2).partition_by(abs, key_type=int)
    left.join(app.input("others", value=int, key=int, partitions=size), max, within=(0, 1)).sink(print)
    assert app.plan().stages[-1].partitions == size


def test_what_is_repartitioned_has_as_many_partitions_through_a_chain_of_joins(app):
    sides = [
        app.input(name, value=int, partitions=size).partition_by(abs) for name, size in (("a", 2), ("b", 3), ("c", 9))
    ]
    first = sides[0].join(sides[1], max, within=(0, 1), op_id="first")
    first.join(sides[2], max, within=(0, 1), op_id="second").sink(print)
    assert {stream.partitions for stream in app.plan().streams if stream.role == "intermediate"} == {9}


def test_what_is_repartitioned_has_as_many_partitions_as_what_it_is_merged_with(app):
    left = numbers_of(app, partitions=2).partition_by(abs)
    left.merge(app.input("others", value=int, partitions=5).partition_by(abs)).process(max).sink(print)
    assert app.plan().stages[-1].partitions == 5


def test_what_is_repartitioned_can_not_be_like_two_that_differ(app):
    left = numbers_of(app).partition_by(abs, key_type=int)
    for size in (2, 3):
        other = app.input(f"others-{size}", value=int, key=int, partitions=size)
        left.join(other, max, within=(0, 1), op_id=f"join-{size}").sink(print)
    with pytest.raises(PlanError, match="are joined, so equal keys do not meet"):
        app.plan()


def test_a_joined_stream_of_which_nothing_says_where_its_keys_lie(app):
    left, right = (
        app.input("others", key=abs, partitions=2, partitioned_by_key=True),
        numbers_of(app, key=abs, partitions=2),
    )
    with refused(UNSAID, WAY_OUT, app):
        left.join(right, max, within=(0, 1)).sink(print)


def test_streams_that_lie_alike_are_joined(app):
    left = numbers_of(app).partition_by(abs, partitions=3)
    right = app.input("others", value=int, partitions=5).partition_by(abs, partitions=3)
    left.join(right, max, within=(0, 1)).sink(print)
    assert app.plan().stages[-1].partitions == 3


ON_STREAM = ".partition_by(..., key_type=..., partitions=4) on the stream, before it meets the table"


def table_of(app, name, partitions, **said):
    return app.table(name, value=int, **({"key": int} | said), partitions=partitions)


def test_tables_of_other_partition_counts_are_made_of_streams_that_can_be_repartitioned(app):
    wrong = "streams of 2 partitions by hash and 4 partitions by hash are joined"
    with refused(wrong, "app.input(...).partition_by(...).to_table(...) in the place of app.table(...), for both", app):
        rows, others = table_of(app, "rows", 2), table_of(app, "others", 4)
        rows.join(others, max).changes().sink(print)  # here
    other = App("followed")
    one, two = (numbers_of(other, partitions=2), other.input("others", value=int, partitions=4))
    made = one.partition_by(abs, op_id="by").to_table("made")
    made.join(two.partition_by(abs).to_table("of-others"), max).changes().sink(print)
    assert other.plan().stages[-1].partitions == 4


MET = {
    "versions": lambda app, stream: stream.join(table_of(app, "rows", 4, retention_ms=1), max),
    "joined tables": lambda app, stream: stream.join(
        table_of(app, "rows", 4).join(table_of(app, "others", 4), max), max
    ),
    "own table with another": lambda app, stream: stream.to_table("own").join(table_of(app, "rows", 4), max).changes(),
}


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("kind", MET)
def test_a_stream_goes_to_where_the_rows_of_tables_lie(app, kind, size):
    MET[kind](app, numbers_of(app, key=int, partitions=size)).sink(print)
    with pytest.raises(PlanError, match=re.escape(f"so equal keys do not meet; write instead: {ON_STREAM}")):
        app.plan()
    other = App("followed")
    MET[kind](other, numbers_of(other, partitions=size).partition_by(abs, key_type=int, partitions=4)).sink(print)
    assert other.plan().stages[-1].partitions == 4


def test_versions_that_their_writer_has_partitioned_joined_with_what_is_repartitioned_here(app):
    rows = table_of(app, "rows", 2, key=abs, partitioned_by_key=True, retention_ms=1)
    with refused("2 partitions by hash and 2 partitions by the writer", "key= the type of the stored key", app):
        numbers_of(app).partition_by(abs).join(rows, max).sink(print)
