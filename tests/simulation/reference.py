"""What a drawn pipeline comes to, computed one record at a time, without batches, asyncio, stores or commits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product

from operators.aggregations.identity import identity
from operators.core.base import MIN_TIMESTAMP
from tests.strategies import (
    KEYED,
    MEETING_MS,
    REPARTITIONS,
    TABLE,
    TIMER_MS,
    WINDOWS,
    Event,
    Node,
    Pipeline,
    aggregated,
    arms,
    joined,
    kept,
    many,
    mapped,
    nearest,
    new_key,
    partition_of,
    sessions_of,
    windows_of,
)


@dataclass(frozen=True)
class Record:
    """An event with its message's key, time and stamp, where a stage takes it in."""

    event: Event
    key: str | None
    at: int
    stamp: int


class Dropped(Exception):
    """A function raised on the record."""


@dataclass
class Effects:
    """What records have brought about: messages by output, and by output and key; by repartitioning; and state.

    What was passed to a repartitioning is there with its partition.
    """

    sent: Counter[tuple[int, Event]] = field(default_factory=Counter)
    in_order: dict[int, dict[str, list[Event]]] = field(default_factory=lambda: defaultdict(dict))
    passed: dict[int, list[tuple[int, Record]]] = field(default_factory=lambda: defaultdict(list))
    windows: dict[tuple[int, int, str | None, tuple[int, int]], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    sides: dict[tuple[int, int, str | None], tuple[list[Record], list[Record]]] = field(
        default_factory=lambda: defaultdict(lambda: ([], []))
    )
    sunk: Counter[tuple[int, Event]] = field(default_factory=Counter)
    counts: Counter[tuple[int, int, str | None]] = field(default_factory=Counter)
    timers: set[tuple[int, int, str | None, int]] = field(default_factory=set)
    dropped: int = 0

    def send(self, place: int, record: Record) -> None:
        self.sent[place, record.event] += 1
        if record.key is not None:
            self.in_order[place].setdefault(record.key, []).append(record.event)

    def add(self, other: Effects) -> None:
        for message, number in other.sent.items():
            self.sent[message] += number
        for place, by_key in other.in_order.items():
            for key, events in by_key.items():
                self.in_order[place].setdefault(key, []).extend(events)
        for place, passed in other.passed.items():
            self.passed[place] += passed
        for window, numbers in other.windows.items():
            self.windows[window] += numbers
        for where, (left, right) in other.sides.items():
            self.sides[where][0].extend(left)
            self.sides[where][1].extend(right)
        self.sunk += other.sunk
        self.counts += other.counts
        self.timers |= other.timers


class Reference:
    """A drawn pipeline as plain recursion."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def run(self, parts: Sequence[Sequence[Event]]) -> Effects:
        """Return everything that a whole run brings about."""
        whole, first = Effects(), Effects()
        sources = self.pipeline.split(parts)
        for place, stream in self.pipeline.inputs().items():
            for task, records in enumerate(self.stamped(sources[stream])):
                self.take(first, place, task, records)
        self.fire(first)
        stages = {0: first}
        for place in self.pipeline.entries():
            if place not in self.pipeline.inputs():
                arrived: list[list[Record]] = [[] for _ in range(self.pipeline.partitions_of(place))]
                for above in stages.values():
                    for task, record in above.passed[place]:
                        arrived[task].append(record)
                effects = stages[place] = Effects()
                for task, records in enumerate(arrived):
                    self.take(effects, place, task, records)
                self.fire(effects)
        for effects in stages.values():
            whole.add(effects)
            whole.dropped += effects.dropped
        return whole

    def stamped(self, parts: Sequence[Sequence[Event]]) -> list[list[Record]]:
        """Return the events of every source partition with their stamps."""
        found = []
        for part in parts:
            seen = accumulate((e.at - self.pipeline.disorder_ms for e in part), max, initial=MIN_TIMESTAMP)
            found.append([Record(event, event.key, event.at, stamp) for event, stamp in zip(part, seen, strict=False)])
        return found

    def take(self, effects: Effects, entry: int, task: int, records: Iterable[Record]) -> None:
        """Let records take effect in one task of a stage, each as a whole or not at all."""
        for record in records:
            if self.pipeline.nodes[entry].kind == "window_all":
                self._gather(effects, entry, task, record)
            else:
                self._attempt(effects, entry, task, record)

    def fire(self, effects: Effects) -> None:
        """Fire every window and timer of a stage, until nothing is open."""
        for place, node in enumerate(self.pipeline.nodes):
            if node.kind in WINDOWS:
                for (task, key, (start, end)), numbers in sorted(self._panes(effects, place, node), key=repr):
                    pane = Event(aggregated(node, numbers), key, start)
                    self._attempt(effects, place, task, Record(pane, key, end - 1, end - 1))
            if node.kind == "meet":
                for task, pair in [*self._met(effects, place)]:
                    self._attempt(effects, place, task, pair)
            if node.kind == "nearest":
                for task, found in [*self._nearest(effects, place, node)]:
                    self._attempt(effects, place, task, found)
            if node.kind == "process":
                for _, task, key, at in sorted((t for t in effects.timers if t[0] == place), key=repr):
                    self._attempt(effects, place, task, Record(Event(at, key, at), key, at, at))

    def _panes(
        self, effects: Effects, place: int, node: Node
    ) -> Iterable[tuple[tuple[int, str | None, tuple[int, int]], list[int]]]:
        """Yield the windows of an operator, those that become one together, with what is in them."""
        mine = {window[1:]: numbers for window, numbers in effects.windows.items() if window[0] == place}
        if node.windows != "session":
            yield from mine.items()
            return
        for task, key in {(task, key) for task, key, _ in mine}:
            windows = {window: numbers for (*whose, window), numbers in mine.items() if whose == [task, key]}
            for start, end in sessions_of(windows):
                inside = [numbers for window, numbers in windows.items() if start <= window[0] < end]
                yield (task, key, (start, end)), [number for numbers in inside for number in numbers]

    def _met(self, effects: Effects, place: int) -> Iterable[tuple[int, Record]]:
        """Yield the pairs of records that meet in a join of two streams, with their task."""
        for (where, task, key), sides in effects.sides.items():
            for left, right in product(*sides) if where == place else ():
                if abs(left.at - right.at) <= MEETING_MS:
                    times = max(left.at, right.at), max(left.stamp, right.stamp)
                    yield task, Record(joined(left.event, right.event), key, *times)

    def _nearest(self, effects: Effects, place: int, node: Node) -> Iterable[tuple[int, Record]]:
        """Yield each record of the first side with the one of the other side that is nearest to it, with their task."""
        signs = {"backward": (-1,), "forward": (1,), "nearest": (-1, 1)}[node.direction]
        for (where, task, key), (lefts, rights) in effects.sides.items():
            for left in lefts if where == place else ():
                near = [
                    right
                    for right in rights
                    if any((right.at - left.at) * sign >= 0 for sign in signs)
                    if node.tolerance_ms is None or abs(right.at - left.at) <= node.tolerance_ms
                ]
                near.sort(key=lambda right: (abs(right.at - left.at), right.at))
                # Of one time the one that came when its source was further, and then the one with the larger bytes.
                of_a_time = [right for right in near if right.at == near[0].at]
                met = max(of_a_time, key=lambda right: (right.stamp, identity(right.event)), default=None)
                if met is not None or node.number > 2:
                    yield task, Record(nearest(left.event, met and met.event), key, left.at, left.stamp)

    def _attempt(self, effects: Effects, place: int, task: int, record: Record) -> None:
        one = Effects()
        try:
            self._below(one, place, task, record)
        except Dropped:
            effects.dropped += 1
        else:
            effects.add(one)

    def _gather(self, effects: Effects, place: int, task: int, record: Record) -> None:
        """Put a record into its window, unless it is late."""
        node = self.pipeline.nodes[place]
        for start, end in windows_of(node, record.at):
            if (start if node.windows == "session" else end - 1) >= record.stamp:
                effects.windows[place, task, record.key, (start, end)].append(record.event.number)

    def _below(self, effects: Effects, place: int, task: int, record: Record) -> None:
        if self.pipeline.is_sent(place):
            effects.send(place, record)
        for child in self.pipeline.children(place):
            for side, parent in enumerate(self.pipeline.nodes[child].parents):
                if parent == place:
                    self._take(effects, child, task, record, side)

    def _take(self, effects: Effects, place: int, task: int, record: Record, side: int = 0) -> None:
        node, event = self.pipeline.nodes[place], record.event
        row = self._row(node, record)
        called = node.kind not in ("join", "lookup") or row is not None
        keyless = node.kind in KEYED and record.key is None
        if (keyless and not self.pipeline.has_one_key(place)) or (
            node.poison == "always" and called and node.fails_on(event)
        ):
            raise Dropped
        if node.kind in REPARTITIONS:
            self._pass(effects, place, node, task, record)
        elif node.kind == "window":
            self._gather(effects, place, task, record)
        elif node.kind in ("meet", "nearest"):
            if record.at >= record.stamp:
                effects.sides[place, task, record.key][side].append(record)
        elif node.kind == "sink":
            effects.sunk[place, event] += 1
        elif node.kind == "task":
            effects.counts[place, task, record.key] += 1
            effects.send(place, Record(mapped(node, event), record.key, record.at, record.stamp))
        else:
            for out in self._computed(effects, place, node, task, record):
                self._below(effects, place, task, Record(out, record.key, record.at, record.stamp))

    def _pass(self, effects: Effects, place: int, node: Node, task: int, record: Record) -> None:
        """Hand a record to the partitions of the next stage that it is for."""
        count, event = self.pipeline.partitions_of(place), record.event
        if node.kind == "partition_by":
            key = new_key(node, event, self.pipeline.nulls)
            to: Iterable[int] = [task % count if key is None else partition_of(key, count)]
        else:
            key = None if node.kind == "window_all" else record.key
            to = range(count)
        effects.passed[place] += [(number, Record(event, key, record.at, record.stamp)) for number in to]

    def _computed(self, effects: Effects, place: int, node: Node, task: int, record: Record) -> list[Event]:
        event = record.event
        if node.kind == "filter":
            return [event] if kept(node, event) else []
        if node.kind in ("remember", "scan"):
            effects.counts[place, task, record.key] += 1
        if node.kind in ("map", "scan"):
            return [mapped(node, event)]
        if node.kind in ("flat_map", "async", "remember"):
            return many(node, event)
        if node.kind in ("left", "right"):
            return [event] if node.kind in arms(node, event) else []
        if node.kind == "process":
            effects.counts[place, task, record.key] += 1
            effects.timers.add((place, task, record.key, event.at + TIMER_MS))
            return [mapped(node, event)]
        if node.kind in ("join", "lookup"):
            row = self._row(node, record)
            return [] if row is None else [joined(event, row)]
        return [event]  # a branch and a merge hand on what they get

    def _row(self, node: Node, record: Record) -> Event | None:
        """Return what the table has for a record."""
        key = record.key if node.kind == "join" else record.event.key
        return next((row for row in TABLE if row.key == key), None)
