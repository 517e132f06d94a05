"""How aiokafka's clients begin and end: none leaves a connection behind, whatever brokers do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

C = TypeVar("C")
R = TypeVar("R")
STOP_S = 5.0
"""How long a client may take for each step of its end."""


async def begun(client: C, *topics: str) -> C:
    """Return a producer, consumer or administrator once it can be used; raises what keeps it from that.

    It knows `topics` then: one that is asked for what it does not know pauses for 100 ms, for each of them.
    """
    unbegun: Any = client
    beginning, answered = asyncio.ensure_future(unbegun.start()), asyncio.Event()
    _connections(client).cluster.add_listener(lambda _: answered.set())
    try:
        await asyncio.shield(beginning)
        if topics:
            await _connections(client).set_topics(topics)
    except BaseException:
        await _cancelled(beginning, answered)
        await ended(client)
        raise
    return client


async def ended(client: Any) -> None:
    """Have a client end, whatever it still waits for; how it ends tells nothing."""
    # A stop closes connections last: not where it fails before, nor where what it cancels goes on all the same.
    for ending in (client.stop if hasattr(client, "stop") else client.close, _connections(client).close):
        await _awaited(ending())


async def side_by_side(work: Iterable[Awaitable[R]]) -> list[R]:
    """Wait until each has succeeded or failed, and return what they have; raises what the first one to fail does."""
    done = await asyncio.gather(*work, return_exceptions=True)
    found: list[R] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found


async def _cancelled(beginning: asyncio.Future[Any], answered: asyncio.Event) -> None:
    """Have a client begin no further; before brokers have answered it would lose its first connection, left open."""
    hearing = asyncio.ensure_future(answered.wait())
    await asyncio.wait([beginning, hearing], timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
    hearing.cancel()
    beginning.cancel()
    await _awaited(beginning)


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
async def during(client: C, *topics: str) -> AsyncIterator[C]:
    """Have a client begin, which knows `topics`, and end after a block."""
    await begun(client, *topics)
    try:
        yield client
    finally:
        await ended(client)


def _connections(client: Any) -> Any:
    return client.client if hasattr(client, "client") else client._client
