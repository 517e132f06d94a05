"""Joins of tables end to end, against dicts: whatever came in between, what is left is the join of what is left."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.partition_by import murmur2
from samza_dsl import App, Change, Options, dead_letter, testing
from samza_dsl.testing import Record
from tests.planner.refusal import refused
from tests.runtime.histories import crashing
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_through

KEYS = "abcd"
NAMES = ("x", "y", None)
crashes = crashing()


class Order(msgspec.Struct, frozen=True):
    """A row that may name another."""

    number: int
    customer: str | None


def pair(one, other):
    return [one, other]


def place_of(key, partitions):
    return murmur2(key.encode()) % partitions


def stored(records, partitions):
    """Return records as a table has them, in the partitions of their keys."""
    parts = [[] for _ in range(partitions)]
    for key, row in records:
        parts[place_of(key, partitions)].append((key.encode(), None if row is None else msgspec.json.encode(row), 0))
    return parts


def left_of(records):
    """Return the rows that a table has in the end."""
    return {key: row for key, row in dict(records).items() if row is not None}


def check_changes(environment, stream, expected):
    """Each change goes on from the one before it of its key, and the last ones leave what is expected."""
    rows = {}
    for part in rows_of(environment, stream):
        for key, value, _ in part:
            change = msgspec.json.decode(value, type=Change[str, list])
            assert change.key == key.decode() and rows.get(change.key) == change.old
            rows[change.key] = change.new
    assert {key: row for key, row in rows.items() if row is not None} == expected


def plain(row):
    return msgspec.to_builtins(row)


records = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 99)), max_size=15)
orders = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.builds(Order, st.integers(0, 99), st.sampled_from(NAMES))),
    max_size=15,
)
customers = st.lists(st.tuples(st.sampled_from(NAMES[:2]), st.none() | st.integers(0, 99)), max_size=10)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@given(
    left=records,
    right=records,
    partitions=st.sampled_from((1, 3)),
    batch_records=st.sampled_from((1, 3, 2_000)),
    crashes=crashes,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(60, 2_000))
def test_what_is_left_is_the_join_of_what_is_left(how, left, right, partitions, batch_records, crashes, seed):
    def app():
        app = App("tables", Options(batch_records=batch_records))
        one, other = (app.table(name, key=str, value=int) for name in ("left", "right"))
        one.join(other, pair, how=how).changes().send_to(app.output("changes", value=Change[str, list], key=str))
        return app

    environment = memory()
    fill(environment, "left", stored(left, partitions))
    fill(environment, "right", stored(right, partitions))
    run_through(app, environment, crashes, seed)
    one, other = left_of(left), left_of(right)
    keys = {"inner": one.keys() & other.keys(), "left": one.keys(), "right": other.keys()}
    kept = keys.get(how, one.keys() | other.keys())
    check_changes(environment, "changes", {key: [one.get(key), other.get(key)] for key in kept})


@pytest.mark.parametrize("how", ["inner", "left"])
@given(
    left=orders,
    right=customers,
    partitions=st.tuples(st.sampled_from((1, 3)), st.sampled_from((1, 2))),
    batch_records=st.sampled_from((1, 3, 2_000)),
    crashes=crashes,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(60, 2_000))
def test_so_it_is_by_foreign_keys(how, left, right, partitions, batch_records, crashes, seed):
    def app():
        app = App("tables", Options(batch_records=batch_records))
        one, other = app.table("orders", key=str, value=Order), app.table("customers", key=str, value=int)
        joined = one.join(other, pair, on=lambda order: order.customer, how=how)
        joined.changes().send_to(app.output("changes", value=Change[str, list], key=str))
        return app

    environment = memory()
    fill(environment, "orders", stored(left, partitions[0]))
    fill(environment, "customers", stored(right, partitions[1]))
    run_through(app, environment, crashes, seed)
    other = left_of(right)
    expected = {key: [plain(order), other.get(order.customer)] for key, order in left_of(left).items()}
    if how == "inner":
        expected = {key: row for key, row in expected.items() if row[1] is not None}
    check_changes(environment, "changes", expected)


@given(
    tables=st.tuples(records, records, customers),
    partitions=st.sampled_from((1, 3)),
    crashes=crashes,
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(60, 2_000))
def test_so_it_is_of_several_tables(tables, partitions, crashes, seed):
    def app():
        app = App("tables", Options(batch_records=3))
        first, second = (app.table(name, key=str, value=int) for name in ("first", "second"))
        third = app.table("third", key=str, value=int)
        both = first.join(second, lambda one, two: [one, two], how="outer", op_id="both")
        all_three = both.join(third, lambda two, name: [two, name], on=lambda two: "xy"[(two[0] or 0) % 2], op_id="all")
        all_three.changes().send_to(app.output("changes", value=Change[str, list], key=str))
        return app

    environment = memory()
    for name, table in zip(("first", "second", "third"), tables, strict=True):
        fill(environment, name, stored(table, partitions))
    run_through(app, environment, crashes, seed)
    first, second, third = map(left_of, tables)
    both = {key: [first.get(key), second.get(key)] for key in first.keys() | second.keys()}
    named = {key: [row, third.get("xy"[(row[0] or 0) % 2])] for key, row in both.items()}
    check_changes(environment, "changes", {key: row for key, row in named.items() if row[1] is not None})


@pytest.fixture
def app():
    return App("tables")


def both(app, **said):
    return [app.table(name, key=str, value=int, **said) for name in ("left", "right")]


def test_a_change_has_the_later_time_of_the_rows_that_it_is_made_of(app):
    left, right = both(app)
    left.join(right, pair, how="outer").changes().send_to(app.output("changes", value=Change[str, list]))
    with testing.running(app) as run:
        run.send("left", 1, key="k", timestamp=50)
        run.send("right", 2, key="k", timestamp=20)
        run.send("right", Record(None, "k", 70))
        assert [record.timestamp for record in run.records("changes")] == [50, 50, 70]


def test_a_row_that_can_not_be_joined_meets_the_policy_and_leaves_no_trace(app):
    def picky(one, other):
        if one == 7:
            raise ValueError("not this one")
        return [one, other]

    left, right = both(app)
    joined = left.join(right, picky, how="left", on_error=dead_letter("bad"))
    joined.changes().send_to(app.output("changes", value=Change[str, list]))
    given_ = {"left": [("k", 1), ("k", 7), ("k", 2)], "right": []}
    results = testing.run(app, given_)
    assert results["changes"] == [Change("k", None, [1, None]), Change("k", [1, None], [2, None])]
    assert len(results["bad"]) == 1


def test_a_table_is_looked_into_by_streams_or_joined_with_tables(app):
    left, right = both(app)
    with refused("the table 'left' is also joined with others, and then no stream can look", "retention_ms=0", app):
        numbers = app.input("numbers", key=str, value=int)
        numbers.join(left, max, op_id="looking").sink(print)  # here
        left.join(right, max).changes().sink(print)


def test_a_table_of_versions_is_joined_with_both(app):
    left, right = both(app, retention_ms=0)
    numbers = app.input("numbers", key=str, value=int)
    numbers.join(left, pair).send_to(app.output("numbers-then", value=list))
    left.join(right, pair).changes().send_to(app.output("changes", value=Change[str, list]))
    rows = {"left": [Record(1, "k", 10)], "right": [Record(2, "k", 20)], "numbers": [Record(3, "k", 15)]}
    assert testing.run(app, rows) == {"numbers-then": [[3, 1]], "changes": [Change("k", None, [1, 2])]}


def test_tables_of_other_partition_counts_are_not_joined(app):
    left = app.table("left", key=str, value=int, partitions=2)
    right = app.table("right", key=str, value=int, partitions=3)
    with refused(
        "streams of 2 partitions by hash and 3 partitions by hash are joined", ".partition_by(...).to_table(...)", app
    ):
        left.join(right, max).changes().sink(print)


def test_tables_of_other_keys_are_not_joined(app):
    left, right = app.table("left", key=str, value=int), app.table("right", key=int, value=int)
    with refused("it joins streams whose keys have different serdes", "key=", app):
        left.join(right, max).changes().sink(print)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"how": "full"}, "how='full' is not a join of two tables"),
        ({"how": "outer", "on": str}, "how='outer' is not a join of two tables by on="),
        ({"on": "name"}, "join(on=...) got 'name', which is not a function"),
        ({"store": "disk"}, "store='disk' is not a kind of store"),
    ],
)
def test_a_join_of_tables_that_can_not_be(app, said, wrong):
    left, right = both(app)
    with refused(wrong, ""):
        left.join(right, max, **said)


def test_a_join_of_a_table_with_what_is_none(app):
    left, _ = both(app)
    with refused("join(...) got 'right', which is no TableJoins", "what app.table(...) or a join of tables returns"):
        left.join("right", max)
    with refused("join(...) got a table of the app 'other'", "what app.table(...) of this app returns"):
        left.join(App("other").table("right", key=str, value=int), max)
    with refused("a broadcast table is for streams to look into", "no broadcast=True"):
        left.join(app.table("everywhere", key=str, value=int, broadcast=True), max)
