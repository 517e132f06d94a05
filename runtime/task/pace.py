"""The pace of a task: it takes in few records at once where functions are slow, so that signals and commits go on."""

from __future__ import annotations

# A step is not interrupted: a signal is heard, and a commit is due, between two steps only. So a step is aimed at a
# tenth of a second, and begins with few records, as nobody knows yet how slow the functions are.
FIRST_ROWS = 16
LONGEST_MS = 100.0
GROWTH = 16


class StepPace:
    """Grows with every step that was quick, up to `most`, and aims at steps of `LONGEST_MS` where they are slow.

    >>> pace = StepPace(10_000)
    >>> pace.rows
    16
    >>> pace.took(16, elapsed_ms=0.1)
    >>> pace.rows
    256
    >>> pace.took(256, elapsed_ms=5_120)
    >>> pace.rows
    5
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = self.fitting = min(FIRST_ROWS, most)
        """The records of the next step, which are not many more than those of one that was quick; and how many fit."""

    def took(self, rows: int, elapsed_ms: float) -> None:
        """Hear how long a step has taken."""
        if rows:
            fitting = int(LONGEST_MS * rows / elapsed_ms) if elapsed_ms > 0 else self._most
            self.fitting = max(1, min(fitting, self._most))
            # A step that had few because no more were there says nothing against more.
            self.rows = min(self.fitting, max(rows * GROWTH, self.rows))
