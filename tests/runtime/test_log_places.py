"""A line of the log says the task and the operator from wherever a user's function writes it."""

import asyncio
import inspect
import json
import logging

import pytest

from runtime.functions.user_lines import place_now
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from samza_dsl import App, Json, Options
from samza_dsl.connectors import ConnectedSource, Offsets, SourceRecord
from samza_dsl.settings import logs
from tests.conformance.pipelines import PIPELINES, app_of, filled


class Noting:
    """What `app.wrap` puts around each function: it notes the place that a line of the log would have had."""

    def __init__(self):
        self.called, self.wrong = set(), set()

    def note(self, operator):
        task, found = place_now()
        self.called.add(operator)
        if found != operator or task is None:
            self.wrong.add((operator, found, task))

    def __call__(self, function, operator):
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            async def asked(*arguments):
                self.note(operator)
                found = await function(*arguments)
                self.note(operator)
                return found

            return asked

        def called(*arguments):
            self.note(operator)
            return function(*arguments)

        return called


@pytest.mark.parametrize("name", PIPELINES)
def test_every_function_of_every_operator_knows_its_place(name):
    app, noting = app_of(name), Noting()
    app.wrap(noting)
    run_blocking(app.pipeline(), filled(), RunSettings(until_now=True))
    assert not noting.wrong


class Spoken:
    """A serde of a user's that notes the place of each call."""

    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def encode(self, value):
        self.noted.setdefault((self.name, "encode"), set()).add(place_now()[1])
        return str(value).encode()

    def decode(self, data):
        self.noted.setdefault((self.name, "decode"), set()).add(place_now()[1])
        return int(data)


class Opened:
    """A function that is opened and closed for each task."""

    def __init__(self, noted):
        self.noted = noted

    def __deepcopy__(self, memo):
        return self

    def open(self, context):
        self.noted["open", ""] = {place_now()}

    def __call__(self, number):
        return number

    def close(self):
        self.noted["close", ""] = {place_now()}


def test_serdes_and_objects_that_are_opened_know_their_place(tmp_path):
    noted = {}
    app = App("spoken", Options(commit_interval_ms=1))
    read = app.input("numbers", value=Spoken("in", noted)).map(Opened(noted), op_id="opened")
    by = read.partition_by(
        lambda n: n, partitions=2, key_type=Spoken("key", noted), value=Spoken("between", noted), op_id="by"
    )
    kept = by.scan(lambda total, n: total + n, init=int, state=Spoken("state", noted), op_id="kept")
    kept.send_to(app.output("out", value=Spoken("out", noted)))

    async def run():
        async with app.running(tmp_path) as running:
            for n in range(20):
                await running.send("numbers", n)
            await running.settled()

    asyncio.run(run())
    found = {what: places - {None} if what == ("in", "encode") else places for what, places in noted.items()}
    assert {*found["open", ""], *found["close", ""]} <= {(0, "opened"), (1, "opened")}
    assert found["in", "decode"] == {"numbers"} and found["out", "encode"] == {"send_to-out"}
    assert found["state", "encode"] == {"kept"}
    assert all(places and None not in places for what, places in found.items() if what != ("in", "encode")), found


def test_the_functions_of_a_polled_source_are_of_their_input(tmp_path):
    noted = {}

    def note(what, found):
        noted.setdefault(what, set()).add(place_now()[1])
        return found

    source = ConnectedSource(
        "counted",
        partitions=lambda: note("partitions", ("all",)),
        offsets=lambda name: note("offsets", Offsets(0, 3, ended=True)),
        read=lambda name, offset, most: note("read", [SourceRecord(at, at) for at in range(offset, 3)]),
        close=lambda: note("close", None),
    )
    app = App("polled")
    app.input("numbers", value=Json(int)).send_to(app.output("out"))
    app.run(tmp_path, bind={"numbers": source})
    assert noted == {what: {"numbers"} for what in ("partitions", "offsets", "read", "close")}


def test_lines_of_runs_in_a_programs_own_loop_have_the_container_as_long_as_each_lasts(tmp_path, capsys):
    """Two runs that begin and end in another order each have it, and afterwards nobody."""
    log = logging.getLogger("mine")

    def seen(number):
        log.warning("seen %s", number)
        return number

    def made(name):
        app = App(name)
        app.input(f"{name}-in", value=int).map(seen, op_id="see").send_to(app.output(f"{name}-out", value=int))
        return app.running(tmp_path / name)

    async def go():
        one, two = made("one"), made("two")
        first = await one.__aenter__()
        second = await two.__aenter__()
        await first.send("one-in", 1)
        await first.settled()
        await one.__aexit__(None, None, None)
        await second.send("two-in", 2)
        await second.settled()
        await two.__aexit__(None, None, None)
        log.warning("over")

    logs.configure("json", "warning", {})
    try:
        asyncio.run(go())
    finally:
        logs.unconfigure()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found = {line["message"]: line.get("container") for line in lines if line["logger"] == "mine"}
    assert found == {"seen 1": "0", "seen 2": "0", "over": None}
