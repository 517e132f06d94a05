"""What depends on the order in which messages come says so in its plan, where nothing fixes the order."""

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.checks.ordering import ordered_by_arrival
from planner.model.plan import Plan
from runtime.spark.session import tell_order
from samza_dsl import App, after_count, collect, count, counted, first, last, reduce, session, top_k, total, tumbling
from samza_dsl.laws import check_laws
from tests.scale import examples

MINUTE = tumbling(minutes=1)


async def call(value):
    return [value]


async def call_in_state(value, context):
    return [value]


def keyed(app, tasks=2):
    """Return messages by key, that so many tasks have written."""
    return app.input("numbers", value=int, partitions=tasks).partition_by(abs, partitions=2, key_type=int)


def others(numbers):
    return numbers.app.input("others", value=int, partitions=2).partition_by(abs, partitions=2, key_type=int)


def rows(numbers):
    return numbers.app.table("rows", value=int, key=int, partitions=2)


BY_ORDER = {
    "scan": lambda numbers: numbers.scan(max, init=int),
    "process": lambda numbers: numbers.process(lambda value, context: [value]),
    "async with state": lambda numbers: numbers.async_flat_map(call_in_state),
    "deduplicate": lambda numbers: numbers.deduplicate(abs, within_ms=10),
    "first": lambda numbers: numbers.window(MINUTE, first()),
    "last": lambda numbers: numbers.window(session(seconds=5), last()),
    "collect": lambda numbers: numbers.window(MINUTE, collect()),
    "reduce": lambda numbers: numbers.window(MINUTE, reduce(lambda a, b: a)),
    "top_k with ties": lambda numbers: numbers.window(MINUTE, top_k(2, by=abs)),
    "early panes": lambda numbers: numbers.window(MINUTE, count(), early=after_count(3)),
    "counted windows": lambda numbers: numbers.window(counted(3), count()),
}
OF_TWO = {
    "latest": lambda numbers: numbers.join(others(numbers), max, within=(0, 1), keep="latest"),
    "scan behind a merge": lambda numbers: numbers.merge(others(numbers)).scan(max, init=int),
    "scan behind a join": lambda numbers: numbers.join(others(numbers), max, within=(0, 1)).scan(max, init=int),
    "scan behind an as-of join": lambda numbers: numbers.join_asof(others(numbers), max).scan(max, init=int),
    "table": lambda numbers: numbers.join(rows(numbers), max),
    "broadcast table": lambda numbers: numbers.join(
        numbers.app.table("rows", value=int, key=int, broadcast=True), max, on=abs
    ),
}
FREE = {
    "as-of join": lambda numbers: numbers.join_asof(others(numbers), max),
    "window": lambda numbers: numbers.window(MINUTE, total(abs)),
    "all that match": lambda numbers: numbers.join(others(numbers), max, within=(0, 1)),
    "commuting": lambda numbers: numbers.window(MINUTE, reduce(max, commutative=True)),
    "top_k without ties": lambda numbers: numbers.window(MINUTE, top_k(2, by=abs, then=abs)),
    "scan of panes": lambda numbers: numbers.window(MINUTE, count()).scan(lambda seen, pane: seen, init=int),
}


def asked(make, tasks):
    app = App("ordered")
    make(keyed(app, tasks)).sink(print)
    return app.plan()


@pytest.mark.parametrize("kind", [*BY_ORDER, *OF_TWO])
def test_what_goes_by_an_order_that_nothing_fixes_says_so(kind):
    plan = asked({**BY_ORDER, **OF_TWO}[kind], tasks=2)
    (found,) = ordered_by_arrival(plan)
    words = f"by order of arrival: {found.by_order}"
    assert words in plan.to_text()
    assert "by order of arrival" in plan.to_svg()
    assert "by order of arrival" in plan.to_html()
    assert "by order of arrival" in plan.to_mermaid()
    assert "by order of arrival" in plan.to_dot()
    assert ordered_by_arrival(Plan.from_json(plan.to_json())) == [found]


@pytest.mark.parametrize("kind", BY_ORDER)
def test_messages_that_one_task_writes_come_in_its_order(kind):
    assert ordered_by_arrival(asked(BY_ORDER[kind], tasks=1)) == []


@pytest.mark.parametrize("kind", OF_TWO)
def test_what_comes_from_two_sides_has_no_order_however_few_tasks_write(kind):
    assert ordered_by_arrival(asked(OF_TWO[kind], tasks=1)) != []


@pytest.mark.parametrize("kind", FREE)
def test_what_any_order_leads_to_says_nothing(kind):
    assert ordered_by_arrival(asked(FREE[kind], tasks=2)) == []


def number_of(value):
    """Return one number of whatever an operator emits, by which the next one goes."""
    value = getattr(value, "value", value)
    return sum((place + 1) * one for place, one in enumerate(value)) if isinstance(value, list) else int(value)


def told_of_order(kinds):
    """Return an app with operators of these kinds behind each other, each with several tasks in front."""
    app = App("ordered")
    stream, other = (
        app.input(name, value=int, timestamp=lambda n: n % 4 * 9, partitions=2) for name in ("numbers", "others")
    )
    for number, kind in enumerate(kinds):
        mine, theirs = (
            one.partition_by(lambda n: abs(n) % 3, partitions=2, key_type=int, op_id=f"{name}-{number}")
            for name, one in (("mine", stream), ("theirs", other))
        )
        theirs.sink(lambda n: None)
        stream = ANY[kind](mine, theirs, f"op-{number}").map(number_of)
    stream.send_to(app.output("out", value=int))
    return app


ANY = {
    "scan": lambda mine, theirs, id: mine.scan(lambda state, n: state * 3 + n, init=int, op_id=id),
    "deduplicate": lambda mine, theirs, id: mine.deduplicate(lambda n: n % 5, within_ms=30, op_id=id),
    "first": lambda mine, theirs, id: mine.window(tumbling(milliseconds=20), first(), op_id=id),
    "top_k": lambda mine, theirs, id: mine.window(tumbling(milliseconds=20), top_k(2, by=lambda n: n % 2), op_id=id),
    "ranked": lambda mine, theirs, id: mine.window(
        session(milliseconds=9), top_k(2, by=lambda n: n % 2, then=lambda n: n), op_id=id
    ),
    "total": lambda mine, theirs, id: mine.window(tumbling(milliseconds=20), total(abs), op_id=id),
    "as-of": lambda mine, theirs, id: mine.join_asof(theirs, lambda a, b: a * 3 + b, op_id=id),
    "latest": lambda mine, theirs, id: mine.join(
        theirs, lambda a, b: a * 3 + b, within=(-20, 20), keep="latest", op_id=id
    ),
    "join": lambda mine, theirs, id: mine.join(theirs, lambda a, b: a * 3 + b, within=(-20, 20), op_id=id),
    "merge": lambda mine, theirs, id: mine.merge(theirs),
    "calls": lambda mine, theirs, id: mine.async_flat_map(call, order="none", op_id=id),
}


@given(st.lists(st.sampled_from([*ANY]), min_size=1, max_size=3), st.integers(0, 1 << 30))
@settings(max_examples=examples(8, 500), deadline=None, suppress_health_check=[HealthCheck.nested_given])
def test_what_depends_on_the_order_of_arrival_is_told(kinds, seed):
    app = told_of_order(kinds)
    if ordered_by_arrival(app.plan()):
        return
    # Close together, so that many are alike in all but their order.
    numbers = st.lists(st.integers(0, 60), min_size=8, max_size=16)
    check_laws(app, {"numbers": numbers, "others": numbers}, examples=8, seed=seed, max_crashes=0)


def test_tables_that_are_joined():
    app = App("ordered")
    one, other = (app.table(name, value=int, key=int, partitions=2) for name in ("rows", "more"))
    one.join(other, max).changes().sink(print)
    assert [one.kind for one in ordered_by_arrival(app.plan())] == ["key_join"]


def test_a_partition_of_an_input_has_one_order():
    app = App("ordered")
    app.input("numbers", value=int, key=int, partitions=4).scan(max, init=int).sink(print)
    assert ordered_by_arrival(app.plan()) == []


def test_streams_under_a_pattern_have_none():
    app = App("ordered")
    app.input("numbers-*", value=int, key=int, partitions=4).scan(max, init=int).sink(print)
    assert ordered_by_arrival(app.plan()) != []


@pytest.mark.parametrize(("order", "is_told"), [("none", True), ("key", False), ("partition", False)])
def test_calls_that_overtake_each_other(order, is_told):
    app = App("ordered")
    numbers = app.input("numbers", value=int, key=int, partitions=4).async_flat_map(call, order=order)
    numbers.scan(max, init=int).sink(print)
    assert bool(ordered_by_arrival(app.plan())) == is_told


def test_a_run_on_spark_says_so_when_it_begins(caplog):
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        tell_order(asked(FREE["window"], tasks=2))
        assert caplog.text == ""
        tell_order(asked(OF_TWO["latest"], tasks=2))
    assert "joins the newest that has come by then" in caplog.text
    assert "test_ordering.py:" in caplog.text
