"""A small HTTP server in a thread of its own, for pages and what they ask for, and not for pages of others."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qsl

from operators.core.wording import traced
from runtime.model.errors import SamzaError
from runtime.systems.host.addresses import is_address, is_local, typed

MOST_BYTES = 8_192
"""The bytes that a request may have, all of its headers included."""
MOST_BODY_BYTES = 1 << 20
"""The bytes that the body of a request may have which asks for something to be done; others have none."""
MOST_AT_ONCE = 32
"""The connections that are served at once; others are closed, so that nobody can take all memory."""
PATIENCE_S = 5.0
"""The time that a connection has to send its request, and to take its answer in."""
STATUS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
CHALLENGES = ('WWW-Authenticate: Basic realm="samza-dsl"', "WWW-Authenticate: Bearer")
_END = b"\r\n\r\n"
_log = logging.getLogger("samza_dsl")


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    text: str
    type: str = "text/plain; charset=utf-8"
    policy: str = "default-src 'none'"
    """What a browser may load beside it: nothing; a page that has styles in it says so."""


class Request(NamedTuple):
    """A request: its body, and the proof that a page of this server makes it.

    `below` is what stands behind the path of the page, and `said` what stands behind "?", as they came.
    """

    body: bytes = b""
    proof: str = ""
    below: str = ""
    said: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The fields behind "?" by their names; raises ValueError for more than a page of ours ever asks for."""
        return dict(parse_qsl(self.said, max_num_fields=16))


class Page(NamedTuple):
    """A page: the function that makes its answer, whether only those see it who have the token, if any, and its method.

    A page that `acts` is asked for by POST, with a body, and by no page of another server. One whose path ends with "/"
    answers for all that is below. One with what is `of_users` is shown to others than this machine only where there is
    a token. One that is `by_name` is read by other machines, which know this one by any name.
    """

    answer: Callable[[Request], Awaitable[Answer]]
    is_secret: bool = True
    acts: bool = False
    of_users: bool = False
    by_name: bool = False


class PageServer:
    """Serves pages at an address, from `start` to `close`, whoever asks for what.

    It has one thread, with an event loop of its own: pages are answered there. Invariants: no request, however it is
    written, ends the thread or is waited for longer than `PATIENCE_S`; a page is shown to nobody who comes from another
    page, and to who names the server by another name than it was given only with the token, if it is no secret, or if
    it is for other machines.
    """

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], token: str | None = None, known_as: str = ""
    ) -> None:
        self._host, self._port, self._pages, self._token = host, port, pages, token
        self._names = {"localhost", host.lower()} | ({known_as} if known_as else set())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event
        self._serving = 0
        self._started = threading.Event()
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="samza-dsl-pages", daemon=True)

    @property
    def host(self) -> str:
        """The host that it was given."""
        return self._host

    @property
    def address(self) -> str:
        """The host and the port, as they are typed into a browser."""
        return typed(self._host, self._port)

    @property
    def port(self) -> int:
        """The port that it has, which the system has chosen where 0 was asked for."""
        return self._port

    def start(self) -> None:
        """Begin to serve; raises SamzaError where the address can't be had."""
        assert self._loop is None, "a server is started once"
        self._thread.start()
        self._started.wait()
        if self._failed is not None:
            raise SamzaError(
                f"metrics: {self._host}:{self._port} can't be listened at: {self._failed.strerror}; give another port, "
                "or 0 for any that is free"
            ) from self._failed

    def close(self) -> None:
        """Serve no more; a second call does nothing."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        try:
            server = await asyncio.start_server(self._talk, self._host, self._port, limit=MOST_BYTES)
        except OSError as error:
            self._failed = error
            self._started.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._started.set()
        async with server:
            await self._done.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection: who scrapes twice a minute needs none that stays."""
        self._serving += 1
        try:
            if self._serving <= MOST_AT_ONCE:
                async with asyncio.timeout(2 * PATIENCE_S):
                    await self._answer(reader, writer)
        except (TimeoutError, OSError):
            # Whoever is slow or gone gets nothing more.
            pass
        finally:
            self._serving -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(_END)
                found = self._asked(head)
                # Who may not ask is not listened to any longer.
                body = await reader.readexactly(found.length) if isinstance(found, _Admitted) else b""
            answer = await found.page.answer(found.request(body)) if isinstance(found, _Admitted) else found
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            answer = Answer(431, f"a request has at most {MOST_BYTES:,} bytes\n")
        except TimeoutError:
            answer = Answer(408, "the request has not come in time\n")
        # A page that fails tells so: the thread goes on for the other pages.
        except Exception as error:
            # Without its query, which may hold secrets.
            address = head.split(b"?")[0].split(b"\r\n")[0].decode("latin-1")
            _log.error("%r can't be answered\n%s", address, traced(error))
            answer = Answer(500, f"{type(error).__name__}: see the log\n")
        body = answer.text.encode("utf-8", "backslashreplace")
        lines = [
            f"HTTP/1.1 {answer.status} {STATUS[answer.status]}",
            f"Content-Type: {answer.type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"Content-Security-Policy: {answer.policy}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "Referrer-Policy: no-referrer",
            "Connection: close",
            # For the first a browser asks its user for the token, as a password; Chromium reads one in a line.
            *(CHALLENGES if answer.status == 401 else ()),
        ]
        writer.write("\r\n".join(lines).encode() + _END + (b"" if head.startswith(b"HEAD ") else body))
        await writer.drain()

    def _asked(self, head: bytes) -> _Admitted | Answer:
        """Return what a request asks for, or the answer that refuses it."""
        first, *rest = head.removesuffix(_END).decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Answer(400, "this is no request of HTTP/1.1\n")
        headers: dict[str, str] = {}
        for line in rest:
            name, colon, value = line.partition(":")
            # A header that is there twice may be read in two ways: which of them counts nobody has to guess.
            if not colon or name != name.strip() or (name.lower() in headers and name.lower() in _ONCE):
                return Answer(400, "a header can't be read\n")
            headers[name.lower()] = value.strip()
        method, (path, _, query) = words[0], words[1].partition("?")
        has_token = self._has_token(headers.get("authorization", ""))
        if _is_from_elsewhere(headers):
            return Answer(403, "another page may not ask\n")
        above = f"{path[: path.find('/', 1)]}/"
        at = path if path in self._pages else above
        page = self._pages.get(at)
        if page is None:
            return Answer(404, f"there are {', '.join(sorted(self._pages))}\n")
        if not has_token and self._is_misnamed(page, host_of(headers.get("host", ""))):
            return Answer(
                403, "ask by an address, by the host that was given, or with the token: another name may be a trap\n"
            )
        if page.of_users and self._token is None and not is_local(self._host):
            return Answer(
                403, "this is for who has a token, and there is none: give token_file= (--metrics-token-file)\n"
            )
        if page.is_secret and self._token is not None and not has_token:
            return Answer(401, "a token is asked for: Authorization: Bearer TOKEN, or as the password\n")
        if method not in (("POST",) if page.acts else ("GET", "HEAD")):
            return Answer(405, "pages are read by GET, and asked to act by POST\n")
        length = 0
        if page.acts:
            said = headers.get("content-length", "")
            if not (said.isascii() and said.isdecimal()) or "transfer-encoding" in headers:
                return Answer(411, "the length of the body is to be said\n")
            length = int(said)
            if length > MOST_BODY_BYTES:
                return Answer(413, f"a body has at most {MOST_BODY_BYTES:,} bytes\n")
        asked = Request(b"", headers.get(PROOF.lower(), ""), path.removeprefix(at), query)
        return _Admitted(page, asked, length)

    def _has_token(self, said: str) -> bool:
        scheme, _, said = said.partition(" ")
        found = said.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            try:
                found = base64.b64decode(found, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        # Compared in the same time whatever it is: nobody can guess it one character after the other.
        return self._token is not None and hmac.compare_digest(found, self._token.encode())

    def _is_misnamed(self, page: Page, host: str) -> bool:
        """Whether somebody else may have let a name lead here, so that his page would be one of this host."""
        if host in self._names or is_address(host) or not (page.is_secret or page.acts):
            return False
        # Only what this machine alone can ask needs such a trap: else whoever has no token is asked for it.
        return is_local(self._host) or not (page.by_name or (page.is_secret and self._token is not None))


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of another server asks."""
    origin = headers.get("origin")
    # With its port: what another program serves on this machine is another page.
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


PROOF = "X-Samza-Dsl"
"""The header by which a page of this server proves that it is one; a page of another server can't set it."""
_ONCE = {"host", "origin", "authorization", "sec-fetch-site", "content-length", "transfer-encoding", PROOF.lower()}


class _Admitted(NamedTuple):
    """A request whose headers are read, and that may be made."""

    page: Page
    asked: Request
    length: int

    def request(self, body: bytes) -> Request:
        return self.asked._replace(body=body)


def host_of(authority: str) -> str:
    """Return the host of a host and port.

    >>> [*map(host_of, ("localhost:9464", "[::1]:80", "10.0.0.1", "Example.com"))]
    ['localhost', '::1', '10.0.0.1', 'example.com']
    """
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower()
