"""Standby copies of the state of tasks that others have, kept warm by following its changelogs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from planner.model.virtual_tasks import VirtualTask
from runtime.model.clock import monotonic_ms
from runtime.model.errors import Damaged, EnvironmentFault
from runtime.ports.state import StateWrites
from runtime.systems.kafka.client.clients import Consumer, Fetched, begun, ended
from runtime.systems.kafka.state.changelog import TaskState, begin_at, entries_in
from runtime.systems.kafka.state.ledger import Ledger, ledger_of
from runtime.systems.kafka.state.task_state import KafkaState
from runtime.systems.kafka.streams.record_batches import rows_of
from runtime.systems.kafka.streams.streams import KafkaStreams

_log = logging.getLogger("samza_dsl")
FOLLOW_MS = 200.0
"""The ms for which commits of others are taken in at a time, while there are more."""
SOON_MS, IDLE_MS = 200.0, 2_000.0
"""The ms until the next look after something came, and at most when nothing does; doubled each time."""
WAIT_MS = 20
"""The ms that more is waited for."""
FETCH_WAIT_MS = 1_000
"""The ms for which the broker holds back the answer that there is nothing new."""


class _Followed(NamedTuple):
    """One partition of a changelog, from which on it is read, and the copies that are in it, by task."""

    store: str
    place: str
    start: int
    copies: dict[VirtualTask, TaskState]


class Standby:
    """The copies that a container keeps of others' state; what it has is committed, since nothing else is read.

    A copy's position in a changelog only grows, and is written with its entries. The one thread that follows the job
    model drives it, and never waits for long.
    """

    def __init__(self, streams: KafkaStreams, state: KafkaState, app: str) -> None:
        self._streams = streams
        self._state = state
        self._app = app
        self._stores: dict[VirtualTask, frozenset[str]] = {}
        """By task, the stores whose changelogs its copy follows."""
        self._behind: dict[VirtualTask, dict[str, int]] = {}
        """By task, how far changelogs were when its copy was begun, as far as it is not there yet."""
        self._followed: dict[TopicPartition, _Followed] = {}
        self._copied: frozenset[VirtualTask] = frozenset()
        self._consumer: Consumer | None = None
        self._assigned: dict[TopicPartition, int] = {}
        self._look_at_ms, self._look_in_ms = 0.0, SOON_MS
        self._told = ""

    @property
    def tasks(self) -> Collection[VirtualTask]:
        """Return the tasks that there are copies of."""
        return self._state.copies(self._app).keys()

    @property
    def warm(self) -> list[VirtualTask]:
        """Return the tasks whose copies have once been all that was committed."""
        return sorted(task for task in self._state.copies(self._app) if not self._behind.get(task, {"": 0}))

    def keep(self, tasks: Collection[VirtualTask], ledger: Ledger) -> None:
        """Keep copies of these tasks from now on, and of no others; of one whose state somebody here has, later."""
        self._state.drop_copies(self._app, {*self._state.copies(self._app)} - {*tasks})
        for task in tasks:
            self._state.copy(self._app, task)
        copies = self._state.copies(self._app)
        self._stores = {task: stores for task, stores in self._stores.items() if task in copies}
        committed = ledger.committed
        begun = [one for task, one in copies.items() if committed.stores(task) != self._stores.get(task)]
        if begun:
            try:
                held = begin_at(self._streams, committed, begun)
            except EnvironmentFault as error:  # it is tried again
                if isinstance(error, Damaged):
                    self._forget(error)
                return
            for one in begun:
                stores = committed.stores(one.task)
                self._stores[one.task] = stores
                self._behind[one.task] = {
                    ledger.changelogs[store].place(store, one.partition): held[store].ends[one.partition]
                    for store in stores
                }
                self._move_on(one)
        if begun or copies.keys() != self._copied:
            self._copied = frozenset(copies)
            self._follow_these(copies, ledger)

    def follow(self) -> None:
        """Take in what was committed since the last time, for a short while; brokers that don't answer are left be."""
        if monotonic_ms() < self._look_at_ms:
            return
        # A short while each time: neither the run nor a hand-over may wait for copies.
        until_ms = monotonic_ms() + FOLLOW_MS
        self._look_in_ms = min(2 * self._look_in_ms, IDLE_MS)
        while self._followed and monotonic_ms() < until_ms:
            try:
                found = self._streams.call(ledger_of(self._app), self._fetch())
            except EnvironmentFault as error:
                if isinstance(error.__cause__, OffsetOutOfRangeError):
                    self._forget(error)
                break
            self._take_in(found)
            if not any(records for records, _ in found.values()):
                break
            self._look_in_ms = SOON_MS
        self._look_at_ms = monotonic_ms() + self._look_in_ms

    def stop(self) -> None:
        """Keep nothing any more; what lies on the disk stays."""
        self._state.drop_copies(self._app, self._state.copies(self._app))
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            self._streams.call(ledger_of(self._app), ended(consumer))

    def _forget(self, lost: EnvironmentFault) -> None:
        """Follow nothing until it is looked again, and take no copy for whole: a changelog was cut meanwhile."""
        self._stores, self._followed, self._behind = {}, {}, {}
        if str(lost) != self._told:
            self._told = str(lost)
            _log.warning("no copies of state are kept here of application %r: %s", self._app, lost)

    def _follow_these(self, copies: Mapping[VirtualTask, TaskState], ledger: Ledger) -> None:
        """Read from where the first of the copies is in each changelog."""
        # Sought anew, also where it is followed from the same offset as once before: what has been read since was of
        # other copies in the same partition, and a new one would lack it.
        self._followed, self._assigned = {}, {}
        for task, one in sorted(copies.items()):
            for store in sorted(self._stores[task]):
                changelog = ledger.changelogs[store]
                place = changelog.place(store, one.partition)
                at = TopicPartition(changelog.topic(self._app, store), one.partition)
                before = self._followed.get(at, _Followed(store, place, one.positions[place], {}))
                start = min(before.start, one.positions[place])
                self._followed[at] = before._replace(start=start, copies={**before.copies, task: one})

    async def _fetch(self) -> dict[TopicPartition, tuple[Sequence[Fetched], int]]:
        if self._consumer is None:
            follower = AIOKafkaConsumer(
                **self._streams.topic(ledger_of(self._app)).client(),
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                fetch_max_wait_ms=FETCH_WAIT_MS,
            )
            self._consumer = await begun(follower)
        starts = {place: one.start for place, one in self._followed.items()}
        if starts != self._assigned:
            self._consumer.assign([*starts])
            for place, start in starts.items():
                self._consumer.seek(place, start)
            self._assigned = starts
        found = await self._consumer.getmany(timeout_ms=WAIT_MS)
        return {place: (found.get(place, []), await self._consumer.position(place)) for place in starts}

    def _take_in(self, found: Mapping[TopicPartition, tuple[Sequence[Fetched], int]]) -> None:
        """Write into copies what is newer than they are."""
        here = self._state.copies(self._app)
        changed: dict[VirtualTask, list[StateWrites]] = {}
        for at, (records, position) in found.items():
            store, place, _, copies = self._followed[at]
            rows = rows_of(records)
            for task, one in copies.items():
                if here.get(task) is one and position > one.positions[place]:
                    found_here = entries_in(rows, store, one, one.positions[place])
                    newest = dict(zip(found_here.keys or (), found_here.values, strict=True))
                    # Also where nothing of it was this task's: the next fetch goes on behind it.
                    one.positions[place] = position
                    changed.setdefault(task, []).append(StateWrites(store, task.base, sorted(newest.items())))
        for task, writes in changed.items():
            here[task].write([one for one in writes if one.items])
            self._move_on(here[task])

    def _move_on(self, one: TaskState) -> None:
        """See which changelogs a copy has caught up with."""
        behind = self._behind.get(one.task, {})
        self._behind[one.task] = {place: end for place, end in behind.items() if one.positions[place] < end}
