"""Messages of a websocket: each takes effect once where the server goes on behind a token, through whatever is lost."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.systems.http import websocket as module
from samza_dsl import App, SamzaError, connectors, dead_letter
from tests.connectors.test_pushed_sources import DyingEnvironment
from tests.real_time import until
from tests.scale import examples


class Trade(msgspec.Struct, frozen=True):
    id: int


def copying(**how: Any) -> App:
    app = App("copying")
    app.input("trades", value=Trade, **how).send_to(app.output("copies", value=Trade))
    return app


class Ticker:
    """A server that sends messages from behind a token on, and hangs up behind some, as it is told."""

    def __init__(self, messages: list[str | bytes], hangs_up: list[int], status: int = 101) -> None:
        self.messages, self.hangs_up, self.status = messages, hangs_up, status
        self.asked: list[tuple[str, str, list[str]]] = []
        self.url = ""
        self._started = threading.Event()
        self._end: Any = None

    async def _talk(self, request: web.Request) -> web.StreamResponse:
        if self.status != 101:
            return web.Response(status=self.status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        words: list[str] = []
        if "words" in request.query:
            words.append(await socket.receive_str())
        after = int(request.query.get("after") or -1)
        self.asked.append((request.query.get("after", ""), request.headers.get("Authorization", ""), words))
        left = self.hangs_up.pop(0) if self.hangs_up else len(self.messages)
        for message in self.messages[after + 1 :][:left]:
            await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))
        if left >= len(self.messages):
            async for _ in socket:
                pass
        elif left % 2 and request.transport is not None:
            request.transport.abort()
        else:
            await socket.close(code=1012, message=b"restarting")
        return socket

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        application = web.Application()
        application.router.add_get("/ticks", self._talk)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/ticks"
        loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(self._ended.set)
        self._started.set()
        await self._ended.wait()
        await runner.cleanup()


@contextmanager
def ticking(messages: list[str | bytes], hangs_up: list[int], status: int = 101) -> Iterator[Ticker]:
    ticker = Ticker(messages, hangs_up, status)
    thread = threading.Thread(target=ticker.run)
    thread.start()
    assert ticker._started.wait(60)
    try:
        yield ticker
    finally:
        ticker._end()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)


def ticks(number: int) -> list[str | bytes]:
    return [text if n % 2 else text.encode() for n in range(number) for text in (json.dumps({"id": n}),)]


@given(
    number=st.integers(1, 40),
    hangs_up=st.lists(st.integers(0, 12), max_size=5),
    deaths=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=2),
)
@settings(deadline=None, max_examples=examples(8, 200))
def test_each_message_takes_effect_once(number: int, hangs_up: list[int], deaths: list[tuple[int, bool]]) -> None:
    environment = DyingEnvironment()

    async def main(url: str) -> list[int]:
        source = connectors.websocket(f"{url}?after={{token}}", resume=lambda trade: str(trade.id))
        async with copying().running(environment, bind={"trades": source}) as run:
            await until(lambda: run.over or len(run.received("copies")) >= number)
            return [trade.id for trade in run.received("copies")]

    with ticking(ticks(number), hangs_up) as ticker:
        for environment.dies_at, environment.keeps in [*deaths, (-1, False)]:
            try:
                found = asyncio.run(main(ticker.url))
            except SamzaError:
                continue
    assert found == [*range(number)]


def test_it_says_hello_who_it_is_and_how_far_it_came(tmp_path: Path) -> None:
    async def main(url: str, number: int) -> None:
        source = connectors.websocket(
            f"{url}?after={{token}}&words=1",
            resume=lambda trade: str(trade.id),
            hello=lambda token: [json.dumps({"subscribe": token})],
            token="geheim",
        )
        assert "geheim" not in repr(source)
        async with copying().running(tmp_path, bind={"trades": source}) as run:
            await until(lambda: len(run.received("copies")) == number)

    with ticking(ticks(3), []) as ticker:
        asyncio.run(main(ticker.url, 3))
        ticker.messages += [b'{"id":3}']
        asyncio.run(main(ticker.url, 4))
    assert ticker.asked == [
        ("", "Bearer geheim", ['{"subscribe": null}']),
        ("2", "Bearer geheim", ['{"subscribe": "2"}']),
    ]


def test_a_message_that_is_none_is_for_the_policy_of_the_input(tmp_path: Path) -> None:
    async def main(url: str) -> int:
        source = connectors.websocket(f"{url}?after={{token}}", resume=lambda trade: str(trade.id))
        async with copying(on_error=dead_letter("bad")).running(tmp_path, bind={"trades": source}) as run:
            await until(lambda: len(run.received("copies")) == 2)
            return len(run.received("bad"))

    with ticking([b'{"id":1}', "no json", b'{"id":2}'], []) as ticker:
        assert asyncio.run(main(ticker.url)) == 1


def test_what_ends_a_connection_is_told_before_there_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(url: str) -> None:
        source = connectors.websocket(f"{url}?after={{token}}", resume=lambda trade: str(trade.id))
        async with copying().running(tmp_path, bind={"trades": source}) as run:
            await until(lambda: len(run.received("copies")) == 3)

    with ticking(ticks(3), [0, 1]) as ticker:
        asyncio.run(main(ticker.url))
    told = [message for message in caplog.messages if "it is connected to anew" in message]
    assert ["has closed the connection, 1012 restarting" in one for one in told] == [True, False]
    assert "is lost" in told[1]


@given(st.lists(st.integers(0, 40), max_size=30))
@settings(deadline=None, max_examples=examples(20, 500))
def test_what_waits_to_be_appended_is_bounded_by_its_bytes(sizes: list[int]) -> None:
    left, taken, held = [bytes(size) for size in sizes], list[bytes | None](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_WAITING_BYTES", 100)
        waiting = module._Waiting(9)
        while left or waiting.qsize():
            is_full = waiting.full()
            assert is_full == (waiting.qsize() == 9 or held >= 100)
            if left and not is_full:
                waiting.put_nowait(left[0])
                held += len(left.pop(0))
            else:
                taken.append(waiting.get_nowait())
                held -= len(taken[-1] or b"")
    assert taken == [bytes(size) for size in sizes]


def test_a_message_that_is_too_large_is_told(tmp_path: Path) -> None:
    with ticking(["x" * 200], []) as ticker:
        source = connectors.websocket(ticker.url, max_message_bytes=100)
        with pytest.raises(SamzaError, match="a message of more than 100 bytes: say max_message_bytes="):
            copying().run(tmp_path, bind={"trades": source})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 426])
def test_a_server_that_refuses_ends_the_run(status: int, tmp_path: Path) -> None:
    with ticking([], [], status) as ticker, pytest.raises(SamzaError, match=f"/ticks is refused: {status}"):
        copying().run(tmp_path, bind={"trades": ticker.url})


def test_what_resume_raises_is_told_with_its_message(tmp_path: Path) -> None:
    with ticking(ticks(1), []) as ticker:
        source = connectors.websocket(f"{ticker.url}?after={{token}}", resume=lambda trade: trade.token)
        with pytest.raises(SamzaError, match=r"resume= has failed with AttributeError.* on Trade\(id=0\)"):
            copying().run(tmp_path, bind={"trades": source})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"resume": lambda trade: trade.id}, r"resume= has returned 0 for Trade\(id=0\): return text"),
        ({"hello": lambda token: "subscribe secret"}, "hello= has returned a str: return a list"),
        ({"hello": lambda token: [{"key": "secret"}]}, "hello= has returned a list of dict: return a list"),
        ({"hello": lambda token: token.upper()}, "hello= has failed with AttributeError.* on the token None"),
    ],
)
def test_what_is_returned_of_another_type_is_told(said: dict[str, Any], told: str, tmp_path: Path) -> None:
    with ticking(ticks(1), []) as ticker:
        source = connectors.websocket(f"{ticker.url}?after={{token}}", **said)
        with pytest.raises(SamzaError, match=told) as caught:
            copying().run(tmp_path, bind={"trades": source})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        {"url": "http://example.com"},
        {"url": "ws://x:99999"},
        {"url": "ws://[x"},
        {"url": "ws://x/a b"},
        {"url": "ws://x", "headers": {"X-Shop": "ж"}},
        {"url": "ws://x", "headers": {"a b": "c"}},
        {"url": "ws://x", "max_message_bytes": 0},
        {"url": "ws://x", "resume": lambda trade: trade.id},
    ],
)
def test_malformed_arguments_are_told(said: dict[str, Any]) -> None:
    with pytest.raises(SamzaError, match=r"write|printable"):
        connectors.websocket(**said)
