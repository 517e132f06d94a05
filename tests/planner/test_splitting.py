"""The operators whose tasks can't be split by keys are told, with where, why, and what to write instead."""

import re

import pytest

from planner.checks.splitting import check_factor, splittable
from planner.model.errors import PlanError
from planner.model.plan import Plan
from samza_dsl import App, count, sliding, tumbling


def key(row):
    return row[0]


async def one(row, context=None):
    return [row]


def ended(stream):
    stream.send_to(stream.app.output("out"))


def task(app, numbers, **how):
    app.task(numbers, lambda message, context: None, op_id="it", **how)


REFUSED = {
    "task": (task, "its state is its own", "keyed=True"),
    "deduplicate": (
        lambda app, numbers: ended(numbers.deduplicate(lambda row: row[1], within_ms=5, op_id="it")),
        "among all messages of a partition",
        r"\.partition_by\(id_of\)\.deduplicate\(id_of",
    ),
    "deduplicate, another value": (
        lambda app, numbers: ended(numbers.map(lambda row: row[::-1]).deduplicate(key, within_ms=5, op_id="it")),
        "nothing says that an id is the key",
        r"one function for both",
    ),
    "deduplicate, another serde": (
        lambda app, numbers: ended(numbers.deduplicate(key, within_ms=5, id_type=str, op_id="it")),
        "by other bytes than keys are",
        r"id_type= as the key_type=",
    ),
    "deduplicate, a key type alone": (
        lambda app, numbers: ended(
            numbers.partition_by(key, key_type=str, op_id="by").deduplicate(key, within_ms=5, op_id="it")
        ),
        "by other bytes than keys are",
        r"id_type= as the key_type=",
    ),
    "order": (
        lambda app, numbers: ended(numbers.async_flat_map(one, order="partition", op_id="it")),
        "goes on in one order",
        'order="key"',
    ),
    "broadcast": (
        lambda app, numbers: ended(numbers.broadcast(op_id="it").map(str)),
        "emit what follows from them once more",
        "partition_by",
    ),
}


def planned(make, partitions=1):
    app = App("parts")
    make(app, app.input("in", value=list, key=key, partitioned_by_key=True, timestamp=lambda row: row[1]))
    return app.plan({"in": partitions})


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_split_is_told_and_refused(which):
    make, wrong, instead = REFUSED[which]
    plan = planned(make)
    (refusal,) = splittable(plan)
    assert refusal.operator == "it"
    assert re.search(wrong, refusal.wrong)
    assert re.search(instead, refusal.instead)
    check_factor(plan, 1)
    with pytest.raises(PlanError, match=r"(?s)'parts' can't be split into 2 parts.*'it' at .*test_splitting.py:\d+: "):
        check_factor(plan, 2)
    assert splittable(Plan.from_json(plan.to_json())) == (refusal,), "which is known from the plan alone"


SPLIT = {
    "task": lambda app, numbers: task(app, numbers, keyed=True),
    "deduplicate": lambda app, numbers: ended(numbers.filter(bool).deduplicate(key, within_ms=5)),
    "deduplicate, behind another": lambda app, numbers: ended(
        numbers.partition_by(lambda row: row[1]).deduplicate(lambda row: row[1], within_ms=5)
    ),
    "window": lambda app, numbers: ended(numbers.window(tumbling(seconds=1), count())),
    "sliding windows": lambda app, numbers: ended(numbers.window(sliding(seconds=1), count())),
    "window of all": lambda app, numbers: ended(numbers.window_all(tumbling(seconds=1), count())),
    "calls": lambda app, numbers: ended(numbers.async_flat_map(one, order="none")),
}


@pytest.mark.parametrize("which", SPLIT)
def test_what_can_be_split(which):
    def make(app, numbers):
        numbers.sink(print, op_id="else")
        SPLIT[which](app, numbers)

    plan = planned(make)
    assert splittable(plan) == ()
    check_factor(plan, 4)


def test_what_has_an_entry_of_no_key_is_not_split():
    def make(app, numbers):
        numbers.window(sliding(seconds=1), count()).sink(print)
        ended(app.table("a", value=list, key=str).join(app.table("b", value=list, key=str), max, on=key).changes())

    assert {one.kind for one in splittable(planned(make))} == {"foreign_key_join"}


@pytest.mark.parametrize("factor", [0, -1, 3, 6, 12])
def test_a_factor_is_a_power_of_two(factor):
    with pytest.raises(PlanError, match=rf"{factor} is no power of two, .*write instead: (1|2|4|8) or (2|4|8|16)"):
        check_factor(planned(SPLIT["window"]), factor)


@pytest.mark.parametrize(("partitions", "factor", "most"), [(64, 512, 256), (5, 4_096, 2_048), (1, 8_192, 4_096)])
def test_more_parts_than_can_be_opened_are_refused(partitions, factor, most):
    plan = planned(SPLIT["window"], partitions)
    with pytest.raises(PlanError, match=rf"write instead: {most}$"):
        check_factor(plan, factor)
    check_factor(plan, most)


def test_a_key_that_is_a_table_s_may_have_other_bytes_than_an_id():
    def make(app, numbers):
        table = app.table("rows", value=list, key=str, partitions=1)
        moved = numbers.partition_by(key, partitions=1)
        moved.join(table, lambda row, other: row).sink(print)
        ended(moved.deduplicate(key, within_ms=5, op_id="it"))

    app = App("parts")
    make(app, app.input("in", value=list, key=key, partitioned_by_key=True, timestamp=lambda row: row[1]))
    (refusal,) = splittable(app.plan())
    assert "other bytes than keys" in refusal.wrong
