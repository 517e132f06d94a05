"""The checkpoint of one task: how far each of its inputs is processed, and the watermarks as of there."""

from __future__ import annotations

import msgspec

from operators.core.base import MIN_TIMESTAMP


# Stored as an array: a new field goes to the end and has a default, or older checkpoints can no longer be read.
class Position(msgspec.Struct, frozen=True, array_like=True):
    """The position in one source partition: `offset` is the next to read.

    `bucket` is the key bucket, "all" until a task is split. `watermark` (ms) is the source's as of `offset`. For an
    intermediate stream `producers` has the watermark that each producer has sent, `idle` the producers that had nothing
    to send, and `watermark` the event time reached without these; for a source `idle` has its name where nothing came
    of it. `stream_id` tells the stream that was read from others of its name; 0 where it is not known. `ended_at` is
    the offset at which a source has told its end; a file may have grown since.
    """

    system: str
    stream: str
    partition: int
    offset: int
    bucket: str = "all"
    watermark: int = MIN_TIMESTAMP
    producers: dict[str, int] = {}
    stream_id: int = 0
    idle: tuple[str, ...] = ()
    ended_at: int = -1

    @property
    def has_ended(self) -> bool:
        """Whether the source had no more to say as of the offset."""
        return self.ended_at == self.offset


class LeftDue(msgspec.Struct, frozen=True, array_like=True):
    """The time (ms) from which on an operator had to fire at a cut, and had not yet.

    Where it `is_begun`, some of what is due at just that time may have fired.
    """

    at: int
    is_begun: bool = False


SHARED = "outputs"
"""The checkpoint of what belongs to no task: the positions of bound outputs."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """All positions of one task under one generation; `outputs` has the length of each bound output, to go back to.

    `meanings` says for each store what its entries mean; other checkpoints keep their own words there. `due` has by
    operator what the cut has left to fire, though event time had come so far. The `watermarks` of a task have by
    operator that begins unread the lowest stamp of what is still to fire; what a version before that wrote has none.
    """

    generation: int
    positions: tuple[Position, ...] = ()
    watermarks: dict[str, int] = {}
    outputs: dict[str, int] = {}
    version: int = 1
    meanings: dict[str, str] = {}
    due: dict[str, LeftDue] = {}

    def position_of(self, stream: str, partition: int) -> Position | None:
        """Return the position in a partition; None where it was not read."""
        found = (one for one in self.positions if (one.stream, one.partition) == (stream, partition))
        return next(found, None)
