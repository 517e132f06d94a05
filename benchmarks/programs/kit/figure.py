"""What figures of several programs come to: the distribution of a sweep, and how cost goes with partitions."""

from __future__ import annotations

import msgspec

from benchmarks.figures import ProgramFigure


class Spread(msgspec.Struct, frozen=True):
    """The CPU ratios of a sweep, as their distribution."""

    p50: float
    p90: float
    worst: ProgramFigure

    @classmethod
    def of(cls, figures: list[ProgramFigure]) -> Spread:
        """Return the distribution of what a sweep has found."""
        ranked = sorted(figures, key=lambda one: one.cpu_ratio)
        last = len(ranked) - 1
        return cls(ranked[last // 2].cpu_ratio, ranked[last * 9 // 10].cpu_ratio, ranked[-1])


def slopes(figures: list[ProgramFigure]) -> dict[tuple[str, str], float]:
    """Return our CPU at the most partitions over that at one, by program and mode."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for one in figures:
        found.setdefault((one.workload, one.mode), {})[one.partitions] = one.ours_cpu_s
    return {
        of: seconds[max(seconds)] / seconds[1] for of, seconds in found.items() if 1 in seconds and max(seconds) > 1
    }
