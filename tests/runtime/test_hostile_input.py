"""Hostile records through every error policy and every serde: a clear error, or a dead letter; nothing else is lost."""

import json
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.base import Batch
from operators.policies import dead_letter, fail, retry, skip
from runtime.errors import SamzaError
from runtime.systems.base import Append, StreamConfig
from samza_dsl import App, Bytes, Json, MessagePack, Options, String, count, tumbling
from tests.scale import scale
from tests.simulation.crash import CrashPoint, memory, rows_of, run_through
from tests.strategies import Event

MEGABYTE = 2**20
DEEP = [b"[" * 100_000, b'{"a":' * 50_000, b"\x91" * 100_000, b'{"number":' + b"[" * 5_000 + b"]" * 5_000 + b"}"]


class Upper:
    """A user's own serde, which raises what it likes."""

    type = str

    def encode(self, value):
        return value.lower().encode()

    def decode(self, data):
        if not data.isalpha():
            raise LookupError(f"{data[:9]!r} is no word")
        return data.decode().upper()


SERDES = {
    "a Struct as JSON": Json(Event),
    "any JSON": Json(),
    "ints": Json(int),
    "MessagePack": MessagePack(Event),
    "text": String(),
    "bytes": Bytes(),
    "the user's own": Upper(),
}
POLICIES = {
    "fail": fail,
    "skip": skip,
    "dead_letter": dead_letter("letters"),
    "retry": retry(2, then=dead_letter("letters")),
    "retry and skip": retry(1, then=skip),
}
LENIENT = sorted(set(POLICIES) - {"fail"})

good = st.builds(Event, st.integers(0, 99), st.just("k"), st.integers(0, 99))
encoded = good.map(msgspec.json.encode) | good.map(msgspec.msgpack.encode)
truncated = st.tuples(encoded, st.integers(0, 30)).map(lambda both: both[0][: both[1]])
wrong_types = st.sampled_from(
    [
        *(b'{"number":"7","key":"k","at":0}', b'{"number":7,"key":7,"at":0}', b'{"number":7,"at":0}', b"null", b"[]"),
        *(b'{"number":7.5,"key":"k","at":0}', b'{"number":7,"key":"\xff","at":0}', b'"\xed\xa0\x80"', b"NaN", b"1e999"),
        *(b'{"number":7,"key":"k","at":99999999999999999999999}', b'{"number":7,"key":"k","at":-9223372036854775808}'),
    ]
)
values = st.one_of(encoded, encoded, st.binary(max_size=40), truncated, wrong_types, st.sampled_from(DEEP), st.none())
keys = st.none() | st.binary(max_size=5) | st.sampled_from([b"k", b"\xff\xfe", b""])
batches = st.lists(st.lists(st.tuples(keys, values), max_size=8), min_size=1, max_size=4)


def environment_of(batches):
    environment = memory()
    environment.create_stream("in", StreamConfig())
    for rows in batches:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            environment.append([Append("in", 0, Batch(columns[1], columns[0]))])
    environment.end_stream("in")
    return environment


async def later(value):
    return [value]


def app_of(serde, policy, stage, **options):
    """Build a pipeline whose input has a key, a time and a policy."""
    app = App("hostile", Options(**options))
    stream = app.input("in", value=serde, key=str, timestamp=time_of, max_disorder_ms=10**6, on_error=policy)
    if stage == "async":
        stream = stream.async_flat_map(later)
    if stage == "repartitioned":
        stream = stream.partition_by(lambda value: "one", partitions=2, op_id="p")
    stream.map(lambda value: True).send_to(app.output("out", value=bool))
    return app


def time_of(value):
    return value.at if isinstance(value, Event) else 7


def is_good(serde, key, value):
    """Whether a record can be read, found out one record and one step at a time."""
    try:
        decoded = serde.decode(value)
        str(b"" if key is None else key, "utf-8")
        return value is not None and abs(time_of(decoded)) < 2**62
    except Exception:
        return False


STAGES = ("sync", "async", "repartitioned")


@pytest.mark.parametrize("policy", LENIENT)
@pytest.mark.parametrize("serde", SERDES)
@given(batches, st.sampled_from(STAGES), st.sampled_from((1, 3, 2_000)))
@settings(max_examples=scale(12, 150, 10_000))
def test_a_lenient_policy_survives_all_and_loses_and_doubles_nothing(serde, policy, batches, stage, batch_records):
    environment, reads = environment_of(batches), SERDES[serde]
    run_through(lambda: app_of(reads, POLICIES[policy], stage, batch_records=batch_records), environment)
    check(environment, batches, reads, policy)


@given(batches, st.sampled_from(STAGES), st.lists(st.integers(1, 30), min_size=1, max_size=3))
@settings(max_examples=scale(40, 300, 20_000))
def test_crashes_neither_lose_nor_double_a_dead_letter(batches, stage, turns):
    environment, reads = environment_of(batches), SERDES["a Struct as JSON"]

    def app():
        return app_of(reads, POLICIES["dead_letter"], stage, batch_records=2, max_uncommitted=1, max_in_flight=1)

    run_through(app, environment, [CrashPoint("turn", turn) for turn in turns])
    check(environment, batches, reads, "dead_letter")


def check(environment, batches, serde, policy):
    """Compare outputs and dead letters with what each record by itself is."""
    numbered = list(enumerate(row for rows in batches for row in rows))
    bad = [(offset, key, value) for offset, (key, value) in numbered if not is_good(serde, key, value)]
    passed = sum(len(part) for part in rows_of(environment, "out"))
    assert passed == len(numbered) - len(bad)
    if "skip" not in policy:
        assert letters_of(environment) == Counter((b"%d" % offset, key, value) for offset, key, value in bad)


def letters_of(environment):
    found = Counter()
    offset = 0
    while "letters" in environment.streams() and (read := environment.read("letters", 0, offset)):
        batch, offset = read.batch, read.next_offset
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            assert headers["stream"] == b"in" and headers["partition"] == b"0" and headers["operator"] == b"in"
            kind, _, told = headers["error"].decode().partition(": ")
            assert kind.isidentifier() and told
            found[headers["offset"], key, value] += 1
    return found


@pytest.mark.parametrize("serde", SERDES)
@given(batches, st.sampled_from(STAGES))
@settings(max_examples=scale(12, 150, 10_000))
def test_fail_tells_stream_partition_and_offset_and_commits_nothing_of_the_record(serde, batches, stage):
    environment, reads = environment_of(batches), SERDES[serde]
    rows = [row for rows in batches for row in rows]
    bad = [offset for offset, (key, value) in enumerate(rows) if not is_good(reads, key, value)]
    if not bad:
        run_through(lambda: app_of(reads, fail, stage), environment)
    else:
        with pytest.raises(SamzaError) as told:
            run_through(lambda: app_of(reads, fail, stage), environment)
        assert any(f"on in/0 at {offset};" in str(told.value) for offset in bad)
        assert "input 'in' at " in str(told.value) and "on_error=skip" in str(told.value)
    assert sum(len(part) for part in rows_of(environment, "out")) == (0 if bad else len(rows))


@pytest.mark.parametrize("policy", LENIENT)
@pytest.mark.parametrize("size", [10 * MEGABYTE])
def test_ten_megabytes_pass_or_become_a_dead_letter_whole(policy, size):
    huge = json.dumps({"number": 1, "key": "x" * size, "at": 5}).encode()
    batches = [[(b"k", huge), (b"k", huge[:-1]), (b"\xff" * size, huge), (b"k", b"\xff" * size)]]
    environment, reads = environment_of(batches), SERDES["a Struct as JSON"]
    run_through(lambda: app_of(reads, POLICIES[policy], "repartitioned"), environment)
    check(environment, batches, reads, policy)


@pytest.mark.parametrize("policy", LENIENT)
@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=8))
@settings(max_examples=scale(10, 100, 2_000))
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
