"""The process of a test, which runs an application in virtual time, and may die and begin again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from operators.core.base import Batch, Output, Serde
from operators.io import SendTo
from planner.model import graph as graphs
from planner.model.graph import Graph
from planner.model.levers import Levers
from planner.model.plan import Plan
from runtime.encoding.storable import read_back
from runtime.functions.user_functions import Functions
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import SHARED, Checkpoint
from runtime.model.errors import ExitAsked, Grown
from runtime.model.metrics import RunMetrics
from runtime.ports.store import TaskStore
from runtime.run.driver import exits_told
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.lists import ListSink, Unchanged
from samza_dsl.application.app import App
from samza_dsl.testing.environment import Crash, CrashPoint, Doom, MortalEnvironment
from samza_dsl.testing.held_calls import Answer, Call, HeldCalls
from samza_dsl.testing.mutations import Mutations
from samza_dsl.testing.streams import Record, Streams
from samza_dsl.testing.virtual_loop import VirtualLoop
from samza_dsl.view.progress import Progress

T = TypeVar("T")

Results = dict[str, list[Any]]
"""The values of streams, by name."""
POLL_MS = 1_000
"""The ms between two looks for new records; only the test writes, and it wakes the run when it does."""
CANCELLATIONS = 10
"""The number of times that calls are cancelled which do not end at that."""
PATIENCE_S = 10.0
"""Virtual time in which those may end that do not end at that either."""
STUCK_S = 3_600.0
"""Virtual time after which a run that does not commit will never end."""


class VirtualProcess:
    """Runs an application over an environment that outlives it; the caller decides how far, and when it dies.

    At most one run is alive, and time never goes back. A dead process commits nothing any more, and its objects are
    closed only by `close`. One thread calls it, and the loop turns only within such a call.
    """

    def __init__(
        self,
        app: App,
        inputs: Mapping[str, Sequence[object]] | None = None,
        *,
        streams: Iterable[str] = (),
        partitions: Mapping[str, int] | None = None,
        watch: Sequence[str] = (),
        start_ms: int = 0,
        order: random.Random | None = None,
    ) -> None:
        self.dead = True
        self.ended = False
        self.story: list[str] = []
        self.environment = MortalEnvironment(now_ms=lambda: self.now_ms)
        self.start_ms = start_ms
        self._watch = {f"watch-{operator}": operator for operator in watch}
        self._sinks: dict[str, OutputSink] = {}
        self._held: set[str] = set()
        self._elsewhere: ThreadPoolExecutor | None = None
        self._run: Run | None = None
        self._driving: asyncio.Task[None] | None = None
        self._left_open: list[Functions] = []
        self._order = order
        self._loop = VirtualLoop(order, self._turn)
        self._loop.set_exception_handler(self._hear)
        try:
            self._understand(app)
            self.streams.create((*streams, *(inputs or {})), partitions or {})
            for stream, given in (inputs or {}).items():
                for partition, records in enumerate(self.streams.by_partition(stream, given)):
                    self.streams.append(stream, records, partition)
        except BaseException:
            self._loop.close()
            raise

    @property
    def now_ms(self) -> int:
        """The virtual wall clock, in ms since the epoch."""
        return self.start_ms + round(self.elapsed_ms())

    def elapsed_ms(self) -> float:
        """Return how much virtual time has passed, in ms."""
        return self._loop.time() * 1_000

    def start(self, app: App | None = None, since: int | None = None) -> None:
        """Begin from the last commit; with another version of the application, if one is given.

        A run that begins anew has the size that was asked for `since` the one before it began.
        """
        if not self.dead:
            self.die()
        assert self._run is None and self._driving is None, "two runs would commit to one environment"
        if app is not None:
            self._understand(app)
            self.streams.create((), {})

        async def begin() -> asyncio.Task[None]:
            around = (self._mutations.around, *self._app.around, self.calls.around)
            self._run = Run(
                Pipeline(self.graph, self._options, around),
                self.environment,
                RunSettings(
                    bind=self._sinks,
                    clock=_LoopTime(self),
                    poll_ms=min(POLL_MS, self._app.options.commit_interval_ms),
                    since=since,
                    levers=Levers(trust=False, gathering=False),
                ),
            )
            self._plan = self._run.plan
            return asyncio.create_task(self._run.drive())

        self.dead = self.ended = self.environment.doom.dead = False
        try:
            self._driving = self._call(lambda: self._loop.run_until_complete(begin()))
        except Crash:
            self.die()
        except BaseException:
            self.die()
            raise
        self.proceed()

    def proceed(self, length_s: float = 0, turns: int | None = None) -> None:
        """Let the run go on for so many seconds, or so many turns of its loop; raises what the run failed with."""
        if self._run is not None:
            self._run.wake()
        assert length_s >= 0, "time only goes on"
        commits, until_s = self.environment.commits, self._loop.time() + length_s
        with self._dying_of_exits(), suppress(Crash):
            self._call(lambda: self._loop.proceed(until_s, turns))
        if self.environment.commits > commits:
            number = self.environment.commits - commits
            self.tell("committed" if number == 1 else f"committed {number} times")
        if self._driving is not None and self._driving.done():
            self._see_end(self._driving)
        if self.environment.doom.dead and not self.dead:
            self.die()

    @contextmanager
    def _dying_of_exits(self) -> Iterator[None]:
        try:
            with exits_told(self._run):
                yield
        except ExitAsked:
            self.die()
            raise

    def finish(self) -> None:
        """Let time pass until the run has ended or died; raises RuntimeError where it would not."""
        self._pass_until(lambda: False)

    def settle(self) -> None:
        """Let time pass until all that was sent is processed and committed; raises RuntimeError where it never is."""
        run = self._run

        async def settled() -> None:
            if run is not None:
                with suppress(Exception):
                    await run.settled()

        self._pass_until(self._loop.create_task(settled()).done)

    def stop(self) -> None:
        """Drain, commit and end, however long that takes."""
        if self._run is not None and not self.dead:
            self._run.stop()
            self.finish()

    def doom(self, point: CrashPoint | None) -> None:
        """Set the point at which the process dies; None lets it live."""
        self.environment.doom = Doom(point, self.dead)

    def check_doom(self) -> None:
        """Raise AssertionError where the process was to die at a point and has not reached it."""
        doom = self.environment.doom
        if doom.point is None:
            return
        made = "turns of its event loop" if doom.point.when == "turn" else "commits"
        fate = "has come to its end" if self.ended else "is dead" if self.dead else "lives on"
        raise AssertionError(
            f"{doom.point} was not reached: {made} since run.crash(...): {doom.met}, and the process {fate}; let more "
            "happen before the test goes on, or call run.crash(), which is at once"
        )

    def die(self) -> None:
        """Die at once, with all that is under way: nothing more is committed, and open objects stay open."""

        # Coroutines are cancelled, though a killed process has no time for that: else the garbage collector would close
        # them at any later moment, and a lock that one of them holds would be held for ever.
        def cancel() -> None:
            for patience_s in (*[0.0] * CANCELLATIONS, PATIENCE_S):
                left = asyncio.all_tasks(self._loop)
                for task in left:
                    task.cancel()
                if left:
                    self._loop.proceed(self._loop.time() + patience_s)

        # Before anything is cancelled: a `finally` block of a coroutine must not commit any more.
        self.environment.doom.dead = True
        if self._run is not None:
            self._left_open += self._run.abandon()
        self._driving = self._run = None
        if not self.dead:
            self.tell("the process died")
        self.dead = True
        self._call(cancel)

    def close(self) -> None:
        """Release everything, what the dead have left open included."""

        async def release() -> None:
            for functions in reversed(self._left_open):
                with suppress(Exception):
                    await functions.close()

        def end() -> None:
            releasing = self._loop.create_task(release())
            self._loop.proceed(self._loop.time() + PATIENCE_S)
            releasing.cancel()
            self._loop.proceed()

        if not self._loop.is_closed():
            self.die()
            self._call(end)
            self._loop.close()
        if self._elsewhere is not None:
            self._elsewhere.shutdown()

    def tell(self, what: str) -> None:
        """Add a line to the story of the test."""
        self.story.append(f"{self.now_ms:>9,} ms  {what}")

    def written(self) -> list[str]:
        """Return the outputs and dead letter streams of the run."""
        return [stream.name for stream in self._plan.results]

    def metrics(self) -> RunMetrics:
        """Return the numbers of the run."""
        if self._run is None:
            raise RuntimeError("the process is dead; run.restart() begins another one")
        return self._run.metrics()

    def strangers(self) -> list[str]:
        """Return for each join with keys of types that can't meet what these are; nothing of a dead process."""
        return [] if self._run is None else strangers_in(self._plan, self._run.metrics())

    def stores(self, operator: str) -> Sequence[TaskStore]:
        """Return the live stores of an operator, task by task."""
        return self._run.stores(operator) if self._run is not None else ()

    def records(self, name: str) -> list[Record]:
        """Return the committed records of an output, of a watched operator, or of any other stream."""
        stream = f"watch-{name}" if f"watch-{name}" in self._watch else name
        if stream not in self._sinks:
            return self.streams.records(stream)
        positions = self.environment.checkpoints(self.graph.app).get(SHARED, Checkpoint(0)).outputs
        return self.streams.written(stream, self._sinks[stream].rows(positions.get(stream, 0)))

    def _pass_until(self, done: Callable[[], bool]) -> None:
        commits, since_s = self.environment.commits, self._loop.time()
        self.proceed()
        # A second at a time, and given up only after an hour in which nothing was committed: a run may wait for long
        # timeouts and backoffs, which cost nothing in virtual time.
        while not (self.ended or self.dead or done()):
            self.proceed(1)
            if self.environment.commits > commits:
                commits, since_s = self.environment.commits, self._loop.time()
            elif self._loop.time() > since_s + STUCK_S:
                waits_for = self.calls.all or "something that never happens"
                raise RuntimeError(f"the run does not end: it waits for {waits_for}")

    def _understand(self, app: App) -> None:
        graph = app.graph()
        taps = {stream: _tap(graph, operator, stream) for stream, operator in self._watch.items()}
        self._app = app
        self.graph = graphs.build(graph.app, {**graph.specs, **taps})
        self._mutations = Mutations(self.graph)
        self.calls = HeldCalls(self.graph.specs, self._answer, self._held, self._order)
        self.streams = Streams(self.graph, self.environment, lambda: self.now_ms)
        written = {output.stream for spec in self.graph.specs.values() for output in spec.outputs}
        # Where tasks commit by themselves outputs are streams, as lists are written by all tasks together; what is
        # watched is never bytes, so that it has a list, and tasks commit together there.
        if app.options.commit_by == "task" and not self._watch:
            written = set()
        self._options = replace(app.options, commit_by="container") if written else app.options
        self._sinks = {
            stream: self._sinks.get(stream, OutputSink(("keys", "timestamps", "headers")))
            for stream in written - self.streams.read
        }

    def _see_end(self, driving: asyncio.Task[None]) -> None:
        assert driving.done(), "the run goes on"
        error = None if driving.cancelled() else driving.exception()
        self._driving = None
        if error is None:
            self.ended = True
            self.tell("the run ended")
            return
        if isinstance(error, Grown):
            if self._run is not None and self._run.stopping:
                self.ended = True
                self.tell(f"the run ended, and the next one does again what is not committed: {error}")
                return
            # Whoever drives a run begins it anew there.
            self.tell(f"begins anew: {error}")
            since = self._run.since if self._run is not None else None
            self.die()
            self.start(since=since)
            return
        if not isinstance(error, Crash):
            self.tell(f"failed: {error}")
        self.die()
        if not isinstance(error, Crash):
            raise error

    def _turn(self) -> None:
        """Let the process die at a turn of its loop; the dead are only cleaned up."""
        if not self.dead:
            self.environment.doom.meet("turn")

    def _hear(self, loop: asyncio.AbstractEventLoop, told: dict[str, object]) -> None:
        """Note an error that nobody awaits; a crash is none, since a dead process awaits nothing any more."""
        if not isinstance(told.get("exception"), Crash):
            self.tell(f"{told['message']}: {told.get('exception')!r}")
            loop.default_exception_handler(told)

    def _answer(self, call: Call, answer: Answer) -> None:
        if call.answered.done():
            raise RuntimeError(f"{call!r} has ended already: it was answered, has timed out, or died with its run")
        self.tell(f"{call!r} was answered")
        call.answered.set_result(answer)
        self.proceed()

    def _call(self, function: Callable[[], T]) -> T:
        """Call what runs the loop: in a thread where this one runs a loop already, as in a notebook."""
        if not _runs_a_loop():
            return function()
        if self._elsewhere is None:
            self._elsewhere = ThreadPoolExecutor(1)
        return self._elsewhere.submit(function).result()


class _LoopTime:
    """The clock of a run, which is the event loop's."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process

    def now_ms(self) -> int:
        return self._process.now_ms

    def elapsed_ms(self) -> float:
        return self._process.elapsed_ms()

    def pause_ms(self, ms: float) -> None:
        """Return at once: time does not pass while something runs."""


def strangers_in(plan: Plan, metrics: RunMetrics) -> list[str]:
    """Return for each join of a run with keys of types that can't meet what these are."""
    progress = Progress(plan)
    progress.take(metrics, ended=True)
    # That hardly any have met is no word's worth in a test, whose few records may be there for just that.
    return [f"{plan.app}: {told}" for told in progress.strangers(with_few=False)]


def _tap(graph: Graph, operator: str, stream: str) -> SendTo:
    """Return an output that takes all messages of an operator; raises ValueError for one that emits nothing."""
    spec = graph.specs.get(operator)
    if spec is None or spec.terminal:
        known = ", ".join(id for id, each in graph.specs.items() if not each.terminal)
        raise ValueError(f"watch has {operator!r}, which emits nothing; these operators of the app do: {known}")
    return SendTo(parents=(spec,), site=spec.site, op_id=stream, output=Output(stream, Unchanged()))


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True)
class Passing:
    """Passes every value through the serde of its stream, as in production; without a declared type it stays as it is.

    >>> from runtime.encoding.serdes import Json
    >>> Passing(Json(list[int])).encode((1, 2)), Passing(Json()).encode((1, 2))
    ([1, 2], (1, 2))
    """

    serde: Serde

    def encode(self, value: object) -> Any:
        """Return `value` as a reader of the stream would see it; raises what encoding or decoding raises."""
        data = self.serde.encode(value)
        return value if getattr(self.serde, "type", None) is Any else self.serde.decode(data)

    def decode(self, data: object) -> object:
        """Return `data`."""
        return data


class OutputSink(ListSink):
    """An output as a list of values; those beyond the last commit are in it, and do not count."""

    def serde(self, declared: Serde) -> Serde:
        """Return the serde that values pass."""
        return Passing(read_back(declared))

    def rows(self, committed: int) -> Batch:
        """Return so many of the first rows."""
        assert committed <= len(self.values), "more rows are committed than were written"
        timestamps = cast("list[int]", self.timestamps[:committed])  # None where a record had none
        return Batch(self.values[:committed], self.keys[:committed], timestamps, headers=self.headers[:committed])
