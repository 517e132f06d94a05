"""What is done again is done on values as they were read, though functions have changed those of before in place."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, skip, total, tumbling
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


def app_of(make, policy):
    app = App("again")
    records = app.input("in", value=dict, timestamp=lambda record: record["at"], max_disorder_ms=100_000)
    make(records, policy).send_to(app.output("out", value=list))
    return app


jumps = st.sampled_from((0, 1, 700, -700, 40_000))


@pytest.mark.parametrize("make", [mapped, behind_a_stage, before_calls, windowed])
@given(st.lists(st.tuples(st.sampled_from((False, False, True)), jumps), max_size=40))
@settings(max_examples=examples(30, 500))
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
