"""A record without a value is None where the declared type says so, malformed elsewhere, and None is written as one."""

from contextlib import closing

import msgspec
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samza_dsl
from operators.core.base import Batch
from runtime.encoding.serdes import Bytes, Json, MessagePack, String
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, dead_letter, formats, tumbling
from samza_dsl import count as counted
from samza_dsl.data.records import records_from
from samza_dsl.formats import Avro, JsonSchema, Protobuf
from samza_dsl.testing import Record, running
from tests.scale import examples


class Order(msgspec.Struct):
    """A value of a stream with tombstones."""

    total: int


class Moment(msgspec.Struct):
    """The value of a Timestamp's message."""

    seconds: int
    nanos: int = 0


ORDERS = st.one_of(st.none(), st.builds(Order, st.integers(0, 9)))


def _stored(app, values, keys=None):
    """Return the bytes that an output holds of what a stream is given, in the order of its one partition."""
    with running(app, {"in": [Record(value, key=f"k{n % 3}", timestamp=n) for n, value in enumerate(values)]}) as live:
        return live.records("out")


@settings(max_examples=examples(40, 400))
@given(values=st.lists(ORDERS, max_size=20), shuffled=st.booleans(), size=st.sampled_from([1, 4, 500]))
def test_none_goes_through_a_pipeline_as_any_value(values, shuffled, size):
    app = App("tombstones", Options(batch_records=size))
    orders = app.input("in", value=Order | None, key=str)
    seen = orders.map(lambda order: order and Order(order.total + 1))
    if shuffled:
        seen = seen.partition_by(lambda order: 0 if order is None else order.total, partitions=2)
    seen.send_to(app.output("out", value=Order | None, partitions=1))
    expected = [order and Order(order.total + 1) for order in values]
    assert sorted(map(repr, (one.value for one in _stored(app, values)))) == sorted(map(repr, expected))


@pytest.mark.parametrize("serde", [Order | None, Json(Order | None), String(str | None), Bytes(bytes | None)])
def test_none_is_written_as_a_record_without_a_value(serde, tmp_path):
    app = App("written")
    app.input("in", value=serde, key=str).send_to(app.output("out", value=serde, key=str))
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("in", StreamConfig())
        whole = b'{"total":1}'
        log.append([Append("in", 0, Batch([None, whole, None], [b"a", b"b", b"c"]))])
    app.run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        found = [(one.key, one.value) for one in records_from(log, "out", 0, 0)]
    assert found == [(b"a", None), (b"b", whole), (b"c", None)]


def test_nobody_wonders_about_none_where_the_output_says_so():
    for value, is_told in ((Order | None, False), (Order, True)):
        app = App("first")
        app.input("in", value=Order | None, key=str).send_to(app.output("out", value=value))
        with running(app) as live:
            live.send("in", Record(None, key="k"))
            counters = [one.counters for one in live.metrics().operators if one.operator == "send_to-out"]
        assert any(counters) == is_told


def test_without_the_type_it_is_a_malformed_record():
    app = App("malformed")
    app.input("in", value=Order, key=str, on_error=dead_letter("bad")).send_to(app.output("out", value=Order))
    with running(app) as live:
        live.send_bytes("in", None, key=b"k")
        (letter,) = live.dead_letters("bad")
        assert letter.value is None and letter.key == b"k" and "value=T | None" in letter.error
        assert not live.records("out")


def test_its_time_is_that_of_the_record_and_windows_count_it():
    app = App("timed")
    orders = app.input("in", value=Order | None, key=str, timestamp=lambda order: order.total, watermark=None)
    orders.window(tumbling(seconds=1), counted()).map(lambda pane: (pane.start, pane.value)).send_to(app.output("out"))
    with running(app) as live:
        live.send("in", Record(Order(10), key="k", timestamp=7_000), Record(None, key="k", timestamp=5_500))
        live.end("in")
        assert sorted(live.received("out")) == [(0, 1), (5_000, 1)]


SERDES = {
    "json": Json(Order | None),
    "messagepack": MessagePack(Order | None),
    "text": String(str | None),
    "bytes": Bytes(bytes | None),
    "avro": Avro(Order | None),
    "json schema": JsonSchema(Order | None),
    "protobuf": Protobuf(Int64Value | None),
    "protobuf as a record": Protobuf(Timestamp, Moment | None),
}
VALUES = {"text": "a", "bytes": b"a", "protobuf": Int64Value(value=3), "protobuf as a record": Moment(7)}


@settings(max_examples=examples(6, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(there=st.lists(st.booleans(), min_size=1, max_size=6))
@pytest.mark.parametrize("name", SERDES)
def test_none_passes_with_every_serde_and_both_stages_of_a_pipeline(name, there):
    serde, value = SERDES[name], VALUES.get(name, Order(1))
    app = App("every")
    values = app.input("in", value=serde, key=str)
    values.partition_by(lambda one: str(one is None), partitions=2, value=serde).send_to(app.output("out", value=serde))
    wanted = [value if one else None for one in there]
    with running(app, {"in": [Record(one, key="k") for one in wanted]}) as live:
        found = [one.value for one in live.records("out")]
    assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_every_serde_that_declares_a_type_is_tried_with_none():
    """A new format has to say how its streams have records without a value."""
    declaring = {
        one.__name__
        for module in (samza_dsl, formats)
        for one in vars(module).values()
        if isinstance(one, type)
        and hasattr(one, "decode")
        and {"type", "message"} & {*getattr(one, "__annotations__", ())}
    }
    assert declaring - {"Tagged"} <= {type(one).__name__ for one in SERDES.values()} | {"Debezium"}
