"""Answers of HTTP: whoever drips, sends without an end, or ends half-way is waited for no longer than was said."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model import whole_answers
from runtime.model.errors import Unavailable
from runtime.model.whole_answers import WholeAnswersConnection, whole_body
from samza_dsl import connectors
from samza_dsl.connectors import SinkRow
from tests.scale import examples

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
ANSWER = HEAD % 9 + b"some text"
PIECES = 200
PAUSE_S = 0.01


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve at a port of this machine what a function answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    one, _ = listening.accept()
                except OSError:
                    return
                with one:
                    try:
                        one.recv(1 << 16)
                        answer(one)
                    except OSError:
                        pass  # nobody waits any longer

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def dripping(start: bytes, piece: bytes, end: bytes) -> Callable[[socket.socket], None]:
    """Return what sends a good answer in the end, in pieces that come sooner than any timeout."""

    def answer(one: socket.socket) -> None:
        one.sendall(start)
        for _ in range(PIECES):
            one.sendall(piece)
            threading.Event().wait(PAUSE_S)
        one.sendall(end)

    return answer


BODY = dripping(HEAD % (PIECES + 2), b" ", b"{}")
LINES = dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x", b"\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("answer", [BODY, LINES])
def test_who_drips_is_waited_for_as_long_as_was_said(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as port:
        connection = WholeAnswersConnection("127.0.0.1", port, timeout=0.2)
        connection.request("GET", "/")
        with pytest.raises(TimeoutError):
            whole_body(connection.getresponse())
        connection.close()
        sink = connectors.webhook(f"http://127.0.0.1:{port}/hook", timeout_ms=200)
        with pytest.raises((OSError, Unavailable)):
            sink.write([SinkRow(1)])
        sink.close()


def test_an_answer_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_answers, "MOST_BYTES", 1_000)
    with answering(dripping(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 900, b"{}")) as port:
        connection = WholeAnswersConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        with pytest.raises(HTTPException, match="more than 1,000 bytes"):
            whole_body(connection.getresponse())
        connection.close()


@given(cuts=st.lists(st.integers(1, len(ANSWER) - 1), unique=True).map(sorted), end=st.integers(0, len(ANSWER)))
@settings(max_examples=examples(40, 1_000), deadline=None)
def test_an_answer_comes_whole_in_any_pieces_or_not_at_all(cuts: list[int], end: int) -> None:
    def answer(one: socket.socket) -> None:
        sent = ANSWER[:end]
        for start, stop in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True):
            one.sendall(sent[start:stop])

    with answering(answer) as port:
        connection = WholeAnswersConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        try:
            found = whole_body(connection.getresponse())
        except (OSError, HTTPException):
            assert end < len(ANSWER)
        else:
            # Of a head that ends within its lines Python makes an answer without a body.
            assert found == (b"some text" if end == len(ANSWER) else b"")
            assert end == len(ANSWER) or end < len(HEAD % 9)
        connection.close()


def test_a_connection_that_is_kept_has_its_timeout_again() -> None:
    def answer(one: socket.socket) -> None:
        for _ in range(3):
            one.sendall(ANSWER)
            one.recv(1 << 16)

    with answering(answer) as port:
        connection = WholeAnswersConnection("127.0.0.1", port, timeout=60)
        for _ in range(3):
            connection.request("GET", "/")
            assert whole_body(connection.getresponse()) == b"some text"
            assert connection.sock.gettimeout() == 60
        connection.close()
