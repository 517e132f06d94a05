"""Rests Python's collector of reference cycles, or lets it look less often, while much is under way at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

MANY = 1_000
"""The rows, or calls, from which on the collector rests; a step has so many only where it takes 100 ms at most."""
MADE = 10 * MANY
"""The objects that so many calls in flight hold: coroutines, futures, timers and the like. None is garbage."""


@contextmanager
def collector_resting() -> Iterator[None]:
    """Switch the collector off for a step of work; what the user has switched off stays off.

    What is in no cycle is freed at once as ever, and cycles after the step.

    >>> with collector_resting():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    if not gc.isenabled():
        yield
        return
    # It counts what was made, not what is garbage, and would walk all columns at hand every 700 messages: with the
    # cache misses that this brings, that took a quarter of a loop (B3).
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def resting_for(many: int) -> AbstractContextManager[None]:
    """Let the collector rest for a step of so many rows or entries, if these are many."""
    return collector_resting() if many >= MANY else nullcontext()


@contextmanager
def collector_patient(calls: int) -> Iterator[None]:
    """Raise the collector's first threshold while so many calls may be in flight, if these are many.

    What outlives its first look is looked at about as often as ever. A threshold of the user's that is higher stays.

    >>> with collector_patient(calls=1_000):
    ...     gc.get_threshold()[0]
    10000
    """
    first, second, third = usual = gc.get_threshold()
    if calls < MANY or not 0 < first < MADE:
        yield
        return
    # At 700 it looks some times while that many calls begin, and as often while they end: 13 % of the processor in B4.
    # The second threshold falls as the first one rises, so that older objects are looked at as often.
    gc.set_threshold(MADE, max(second * first // MADE, 1), third)
    patient = gc.get_threshold()
    try:
        yield
    finally:
        # The threshold is the whole process's: what the user has set meanwhile stays.
        if gc.get_threshold() == patient:
            gc.set_threshold(*usual)
