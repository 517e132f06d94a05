"""What a peer can do of a workload: how it is run, how large, and what its results are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from benchmarks.keyed_count import WINDOW_MS
from benchmarks.messages import KEYS, key_of, time_of
from benchmarks.running import Timed
from benchmarks.workload import Workload

LATE_KEY = KEYS - 1

Outcome = list[Any]


def whole(workload: Any, outcome: Outcome) -> Outcome:
    return outcome


def emitted(workload: Any, outcome: Outcome) -> Outcome:
    """Leave out what is stored behind what was emitted: it can't be read from outside of a peer."""
    return outcome[: len(workload.messages)]


def by_key(workload: Any, outcome: Outcome) -> Outcome:
    """Keep the order of each key's counts alone."""
    return sorted(outcome, key=itemgetter(0))


def emitted_by_key(workload: Any, outcome: Outcome) -> Outcome:
    return by_key(workload, emitted(workload, outcome))


def none_late(workload: Any, outcome: Outcome) -> Outcome:
    """Count those messages, too, that the hand loop drops because they are late."""
    counts = Counter((time_of(message) // WINDOW_MS * WINDOW_MS, key_of(message)) for message in workload.messages)
    return [(key, start, start + WINDOW_MS, count) for (start, key), count in sorted(counts.items())]


def panes_on_time(results: list[Any]) -> Outcome:
    """Return panes without those of the one key whose messages are all late, in order.

    Where a watermark comes every so often, the hand loop's is not the one that the first of them meet.
    """
    on_time = (tuple(pane) for pane in results if pane[0] != LATE_KEY)
    return sorted(on_time, key=lambda pane: (pane[1], pane[0]))


def final_counts(workload: Any, outcome: Outcome) -> Outcome:
    """Return the last count of each key: what is left where a peer tells of results now and then, or at the end."""
    return sorted(dict(outcome).items())


def by_id(results: list[Any]) -> Outcome:
    """Return what the calls of B4 came to, as its workload compares it."""
    return sorted((one["id"], one["found"]) for one in results)


@dataclass(frozen=True)
class Case:
    """`results` makes of what `run` returns what `expected` makes of the hand loop's outcome."""

    run: Callable[[Any], Any]
    messages: int
    note: str = ""
    results: Callable[[Any], Outcome] = list
    expected: Callable[[Any, Outcome], Outcome] = whole
    pairs: int = 3


class Against(Workload):
    """A workload in which the peer stands in our place."""

    def __init__(self, hand: Workload, case: Case) -> None:
        self._hand = hand
        self._case = case
        self.description = hand.description
        self.commit_every = hand.commit_every

    def prepare(self, messages: int) -> None:
        """Do nothing: the hand loop's workload has the input."""

    def ready(self) -> None:
        self._hand.ready()

    def baseline(self) -> tuple[bool, Any]:
        return True, self._hand.baseline()

    def ours(self) -> Any:
        found = self._case.run(self._hand)
        return Timed(found.seconds, (False, found.result)) if isinstance(found, Timed) else (False, found)

    def outcome(self, result: tuple[bool, Any]) -> Outcome:
        by_hand, found = result
        return self._case.expected(self._hand, self._hand.outcome(found)) if by_hand else self._case.results(found)
