"""The readers of one input in several tasks, read together: what they hand on goes to partitions all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from operators.core.base import Batch, Slice
from runtime.functions.failures import Failure
from runtime.model.clock import Clock
from runtime.model.garbage import resting_for
from runtime.reading.folding import Folded, SharedGroups
from runtime.reading.reader import Reader
from runtime.reading.taken import Taken
from runtime.stage.chain import Counts
from runtime.stage.exits import PartitionByExit
from runtime.task.lane import Lane
from runtime.task.pace import LONGEST_MS
from runtime.task.task import Task

Place = tuple[Task, Lane, Reader]
"""A reader, with the task and the lane that it feeds."""


P = TypeVar("P", bound=Place)


class Companions(Generic[P]):
    """The readers that may be read together, by their input."""

    def __init__(self) -> None:
        self._by_entry: dict[str, list[P]] = {}

    def add(self, place: P) -> None:
        """Take in one more."""
        _, _, reader = place
        if not reader.later:
            self._by_entry.setdefault(reader.entry, []).append(place)

    def drop(self, goes: Callable[[P], bool]) -> None:
        """Forget those that go."""
        for places in self._by_entry.values():
            places[:] = [place for place in places if not goes(place)]

    def of(self, place: P, may_join: Callable[[P], bool]) -> list[P]:
        """Return one that is to be read, and those of its input and priority that may join it."""
        task, lane, reader = place
        places = self._by_entry.get(reader.entry, ())
        # What is asked of each partition behind is asked once, and not by each of the readers, as many as there are.
        if len(places) < 2 or not joins(place) or not _stay_in_memory(lane, reader):
            return [place]
        relays = task.outputs.relays
        alike = (one for one in places if one is not place and one[2].priority == reader.priority and joins(one))
        return [place, *(one for one in alike if one[0].outputs.relays is relays and may_join(one))]

    def had_turn(self, fed: Sequence[P]) -> None:
        """Let those of an input that were fed come last of it from now on.

        A step ends where it takes long: the same ones would be first in each, and others never come to theirs.
        """
        places, gone = self._by_entry[fed[0][2].entry], {one[2] for one in fed}
        places.sort(key=lambda one: one[2] in gone)


@dataclass
class Offer:
    """The records that a reader offers to its task, and what its stateless operators have made of them.

    Nothing has taken effect yet. `counts` are those of the lane from before, and `took_ms` how long all that took.
    """

    task: Task
    lane: Lane
    reader: Reader
    taken: Taken
    counts: Counts
    found: list[tuple[str, Batch]] | None = None
    """The rows that reach each exit; None where there are none, or where it goes alone."""
    took_ms: float = 0.0

    @property
    def is_grouped(self) -> bool:
        """Whether its values are in groups with those of others."""
        return self.taken.folded is not None and self.taken.folded.is_shared

    @property
    def is_joint(self) -> bool:
        """Whether it is handed on with others."""
        return self.is_grouped or self.found is not None


def joins(place: Place) -> bool:
    """Whether a reader may be read together with others of its input, where what it hands on stays in memory."""
    _, lane, reader = place
    plan = lane.chain.segments[reader.entry].plan
    if plan.keyed or lane.units is not None or not lane.guard.takes_many:
        return False
    return all(isinstance(lane.chain.exits[exit.id], PartitionByExit) for exit in plan.exits)


def _stay_in_memory(lane: Lane, reader: Reader) -> bool:
    """Whether all that is made of what a reader reads is handed on in memory."""
    exits = (lane.chain.exits[exit.id] for exit in lane.chain.segments[reader.entry].plan.exits)
    return all(isinstance(exit, PartitionByExit) and exit.stays_in_memory for exit in exits)


def feed_together(places: Sequence[Place], each: int, clock: Clock) -> list[int]:
    """Feed tasks up to `each` records of readers of one input; return how many of each there were, of those fed.

    With many partitions a batch of one has few rows for each of many others, and about one value for each key and
    window: to split and to group each by itself costs more than all else. So what all of them hand on is split once.
    The tasks have nothing else in common here: each accepts its own records, and what fails goes alone.
    """
    offers: list[Offer] = []
    shared, since = SharedGroups(), list[Offer]()
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
            _keep(offers[-1], shared, since)
            offers[-1].took_ms = clock.elapsed_ms() - started
        _save(shared, since)
        if not _hand_on(offers, shared):
            for offer in offers:
                offer.task.do(partial(_leave_alone, offer))
        found: list[int] = []
        for offer in offers:
            offer.task.do(partial(_take_in, found, offer, clock))
            offer.task.start_calls()
    return found


def _offer(offers: list[Offer], task: Task, lane: Lane, reader: Reader, limit: int, shared: SharedGroups) -> None:
    counts, reader.shared = lane.chain.counts.copy(), shared
    try:
        offer = Offer(task, lane, reader, task.offered(lane, reader, limit), counts)
    finally:
        reader.shared = None
    if offer.taken.folded is None and len(offer.taken.batch):
        try:
            offer.found = lane.chain.explore(reader.entry, offer.taken.batch)
        except Failure:
            lane.chain.counts = counts
            offer.taken = reader.renewed(offer.taken)
    offers.append(offer)


def _keep(offer: Offer, shared: SharedGroups, since: list[Offer]) -> None:
    """Let groups go on with what a reader has folded, or without it; `since` are those since their savepoint."""
    if offer.is_grouped:
        since.append(offer)
        if shared.went_well(len(offer.taken.batch)):
            _save(shared, since)
    elif shared.is_halfway:
        shared.rollback()
        again = since[:]
        since.clear()
        for one in again:
            one.task.do(partial(_fold, one, shared))
            # One that fails now, as its functions have changed their mind, is out as well: there are ever fewer.
            _keep(one, shared, since)
        # However many are odd, none folds a third time.
        _save(shared, since)


def _save(shared: SharedGroups, since: list[Offer]) -> None:
    """Make a savepoint; where keys are not held as themselves, those since the one before go on each by itself."""
    if not since:
        return
    folding = since[0].reader.folding
    assert folding is not None, "a loop has grouped them"
    if folding.are_held(shared):
        shared.savepoint()
    else:
        shared.rollback()
        for one in since:
            one.task.do(partial(_fold, one, None))
    since.clear()


def _fold(offer: Offer, shared: SharedGroups | None) -> None:
    offer.taken = offer.reader.fold(offer.reader.renewed(offer.taken), shared)


def _take_in(found: list[int], offer: Offer, clock: Clock) -> None:
    started = clock.elapsed_ms() - offer.took_ms
    found.append(offer.task.take_in(offer.lane, offer.reader, offer.taken, started, is_done=offer.is_joint))


def _leave_alone(offer: Offer) -> None:
    """Let a task take in what it was offered by itself."""
    if offer.is_joint:
        offer.lane.chain.counts = offer.counts
    if offer.is_grouped:
        _fold(offer, None)
    elif offer.found is not None:
        offer.taken = offer.reader.renewed(offer.taken)
    offer.found = None


def _hand_on(offers: Sequence[Offer], shared: SharedGroups) -> bool:
    """Hand on what is joint; return whether that went well, or nothing has happened."""
    joint = [offer for offer in offers if offer.is_joint]
    went_well: list[bool] = []
    if joint:
        joint[0].task.do(lambda: went_well.append(_take_effect(joint, shared)))
    return all(went_well)


def _take_effect(offers: Sequence[Offer], shared: SharedGroups) -> bool:
    """Let groups and rows take effect at the exits of the first task, and late ones of groups at those of their own."""
    chain, entry = offers[0].lane.chain, offers[0].reader.entry
    outputs = [offer.task.outputs for offer in offers]
    rows: dict[str, list[Slice]] = {}
    for one in outputs:
        one.savepoint()
    try:
        for offer in offers:
            if offer.is_grouped:
                assert offer.taken.folded is not None
                offer.lane.chain.fold(entry, offer.taken.folded)
            for exit, batch in offer.found or ():
                rows.setdefault(exit, []).append((batch, 0, len(batch)))
        # It counts what was grouped for all.
        chain.fold(entry, Folded(0, [(id, groups, Batch([])) for id, groups in shared.groups.items()], 0, ()))
        for exit, slices in rows.items():
            chain.apply(exit, Batch.gather(slices))
    except Failure:
        # It is not known which record it was: each task finds its own, under its policies.
        for one in outputs:
            one.rollback()
        return False
    for one in outputs:
        one.release()
    return True
