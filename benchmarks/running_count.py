"""B3 and B3d: a running count per key over a list, in memory and with durable state and positions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from benchmarks.durable import (
    NUMBER,
    POSITION,
    SteppedSource,
    checked,
    committing,
    counts_by_hand,
    counts_in_log,
    open_by_hand,
    sealed,
)
from benchmarks.messages import SPREAD_KEYS, increased, plain_messages, spread_key_of, to_count
from benchmarks.workload import Description, Workload
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App

Counts = list[tuple[int, int]]
Stored = tuple[Counts, Callable[[], Counts]]
"""What was emitted, and how to read what is stored."""


class RunningCount(Workload):
    """100,000 keys, one result per message."""

    description = Description(
        name="B3",
        title="keyed running count, 100,000 keys, in memory",
        messages=1_000_000,
        quick_scale=0.15,
        bar=1.3,
    )

    def prepare(self, messages: int) -> None:
        self.messages = plain_messages(messages)
        self.times = [0] * messages  # records carry a time, as all that are stored do

    def baseline(self) -> Counts:
        results: Counts = []
        append = results.append
        counts: dict[int, int] = {}
        for message in self.messages:
            key = spread_key_of(message)
            counts[key] = count = increased(counts.get(key), message)
            append(to_count(key, count))
        return results

    def baseline_inlined(self) -> Counts:
        results: Counts = []
        append = results.append
        counts: dict[int, int] = {}
        for message in self.messages:
            key = message["id"] * 7_919 % SPREAD_KEYS
            counts[key] = count = counts.get(key, 0) + 1
            append((key, count))
        return results

    def ours(self) -> Counts:
        app = App("running-count")
        keyed = app.input("messages", key=spread_key_of)
        keyed.scan(increased, emit=to_count, store="memory", op_id="counting").send_to(app.output("counts"))
        sink = ListSink(columns=())
        bind = {"messages": ListSource(self.messages, self.times), "counts": sink}
        run_blocking(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, levers=self.levers))
        return sink.values

    def outcome(self, result: Counts) -> Counts:
        return result


class DurableCount(RunningCount):
    """The counts and the position are one synced commit; every count is stored with a CRC."""

    description = Description(
        name="B3d",
        title="keyed running count, 100,000 keys, durable state and positions",
        messages=500_000,
        quick_scale=0.05,
        bar=1.0,
        durable=True,
    )

    def ready(self) -> None:
        self.path = self.scratch / "state"
        shutil.rmtree(self.path, ignore_errors=True)

    def baseline(self) -> Stored:
        results: Counts = []
        append = results.append
        environment, (table, positions) = open_by_hand(self.path, b"counts", b"positions")
        for first in range(0, len(self.messages), self.commit_every):
            batch = self.messages[first : first + self.commit_every]
            with environment.begin(write=True, buffers=True) as transaction:
                get, put = transaction.get, transaction.put
                for message in batch:
                    key = spread_key_of(message)
                    place = NUMBER.pack(key)
                    found = get(place, db=table)
                    count = increased(None if found is None else NUMBER.unpack(checked(found))[0], message)
                    put(place, sealed(NUMBER.pack(count)), db=table)
                    append(to_count(key, count))
                put(POSITION, sealed(NUMBER.pack(first + len(batch))), db=positions)
        environment.close()
        return results, lambda: counts_by_hand(self.path, b"counts")

    def baseline_inlined(self) -> Stored:
        """Keep the counts of a commit in a dict, and write each of them once."""
        results: Counts = []
        append = results.append
        environment, (table, positions) = open_by_hand(self.path, b"counts", b"positions")
        for first in range(0, len(self.messages), self.commit_every):
            batch = self.messages[first : first + self.commit_every]
            counts: dict[int, int] = {}
            with environment.begin(write=True, buffers=True) as transaction:
                for message in batch:
                    key = message["id"] * 7_919 % SPREAD_KEYS
                    count = counts.get(key)
                    if count is None:
                        found = transaction.get(NUMBER.pack(key), db=table)
                        count = 0 if found is None else NUMBER.unpack(checked(found))[0]
                    counts[key] = count = count + 1
                    append((key, count))
                for key in sorted(counts):
                    transaction.put(NUMBER.pack(key), sealed(NUMBER.pack(counts[key])), db=table)
                transaction.put(POSITION, sealed(NUMBER.pack(first + len(batch))), db=positions)
        environment.close()
        return results, lambda: counts_by_hand(self.path, b"counts")

    def ours(self) -> Stored:
        app = App("durable-count", committing(self.commit_every, 2 * self.commit_every))
        keyed = app.input("messages", key=spread_key_of)
        keyed.scan(increased, emit=to_count, op_id="counting").send_to(app.output("counts"))
        sink = ListSink(columns=())
        bind = {"messages": SteppedSource(self.messages, self.times, self.commit_every), "counts": sink}
        run_blocking(app.pipeline(), self.path, RunSettings(bind=bind, levers=self.levers))
        return sink.values, lambda: counts_in_log(self.path, "durable-count", "counting")

    def outcome(self, result: Stored) -> list[Any]:
        """Return what was emitted, and what is stored."""
        results, stored = result
        return [*results, *stored()]
