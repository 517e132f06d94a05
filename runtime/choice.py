"""What a loop may feed next: one reader, in its lane, in its task."""

from __future__ import annotations

from typing import NamedTuple

from runtime.inputs import Reader
from runtime.lane import Lane
from runtime.task import Task


class Choice(NamedTuple):
    """One of the readers among which a loop chooses."""

    task: Task
    lane: Lane
    reader: Reader

    def may_be_taken(self, slowest: int | None) -> bool:
        """Whether there is something that it may be fed, given how far the slowest input is."""
        return self.has_room and not self.is_held_up and not self.is_ahead(slowest)

    @property
    def has_room(self) -> bool:
        """Whether there is something to take, and room for it."""
        return self.task.room(self.lane) > 0 and self.reader.ready()

    @property
    def is_held_up(self) -> bool:
        """Whether what the lane hands on waits for its readers."""
        return any(relay.is_full for place, relay in self.task.outputs.relays.items() if place[0] in self.lane.writes)

    def is_ahead(self, slowest: int | None) -> bool:
        """Whether the reader is so far ahead in event time that it waits for one that is behind."""
        if slowest is None or self.reader.max_drift_ms is None:
            return False
        return self.reader.watermark > slowest + self.reader.max_drift_ms
