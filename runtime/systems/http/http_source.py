"""An input that others post to: each record is durable in its stream before it is acknowledged."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runtime.model.errors import SamzaError
from runtime.ports.connectors import Intake, PushedRecord, PushedSource
from runtime.systems.files.places.contents import unpacked
from runtime.systems.files.places.locations import needs
from runtime.systems.host.addresses import address_of, is_local
from runtime.systems.http.request_parts import Token, token_said

if TYPE_CHECKING:
    from aiohttp import web

REMEMBERED = 100_000
"""The idempotency keys that are remembered, of the newest requests that had one."""
LONGEST_KEY = 256
"""The bytes that an idempotency key has at most."""
MOST_HELD_BYTES = 1 << 26
"""The bytes of requests whose bodies come or wait to be appended; others are told to come again."""
OF_A_REQUEST, OF_A_RECORD = 1 << 16, 1 << 8
"""The bytes that a request and a record take beside what was posted, about."""
PATIENCE_S = 30.0
"""The time that a body has to come."""
TYPES = ("application/json", "application/x-ndjson", "application/octet-stream")
LINES = "application/x-ndjson"
PACKED = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The encodings of bodies, as zlib reads them."""
_PATH = re.compile(r"/[^\s?#{}]*")
"""A path that one URL alone has: aiohttp takes braces for a pattern."""
_log = logging.getLogger("samza_dsl")


def http_source(
    address: str = ":8080",
    path: str = "/",
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    max_body_bytes: int = 1 << 20,
    on_ready: Callable[[str], None] | None = None,
) -> PushedSource:
    """Let others post records: `{"orders": connectors.http_source(":8080", "/orders")}`.

    The body of a request is a record, as the input's `value=` reads it; with `Content-Type: application/x-ndjson` each
    of its lines is. It is answered by 202 once all of them are durable in the stream of the input, and by 422, with
    none of them taken, where one is not of the input's type. A request whose header `Idempotency-Key` was there before,
    in one of the last 100,000 that had one, is answered alike and takes no effect. `on_ready` is told the URL once it
    is served. Without a host it is for this machine alone; for others a `token` is needed, which requests carry as
    `Authorization: Bearer TOKEN`. TLS is for a proxy in front of it. It needs `samza-dsl[http]`. Raises SamzaError for
    malformed arguments, and the run where the address can't be had.

    >>> from samza_dsl import connectors
    >>> connectors.http_source(":8080", "/orders").name
    'http://127.0.0.1:8080/orders'
    """
    try:
        host, port = address_of(address)
    except ValueError as error:
        raise SamzaError(
            f'http_source({address!r}): {error}: write ":8080", or 0.0.0.0:8080 for other machines'
        ) from None
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise SamzaError(
            f'http_source(path={path!r}): write what stands behind the host, without spaces, ?, # and {{}}: "/orders"'
        )
    if type(max_body_bytes) is not int or max_body_bytes < 1:
        raise SamzaError(f"http_source(max_body_bytes={max_body_bytes!r}): write a whole number, as 1_000_000")
    found = token_said("http_source", token, token_file)
    if found() is None and not is_local(host):
        raise SamzaError(
            f"http_source({address!r}): whoever reaches {host} could write: say a token, or token_file=, or leave the "
            "host out"
        )
    server = _PostServer(host, port, path, found, max_body_bytes, on_ready)
    return PushedSource(f"http://{host}:{port}{path}", lambda intake: _serve(server, intake))


def _serve(server: _PostServer, intake: Intake) -> None:
    with needs("aiohttp", f"{server.url(server.port)} needs", "http"):
        import aiohttp  # noqa: F401  # so that its absence is told of in its own words
    if not intake.until_now:
        asyncio.run(server.serve(intake))


class _Posted(NamedTuple):
    """The records of a request that wait to be appended, its idempotency key, and who waits for them."""

    records: list[PushedRecord]
    key: bytes
    done: asyncio.Future[None]


class _PostServer:
    """A server of one path. Its handlers and its one appender are tasks of one event loop, in the source's thread."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        token: Token,
        max_body_bytes: int,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        self._host, self.port, self._path = host, port, path
        self._token, self._max_body_bytes, self._on_ready = token, max_body_bytes, on_ready
        self._waiting: list[_Posted] = []
        self._came = asyncio.Event()
        self._ends, self._held_bytes = False, 0
        self._keys = _SeenKeys({})

    def url(self, port: int) -> str:
        """Return the URL at which it is served."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}{self._path}"

    async def serve(self, intake: Intake) -> None:
        """Serve until the run ends."""
        from aiohttp import web

        self._intake, self._keys = intake, _SeenKeys(dict(intake.noted))
        self._waiting, self._came, self._ends = [], asyncio.Event(), False
        application = web.Application(client_max_size=self._max_body_bytes)
        application.router.add_post(self._path, self._post)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await runner.setup()
        appending = asyncio.create_task(self._append_all())
        closing = asyncio.create_task(_until_closing(intake))
        try:
            try:
                site = web.TCPSite(runner, self._host, self.port)
                await site.start()
            except OSError as error:
                raise SamzaError(
                    f"{self.url(self.port)} can't be listened at: {error.strerror}; give another port"
                ) from error
            url = self.url(runner.addresses[0][1])
            _log.info("records are taken in by POST at %s", url)
            if self._on_ready is not None:
                self._on_ready(url)
            await asyncio.wait({appending, closing}, return_when=asyncio.FIRST_COMPLETED)
            if appending.done():
                appending.result()
        finally:
            closing.cancel()
            # What is on its way into the log is answered for; what is not yet, is not taken.
            self._ends = True
            self._came.set()
            try:
                with suppress(SamzaError):
                    await appending
            finally:
                for posted in self._waiting:
                    posted.done.cancel()
                await runner.cleanup()

    async def _post(self, request: web.Request) -> web.Response:
        from aiohttp import web

        said = request.headers
        try:
            token = self._token()
        except SamzaError as error:
            _log.warning("%s; who posts is told to come again", error)
            raise web.HTTPServiceUnavailable(text="no token is there\n", headers={"Retry-After": "5"}) from None
        if token is not None:
            scheme, _, given = said.get("Authorization", "").partition(" ")
            # Compared in the same time whatever it is: nobody can guess it one character after the other.
            if scheme.lower() != "bearer" or not hmac.compare_digest(_as_sent(given.strip()), token.encode()):
                raise web.HTTPUnauthorized(text="a token is asked for: Authorization: Bearer TOKEN\n")
        elif "Origin" in said:
            # A page in the browser of this machine may post to it; of a program no Origin is told.
            raise web.HTTPForbidden(text="a page of a browser may not post without a token\n")
        if request.content_type not in TYPES and not request.content_type.endswith("+json"):
            raise web.HTTPUnsupportedMediaType(text=f"the Content-Type is one of {', '.join(TYPES)}\n")
        key = _as_sent(said.get("Idempotency-Key", ""))
        if len(key) > LONGEST_KEY:
            raise web.HTTPBadRequest(text=f"an Idempotency-Key has at most {LONGEST_KEY} bytes\n")
        encoding = said.get("Content-Encoding", "").strip().lower()
        is_told = request.content_length is not None and encoding in ("", "identity")
        with self._room(min(request.content_length or 0, self._max_body_bytes) if is_told else self._max_body_bytes):
            body = self._plain(await self._body(request), encoding)
            is_lines = request.content_type == LINES
            records = self._records([line for line in body.splitlines() if line.strip()] if is_lines else [body])
        with self._room(len(body) + OF_A_RECORD * len(records)):
            await self._appended(records, key)
        return web.json_response({"records": len(records)}, status=202)

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Hold the memory of a request; where others hold too much of it, that is told to come again."""
        from aiohttp import web

        size += OF_A_REQUEST
        # One alone is let in whatever its size, or it would be told to come again for ever.
        if self._ends or (self._held_bytes and self._held_bytes + size > MOST_HELD_BYTES):
            raise web.HTTPServiceUnavailable(
                text="too many requests wait, or the run has ended\n", headers={"Retry-After": "1"}
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    async def _body(self, request: web.Request) -> bytes:
        from aiohttp import web

        try:
            async with asyncio.timeout(PATIENCE_S):
                return await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body has not come in time\n") from None
        except ConnectionError:
            # Whoever posts has gone away in the middle: nobody hears the answer.
            raise web.HTTPBadRequest(text="the body has not come whole\n") from None

    def _plain(self, body: bytes, encoding: str) -> bytes:
        # By ourselves: aiohttp leaves a traceback in the log where a body is not packed as its header says.
        from aiohttp import web

        if encoding in ("", "identity"):
            return body
        if encoding not in PACKED:
            raise web.HTTPUnsupportedMediaType(text=f"the Content-Encoding is one of {', '.join(PACKED)}\n")
        begin = partial(zlib.decompressobj, PACKED[encoding])
        try:
            found = unpacked(body, begin, self._max_body_bytes, "parts" if encoding == "gzip" else "nothing")
        except (zlib.error, EOFError):
            raise web.HTTPBadRequest(text=f"the body is no whole {encoding}\n") from None
        if found is None:
            raise web.HTTPRequestEntityTooLarge(self._max_body_bytes, self._max_body_bytes + 1)
        return found

    def _records(self, values: list[bytes]) -> list[PushedRecord]:
        from aiohttp import web

        for number, value in enumerate(values, 1):
            try:
                self._intake.serde.decode(value)
            except Exception as error:
                raise web.HTTPUnprocessableEntity(text=f"record {number} of {len(values)}: {error}\n") from None
        return [PushedRecord(value) for value in values]

    async def _appended(self, records: list[PushedRecord], key: bytes) -> None:
        """Wait until records are durable; those of a key that was there before are, or are on their way."""
        from aiohttp import web

        if key and key in self._keys.seen:
            return
        same = next((posted for posted in self._waiting if key and posted.key == key), None)
        if same is None:
            same = _Posted(records, key, asyncio.get_running_loop().create_future())
            self._waiting.append(same)
            self._came.set()
        try:
            # Whoever posts may go away, and others wait for the same.
            await asyncio.shield(same.done)
        except asyncio.CancelledError:
            if same.done.cancelled():
                raise web.HTTPServiceUnavailable(text="the run has ended\n", headers={"Retry-After": "5"}) from None
            raise

    async def _append_all(self) -> None:
        """Append what has come, all that waits at once: each commit of the log is one write to the disk."""
        while not self._ends:
            await self._came.wait()
            self._came.clear()
            posted = [*self._waiting]
            records = [record for one in posted for record in one.records]
            notes = self._keys.notes([one.key for one in posted if one.key])
            if posted:
                await asyncio.to_thread(self._intake.push, records, notes)
            self._keys.keep(notes)
            del self._waiting[: len(posted)]
            for one in posted:
                if not one.done.done():
                    one.done.set_result(None)


def _as_sent(header: str) -> bytes:
    """Return the bytes of a header, which need be no text: aiohttp keeps what is none as surrogates."""
    return header.encode("utf-8", "surrogateescape")


async def _until_closing(intake: Intake) -> None:
    # Asked again and again: a thread that waits for the end would keep a source from ending by an error of its own.
    while not await asyncio.to_thread(intake.wait, 0.2):
        pass


class _SeenKeys:
    """The idempotency keys of the last requests, each noted in a slot that is taken again after so many others."""

    def __init__(self, noted: dict[str, bytes]) -> None:
        self._slots = {name: value for name, value in noted.items() if name != "next"}
        self._next = int(noted.get("next", b"0"))
        self.seen = {*self._slots.values()}

    def notes(self, keys: list[bytes]) -> dict[str, bytes]:
        """Return the notes by which keys are kept."""
        found = {str((self._next + n) % REMEMBERED): key for n, key in enumerate(keys)}
        return found | {"next": b"%d" % (self._next + len(keys))} if keys else {}

    def keep(self, notes: dict[str, bytes]) -> None:
        """Take keys for seen, whose notes are durable."""
        for name, value in notes.items():
            if name == "next":
                self._next = int(value)
                continue
            self.seen.discard(self._slots.get(name, b""))
            self._slots[name] = value
            self.seen.add(value)
