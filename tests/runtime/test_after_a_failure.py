"""A run that has failed says by what, whatever it is asked, and still has its last numbers."""

import asyncio

import pytest

from runtime.model.errors import OperatorFailure, SamzaError
from samza_dsl import App, Options, produce


@pytest.fixture
def app():
    app = App("failing", Options(batch_records=1))
    app.input("numbers", value=int).map(lambda n: 12 // n, op_id="dividing").send_to(app.output("out", value=int))
    return app


async def failed(app, path, ask):
    """Have a run fail in its block, and ask it something there."""
    async with app.running(path) as run:
        with pytest.raises(OperatorFailure, match="dividing"):
            await run.ended()
        await ask(run)


async def received(run):
    return run.received("out")


async def send(run):
    await run.send("numbers", 1)


async def settled(run):
    await run.settled()


@pytest.mark.parametrize("ask", [received, send, settled])
def test_it_says_what_has_ended_it(app, tmp_path, ask):
    produce("numbers", [1, 0], data=tmp_path, value=int)
    with pytest.raises(OperatorFailure, match=r"dividing.*ZeroDivisionError"):
        asyncio.run(failed(app, tmp_path, ask))


def test_whoever_waits_for_it_is_told(app, tmp_path):
    async def wait():
        async with app.running(tmp_path) as run:
            await run.send("numbers", 0)
            with pytest.raises(OperatorFailure, match="dividing"):
                await run.settled()
            run.received("out")

    with pytest.raises(OperatorFailure, match="dividing"):
        asyncio.run(wait())


def test_it_has_its_last_numbers(app, tmp_path):
    asked = []

    async def ask(run):
        asked.append(run.metrics())

    produce("numbers", [1, 2, 0], data=tmp_path, value=int)
    with pytest.raises(OperatorFailure):
        asyncio.run(failed(app, tmp_path, ask))
    assert asked[0].emitted("dividing") == 2


def test_its_closing_line_has_its_last_numbers(app, tmp_path, capsys):
    produce("numbers", [1, 2, 0], data=tmp_path, value=int)
    with pytest.raises(OperatorFailure):
        app.run(tmp_path, live=True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("failing: failed after")
    assert "2 written" in last


def test_nothing_is_sent_to_a_run_that_has_ended(app, tmp_path):
    produce("numbers", [1], data=tmp_path, value=int, end=True)
    run = app.run(tmp_path)
    with pytest.raises(SamzaError, match=r"run.send\('numbers'\): the run has ended; .* samza_dsl.produce"):
        asyncio.run(run.send("numbers", 1))
