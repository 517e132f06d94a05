"""What is done again is done on values as they were read, though functions have changed those of before in place."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, collect, retry, skip, total, tumbling
from tests.scale import examples
from tests.simulation.crash import fill, memory, rows_of, run_once

DAY_MS = 1_700_006_400_000
PARTITIONS = 3


def changed(record):
    """Count in place how often a record was done, which functions are not to do."""
    record["done"] += 1
    return record


def checked(record):
    if record["odd"]:
        raise ValueError(record)
    return record


async def awaited(record):
    return [checked(record)]


def shown(record):
    return [record["number"], record["done"]]


def mapped(records, policy):
    return records.map(changed).map(checked, **policy).map(shown)


def behind_a_stage(records, policy):
    by_key = records.partition_by(lambda record: record["number"] % 2, key_type=int, op_id="by")
    return by_key.map(changed).map(checked, **policy).map(shown)


def before_calls(records, policy):
    return records.map(changed).map(checked, **policy).async_flat_map(awaited).map(shown)


def windowed(records, policy):
    by_key = records.map(changed).map(checked, **policy).partition_by(lambda record: 0, key_type=int, op_id="by")
    panes = by_key.window(tumbling(seconds=1), total(lambda record: record["done"]), op_id="sums")
    return panes.map(lambda pane: [-1, pane.value])


async def in_a_call(record):
    return [dict(record)]


async def in_a_call_with_state(record, context):
    context.state = 1
    return [dict(record)]


def behind_calls(records, policy):
    return records.async_flat_map(in_a_call).map(changed).map(checked, **policy).map(shown)


def behind_calls_with_state(records, policy):
    calls = records.partition_by(lambda record: record["number"] % 3, key_type=int, op_id="by")
    return calls.async_flat_map(in_a_call_with_state, op_id="c").map(changed).map(checked, **policy).map(shown)


def kept_in_state(records, policy):
    """What calls come to is changed by the function of an operator that keeps state."""
    calls = records.partition_by(lambda record: record["number"] % 3, key_type=int, op_id="by")
    calls = calls.async_flat_map(in_a_call_with_state, op_id="c")
    each = calls.process(lambda record, context: [changed(record)], op_id="p", on_timer=lambda at, context: None)
    return each.map(checked, **policy).map(shown)


def each_pane(records, policy):
    by_key = records.partition_by(lambda record: record["number"], key_type=int, op_id="by")
    panes = by_key.window(tumbling(seconds=1), collect(), op_id="all").map(lambda pane: changed(pane.value[0]))
    return panes.map(checked, **policy).map(shown)


def each_timer(records, policy):
    def later(record, context):
        context.state = record
        context.set_timer(context.timestamp + 10)

    by_key = records.partition_by(lambda record: record["number"], key_type=int, op_id="by")
    due = by_key.process(later, on_timer=lambda at, context: [context.state], op_id="later")
    return due.map(changed).map(checked, **policy).map(shown)


def app_of(make, policy):
    app = App("again")
    records = app.input("in", value=dict, timestamp=lambda record: record["at"], max_disorder_ms=100_000)
    make(records, policy).send_to(app.output("out", value=list))
    return app


jumps = st.sampled_from((0, 1, 700, -700, 40_000))


FROM_BYTES = [mapped, behind_a_stage, before_calls, windowed]
FROM_MEMORY = [behind_calls, behind_calls_with_state, kept_in_state, each_pane, each_timer]


@pytest.mark.parametrize("make", [*FROM_BYTES, *FROM_MEMORY])
@given(st.lists(st.tuples(st.sampled_from((False, False, True)), jumps), max_size=40))
@settings(max_examples=examples(20, 500))
def test_a_record_is_changed_once(make, told):
    policy = {"on_error": skip} if any(odd for odd, _ in told) else {}
    at, records = DAY_MS, []
    for number, (odd, jump) in enumerate(told):
        at = max(at + jump, DAY_MS)
        records.append({"number": number, "done": 0, "odd": odd, "at": at})
    parts = [records[part::PARTITIONS] for part in range(PARTITIONS)]
    environment = memory()
    fill(environment, "in", [[(None, msgspec.json.encode(one), 0) for one in part] for part in parts])
    run_once(app_of(make, policy), environment)
    found = [msgspec.json.decode(value) for part in rows_of(environment, "out") for _, value, _ in part]
    good = [one["number"] for one in records if not one["odd"]]
    if make is windowed:
        assert sum(done for _, done in found) == len(good)
    else:
        assert sorted(found) == [[number, 1] for number in good]


class Fails:
    """Changes records, and raises for some at the first try."""

    def __init__(self, odd):
        self.odd, self.seen, self.done = odd, set(), []

    def __call__(self, record):
        changed(record)
        if record["number"] in self.odd - self.seen:
            self.seen.add(record["number"])
            raise ValueError(record)
        self.done.append(shown(record))
        return [shown(record)]

    async def call(self, record):
        return self(record)

    async def call_with_state(self, record, context):
        context.state = [*(context.state or []), record["number"]]
        return self(record)

    async def task(self, message, context):
        self(message.value)


AGAIN = {"on_error": retry(2, backoff_ms=0)}
TRIED = {
    "a sink": lambda app, records, fails: records.sink(fails, **AGAIN),
    "a call": lambda app, records, fails: records.async_flat_map(fails.call, **AGAIN),
    "a call with state": lambda app, records, fails: records.async_flat_map(fails.call_with_state, op_id="c", **AGAIN),
    "a call behind a timer": lambda app, records, fails: each_timed(records).async_flat_map(fails.call, **AGAIN),
    "a task": lambda app, records, fails: app.task(records, fails.task, op_id="t", **AGAIN),
    "a map behind a call": lambda app, records, fails: records.async_flat_map(in_a_call).map(fails, **AGAIN),
    "a map behind a timer": lambda app, records, fails: each_timed(records).map(fails, **AGAIN),
}


def each_timed(records):
    return each_timer(records, {"on_error": skip}).map(lambda one: {"number": one[0], "done": 0})


@pytest.mark.parametrize("kind", TRIED)
@given(st.sets(st.integers(0, 9)))
@settings(max_examples=examples(8, 200))
def test_what_is_tried_again_has_its_message_as_it_was(kind, odd):
    fails, app = Fails(odd), App("tried")
    records = app.input(
        "in", value=dict, key=lambda record: record["number"] % 4, timestamp=lambda record: record["at"]
    )
    if (stream := TRIED[kind](app, records, fails)) is not None:
        stream.send_to(app.output("out", value=list))
    environment = memory()
    told = [{"number": number, "done": 0, "odd": False, "at": DAY_MS + number} for number in range(10)]
    fill(environment, "in", [[(None, msgspec.json.encode(one), 0) for one in told]])
    run_once(app, environment)
    # Neighbours of what failed may be done twice, and what was done first was taken back.
    assert {*map(tuple, fails.done)} == {(number, 1) for number in range(10)}
