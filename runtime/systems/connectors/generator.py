"""An input of the items that a generator of the user's own yields, taken into a stream first."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from typing import Any

from runtime.model.errors import SamzaError
from runtime.ports.connectors import Intake, PushedRecord, PushedSource

AT_ONCE = 1_000
"""The items that are appended at a time at most."""
LOOK_S = 0.1
"""The interval at which a thread that waits looks whether the run is closing."""
NOTE = "next"
_END = object()

Items = Callable[[int], Iterable[Any] | AsyncIterable[Any]]
"""Returns the items from a number on."""


def generator(name: str, items: Items) -> PushedSource:
    """Take in what a generator yields, plain or async: `{"ticks": connectors.generator("ticks", ticks)}`.

    `items(number)` yields values, or `PushedRecord`s with keys and times, from that number on: 0 at first, and after
    a crash, or in a later run, as many as are in the stream of the input. So each takes effect once, as long as the
    generator yields the same ones under the same numbers, or has no use for the number and yields what is new. Items
    are appended as they come. Where it ends, the stream of the input ends for good, and with it the run; a run until
    now waits for that end as well. It has a thread, and an event loop, of its own.

    >>> from samza_dsl import App, connectors
    >>> import tempfile
    >>> app = App("doubled")
    >>> app.input("numbers", value=int).map(lambda n: 2 * n).send_to(app.output("doubled", value=int))
    >>> with tempfile.TemporaryDirectory() as data:
    ...     run = app.run(data, bind={"numbers": connectors.generator("three", lambda number: range(number, 3))})
    ...     run.received("doubled")
    [0, 2, 4]
    """
    if not callable(items):
        raise SamzaError(
            f"generator({name!r}, {items!r}): write a function that returns the items from a number on: "
            "lambda number: range(number, 100)"
        )
    return PushedSource(name, lambda intake: _push(name, items, intake))


def _push(name: str, items: Items, intake: Intake) -> None:
    number = int(intake.noted.get(NOTE, b"0"))
    # In a thread of its own: what was yielded does not wait for the next item, however long that takes.
    came: queue.Queue[object] = queue.Queue(2 * AT_ONCE)
    reading = _GeneratorThread(name, items, number, came, intake)
    threading.Thread(target=reading.run, name="samza-dsl-generator", daemon=True).start()
    while not intake.wait(0):
        found, is_over = _some(came)
        if found:
            number += len(found)
            intake.push([one if isinstance(one, PushedRecord) else PushedRecord(one) for one in found], _noted(number))
        if is_over:
            if isinstance(reading.failure, SamzaError):
                raise reading.failure
            if reading.failure is not None:
                raise SamzaError(
                    f"{name}: the generator has failed behind {number:,} items, which are taken in: "
                    f"{reading.failure!r}. Mend it: the next run asks it for those from number {number} on"
                ) from reading.failure
            intake.end()
            return


def _noted(number: int) -> dict[str, bytes]:
    return {NOTE: b"%d" % number}


def _some(came: queue.Queue[object]) -> tuple[list[Any], bool]:
    """Return the items that are there, and whether these are the last ones."""
    found: list[object] = []
    with suppress(queue.Empty):
        found.append(came.get(timeout=LOOK_S))
        while found[-1] is not _END and len(found) < AT_ONCE:
            found.append(came.get_nowait())
    is_over = bool(found) and found[-1] is _END
    return found[: len(found) - is_over], is_over


class _GeneratorThread:
    """The thread that a generator runs in: it ends with the generator, or where the run is closing.

    Invariant: `failure` is set before the end is put into the queue, behind all that was yielded.
    """

    def __init__(self, name: str, items: Items, number: int, came: queue.Queue[object], intake: Intake) -> None:
        self._name = name
        self._items, self._number, self._came, self._intake = items, number, came, intake
        self.failure: Exception | None = None

    def run(self) -> None:
        """Read the items."""
        try:
            found = self._items(self._number)
            if isinstance(found, AsyncIterable):
                asyncio.run(self._read(found))
            elif not isinstance(found, Iterable):
                raise SamzaError(
                    f"{self._name}: the function has returned a {type(found).__name__} for number {self._number}: "
                    "return the items from there on, or yield them"
                )
            else:
                for item in found:
                    if not self._put(item):
                        return
        except Exception as error:
            self.failure = error
        self._put(_END)

    async def _read(self, items: AsyncIterable[Any]) -> None:
        async for item in items:
            if not await asyncio.to_thread(self._put, item) if self._came.full() else not self._put(item):
                return

    def _put(self, item: object) -> bool:
        """Hand an item on; return whether there is still somebody who takes it."""
        while not self._intake.wait(0):
            with suppress(queue.Full):
                self._came.put(item, timeout=LOOK_S)
                return True
        return False
