"""The state that is being brought back in this process, for whoever watches a run, also before that has begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from runtime.model.metrics import RestoreMetrics

Came = Callable[[str, str, int], None]
"""Takes note of how many records of a store have come so far for a task."""
_under_way: dict[str, dict[tuple[str, str], RestoreMetrics]] = {}
"""By application; each is written by the thread that brings state back, and replaced as a whole, so any may look."""


@contextmanager
def bringing_back(app: str, records: Mapping[tuple[str, str], int]) -> Iterator[Came]:
    """Let others know of state of an application that comes back during a block: by store and task, of so many records.

    >>> with bringing_back("spending", {("total", "0"): 8}) as came:
    ...     came("total", "0", 2)
    ...     [(one.store, one.restored, one.records) for one in coming_back("spending")]
    [('total', 2, 8)]
    >>> coming_back("spending")
    ()
    """
    found = {
        (store, task): RestoreMetrics(store=store, task=task, restored=0, records=number)
        for (store, task), number in records.items()
        if number
    }
    _under_way[app] = found

    def came(store: str, task: str, restored: int) -> None:
        if (store, task) in found:
            found[store, task] = RestoreMetrics(store=store, task=task, restored=restored, records=records[store, task])

    try:
        yield came
    finally:
        _under_way.pop(app, None)


def coming_back(app: str) -> tuple[RestoreMetrics, ...]:
    """Return how far the state of an application is that is being brought back now; nothing where none is."""
    return tuple(_under_way.get(app, {}).copy().values())
