"""The thread on which aiokafka's event loop runs: one per process, while anything needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TypeVar

from aiokafka.errors import KafkaConnectionError, KafkaError

R = TypeVar("R")
CANCELLED_S = 1.0
"""The s that cancelled tasks may take to end."""


class KafkaThread:
    """An event loop on a thread of its own: a run's loop and its writer thread ask, and never wait for the other.

    Any other thread may call it; on the thread itself `call` would wait for itself.
    """

    _shared: KafkaThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_tell)
        self._users = 0
        self._lasts = True
        self._endings: set[Callable[[], bool]] = set()
        """What ends each wait for the thread's work."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="samza-dsl-kafka", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> KafkaThread:
        """Return the process's thread, which runs until all who acquired it have released it."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def release(self) -> None:
        """Let go of it; the last one ends it."""
        with KafkaThread._lock:
            assert self._users > 0, "released more often than acquired"
            self._users -= 1
            if self._users:
                return
            KafkaThread._shared = None
        self.call(cancel_others())
        with self._lock:
            self._lasts = False
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        # What was asked for beside the end, or does not end when it is cancelled: who waits would wait for ever.
        for end in [*self._endings]:
            end()
        self.loop.close()

    def call(self, work: Coroutine[object, object, R]) -> R:
        """Do work there, and wait for what it returns; raises what it raises.

        What aiokafka cancels when a connection is lost raises KafkaConnectionError, and so does what its end cancels.
        """
        assert threading.current_thread() is not self._thread, "Kafka's thread would wait for itself"
        with self._lock:
            if not self._lasts:
                work.close()
                raise KafkaConnectionError("all connections are closed")
            asked = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._endings.add(asked.cancel)
        try:
            return asked.result()
        except CancelledError as error:
            raise KafkaConnectionError("a lost connection has cancelled it") from error
        finally:
            self._endings.discard(asked.cancel)


def _tell(loop: asyncio.AbstractEventLoop, said: dict[str, object]) -> None:
    """Tell of an error that nobody has heard, unless aiokafka has set it in another future as well, which is."""
    is_task = isinstance(said.get("future"), asyncio.Task)
    if is_task or not isinstance(said.get("exception"), KafkaError):
        loop.default_exception_handler(said)


def stop(thread: KafkaThread, ending: Coroutine[object, object, object]) -> None:
    """Do what comes before an end, and wait for it; its errors tell nothing any more."""
    with suppress(Exception):
        thread.call(ending)


async def cancel_others() -> None:
    """Cancel what is left of clients that could not be stopped."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CANCELLED_S)
