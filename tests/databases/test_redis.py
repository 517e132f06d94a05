"""Redis: streams as sources, hashes and streams as sinks, on a real server, through crashes and trims."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from operators.core.policies import skip
from runtime.encoding.serdes import Json
from runtime.model.errors import Damaged, Unavailable
from runtime.systems.connectors.reading import GivenValue
from runtime.systems.connectors.schemes import connected_sink, connected_source, promise_of
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.redis import entries
from runtime.systems.redis.fields import joined, read_as
from samza_dsl import App, SamzaError, connectors, dead_letter
from samza_dsl.connectors import Fenced, SinkRow
from samza_dsl.testing import check_pulled, check_sink
from tests.databases import redis_server
from tests.databases.conftest import NUMBERS
from tests.databases.test_table_sinks import EVERYTHING, Everything, Order, owner
from tests.scale import examples

on_a_server = pytest.mark.ci
LAW = settings(
    deadline=None,
    max_examples=examples(10, 100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ORDERS = Json(Order)


class Server:
    """A server of Redis, and a name in it that is used for the first time."""

    def __init__(self, url: str) -> None:
        self.url, self.client, self.name = url, redis.Redis.from_url(url), f"rows{next(NUMBERS)}"

    def add(self, *ids: int) -> None:
        for n in ids:
            self.client.xadd(self.name, {"id": n, "note": f"note {n}"})

    def hashes(self) -> dict[bytes, dict[bytes, bytes]]:
        return {key: self.client.hgetall(key) for key in self.client.scan_iter(f"{self.name}:*")}

    def orders(self) -> list[Order]:
        return [order(fields) for fields in self.hashes().values()]

    def added(self) -> list[Order]:
        return [order(fields) for _, fields in self.client.xrange(self.name)]


def order(fields: dict[bytes, bytes]) -> Order:
    """Return an order as whoever reads Redis by hand has it."""
    return Order(int(fields[b"id"]), fields[b"note"].decode() if b"note" in fields else None)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server.running() as url:
        yield url


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    found = Server(redis_url)
    yield found
    found.client.close()


def pulled(source: connectors.PulledSource, position: bytes = b"") -> tuple[list[Any], bytes]:
    """Pull all that is there, and return the values as orders, and the position."""
    values, more = [], True
    adapt = source.adapt(Order) if source.adapt else lambda value: value
    while more:
        found = source.pull("me", position)
        values += [GivenValue(ORDERS).decode(adapt(record.value)) for record in found.records]
        position, more = found.position, found.more
    return values, position


# Sinks.


@on_a_server
@pytest.mark.parametrize("key", ["id", ()], ids=["by a field", "by the record's key"])
def test_hashes_hold_each_row_once_through_crashes(server: Server, key: Any) -> None:
    rows = [SinkRow(Order(n % 8, f"note {n}"), key=n % 8) for n in range(40)] + [SinkRow(None, key=n) for n in range(8)]
    check_sink(
        lambda: connectors.redis_hashes(server.url, server.name, key), server.orders, rows, by_key=True, times=40
    )


@on_a_server
def test_a_stream_holds_each_row_once_through_crashes(server: Server) -> None:
    rows = [SinkRow(Order(n, f"note {n}" if n % 3 else None)) for n in range(40)]
    check_sink(lambda: connectors.redis_stream(server.url, server.name), server.added, rows, times=40)


@on_a_server
@given(values=st.lists(EVERYTHING, min_size=1, max_size=6))
@LAW
def test_values_of_every_type_are_read_back(server: Server, values: list[Everything]) -> None:
    server.name = f"rows{next(NUMBERS)}"
    mine = owner(kind=Everything, output=server.name)
    sink, source = (
        connectors.redis_stream(server.url, server.name),
        connectors.redis_source(server.url, server.name),
    )
    sink.claim(mine)
    sink.write(mine, [SinkRow(value) for value in values], 0, 1)
    found = source.pull("me", b"").records
    adapt = source.adapt(Everything) if source.adapt else None
    assert adapt is not None
    assert [GivenValue(Json(Everything)).decode(adapt(one.value)) for one in found] == values
    sink.close()
    source.close()


@on_a_server
@pytest.mark.parametrize("value", [3, 2.5, "text", True, b"\0\xff", [1, 2]], ids=repr)
def test_plain_values_have_one_field(server: Server, value: Any) -> None:
    kind = list[int] if isinstance(value, list) else type(value)
    mine = owner(kind=kind, output=server.name)
    stream, hashes = (
        connectors.redis_stream(server.url, f"{server.name}:s"),
        connectors.redis_hashes(server.url, server.name),
    )
    for sink in (stream, hashes):
        sink.claim(mine)
        sink.write(mine, [SinkRow(value, key="a")], 0, 1)
        sink.close()
    source = connectors.redis_source(server.url, f"{server.name}:s")
    assert read_as(kind)(source.pull("me", b"").records[0].value) == value
    assert read_as(kind)({b.decode(): v for b, v in server.client.hgetall(f"{server.name}:a").items()}) == value
    source.close()


@on_a_server
def test_a_row_replaces_all_of_the_one_before(server: Server) -> None:
    sink = connectors.redis_hashes(server.url, server.name, "id")
    sink.claim(owner())
    sink.write(owner(), [SinkRow(Order(1, "a")), SinkRow(Order(2, "b")), SinkRow(None, key=2)], 0, 1)
    sink.write(owner(), [SinkRow(Order(1))], 1, 2)
    assert server.hashes() == {f"{server.name}:1".encode(): {b"id": b"1"}}
    sink.close()


@on_a_server
def test_keys_of_others_are_never_overwritten_nor_deleted(server: Server) -> None:
    server.client.set(f"{server.name}:7", "theirs")
    sink = connectors.redis_hashes(server.url, server.name, "id")
    mine = owner(output=server.name)
    sink.claim(mine)
    with pytest.raises(SamzaError, match=r":7' is there, and is a string, and no hash"):
        sink.write(mine, [SinkRow(Order(1)), SinkRow(Order(7))], 0, 1)
    assert [*server.client.scan_iter(f"{server.name}:*")] == [f"{server.name}:7".encode()]
    sink.write(mine, [SinkRow(Order(1))], 0, 1)
    sink.empty(mine)  # which others write to as well: it stays, and is replaced
    assert len([*server.client.scan_iter(f"{server.name}:*")]) == 2
    sink.close()
    stream = connectors.redis_stream(server.url, f"{server.name}:7")
    stream.claim(owner(output="stream"))
    with pytest.raises(SamzaError, match="is a string, and no stream"):
        stream.write(owner(output="stream"), [SinkRow(Order(1))], 0, 1)
    stream.close()


@on_a_server
def test_a_stream_of_others_is_never_emptied(server: Server) -> None:
    server.add(5)
    sink = connectors.redis_stream(server.url, server.name)
    sink.claim(owner())
    sink.write(owner(), [SinkRow(Order(1))], 0, 1)
    with pytest.raises(SamzaError, match="among those of others"):
        sink.empty(owner())
    assert len(server.added()) == 2
    sink.close()


@on_a_server
def test_all_outputs_and_partitions_of_an_application_are_emptied(server: Server) -> None:
    sink = connectors.redis_stream(server.url, server.name)
    owners = [owner(output=output, partition=n) for n in range(3) for output in ("orders", "refunds")]
    for one in owners:
        sink.claim(one)
        sink.write(one, [SinkRow(Order(one.partition))], 0, 1)
    for one in owners:
        sink.empty(one)
    assert not server.client.exists(server.name)
    assert not [*server.client.scan_iter(f'samza_dsl_positions:*"stream {server.name}"*')]
    sink.close()


@on_a_server
@pytest.mark.parametrize("kind", ["hashes", "stream"])
def test_rows_of_an_earlier_life_and_copies_are_told(server: Server, kind: str) -> None:
    def make() -> connectors.PositionedSink:
        if kind == "hashes":
            return connectors.redis_hashes(server.url, server.name, "id")
        return connectors.redis_stream(server.url, server.name)

    first, second = make(), make()
    mine = owner(9)
    assert first.claim(mine) == second.claim(mine) == 0
    second.write(mine, [SinkRow(Order(2))], 0, 1)
    with pytest.raises(Fenced, match="another run"):
        first.write(mine, [SinkRow(Order(1))], 0, 1)
    with pytest.raises(SamzaError, match="earlier life"):
        first.claim(owner(1, identity=6))
    with pytest.raises(Damaged, match="a copy of another time"):
        first.claim(owner(10, end=0))
    second.write(mine, [SinkRow(Order(3))], 1, 2)
    second.write(mine, [SinkRow(Order(3))], 1, 2)  # its answer was lost
    assert len(server.orders() if kind == "hashes" else server.added()) == 2
    first.close()
    second.close()


@on_a_server
def test_what_the_server_loses_is_told(server: Server) -> None:
    sink = connectors.redis_stream(server.url, server.name)
    sink.claim(owner())
    sink.write(owner(), [SinkRow(Order(1))], 0, 1)
    (key,) = server.client.scan_iter(f'samza_dsl_positions:*"stream {server.name}"*')
    server.client.hset(key, "position", 0)
    with pytest.raises(Damaged, match="has lost what it had answered"):
        sink.write(owner(), [SinkRow(Order(2))], 1, 2)
    server.client.delete(server.name)
    server.client.hset(key, "position", 1)
    with pytest.raises(Unavailable, match="is gone, and had rows up to 1"):
        sink.claim(owner(2))
    sink.close()


@on_a_server
@pytest.mark.parametrize("kind", ["hashes", "stream"])
def test_a_position_that_is_lost_doubles_no_row(server: Server, kind: str, tmp_path: Path) -> None:
    app = App("shop")
    app.input("orders", value=Order).send_to(app.output("paid", value=Order))
    sinks = {"hashes": (connectors.redis_hashes, "id"), "stream": (connectors.redis_stream,)}
    make, *key = sinks[kind]
    for number in range(2):
        bind = {"orders": [Order(n) for n in range(3 + number)], "paid": make(server.url, server.name, *key)}
        told = kind == "stream" and number
        with pytest.raises(Damaged, match="they would be written twice") if told else nullcontext():
            app.run(tmp_path, bind=bind)
        if not number:
            server.client.delete(*server.client.scan_iter("samza_dsl_positions*"))
    assert len(server.added() if kind == "stream" else server.orders()) == (3 if told else 4)


@on_a_server
def test_what_redis_cannot_keep_is_told(server: Server) -> None:
    with pytest.raises(SamzaError, match="declare its value as a msgspec Struct"):
        connectors.redis_hashes(server.url, server.name).claim(owner(kind=dict[str, int]))
    with pytest.raises(SamzaError, match="is no field of"):
        connectors.redis_hashes(server.url, server.name, "no").claim(owner())
    sink = connectors.redis_stream(server.url, server.name)
    sink.claim(owner())
    with pytest.raises(SamzaError, match="rows are added here"):
        sink.write(owner(), [SinkRow(None, key=1)], 0, 1)
    hashes = connectors.redis_hashes(server.url, server.name)
    hashes.claim(owner())
    for key in (None, b"raw", 2.5, ()):
        with pytest.raises(SamzaError, match="is no key of a row"):
            hashes.write(owner(), [SinkRow(Order(1), key=key)], 0, 1)
    assert hashes.write(owner(), [SinkRow(Order(1), key=("a:b", 2))], 0, 1) is None
    assert [*server.hashes()] == [f"{server.name}:a%3Ab:2".encode()]
    sink.close()
    hashes.close()


@given(st.lists(st.lists(st.text(":%a", max_size=4), min_size=2, max_size=2), unique_by=tuple, max_size=20))
def test_no_two_keys_are_the_same(keys: list[list[str]]) -> None:
    assert len({joined([part.encode() for part in key]) for key in keys}) == len(keys)


# Sources.


@on_a_server
@pytest.mark.parametrize("at_once", [3, 5_000])
def test_each_entry_is_pulled_once_through_crashes(
    server: Server, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "AT_ONCE", at_once)
    server.add(*range(40))
    server.client.xdel(server.name, server.client.xrange(server.name)[7][0])  # before anybody reads

    def content() -> list[object]:
        return [{k.decode(): v for k, v in fields.items()} for _, fields in server.client.xrange(server.name)]

    check_pulled(lambda: connectors.redis_source(server.url, server.name), content, times=40)


@on_a_server
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "trim", "read", "delete"]), st.integers(1, 6)), min_size=1, max_size=25
    )
)
@LAW
def test_what_is_trimmed_unread_is_counted_exactly(
    server: Server, steps: list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry is read once, or told as lost; an entry that was read is never told, whatever is trimmed."""
    server.name = f"rows{next(NUMBERS)}"
    source = connectors.redis_source(server.url, server.name, skip_lost=True)
    caplog.set_level(logging.WARNING, "samza_dsl")
    caplog.clear()
    position, read, seen, added = b"", list[int](), set[int](), 0
    gone_unread = 0
    began = False
    for what, number in [*steps, ("add", 1), ("read", 1)]:
        there = [one.id for one in server.added()]
        if what == "add":
            server.add(*range(added, added + number))
            added += number
        elif what == "trim" and there:
            server.client.xtrim(server.name, maxlen=max(len(there) - number, 0), approximate=False)
        elif what == "delete" and there:
            server.client.xdel(server.name, server.client.xrange(server.name)[number % len(there)][0])
        elif what == "read":
            began = began or bool(there) or added > 0
            found, position = pulled(source, position)
            read += [one.id for one in found]
            seen |= {one.id for one in found}
        left = {one.id for one in server.added()}
        if began and what in ("trim", "delete"):
            gone_unread += len({one for one in there if one not in left} - seen)
    source.close()
    assert read == sorted(seen)
    told = sum(
        int(one.message.split(": ")[1].split()[0].replace(",", ""))
        for one in caplog.records
        if "was" in one.message or "were" in one.message
    )
    assert told == gone_unread


@on_a_server
def test_trimmed_entries_end_the_run_with_their_number(server: Server) -> None:
    source = connectors.redis_source(server.url, server.name)
    assert pulled(source) == ([], b"")
    server.add(*range(10))
    found, position = pulled(source)
    assert [one.id for one in found] == [*range(10)]
    server.add(*range(10, 30))
    server.client.xtrim(server.name, maxlen=20, approximate=False)  # just what was read
    assert len(pulled(source, position)[0]) == 20
    server.client.xtrim(server.name, maxlen=8, approximate=False)
    with pytest.raises(SamzaError, match=r"12 entries behind .* were trimmed or deleted.*skip_lost=True"):
        source.pull("me", position)
    going_on = connectors.redis_source(server.url, server.name, skip_lost=True)
    found, position = pulled(going_on, position)
    assert [one.id for one in found] == [*range(22, 30)]
    server.client.delete(server.name)
    with pytest.raises(SamzaError, match="is gone, and had 30 entries"):
        source.pull("me", position)
    server.add(1)
    with pytest.raises(SamzaError, match="another stream than then"):
        source.pull("me", position)
    source.close()
    going_on.close()


@on_a_server
def test_what_is_no_stream_is_told(server: Server) -> None:
    server.client.set(server.name, "text")
    source = connectors.redis_source(server.url, server.name)
    with pytest.raises(SamzaError, match="WRONGTYPE"):
        source.pull("me", b"")
    source.close()


# Whole applications.


class Total(msgspec.Struct):
    note: str
    count: int


@on_a_server
def test_an_application_reads_a_stream_and_writes_hashes(server: Server, tmp_path: Path) -> None:
    def run() -> None:
        app = App("totals")
        orders = app.input("orders", value=Order, on_error=skip)
        counts = orders.partition_by(lambda one: one.id % 2, op_id="by").scan(
            lambda total, one: total + 1, init=int, op_id="count"
        )
        counts.send_to(app.output("counts", value=int, key=int))
        app.run(
            tmp_path,
            bind={
                "orders": f"{server.url}?stream={server.name}",
                "counts": f"{server.url}?hash={server.name}",
            },
            until_now=True,
        )

    server.add(*range(7))
    server.client.xadd(server.name, {"note": "no id"})  # for the input's on_error=
    run()
    assert {key[-1:]: fields[b"value"] for key, fields in server.hashes().items()} == {b"0": b"4", b"1": b"3"}
    server.add(8)
    server.client.xtrim(server.name, maxlen=1, approximate=False)
    run()
    assert {key[-1:]: fields[b"value"] for key, fields in server.hashes().items()} == {b"0": b"5", b"1": b"3"}


ODD = st.dictionaries(st.binary(max_size=4) | st.sampled_from([b"id", b"note"]), st.binary(max_size=4), min_size=1)


@on_a_server
@given(
    odd=st.lists(ODD, max_size=4),
    field=st.sampled_from(["", "data"]),
    policy=st.sampled_from([skip, dead_letter("unread")]),
)
@example(odd=[{b"\xff": b"1"}, {b"id": b"1", b"\xff": b"1"}], field="", policy=skip)
@example(odd=[{b"\xff": b"1"}], field="data", policy=dead_letter("unread"))
@LAW
def test_no_entry_of_others_ends_a_run_whose_input_has_a_policy(
    server: Server, odd: list[dict[bytes, bytes]], field: str, policy: Any
) -> None:
    server.name = f"rows{next(NUMBERS)}"
    right = [{field: msgspec.json.encode(Order(n))} if field else {"id": n} for n in (-7, -8)]
    for entry in [right[0], *odd, right[1]]:
        server.client.xadd(server.name, entry)
    app = App("odd")
    app.input("orders", value=Order, on_error=policy).send_to(app.output("seen", value=Order))
    source = connectors.redis_source(server.url, server.name, field=field)
    seen = app.run(MemoryEnvironment(), bind={"orders": source}, until_now=True).received("seen")
    assert (seen[0], seen[-1]) == (Order(-7), Order(-8)) and len(seen) <= len(odd) + 2


@on_a_server
def test_a_field_holds_the_value(server: Server, tmp_path: Path) -> None:
    app = App("copied")
    app.input("orders", value=Order, on_error=skip).send_to(app.output("all-orders", value=Order))
    server.client.xadd(server.name, {"data": b'{"id":1,"note":"a"}', "other": "x"})
    server.client.xadd(server.name, {"dat": b'{"id":2}'})
    server.client.xadd(server.name, {"data": b"no json"})
    server.client.xadd(server.name, {"data": b'{"id":3}'})
    url = f"{server.url}?stream={server.name}"
    app.run(tmp_path, bind={"orders": f"{url}&field=data", "all-orders": f"{url}.out&max_entries=1000"}, until_now=True)
    found = [fields for _, fields in server.client.xrange(f"{server.name}.out")]
    assert found == [{b"id": b"1", b"note": b"a"}, {b"id": b"3"}]


# Without a server.


def test_no_password_is_told() -> None:
    url = "redis://me:secret@127.0.0.1:1/0"
    for made in (
        connectors.redis_source(url, "orders"),
        connectors.redis_hashes(url, "orders"),
        connectors.redis_stream(url, "orders"),
    ):
        assert "secret" not in repr(made)
    with pytest.raises(Unavailable) as caught:
        connectors.redis_source(url, "orders").pull("me", b"")
    assert "secret" not in str(caught.value)
    with pytest.raises(SamzaError, match="no URL of Redis") as wrong:
        connectors.redis_source("http://me:secret@host", "orders")
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("query", "reads"),
    [
        ("", True),
        ("hash=a", True),
        ("stream=a&skip_lost=maybe", True),
        ("", False),
        ("stream=a&hash=b", False),
        ("stream=a&key=id", False),
        ("hash=a&max_entries=5", False),
        ("stream=a&max_entries=x", False),
        ("table=a", False),
        ("stream=a&skip_lost=true", False),
    ],
)
def test_urls_that_are_not_meant_are_told(query: str, reads: bool) -> None:
    with pytest.raises(SamzaError, match=r"write redis://"):
        (connected_source if reads else connected_sink)(f"redis://host/0?{query}")


@pytest.mark.parametrize("path", ["shop", "1/2", "-1", "1.5", "0x1"])
def test_a_database_that_is_no_number_is_told(path: str) -> None:
    with pytest.raises(SamzaError, match="no URL of Redis"):
        connectors.redis_source(f"redis://host/{path}", "orders")


def test_urls_say_what_is_bound() -> None:
    url = "rediss://me:secret@host:7000/2?socket_timeout=5"
    assert promise_of(f"{url}&hash=order&key=shop,id", writes=True).startswith("rediss://host:7000/2#order:* (exactly")
    assert promise_of(f"{url}&stream=orders&field=data&skip_lost=true", writes=False).startswith(
        "rediss://host:7000/2#orders (kept as it is pulled"
    )


def test_what_is_no_argument_is_told() -> None:
    for call in (
        lambda: connectors.redis_source("redis://host", ""),
        lambda: connectors.redis_hashes("redis://host", ""),
        lambda: connectors.redis_hashes("redis://host", "a", ("id", "")),
        lambda: connectors.redis_stream("redis://host", "a", max_entries=0),
        lambda: connectors.redis_source("redis://host", "a", poll_ms=0),
    ):
        with pytest.raises(SamzaError):
            call()
