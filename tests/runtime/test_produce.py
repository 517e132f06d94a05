"""Records that are written from Python: where they go, what becomes of them, and what is refused."""

from contextlib import closing
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from operators.partition_by import murmur2
from planner.model.errors import PlanError
from runtime.model.errors import EnvironmentFault, SamzaError
from runtime.ports.streams import StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, MessagePack, list_streams, produce
from samza_dsl.data.records import records_from


class Order(Struct):
    customer: str
    amount: int
    at_ms: int = 0


def stored(data, stream):
    """Return the records of each partition."""
    with closing(LogEnvironment(data)) as log:
        return [list(records_from(log, stream, partition, 0)) for partition in range(log.streams()[stream].partitions)]


def test_what_is_produced_is_what_the_pipeline_reads(tmp_path):
    orders = [Order("ann", 1, 10), Order("bob", 2, 20), Order("ann", 3, 30)]
    written = produce(
        "orders",
        orders,
        data=tmp_path,
        value=Order,
        key=lambda order: order.customer,
        timestamp=lambda order: order.at_ms,
        partitions=3,
        end=True,
    )
    assert written == 3
    app = App("copying")
    app.input("orders", value=Order, key=str).send_to(app.output("copy", value=Order))
    assert sorted(app.run(tmp_path).received("copy"), key=lambda order: order.at_ms) == orders
    assert sorted(record.timestamp for part in stored(tmp_path, "orders") for record in part) == [10, 20, 30]


@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=3) | st.integers(-9, 9) | st.binary(max_size=3), st.integers(0, 9))
    ),
    st.integers(1, 4),
)
def test_keys_have_their_partition_and_their_order(tmp_path_factory, pairs, partitions):
    data = tmp_path_factory.mktemp("data")
    produce("s", pairs, data=data, value=MessagePack(), key=lambda pair: pair[0], partitions=partitions)
    found = stored(data, "s")
    decoded = [[tuple(MessagePack().decode(record.value)) for record in part] for part in found]
    assert sorted(map(repr, (pair for part in decoded for pair in part))) == sorted(map(repr, pairs))
    for number, part in enumerate(found):
        assert all(record.key is None or murmur2(record.key) % partitions == number for record in part)
        keyed = [pair for pair in decoded[number] if pair[0] is not None]
        assert keyed == [pair for pair in pairs if pair[0] in [key for key, _ in keyed]]


def test_records_without_a_key_take_turns(tmp_path):
    produce("s", range(5), data=tmp_path, partitions=2)
    assert [[record.value for record in part] for part in stored(tmp_path, "s")] == [[b"0", b"2", b"4"], [b"1", b"3"]]


def test_much_is_read_in_parts(tmp_path):
    produce("s", ["x"] * 12_000, data=tmp_path, value=str, end=True)
    with closing(LogEnvironment(tmp_path)) as log:
        assert len(log.read("s", 0, 0).batch) == 5_000
        assert log.offsets("s", 0) == (0, 12_000, True)


def test_streams_are_listed(tmp_path):
    assert list_streams(tmp_path) == []
    produce("b", [], data=tmp_path, partitions=2, end=True)
    produce("a", [1], data=tmp_path)
    produce("a", [2], data=tmp_path)
    a, b = list_streams(str(tmp_path))
    assert (a.name, a.partitions, a.records, a.size_bytes > 0, a.ended) == ("a", 1, 2, True, False)
    assert (b.name, b.partitions, b.records, b.ended) == ("b", 2, 0, True)


def test_an_aware_datetime_is_a_time(tmp_path):
    produce("s", [1], data=tmp_path, timestamp=lambda n: datetime(1970, 1, 1, 0, 0, n, tzinfo=UTC))
    assert stored(tmp_path, "s")[0][0].timestamp == 1_000


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"stream": "a/b"}, "'a/b' can't name a stream"),
        ({"partitions": 0}, "partitions=0 is not a whole number of at least 1"),
        ({"partitions": 2}, "partitions=2, and the stream 's' exists and has 1; write instead: partitions= left out"),
        ({"retention_ms": 0}, "retention_ms=0 is not a whole number of at least 1"),
        ({"retention_ms": 5}, "retention_ms=5, and the stream 's' exists and has none; write instead: retention_ms= l"),
        ({"compression": "lz4"}, "compression='lz4' is not a kind of compression; write instead: compression=.zstd"),
        ({"key": lambda: 1}, "produce.key=.... calls the lambda with 1 argument"),
        ({"timestamp": 5}, "produce.timestamp=.... got 5, which is not a function"),
        ({"value": 7}, "value got 7"),
        ({"stream": "between"}, "'between' lies between the stages of an app"),
    ],
)
def test_mistakes_are_told_at_their_line(tmp_path, how, wrong):
    produce("s", [1], data=tmp_path)
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("between", StreamConfig(intermediate=True))
    with pytest.raises(PlanError, match=rf"test_produce.py:\d+: {wrong}"):
        produce(**{"stream": "s", "values": [1], "data": tmp_path, **how})


def test_a_stream_is_made_as_it_was_said(tmp_path):
    produce("s", [1], data=tmp_path, retention_ms=60_000, retention_bytes=1_000, compression="zlib")
    with closing(LogEnvironment(tmp_path)) as log:
        assert log.streams()["s"] == StreamConfig(retention_ms=60_000, retention_bytes=1_000, compression="zlib")


def test_all_or_nothing_is_written(tmp_path):
    with pytest.raises(ZeroDivisionError):
        produce("s", [1, 0], data=tmp_path, key=lambda n: 1 // n)
    with pytest.raises(SamzaError, match=r"test_produce.py:\d+: a value can't be written to 's' as String"):
        produce("s", ["a", 1], data=tmp_path, value=str)
    assert list_streams(tmp_path) == []
    produce("s", [1], data=tmp_path, end=True)
    with pytest.raises(EnvironmentFault, match="has ended"):
        produce("s", [2], data=tmp_path)
    assert list_streams(tmp_path)[0].records == 1


def test_a_run_shows_how_it_goes(tmp_path, capsys):
    produce("numbers", [1, 2], data=tmp_path, end=True)
    app = App("shown")
    app.input("numbers", value=int).send_to(app.output("copy", value=int))
    app.run(tmp_path, live=True)
    first, last = capsys.readouterr().out.splitlines()
    assert first == "shown: running, 1 stage, 2 operators"
    assert last.startswith("shown: done in") and "2 read" in last
