"""The checkpoint of one task: how far each of its inputs is processed, and the watermarks as of there."""

from __future__ import annotations

import msgspec

from operators.base import MIN_TIMESTAMP


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far one source partition is processed: `offset` is the next to read.

    `bucket` is the key bucket, "all" until a task is split. `watermark` is the source's as of `offset`; for an
    intermediate stream `producers` has the watermark that each of its producers has sent, `idle` those that had nothing
    to send, and `watermark` how far event time came without these; of a source `idle` has its name where nothing came
    of it. `stream_id` tells the stream that was read from
    others of its name, 0 where that is not known.
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


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """All positions of one task under one generation; `outputs` has what a file output needs to go on or go back.

    `meanings` says of each store what its entries mean.
    """

    generation: int
    positions: tuple[Position, ...] = ()
    watermarks: dict[str, int] = {}
    outputs: dict[str, int] = {}
    version: int = 1
    meanings: dict[str, str] = {}

    def position_of(self, stream: str, partition: int) -> Position | None:
        """Return where a partition was left, if it was read."""
        found = (one for one in self.positions if (one.stream, one.partition) == (stream, partition))
        return next(found, None)
