"""How often a fault is tried, and what has come of it: the nth trial of seed S is the first of seed S + n."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

MOST_TOLD = 10
MOST_TRIALS = 5
"""For one that strikes, so many are made at most."""


@dataclass(frozen=True)
class Order:
    """What shall be tried: how often, from which seed, where, with or without the safeguard, on which kind of place."""

    times: int
    seed: int
    work: Path
    broken: bool = False
    kind: str | None = None


@dataclass
class Verdict:
    """What has come of it: in how many trials the fault has struck, how many failed, and what else was counted."""

    done: int = 0
    failed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def passed(self, counts: dict[str, int] | None = None) -> None:
        """Count a trial in which all was as it should be."""
        self.done += 1
        self.counts.update(counts or {})

    def fail(self, seed: int, why: object) -> None:
        """Count a trial that failed, and tell the first ones: the very first in full."""
        self.done += 1
        self.failed += 1
        lines = str(why).strip().splitlines() or ["it failed"]
        if self.failed <= MOST_TOLD:
            print(f"seed {seed}: " + "\n".join(lines if self.failed == 1 else lines[-1:]), flush=True)

    def add(self, other: "Verdict") -> None:
        """Count what has come of other trials as well."""
        self.done += other.done
        self.failed += other.failed
        self.counts.update(other.counts)


class Missed(Exception):
    """The fault has not come about in a trial, though all was as it should be; it says why not."""


Trial = Callable[[int, Path], dict[str, int]]
"""Tries a fault once in an empty directory, as a seed decides: returns counts, or raises AssertionError or Missed."""


def one_by_one(order: Order, trial: Trial) -> Verdict:
    """Make every trial in a directory of its own, until the fault has struck as often as was ordered."""
    verdict = Verdict()
    seeds = iter(range(order.seed, order.seed + MOST_TRIALS * order.times))
    while verdict.done < order.times and (seed := next(seeds, None)) is not None:
        with TemporaryDirectory(dir=order.work) as work:
            try:
                counts = trial(seed, Path(work))
            except Missed as why:
                verdict.counts[str(why)] += 1
            except (AssertionError, TimeoutError) as error:
                verdict.fail(seed, error)
            else:
                verdict.passed(counts)
    return verdict
