"""An input of what a websocket sends, which goes on where it was by a token of the last message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from operators.core.wording import shown
from runtime.model.errors import SamzaError
from runtime.model.urls import shown_url
from runtime.ports.connectors import Intake, PushedRecord, PushedSource
from runtime.systems.files.places.locations import needs
from runtime.systems.http.request_parts import Token, headers_said, token_said, url_said

if TYPE_CHECKING:
    import aiohttp

AT_ONCE = 1_000
"""The messages that are appended at a time at most."""
MOST_WAITING_BYTES = 1 << 26
"""The bytes of messages that wait to be appended; then no more are received, and whoever sends has to wait."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
CONNECT_S = 10.0
"""The time that a server has to take a connection."""
HEARTBEAT_S = 20.0
"""The interval of pings; a connection on which nothing answers these is made anew."""
NOTE = "resume"
FINAL = {400, 401, 403, 404, 405, 410, 426}
"""The statuses by which a server refuses a websocket for good."""
_log = logging.getLogger("samza_dsl")

Hello = Callable[[str | None], Sequence[str | bytes]]
"""Returns what is sent first, given the token of the last message that was taken in; None where there is none."""


def _silent(token: str | None) -> Sequence[str | bytes]:
    return ()


def websocket(
    url: str,
    *,
    resume: Callable[[Any], str | None] | None = None,
    hello: Hello = _silent,
    token: str | None = None,
    token_file: str | Path | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    max_message_bytes: int = 1 << 20,
) -> PushedSource:
    """Take in the messages of a websocket: `{"trades": connectors.websocket("wss://example.com/trades")}`.

    Each message is a record, as the input's `value=` reads it; one that it can't is for the `on_error=` of the input.
    `resume(value)` returns the token of a message, or None where it has none, from behind which the server can go on;
    it is kept in the transaction that takes the message in. On each connection `hello(token)` returns what is sent
    first, as a subscription, with the last token; in `url` it stands in the place of `{token}`, or nothing. So each
    message takes effect once, as long as the server goes on behind the token; without `resume` what it sends while
    nobody listens is lost. A connection that is lost is made anew, for as long as it takes; one that the server refuses
    (400, 401, 403, 404, 405, 410, 426) ends the run. It needs `samza-dsl[http]`. Raises SamzaError for malformed
    arguments.

    >>> from samza_dsl import connectors
    >>> connectors.websocket("wss://example.com/trades?from={token}", resume=lambda trade: str(trade.id)).name
    'wss://example.com/trades'
    """
    url_said("websocket", url, ("ws", "wss"), 'write where messages come from: websocket("wss://example.com/trades")')
    if type(max_message_bytes) is not int or max_message_bytes < 1:
        raise SamzaError(f"websocket(max_message_bytes={max_message_bytes!r}): write a whole number, as 1_000_000")
    if resume is not None and "{token}" not in url and hello is _silent:
        raise SamzaError(
            f"websocket({shown_url(url)!r}, resume=...): no server is told the token that resume= returns: write where "
            'it goes, as in websocket("wss://example.com/trades?after={token}"), or say hello='
        )
    said = token_said("websocket", token, token_file)
    own = {} if said() is None else {"Authorization": "the token says who asks"}
    client = _Client(url, resume, hello, said, headers_said("websocket", headers, own), max_message_bytes)
    return PushedSource(client.name, client.push)


class _Client:
    """The client of one websocket. All of it is one task of an event loop in the source's thread."""

    def __init__(
        self,
        url: str,
        resume: Callable[[Any], str | None] | None,
        hello: Hello,
        token: Token,
        headers: Mapping[str, str],
        most_bytes: int,
    ) -> None:
        self.name = shown_url(url)
        self._url, self._resume, self._hello, self._token, self._headers = url, resume, hello, token, headers
        self._most_bytes = most_bytes

    def push(self, intake: Intake) -> None:
        """Take messages in until the run ends."""
        with needs("aiohttp", f"{self.name} needs", "http"):
            import aiohttp  # noqa: F401  # so that its absence is told of in its own words
        if not intake.until_now:
            asyncio.run(self._listen(intake))

    async def _listen(self, intake: Intake) -> None:
        import aiohttp

        pause_s = FIRST_PAUSE_S
        async with aiohttp.ClientSession() as session:
            while not intake.wait(0):
                try:
                    if await self._connected(session, intake):
                        pause_s = FIRST_PAUSE_S
                except aiohttp.WSServerHandshakeError as error:
                    if error.status in FINAL:
                        raise SamzaError(f"{self.name} is refused: {error.status} {error.message}") from error
                    _log.warning("%s: %d %s; it is tried again", self.name, error.status, error.message)
                except aiohttp.ClientConnectorCertificateError as error:
                    raise SamzaError(f"{self.name} is not trusted: {error.certificate_error}") from error
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    _log.warning("%s can't be reached, and is tried again: %r", self.name, error)
                if await asyncio.to_thread(intake.wait, pause_s):
                    return
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _connected(self, session: aiohttp.ClientSession, intake: Intake) -> bool:
        """Take messages in until the connection or the run ends; return whether some came."""
        note = intake.noted.get(NOTE)
        token = None if note is None else note.decode()
        headers = dict(self._headers)
        if (said := self._token()) is not None:
            headers["Authorization"] = f"Bearer {said}"
        url = self._url.replace("{token}", _quoted(token or ""))
        connecting = session.ws_connect(
            url, headers=headers, heartbeat=HEARTBEAT_S, max_msg_size=self._most_bytes, autoping=True
        )
        socket = await asyncio.wait_for(connecting, CONNECT_S)
        came = _Waiting(2 * AT_ONCE)
        receiving = asyncio.create_task(_receive(socket, came))
        beside = [receiving, asyncio.create_task(_close_at_the_end(socket, intake))]
        has_come = False
        try:
            for words in self._first(token):
                await (socket.send_str(words) if isinstance(words, str) else socket.send_bytes(words))
            while messages := await _some(came):
                has_come = True
                token = self._newest(messages, intake, token)
                notes = {NOTE: token.encode()} if token is not None else {}
                await asyncio.to_thread(intake.push, [PushedRecord(message) for message in messages], notes)
        finally:
            for one in beside:
                one.cancel()
            await asyncio.wait(beside)
            await socket.close()
        if socket.close_code == 1009:
            raise SamzaError(
                f"{self.name} has sent a message of more than {self._most_bytes:,} bytes: say max_message_bytes="
            )
        if not intake.wait(0):
            _log.warning("%s %s; it is connected to anew", self.name, receiving.result())
        return has_come

    def _first(self, token: str | None) -> Sequence[str | bytes]:
        """Return what is sent first; raises SamzaError for what is no list of messages."""
        try:
            found = self._hello(token)
            found = found if isinstance(found, str | bytes) else [*found]
        except Exception as error:
            raise SamzaError(f"{self.name}: hello= has failed with {error!r} on the token {token!r}") from error
        if isinstance(found, str | bytes) or not all(isinstance(words, str | bytes) for words in found):
            raise SamzaError(
                f"{self.name}: hello= has returned {_kind_of(found)}: return a list of the messages that are sent "
                "first, each text or bytes: hello=lambda token: [json.dumps({'subscribe': token})]"
            )
        return found

    def _newest(self, messages: Sequence[bytes], intake: Intake, token: str | None) -> str | None:
        """Return the token of the last message that has one."""
        if self._resume is None:
            return token
        for message in reversed(messages):
            try:
                value = intake.serde.decode(message)
            except Exception:
                continue  # it is told of where the stream is read, by the policy of the input
            try:
                found = self._resume(value)
            except Exception as error:
                raise SamzaError(
                    f"{self.name}: resume= has failed with {error!r} on {shown(value)}: return the token of a message, "
                    "or None where it has none"
                ) from error
            if found is None:
                continue
            if not isinstance(found, str):
                raise SamzaError(
                    f"{self.name}: resume= has returned {shown(found)} for {shown(value)}: return text, as "
                    "str(trade.id), or None where a message has no token"
                )
            return found
        return token


def _kind_of(said: object) -> str:
    """Return what is sent by its types alone: where it logs in, it has secrets.

    >>> _kind_of("subscribe"), _kind_of([{"key": "secret"}, "subscribe"])
    ('a str', 'a list of dict, str')
    """
    kinds = sorted({type(one).__name__ for one in said}) if isinstance(said, list) else []
    return f"a {type(said).__name__}{' of ' if kinds else ''}{', '.join(kinds)}"


class _Waiting(asyncio.Queue[bytes | None]):
    """The messages that wait to be appended, and None behind the last: so many, and not more bytes than may wait."""

    _held = 0

    def full(self) -> bool:
        """Whether whoever puts another one has to wait."""
        return super().full() or self._held >= MOST_WAITING_BYTES

    def _put(self, item: bytes | None) -> None:
        super()._put(item)
        self._held += len(item or b"")

    def _get(self) -> bytes | None:
        item: bytes | None = super()._get()
        self._held -= len(item or b"")
        return item


async def _receive(socket: aiohttp.ClientWebSocketResponse, came: _Waiting) -> str:
    """Put messages into a queue, and None behind the last one of the connection; return what has ended that."""
    import aiohttp

    while True:
        message = await socket.receive()
        if message.type == aiohttp.WSMsgType.TEXT:
            await came.put(message.data.encode())
        elif message.type == aiohttp.WSMsgType.BINARY:
            await came.put(bytes(message.data))
        else:
            await came.put(None)
            if message.type == aiohttp.WSMsgType.CLOSE:
                return f"has closed the connection, {message.data} {message.extra or ''}".rstrip()
            return f"is lost: {message.data or 'the connection has ended without a word'!r}"


async def _some(came: _Waiting) -> list[bytes]:
    """Return the messages that are there, at least one; none where the connection has ended."""
    found: list[bytes] = []
    message = await came.get()
    while message is not None:
        found.append(message)
        if len(found) == AT_ONCE or came.empty():
            return found
        message = came.get_nowait()
    if found:
        # For the next look.
        await came.put(None)
    return found


async def _close_at_the_end(socket: aiohttp.ClientWebSocketResponse, intake: Intake) -> None:
    while not await asyncio.to_thread(intake.wait, 0.2):
        pass
    await socket.close()


def _quoted(token: str) -> str:
    from urllib.parse import quote

    return quote(token, safe="")
