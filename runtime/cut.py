"""Tasks that commit together: when a commit of theirs is due, and when it can be made."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan import Options
from runtime.clock import Clock
from runtime.task import Task

DRAINS = 4
"""A commit is due no sooner than after so many times what the last one had to wait for what was in flight."""


class Cut:
    """All tasks of a container, or one that commits by itself: what is done up to a moment is committed at once."""

    def __init__(self, tasks: Sequence[Task], options: Options, clock: Clock) -> None:
        self.tasks = tasks
        self.wanted = False
        """Whether a commit was asked for."""
        self._options = options
        self._clock = clock
        self._waits_since: float | None = None
        self._due_ms = clock.elapsed_ms() + options.commit_interval_ms

    def wants(self, idle: bool, at_once: bool) -> bool:
        """Whether a commit is to be made, as there is nothing else to do or it is due."""
        if not any(task.touched for task in self.tasks):
            if self._clock.elapsed_ms() >= self._due_ms:
                self._due_ms = self._clock.elapsed_ms() + self._options.commit_interval_ms
            return False
        return (idle and all(task.drained and not task.awaits for task in self.tasks)) or self.is_due(at_once)

    def is_due(self, at_once: bool) -> bool:
        """Whether nothing more is to be taken in before a commit."""
        if self.wanted or at_once or self._clock.elapsed_ms() >= self._due_ms:
            return any(task.touched for task in self.tasks)
        pending = sum(task.outputs.count + task.dirty_count for task in self.tasks if task.touched)
        return pending >= self._options.max_uncommitted

    def is_complete(self, at_once: bool) -> bool:
        """Whether what is done can be committed as it is."""
        if self._options.guarantee == "exactly_once" or at_once:
            return all(task.at_cut for task in self.tasks)
        return not any(task.busy or (task.firing and not task.at_cut) for task in self.tasks)

    def waits(self, since_ms: float) -> None:
        """Take note that a commit is due, and waits for what is in flight."""
        self._waits_since = self._waits_since or since_ms

    def committed(self, began_ms: float) -> None:
        """Take note of a commit that is durable; the next is due after its interval."""
        drained_ms = began_ms - (self._waits_since or began_ms)
        self._waits_since = None
        self._due_ms = self._clock.elapsed_ms() + max(self._options.commit_interval_ms, DRAINS * drained_ms)
