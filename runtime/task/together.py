"""The readers of one input in several tasks, read together: what they hand on is grouped once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from operators.core.base import Batch
from runtime.functions.failures import Failure
from runtime.model.clock import Clock
from runtime.model.garbage import resting_for
from runtime.reading.folding import Folded, SharedGroups
from runtime.reading.reader import Reader
from runtime.reading.taken import Taken
from runtime.stage.exits import PartitionByExit
from runtime.task.lane import Lane
from runtime.task.pace import LONGEST_MS
from runtime.task.task import Task

Place = tuple[Task, Lane, Reader]
"""A reader, with the task and the lane that it feeds."""


P = TypeVar("P", bound=Place)


class Companions(Generic[P]):
    """The readers that may be read together, by their input: each hands on all that it groups."""

    def __init__(self) -> None:
        self._by_entry: dict[str, list[P]] = {}

    def add(self, place: P) -> None:
        """Take in one more."""
        _, _, reader = place
        if reader.handing_on is not None:
            self._by_entry.setdefault(reader.entry, []).append(place)

    def drop(self, goes: Callable[[P], bool]) -> None:
        """Forget those that go."""
        for places in self._by_entry.values():
            places[:] = [place for place in places if not goes(place)]

    def of(self, place: P, may_join: Callable[[P], bool]) -> list[P]:
        """Return one that is to be read, and those of its input and priority that may join it."""
        _, _, reader = place
        places = self._by_entry.get(reader.entry, ())
        if len(places) < 2 or not joins(place):
            return [place]
        alike = (one for one in places if one is not place and one[2].priority == reader.priority and joins(one))
        return [place, *filter(may_join, alike)]


@dataclass
class Offer:
    """The records that a reader offers to its task, and how long it took to read them."""

    task: Task
    lane: Lane
    reader: Reader
    taken: Taken
    took_ms: float

    @property
    def is_shared(self) -> bool:
        """Whether its values are in groups with those of others."""
        return self.taken.folded is not None and self.taken.folded.is_shared


def joins(place: Place) -> bool:
    """Whether a reader may be read together with others of its input: all that it reads is handed on in memory."""
    _, lane, reader = place
    folding = reader.handing_on
    if folding is None or lane.units is not None or not lane.guard.takes_many:
        return False
    exits = (lane.chain.exits[id] for id in folding.grouped)
    return all(isinstance(exit, PartitionByExit) and exit.stays_in_memory for exit in exits)


def feed_together(places: Sequence[Place], each: int, clock: Clock) -> int:
    """Feed tasks up to `each` records of readers of one input, and return how many there were.

    With many partitions a batch of one has about one value for each key and window: to group each by itself costs
    more than it saves. So all are grouped together, and split by partition once. The tasks have nothing else in common
    here: each accepts its own records, and where anything is unusual all of them go alone.
    """
    offers: list[Offer] = []
    shared = SharedGroups()
    began = clock.elapsed_ms()
    with resting_for(each * len(places)):
        for task, lane, reader in places:
            started = clock.elapsed_ms()
            # All of them together are one step, however slow the functions are.
            if started - began > LONGEST_MS / 2:
                break
            assert not task.busy, "one thread at a time is in a task"
            task.is_quiet = False
            task.do(partial(_offer, offers, task, lane, reader, min(each, task.room(lane)), shared))
            offers[-1].took_ms = clock.elapsed_ms() - started
        together = [offer for offer in offers if offer.is_shared]
        if together and not (shared.runs == len(together) and _hand_on(together, shared)):
            for offer in together:
                offer.taken = offer.reader.fold(offer.taken)
        found: list[int] = []
        for offer in offers:
            offer.task.do(partial(_take_in, found, offer, clock))
            offer.task.start_calls()
    return sum(found)


def _offer(offers: list[Offer], task: Task, lane: Lane, reader: Reader, limit: int, shared: SharedGroups) -> None:
    reader.shared = shared
    try:
        offers.append(Offer(task, lane, reader, task.offered(lane, reader, limit), 0.0))
    finally:
        reader.shared = None


def _take_in(found: list[int], offer: Offer, clock: Clock) -> None:
    found.append(offer.task.take_in(offer.lane, offer.reader, offer.taken, clock.elapsed_ms() - offer.took_ms))


def _hand_on(offers: Sequence[Offer], shared: SharedGroups) -> bool:
    """Hand on what was grouped, and what was late of each; return whether that went well, or nothing has happened."""
    folding = offers[0].reader.handing_on
    assert folding is not None
    if not folding.are_held(shared):
        return False
    went_well: list[None] = []
    first = offers[0].task
    first.do(partial(_take_effect, went_well, offers, shared))
    return bool(went_well)


def _take_effect(went_well: list[None], offers: Sequence[Offer], shared: SharedGroups) -> None:
    """Let groups take effect at the exits of the first task, which counts them, and late rows at those of their own."""
    entry = offers[0].reader.entry
    chains, outputs = [offer.lane.chain for offer in offers], [offer.task.outputs for offer in offers]
    counts = [chain.counts.copy() for chain in chains]
    for one in outputs:
        one.savepoint()
    try:
        for chain, offer in zip(chains, offers, strict=True):
            assert offer.taken.folded is not None
            chain.fold(entry, offer.taken.folded)
        chains[0].fold(entry, Folded(0, [(id, groups, Batch([])) for id, groups in shared.groups.items()], 0, ()))
    except Failure:
        # Groups don't say which record it was: each task finds its own, under its policies.
        for chain, before, one in zip(chains, counts, outputs, strict=True):
            chain.counts = before
            one.rollback()
        return
    for one in outputs:
        one.release()
    went_well.append(None)
