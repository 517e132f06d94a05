"""State is asked for over HTTP: typed keys, ranges in pages of one commit, waits for commits, and refusals."""

import asyncio
import dataclasses
import datetime as dt
import json
import math
import socket
import threading
import urllib.error
import urllib.request
import uuid
from contextlib import closing, contextmanager
from decimal import Decimal
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import SamzaError
from runtime.model.metrics import Metrics
from runtime.ports.streams import Append, StreamConfig
from runtime.queries import state_requests
from runtime.queries.state_requests import StateDesk, StateRequest
from runtime.systems.log import database
from runtime.systems.log.environment import LogEnvironment
from runtime.watching.server import PageServer
from runtime.watching.state_pages import StatePages
from samza_dsl import App, Bytes, Options, String, count, tumbling
from tests.runtime.test_queries import giving_all_keys_one_number
from tests.scale import examples

TOKEN = "0123456789abcdef"


def keep(key, context):
    context.list("seen").append(key)
    by = context.map("by")
    by[len(key), key] = len(context.list("seen"))
    return []


def counting(key_type=None, tasks=2, keeps=False):
    app = App("counting", Options(commit_interval_ms=1))
    read = app.input("keys", value=object, timestamp=lambda key: 5)
    keyed = read.partition_by(lambda key: key, partitions=tasks, key_type=key_type, op_id="keyed")
    keyed.scan(lambda total, key: total + 1, init=int, op_id="count").send_to(app.output("counts"))
    keyed.window(tumbling(seconds=1), count(), op_id="windows").send_to(app.output("panes"))
    if keeps:
        keyed.process(keep, op_id="kept").send_to(app.output("none"))
    return app


@contextmanager
def served(app, folder, token=None, host="127.0.0.1"):
    with closing(StatePages(app.graph(), folder)) as state:
        server = PageServer(host, 0, state.pages, token)
        server.start()
        try:
            yield f"http://127.0.0.1:{server.port}/state"
        finally:
            server.close()


def ask(place, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(place, headers=headers)) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with closing(error):
            text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text


def all_pages(place, **how):
    """Return the entries of a range, page by page."""
    status, found = ask(place, **how)
    pages = [found["entries"]]
    while found["next"] is not None:
        status, found = ask(f"{place.partition('?')[0]}?page={found['next']}", **how)
        assert status == 200
        pages.append(found["entries"])
    return pages


KEYS = {
    "text": (None, st.text(min_size=1, max_size=4), lambda key: json.dumps(key)),
    "numbers": (int, st.integers(-5, 500), str),
    "declared text": (str, st.text(max_size=4), str),
    "text in order": (String(), st.text(max_size=4), str),
    "bytes": (Bytes(), st.binary(max_size=4), lambda key: key),
    "pairs": (None, st.tuples(st.integers(0, 3), st.text(max_size=2)), json.dumps),
    "declared pairs": (tuple[int, str], st.tuples(st.integers(0, 3), st.text(max_size=2)), json.dumps),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
@settings(max_examples=examples(8, 80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_key_is_found_as_it_is_typed_and_pages_are_the_whole(tmp_path_factory, kind, data):
    key_type, strategy, typed = KEYS[kind]
    keys = data.draw(st.lists(strategy, min_size=1, max_size=20))
    app, folder = counting(key_type), tmp_path_factory.mktemp("state")
    app.run(folder, bind={"keys": keys}, until_now=True)
    limit = data.draw(st.integers(1, 8))

    async def asked():
        with closing(Desk(app, folder)) as desk:
            for key in keys:
                status, found = await desk.ask("count", f"key={quote(typed(key), safe='')}")
                assert (status, found["value"]) == (200, keys.count(key))
            pages = await desk.pages("count", f"limit={limit}")
            assert all(len(page) <= limit for page in pages)
            shown = [one["value"] for page in pages for one in page]
            assert sorted(shown) == sorted(keys.count(key) for key in {*keys})
            for one in (one for page in pages for one in page):
                # As a key is shown it can be asked for again.
                said = one["key"] if key_type in (str, String(), Bytes()) else json.dumps(one["key"])
                said = said if isinstance(key_type, Bytes) else quote(said, safe="")
                assert (await desk.ask("count", f"key={said}"))[1]["value"] == one["value"]

    asyncio.run(asked())


class Desk:
    """A desk that is asked in its own event loop."""

    def __init__(self, app, folder):
        self.desk = StateDesk(app.graph(), lambda: closing(LogEnvironment(folder)))
        self.close = self.desk.close

    async def ask(self, operator, said=""):
        found = await self.desk.answer(StateRequest(operator, said))
        return found.status, json.loads(found.json)

    async def pages(self, operator, said=""):
        status, found = await self.ask(operator, said)
        assert status == 200
        pages = [found["entries"]]
        while found["next"] is not None:
            status, found = await self.ask(operator, f"page={found['next']}")
            assert status == 200
            pages.append(found["entries"])
        return pages


def test_pages_are_of_one_commit_while_others_write(tmp_path):
    seen = []
    with giving_all_keys_one_number(tmp_path, "count"), served(counting(), tmp_path) as place:
        while len({*seen}) < 5:
            pages = all_pages(f"{place}/count?limit=50")
            values = [one["value"] for page in pages for one in page]
            assert len(values) == 300 and len({*values}) == 1 and len(pages) >= 4
            seen.append(values[0])
    assert seen == sorted(seen)


def test_a_range_that_nobody_goes_on_with_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(state_requests, "HELD_MS", 1.0)
    app = counting()
    app.run(tmp_path, bind={"keys": ["a", "b", "c"]}, until_now=True)

    async def asked():
        with closing(Desk(app, tmp_path)) as desk:
            _, found = await desk.ask("count", "limit=1")
            closed = asyncio.Event()
            asyncio.get_running_loop().call_later(0.05, closed.set)
            await closed.wait()
            assert not desk.desk._ranges
            status, gone = await desk.ask("count", f"page={found['next']}")
            assert status == 410 and "begin it anew" in gone["error"]

    asyncio.run(asked())


def test_too_many_ranges_at_once_are_refused_and_a_page_is_of_its_operator(tmp_path):
    app = counting()
    app.run(tmp_path, bind={"keys": ["a", "b", "c"]}, until_now=True)

    async def asked():
        with closing(Desk(app, tmp_path)) as desk:
            tokens = [(await desk.ask("count", "limit=1"))[1]["next"] for _ in range(state_requests.MOST_HELD)]
            assert (await desk.ask("count", "limit=1"))[0] == 503
            assert (await desk.ask("windows", f"page={tokens[0]}"))[0] == 410
            assert (await desk.ask("count", f"page={tokens[0]}"))[0] == 200
            assert (await desk.ask("count", f"page={tokens[0]}"))[0] == 410

    asyncio.run(asked())


def test_a_page_ends_after_so_many_entries_that_are_outside_of_the_range(tmp_path, monkeypatch):
    monkeypatch.setattr(state_requests, "LOOKED_AT", 3)
    app = counting(int, tasks=1)
    app.run(tmp_path, bind={"keys": [*range(20)]}, until_now=True)

    async def asked():
        with closing(Desk(app, tmp_path)) as desk:
            pages = await desk.pages("count", "from=7&to=9")
            assert [one["key"] for page in pages for one in page] == [7, 8]
            assert len(pages) == 7

    asyncio.run(asked())


def test_a_request_waits_for_the_commit_that_it_asks_for(tmp_path):
    app = counting()
    log = LogEnvironment(tmp_path)
    log.create_stream("keys", StreamConfig())
    log.append([Append("keys", 0, Batch([b'"a"', b'"a"']))])
    log.close()
    with served(app, tmp_path) as place:
        runner = threading.Timer(0.05, lambda: app.run(tmp_path, until_now=True))
        runner.start()
        assert ask(f"{place}/count?key=a&at_least=keys:2")[1]["value"] == 2
        runner.join()
        status, found = ask(f"{place}/count?key=a&at_least=keys:0:3&timeout_ms=20")
        assert status == 504 and "keys:0 is at 2" in found["error"]


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ("/none?key=a", 404, "'none' is no operator"),
        ("/keyed?key=a", 404, "there are: count, windows"),
        ("/count?key=z", 404, "it has no state"),
        ("/count?kye=a", 400, "write instead: key=, list=, map=, from=, to="),
        ("/count?key=a&key=b", 400, "key= is there twice"),
        ("/count?key=a&limit=3", 400, "limit= is about a range"),
        ("/count?limit=0", 400, "no number from 1 to 1,000"),
        ("/count?page=none", 410, "begin it anew"),
        ("/count?page=none&from=a", 400, "was said with the first page"),
        ("/count?from=7", 400, "can't be gone through"),
        ("/count?key=a&at_least=keys", 400, "STREAM:OFFSET"),
        ("/count?key=a&at_least=kyes:1", 400, "'counting' does not read 'kyes'; write instead: one of keys"),
        ("/count?key=a&list=seen", 400, "write instead: key= alone"),
        ("/kept?key=a&list=seen&map=by", 400, "write instead: list= or map="),
        ("/kept?list=seen", 400, "list= is of one key"),
        ("/kept?key=a&list=", 400, "list=NAME"),
        ("/kept?key=a&list=seen&limit=3", 400, "limit= is about a range"),
        ("/kept?key=z&list=seen", 404, "it has no entries"),
        ("/kept?key=a&map=seen", 404, "it has no entries"),
    ],
)
def test_a_request_that_can_not_be_meant_is_told_what_to_write(tmp_path, asked, status, told):
    app = counting(keeps=True)
    app.run(tmp_path, bind={"keys": ["a", "b"]}, until_now=True)
    with served(app, tmp_path) as place:
        found = ask(f"{place}{asked}")
    assert found[0] == status and told in found[1]["error"]


def test_the_lists_and_maps_of_a_key_are_shown_up_to_a_length(tmp_path, monkeypatch):
    app = counting(keeps=True)
    app.run(tmp_path, bind={"keys": ["a", "b", "a"]}, until_now=True)
    with served(app, tmp_path) as place:
        assert ask(f"{place}/kept?key=a&list=seen") == (
            200,
            {"operator": "kept", "key": "a", "list": "seen", "value": ["a", "a"]},
        )
        entries = [{"key": [1, "a"], "value": 2}]
        assert ask(f"{place}/kept?key=a&map=by") == (
            200,
            {"operator": "kept", "key": "a", "map": "by", "entries": entries},
        )
        monkeypatch.setattr("runtime.queries.state_requests.LOOKED_AT", 1)
        assert ask(f"{place}/kept?key=b&list=seen")[0] == 200
        status, found = ask(f"{place}/kept?key=a&list=seen")
        assert status == 400 and "has over 1 entries; write instead: query(app, data)" in found["error"]


def test_a_range_that_is_under_way_is_let_go_of_with_the_server(tmp_path):
    app = counting()
    app.run(tmp_path, bind={"keys": ["a", "b", "c"]}, until_now=True)
    with served(app, tmp_path) as place:
        assert ask(f"{place}/count?limit=1")[1]["next"] is not None
        assert any(one.path == tmp_path for one in database._shared.values())
    assert not any(one.path == tmp_path for one in database._shared.values())


def test_operators_are_listed_and_nothing_is_made_where_no_run_was(tmp_path):
    with served(counting(str), tmp_path / "none") as place:
        assert ask(place)[1] == {
            "app": "counting",
            "operators": [
                {"operator": "count", "kind": "scan", "key": "str", "windows": False},
                {"operator": "windows", "kind": "window", "key": "str", "windows": True},
            ],
        }
        assert ask(f"{place}/count?key=a")[0] == 503
    assert not (tmp_path / "none").exists()


def test_state_is_for_who_has_the_token(tmp_path):
    app = counting()
    app.run(tmp_path, bind={"keys": ["a"]}, until_now=True)
    with served(app, tmp_path, TOKEN) as place:
        assert ask(f"{place}/count?key=a")[0] == 401
        assert ask(f"{place}/count?key=a", Authorization=f"Bearer {TOKEN}")[1]["value"] == 1
        assert ask(f"{place}/count?key=a", Authorization=f"Bearer {TOKEN}", Origin="http://evil.example")[0] == 403
    # Without one nobody on another machine may ask, and this machine is one of them where all may come.
    with served(app, tmp_path, host="0.0.0.0") as place:
        status, told = ask(f"{place}/count?key=a")
    assert status == 403 and "--metrics-token-file" in told


def test_a_run_shows_its_state_at_the_port_of_its_metrics(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    seen = []

    async def watch(run):
        place = f"http://127.0.0.1:{port}/state"
        seen.append(await asyncio.to_thread(ask, f"{place}/count?key=b&at_least=keys:3"))
        seen.append(await asyncio.to_thread(ask, f"{place}/windows?key=b"))
        # From its own process, in its event loop and in another thread.
        seen.append([run.state("count").get("b"), await asyncio.to_thread(run.state("count").get, "a")])
        with pytest.raises(SamzaError, match=r"asyncio\.to_thread"):
            run.state("count").get("b", at_least={"keys": 4})
        run.stop()

    app = counting()
    log = LogEnvironment(tmp_path)
    log.create_stream("keys", StreamConfig())
    log.append([Append("keys", 0, Batch([b'"a"', b'"b"', b'"b"']))])
    log.close()
    run = app.run(tmp_path, metrics=Metrics(address=f":{port}"), watch=watch)
    pane = {"key": "b", "start": 0, "end": 1_000, "value": 2, "timing": "early"}
    assert seen == [
        (200, {"operator": "count", "key": "b", "value": 2}),
        (200, {"operator": "windows", "key": "b", "value": [pane]}),
        [2, 1],
    ]
    assert dict(run.state("count").range()) == {"a": 1, "b": 2}, "and after its end"


@dataclasses.dataclass(frozen=True)
class Place:
    a: int
    b: str


SHOWN = [
    *(1, 2.5, True, "t", 8, "7", "N", (1, "a"), b"\xff\x00", b"AB", dt.date(2026, 1, 2), dt.time(1, 2)),
    *(dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), dt.datetime(2026, 1, 2), dt.timedelta(days=1), Decimal("1.50")),
    *(Place(1, "z"), uuid.UUID(int=5), "a b&c=d/é☃%", "", -0.5, 10**30, math.inf, frozenset([1]), ("7", Place(2, "y"))),
]


def test_a_key_of_no_declared_type_is_found_by_what_a_listing_shows(tmp_path):
    app = App("shown")
    keyed = app.input("numbers", value=int).partition_by(lambda n: SHOWN[n], partitions=2, op_id="keyed")
    keyed.scan(lambda _, n: n, init=int, op_id="last").sink(lambda n: None)
    app.run(tmp_path, bind={"numbers": [*range(len(SHOWN))]}, until_now=True)
    desk = StateDesk(app.graph(), lambda: closing(LogEnvironment(tmp_path)))

    def ask(said):
        return asyncio.run(desk.answer(StateRequest("last", said)))

    entries = json.loads(ask("limit=100").json)["entries"]
    assert len(entries) == len(SHOWN)
    for entry in entries:
        key = entry["key"] if isinstance(entry["key"], str) else json.dumps(entry["key"])
        assert json.loads(ask(f"key={quote(key, safe='')}").json) == {"operator": "last", **entry}
    assert ask('key={"a":9,"b":"z"}').status == 404
    desk.close()


def test_text_beside_a_number_is_said_in_quotes(tmp_path):
    app = App("shown")
    keyed = app.input("numbers", value=int).partition_by(lambda n: [7, "7"][n], partitions=2, op_id="keyed")
    keyed.scan(lambda _, n: n, init=int, op_id="last").sink(lambda n: None)
    app.run(tmp_path, bind={"numbers": [0, 1]}, until_now=True)
    desk = StateDesk(app.graph(), lambda: closing(LogEnvironment(tmp_path)))
    for said, value in (("7", 0), ("%227%22", 1)):
        assert json.loads(asyncio.run(desk.answer(StateRequest("last", f"key={said}"))).json)["value"] == value
    desk.close()
