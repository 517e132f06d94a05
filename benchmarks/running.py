"""One run of a side of a workload: how long it takes, and what it comes to."""

from __future__ import annotations

import gc
from collections.abc import Callable
from hashlib import blake2b
from time import perf_counter, process_time
from typing import Any, NamedTuple

import msgspec

from benchmarks.workload import Workload


class Timed(NamedTuple):
    """What a side returns that does its work in another process, and has the time from there."""

    seconds: float
    result: Any


class Ran(NamedTuple):
    """How long a run took, and what it came to: how many results, of which digest."""

    seconds: float
    cpu_seconds: float
    results: int
    digest: str

    def same_as(self, other: Ran) -> bool:
        """Whether they came to the same."""
        return self[2:] == other[2:]


def run(workload: Workload, side: Callable[[], Any]) -> Ran:
    """Time one run, and keep nothing of its result that the next one would have to share the memory with."""
    workload.ready()
    gc.collect()
    began, cpu_began = perf_counter(), process_time()
    result = side()
    seconds, cpu_seconds = perf_counter() - began, process_time() - cpu_began
    if isinstance(result, Timed):
        seconds, result = result
    outcome = workload.outcome(result)
    return Ran(seconds, cpu_seconds, len(outcome), blake2b(msgspec.msgpack.encode(outcome)).hexdigest())
