"""The server of pages: it answers who may ask, refuses pages of others, and is ended by no request."""

import random
import socket
import threading
from contextlib import closing

import pytest

from runtime.model.errors import SamzaError
from runtime.watching.server import MOST_BODY_BYTES, MOST_BYTES, Answer, Page, PageServer

TOKEN = "0123456789abcdef"


async def open_page(_):
    return Answer(200, "open\n")


async def secret_page(_):
    return Answer(200, "what is secret\n")


async def broken_page(_):
    raise ValueError("secret reason")


async def acting_page(request):
    return Answer(200, f"{request.query} {request.body} {request.proof}\n")


PAGES = {
    "/act": Page(acting_page, is_secret=False, acts=True),
    "/open": Page(open_page, is_secret=False),
    "/secret": Page(secret_page),
    "/metrics": Page(secret_page, by_name=True),
    "/broken": Page(broken_page),
}


@pytest.fixture
def serve():
    """Start a server on a free port; it is closed at the end, which it must live to see."""
    servers = []

    def start(token=None, host="127.0.0.1"):
        server = PageServer(host, 0, PAGES, token)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
        assert not server._thread.is_alive()


def sent(server, data, then_close=True):
    """Send bytes, and return all that comes back."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as line:
        line.sendall(data)
        if then_close:
            line.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := line.recv(65_536):
                found += part
        except ConnectionError:
            pass
        return found


def asked(server, path="/open", method="GET", **headers):
    """Ask for a page; return the status and the body."""
    said = {"Host": f"127.0.0.1:{server.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items() if value is not None)]
    head, _, body = sent(server, "\r\n".join(lines).encode() + b"\r\n\r\n").partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_pages_are_shown_and_others_are_named(serve):
    server = serve()
    assert asked(server) == (200, "open\n")
    assert asked(server, "/open?x=1") == (200, "open\n")
    assert asked(server, method="HEAD") == (200, "")
    assert asked(server, "/none") == (404, "there are /act, /broken, /metrics, /open, /secret\n")
    assert asked(server, method="POST")[0] == 405


def test_a_page_that_fails_says_its_reason_in_the_log_alone(serve, caplog):
    status, text = asked(serve(), "/broken?who=hidden")
    assert (status, "reason" in text) == (500, False)
    assert "'GET /broken' can't be answered" in caplog.text and "reason" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9464", "[::1]:80", "10.1.2.3:9464", "LOCALHOST"])
def test_an_address_may_be_asked_for(serve, host):
    assert asked(serve(), Host=host)[0] == 200


NAMES = ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", None]


@pytest.mark.parametrize("host", NAMES)
def test_a_name_that_was_let_lead_here_is_refused_but_with_the_token(serve, host):
    server = serve(TOKEN)
    assert asked(server, "/secret", Host=host)[0] == 403
    assert asked(server, "/secret", Host=host, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert [asked(one, "/metrics", Host=host)[0] for one in (server, serve())] == [403, 403]
    assert asked(server, "/open", Host=host)[0] == 200  # as a probe asks


@pytest.mark.parametrize("host", ["delays-0.delays:9464", "vm", *NAMES])
def test_other_machines_ask_by_any_name(serve, host):
    """A target of Prometheus, and a browser that asks its user for the token."""
    secret, free = serve(TOKEN, "0.0.0.0"), serve(host="0.0.0.0")
    assert [asked(secret, path, Host=host)[0] for path in ("/open", "/metrics", "/secret")] == [200, 401, 401]
    assert [asked(free, path, Host=host)[0] for path in ("/open", "/metrics", "/secret")] == [200, 200, 403]
    assert posted(secret, b"abc", Host=host)[0] == posted(free, b"abc", Host=host)[0] == 403
    assert asked(secret, "/secret", Host=host, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert asked(secret, "/metrics", Host=host, Origin="http://other.example")[0] == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:9464", 403),
        ("http://127.0.0.1:PORT", 200),
        ("http://127.0.0.1.evil.example", 403),
    ],
)
def test_the_pages_of_others_may_not_ask(serve, origin, status):
    server = serve()
    assert asked(server, Origin=origin.replace("PORT", str(server.port)))[0] == status


def posted(server, body, path="/act?a=1&b=%20", length=None, **headers):
    said = {"Host": f"127.0.0.1:{server.port}", "Content-Length": len(body) if length is None else length}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items() if value != "")]
    answer = sent(server, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, text.decode()


def test_a_page_that_acts_is_told_what_is_behind_the_question_mark_the_body_and_the_proof(serve):
    server = serve()
    assert posted(server, b"x\r\n\r\ny", X_Samza_Dsl="p") == (200, "{'a': '1', 'b': ' '} b'x\\r\\n\\r\\ny' p\n")
    assert asked(server, "/act")[0] == 405 and posted(server, b"", path="/open")[0] == 405


@pytest.mark.parametrize(
    ("length", "headers", "status"),
    [
        ("", {}, 411),
        ("x", {}, 411),
        ("-1", {}, 411),
        (MOST_BODY_BYTES + 1, {}, 413),
        (3, {"Transfer_Encoding": "chunked"}, 411),
        (3, {"Origin": "http://evil.example"}, 403),
        (3, {"Origin": "null"}, 403),
        (3, {"Sec_Fetch_Site": "cross-site"}, 403),
        (3, {"Host": "evil.example"}, 403),
        (4, {}, 0),
    ],
)
def test_a_body_that_has_no_length_or_comes_from_elsewhere_is_not_taken(serve, length, headers, status):
    server = serve()
    assert posted(server, b"abc", length=length, **headers)[0] == status
    assert posted(server, b"abc")[0] == 200


def test_a_browser_that_says_that_another_site_asks_is_refused(serve):
    server = serve()
    assert [asked(server, Sec_Fetch_Site=site)[0] for site in ("cross-site", "same-site", "same-origin", "none")] == [
        *(403, 403),
        *(200, 200),
    ]


@pytest.mark.parametrize(
    "said", ["", f"Basic {TOKEN}", "Basic !", "Bearer", f"Bearer {TOKEN}x", "Bearer \xff", f"Bearer x{TOKEN}"]
)
def test_what_is_secret_needs_the_token(serve, said):
    server = serve(TOKEN)
    assert asked(server, "/secret", Authorization=said)[0] == 401
    assert asked(server, "/open")[0] == 200, "health is for whoever may ask"
    assert asked(server, "/secret", Authorization=f"bearer {TOKEN}") == (200, "what is secret\n")


def test_a_request_is_bounded(serve):
    server = serve()
    assert b" 431 " in sent(server, b"GET /open HTTP/1.1\r\nX: " + b"x" * 2 * MOST_BYTES, then_close=False)
    assert asked(server)[0] == 200


def test_headers_that_could_be_read_in_two_ways_are_refused(serve):
    server = serve()
    twice = b"GET /open HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"
    folded = b"GET /open HTTP/1.1\r\nHost: 127.0.0.1\r\n evil: x\r\n\r\n"
    assert all(b" 400 " in sent(server, one) for one in (twice, folded))


def test_an_address_that_is_taken_is_told(serve):
    taken = serve()
    with pytest.raises(SamzaError, match=f"127.0.0.1:{taken.port} can't be listened at.*another port"):
        PageServer("127.0.0.1", taken.port, PAGES).start()


def requests(seed):
    """Yield requests of which most are none: cut off, mixed up, with bytes that were turned, or too long."""
    chance = random.Random(seed)
    good = b"GET /secret HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\nAccept: */*\r\n\r\n"
    while True:
        data = bytearray(good)
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(data))
            kind = chance.randrange(5)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(1, 9)]
            elif kind == 2:
                data[at:at] = chance.randbytes(chance.randrange(40))
            elif kind == 3:
                data[at:at] = data[: chance.randrange(len(data))]
            else:
                data[at:at] = chance.choice([b"\r\n\r\n", b"\0", b"\r\n", b": ", b" HTTP/1.1", b"x" * MOST_BYTES])
            if not data:
                break
        yield bytes(data) or b"\r\n\r\n"


def test_no_request_ends_the_server_or_shows_what_is_secret(serve):
    server, answered, found = serve(TOKEN), [], []

    def ask(seed):
        for _, data in zip(range(500), requests(seed), strict=False):
            answer = sent(server, data)
            answered.append(answer.split(b" ")[1:2])
            if b"what is secret" in answer.partition(b"\r\n\r\n")[2]:
                found.append(data)

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == 8 * 500 and not found
    assert {*map(tuple, answered)} >= {(b"401",), (b"400",)}, "some are understood, and some are not"
    assert asked(server)[0] == 200
