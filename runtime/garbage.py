"""When Python's collector of reference cycles rests, or looks less often: while much is under way at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 1_000
"""From so many rows on, which a step takes only where they are done in a tenth of a second, the collector rests."""
MADE = 10 * MANY
"""What so many calls in flight hold: coroutines, futures, timers and the like. None of it is garbage."""


@contextmanager
def collector_resting() -> Iterator[None]:
    """Let the collector wait, if it is at work at all.

    It counts what was made, not what is garbage: at every few hundred messages it would walk all columns of the batch
    at hand. What is in no cycle is freed at once as ever, and cycles after the step.

    >>> with collector_resting():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collector_patient(calls: int) -> Iterator[None]:
    """Let the collector wait until more was made than so many calls have in flight, if these are many.

    It would look at them some times while all of them begin, and as often while they end. What outlives its first look
    is looked at about as often as ever. What the user has set is left where it is more patient.

    >>> with collector_patient(calls=1_000):
    ...     gc.get_threshold()[0]
    10000
    """
    first, second, third = usual = gc.get_threshold()
    if calls < MANY or not 0 < first < MADE:
        yield
        return
    gc.set_threshold(MADE, max(second * first // MADE, 1), third)
    patient = gc.get_threshold()
    try:
        yield
    finally:
        if gc.get_threshold() == patient:
            gc.set_threshold(*usual)
