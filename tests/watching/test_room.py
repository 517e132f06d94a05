"""The control room: what is slow comes first, in words, and whatever names have in them is shown as text."""

import asyncio
import base64
import re
import urllib.error
import urllib.request
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.flow import edges
from planner.picture.drawing import to_svg
from runtime.model.errors import SamzaError
from runtime.model.metrics import (
    ContainerMetrics,
    Durations,
    InputMetrics,
    Metrics,
    OperatorMetrics,
    RunMetrics,
    TaskMetrics,
)
from runtime.watching.server import PageServer
from runtime.watching.watcher import served
from samza_dsl import App
from samza_dsl.view.room import ControlRoom, Interval, edge_rates, shown, slow
from tests.scale import examples


async def look_up(n):
    return [n]


def planned(name="app", out="out"):
    app = App(name)
    looked = app.input("numbers", value=int).filter(bool, op_id="some").async_flat_map(look_up, op_id="look-up")
    looked.map(abs, op_id="abs").send_to(app.output(out, value=int), op_id="write")
    return app.plan()


PLAN = planned()


def calls(*times):
    counted = Durations("call", "look-up")
    for ms in times:
        counted.add(ms)
    return counted.metrics()


def metrics(elapsed_ms, process_ms=0.0, lag=0, received=0, times=(), window_ms=0.0):
    return RunMetrics(
        elapsed_ms=elapsed_ms,
        operators=tuple(
            OperatorMetrics(operator=one.id, task=0, received=received, emitted=received) for one in PLAN.operators
        ),
        tasks=(TaskMetrics(task=0, process_ms=process_ms, window_ms=window_ms),),
        inputs=(InputMetrics(stream="numbers", partition=0, task=0, offset=0, end=lag, lag=lag, watermark=0),),
        containers=(ContainerMetrics(container="0", histograms=(calls(*times),)),),
    )


def test_what_takes_most_of_the_time_is_named_first():
    busy = slow(PLAN, Interval(metrics(1_000, 50, window_ms=7), metrics(11_000, 9_050, window_ms=1_007)))
    assert busy == [
        "functions and operators on records: 90% of the time, in the busiest task",
        "windows and timers that fire: 10% of the time, in the busiest task",
    ]


def test_an_operator_that_waits_for_others_is_named_with_its_line_and_its_times():
    span = Interval(metrics(0, times=[1.0] * 50), metrics(10_000, 500, times=[1.0] * 50 + [100.0] * 900))
    first, second = slow(PLAN, span)
    assert re.match(r"look-up \(.*test_room.py:\d+\) waits for others: half of its calls take 96 ms", first)
    assert "about 9.0 are under way at a time" in first and second.startswith("functions")


def test_a_stream_that_falls_behind_comes_before_all():
    found = slow(PLAN, Interval(metrics(0, lag=10), metrics(10_000, 9_000, lag=500)))
    assert found[0] == "numbers falls behind: 500 records wait" and len(found) == 2
    assert slow(PLAN, Interval(metrics(0, lag=500), metrics(10_000, lag=10))) == []


def test_every_line_of_the_picture_has_its_rate():
    found = edge_rates(PLAN, Interval(metrics(0), metrics(2_000, received=200)))
    assert found.keys() == {*edges(PLAN)} and set(found.values()) == {"100/s"}
    svg = PLAN.to_svg()
    with_rates = to_svg(PLAN, found)
    assert svg.count("100/s") == 0 and with_rates.count("100/s") == len(found)


class Stand:
    failed = stopping = False

    def __init__(self, plan, *found):
        self.plan, self.found = plan, [*found]

    def metrics(self, stores=True):
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]


def page_of(plan, found):
    async def look():
        room = ControlRoom()
        watching = asyncio.create_task(room.watch(Stand(plan, found)))
        await asyncio.sleep(0)
        text = room.html()
        watching.cancel()
        await asyncio.wait([watching])
        return text, room.html()

    return asyncio.run(look())


class Shown(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words = [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attributes)
        assert not any(name in ("src", "href") for name, _ in attributes)

    def handle_data(self, data):
        self.words.append(data)


names = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["<script>alert(1)</script>", '"onload="x', "&amp;", "</td>"]
)


@settings(max_examples=examples(40, 400))
@given(names, names, names)
def test_names_are_text_and_nothing_is_loaded_or_run(stream, warning, container):
    found = RunMetrics(
        elapsed_ms=5,
        inputs=(InputMetrics(stream=stream, partition=0, task=0, offset=0, end=3, lag=3, watermark=0),),
        containers=(ContainerMetrics(container=container),),
        warnings=(warning,),
    )
    page = Shown(page_of(PLAN, found)[0])
    assert not page.tags & {"script", "iframe", "img", "object", "link", "form"}
    assert all(said.strip() in "".join(page.words) for said in (stream, warning, container) if said.isprintable())


def test_a_page_says_in_which_state_the_run_is():
    assert "The run begins" in ControlRoom().html()
    running, ended = page_of(PLAN, metrics(1_000))
    assert "app runs" in running and "app has ended" in ended


@pytest.fixture
def port(monkeypatch):
    ports, start = [], PageServer.start

    def started(server):
        start(server)
        ports.append(server.port)

    monkeypatch.setattr(PageServer, "start", started)
    return ports


def test_a_browser_is_shown_the_page_for_the_token_as_a_password(port, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")
    said = Metrics(address=":0", token_file=tmp_path / "token", ui=True)
    with served(said, "app", pages={"/": shown(ControlRoom())}):
        place = f"http://127.0.0.1:{port[0]}/"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(place)
        refused.value.close()
        assert refused.value.code == 401 and "Basic" in refused.value.headers["WWW-Authenticate"]
        for password, status in (("0123456789abcdef", 200), ("0123456789abcdeF", 401)):
            basic = base64.b64encode(f"me:{password}".encode()).decode()
            asked = urllib.request.Request(place, headers={"Authorization": f"Basic {basic}"})
            try:
                with urllib.request.urlopen(asked) as answer:
                    found = answer.status, answer.headers["Content-Type"], answer.headers["Content-Security-Policy"]
            except urllib.error.HTTPError as error:
                error.close()
                found = error.code, None, None
            assert found[0] == status
            if status == 200:
                assert (
                    found[1].startswith("text/html") and "script" not in found[2] and "default-src 'none'" in found[2]
                )


def test_a_page_for_others_than_this_machine_needs_a_token():
    with pytest.raises(SamzaError, match="--metrics-token-file"), served(Metrics(address="0.0.0.0:0", ui=True), "app"):
        pass
