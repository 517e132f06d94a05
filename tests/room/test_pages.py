"""The pages of the control room: dead letters are mended and sent again, and nobody else may ask, whatever he sends."""

import json
import random
import socket
import threading
import urllib.error
import urllib.request
from contextlib import closing
from decimal import Decimal

import msgspec
import pytest

from operators.core.base import Batch
from runtime.job.job_model import ContainerOfJob, Job
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.watching.server import PageServer
from samza_dsl import App, KafkaCluster, SamzaError, count, dead_letter, list_streams, produce, tumbling
from samza_dsl.data.records import records_from
from samza_dsl.room import pages, runs
from samza_dsl.room.letters import Redrive, send_again
from samza_dsl.room.pages import ASSETS, ControlRoom
from samza_dsl.room.recorder import recorded
from samza_dsl.room.runs import Place
from tests.scale import scale

TOKEN = "0123456789abcdef"


def third(order):
    return {"third": 3 // order["n"]}


def thirds():
    app = App("thirds")
    orders = app.input("orders", value=dict, key=lambda order: order["who"])
    orders.map(third, op_id="third", on_error=dead_letter("bad")).send_to(app.output("out", value=dict))
    return app


def run_noted(data):
    app = thirds()
    with recorded(data, app.name, "here") as recorder:
        return app.run(data, watch=recorder.watch, until_now=True)


@pytest.fixture
def data(tmp_path):
    orders = [{"n": 1, "who": "a"}, {"n": 0, "who": "b"}, {"n": 3, "who": "c"}]
    produce("orders", orders, data=tmp_path, key=lambda order: order["who"], partitions=3)
    run_noted(tmp_path)
    return tmp_path


class Site:
    """A control room that is served, and a browser's way to ask it."""

    def __init__(self, data, token=None, **options):
        self.room = ControlRoom([Place(data)], **options)
        self.token = token
        self.server = PageServer("127.0.0.1", 0, self.room.pages, token)
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()
        assert not self.server._thread.is_alive()
        self.room.close()

    def ask(self, path, body=None, **headers):
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            said.setdefault("Authorization", f"Bearer {self.token}")
        asked = urllib.request.Request(f"http://127.0.0.1:{self.server.port}{path}", body, said)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def told(self, path):
        status, text = self.ask(path)
        assert status == 200, text
        return json.loads(text)

    def act(self, what, proof=None, **said):
        proof = self.told("/api/session")["proof"] if proof is None else proof
        body = json.dumps({"run": "0/thirds", "what": what, **said}).encode()
        status, text = self.ask("/api/act", body, X_Samza_Dsl=proof)
        return status, json.loads(text)


def test_the_page_and_all_that_it_asks_for(data):
    with Site(data) as site:
        for path in ASSETS:
            assert site.ask(path)[0] == 200
        (run,) = site.told("/api/runs")
        assert (run["id"], run["state"], run["app"]) == ("0/thirds", "has ended", "thirds")
        assert site.told("/api/run?run=0/thirds")["look"]["lag"] == 0
        assert site.ask("/api/picture?run=0/thirds")[1].startswith("<svg")
        *_, (number, sample) = site.told("/api/history?run=0/thirds")
        assert sample["lag"] == 0 and site.told(f"/api/history?run=0/thirds&after={number}") == []
        assert [one["what"] for one in site.told("/api/events?run=0/thirds")] == ["began", "ended", "warning"]
        job = site.told("/api/job?run=0/thirds")
        assert job["generation"] == 1 and {one["stream"] for one in job["positions"]} == {"orders"}
        assert site.ask("/api/run?run=0/other")[0] == 409 and site.ask("/api/job")[0] == 409


def test_a_dead_letter_is_mended_and_sent_again_once(data):
    with Site(data, allow_actions=True) as site:
        (letter,) = (found := site.told("/api/letters?run=0/thirds"))["letters"]
        assert found["inputs"] == ["orders"] and letter["operator"] == "third" and letter["to"] == "orders"
        assert "ZeroDivisionError" in letter["error"] and json.loads(letter["value"]) == {"n": 0, "who": "b"}
        place = {name: letter[name] for name in ("stream", "partition", "offset")}
        mended = {"value": '{"n": 2, "who": "b"}', "to": "orders"}
        status, told = site.act("redrive", **place, **mended)
        assert status == 200 and "mended and sent again" in told["done"]
        assert site.act("redrive", **place, **mended)[0] == 409, "nobody wants it twice"
        (letter,) = site.told("/api/letters?run=0/thirds")["letters"]
        assert letter["sent"] and site.told("/api/events?run=0/thirds")[-1]["what"] == "sent again"
    assert sorted(run_noted(data).received("out"), key=str) == [{"third": 1}] * 2 + [{"third": 3}]
    with Site(data) as site:
        assert site.told("/api/letters?run=0/thirds")["letters"][0]["sent"], "who begins anew knows it, too"


def test_what_is_sent_again_has_the_headers_that_it_had(tmp_path):
    app = App("headed")
    read = app.input("orders", value=int, headers=True).partition_by(lambda n: n, partitions=1, op_id="by")
    read.map(lambda n: 1 // n, op_id="third", on_error=dead_letter("bad")).send_to(app.output("out", value=int))
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("orders", StreamConfig())
        log.append([Append("orders", 0, Batch([b"0"], headers=[{"who": b"b", "error": b"mine", "null": None}]))])
    app.run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        send_again(log, app.plan(), Redrive(stream="bad", partition=0, offset=0, to="orders", value="1"))
        (*_, sent) = records_from(log, "orders", 0, 0)
    had = {"who": b"b", "error": b"mine", "null": None}
    assert sent.value == b"1" and sent.headers == {**had, "redriven-from": b"bad/0/0"}


class Seen(msgspec.Struct, rename="camel"):
    at: int
    first_n: Decimal = Decimal(0)


def late_letters(value, key, between):
    app = App("thirds")
    read = app.input("orders", value=value, key=key, timestamp=lambda seen: seen["at"] if value is dict else seen.at)
    read = read.partition_by(lambda _: 7, partitions=1, op_id="by") if between else read
    read.window(tumbling(seconds=1), count(), late=dead_letter("bad"), op_id="w").send_to(
        app.output("wins", value=dict)
    )
    return app


@pytest.mark.parametrize(
    ("value", "key", "between"),
    [(dict, str, False), (Seen, str, False), (dict, int, False), (dict, str, True), (Seen, int, True)],
)
def test_a_late_letter_is_sent_again_in_the_form_of_the_input(tmp_path, value, key, between):
    name = "first_n" if value is dict else "firstN"
    lines = [f'{{"at":{at},"{name}":3}}'.encode() for at in (100_000, 200_000, 100)]
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("orders", StreamConfig())
        log.append([Append("orders", 0, Batch(lines, [b"7"] * 3))])
    app = late_letters(value, key, between)
    with recorded(tmp_path, app.name, "here") as recorder:
        app.run(tmp_path, watch=recorder.watch, until_now=True)
    with Site(tmp_path, allow_actions=True) as site:
        (letter,) = site.told("/api/letters?run=0/thirds")["letters"]
        shown = json.loads(letter["value"])
        assert shown["at"] == 100 and int(shown[name]) == 3
        place = {name: letter[name] for name in ("stream", "partition", "offset")} | {"to": "orders"}
        for typo, wrong in (('{"at": 1', "truncated"), ('{"at": "soon"}' if value is Seen else "[]", "Expected")):
            status, told = site.act("redrive", **place, value=typo)
            assert status == 409 and wrong in told["error"]
        assert {one.name: one.records for one in list_streams(tmp_path)}["orders"] == 3
        status, told = site.act("redrive", **place)
        assert status == 200, told
    with closing(LogEnvironment(tmp_path)) as log:
        *_, sent = records_from(log, "orders", 0, 0)
    assert sent.key == b"7" and json.loads(sent.value) == shown
    app.run(tmp_path, until_now=True)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"value": '{"n": 1'}, "truncated"),
        ({"value": "[1]"}, "Expected `object`"),
        ({"value": "ff", "form": "hex"}, "can't read this value"),
        ({"value": "", "form": "none"}, "without a value"),
        ({"to": "out"}, "'out' is no input of thirds"),
        ({"to": ""}, "to which it can be sent: orders"),
        ({"stream": "orders"}, "has no dead letters"),
        ({"offset": 7}, "no record at 7 any more"),
        ({"partition": 7}, "no record at 0 any more"),
        ({"value": "0g", "form": "hex"}, "two digits of 0-9a-f"),
        ({"offset": "x"}, "Expected `int`"),
        ({"form": "any"}, "Invalid enum value"),
    ],
)
def test_what_can_not_be_sent_again_is_told_and_nothing_is_written(data, changed, wrong):
    with Site(data, allow_actions=True) as site:
        letter = {"stream": "bad", "partition": 0, "offset": 0, "to": "orders", **changed}
        status, told = site.act("redrive", **letter)
        assert status == 409 and wrong in told["error"]
    assert {one.name: one.records for one in list_streams(data)}["orders"] == 3


def test_who_is_not_allowed_to_act_is_told_so(data):
    with Site(data) as site:
        assert site.told("/api/session") == {"actions": False, "proof": ""}
        assert site.act("stop", proof="")[0] == 403
    with Site(data, token=TOKEN, allow_actions=True) as site:
        proof = site.told("/api/session")["proof"]
        assert site.act("stop", proof=proof)[0] == 409, "nobody runs"
        assert [site.act("stop", proof=wrong)[0] for wrong in ("", "x", f"{proof}x", "\xff")] == [403] * 4
        body = json.dumps({"run": "0/thirds", "what": "stop"}).encode()
        for headers, status in (
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": f"http://127.0.0.1:{site.server.port + 1}"}, 403),
            ({"Sec_Fetch_Site": "same-site"}, 403),
            ({"Authorization": "Bearer 0123456789abcdeF"}, 401),
            ({"Authorization": "Basic bWU6eA=="}, 401),
            ({"Origin": f"http://127.0.0.1:{site.server.port}"}, 409),
        ):
            assert site.ask("/api/act", body, X_Samza_Dsl=proof, **headers)[0] == status
        assert site.ask("/api/runs", Authorization="Bearer wrong")[0] == 401
        assert site.ask("/", Authorization="Bearer wrong")[0] == 401, "the page as well"
        assert site.ask("/api/act", b"[]", X_Samza_Dsl=proof)[0] == 400


@pytest.mark.parametrize(
    ("said", "wrong"),
    [({}, "a size is to be said"), ({"factor": 3}, "no power of two"), ({"containers": 0}, "at least one container")],
)
def test_an_application_is_asked_for_another_size(data, said, wrong):
    with Site(data, allow_actions=True) as site:
        status, told = site.act("scale", **said)
        assert status == 409 and wrong in told["error"]
        assert site.act("scale", factor=2)[0] == 200
        assert site.act("dance")[0] == 409


def test_brokers_that_hang_hold_up_nothing_but_what_is_asked_of_them(data, tmp_path, monkeypatch):
    """The page is opened when they hang: what runs have noted is shown at once, of that place as well."""
    released, really = threading.Event(), runs.open_environment
    monkeypatch.setattr(runs, "SOON_S", 0.01)
    monkeypatch.setattr(pages, "ANSWER_S", 0.5)

    def opened(path, cluster):
        if cluster is not None:
            released.wait(60)
            raise SamzaError("brokers are away")
        return really(path, cluster)

    monkeypatch.setattr(runs, "open_environment", opened)
    with Site(data, allow_actions=True) as site:
        site.room._runs.close()
        site.room._runs = runs.NotedRuns([Place(data, KafkaCluster("kafka://away:9092")), Place(data)])
        for _ in range(3):
            assert [one["id"] for one in site.told("/api/runs")] == ["0/thirds", "1/thirds"]
            assert site.told("/api/run?run=0/thirds")["state"] == "has ended"
            assert site.told("/api/events?run=0/thirds") and site.told("/api/history?run=0/thirds")
            assert site.told("/api/letters?run=1/thirds")["letters"] and site.told("/api/job?run=1/thirds")["tasks"]
            assert site.ask("/api/letters?run=0/thirds")[0] == site.ask("/api/job?run=0/thirds")[0] == 503
            assert site.act("scale", run="0/thirds", factor=2)[0] == 503
        released.set()


def test_a_run_of_one_process_is_not_asked_for_containers(data, monkeypatch):
    alone = Job(
        app="thirds",
        environment="",
        generation=1,
        model=1,
        containers=(ContainerOfJob(name="process 7", host="", tasks=()),),
    )
    monkeypatch.setattr(runs, "job_of", lambda environment, app: alone)
    with Site(data, allow_actions=True) as site:
        status, told = site.act("scale", containers=2)
        assert status == 409 and "run it with --containers 2" in told["error"]
        assert site.act("scale", containers=1)[0] == 200


PATHS = [*ASSETS, "/api/run", "/api/runs", "/api/history", "/api/events", "/api/letters", "/api/job", "/api/picture"]
REQUESTS_EACH = scale(100, 1_250, 12_500)
"""The requests of each of eight clients at once."""


def wild(chance, site, proof):
    """Return a request that is nearly a good one, or a good one for something odd."""
    values = [
        "0/thirds",
        "1/thirds",
        "../x",
        "0/../..",
        "",
        "\x00",
        "-1",
        "9" * 400,
        "bad",
        "orders",
        None,
        7,
        -1,
        {},
        [],
    ]
    names = ["run", "what", "stream", "partition", "offset", "to", "value", "form", "factor", "containers", "after"]
    said = {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(8))}
    said |= {"what": chance.choice(["redrive", "scale", "commit", "stop", "x"])} if chance.random() < 0.6 else {}
    said |= {"run": "0/thirds"} if chance.random() < 0.6 else {}
    body = json.dumps(said).encode() if chance.random() < 0.8 else chance.randbytes(chance.randrange(200))
    query = "&".join(f"{name}={chance.choice(['0/thirds', '0', '%00', '%', '', 'é' * 9])}" for name in said)
    is_act = chance.random() < 0.5
    path = "/api/act" if is_act else f"{chance.choice(PATHS)}?{query}"
    head = f"{'POST' if is_act else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{site.server.port}\r\n"
    head += f"X-Samza-Dsl: {proof}\r\n" if chance.random() < 0.8 else ""
    head += f"Content-Length: {len(body) if chance.random() < 0.9 else chance.randrange(400)}\r\n" if is_act else ""
    data = bytearray(head.encode() + b"\r\n" + (body if is_act else b""))
    if chance.random() < 0.3:
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(6))
    return bytes(data)


def test_no_request_ends_the_room(data):
    answered = []
    with Site(data, allow_actions=True) as site:
        proof = site.told("/api/session")["proof"]

        def ask(seed):
            chance = random.Random(seed)
            for _ in range(REQUESTS_EACH):
                with closing(socket.create_connection(("127.0.0.1", site.server.port), timeout=30)) as line:
                    request, found = wild(chance, site, proof), b""
                    try:
                        line.sendall(request)
                        line.shutdown(socket.SHUT_WR)
                        while part := line.recv(65_536):
                            found += part
                    except ConnectionError:
                        pass
                    answered.append(int(found.split(b" ")[1]) if found else 0)

        threads = [threading.Thread(target=ask, args=[seed]) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answered) == 8 * REQUESTS_EACH
        assert {200, 400, 409} <= {*answered} and 500 not in answered
        assert site.told("/api/runs")[0]["app"] == "thirds"
