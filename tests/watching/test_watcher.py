"""What is told of a run over HTTP: its numbers, whether its loop turns, and whether it is ready."""

import asyncio
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from planner.model.plan import Plan
from runtime.model.errors import SamzaError
from runtime.model.metrics import ContainerMetrics, InputMetrics, Metrics, RunMetrics
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from runtime.watching import watcher
from runtime.watching.server import Answer, Page, PageServer, Request
from runtime.watching.watcher import Watcher, served
from samza_dsl import App


class Stand:
    """A run as far as a watcher looks at it."""

    failed = stopping = False

    def __init__(self, metrics):
        self.plan, self._metrics = Plan(app="app"), metrics

    def metrics(self, stores=True):
        return self._metrics


def answers(metrics, *paths, ready_lag=None, **state):
    """Return the status and the text of pages while a run has these numbers."""

    async def look():
        watched, run = Watcher(ready_lag), Stand(metrics)
        vars(run).update(state)
        watching = asyncio.create_task(watched.watch(run))
        await asyncio.sleep(0)
        found = [await watched.pages[path].answer(Request()) for path in paths]
        watching.cancel()
        await asyncio.wait([watching])
        return [(one.status, one.text) for one in found]

    return asyncio.run(look())


def reading(lag=0, owned=True):
    return InputMetrics(stream="s", partition=0, task=0, offset=0, end=lag, lag=lag, watermark=0, owned=owned)


def test_a_run_that_has_its_tasks_and_little_to_read_is_ready():
    found = answers(RunMetrics(inputs=(reading(5),)), "/livez", "/readyz", ready_lag=5)
    assert found == [(200, "alive\n"), (200, "ready\n")]


@pytest.mark.parametrize(
    ("metrics", "state", "reason"),
    [
        (RunMetrics(inputs=(reading(6),)), {}, "6 records are not read yet, and 5 may be\n"),
        (RunMetrics(inputs=(reading(owned=False),)), {}, "no container has 1 of the tasks\n"),
        (
            RunMetrics(containers=(ContainerMetrics(container="1", settled=False),)),
            {},
            "container 1 has not all tasks that it shall have, with their state\n",
        ),
        (RunMetrics(), {"stopping": True}, "the run is stopping\n"),
        (RunMetrics(), {"failed": True}, "the run has failed\n"),
    ],
)
def test_a_run_that_is_not_ready_says_why(metrics, state, reason):
    live, ready = answers(metrics, "/livez", "/readyz", ready_lag=5, **state)
    assert live[0] == 200 and ready == (503, reason)


def test_a_container_that_says_nothing_for_long_is_not_alive():
    silent = ContainerMetrics(container="2", silent_ms=watcher.STUCK_MS + 1)
    ((status, text),) = answers(RunMetrics(containers=(silent,)), "/livez")
    assert (status, text) == (503, "container 2 has said nothing for 30 s\n")


def test_before_a_run_and_after_it_one_is_alive_and_not_ready():
    watched = Watcher()

    async def look():
        return [await watched.pages[path].answer(Request()) for path in ("/livez", "/readyz", "/metrics")]

    live, ready, metrics = asyncio.run(look())
    assert (live.status, ready.status, metrics.status) == (200, 503, 200) and "has not begun" in ready.text

    async def end():
        watching = asyncio.create_task(watched.watch(Stand(RunMetrics(deaths=7))))
        await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(end())
    live, ready, metrics = asyncio.run(look())
    assert (live.status, ready.text) == (200, "the run has ended\n")
    assert 'samza_container_deaths_total{app="app"} 7.0' in metrics.text


def test_an_event_loop_that_does_not_turn_is_told(monkeypatch):
    at = [0.0]
    monkeypatch.setattr(watcher, "monotonic_ms", lambda: at[0])
    monkeypatch.setattr(watcher, "ANSWER_S", 0.01)
    turning, may_end = threading.Event(), threading.Event()
    watched = Watcher()

    async def stuck():
        watching = asyncio.create_task(watched.watch(Stand(RunMetrics())))
        await asyncio.sleep(0)
        turning.set()
        may_end.wait()
        watching.cancel()
        await asyncio.wait([watching])

    thread = threading.Thread(target=asyncio.run, args=[stuck()])
    thread.start()
    turning.wait()

    async def look():
        return [(await watched.pages[path].answer(Request())).status for path in ("/livez", "/readyz", "/metrics")]

    assert asyncio.run(look()) == [200, 503, 503], "for a while a step may take long"
    with monkeypatch.context() as patched:
        patched.setattr(watcher, "ANSWER_S", 60.0)
        live = asyncio.run(watched.pages["/livez"].answer(Request()))
    assert live.status == 200 and watcher.ALIVE_S < 1, "a probe waits a second, and not as long as a scrape"
    at[0] = watcher.STUCK_MS + 1
    assert asyncio.run(look()) == [503, 503, 503]
    may_end.set()
    thread.join()


def test_a_run_whose_first_record_blocks_it_is_not_taken_for_one_that_has_not_begun(monkeypatch, tmp_path):
    blocked, may_end, seen = threading.Event(), threading.Event(), []
    app = App("blocked")

    def wait(number):
        blocked.set()
        may_end.wait()
        return number

    app.input("numbers", value=int).map(wait).send_to(app.output("out", value=int))
    watched = Watcher()

    def look():
        blocked.wait()
        at = watcher.monotonic_ms() + watcher.STUCK_MS
        monkeypatch.setattr(watcher, "monotonic_ms", lambda: at)
        seen.append(asyncio.run(watched.pages["/livez"].answer(Request())))
        may_end.set()

    thread = threading.Thread(target=look)
    thread.start()
    app.run(tmp_path, bind={"numbers": [1]}, watch=watched.watch)
    thread.join()
    assert seen[0].status == 503 and "the event loop has not turned" in seen[0].text


@contextmanager
def opened(monkeypatch, said):
    """Serve at a free port, and yield it with what watches."""
    ports, start = [], PageServer.start

    def started(server):
        start(server)
        ports.append(server.port)

    monkeypatch.setattr(PageServer, "start", started)
    with served(said, "app") as found:
        yield ports[0], found.watch


def test_a_run_is_watched_while_it_runs_and_when_it_has_ended(monkeypatch):
    app = App("doubling")
    app.input("numbers", value=int).map(lambda n: 2 * n, op_id="twice").send_to(app.output("doubles", value=int))
    with opened(monkeypatch, Metrics(address=":0")) as (port, watch):
        settings = RunSettings(bind={"numbers": ListSource([1, 2, 3])})
        run = Run(app.pipeline(), MemoryEnvironment(), settings)

        async def drive():
            watching = asyncio.create_task(watch(run))
            await run.drive()
            watching.cancel()
            await asyncio.wait([watching])

        asyncio.run(drive())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            kind, text = answer.headers["Content-Type"], answer.read().decode()
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    found = {
        sample.labels["operator"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "samza_operator_received_total"
    }
    assert found == {"numbers": 3, "twice": 3, "send_to-doubles": 3}


def test_with_a_token_metrics_are_for_who_has_it(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with opened(monkeypatch, Metrics(address=":0", token_file=tmp_path / "token")) as (port, _):
        place = f"http://127.0.0.1:{port}"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{place}/metrics")
        refused.value.close()
        asked = urllib.request.Request(f"{place}/metrics", headers={"Authorization": "Bearer 0123456789abcdef"})
        for page in (asked, f"{place}/livez"):
            with urllib.request.urlopen(page) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("content", ["short", "0123456789\x07abcdef", None])
def test_a_token_that_keeps_nobody_out_is_refused_and_not_shown(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SamzaError) as refused, served(Metrics(address=":0", token_file=file), "app"):
        pass
    assert str(file) in str(refused.value) and (content is None or content not in str(refused.value))


@pytest.mark.parametrize("address", ["9464x", "nine", "host:", ":70000", ":-1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(SamzaError, match="write instead: ':9464'"), served(Metrics(address=address), "app"):
        pass


@pytest.mark.parametrize("host", ["", "127.0.0.1", "[::1]", "localhost"])
def test_a_port_that_the_system_has_chosen_is_said(host, caplog):
    with caplog.at_level("WARNING", "samza_dsl"), served(Metrics(address=f"{host}:0"), "app"):
        (line,) = [one.message for one in caplog.records]
        where = line.rpartition("http://")[2]
        _livez(where)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("gate.example", "gate.example:{}"),
        ("gate.example:80", "gate.example:80"),
        ("[2001:db8::1]", "[2001:db8::1]:{}"),
    ],
)
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0"])
def test_others_are_told_the_address_that_was_said(tmp_path, said, told, address):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    how = Metrics(address=address, token_file=tmp_path / "token", advertise=said)
    pages = {"/state": Page(_told, of_users=True)}
    with served(how, "app", pages=pages, brokers="127.0.0.1:9092") as found:
        _host, _, port = found.state_address.rpartition(":")
        assert found.state_address == told.format(port)


@pytest.mark.parametrize(
    "said", ["", ":80", "gate:", "gate:x", "gate:0", "0.0.0.0", "localhost:80", "http://gate", "a b", "[::]", "::1"]
)
def test_an_address_that_others_do_not_reach_is_refused(tmp_path, said):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    how = Metrics(address=":0", token_file=tmp_path / "token", advertise=said)
    with pytest.raises(SamzaError, match="write instead: 'HOST'"), served(how, "app", brokers="127.0.0.1:9092"):
        pass


@pytest.mark.parametrize(
    ("how", "brokers", "told"),
    [
        ({"address": ":0"}, "127.0.0.1:9092", "token_file="),
        ({"address": None}, "127.0.0.1:9092", "environment="),
        ({"address": ":0"}, "", "environment="),
    ],
)
def test_an_address_that_nobody_would_be_told_is_refused(how, brokers, told):
    with (
        pytest.raises(SamzaError, match=told),
        served(Metrics(advertise="gate.example", **how), "app", brokers=brokers),
    ):
        pass


async def _told(request):
    return Answer(200, "told\n")


def _livez(where):
    with urllib.request.urlopen(f"http://{where}/livez", timeout=10) as answer:
        assert answer.status == 200
