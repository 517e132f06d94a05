"""Whatever is asked of the pages of a run, each request gets an answer, and none ends the run or its server."""

import asyncio
import random
import re
import socket
import urllib.request
from contextlib import closing

from operators.core.base import Batch
from runtime.model.metrics import Metrics
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.watching.server import STATUS
from samza_dsl import App, Options, count, tumbling
from tests.scale import scale

REQUESTS = scale(200, 10_000, 100_000)
PATHS = [
    "/",
    "/metrics",
    "/livez",
    "/readyz",
    "/state",
    "/state/",
    "/state/count",
    "/state/windows",
    "/state/none",
    "/no",
]
NAMES = ["key", "from", "to", "limit", "page", "at_least", "timeout_ms", "kye", "KEY", ""]
VALUES = [
    *("a", "7", '"a"', "[1,2]", "{", "null", "NaN", "-1", "0", "1", "1001", "999999999999999999999", "1e9", "%00"),
    *("%ff%fe", "%ed%a0%80", "a%", "%zz", "+", "keys:1", "keys:0:1", "none:9", "a:b:c", "keys:-1", ",", "[" * 2_000),
    *("0.x.y", "..", "\u0661", "'; drop", "../../etc/passwd", "<script>"),
]
HEADERS = ["Accept: */*", "Origin: http://evil.example", "Host: evil.example", "Authorization: Basic x", "Cookie: a=b"]
METHODS = ["GET"] * 12 + ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "get", "G\0ET"]
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def request(chance):
    """Return a request that may be a good one, or wrong in what it says or in its bytes."""
    said = "&".join(
        f"{chance.choice(NAMES)}{chance.choice(['=', '=', '=', '', '=='])}{chance.choice(VALUES)}"
        for _ in range(chance.choice([0, 1, 1, 2, 3, 20]))
    )
    path = chance.choice(PATHS) + chance.choice(["", "", "", "/", "//", "/x", "%2f", "\\"])
    lines = [f"{chance.choice(METHODS)} {path}{'?' * bool(said)}{said} HTTP/1.1"]
    lines += ["Host: 127.0.0.1"] * chance.choice([1, 1, 1, 1, 0, 2])
    lines += chance.sample(HEADERS, chance.choice([0, 0, 0, 1, 2]))
    data = bytearray("\r\n".join(lines).encode("utf-8") + b"\r\n\r\n")
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        at = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[at] = chance.randrange(256)
        else:
            data[at:at] = chance.randbytes(chance.randrange(9))
    return bytes(data)


def answer_to(port, data):
    with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as line:
        found = b""
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while part := line.recv(65_536):
                found += part
        except ConnectionError:
            pass
        return found


def test_no_request_ends_a_run_or_is_answered_with_an_error_of_ours(tmp_path):
    app = App("fuzzed", Options(commit_interval_ms=5))
    keyed = app.input("keys", value=str, timestamp=lambda key: 0).partition_by(lambda key: key, partitions=2)
    keyed.scan(lambda total, key: total + 1, init=int, op_id="count").send_to(app.output("counts"))
    keyed.window(tumbling(seconds=1), count(), op_id="windows").send_to(app.output("panes"))
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("keys", StreamConfig())
        log.append([Append("keys", 0, Batch([b"a", b"7", b"b"] * 10))])
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    told = []

    def ask_all():
        chance = random.Random(7)
        for _ in range(REQUESTS):
            data = request(chance)
            answer = answer_to(port, data)
            told.append(int(ANSWER.match(answer)[1]) if answer else 0)
            # Where the head is cut off there is nothing to answer; an error of ours is no answer.
            assert told[-1] != 500, data
            assert told[-1] in {0, *STATUS}, data
            assert b"Content-Security-Policy: " in answer or not answer

    async def watch(run):
        try:
            await asyncio.to_thread(ask_all)
            for path in ("/metrics", "/livez", "/state/count?key=a", "/"):
                with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}{path}") as answer:
                    assert answer.status == 200
            told.append("done")
        finally:
            run.stop()

    app.run(tmp_path, metrics=Metrics(address=f":{port}", ui=True), watch=watch)
    assert told[-1] == "done" and len(told) == REQUESTS + 1
    assert {200, 400, 403, 404, 405} <= {*told}, "some are understood, and some are not"
