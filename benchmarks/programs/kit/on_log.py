"""Both sides of a program on durable streams: ours on the embedded log, the program by hand on LMDB."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.programs.kit.hand_store import STORED, Store, preload
from benchmarks.programs.kit.program import Program, Streams
from benchmarks.programs.kit.sides import Sides, stored
from operators.core.base import Batch
from runtime.ports.environment import Environment
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment

BY_HAND = "by-hand"
"""The directory of the LMDB by hand, beside the log."""


class OnLog(Sides):
    """Streams lie in the embedded log, or in LMDB, before a run begins; both sides are exactly-once.

    Ours runs with the options that an application has by itself. The program by hand makes a synced transaction of
    outputs, state and positions every 10,000 messages.
    """

    def __init__(self, program: Program, streams: Streams, seed: int, scratch: Path) -> None:
        super().__init__(program, streams, seed, scratch)
        records, keys = as_stored(program, streams)
        self.partitions = {name: len(parts) for name, parts in streams.items()}
        self.streams = {}  # read from the disk, from now on
        preload(self.preloaded / BY_HAND, records)
        with closing(LogEnvironment(self.preloaded)) as log:
            preload_streams(log, records, keys)

    def ours(self) -> str:
        """Run as a user does."""
        self.program.pipeline(self.workspace).run(self.workspace)
        return "ours"

    def by_hand(self) -> str:
        """Run from LMDB to LMDB."""
        with closing(self._store()) as store, closing(self.program.by_hand(self.workspace)) as hand:
            store.restore(hand)
            hand.run(store)
        return "by_hand"

    def rows(self, result: str) -> dict[str, list[Any]]:
        """Return what that side has stored."""
        if result == "ours":
            with closing(LogEnvironment(self.workspace)) as log:
                return {name: stored(log, name) for name in self.program.outputs}
        with closing(self._store()) as store:
            return {name: store.rows(name) for name in self.program.outputs}

    def _store(self) -> Store:
        return Store(self.workspace / BY_HAND, self.program, self.partitions)


Records = dict[str, list[list[bytes]]]
"""The records of each stream, by partition."""
Keys = dict[str, list[list[bytes] | None]]
"""The keys that they carry; None where they carry none."""


def as_stored(program: Program, streams: Streams) -> tuple[Records, Keys]:
    """Return the records of streams, and their keys."""
    records = {name: [program.streams[name].encoded(part) for part in parts] for name, parts in streams.items()}
    keys = {name: [program.streams[name].keys(part) for part in parts] for name, parts in streams.items()}
    return records, keys


def preload_streams(environment: Environment, records: Records, keys: Keys) -> None:
    """Make streams that have ended, in batches as `produce` writes them, a batch of each partition in turn."""
    for name, parts in records.items():
        environment.create_stream(name, StreamConfig(partitions=len(parts)))
        for first in range(0, max(map(len, parts)), STORED):
            environment.append(
                [
                    Append(name, number, Batch(part[first : first + STORED], known and known[first : first + STORED]))
                    for number, (part, known) in enumerate(zip(parts, keys[name], strict=True))
                    if first < len(part)
                ]
            )
        environment.end_stream(name)
