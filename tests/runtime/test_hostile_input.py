"""Hostile records through every error policy and every serde: a clear error, or a dead letter; nothing else is lost."""

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.errors import OperatorFailure
from samza_dsl import App, count, testing, tumbling
from tests.faults.hostile import (
    DEEP,
    LENIENT,
    POLICIES,
    SERDES,
    STAGES,
    WRONG_TYPES,
    app_of,
    check,
    environment_of,
    send,
)
from tests.scale import examples
from tests.simulation.crash import CrashPoint, rows_of, run_through
from tests.strategies import Event

MEGABYTE = 2**20

good = st.builds(Event, st.integers(0, 99), st.just("k"), st.integers(0, 99))
encoded = good.map(msgspec.json.encode) | good.map(msgspec.msgpack.encode)
truncated = st.tuples(encoded, st.integers(0, 30)).map(lambda both: both[0][: both[1]])
wrong_types = st.sampled_from(WRONG_TYPES)
values = st.one_of(encoded, encoded, st.binary(max_size=40), truncated, wrong_types, st.sampled_from(DEEP), st.none())
keys = st.none() | st.binary(max_size=5) | st.sampled_from([b"k", b"\xff\xfe", b""])
batches = st.lists(st.lists(st.tuples(keys, values), max_size=8), min_size=1, max_size=4)


@pytest.mark.parametrize("policy", LENIENT)
@pytest.mark.parametrize("serde", SERDES)
@given(batches, st.sampled_from(STAGES), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=examples(10, 10_000))
def test_a_lenient_policy_survives_all_and_loses_and_doubles_nothing(serde, policy, batches, stage, batch_records):
    send(batches, serde, policy, stage, batch_records=batch_records)


@given(batches, st.sampled_from(STAGES), st.lists(st.integers(1, 30), min_size=1, max_size=3))
@settings(max_examples=examples(80, 20_000))
def test_crashes_neither_lose_nor_double_a_dead_letter(batches, stage, turns):
    environment, reads = environment_of(batches), SERDES["a Struct as JSON"]

    def app():
        return app_of(reads, POLICIES["dead_letter"], stage, batch_records=2, max_uncommitted=1, max_in_flight=1)

    run_through(app, environment, [CrashPoint("turn", turn) for turn in turns])
    check(environment, batches, reads, "dead_letter")


@pytest.mark.parametrize("serde", SERDES)
@given(batches, st.sampled_from(STAGES))
@settings(max_examples=examples(24, 10_000))
def test_fail_tells_stream_partition_and_offset_and_commits_nothing_of_the_record(serde, batches, stage):
    send(batches, serde, "fail", stage)


def no_number(value):
    return value / 0


@pytest.mark.parametrize(
    ("part", "data", "key", "said"),
    [
        ("value", b'"one"', b"1", {"key": int}),
        ("key", b"1", b"one", {"key": int}),
        ("key", b"1", None, {"key": no_number}),
        ("timestamp", b"1", None, {"timestamp": no_number}),
    ],
)
def test_fail_tells_which_part_of_a_record_could_not_be_read(part, data, key, said):
    app = App("hostile")
    app.input("in", value=int, **said).sink(print)
    wrong = rf"Error: .*, on the {part} of in/0 at 0; nothing of that"
    with pytest.raises(OperatorFailure, match=wrong), testing.running(app) as run:
        run.send_bytes("in", data, key=key)


@pytest.mark.parametrize("policy", LENIENT)
@pytest.mark.parametrize("size", [10 * MEGABYTE])
def test_ten_megabytes_pass_or_become_a_dead_letter_whole(policy, size):
    huge = json.dumps({"number": 1, "key": "x" * size, "at": 5}).encode()
    batches = [[(b"k", huge), (b"k", huge[:-1]), (b"\xff" * size, huge), (b"k", b"\xff" * size)]]
    send(batches, "a Struct as JSON", policy, "repartitioned")


@pytest.mark.parametrize("policy", LENIENT)
@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=8))
@settings(max_examples=examples(20, 2_000))
def test_a_null_key_at_a_keyed_operator_meets_its_policy(policy, found):
    events = [msgspec.json.encode(Event(n, key, n)) for n, key in enumerate(found)]
    environment = environment_of([[(None, event) for event in events]])

    def app():
        app = App("hostile")
        stream = app.input("in", value=Event, key=lambda event: event.key, timestamp=lambda event: event.at)
        panes = stream.window(tumbling(seconds=1), count(), on_error=POLICIES[policy], op_id="in-window")
        panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
        return app

    run_through(app, environment)
    counted = Counter(key for key in found if key is not None)
    assert sorted(int(v) for part in rows_of(environment, "out") for _, v, _ in part) == sorted(counted.values())
    letters = [value for part in rows_of(environment, "letters") for _, value, _ in part]
    expected = [event for event, key in zip(events, found, strict=True) if key is None]
    assert letters == ([] if "skip" in policy else expected)
