"""Answers of HTTP that come whole within the time and size that they are given, however slowly they drip."""

from __future__ import annotations

import io
import socket
from http.client import SWITCHING_PROTOCOLS, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from runtime.model.clock import monotonic_ms

MOST_BYTES = 1 << 24
"""The bytes of an answer that are read, where whoever asks says nothing else."""


class WholeAnswer(HTTPResponse):
    """The final answer to a request, which has to have come within the connection's timeout as a whole.

    A timeout alone is of each piece, so that who sends a byte now and then would be waited for without an end. Answers
    of 1xx before it, as 103, are read over, as Python does with 100 alone.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp: Any = io.BufferedReader(_TimelyBytes(sock, self.fp.detach()))

    def begin(self) -> None:
        """Read the status and headers of the final answer; 101 is one, as what comes behind it is no HTTP."""
        super().begin()
        while 100 < self.status < 200 and self.status != SWITCHING_PROTOCOLS:
            vars(self)["headers"] = None  # else nothing more is read
            super().begin()


class _TimelyBytes(io.RawIOBase):
    """The bytes that a socket receives; raises TimeoutError once its timeout has gone by since the first was asked."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw, self._timeout = sock, raw, sock.gettimeout()
        self._until = None if self._timeout is None else monotonic_ms() + self._timeout * 1_000

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Receive some bytes."""
        if self._until is None:
            return self._raw.readinto(buffer)
        left = (self._until - monotonic_ms()) / 1_000
        if left <= 0:
            raise TimeoutError(f"the answer has not come whole within {self._timeout:g} seconds")
        self._sock.settimeout(left)
        try:
            return self._raw.readinto(buffer)
        finally:
            # The connection may be kept, and the next answer has as long.
            self._sock.settimeout(self._timeout)

    def close(self) -> None:
        """Close what it reads of."""
        self._raw.close()
        super().close()


class WholeAnswersConnection(HTTPConnection):
    """A connection all of whose answers come whole in time."""

    response_class = WholeAnswer


class WholeAnswersTls(HTTPSConnection):
    """A connection by TLS all of whose answers come whole in time."""

    response_class = WholeAnswer


def whole_body(answer: HTTPResponse) -> bytes:
    """Return the body of an answer; raises HTTPException for one that is larger than anybody needs."""
    found = answer.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise HTTPException(f"an answer has more than {MOST_BYTES:,} bytes")
    if answer.length:
        raise HTTPException(f"an answer ends {answer.length:,} bytes before its end")
    return found
