"""Records that are posted, in and out: what is acknowledged takes effect, once where the poster says an id."""

import asyncio
import email.utils
import gzip
import http.client
import json
import logging
import socket
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.model.errors import Unavailable
from runtime.systems.connectors import tries
from runtime.systems.connectors.tries import Words, tried
from runtime.systems.http import http_source as source_module
from runtime.systems.http import webhook as webhook_module
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, SamzaError, connectors, dead_letter
from samza_dsl.connectors import AtLeastOnceSink, RowRefused, SinkRow
from samza_dsl.testing import check_sink
from tests.connectors.test_pushed_sources import DyingEnvironment
from tests.real_time import until
from tests.scale import examples

JSON, LINES = "application/json", "application/x-ndjson"


class Order(msgspec.Struct, frozen=True):
    id: int
    cents: int = 0


def copying() -> App:
    app = App("copying")
    orders = app.input("orders", value=Order, key=lambda order: order.id % 3)
    orders.send_to(app.output("copies", value=Order, key=int))
    return app


def posted(url: str, body: bytes, kind: str = JSON, method: str = "POST", **headers: str) -> tuple[int, str]:
    """Post a body, and return the status and text of the answer."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        said = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, parts.path, body, said)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class Ready:
    """Tells a test at which URL an input is served."""

    def __init__(self) -> None:
        self.url = ""
        self._is_told = threading.Event()

    def __call__(self, url: str) -> None:
        self.url = url
        self._is_told.set()

    async def wait(self) -> str:
        await until(self._is_told.is_set)
        return self.url


def test_what_is_acknowledged_takes_effect(tmp_path: Path) -> None:
    async def main(start: int) -> list[Order]:
        ready = Ready()
        source = connectors.http_source(":0", "/orders", on_ready=ready)
        async with copying().running(tmp_path, bind={"orders": source}) as run:
            url = await ready.wait()
            answers = await asyncio.gather(
                *(asyncio.to_thread(posted, url, b'{"id":%d}' % n) for n in range(start, start + 20))
            )
            assert answers == [(202, '{"records": 1}')] * 20
            lines = b'{"id":100}\n\n{"id":101,"cents":5}\n'
            assert await asyncio.to_thread(posted, url, lines, LINES) == (202, '{"records": 2}')
            await run.settled()
            return run.received("copies")

    first = asyncio.run(main(0))
    assert Counter(order.id for order in first) == Counter([*range(20), 100, 101])
    assert Counter(order.id for order in asyncio.run(main(20))) == Counter([*range(40), 100, 101, 100, 101])


def test_a_request_that_comes_again_takes_effect_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "REMEMBERED", 3)

    async def main(keys: list[str]) -> list[Order]:
        ready = Ready()
        source = connectors.http_source(":0", on_ready=ready)
        async with copying().running(tmp_path, bind={"orders": source}) as run:
            url = await ready.wait()
            for key in keys:
                answers = await asyncio.gather(
                    *(asyncio.to_thread(posted, url, b'{"id":1}', Idempotency_Key=key) for _ in range(3))
                )
                assert answers == [(202, '{"records": 1}')] * 3
            await run.settled()
            return run.received("copies")

    assert len(asyncio.run(main(["a", "b", "c"]))) == 3
    assert len(asyncio.run(main(["a", "b", "c"]))) == 3
    # The fourth takes the place of the first, which is known no more.
    assert len(asyncio.run(main(["d", "b", "c"]))) == 4
    assert len(asyncio.run(main(["a"]))) == 5


@pytest.mark.parametrize(
    ("said", "request_", "status", "told"),
    [
        ({}, {"body": b'{"id":"x"}'}, 422, "record 1 of 1: Expected `int`, got `str`"),
        ({}, {"body": b'{"id":1}\n{"id":}', "kind": LINES}, 422, "record 2 of 2: JSON is malformed"),
        ({}, {"body": b""}, 422, "record 1 of 1"),
        ({"max_body_bytes": 50}, {"body": b'{"id":1' + b" " * 50 + b"}"}, 413, "Maximum request body size"),
        ({}, {"body": b'{"id":1}', "kind": "application/cloudevents+json; charset=utf-8"}, 202, '{"records": 1}'),
        ({}, {"body": b'{"id":1}', "kind": "text/plain"}, 415, "the Content-Type is one of"),
        ({}, {"body": b'{"id":1}', "Origin": "http://evil.example"}, 403, "a page of a browser"),
        ({}, {"body": gzip.compress(b'{"id":1}'), "Content_Encoding": "gzip"}, 202, '{"records": 1}'),
        ({}, {"body": zlib.compress(b'{"id":1}'), "Content_Encoding": "deflate"}, 202, '{"records": 1}'),
        (
            {},
            {"body": gzip.compress(b'{"id":') + gzip.compress(b"1}"), "Content_Encoding": "gzip"},
            202,
            '{"records": 1}',
        ),
        (
            {"max_body_bytes": 50},
            {"body": gzip.compress(b'{"id":1') + gzip.compress(b" " * 50 + b"}"), "Content_Encoding": "gzip"},
            413,
            "Maximum request body size",
        ),
        ({}, {"body": gzip.compress(b'{"id":1}') + b"{", "Content_Encoding": "gzip"}, 400, "no whole gzip"),
        ({}, {"body": zlib.compress(b'{"id":1}') + b"{", "Content_Encoding": "deflate"}, 400, "no whole deflate"),
        ({}, {"body": gzip.compress(b'{"id":1}')[:-1], "Content_Encoding": "gzip"}, 400, "no whole gzip"),
        ({}, {"body": b'{"id":1}', "Content_Encoding": "gzip"}, 400, "no whole gzip"),
        ({}, {"body": b'{"id":1}', "Content_Encoding": "br"}, 415, "gzip, deflate"),
        ({}, {"body": b"", "method": "GET"}, 405, "Method Not Allowed"),
        ({}, {"body": b'{"id":1}', "Idempotency_Key": "k" * 257}, 400, "at most 256 bytes"),
        ({"token": "secret"}, {"body": b'{"id":1}'}, 401, "Authorization: Bearer TOKEN"),
        ({"token": "secret"}, {"body": b'{"id":1}', "Authorization": "Bearer other"}, 401, "a token is asked for"),
        ({"token": "secret"}, {"body": b'{"id":1}', "Authorization": "Bearer secret"}, 202, '{"records": 1}'),
    ],
)
def test_each_request_is_answered_for_what_it_is(
    said: dict[str, Any], request_: dict[str, Any], status: int, told: str
) -> None:
    async def main() -> int:
        ready = Ready()
        source = connectors.http_source(":0", "/orders", on_ready=ready, **said)
        async with copying().running(MemoryEnvironment(), bind={"orders": source}) as run:
            found, text = await asyncio.to_thread(lambda url: posted(url, **request_), await ready.wait())
            assert (found, told in text) == (status, True), text
            await run.settled()
            return len(run.received("copies"))

    assert asyncio.run(main()) == (status == 202)


def test_a_body_that_does_not_come_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "PATIENCE_S", 0.01)

    def begun(url: str) -> int:
        parts = urlsplit(url)
        with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
            connection.putrequest("POST", parts.path)
            connection.putheader("Content-Type", JSON)
            connection.putheader("Content-Length", "8")
            connection.endheaders()
            return connection.getresponse().status

    async def main() -> int:
        ready = Ready()
        source = connectors.http_source(":0", "/orders", on_ready=ready)
        async with copying().running(MemoryEnvironment(), bind={"orders": source}):
            return await asyncio.to_thread(begun, await ready.wait())

    assert asyncio.run(main()) == 408


def test_who_goes_away_in_the_middle_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def left(url: str) -> None:
        parts = urlsplit(url)
        with socket.create_connection((str(parts.hostname), int(parts.port or 0))) as connection:
            connection.sendall(f"POST {parts.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n".encode())
            connection.sendall(b'Content-Length: 8\r\n\r\n{"id"')

    async def main() -> list[Any]:
        ready = Ready()
        source = connectors.http_source(":0", "/orders", on_ready=ready)
        async with copying().running(MemoryEnvironment(), bind={"orders": source}) as run:
            url = await ready.wait()
            await asyncio.to_thread(left, url)
            await asyncio.to_thread(posted, url, b'{"id":1}')
            await run.settled()
            return run.received("copies")

    assert asyncio.run(main()) == [Order(1)]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_commit_that_fails_acknowledges_nothing() -> None:
    environment = DyingEnvironment()

    async def main() -> int:
        ready = Ready()
        source = connectors.http_source(":0", on_ready=ready)
        async with copying().running(environment, bind={"orders": source}) as run:
            url = await ready.wait()
            environment.dies_at = 1
            status, _ = await asyncio.to_thread(posted, url, b'{"id":1}')
            with pytest.raises(SamzaError, match="the machine is gone"):
                await run.ended()
            return status

    with pytest.raises(SamzaError, match="the machine is gone"):
        assert asyncio.run(main()) == 503


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as taken:
        source = connectors.http_source(f":{taken.server_address[1]}")
        with pytest.raises(SamzaError, match="can't be listened at"):
            copying().run(tmp_path, bind={"orders": source})


class Hook(BaseHTTPRequestHandler):
    """Takes what is posted, by id, and answers as it is told to."""

    protocol_version = "HTTP/1.1"
    rows: ClassVar[list[tuple[str, Any]]] = []
    statuses: ClassVar[list[int]] = []
    """The next answers; a row that is answered by 599 is taken, and the answer lost."""
    headers_seen: ClassVar[list[dict[str, str]]] = []
    retry_after: ClassVar[str] = ""
    refuses: ClassVar[dict[int, int]] = {}
    """The status that a row is answered with, by its id."""
    words: ClassVar[str] = ""
    """What stands in an answer that refuses."""
    before: ClassVar[list[tuple[int, dict[str, str]]]] = []
    """Interim answers, with their headers, that come before each final one."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        row = json.loads(body)
        status = self.refuses.get(row["id"], 0) if isinstance(row, dict) else 0
        status = status or (self.statuses.pop(0) if self.statuses else 204)
        self.headers_seen.append(dict(self.headers))
        if status in (204, 599):
            self.rows.append((self.headers.get("Idempotency-Key", ""), row))
        if status == 599:
            self.close_connection = True
            return
        for interim, headers in self.before:
            self.send_response_only(interim, "interim")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
        self.send_response(status)
        if self.retry_after:
            self.send_header("Retry-After", self.retry_after.encode().decode("latin-1"))
        words = b"" if status == 204 else self.words.encode()
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def hooked(*statuses: int) -> Iterator[tuple[str, type[Hook]]]:
    """Serve a hook, and return its URL and what it has taken."""
    kind = type("OneHook", (Hook,), {"rows": [], "statuses": [*statuses], "headers_seen": [], "refuses": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook?key=secret", kind
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "FIRST_PAUSE_S", 0.0)


def test_the_suite_for_sinks_passes() -> None:
    with hooked() as (url, kind):
        rows = [SinkRow({"id": n}, key=n % 4) for n in range(20)]
        check_sink(lambda: connectors.webhook(url), lambda: [row for _, row in kind.rows], rows, times=30)


@given(
    orders=st.lists(st.integers(0, 9), max_size=20),
    statuses=st.lists(st.sampled_from([204, 429, 500, 599, 400]), max_size=8),
    at_once=st.integers(1, 4),
)
@settings(deadline=None, max_examples=examples(15, 200))
def test_each_row_is_posted_under_one_id_and_each_key_in_order(
    orders: list[int], statuses: list[int], at_once: int
) -> None:
    environment, wanted = MemoryEnvironment(), [Order(id, cents) for cents, id in enumerate(orders)]
    with hooked(*statuses) as (url, kind):
        for _ in range(len(statuses) + 1):
            bind = {"orders": wanted, "copies": connectors.webhook(url, at_once=at_once)}
            with suppress(SamzaError):  # it was refused
                copying().run(environment, bind=bind)
    by_id = dict(kind.rows)
    assert len(by_id) == len(wanted) and all(by_id)
    assert all(by_id[id] == row for id, row in kind.rows), "an id is of one row"
    assert Counter(row["cents"] for row in by_id.values()) == Counter(range(len(wanted)))
    for key in range(3):
        taken = [row["cents"] for row in dict(kind.rows).values() if row["id"] % 3 == key]
        assert taken == [order.cents for order in wanted if order.id % 3 == key]


def test_a_webhook_that_fails_often_is_tried_for_as_long_as_it_takes_some_rows() -> None:
    with hooked(*[204, 503, 503] * 30) as (url, kind):
        sink = connectors.webhook(url)
        rows = [SinkRow(n, key=1, id=f"{n}") for n in range(30)]
        tried(partial(sink.write, rows), Words("hook", "", ""), lambda pause_s: False)
        sink.close()
    assert [id for id, _ in kind.rows] == [row.id for row in rows]


INTERIM = st.tuples(
    st.sampled_from([100, 102, 103, 104, 199]),
    st.dictionaries(
        st.sampled_from(["Link", "Retry-After", "Content-Length", "Transfer-Encoding", "Connection"]),
        st.sampled_from(["</style.css>; rel=preload", "7", "chunked", "close"]),
        max_size=2,
    ),
)


@given(before=st.lists(INTERIM, max_size=3), statuses=st.lists(st.sampled_from([204, 503, 429, 400]), max_size=6))
@example(before=[(103, {"Link": "</style.css>; rel=preload"})], statuses=[])
@settings(deadline=None, max_examples=examples(25, 500))
def test_answers_in_between_change_nothing(before: list[tuple[int, dict[str, str]]], statuses: list[int]) -> None:
    rows = [SinkRow({"id": n}, key=n % 2, id=f"{n}") for n in range(4)]

    def told(interim: list[tuple[int, dict[str, str]]]) -> tuple[list[str], list[tuple[str, Any]]]:
        words = []
        with hooked(*statuses) as (url, kind):
            kind.before = interim
            sink = connectors.webhook(url, at_once=1)
            for _ in range(len(statuses) + 1):
                try:
                    sink.write(rows)
                except (Unavailable, RowRefused) as error:
                    words.append(str(error).replace(url.partition("?")[0], ""))
            sink.close()
        return words, kind.rows

    assert told(before) == told([])


def test_a_webhook_ends_the_run_where_it_is_refused_and_shows_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with hooked(500, 401) as (url, kind):
        sink = connectors.webhook(url, token="geheim", headers={"X-Shop": "7"})
        with pytest.raises(SamzaError, match=r"/hook answered 401 to row .*The row waits") as caught:
            copying().run(tmp_path, bind={"orders": [Order(1)], "copies": sink})
    told = f"{sink} {caught.value} {caplog.text}"
    assert "secret" not in told and "geheim" not in told
    assert kind.headers_seen[-1]["Authorization"] == "Bearer geheim"
    assert kind.headers_seen[-1]["X-Shop"] == "7"


def refusing(policy: Any, key: Any = None) -> App:
    app = App("refusing")
    orders = app.input("orders", value=Order, key=key)
    orders.send_to(app.output("copies", value=Order, key=int), on_error=policy)
    return app


def letters_in(environment: MemoryEnvironment) -> list[tuple[Order, str]]:
    """Return the dead letters: the row of each, and its error."""
    found: list[tuple[Order, str]] = []
    while "refused" in environment.streams() and (read := environment.read("refused", 0, len(found))) is not None:
        for value, headers in zip(read.batch.values, read.batch.headers or [], strict=True):
            found.append((msgspec.json.decode(value, type=Order), headers["error"].decode()))
    return found


@given(
    orders=st.lists(st.integers(0, 9), max_size=20),
    refuses=st.dictionaries(st.integers(0, 9), st.sampled_from([400, 404, 409, 410, 413, 415, 422, 451]), max_size=5),
    statuses=st.lists(st.sampled_from([204, 429, 503, 599]), max_size=6),
    keys=st.sampled_from([None, 1, 3]),
    at_once=st.integers(1, 4),
    batch_rows=st.integers(1, 30),
)
@settings(deadline=None, max_examples=examples(15, 200))
def test_rows_that_are_refused_for_good_are_dead_letters_and_all_others_are_posted(
    orders: list[int], refuses: dict[int, int], statuses: list[int], keys: int | None, at_once: int, batch_rows: int
) -> None:
    environment, wanted = MemoryEnvironment(), [Order(id, cents) for cents, id in enumerate(orders)]
    with hooked(*statuses) as (url, kind):
        kind.refuses, kind.words = refuses, "no such order"
        hook = replace(connectors.webhook(url, at_once=at_once), batch_rows=batch_rows)
        app = refusing(dead_letter("refused"), None if keys is None else lambda order: order.id % keys)
        app.run(environment, bind={"orders": wanted, "copies": hook})
    letters = letters_in(environment)
    assert Counter(order for order, _ in letters) == Counter(order for order in wanted if order.id in refuses)
    for order, error in letters:
        assert f"/hook answered {refuses[order.id]} to row" in error
        assert "no such order; it is of the output 'copies' at" in error
    posted = dict(kind.rows)
    assert Counter(row["cents"] for row in posted.values()) == Counter(
        order.cents for order in wanted if order.id not in refuses
    )
    # Nothing is posted again but what had no answer.
    assert len(kind.rows) - len(posted) <= statuses.count(599)
    for key in range(keys or 0):
        taken = [row["cents"] for row in posted.values() if row["id"] % (keys or 1) == key]
        assert taken == sorted(taken)


def test_who_asks_for_a_pause_gets_it_whatever_else_is_refused() -> None:
    """Rows that are refused one behind the other, each noted at once, would be a storm for who asks to wait."""
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        kind.refuses = {1: 422}
        return False

    with hooked() as (url, kind):
        kind.refuses, kind.retry_after = {1: 422, 2: 429, 4: 503}, "7"
        sink = connectors.webhook(url, at_once=256)
        rows = [SinkRow({"id": 1}, key="a", id="1"), SinkRow({"id": 2}, key="b", id="2"), SinkRow(None, "a", id="3")]
        with pytest.raises(RowRefused) as told:
            tried(partial(sink.write, rows), Words("hook", "", ""), wait)
        sink.write(rows[1:])
        sink.close()
    assert pauses == [7.0] and (told.value.row, told.value.also) == (0, [])
    # The one that was refused is not posted again, and none of its key before it is told.
    assert [id for id, _ in kind.rows] == ["2", "3"] and len(kind.headers_seen) == 4


def test_a_date_to_come_again_is_heeded_of_who_tells_no_date() -> None:
    later = email.utils.formatdate(time.time() + 40, usegmt=True)
    found = webhook_module._seconds_asked(email.message_from_string(f"Retry-After: {later}\n\n"))
    assert 0 < found <= 40


def test_a_row_that_is_refused_ends_a_run_without_a_policy_and_says_which_would_let_it_pass(tmp_path: Path) -> None:
    with hooked() as (url, kind):
        kind.refuses, kind.words = {2: 422}, "cents: too few"
        orders = [Order(1), Order(2), Order(3)]
        with pytest.raises(SamzaError, match=r"answered 422 to row .*: cents: too few.*on_error=dead_letter") as caught:
            copying().run(tmp_path, bind={"orders": orders, "copies": connectors.webhook(url, at_once=1)})
        assert "secret" not in str(caught.value)
        assert [row["id"] for _, row in kind.rows] == [1]
        kind.refuses = {}
        copying().run(tmp_path, bind={"orders": orders, "copies": connectors.webhook(url, at_once=1)})
    assert sorted(row["id"] for row in dict(kind.rows).values()) == [1, 2, 3]


@pytest.mark.parametrize("status", [301, 401, 403, 405, 407])
def test_whoever_may_not_post_loses_no_row_whatever_the_policy(status: int, tmp_path: Path) -> None:
    app = refusing(dead_letter("refused"))
    with hooked(status) as (url, kind):
        with pytest.raises(SamzaError, match=rf"answered {status} .*The row waits"):
            app.run(tmp_path, bind={"orders": [Order(1)], "copies": connectors.webhook(url)})
        run = app.run(tmp_path, bind={"orders": [Order(1)], "copies": connectors.webhook(url)})
    assert [row["id"] for _, row in kind.rows] == [1] and run.received("refused") == []


@pytest.mark.parametrize(
    ("said", "paused_s"),
    [
        ("7", 7),
        ("900", 60),
        ("", 0),
        ("Wed, 21 Oct 2026 07:28:09 GMT", 9),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0),
        ("Wed, 21 Oct 2026 07:28:09 -0000", 9),
        ("Wed, 21 Oct 9999999 07:28:09 GMT", 0),
        ("-1", 0),
        ("²", 0),
    ],
)
def test_a_webhook_comes_again_when_it_is_told_to(said: str, paused_s: float) -> None:
    pauses: list[float] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return False

    with hooked(429, 503) as (url, kind):
        kind.retry_after = said
        kind.date_time_string = lambda self, timestamp=None: "Wed, 21 Oct 2026 07:28:00 GMT"
        sink = connectors.webhook(url)
        tried(partial(sink.write, [SinkRow(1, id="a")]), Words("hook", "", ""), wait)
        sink.close()
    assert pauses == [paused_s, paused_s] and kind.rows == [("a", 1)]


def test_a_token_in_a_file_may_change(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    with hooked() as (url, kind):
        sink = connectors.webhook(url, token_file=file)
        for token in ("one", "two"):
            file.write_text(token)
            sink.write([SinkRow(1)])
        sink.close()
    assert [seen["Authorization"] for seen in kind.headers_seen] == ["Bearer one", "Bearer two"]


def test_nobody_who_answers_is_waited_for() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as gone:
        port = gone.server_address[1]
    sink = connectors.webhook(f"http://127.0.0.1:{port}/hook")
    assert isinstance(sink, AtLeastOnceSink)
    with pytest.raises((OSError, Unavailable)):
        sink.write([SinkRow(1)])


@pytest.mark.ci
def test_from_one_application_to_another_each_row_takes_effect_once(tmp_path: Path) -> None:
    first = App("first")
    numbers = first.input("numbers", value=Order)
    numbers.send_to(first.output("sent", value=Order))

    async def main() -> list[Order]:
        ready = Ready()
        source = connectors.http_source(":0", on_ready=ready)
        async with copying().running(tmp_path / "second", bind={"orders": source}) as second:
            url = await ready.wait()
            environment = DyingEnvironment()
            orders = [Order(n) for n in range(50)]
            for dies_at in (3, 4, 5, -1):
                environment.dies_at = dies_at
                bind = {"numbers": orders, "sent": connectors.webhook(url, at_once=3)}
                try:
                    await asyncio.to_thread(first.run, environment, bind=bind)
                except SamzaError:
                    continue
            await second.settled()
            return second.received("copies")

    assert Counter(order.id for order in asyncio.run(main())) == Counter(range(50))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: connectors.http_source("8080"), "is no address"),
        (lambda: connectors.http_source(":8080", "orders"), "write what stands behind the host"),
        (lambda: connectors.http_source("0.0.0.0:8080"), r"whoever reaches 0\.0\.0\.0 could write: say a token"),
        (lambda: connectors.http_source(path="/{shop}"), "write what stands behind the host"),
        (lambda: connectors.http_source(path="/orders?shop=1"), "write what stands behind the host"),
        (lambda: connectors.http_source(max_body_bytes=0), "write a whole number"),
        (lambda: connectors.http_source(token="two\nlines"), "a line of printable ASCII"),
        (lambda: connectors.http_source(token=""), "a token that nobody guesses"),
        (lambda: connectors.http_source(token="a", token_file="b"), "say one of the two"),
        (lambda: connectors.http_source(token_file="absent"), "can't be read"),
        (lambda: connectors.webhook("ftp://example.com"), "write the URL"),
        (lambda: connectors.webhook("https://me:x@example.com", token="a"), "not by both"),
        (lambda: connectors.webhook("https://example.com", at_once=0), "up to 256"),
        (lambda: connectors.webhook("https://example.com", timeout_ms=0), "whole ms of at least 1"),
    ],
)
def test_malformed_arguments_are_told(make: Any, error: str) -> None:
    with pytest.raises(SamzaError, match=error):
        make()


TEXTS = st.text(st.characters(max_codepoint=0x2FF, exclude_categories=()), max_size=4)


@given(
    path=TEXTS,
    headers=st.dictionaries(
        st.sampled_from(["X-Shop", "content-type", "idempotency-key", "AUTHORIZATION", "Content-Length"]) | TEXTS,
        TEXTS,
        max_size=2,
    ),
    token=st.none() | TEXTS,
)
@example(path="/ü?q=ж", headers={"content-type": "application/cloudevents+json"}, token="t")
@example(path="/a b", headers={}, token=None)
@example(path=":99999/", headers={}, token=None)
@example(path="", headers={"idempotency-key": "mine"}, token=None)
@example(path="", headers={"Authorization": "Basic x"}, token="t")
@settings(deadline=None, max_examples=examples(40, 1_000))
def test_what_is_said_of_a_request_is_told_at_once_or_sent(
    path: str, headers: dict[str, str], token: str | None
) -> None:
    with hooked() as (url, kind):
        place = url.partition("?")[0]
        try:
            sink = connectors.webhook(place + path, headers=headers, token=token)
        except SamzaError:
            return
        if sink.name.startswith(f"{place.rpartition('/')[0]}/"):  # no other port, and no other host
            sink.write([SinkRow({"id": 1}, id="one")])
            sink.close()
            (seen,) = ([(name.lower(), value) for name, value in found.items()] for found in kind.headers_seen)
            wanted = {"content-type": JSON, "idempotency-key": "one"}
            wanted |= {"authorization": f"Bearer {token}".strip()} if token else {}
            wanted |= {name.lower(): value.strip() for name, value in headers.items()}
            assert {name: value for name, value in seen if name in wanted} == wanted
            assert len({name for name, _ in seen}) == len(seen), "no header is said twice"


def test_a_token_that_is_none_any_more_asks_who_posts_to_come_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SamzaError, match="holds no token"):
        connectors.http_source(token_file=file)
    file.write_text("a-token")

    async def main() -> list[int]:
        ready = Ready()
        source = connectors.http_source(":0", token_file=file, on_ready=ready)
        async with copying().running(MemoryEnvironment(), bind={"orders": source}):
            url, statuses = await ready.wait(), []
            for found in ("", "a\nb", "a-token"):
                file.write_text(found)
                answer = await asyncio.to_thread(posted, url, b'{"id":1}', Authorization="Bearer a-token")
                statuses.append(answer[0])
            return statuses

    assert asyncio.run(main()) == [503, 503, 202]


def test_by_url_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    app = copying()
    with hooked() as (url, kind):
        run = app.run(tmp_path / "data", bind={"orders": [Order(1)], "copies": f"webhook+{url}"})
        assert [row["id"] for _, row in kind.rows] == [1]
    bind = {"orders": f"listen://:0/orders?token_file={tmp_path}/token"}
    run = app.run(tmp_path / "other", bind=bind, until_now=True)
    assert run.received("copies") == []
    with pytest.raises(SamzaError, match=r"listen://:0/orders: tokens: write listen://"):
        app.run(tmp_path / "other", bind={"orders": "listen://:0/orders?tokens=secret"}, until_now=True)


def test_its_absence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SamzaError, match=r"needs aiohttp, which is not installed: pip install 'samza-dsl\[http\]'"):
        copying().run(tmp_path, bind={"orders": connectors.http_source(":0")})


def asked(url: str, headers: Mapping[str, bytes], body: bytes) -> int:
    """Post a body with headers of any bytes, and return the status of the answer."""
    parts = urlsplit(url)
    said = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers.items())
    with closing(socket.create_connection((str(parts.hostname), int(parts.port or 0)), 60)) as connection:
        start = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % parts.path.encode()
        connection.sendall(start + said + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return int(connection.makefile("rb").readline().split()[1])


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(usual)
        | st.binary(max_size=9).map(lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127))
        for name, usual in {
            "Idempotency-Key": [b"\xfc", "ü".encode(), b"k"],
            "Authorization": [b"Bearer \xfc", b"Bearer a-token", b"Basic x"],
            "Content-Type": [JSON.encode(), LINES.encode(), b"application/json; charset=\xfc"],
            "Content-Encoding": [b"gzip", b"deflate", b"br"],
            "Origin": [b"null"],
        }.items()
    },
)


def test_no_request_of_one_keeps_another_from_taking_effect(caplog: pytest.LogCaptureFixture) -> None:
    # One server for all of them: whatever was sent before, a right one is taken.
    ids = count(1)

    async def main() -> tuple[int, int]:
        ready = Ready()
        source = connectors.http_source(":0", "/orders", token="a-token", on_ready=ready)
        async with copying().running(MemoryEnvironment(), bind={"orders": source}) as run:
            url = await ready.wait()

            @given(headers=HEADERS, body=st.sampled_from([b'{"id":0}', b"", b"\n\n"]) | st.binary(max_size=20))
            @example(headers={"Idempotency-Key": b"\xfc"}, body=b'{"id":0}')
            @example(headers={"Content-Encoding": b"deflate", "Authorization": b""}, body=b"\xff\xff")
            @settings(deadline=None, max_examples=examples(60, 1_000))
            def law(headers: dict[str, bytes], body: bytes) -> None:
                said = {"Content-Type": JSON.encode(), "Authorization": b"Bearer a-token", **headers}
                status = asked(url, said, body)
                assert status == 202 or 400 <= status < 500, "it is answered, as no fault of the server's"
                if status == 202 and headers.get("Idempotency-Key"):
                    assert asked(url, said, body) == 202
                assert posted(url, b'{"id":%d}' % next(ids), Authorization="Bearer a-token")[0] == 202

            await asyncio.to_thread(law)
            await run.settled()
            return len({order.id for order in run.received("copies") if order.id}), next(ids) - 1

    found, wanted = asyncio.run(main())
    assert found == wanted
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
