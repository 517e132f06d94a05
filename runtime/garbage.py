"""When Python's collector of reference cycles rests: while many quick messages are run at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 1_000
"""From so many rows on, which a step takes only where they are done in a tenth of a second, the collector rests."""


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
