"""Bytes that mean harm: a clear error, or a dead letter with the original bytes, and nothing lost or counted twice."""

import asyncio

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.base import Batch
from operators.policies import dead_letter, fail, retry, skip
from runtime.errors import OperatorFailure
from runtime.run import Run
from runtime.serdes import Bytes, Json, MessagePack, String
from runtime.systems.base import Append, StreamConfig
from runtime.systems.log import LogEnvironment
from runtime.systems.memory import MemoryEnvironment
from samza_dsl import App

MEGABYTE = 1 << 20


class Flight(msgspec.Struct):
    carrier: str
    delay: int | None = None


class Peculiar:
    """A user's serde, that raises what nobody expects."""

    def encode(self, value):
        return value

    def decode(self, data):
        if len(data) % 3 == 0:
            raise LookupError("peculiar")
        if len(data) % 3 == 1:
            raise RecursionError("deep")
        return data


SERDES = {"json": Json(Flight), "msgpack": MessagePack(Flight), "text": String(), "bytes": Bytes(), "own": Peculiar()}
LAST = {"skip": skip, "dead letter": dead_letter("bad"), "retry": retry(2, then=dead_letter("bad"))}
WELL = msgspec.json.encode(Flight("AA", 5))
HOSTILE = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.integers(0, len(WELL)).map(lambda end: WELL[:end]),
    st.builds(lambda at, byte: WELL[:at] + bytes([byte]) + WELL[at + 1 :], st.integers(0, 20), st.integers(0, 255)),
    st.sampled_from(
        [WELL, msgspec.msgpack.encode(Flight("UA")), b"", b"null", b'{"carrier":7}', b"\xff\xfe", b"9" * 400]
    ),
    st.sampled_from([b"[" * 100_000, b'{"carrier":' * 20_000, b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"]),
)


def pipeline(serde, policy):
    app = App("hostile")
    app.input("records", value=serde, on_error=policy).map(repr).send_to(app.output("out", value=str))
    return app


def run(app, records, environment):
    environment.create_stream("records", StreamConfig())
    for start in range(0, len(records), 7):
        environment.append([Append("records", 0, Batch(records[start : start + 7]))])
    environment.end_stream("records")
    ran = Run(app.graph(), app.options, app.around, environment)
    asyncio.run(ran.drive())
    return ran


def sorted_out(serde, records):
    """Decode one by one, as anyone would: what passes, and the offsets of what does not."""
    good, bad = [], []
    for offset, data in enumerate(records):
        try:
            if data is None:
                raise ValueError("no value")
            good.append(repr(serde.decode(data)))
        except Exception:
            bad.append(offset)
    return good, bad


@pytest.mark.parametrize("policy", LAST)
@pytest.mark.parametrize("name", SERDES)
@given(records=st.lists(HOSTILE, max_size=20))
@example(records=[b"[" * 100_000, WELL, None, b"\x91" * 100_000])
def test_what_can_not_be_decoded_passes_by_and_nothing_else_does(name, policy, records):
    serde, environment = SERDES[name], MemoryEnvironment()
    ran = run(pipeline(serde, LAST[policy]), records, environment)
    good, bad = sorted_out(serde, records)
    assert ran.received("out") == good
    metrics = ran.metrics()
    assert metrics.total("skipped") + metrics.total("dead_lettered") == len(bad)
    if policy != "skip":
        letters = []
        offset = 0
        while (read := environment.read("bad", 0, offset)) is not None:
            letters += zip(read.batch.values, read.batch.headers, strict=True)
            offset = read.next_offset
        assert [data for data, _ in letters] == [records[offset] for offset in bad]
        assert [int(headers["offset"]) for _, headers in letters] == bad
        assert all(headers["stream"] == b"records" and headers["error"] for _, headers in letters)


@pytest.mark.parametrize("name", ["json", "msgpack", "text", "own"])
@given(before=st.integers(0, 9), data=HOSTILE)
def test_without_a_policy_the_run_ends_and_names_the_record(name, before, data):
    serde = SERDES[name]
    _, bad = sorted_out(serde, [data])
    if not bad:
        return
    well = {"json": WELL, "msgpack": msgspec.msgpack.encode(Flight("UA")), "text": b"a", "own": b"ab"}[name]
    with pytest.raises(OperatorFailure, match=f"on records/0 at {before}; "):
        run(pipeline(serde, fail), [well] * before + [data], MemoryEnvironment())


@pytest.mark.parametrize("policy", LAST)
def test_ten_megabytes_are_a_value_like_any_other(policy, tmp_path):
    long, broken = msgspec.json.encode(Flight("x" * (10 * MEGABYTE))), b'{"carrier":"' + b"x" * (10 * MEGABYTE)
    environment = LogEnvironment(tmp_path)
    ran = run(pipeline(Json(Flight), LAST[policy]), [WELL, long, broken, WELL], environment)
    assert list(map(len, ran.received("out"))) == [
        len(repr(Flight("AA", 5))),
        len(repr(Flight(""))) + 10 * MEGABYTE,
        len(repr(Flight("AA", 5))),
    ]
    if policy != "skip":
        assert environment.read("bad", 0, 0).batch.values == [broken]
    environment.close()
