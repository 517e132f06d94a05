"""Containers that share an application on Kafka: its group protocol says who lives, the ledger who has which task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from runtime.systems.base import is_fenced, is_taken
from runtime.systems.kafka_group import KafkaGroup
from runtime.systems.kafka_ledger import (
    Claim,
    Ledger,
    forgotten,
    ledger_of,
    said_of_claims,
    said_of_given,
    settle,
)
from runtime.systems.kafka_streams import KafkaStreams
from runtime.systems.kafka_table import KafkaTable

R = TypeVar("R")
Took = Callable[[Ledger, Collection[int]], None]
"""Is told what was committed of tasks that are now this container's, before they are run."""
Gave = Callable[[Collection[int]], None]
"""Is told which tasks are this container's no more, before others can take them."""


class KafkaMembers:
    """One container; a task that another one has is taken only when that one can't commit any more.

    Raises `Fenced` where another run has begun, or another container has taken a task that this one had.
    """

    def __init__(
        self, streams: KafkaStreams, app: str, run: int, name: str, tasks: int, took: Took, gave: Gave
    ) -> None:
        self.name = name
        self.taken: dict[int, int] = {}
        """The tasks that this container has, and their generations."""
        self._streams = streams
        self._app, self._run = app, run
        self._took, self._gave = took, gave
        self._table = KafkaTable(streams.topic(ledger_of(app)))
        self._group: KafkaGroup | None = KafkaGroup(app, streams.topic(ledger_of(app)), run, name, tasks)
        self._looked_at = 0
        self._call(self._group.join())

    def mine(self) -> frozenset[int]:
        """Return the tasks that this container shall run now."""
        assert self._group is not None
        model = self._group.model
        if model.run > self._run:
            raise is_fenced(self._app, self._run, model.run)
        if model.generation != self._looked_at:
            self.check()
            self._looked_at = model.generation
        return model.of(self.name)

    def take(self, tasks: Collection[int]) -> dict[int, int]:
        """Take tasks over, and return their new generations; those that another container still has are left out."""
        ledger = self._settled()
        wanted = [task for task in sorted(tasks) if self._is_free(ledger, task)]
        if not wanted:
            return {}
        assert self._group is not None
        model = self._group.model.generation
        generations = {task: ledger.claims[task].generation if task in ledger.claims else 0 for task in wanted}
        claims = [Claim(task, before + 1, self.name, self._run, model) for task, before in generations.items()]
        self._streams.write(ledger_of(self._app), said_of_claims(claims))
        ledger = self._settled()
        won = {claim.task: claim.generation for claim in claims if ledger.claims[claim.task] == claim}
        self._took(ledger, won)
        outlived = [key for task in won for key in ledger.outlived.get(task, ())]
        if outlived:
            self._streams.write(ledger_of(self._app), forgotten(outlived))
        self.taken |= won
        return won

    def give_up(self, tasks: Collection[int]) -> None:
        """Let others take tasks, all of whose effects are committed."""
        given = {task: self.taken.pop(task) for task in sorted(tasks) if task in self.taken}
        self._gave(given)
        if given:
            self._streams.write(ledger_of(self._app), said_of_given(given))

    def leave(self) -> None:
        """Be gone: others may take all that this container has; a second call does nothing."""
        if self._group is not None:
            group, self._group = self._group, None
            self._call(group.leave())
            self._call(self._table.stop())

    def _settled(self) -> Ledger:
        ledger = self._call(settle(self._streams, self._app, self._table, self._is_gone))
        if ledger.generation != self._run:
            raise is_fenced(self._app, self._run, ledger.generation)
        return ledger

    def check(self) -> None:
        """Raise `Fenced` where another container has taken a task that this one had, as when it was taken for dead."""
        if self.taken:
            ledger = self._settled()
            for task, generation in self.taken.items():
                if (current := ledger.claims[task].generation) != generation:
                    raise is_taken(self._app, task, generation, current)

    def _is_free(self, ledger: Ledger, task: int) -> bool:
        claim = ledger.held(task)
        return claim is None or self._is_gone(claim)

    def _is_gone(self, claim: Claim) -> bool:
        """Whether who has claimed a task lives no more, as far as is known here: nothing newer than that was known."""
        assert self._group is not None
        model = self._group.model
        if claim.run != self._run:
            return claim.run < self._run
        return claim.container not in (*model.containers, self.name) and claim.model <= model.generation

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        return self._streams.call(ledger_of(self._app), work)  # type: ignore[no-any-return]
