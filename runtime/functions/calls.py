"""The async calls of one operator in one task: workers take them in order, time them out and try them again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from itertools import chain, repeat
from math import inf
from operator import length_hint
from typing import Any, NamedTuple

from operators.core.base import NO_HEADERS, Batch, Headers
from operators.core.policies import Policy, Retry
from operators.core.wording import askable, shown, words_of
from runtime.encoding.ownership import values_kept
from runtime.functions.answers import Answers, Question
from runtime.functions.at_work import tells
from runtime.functions.failures import Failure, exit_in
from runtime.functions.first_call import parts_of
from runtime.functions.user_lines import OPERATOR
from runtime.model.clock import clock_of, sleep_ms
from runtime.model.errors import ExitAsked
from runtime.model.metrics import LISTENER, DurationListener, Durations

TIMED = 16
"""One of so many calls that were asked for together is timed, and stands for all of these: each would cost 2 %."""

TOGETHER = 64
"""One in so many places is for answers that are kept together: a write costs as much as what is done for a call."""


AsyncFunction = Callable[[Any], Awaitable[object]]


class OwnHeaders(list[Headers | None]):
    """The headers of a batch that nobody shares, so that what a call says beside its result can be put there."""


class CallHeaders(NamedTuple):
    """The headers of the message that a call is made for, which its results take over."""

    batch: Batch
    row: int

    @property
    def found(self) -> Headers:
        """The headers as they are."""
        return (self.batch.headers and self.batch.headers[self.row]) or NO_HEADERS

    def add(self, more: Mapping[str, bytes]) -> None:
        """Add to the headers, where messages here have some."""
        headers = self.batch.headers
        if headers is not None and more:
            if type(headers) is not OwnHeaders:
                # Others may still write the list that came.
                headers = self.batch.headers = OwnHeaders(headers)
            headers[self.row] = {**self.found, **more}


AroundCall = Callable[[str, AsyncFunction, object, "CallHeaders | None"], Awaitable[object]]
"""Makes a call of an operator's function, given its id, the argument, and the headers of its message."""


class Asked:
    """Calls that were asked for together, numbered by row, and their results since these were last taken.

    `returned` has the rows in the order in which they came back, and each has one of the `values` but where `sizes`
    says otherwise. `tries` are the tries at a row after its first. `questions` are what answers are kept under.
    `rows` yields the rows of the calls that no worker has taken yet.
    """

    __slots__ = ("anew", "arguments", "failed", "questions", "returned", "rows", "sizes", "tries", "values")

    anew: Callable[[range], list[Any]]
    """Returns the messages of rows as they were before their first tries."""

    def __init__(self, arguments: Sequence[object]) -> None:
        self.arguments = arguments
        self.start(range(len(arguments)))
        self.returned: list[int] = []
        self.sizes: dict[int, int] = {}
        self.values: list[object] = []
        self.failed: dict[int, Failure] = {}
        self.tries: dict[int, int] = {}
        self.questions: Sequence[Question] = ()

    def headers_of(self, row: int) -> CallHeaders | None:
        """Return the headers of the message of a row; None where no message has any."""
        return None

    def keep(self) -> None:
        """Keep the messages as they are, where calls may be tried again: the function may change what it is given."""
        self.anew = values_kept(self.arguments)

    def renew(self, row: int) -> None:
        """Let the next try at a row have its message as it was."""
        arguments = [*self.arguments]
        (arguments[row],) = self.anew(range(row, row + 1))
        self.arguments = arguments

    def start(self, rows: Sequence[int]) -> None:
        """Set the calls, by row, that are started when this is submitted."""
        self.rows = iter(rows)


Call = tuple[Asked, int]
"""One of the calls that were asked for together, by its row."""


class Worker:
    """Makes one call after the other; it is `given_up` when one of them takes too long, whatever that returns later.

    `started` is when the one at hand was begun; `context` is its own, and changes with what a call sets there.
    """

    __slots__ = ("asked", "context", "given_up", "row", "started", "task")

    task: asyncio.Task[None]
    context: Context
    asked: Asked
    row: int

    def __init__(self) -> None:
        self.started = inf
        self.given_up = False


AROUND: ContextVar[AroundCall | None] = ContextVar("AROUND", default=None)
"""Makes the calls of a run that is made in this context, for who traces them."""


class Tracing(NamedTuple):
    """The ears of who traces one run: what hears of its durations, and what makes its calls."""

    listener: DurationListener
    around: AroundCall


@contextmanager
def heard_by(hearing: Tracing | None) -> Iterator[None]:
    """Let what is made during a block be heard of, and nothing else; by nobody where it is None."""
    found = Tracing(*hearing) if hearing is not None else (None, None)
    listener, around = LISTENER.set(found[0]), AROUND.set(found[1])
    try:
        yield
    finally:
        AROUND.reset(around)
        LISTENER.reset(listener)


class Calls:
    """Starts calls in the order in which they are submitted, at most `max_in_flight` at once, each by a worker.

    A worker takes the next call as soon as it has told of one, and ends when there is none. Every call begins in the
    context and with the count of cancellations of a task of its own: a worker whose call has left others is replaced.

    A call that takes longer than `timeout_ms` is cancelled and counts as failed, whether it heeds that or not. One
    timer looks after all workers, at the earliest of their deadlines.

    Where `answers` are kept, a call counts as in flight until its answer is: so a crash costs `max_in_flight` at most.
    Where they can be kept at once, a few places are for answers alone, which are kept together when these are taken, so
    that no call waits.

    Everything is called in the thread of the event loop. Invariants: at most `max_in_flight` workers are hired; of each
    call the end is told once, as a result or as a failure; while any worker is hired, a timer is set.
    """

    def __init__(
        self,
        operator: str,
        function: AsyncFunction,
        max_in_flight: int,
        timeout_ms: int,
        policy: Policy,
        on_told: Callable[[Asked], None],
        on_ended: Callable[[Asked, int], None] | None = None,
    ) -> None:
        self._operator = operator
        self._function, self._around = function, AROUND.get()
        self._max_in_flight = max_in_flight
        self._timeout_ms = timeout_ms
        self._policy = policy
        self._on_told = on_told
        self._on_ended = on_ended
        self._context = copy_context()
        self._timeout_s = timeout_ms / 1_000
        self._waiting: deque[Asked] = deque()
        self._again: deque[Call] = deque()
        self._starting = Asked(())
        self._calls = chain.from_iterable(self._sources())
        self._workers: dict[Worker, None] = {}
        self._given_up: set[asyncio.Task[None]] = set()
        self._resting: deque[tuple[Worker, asyncio.Future[None]]] = deque()
        """The workers that wait until answers are kept, or until there is more to call."""
        self._timer: asyncio.TimerHandle | None = None
        self.answers: Answers | None = None
        """The answers that are kept, where they are."""
        self._keep_at_once: Callable[[], bool] | None = None
        self._for_answers = 0
        """The number of places in which there is no call, but an answer that is not kept yet."""
        self.retried = 0
        self.durations = Durations("call", operator)
        """The durations of calls, tries included."""

    def __len__(self) -> int:
        return len(self._workers)

    def submit(self, asked: Asked, calls: int) -> None:
        """Start that many calls, or queue those for which there is no worker."""
        self._context = copy_context()
        # Once for all of these calls, so that what they log tells whose they are.
        self._context.run(OPERATOR.set, self._operator)
        if isinstance(self._policy, Retry):
            asked.keep()
        self._waiting.append(asked)
        self._hire_up_to(calls)
        assert len(self._workers) <= self._max_in_flight

    def keeping_at_once(self, keep: Callable[[], bool]) -> None:
        """Keep answers by a function that returns whether they are kept now."""
        self._keep_at_once, self._for_answers = keep, self._max_in_flight // TOGETHER

    @property
    def is_held_up(self) -> bool:
        """Whether calls wait for answers to be kept."""
        return self.answers is not None and self._room <= 0 and self._has_more

    def kept(self) -> None:
        """Take note that answers are kept, and start the calls that have waited for it."""
        in_turn = sum(length_hint(asked.rows) for asked in (self._starting, *self._waiting))
        self._hire_up_to(in_turn + len(self._again))

    @property
    def _room(self) -> int:
        """The number of calls that may be begun."""
        unkept = 0 if self.answers is None else self.answers.unkept
        return self._max_in_flight - len(self._workers) - max(unkept, self._for_answers)

    def _kept_at_once(self) -> bool:
        return self._keep_at_once is not None and self._keep_at_once()

    def _hire_up_to(self, calls: int) -> None:
        for _ in range(min(calls, self._room)):
            if self._resting:
                self._rouse(*self._resting.popleft())
            else:
                self._hire(Worker())

    def go_on(self, call: Call) -> None:
        """Start a call when another one has ended; for `on_ended` alone, as only then a worker is about to be free."""
        self._again.append(call)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel everything; return the tasks that are to be awaited before the loop may close."""
        if self._timer is not None:
            self._timer.cancel()
        hired = chain(self._workers, (worker for worker, _ in self._resting))
        tasks = [task for task in (*(worker.task for worker in hired), *self._given_up) if not task.done()]
        for worker in self._workers:
            worker.given_up = True
        for task in tasks:
            task.cancel()
        self._resting.clear()
        self._waiting.clear()
        self._again.clear()
        self._starting.start(())
        self._calls = chain.from_iterable(self._sources())
        self._workers.clear()
        return tasks

    def _hire(self, worker: Worker, first: Call | None = None, delay_ms: float = 0) -> None:
        self._workers[worker] = None
        loop = asyncio.get_running_loop()
        worker.context = self._context.copy()
        worker.task = loop.create_task(self._work(worker, first, delay_ms), context=worker.context)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        # One timer for all: whoever began first is due first, so a later one need not move it.
        if self._timer is None:
            self._timer = loop.call_at(loop.time() + self._timeout_s, self._look_after)

    def _rouse(self, worker: Worker, waited: asyncio.Future[None]) -> None:
        """Let a worker that rests go on, which takes half as long as to hire one."""
        self._workers[worker] = None
        waited.set_result(None)
        self._set_timer(asyncio.get_running_loop())

    def _rests(self, worker: Worker) -> asyncio.Future[None]:
        """Let a worker make no call before it is roused; nobody waits for it until then."""
        self._workers.pop(worker, None)
        worker.started = inf
        waited = asyncio.get_running_loop().create_future()
        self._resting.append((worker, waited))
        return waited

    def _replace(self, worker: Worker) -> None:
        self._workers.pop(worker, None)
        if self._room > 0 and self._has_more:
            self._hire(Worker())

    def _sources(self) -> Iterator[Iterable[Call]]:
        """Yield the calls to be started, as long as there are any."""
        while self._again or self._waiting:
            if self._again:
                yield (self._again.popleft(),)
            else:
                asked = self._starting = self._waiting.popleft()
                # Kept in `asked`, it would be a cycle, which only the collector frees, with each message that awaits.
                yield zip(repeat(asked), asked.rows)
                del asked
        # A generator that has ended gives nothing more: the next submit needs another one.
        self._calls = chain.from_iterable(self._sources())

    @property
    def _has_more(self) -> bool:
        return bool(self._again or self._waiting or length_hint(self._starting.rows))

    @tells(lambda known: known["self"]._operator)
    async def _work(self, worker: Worker, first: Call | None, delay_ms: float) -> None:
        function, ended, clock = self._function, self._on_ended, clock_of(asyncio.get_running_loop())
        answers = self.answers
        if self._around is not None:
            function = partial(self._traced, self._around, worker)
        task, context, unchanged = worker.task, worker.context, worker.context.copy()
        if delay_ms:
            await sleep_ms(delay_ms)
        # A retry is no new call: it begins with its own, and goes on with others.
        calls = self._calls if first is None else chain((first,), self._calls)
        while True:
            for asked, row in calls:
                worker.asked, worker.row, worker.started = asked, row, clock()
                try:
                    # The answer of an earlier run, where there is one.
                    found = None if answers is None else answers.recall(asked.questions[row])
                    result = await function(asked.arguments[row]) if found is None else found
                    # A list, which most functions return, needs no copy and no further call.
                    if type(result) is not list:
                        result = _listed(result)
                    if answers is not None and found is None and not worker.given_up:
                        answers.keep(asked.questions[row], result)
                except BaseException as error:
                    self._raised(worker, error)
                    return
                # The next call must not see what this one has set, nor a cancellation of it, as if it had a task of its
                # own. To compare two contexts costs 25 ns where none was changed.
                leaves = task.cancelling() or context != unchanged or worker.given_up
                if leaves and not await self._counts(worker):
                    return
                if not asked.returned:
                    self._on_told(asked)
                asked.returned.append(row)
                asked.values += result
                if len(result) != 1:
                    asked.sizes[row] = len(result)
                if not row % TIMED:
                    self._time(worker, clock())
                if ended is not None:
                    ended(asked, row)
                if leaves:
                    self._replace(worker)
                    return
                if answers is not None and self._room < 0 and not self._kept_at_once():
                    # The last answer has taken its place, until it is kept.
                    await self._rests(worker)
            if not self._has_more:
                break
            calls = self._calls
        self._workers.pop(worker, None)

    async def _traced(self, around: AroundCall, worker: Worker, argument: object) -> object:
        return await around(self._operator, self._function, argument, worker.asked.headers_of(worker.row))

    async def _counts(self, worker: Worker) -> bool:
        """Whether a call counts that leaves its worker unfit for others: cancelled, given up, or in another context."""
        try:
            if worker.task.cancelling():
                # A cancellation that the call has not waited for comes here.
                await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            self._raised(worker, error)
            return False
        if worker.given_up:
            self._given_up.discard(worker.task)
        return not worker.given_up

    def _raised(self, worker: Worker, error: BaseException) -> None:
        error = askable(error)
        # This ends the loop that closes its coroutines: no policy may take it for a failed record.
        if isinstance(error, GeneratorExit):
            raise error
        if worker.given_up:
            # The call was settled when it was given up: whatever it says later is of interest to nobody.
            self._given_up.discard(worker.task)
        elif exit_in(error) is not None:
            # Told as the record is settled, in its turn: raised here it would end the loop beneath all others.
            asked = ExitAsked()
            asked.__cause__ = error
            self._settle(worker, asked)
        elif isinstance(error, asyncio.CancelledError):
            self._settle(worker, RuntimeError("the call was cancelled, and not by the run"))
        else:
            self._settle(worker, error if isinstance(error, Exception) else RuntimeError(shown(error)))

    def _look_after(self) -> None:
        """Give up the calls that take too long, and look again when the next one would."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [worker for worker in self._workers if worker.started + self._timeout_s <= now]
        for worker in sorted(late, key=lambda worker: worker.started):
            worker.given_up = True
            self._given_up.add(worker.task)
            worker.task.cancel()
            self._settle(worker, TimeoutError(f"no result after timeout_ms={self._timeout_ms:,}"))
        # Only now: who is hired above must not have the timer look later than the first one needs.
        self._timer = None
        # `started` is infinite for a worker that has not begun: it is looked at again within one timeout.
        if self._workers:
            earliest = min(now, *(worker.started for worker in self._workers))
            self._timer = loop.call_at(earliest + self._timeout_s, self._look_after)

    def _time(self, worker: Worker, now: float) -> None:
        """Count how long a call has taken, for itself and for those next to it that are not timed."""
        number = min(TIMED, len(worker.asked.arguments) - worker.row)
        self.durations.add((now - worker.started) * 1_000, number)

    def _settle(self, worker: Worker, error: Exception) -> None:
        """Try the call of a worker again, or tell of its failure; the worker is done, and another takes its place."""
        asked, row, policy = worker.asked, worker.row, self._policy
        if not row % TIMED:
            self._time(worker, asyncio.get_running_loop().time())
        tries = asked.tries.get(row, 0)
        if isinstance(policy, Retry) and tries < policy.times and not isinstance(error, ExitAsked):
            self.retried += 1
            asked.tries[row] = tries + 1
            asked.renew(row)
            self._workers.pop(worker, None)
            self._hire(Worker(), (asked, row), policy.backoff_ms * 2**tries)
            return
        asked.failed[row] = Failure(self._operator, error)
        self._on_told(asked)
        if self._on_ended is not None:
            self._on_ended(asked, row)
        self._replace(worker)


def _listed(result: Any) -> list[object]:
    """Return the results of a call as a list; an error of a generator counts as raised by the call."""
    if parts := parts_of(result):
        raise TypeError(f"an async function returned one {parts} would go on; write instead: [value]")
    try:
        return list(result)
    except Exception as error:
        if isinstance(result, Iterable):
            raise
        raise TypeError(f"an async function must return an iterable of messages: {words_of(error)}") from None
