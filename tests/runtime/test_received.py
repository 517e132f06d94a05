"""What failed was received, too: by the operator that failed, and by all above it."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, dead_letter, skip
from tests.scale import examples


def invert(n):
    return 1 // n


async def same(n):
    return [n]


async def call(n):
    return [invert(n)]


WAYS = {
    "one": lambda s, on: s.map(invert, op_id="m", on_error=on),
    "fused": lambda s, on: s.filter(lambda n: True).map(lambda n: n).map(invert, op_id="m", on_error=on),
    "fanned": lambda s, on: s.flat_map(lambda n: [n]).map(invert, op_id="m", on_error=on).map(lambda n: n),
    "split": lambda s, on: s.partition_by(lambda n: n, partitions=2).map(invert, op_id="m", on_error=on),
    "kept": lambda s, on: s.partition_by(lambda n: 1, partitions=1).scan(
        lambda total, n: total + 1 // n, init=int, op_id="m", on_error=on
    ),
    "called": lambda s, on: s.map(lambda n: n).async_flat_map(call, op_id="m", on_error=on),
    "behind a call": lambda s, on: s.async_flat_map(same).map(lambda n: n).map(invert, op_id="m", on_error=on),
    "ahead of a call": lambda s, on: s.map(invert, op_id="m", on_error=on).async_flat_map(same),
}


@pytest.mark.parametrize("way", WAYS)
@given(numbers=st.lists(st.integers(0, 2), min_size=1, max_size=8), policy=st.sampled_from([skip, dead_letter("bad")]))
@settings(max_examples=examples(3, 30), deadline=None)
def test_an_operator_has_received_what_failed_there(tmp_path_factory, way, numbers, policy):
    app = App("inverses")
    WAYS[way](app.input("numbers", value=int), policy).send_to(app.output("out", value=int))
    run = app.run(tmp_path_factory.mktemp("data"), bind={"numbers": numbers}, until_now=True)
    found, bad = run.metrics(), numbers.count(0)
    for id in ("numbers", "m"):
        assert found.received(id) == len(numbers)
    mine = [one for one in found.operators if one.operator == "m"]
    assert sum(one.emitted for one in mine) == len(numbers) - bad
    assert sum(one.skipped + one.dead_lettered for one in mine) == bad
    assert found.received("send_to-out") == len(numbers) - bad


def test_a_record_of_one_of_two_inputs_was_not_received_of_the_other(tmp_path):
    app = App("inverses")
    merged = app.input("a", value=int).merge(app.input("b", value=int))
    merged.map(invert, op_id="m", on_error=skip).send_to(app.output("out", value=int))
    found = app.run(tmp_path, bind={"a": [0, 0, 1], "b": [0, 2, 2, 2]}, until_now=True).metrics()
    assert [found.received(id) for id in ("a", "b", "m")] == [3, 4, 7]


def test_a_run_of_which_all_records_fail_is_not_said_to_have_read_nothing(tmp_path, caplog):
    app = App("inverses")
    app.input("numbers", value=int).map(invert, on_error=skip).send_to(app.output("out", value=int))
    with caplog.at_level(logging.INFO, "samza_dsl"):
        app.run(tmp_path, bind={"numbers": [0, 0]}, until_now=True)
    assert "2 skipped" in caplog.text and "nothing was read" not in caplog.text
