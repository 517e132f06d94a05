"""The progress of a run while workers run it: these send datagrams, and the driver hears them."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runtime.model.metrics import RunMetrics

EVERY_S = 0.5
"""The s after which an attempt says again how far it is."""
MOST_BYTES = 60_000
"""The most bytes of a datagram; who has more to say is heard of at the end."""
LOOK_S = 0.5
TOKEN_BYTES = 16


class Address(NamedTuple):
    """The address at which the driver hears workers, and the token that tells them from all others."""

    host: str
    port: int
    token: bytes


class Said(msgspec.Struct, frozen=True, array_like=True):
    """The progress of an attempt to run a unit; `written` has its rows by stream between stages, and partition."""

    unit: int
    metrics: RunMetrics
    written: dict[str, list[int]] = {}
    done: bool = False

    @property
    def passed(self) -> int:
        """A measure of what has passed: of two attempts the one that has come further has more."""
        inputs = sum(one.offset for one in self.metrics.inputs)
        return inputs + sum(one.received + one.emitted for one in self.metrics.operators)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Said).decode


class Hearing:
    """Hears workers until it is closed, and keeps of each unit the attempt that has come furthest.

    So an attempt that fails, or that runs beside another one, counts nothing twice. Where no datagram comes through,
    nothing is heard. A thread of its own hears; any other may ask for what is `furthest`.

    >>> with_nobody = Hearing("127.0.0.1")
    >>> with_nobody.furthest(), with_nobody.close()
    ([], None)
    """

    def __init__(self, host: str, bound: str | None = None) -> None:
        self._socket = _bound(bound or host)
        self._socket.settimeout(LOOK_S)
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        self._furthest: dict[int, Said] = {}
        self._closed = False
        threading.Thread(target=self._hear, name="hearing", daemon=True).start()

    def furthest(self) -> list[Said]:
        """Return what is known of each unit of which anything was heard."""
        return [self._furthest[unit] for unit in sorted(self._furthest.copy())]

    def close(self) -> None:
        """Hear no more."""
        self._closed = True

    def _hear(self) -> None:
        with self._socket:
            while not self._closed:
                with suppress(TimeoutError, OSError):
                    self._take(self._socket.recv(1 << 16))

    def _take(self, data: bytes) -> None:
        token, data = data[:TOKEN_BYTES], data[TOKEN_BYTES:]
        # Anybody may send to the port: who has not the token is not heard.
        if not secrets.compare_digest(token, self.address.token):
            return
        with suppress(zlib.error, msgspec.MsgspecError):
            said = _decode(zlib.decompress(data))
            known = self._furthest.get(said.unit)
            # Datagrams overtake each other, and attempts repeat each other.
            if known is None or (said.done, said.passed) >= (known.done, known.passed):
                self._furthest[said.unit] = said


class Saying:
    """Says every so often how far an attempt is, in the event loop in which it runs, until it is closed."""

    def __init__(self, to: Address, look: Callable[[], Said]) -> None:
        self._token, self._look = to.token, look
        self._socket: socket.socket | None = None
        self._place: tuple[object, ...] = ()
        with suppress(OSError):
            family, kind, _, _, self._place = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setblocking(False)
        self._later: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Say it now, and from now on every so often."""
        self.say(self._look())
        self._later = asyncio.get_running_loop().call_later(EVERY_S, self.begin)

    def say(self, said: Said) -> None:
        """Say it once; nothing happens where nobody is reached."""
        data = self._token + zlib.compress(_encode(said), 1)
        # Never waited for, and never an error: a run does not depend on being seen.
        if self._socket is not None and len(data) <= MOST_BYTES:
            with suppress(OSError):
                self._socket.sendto(data, self._place)

    def close(self) -> None:
        """Say no more."""
        if self._later is not None:
            self._later.cancel()
        if self._socket is not None:
            self._socket.close()


def _bound(host: str) -> socket.socket:
    """Return a socket that hears what comes to a host; where none here has that name, what this machine says itself."""
    for name in (host, "127.0.0.1"):
        with suppress(OSError):
            family, kind, _, _, place = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)[0]
            found = socket.socket(family, kind)
            try:
                found.bind(place)
            except OSError:
                found.close()
                continue
            return found
    raise OSError(f"no datagram can be heard at {host}")
