"""How aiokafka's clients begin and end: none leaves a connection behind, whatever brokers do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

C = TypeVar("C")
STOP_S = 5.0
"""How long a client may take to stop."""


async def begun(client: C) -> C:
    """Return a producer, consumer or administrator once it can be used; raises what keeps it from that."""
    unbegun: Any = client
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
        task = asyncio.ensure_future(ending())
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
