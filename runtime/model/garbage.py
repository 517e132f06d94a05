"""Rests Python's collector of reference cycles in a step of many rows, and lets it look less often in a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

MANY = 1_000
"""The rows from which on the collector rests; a step has so many only where it takes 100 ms at most."""
MADE = 50_000
"""The objects more than gone behind which it looks in a run: most of those that a step makes are gone by then."""

MOMENT_S = 1.0
"""The most seconds for which it rests in a step that is awaited: it is off for the whole process."""


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
def collector_patient() -> Iterator[None]:
    """Raise the collector's first threshold for a run.

    What outlives its first look is looked at about as often as ever. A threshold of the user's that is higher stays.

    >>> with collector_patient():
    ...     gc.get_threshold()[0]
    50000
    """
    first, second, third = usual = gc.get_threshold()
    if not 0 < first < MADE:
        yield
        return
    # At 700 it looks behind each step, at all that a window holds since, and while calls begin and end: a tenth to a
    # fifth of the processor where there are many keys, 13 % in B4. The second threshold falls as the first one rises,
    # so that older objects are looked at as often.
    gc.set_threshold(MADE, max(second * first // MADE, 1), third)
    patient = gc.get_threshold()
    try:
        yield
    finally:
        # The threshold is the whole process's: what the user has set meanwhile stays.
        if gc.get_threshold() == patient:
            gc.set_threshold(*usual)


@contextmanager
def resting_a_moment(many: int) -> Iterator[None]:
    """Let the collector rest while a step of many rows is awaited, but not for as long as others may take over it."""
    if many < MANY or not gc.isenabled():
        yield
        return
    # Imported late: only what runs needs it.
    from asyncio import get_running_loop

    with collector_resting():
        again = get_running_loop().call_later(MOMENT_S, gc.enable)
        try:
            yield
        finally:
            again.cancel()
