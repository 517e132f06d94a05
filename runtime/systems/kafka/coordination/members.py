"""The containers that share an application on Kafka: the group tells who lives, the ledger who has which task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import NamedTuple, TypeVar

from planner.model.virtual_tasks import UNSPLIT, Split
from runtime.model.assignment import JobModel, Placement
from runtime.model.clock import monotonic_ms
from runtime.model.errors import EnvironmentFault, SamzaError
from runtime.ports.commits import fenced_error, taken_error
from runtime.ports.membership import Membership
from runtime.systems.kafka.client.clients import STOP_S
from runtime.systems.kafka.coordination.group import Joining, KafkaGroup
from runtime.systems.kafka.coordination.task_producers import Writers
from runtime.systems.kafka.state.ledger import (
    Claim,
    Ledger,
    forgotten,
    ledger_of,
    look,
    said_of_claims,
    said_of_given,
    said_of_homes,
    say_moved,
    settle,
)
from runtime.systems.kafka.state.standby import Standby
from runtime.systems.kafka.streams.streams import KafkaStreams

R = TypeVar("R")


class Moved(NamedTuple):
    """Two calls for the numbers of tasks that come and go, and how the tasks of the run are split."""

    taken: Callable[[Ledger, Collection[int]], None]
    """Called with the committed ledger and the tasks that are now this container's, before they are run."""
    given: Callable[[Collection[int], float | None], None]
    """Called with the tasks that are this container's no more, before others can take them, and the s it may take."""
    split: Split = UNSPLIT


SOON_MS, SELDOM_MS = 200.0, 15_000.0
"""The ms until the stores are looked at again of whose state this container has copies; doubled each time."""


class KafkaMembers(Membership):
    """One container; a task that another one has is taken only when that one can't commit any more.

    Raises `Fenced` where another run has begun, or another container has taken a task that this one had.

    A task is taken in this order: fence who is gone, begin the producer, claim, read the ledger to its very end, bring
    the state. It is given up in the opposite one, so that a claim lies before all that its container writes, and is
    given up behind all of it. One thread at a time calls it, the one that follows the job model.
    """

    def __init__(
        self,
        streams: KafkaStreams,
        app: str,
        said: Joining,
        placement: Placement,
        moved: Moved,
        standby: Standby | None = None,
        writers: Writers | None = None,
    ) -> None:
        self.name = said.name
        self.taken: dict[int, int] = {}
        """The tasks that this container has, and their generations."""
        self._former: dict[int, str] = {}
        self._streams = streams
        self._app, self._run = app, said.run
        self._host, self._tasks, self._split = said.host, said.tasks, moved.split
        self._took, self._gave = moved.taken, moved.given
        self._standby = standby
        self._writers = writers
        self._kept: frozenset[int] = frozenset()
        """The tasks of whose state copies are kept here, as of the last look."""
        self._look_at_ms = self._look_in_ms = 0.0
        self._group: KafkaGroup | None = KafkaGroup(app, streams.topic(ledger_of(app)), said, placement)
        self._looked_at = 0
        self._unheard = 0, 0
        try:
            self._call(self._join())
        except BaseException:
            self.leave()
            raise

    def mine(self) -> frozenset[int]:
        assert self._group is not None
        model = self._group.model
        if self._group.failure is not None:
            raise self._group.failure
        if model.run > self._run:
            raise fenced_error(self._app, self._run, model.run)
        # Only when tasks were shared out anew may one have been taken: else a look at the ledger, five times a second,
        # would be for nothing.
        if model.generation != self._looked_at:
            self.check()
            self._looked_at = model.generation
        self._stand_by(model)
        return model.of(self.name)

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        fenced: set[str] = set()
        ledger = before = self._settled(fenced)
        self._surpass(ledger.newest)
        wanted = [task for task in sorted(tasks) if self._is_free(ledger, task, fenced)]
        if not wanted:
            return {}
        assert self._group is not None
        # Said before it is claimed: should tasks be shared out meanwhile, the leader leaves them here.
        self._group.held |= {*wanted}
        model = self._group.model.generation
        had = {task: ledger.newest_of(task) for task in wanted}
        alone = self._writers is not None
        claims = [Claim(task, generation + 1, self.name, self._run, model, alone) for task, generation in had.items()]
        if self._writers is not None:
            # Before the claim: whoever finds the claim and fences the id that it names then comes after this producer
            # for sure.
            self._call(self._writers.begin(wanted))
        self._streams.write(ledger_of(self._app), said_of_claims(claims))
        ledger = self._settled()
        # The first claim of a generation in the order of the topic has it: nobody needs a lock that one could die
        # with.
        won = {claim.task: claim.generation for claim in claims if ledger.claims[claim.task] == claim}
        if self._writers is not None:
            self._call(self._writers.end(had.keys() - won.keys()))
        assert all(won[task] > self.taken.get(task, 0) for task in won), "a task's generation only grows"
        # Before they count as taken here: a commit for them needs their state, and what the ledger says of them.
        self._took(ledger, won)
        for task in won:
            claim = before.held(task)
            self._former[task] = claim.container if claim is not None and claim.run == self._run else ""
        if won:
            were_given = {self._split.task(task): before.held(task) is None for task in won}
            say_moved(self._streams, self._app, ledger, self._host, were_given)
            self._call(self._know(ledger))
        outlived = [key for task in won for key in ledger.outlived.get(task, ())]
        if outlived:
            # Claims that are not in force any more would else stay in the ledger for ever: each has a key of its own.
            self._streams.write(ledger_of(self._app), forgotten(outlived))
        self.taken |= won
        self._group.held = frozenset(self.taken)
        return won

    def _surpass(self, newest: int) -> None:
        """Ask for a newer model than who has claimed a task knew, where none has come since the last look.

        Who claimed it when this container had joined, and died of that, would never be known to be gone.
        """
        assert self._group is not None
        seen, times = self._unheard
        self._unheard = newest, times + 1 if newest == seen else 1
        if newest > self._group.model.generation and self._unheard == (newest, 2):
            self._call(self._group.surpass(newest))

    def former(self, task: int) -> str:
        return self._former.get(task, "")

    def give_up(self, tasks: Collection[int]) -> None:
        given = {task: self.taken.pop(task) for task in sorted(tasks) if task in self.taken}
        if self._group is not None:
            self._group.held = frozenset(self.taken)
        # Producers and state are let go of first: once the task is given up, another container may begin with both.
        self._gave(given, None)
        if given:
            self._streams.write(ledger_of(self._app), said_of_given(given))

    def leave(self) -> None:
        if self._group is not None:
            # Who takes them next then need not fence this one, and how much they have is said before others go on. What
            # can't be given up is fenced.
            given, self.taken = self.taken, {}
            with suppress(SamzaError):
                if given:  # brokers that are gone hold up no end
                    self._gave(given, STOP_S)
                    self._call(asyncio.wait_for(self._streams.say(ledger_of(self._app), said_of_given(given)), STOP_S))
            group, self._group = self._group, None
            if self._standby is not None:
                self._standby.stop()
            self._call(group.leave())
            if self._writers is not None:
                self._call(self._writers.end())

    def _stand_by(self, model: JobModel) -> None:
        """Keep the copies that the model says, and those of tasks that this container is about to take."""
        if self._standby is None:
            return
        assert self._group is not None
        coming = model.of(self.name) & {*map(self._split.number, self._standby.tasks)}
        tasks = (model.kept_by(self.name) | coming) - self.taken.keys()
        if tasks != self._kept:
            self._kept, self._look_at_ms, self._look_in_ms = tasks, 0.0, SOON_MS
        if monotonic_ms() >= self._look_at_ms:
            self._look_at_ms = monotonic_ms() + self._look_in_ms
            self._look_in_ms = min(2 * self._look_in_ms, SELDOM_MS)
            with suppress(EnvironmentFault):  # brokers that don't answer are asked again
                ledger = self._call(look(self._streams, self._app))
                self._standby.keep([*map(self._split.task, sorted(tasks))], ledger)
                self._say_copied(ledger)
        self._standby.follow()
        self._group.copies = [*map(self._split.number, self._standby.warm)]

    def _say_copied(self, ledger: Ledger) -> None:
        """Say of what state there is a copy on this host."""
        assert self._standby is not None
        known = {task: ledger.homes_of(task) for task in self._standby.warm}
        homes = {
            task: one.copied(self._host)
            for task, one in known.items()
            if one.hosts and self._host not in {home.host for home in one.hosts}
        }
        if homes:
            self._streams.write(ledger_of(self._app), said_of_homes(homes))

    async def _join(self) -> None:
        assert self._group is not None
        ledger = await look(self._streams, self._app)
        self._group.model = JobModel(generation=ledger.newest)  # clocks may differ: what comes is newer than claims
        await self._know(ledger)
        await self._group.join()

    async def _know(self, ledger: Ledger) -> None:
        """Know what to say of who has the state of which task, should tasks be shared out anew."""
        if self._group is not None:
            homes = [ledger.homes_of(self._split.task(number)).trusted() for number in range(self._tasks)]
            self._group.know(homes, ledger.end)

    def _settled(self, fenced: set[str] | None = None) -> Ledger:
        ledger = self._call(settle(self._streams, self._app, self._is_gone, fenced))
        if ledger.generation != self._run:
            raise fenced_error(self._app, self._run, ledger.generation)
        return ledger

    def check(self) -> None:
        """Raise `Fenced` where another container has taken a task that this one had, as when it was taken for dead."""
        if self.taken:
            ledger = self._settled()
            for task, generation in self.taken.items():
                if (current := ledger.claims[task].generation) != generation:
                    raise taken_error(self._app, task, generation, current)

    def _is_free(self, ledger: Ledger, task: int, fenced: Collection[str]) -> bool:
        """Whether nobody has a task who could still commit for it: who has gone since the look is not yet fenced."""
        claim = ledger.held(task)
        return claim is None or claim.writer(self._app) in fenced

    def _is_gone(self, claim: Claim) -> bool:
        """Whether who has claimed a task lives no more, as far as is known here: nothing newer than that was known."""
        assert self._group is not None
        model = self._group.model
        if claim.run != self._run:
            return claim.run < self._run
        # A claim made under a newer model than this container knows may be of one that has joined since.
        return claim.container not in (*model.containers, self.name) and claim.model <= model.generation

    def _call(self, work: Coroutine[object, object, R]) -> R:
        return self._streams.call(ledger_of(self._app), work)
