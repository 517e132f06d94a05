"""The error policies at work: when a user's function raises, effects are taken back and the record meets its policy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from operators.core.base import Batch
from operators.core.policies import DeadLetterPolicy, Retry, Skip, final
from operators.core.wording import named
from operators.process import ProcessOperator, TimerFailed
from operators.state.keyed_state import UnreadForm
from planner.model.errors import PlanError
from planner.model.graph import Graph
from planner.model.plan import StagePlan
from runtime.encoding.keys import KeySerde
from runtime.encoding.ownership import values_kept
from runtime.encoding.serdes import Tagged
from runtime.functions.failures import Failure, Whence, advice_for, exit_error, record_error
from runtime.model.clock import Clock
from runtime.model.errors import ExitAsked, SamzaError, SerdeError, TooLarge, UnreadState, command
from runtime.ports.store import TaskStore
from runtime.stage.chain import Chain
from runtime.stage.outputs import Outputs, letter_of

Anew = Callable[[range], list[Any]]
"""Returns the values of rows of a batch as they were read."""


class LetterRows(Protocol):
    """Records as a dead letter keeps them."""

    def row(self, index: int) -> Batch:
        """Return the one at `index`."""


@dataclass(frozen=True)
class Emitted:
    """The messages that an operator emitted, encoded only where a dead letter needs it."""

    batch: Batch
    graph: Graph
    operator: str

    def row(self, index: int) -> Batch:
        """Return the one at `index`, as bytes."""
        keys = KeySerde(self.graph.key_serde(self.operator) or Tagged())
        row = self.batch.row(index)
        return Batch([letter_of(row.values[0])], keys=row.keys and keys.encode_all(row.keys), headers=row.headers)


LAST_CHECKED, MOST_CHECKED = 64, 128
"""The last piece of work after which some of what it has left is looked at where nothing is lenient, and how much.

That is a thousand entries in all: to look at more would be most of what a short run costs.
"""
MOST_ALONE = 1_000
"""So many records of a test are done one by one, whatever is left of one before the next."""
FEWER = 200
"""Rows that are tried together where more of them failed."""
NEIGHBOURS = 8
"""Rows that are done one by one after one that failed right behind another."""
PARTS = 8
"""The parts of fewer rows that failed, where nobody knows which of them did."""


class Guard:
    """Runs work on a chain so that a record leaves all of its effects or none.

    Where every operator's policy is to fail, nothing needs taking back: the run ends, and its commit never comes.
    `alone` is held meanwhile, so that who else reads a store never sees what may yet be taken back.
    """

    def __init__(
        self,
        chain: Chain,
        graph: Graph,
        stores: Sequence[TaskStore],
        outputs: Outputs,
        clock: Clock,
        alone: AbstractContextManager[object] | None = None,
        exactly: bool = False,
    ) -> None:
        self.chain = chain
        self.graph = graph
        """The options of a command about the environment."""
        self.skipped: Counter[str] = Counter()
        self.dead_lettered: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.taken_back: Counter[tuple[str, str]] = Counter()
        """The records whose counts were taken back, too, by the operator that failed and the stream of each."""
        self._stores = stores
        self._outputs = outputs
        self._clock = clock
        self._alone = alone or nullcontext()
        self._exactly = exactly
        """Whether what is kept is decoded again and compared, too."""
        self._attempts = 0
        self._alone_left = MOST_ALONE if exactly else 0
        """How many records are still to be done one by one, so that what each leaves is looked at."""
        self.lenient = is_lenient(graph, chain.stage)
        self.together = not (self.lenient and chain.sinks)
        """Whether records may be tried together: what a sink did can't be taken back, to be done again one by one."""

    @property
    def takes_many(self) -> bool:
        """Whether records are tried together now."""
        return self.together and self._alone_left <= 0

    def attempt(self, work: Callable[[], None]) -> Failure | None:
        """Do work; where it fails take all of it back and return the failure."""
        with self._alone:
            return self._attempt(work)

    def _attempt(self, work: Callable[[], None]) -> Failure | None:
        if not self.lenient:
            return self._attempt_once(work)
        counts = self.chain.counts.copy()
        self.chain.write_back()
        for store in self._stores:
            store.savepoint()
        self._outputs.savepoint()
        try:
            work()
            self._check_kept()
            self._call_sinks()
        except Failure as failure:
            for store in self._stores:
                store.rollback()
            self._outputs.rollback()
            self.chain.forget()
            self.chain.counts = counts
            return failure
        for store in self._stores:
            store.release()
        self._outputs.release()
        return None

    def _attempt_once(self, work: Callable[[], None]) -> Failure | None:
        """Do work of which nothing need be taken back."""
        durable = [store for store in self._stores if store.durable] if self._exactly else []
        for store in durable:
            store.savepoint()
        self._attempts += 1
        try:
            work()
            if self._exactly:
                self._check_kept()
            elif self._attempts <= LAST_CHECKED and not self._attempts & (self._attempts - 1):
                self._check_newest()
            self._call_sinks()
        except Failure as failure:
            return failure
        finally:
            for store in durable:
                store.release()
        return None

    def _check_kept(self) -> None:
        """Raise Failure where what an operator was left to keep can't be kept; no commit would get by it."""
        self.chain.write_back(durable_only=True)
        for store in self._stores:
            with self._kept_by(store.name):
                store.check_written(self._exactly)

    def _check_newest(self) -> None:
        """Look at some of what the first records left: where all fails anyway, the commit tells of the others."""
        beside = self.chain.newest(MOST_CHECKED)
        for store in self._stores:
            with self._kept_by(store.name):
                store.check_newest(MOST_CHECKED, beside.get(store.name, ()))

    @contextmanager
    def _kept_by(self, operator: str) -> Iterator[None]:
        """Say of a value that can't be kept which operator was to keep it, and what may be written there."""
        try:
            yield
        except SerdeError as error:
            raise Failure(operator, SerdeError(f"{error} ({advice_for(self.graph.specs[operator])})")) from error

    def anew(self, values: Sequence[Any]) -> Anew | None:
        """Return values that are in memory alone as they are now, where what is done with them may be done again."""
        return values_kept(values) if self.lenient else None

    def at_once(self, work: Callable[[], None], where: Callable[[int | None], Whence]) -> bool:
        """Do the work of several records; return whether that went well, or they are to be done one by one."""
        return self.takes_many and self._failed(work, where) is None

    def _failed(self, work: Callable[[], None], where: Callable[[int | None], Whence]) -> Failure | None:
        """Do work; return the failure of what is to be done in smaller parts, with none of its frames."""
        failure = self.attempt(work)
        if failure is not None:
            self.must_be_lenient(failure, where)
            failure.let_go()
        return failure

    def must_be_lenient(self, failure: Failure, where: Callable[[int | None], Whence]) -> None:
        """Raise what ends the run, unless some operator may have its records done one by one."""
        if not self.lenient:
            raise self._told(failure, where(failure.row))

    def each(
        self,
        work: Callable[[Batch], None],
        batch: Batch,
        raw: LetterRows,
        where: Callable[[int | None], Whence],
        anew: Anew | None = None,
    ) -> None:
        """Do work on all rows at once; where that fails, on fewer and fewer, and at last on one, under its policy.

        What is done again is done on values `anew`, as the user's functions may have changed those of before.
        """
        whole, has_run = range(len(batch)), self.takes_many
        if not self.takes_many:
            self._alone_left -= len(batch)
            todo = [range(row, row + 1) for row in reversed(whole)]
        elif (failure := self._failed(partial(work, batch), where)) is None:
            return
        else:
            todo = _cut(whole, failure.row)
        while todo:
            rows = todo.pop()
            part = on_rows(work, batch, rows, anew, has_run)
            if len(rows) == 1:
                self.one(part, raw.row(rows.start), where(rows.start))
            # What failed has left nothing, whatever it says of its row: that only tells where to cut.
            elif (failure := self._failed(part, where)) is not None:
                todo += _cut(rows, failure.row)

    def fire(self, id: str, until: int, most: int, by_clock: bool = False) -> Batch | None:
        """Return what an operator fires: so much at once; where that fails less, and at last one, under its policy."""
        fired: list[Batch | None] = []

        def work(number: int) -> None:
            fired.append(self.chain.fire(id, until, number, by_clock))

        for number in (most, min(most, FEWER)):
            failure = self.attempt(partial(work, number))
            if failure is None:
                return fired[0]
            self.must_be_lenient(failure, lambda _: Whence(id))
            failure.let_go()
        failure = self.insist(partial(work, 1))
        if failure is not None:
            self.settle(failure, Emitted(self.chain.drop(id, by_clock), self.graph, id).row(0), Whence(id))
        return fired[0] if fired else None

    def one(self, work: Callable[[], None], raw: Batch, where: Whence) -> bool:
        """Do the work of one record, again as often as its policy says, and settle it when that does not help.

        Return whether it is done.
        """
        while (failure := self.insist(work)) is not None and failure.timer is not None:
            self._settle_timer(failure, failure.timer)
        if failure is not None:
            self.settle(failure, raw, where)
        return failure is None

    def _settle_timer(self, failure: Failure, timer: TimerFailed) -> None:
        """Apply the policy to what failed between messages, so that it is in the way of none."""
        id = failure.operator
        row = Batch([timer.at_ms], keys=[timer.key])
        self.settle(failure, Emitted(row, self.graph, id).row(0), Whence(id))
        cast(ProcessOperator, self.chain.operators[id]).delete_timer(timer.key, timer.at_ms)

    def insist(self, work: Callable[[], None]) -> Failure | None:
        """Do the work of one record, again as often as the policy of what fails says; return the last failure."""
        return self._again(partial(self.attempt, work))

    def _again(self, attempt: Callable[[], Failure | None]) -> Failure | None:
        tries: Counter[str] = Counter()
        while (failure := attempt()) is not None:
            id, policy = failure.operator, self.graph.specs[failure.operator].on_error
            asynchronous = self.graph.specs[id].asynchronous
            if failure.given_up or not isinstance(policy, Retry) or tries[id] >= policy.times or asynchronous:
                return failure
            self.retried[id] += 1
            self._clock.pause_ms(policy.backoff_ms * 2 ** tries[id])
            tries[id] += 1
        return None

    def _call_sinks(self) -> None:
        """Call users' sinks with what reached them; where one raises, that call alone is made again."""

        def attempt(id: str, most: int, held: deque[Any], anew: Anew | None) -> Failure | None:
            try:
                self.chain.call_sink(id, most)
            except Failure as failure:
                if anew is not None:
                    (held[0],) = anew(range(1))
                return failure
            return None

        for id, sink in self.chain.sinks.items():
            while sink.held:
                anew = self.anew([sink.held[0]]) if isinstance(self.graph.specs[id].on_error, Retry) else None
                most = 1 if self.lenient else len(sink.held)
                failure = self._again(partial(attempt, id, most, sink.held, anew))
                if failure is not None:
                    raise Failure(id, failure.error, given_up=True)

    def settle(self, failure: Failure, raw: Batch, where: Whence) -> None:
        """Apply the policy of the operator that failed to a record with no effects left; raises when it is to fail."""
        if isinstance(failure.error, PlanError):
            raise failure.error  # a mistake in the program, not in a record
        if isinstance(failure.error, UnreadState | UnreadForm):
            raise self._told(failure, where)
        if isinstance(failure.error, ExitAsked):
            raise exit_error(self.graph, failure.operator, failure.error.__cause__ or failure.error)
        spec = self.graph.specs[failure.operator]
        policy = final(spec.on_error) if spec.on_error is not None else None
        if not spec.source and not spec.asynchronous and where.partition is not None:
            # What fails as it is read was never counted, and what calls were made for was, before them.
            self.taken_back[failure.operator, where.source] += 1
        if isinstance(policy, Skip):
            self.skipped[failure.operator] += 1
        elif isinstance(policy, DeadLetterPolicy):
            self.dead_lettered[failure.operator] += 1
            told = named(failure.error).encode()
            headers = {**where.headers(), "operator": failure.operator.encode(), "error": told}
            try:
                self._outputs.dead_letter(policy.stream, raw, headers)
            except TooLarge as error:
                raise self._told(Failure(failure.operator, error), where) from failure.error
        else:
            raise self._told(failure, where)
        failure.let_go()

    def _told(self, failure: Failure, where: Whence) -> SamzaError:
        self.chain.trace(failure)
        spec = self.graph.specs[failure.operator]
        if isinstance(failure.error, UnreadState | UnreadForm):
            owner, told = f"{spec.kind} {spec.op_id!r} at {spec.site}: ", str(failure.error)
            if told.startswith(owner):
                return UnreadState(told)
            drop = command(f"state forget {self.graph.app} {spec.op_id}")
            return UnreadState(f"{owner}{told}; or drop the state of this operator alone: {drop}")
        if isinstance(failure.error, TooLarge):
            return TooLarge(
                f"{spec.kind} {spec.op_id!r} at {spec.site}: {failure.error}; it came of {where}, and nothing of that "
                "was committed. Raise that limit, write less, or let it pass: on_error=skip or dead_letter('name')"
            )
        if spec.source and not where.part:
            where = where._replace(part="key")  # the one part of a record that is read where messages are run
        return record_error(spec, failure.error, where)


def on_rows(
    work: Callable[[Batch], None], batch: Batch, rows: range, anew: Anew | None, has_run: bool = True
) -> Callable[[], None]:
    """Return the work on rows of a batch, on values `anew` each time but the first, unless `has_run`."""

    def do() -> None:
        nonlocal has_run
        part = batch.slice(rows.start, rows.stop)
        if has_run and anew is not None:
            part.values = anew(rows)
        has_run = True
        work(part)

    return do


def _cut(rows: range, failed: int | None) -> list[range]:
    """Return the parts, the first one last, in which to do rows that failed together; `failed` is the one that did.

    >>> _cut(range(100, 150), 20), _cut(range(3), 0)
    ([range(121, 150), range(120, 121), range(100, 120)], [range(2, 3), range(1, 2), range(0, 1)])
    >>> _cut(range(100, 140), None)[-1], len(_cut(range(100, 140), None))
    (range(100, 105), 8)
    """
    if len(rows) > FEWER:
        stops = [*range(0, len(rows), FEWER), len(rows)]
    elif failed == 0:
        # As likely as not the one before has failed, too: where many do, none is done twice.
        stops = [*range(min(NEIGHBOURS, len(rows))), len(rows)]
    elif failed is not None and failed < len(rows):
        stops = [0, failed, failed + 1, len(rows)]
    else:
        stops = [*range(0, len(rows), -(-len(rows) // PARTS)), len(rows)]
    return [part for part in map(rows.__getitem__, map(slice, stops, stops[1:])) if part][::-1]


def is_lenient(graph: Graph, stage: StagePlan) -> bool:
    """Whether some operator of a stage has another policy than to fail, so that what a record did may be taken back."""
    specs = [graph.specs[id] for id in stage.operators]
    return any(not _fails(spec.on_error) for spec in specs if not spec.source)


def _fails(policy: Any) -> bool:
    return policy is None or not isinstance(policy, Skip | DeadLetterPolicy | Retry)
