"""How aiokafka's clients begin and end: none leaves a connection behind, whatever brokers do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

C = TypeVar("C")
STOP_S = 5.0
"""How long a client may take to stop."""

_known: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[Any]] = WeakKeyDictionary()
"""By event loop, the connections of all clients that anything holds on to, ended or not."""


async def begun(client: C) -> C:
    """Return a producer, consumer or administrator once it can be used; raises what keeps it from that."""
    unbegun: Any = client
    _known.setdefault(asyncio.get_running_loop(), WeakSet()).add(_connections(client))
    try:
        await unbegun.start()
    except BaseException:
        await ended(client)
        raise
    return client


async def ended(client: Any) -> None:
    """Have a client end, whatever it still waits for; how it ends tells nothing."""
    # A stop closes connections last: not where it fails before, nor where what it cancels goes on all the same.
    for ending in (client.stop if hasattr(client, "stop") else client.close, _connections(client).close):
        await _awaited(ending())


async def none_left() -> None:
    """Close what clients of this event loop have opened behind their end, as what a stop has cancelled may still do."""
    known = [*_known.get(asyncio.get_running_loop(), ())]
    await asyncio.gather(*(_awaited(connections.close()) for connections in known))


async def _awaited(ending: Awaitable[object]) -> None:
    """Wait for an end, though not for ever."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.wait([task], timeout=STOP_S)
    finally:
        task.cancel()
    if task.done() and not task.cancelled():
        task.exception()  # else it is told that nobody has looked


@asynccontextmanager
async def during(client: C) -> AsyncIterator[C]:
    """Have a client begin, and end after a block."""
    await begun(client)
    try:
        yield client
    finally:
        await ended(client)


def _connections(client: Any) -> Any:
    return client.client if hasattr(client, "client") else client._client
