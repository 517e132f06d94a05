"""J2 and J3: what an interval join and a temporal join keep, while their inputs go on and on."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Any

from benchmarks.figures import Chart
from benchmarks.messages import Message, time_of
from benchmarks.shapes.shape import Figures, Shape, ShapeDescription
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, MessageStream, produce

PARTS = 10
PART_MS = 300_000
"""How much event time a tenth of the input takes, however many messages that is."""
AGAIN_MS = 30_000
"""After how long a key comes again, on either side."""
BEFORE_MS, AFTER_MS = 10_000, 20_000
RETENTION_MS = 60_000
MIB = 1 << 20

Pair = tuple[int, int]


class JoinState(Shape):
    """Two streams, of which a tenth after the other is written and read; the state is looked at after each."""

    unjoined = 0
    """How many of the last messages still wait."""

    @abstractmethod
    def joined(self, app: App) -> MessageStream[int, Pair]:
        """Return what a join of "left" and "right" makes: of each message the one on the other side with its number."""

    def figures(self) -> Figures:
        each = self.scaled(100_000)
        pairs: list[Pair] = []
        sizes = []
        for part in range(PARTS):
            messages = [message_of(number, each) for number in range(part * each, (part + 1) * each)]
            for side in ("left", "right"):
                produce(side, messages, data=self.scratch, value=dict, key=key_of, timestamp=time_of)
            app = App("join-state")
            self.joined(app).sink(pairs.append)
            run_blocking(app.pipeline(), self.scratch, RunSettings(until_now=True))
            with closing(LogEnvironment(self.scratch)) as log:
                stats = log.state_stats(app.name).values()
            sizes.append((sum(entries for entries, _ in stats), sum(size for _, size in stats) / MIB))
        if sorted(pairs) != [(number, number) for number in range(PARTS * each - self.unjoined)]:
            raise AssertionError(f"{len(pairs):,} pairs of {PARTS * each:,} messages are not what they should be")
        (entries, first), *_, (last_entries, last) = sizes
        curve = {"MiB after a tenth": first, "MiB at the end": last}
        curve |= {"entries after a tenth": float(entries), "entries at the end": float(last_entries)}
        points = [(2 * part * each / 1e6, round(mib, 2)) for part, (_, mib) in enumerate(sizes, 1)]
        highest = max(mib for _, mib in sizes)
        return Figures(highest / first, curve, Chart("million messages", "state, MiB", {"ours": points}))


class IntervalState(JoinState):
    """A message stays for the bounds, and for a bucket more."""

    description = ShapeDescription(
        name="J2", title="state of an interval join, highest ÷ after a tenth of 2M messages", bar=1.1, rounds=1
    )

    def joined(self, app: App) -> MessageStream[int, Pair]:
        left, right = (app.input(side, value=dict, key=int) for side in ("left", "right"))
        return left.join(right, pair, within=(-BEFORE_MS, AFTER_MS), op_id="joined")


class TemporalState(JoinState):
    """A version stays for the retention, and for a bucket more; the newest of each key stays."""

    description = ShapeDescription(
        name="J3", title="state of a temporal join, highest ÷ after a tenth of 2M messages", bar=1.1, rounds=1
    )
    unjoined = 1

    def joined(self, app: App) -> MessageStream[int, Pair]:
        left = app.input("left", value=dict, key=int)
        return left.join(app.table("right", value=dict, key=int, retention_ms=RETENTION_MS), pair, op_id="joined")


def message_of(number: int, each: int) -> Message:
    keys = max(each * AGAIN_MS // PART_MS, 1)
    return {"id": number, "key": number % keys, "at": number * PART_MS // each}


def key_of(message: Message) -> Any:
    return message["key"]


def pair(left: Message, right: Message) -> Pair:
    return left["id"], right["id"]
