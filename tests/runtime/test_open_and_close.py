"""Users' objects are opened and closed in the run's event loop, whichever way it runs, and may await there."""

import asyncio

import pytest

from runtime.model.errors import OperatorFailure
from samza_dsl import App, aggregate, count, produce, testing, tumbling


@pytest.fixture
def app():
    return App("living")


class Client:
    """An object with an async client, which belongs to the loop that it was made in; its copies share a diary."""

    diary: list[str]

    def open(self, context):
        self.loop = asyncio.get_running_loop()

    def close(self):
        assert asyncio.get_running_loop() is self.loop
        self.diary.append("closed")

    async def __call__(self, value):
        assert asyncio.get_running_loop() is self.loop
        return [value]


class AsyncClient(Client):
    """A client that connects and disconnects, each within one task as clients' scopes ask for."""

    fails = ""

    async def open(self, context):
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        await self.turn("open")

    async def close(self):
        assert asyncio.current_task() is self.task
        await self.turn("close")

    async def turn(self, what):
        await asyncio.sleep(0)
        if self.fails == what:
            raise RuntimeError(f"fails to {what}")
        self.diary.append(f"{what} done")


@pytest.fixture(autouse=True)
def diary():
    Client.diary = []
    return Client.diary


def reading(app, path, *functions):
    """Have an app call `functions` one after the other over a stream of two numbers."""
    produce("numbers", [1, 2], data=path, value=int, end=True)
    stream = app.input("numbers", value=int)
    for function in functions:
        stream = stream.async_flat_map(function)
    stream.send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_client_is_made_in_the_loop_that_uses_it(app, tmp_path, client):
    assert reading(app, tmp_path, client()).run(tmp_path).received("out") == [1, 2]


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_so_it_is_where_a_loop_runs_already(app, tmp_path, client):
    reading(app, tmp_path, client())
    assert asyncio.run(app.run_async(tmp_path)).received("out") == [1, 2]


def test_async_open_and_close_are_awaited_once(app, diary):
    app.input("numbers", value=int).async_flat_map(AsyncClient()).send_to(app.output("out", value=int))
    assert testing.run(app, {"numbers": [1, 2]})["out"] == [1, 2]
    assert diary == ["open done", "close done"]


def test_an_async_sink_may_have_both(app, diary):
    app.input("numbers", value=int).sink(AsyncClient())
    testing.run(app, {"numbers": [1]})
    assert diary == ["open done", "close done"]


def test_a_plain_function_may_have_both(app, diary):
    class Plain(AsyncClient):
        def __call__(self, value):
            return value

    app.input("numbers", value=int).map(Plain()).send_to(app.output("out", value=int))
    assert testing.run(app, {"numbers": [1]})["out"] == [1]
    assert diary == ["open done", "close done"]


def test_what_gathers_an_aggregate_may_have_both(app, diary):
    class Gathering(AsyncClient):
        def __call__(self, *, n):
            return n

    numbers = app.input("numbers", value=int, key=lambda n: "all", timestamp=lambda n: 0)
    panes = numbers.window(tumbling(hours=1), aggregate(Gathering(), n=count()))
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    assert testing.run(app, {"numbers": [1]})["out"] == [1]
    assert diary == ["open done", "close done"]


def test_an_object_is_closed_when_its_function_fails(app, tmp_path, diary):
    class Bad(AsyncClient):
        async def __call__(self, value):
            raise ValueError("bad")

    with pytest.raises(OperatorFailure, match="bad"):
        reading(app, tmp_path, Bad()).run(tmp_path)
    assert diary == ["open done", "close done"]


def test_what_was_opened_is_closed_when_another_fails_to_open(app, tmp_path, diary):
    bad = AsyncClient()
    bad.fails = "open"
    reading(app, tmp_path, AsyncClient(), bad)
    with pytest.raises(OperatorFailure, match="RuntimeError: fails to open, in open"):
        app.run(tmp_path)
    assert diary == ["open done", "close done"]


def test_a_block_is_not_entered_when_an_object_fails_to_open(app, tmp_path, diary):
    bad = AsyncClient()
    bad.fails = "open"
    reading(app, tmp_path, AsyncClient(), bad)

    async def enter():
        async with app.running(tmp_path):
            diary.append("entered")

    with pytest.raises(OperatorFailure, match="RuntimeError: fails to open, in open"):
        asyncio.run(enter())
    assert diary == ["open done", "close done"]


def test_a_block_is_entered_when_all_are_open(app, tmp_path, diary):
    reading(app, tmp_path, AsyncClient())

    async def enter():
        async with app.running(tmp_path):
            return [*diary]

    assert asyncio.run(enter()) == ["open done"]
    assert diary == ["open done", "close done"]


def test_all_are_closed_when_one_fails_to_close(app, tmp_path, diary):
    bad = AsyncClient()
    bad.fails = "close"
    reading(app, tmp_path, AsyncClient(), bad)
    with pytest.raises(
        OperatorFailure, match=r"async_flat_map .* at .*RuntimeError: fails to close, in close\(\) of its AsyncC"
    ):
        app.run(tmp_path)
    assert diary == ["open done", "open done", "close done"]


@pytest.mark.parametrize("hangs", ["open", "close"])
def test_a_cancelled_run_closes_the_others_too(app, tmp_path, diary, hangs):
    reached = asyncio.Event()

    class Hanging(AsyncClient):
        def __deepcopy__(self, memo):
            return self

        async def turn(self, what):
            if what == hangs:
                reached.set()
                await asyncio.Event().wait()

    reading(app, tmp_path, AsyncClient(), Hanging())

    async def cancelled():
        running = asyncio.create_task(app.run_async(tmp_path))
        await reached.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert diary == ["open done", "close done"]
