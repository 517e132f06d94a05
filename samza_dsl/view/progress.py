"""The progress of a run in few numbers: its metrics by operator and by input over all tasks, and rates."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from operators.core.base import MIN_TIMESTAMP
from operators.io import Input, SendTo, SinkCall
from operators.joins.match_counts import MET, MISSED, apart
from planner.model.flow import counted
from planner.model.plan import Plan, StagePlan
from runtime.model.metrics import InputMetrics, RunMetrics, unread
from runtime.stage.outputs import FIRST, KEYLESS, NOTHING

_log = logging.getLogger("samza_dsl")
RATE_OVER_MS = 2_000.0
FEW = 100
"""The number of messages of which at least one must meet something, or the join is worth a word."""
ALIKE = (
    ". These are of one type, and hardly any are equal at a time: look at what key= returns on both sides, and at "
    "within= where it is a join of streams"
)
UNLIKE = ". Keys meet where they are of one type and equal: make both alike, as by key=lambda value: str(...)"
MOST_STRANGE = 5
"""The types of keys that can't meet that are told of one join."""
TROUBLES = {"skipped": "skipped", "dead_lettered": "to dead letters", "retried": "retried", "late": "late"}
"""The counts that are worth a word, where they are not 0."""
DROPPED = ("late", "skipped", "to dead letters")
"""The counts of messages that have gone no further."""
HELD_MS = 10_000.0
"""The age from which an open transaction is worth a word: those of applications that live end within seconds."""


class Passed(NamedTuple):
    """The messages that an operator took in and sent on over all tasks, its rate, and its other counts."""

    received: int
    emitted: int
    per_second: float
    counted: dict[str, int]


class ReadProgress(NamedTuple):
    """The progress in a stream over all partitions: `offset` of `end` offsets are read; the watermark is the lowest.

    `held` is the part of the lag that open transactions have held back for long.
    """

    stream: str
    offset: int
    end: int
    lag: int
    watermark: int
    ended: bool
    idle: bool
    held: int = 0


class Ended(Protocol):
    """A run that is over, wherever it was."""

    plan: Plan

    def metrics(self) -> RunMetrics:
        """Return its last numbers."""


class Progress:
    """The newest metrics of one run, and enough older ones to tell rates.

    In one thread, that of the view. Invariants: metrics come in the order of their time, and `_older` has at least two
    of them after the first, of which the second is younger than the span of rates, so a rate is never over less.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.metrics = RunMetrics()
        self._older: deque[tuple[float, dict[str, int]]] = deque([(0.0, {})])
        self._ended = False

    def take(self, metrics: RunMetrics, *, ended: bool = False) -> None:
        """Take in newer metrics; rates are of the last seconds, and once the run has ended of all of it."""
        self.metrics = metrics
        self._ended = ended
        self._older.append((metrics.elapsed_ms, self._all_read()))
        # One that is older than the span stays, so that a rate is over the whole of it.
        while len(self._older) > 2 and self._older[1][0] <= metrics.elapsed_ms - RATE_OVER_MS:
            self._older.popleft()

    def passed(self, operator: str) -> Passed:
        """Return the numbers of an operator over all tasks."""
        mine = [one for one in self.metrics.operators if one.operator == operator]
        counted: Counter[str] = Counter()
        for one in mine:
            counted.update({words: getattr(one, field) for field, words in TROUBLES.items()})
            counted.update(one.counters)
        received = self._read(operator)
        emitted = sum(one.emitted for one in mine)
        kept = {words: number for words, number in counted.items() if number}
        return Passed(received, emitted, self._rate(operator, received), kept)

    def inputs(self) -> Iterator[ReadProgress]:
        """Yield the progress in each stream that is read, in the order of the metrics."""
        for name in dict.fromkeys(one.stream for one in self.metrics.inputs):
            parts = [one for one in self.metrics.inputs if one.stream == name]
            yield _all_of(name, parts)

    def tasks_of(self, stage: StagePlan) -> str:
        """Return in words the tasks of a stage, with those that are done where some run after others."""
        known = {one.stage: one for one in self.metrics.stages}.get(stage.id)
        if known is None:
            return counted(stage.partitions, "partition")
        running = f", {known.running} running" if known.running else ""
        return f"{known.done} of {counted(known.tasks, 'task')} done{running}"

    def unread(self) -> Iterator[str]:
        """Yield for each input of which nothing was read the reason, and what to type."""
        app = self.plan.app
        for operator in self.plan.operators:
            stream = operator.label
            # Without a number of it nobody knows: another run may have read it, and this one only published that.
            known = any(one.operator == operator.id for one in self.metrics.operators)
            if operator.kind != Input.kind or not known or self._read(operator.id):
                continue
            parts = [one for one in self.metrics.inputs if fnmatchcase(one.stream, stream)]
            # Of tasks that are split several read a partition, and have come as far where nothing is left.
            offset = sum({(one.stream, one.partition): one.offset for one in parts}.values())
            lag, where = sum(one.lag for one in parts), self.metrics.where
            if not any(one.end for one in parts):
                yield (
                    f"nothing was read of {stream!r}, which is empty, or was never written: samza-dsl streams "
                    f"list{where} shows what there is; bind a file or a topic in its place, or write to it: samza-dsl "
                    f"streams produce {stream}{where}"
                )
            elif not lag:
                changed = "; ".join(self._changed_below(operator.id))
                yield (
                    f"nothing was read of {stream!r}: {app!r} has read all of it before, up to offset {offset:,}. "
                    + f"Since then {changed}. What was written before stays as it was. " * bool(changed)
                    + "What was changed since holds for what is yet to come; to read it again, add --from-start "
                    f"--state reset, or begin anew: samza-dsl reset {app}{where}"
                    + ", which writes new results behind those that are there"
                    * bool(changed)
                )

    def _changed_below(self, id: str) -> Iterator[str]:
        """Yield the changes, since records were read, of an input and of all that it feeds."""
        known = {one.operator: one for one in self.metrics.changes}
        fed = {id}
        for operator in self.plan.operators:
            # Operators stand behind their parents: one walk finds all that is fed.
            if operator.id == id or fed.intersection(operator.parents):
                fed.add(operator.id)
                if (change := known.get(operator.id)) is not None:
                    where = f"{operator.kind} {operator.id!r}" + (f" at {operator.site}" if operator.site else "")
                    yield f"{where} is new" if change.is_new else f"{where} was changed: {', '.join(change.what)}"

    def strangers(self, *, with_few: bool = True) -> Iterator[str]:
        """Yield for each join with keys of types that can't meet, or `with_few` matches, their numbers and types."""
        for operator in self.plan.operators:
            mine = [one for one in self.metrics.operators if one.operator == operator.id]
            met, missed = (sum(one.counters.get(name, 0) for one in mine) for name in (MET, MISSED))
            # What waits has still to meet something, also of rows that a run before has read.
            if not met + missed:
                continue
            sides: dict[str, Counter[str]] = {}
            for one in mine:
                for side, kinds in one.keys.items():
                    # Not by addition, which drops what is known to be there and was not counted.
                    sides.setdefault(side, Counter()).update(kinds)
            strange = [
                f"{counted(number, 'key')} of {side} {'is' if number == 1 else 'are'} {kind}, and none of {other}"
                for side, kind, number, without in apart(sides)
                for other in without
            ]
            if not strange and (not with_few or met * FEW > met + missed):
                continue
            told = [f"of {side} {' and '.join(sorted(kinds)) or 'none came'}" for side, kinds in sides.items()]
            where = f"{operator.kind} {operator.id!r}" + (f" at {operator.site}" if operator.site else "")
            yield (
                f"{where}: {met:,} of {met + missed:,} messages have met something"
                + (f"; keys: {', '.join(told)}" if told else "")
                + (f"; {', '.join(strange[:MOST_STRANGE])}" if strange else "")
                + (ALIKE if _are_alike([set(kinds) for kinds in sides.values()]) else UNLIKE)
            )

    def nothing(self) -> Iterator[str]:
        """Yield for each operator whose first values are None, all or some without a key, what readers make of that."""
        for operator in self.plan.operators:
            mine = [one.counters for one in self.metrics.operators if one.operator == operator.id]
            first, none, keyless = (sum(one.get(name, 0) for one in mine) for name in (FIRST, NOTHING, KEYLESS))
            if none and (none == first or keyless):
                where = f"{operator.kind} {operator.id!r}" + (f" at {operator.site}" if operator.site else "")
                are = "are" if (none if none == first else keyless) > 1 else "is"
                some = (
                    f"{keyless:,} of its first {counted(first, 'value')} {'have' if keyless > 1 else 'has'} no key and"
                )
                every = f"{'all of its' if none > 1 else 'its'} first {counted(none, 'value')}"
                yield (
                    f"{where}: {every if none == first else some} {are} None, "
                    "which deletes a key or is read as null. Does a function of a .map(...) before it return nothing? "
                    "Return the value there, or drop it with .filter(...) or .flat_map(...)"
                )

    def dropped(self) -> Iterator[str]:
        """Yield for each operator the messages that came late there, or went no further by its policy."""
        for operator in self.plan.operators:
            found = self.passed(operator.id).counted
            told = [f"{found[words]:,} {words}" for words in DROPPED if words in found]
            if told:
                where = f"{operator.kind} {operator.id!r}" + (f" at {operator.site}" if operator.site else "")
                yield f"{where}: {', '.join(told)}"

    @property
    def watermark(self) -> int:
        """The event time (ms) that all of the application's own inputs have reached."""
        return min((one.watermark for one in self._own_inputs()), default=MIN_TIMESTAMP)

    @property
    def lag(self) -> int:
        """The number of records of the application's own inputs that are still to be read."""
        return sum(unread(self._own_inputs()).values())

    @property
    def held(self) -> int:
        """The number of offsets of all inputs that open transactions have held back for long."""
        return _held(self.metrics.inputs)

    @property
    def unowned(self) -> int:
        """The number of tasks that no container has now."""
        return len({one.task for one in self.metrics.inputs if not one.owned})

    @property
    def in_flight(self) -> int:
        """The number of messages that are not complete."""
        return sum(one.in_flight for one in self.metrics.tasks)

    @property
    def read(self) -> int:
        """The number of records that were read from outside."""
        return sum(map(self._read, self._sources()))

    @property
    def read_per_second(self) -> float:
        """The number of records that are read from outside in a second."""
        return sum(self._rate(id, self._read(id)) for id in self._sources())

    @property
    def written(self) -> int:
        """The number of records that left to outputs and sinks."""
        last = [one.id for one in self.plan.operators if one.kind in (SendTo.kind, SinkCall.kind)]
        return sum(map(self.metrics.received, last))

    @property
    def warnings(self) -> list[str]:
        """The warnings about inputs and operators, each once."""
        of_inputs = (one.warning for one in self.metrics.inputs if one.warning)
        return [*dict.fromkeys((*self.metrics.warnings, *of_inputs))]

    def _own_inputs(self) -> list[InputMetrics]:
        between = {stream.name for stream in self.plan.streams if stream.role == "intermediate"}
        return [one for one in self.metrics.inputs if one.stream not in between]

    def _sources(self) -> list[str]:
        return [one.id for one in self.plan.operators if one.kind == Input.kind]

    def _all_read(self) -> dict[str, int]:
        return {one.id: self._read(one.id) for one in self.plan.operators}

    def _read(self, operator: str) -> int:
        """Return the number of messages that an operator has taken in."""
        # Records that can't be decoded are read too, and go no further than the input.
        mine = [one for one in self.metrics.operators if one.operator == operator]
        malformed = sum(one.skipped + one.dead_lettered for one in mine) if operator in self._sources() else 0
        return sum(one.received for one in mine) + malformed

    def _rate(self, operator: str, received: int) -> float:
        then, before = (0.0, {}) if self._ended else self._older[0]
        passed_ms = self.metrics.elapsed_ms - then
        return (received - before.get(operator, 0)) * 1_000 / passed_ms if passed_ms > 0 else 0.0


def told_at_the_end(progress: Progress) -> list[str]:
    """Return the lines that are worth telling when a run is over, beside its numbers."""
    return [f"{progress.plan.app}: {line}" for line in (*progress.unread(), *progress.strangers(), *progress.nothing())]


def log_the_end(run: Ended) -> None:
    """Log the lines that are worth telling of a run that is over, where no view has shown them."""
    # Where nobody has the numbers there is nothing to tell, and a run that ended well must not fail of it.
    with suppress(Exception):
        progress = Progress(run.plan)
        progress.take(run.metrics(), ended=True)
        for line in (*told_at_the_end(progress), *(f"{run.plan.app}: {line}" for line in progress.dropped())):
            _log.warning("%s", line)


def _all_of(stream: str, parts: list[InputMetrics]) -> ReadProgress:
    return ReadProgress(
        stream,
        sum(one.offset for one in parts),
        sum(one.end for one in parts),
        sum(unread(parts).values()),
        min(one.watermark for one in parts),
        all(one.ended for one in parts),
        not all(one.ended for one in parts) and all(one.ended or one.idle for one in parts),
        _held(parts),
    )


def _held(inputs: Iterable[InputMetrics]) -> int:
    # It is held back from a partition, however many of the tasks that it is split into read that.
    return sum({(one.stream, one.partition): one.held for one in inputs if one.held_ms >= HELD_MS}.values())


def _are_alike(sides: list[set[str]]) -> bool:
    return len(sides) > 1 and all(kinds and kinds == sides[0] for kinds in sides)
