"""A run of an application in this process: it opens what it needs, drives the loop, and closes everything."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from operators.core.base import Batch, Serde
from operators.core.wording import askable
from operators.joins.table_join import TableContents
from operators.partition_by import murmur2
from planner.model.levers import Levers
from planner.model.plan import Plan
from runtime.assembly.assembly import Assembly
from runtime.assembly.history import follow, open_history
from runtime.assembly.partitions import without_past_ends
from runtime.commit.commit import Committer
from runtime.commit.schedule import MOST_WRITERS, commits_by_task, storing
from runtime.encoding.formats.rows import type_of_values
from runtime.encoding.keys import bytes_of_key
from runtime.encoding.serdes import Tagged
from runtime.encoding.storable import read_back
from runtime.functions.calls import heard_by
from runtime.functions.user_functions import Around, Functions, close_all
from runtime.job.pipeline import Pipeline
from runtime.loop.loop import HEARING_POLL_MS, LoopMode
from runtime.model.checkpoint import Checkpoint
from runtime.model.clock import Clock, SystemClock, sleep_ms
from runtime.model.errors import Damaged, EnvironmentFault, Fenced, Grown, Repartitioned, SamzaError, threads_here
from runtime.model.garbage import collector_patient
from runtime.model.history import HistorySpan
from runtime.model.metrics import ContainerMetrics, HistogramMetrics, JobMetrics, RunMetrics
from runtime.model.restores import coming_back
from runtime.model.state_choice import State
from runtime.opening.opening import (
    Opened,
    Recovered,
    Share,
    ends_of,
    join_application,
    open_application,
    recover,
    with_changes,
)
from runtime.opening.rewind import check_rewind
from runtime.ports import open_transactions as held
from runtime.ports.commits import fenced_error
from runtime.ports.environment import AudibleEnvironment, Environment, LiveEnvironment, QueryableEnvironment
from runtime.ports.live_streams import OpenTransaction
from runtime.ports.store import TaskStore
from runtime.ports.stream_values import values_of
from runtime.ports.streams import METRICS_CONFIG, Append
from runtime.queries.state_query import QueriedState, StateQuery, ended_error, queryable
from runtime.queries.state_requests import StateAnswer, StateDesk, StateRequest
from runtime.reading.reader import Reader
from runtime.run.composition import Composition
from runtime.run.driver import Watch, beside, check_no_loop, keeping_size, run_whatever_fails
from runtime.run.measurement import container_of, measure, snapshot_of
from runtime.run.rebalance import HEARING_MS, Follower
from runtime.run.sampling import Sampler
from runtime.run.scaling import Scaler
from runtime.run.settings import UNSAID, RunSettings, open_environment
from runtime.stage.chain import Chain
from runtime.stored_state.repartitioning import Repartitioning, repartitioned
from runtime.systems.frames.results import OutputFrame

METRICS_EVERY_MS = 10_000.0
"""The interval at which a container writes its numbers to a stream."""
LEAST_LOOK_MS, MOST_LOOK_MS = 10.0, 1_000.0
"""The interval at which rows are looked at that wait for others on their way to a sink."""
WRITER = "samza-dsl-writer"
"""The name of the threads that commit."""


class Run:
    """One run of a planned application: `metrics()` tells how it goes, `stop()` ends it.

    All is called in the thread of the event loop that drives it; `stop()` may be called from a signal handler, and
    `wake()` from any thread. The writer threads commit, and `send` appends in one thread. Invariants: the environment
    is owned, or joined, before the first task is made, and each commit is compared with the generation of that moment;
    what was opened is closed by `drive()` or `release()`, however the run ends; the error that ended it is raised by
    all who wait for it.
    """

    _recovered = Recovered({})
    """The state in which it began; in a container that shares the tasks of a run, nothing."""

    def __init__(self, pipeline: Pipeline, data: str | Path | Environment, settings: RunSettings = UNSAID) -> None:
        share, levers = settings.share, settings.levers
        from_start, state = settings.from_start, settings.state
        check_rewind(from_start, state)
        self._graph = pipeline.graph
        self._clock: Clock = settings.clock or SystemClock()
        self._started = self._clock.elapsed_ms()
        self._poll_ms = settings.poll_ms
        self._levers = levers if share is None else share.levers
        self._data = data
        self._owned = isinstance(data, str | Path)
        self._where = data, settings.environment, settings.host_id, settings.state_address
        self._placement, self._view = settings.placement, settings.view
        self._replica_age_ms = settings.replica_age_ms
        self._environment = open_environment(*self._where)
        self._functions: list[Functions] = []
        self._follower: Follower | None = None
        self._scaler: Scaler | None = None
        # In virtual time nobody's seconds pass.
        self._sampler = Sampler(self._chains) if settings.clock is None else None
        self._final: RunMetrics | None = None
        self._desk: StateDesk | None = None
        self._is_open = self._over = self._is_released = self._is_to_stop = False
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: Exception | None = None
        self._hearing = settings.hearing
        try:
            where = self._environment, pipeline, settings.bind or {}
            if share is None:
                since = settings.since
                opened = open_application(*where, levers=levers, from_start=from_start, state=state, since=since)
            else:
                opened = join_application(*where, share)
            self._bindings, self.plan, self._job = opened.bindings, opened.plan, opened.job
            self._graph = opened.graph
            self._moving, self._target, self.since = opened.moving, opened.target, opened.since
            with collector_patient(), heard_by(self._hearing):
                self._assemble(pipeline.around, opened, settings)
        except BaseException:
            self.release()
            raise

    @property
    def is_moving(self) -> bool:
        """Whether it only completes what lies by former partitions, and then raises `Repartitioned`."""
        return self._moving is not None

    @property
    def finished(self) -> bool:
        """Whether, in a container that shares the tasks with others, nothing was left to do when it last looked."""
        return self._loop.finished

    def when_finished(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `finished` becomes true."""
        self._loop.on_finished = tell

    def when_shared(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever the tasks of a container that shares them with others have changed."""
        if self._follower is not None:
            self._follower.on_change = tell

    @property
    def commits(self) -> int:
        """The number of commits so far."""
        return self._loop.committer.commits

    @property
    def tasks(self) -> list[int]:
        """The numbers of the tasks that are run here."""
        return [task.number for task in self._loop.tasks]

    @property
    def keeps_state(self) -> bool:
        """Whether the state of the tasks that are run here is here alone, and not with that of all others."""
        return isinstance(self._environment, LiveEnvironment)

    async def is_caught_up(self) -> bool:
        """Whether all that containers had written between stages, when it was asked, was read here."""
        environment = self._environment
        if not isinstance(environment, LiveEnvironment):
            # What is committed there can be read at once.
            return True
        return await asyncio.get_running_loop().run_in_executor(self._writer, environment.is_caught_up)

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment; after the end, the last ones. Without `stores`, none of their sizes.

        Raises what ended the run, where not even the last numbers are known.
        """
        if self._final is not None:
            return self._final
        self._check()
        stats = self._environment.state_stats(self._graph.app) if stores else {}
        found = measure(stats, self._graph, self._loop, self._clock.elapsed_ms() - self._started, self._clock)
        found = self._bindings.counted(with_changes(found, self._recovered, self._job, self._replica_age_ms))
        if self._scaler is not None and self._scaler.former:
            found = msgspec.structs.replace(found, operators=(*self._scaler.former, *found.operators))
        replaced, follower = msgspec.structs.replace, self._follower
        if follower is None:
            return replaced(found, containers=(self._container("0"),))
        operators, take_overs = (*follower.former, *found.operators), follower.take_overs
        container = self._container(follower.membership.name, follower.former_durations)
        rebalances = follower.durations.metrics()
        container = replaced(
            container,
            rebalances=follower.rebalances,
            settled=follower.settled,
            histograms=(*container.histograms, rebalances),
        )
        return replaced(found, operators=operators, take_overs=take_overs, containers=(container,))

    def _container(self, name: str, former: Sequence[HistogramMetrics] = ()) -> ContainerMetrics:
        busy_ms = self._sampler.heed() if self._sampler is not None else {}
        found, app = container_of(self._loop, self._clock, name, former), self._graph.app
        replayed, moved = self._environment.brought(app) if isinstance(self._environment, LiveEnvironment) else (0, 0)
        restored = {"restored": replayed, "moved": moved, "restoring": coming_back(app)}
        return msgspec.structs.replace(found, busy_ms=busy_ms, **restored)

    @property
    def failed(self) -> bool:
        """Whether the run has ended before its time."""
        return self._error is not None

    @property
    def begins_anew(self) -> bool:
        """Whether it ended because streams have other partitions: the next run goes on with these."""
        return isinstance(self._error, Grown)

    @property
    def over(self) -> bool:
        """Whether the run has come to its end, be it before its time."""
        return self._ended.is_set()

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        # The loop stops, too, where what goes on beside it has failed, and the run may begin anew then.
        return self._is_to_stop

    def show(self) -> None:
        """Show the run in the output of a notebook's cell: its plan with rates, and what is slow, live until it ends.

        Raises SamzaError outside of a notebook.
        """
        assert self._view is not None, "an application gives its runs a view"
        self._view(self)

    def stop(self) -> None:
        """Ask the run to complete what is in flight, commit and end; may be called from a signal handler."""
        self._is_to_stop = True
        self._bindings.end()
        self._loop.stop()

    def want_commit(self) -> None:
        """Ask for a commit as soon as it can be made."""
        self._loop.want_commit()

    def wake(self) -> None:
        """Let the run look at once whether its inputs have more, which it would do soon anyway."""
        self._loop.wake()

    def stores(self, operator: str) -> list[TaskStore]:
        """Return the live stores of an operator, task by task; none after the end."""
        tasks = [] if self._is_released else self._loop.tasks
        for lane in (lane for task in tasks for lane in task.lanes):
            lane.chain.write_back()
        return [task.stores[operator] for task in tasks if operator in task.stores]

    def state(self, operator: str) -> QueriedState:
        """Return the committed state of an operator, by its id, for any thread to ask; what is not committed is not in.

        Raises PlanError for one that has none that can be asked for. Of a run that several containers share, or on
        Kafka, it is the state of the tasks that are here.
        """
        return StateQuery(self._graph, self._queried).state(operator)

    def _queried(self) -> AbstractContextManager[QueryableEnvironment]:
        """Return the environment to ask for state; after its end a run has closed the one that it opened itself."""
        if not self._owned or not self._is_released:
            return nullcontext(self._to_query)
        if self.keeps_state:
            raise ended_error(self._graph.app, str(self._environment))
        return closing(queryable(open_environment(*self._where), self._graph.app))

    @cached_property
    def _to_query(self) -> QueryableEnvironment:
        return queryable(self._environment, self._graph.app)

    async def state_answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer to a request for the state of the tasks that are here, which comes from elsewhere."""
        if self._desk is None:
            self._desk = StateDesk(self._graph, self._queried)
        return await self._desk.answer(request)

    def abandon(self) -> list[Functions]:
        """Leave the users' objects open at the end, as in a process that is killed; return those that have them."""
        left, self._functions = self._functions, []
        return left

    async def settled(self) -> None:
        """Wait until everything that was sent so far is processed and committed, through all stages.

        Raises what ended the run, if it has ended before its time.
        """
        if not self._over:
            await self._loop.idle()
        if self._over:
            await self.ended()

    async def opened(self) -> None:
        """Wait until the users' objects are open; raises what has kept them from that."""
        await self._opened.wait()
        if not self._is_open:
            await self.ended()

    async def ended(self) -> None:
        """Wait for the end; raises what ended the run before its time."""
        await self._ended.wait()
        self._check()

    async def send(self, stream: str, value: Any, key: Any = None, timestamp: int | None = None) -> None:
        """Append a message to an input of the environment, encoded as the pipeline reads it; `timestamp` in ms.

        Raises what ended the run before its time, and SamzaError where it has ended.
        """
        self._check()
        if self._over:
            raise SamzaError(
                f"run.send({stream!r}): the run has ended; write to the stream with samza_dsl.produce(...)"
            )
        spec = next((one for one in self._graph.inputs.values() if one.stream == stream), None)
        if spec is None or stream in self._bindings.sources:
            raise SamzaError(f"run.send({stream!r}): the app reads no such stream from its data directory")
        data = bytes_of_key(spec.key or Tagged(), key) if key is not None else None
        among = self._bindings.partitions(stream)
        partition = murmur2(data) % among if data is not None else 0
        batch = Batch([read_back(spec.value).encode(value)], [data], None if timestamp is None else [timestamp])
        await asyncio.get_running_loop().run_in_executor(
            self._sender, self._environment.append, [Append(stream, partition, batch)], {stream: among}
        )
        self._loop.wake()

    def received(self, stream: str) -> list[Any]:
        """Return the values of an output that are committed so far, partition by partition; dead letters are bytes.

        Where a record has no value, it is None. Raises what ended the run before its time; SamzaError for an output
        that is bound to a file, and for a record that is not of the output's type.
        """
        self._check()
        if stream in self._bindings.sinks or stream in self._bindings.outboxes:
            return self._bindings.values_of(stream)
        serde = self._serde_of(stream)
        # After its end a run has closed the environment that it opened itself.
        if not self._owned or not self._ended.is_set():
            return values_of(self._environment, self._bindings.place_of(stream), serde)
        with closing(open_environment(*self._where)) as reopened:
            return values_of(reopened, self._bindings.place_of(stream), serde)

    def output(self, stream: str) -> OutputFrame:
        """Return an output's values, as `received` has them, for a frame: `run.output("totals").to_pandas()`.

        Raises SamzaError for an output whose type is not declared.
        """
        kind = None if (serde := self._serde_of(stream)) is None else type_of_values(serde)
        if kind is None:
            wanted = f"app.output({stream!r}, value=Order)"
            raise SamzaError(f"output({stream!r}): a frame has the columns of an output's type: {wanted}")
        return OutputFrame(stream, kind, partial(self.received, stream))

    def _serde_of(self, stream: str) -> Serde | None:
        written = {output.stream: output for spec in self._graph.specs.values() for output in spec.outputs}
        return written[stream].value if stream in written else None

    async def drive(self) -> None:
        """Run to the end, and close everything whatever happens."""
        try:
            try:
                # Tasks that come later are made in here as well.
                with heard_by(self._hearing):
                    await self._work()
                self._final = self.metrics()
            except BaseException as raised:
                error = askable(raised)  # else the event loop, which looks at it, would never end
                asked = self.exit_of(error) if not isinstance(error, Exception) else None
                # What others have consumed since they took over is missing here, and is no damage.
                fenced = self._fenced() if isinstance(error, Damaged) else None
                # An environment that has failed may tell nothing; what ended the run is what counts.
                with suppress(BaseException):
                    self._final = self.metrics(stores=False)
                await self._close(quietly=True)
                if (told := fenced or asked or error) is not raised:
                    raise told from (error if told is not error else None)
                raise
            await self._close()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else SamzaError("the run was cancelled")
            raise
        finally:
            self._ended.set()

    def exit_of(self, error: BaseException) -> SamzaError | None:
        """Return the error that ends it for what is no Exception; None where no function of the user's raised it."""
        return self._loop.exit_of(error, self._graph)

    async def _work(self) -> None:
        beside: list[asyncio.Task[None]] = []
        try:
            await self._open()
            # Fetched together: one after the other, each fetch was held back for 50 ms by the one before.
            self._bindings.expect(self._readers())
            if self._follower is not None:
                beside.append(asyncio.create_task(self._follower.follow()))
            if self.plan.options.metrics_to is not None:
                beside.append(asyncio.create_task(self._write_metrics(self.plan.options.metrics_to)))
            if self._takes_in:
                beside.append(asyncio.create_task(self._bindings.take_in(self._loop.committer.generation)))
            if self._bindings.look_ms < math.inf:
                beside.append(asyncio.create_task(self._deliver_in_time()))
            if self._scaler is not None:
                beside.append(asyncio.create_task(self._scaler.follow()))
            if self._may_be_held:
                beside.append(asyncio.create_task(self._heed_held()))
            for one in beside:
                # If one fails, the loop comes to its end in order, and its error is raised below.
                one.add_done_callback(lambda one: None if one.cancelled() else self._loop.stop())
            environment = self._environment
            ear = environment.listener() if isinstance(environment, AudibleEnvironment) else None
            # Who watches begins before the first record does: its function may be what never returns.
            await asyncio.sleep(0)
            # Listened to before the first look: what is appended behind that look is heard.
            with self._loop.hearing(ear), collector_patient():
                await self._loop.run()
            for one in filter(asyncio.Task.done, beside):
                one.result()
            if self._bindings.outboxes:
                await asyncio.get_running_loop().run_in_executor(self._writer, self._loop.committer.deliver_rest)
            if self.is_moving and not self.stopping:
                await self._move()
        finally:
            # First: who waits for what was sent asks whether the run is over, while the rest comes to its end.
            self._over = True
            for one in beside:
                one.cancel()
            if beside:
                await asyncio.wait(beside)

    async def _move(self) -> None:
        """Move state to the partitions that there are now, and raise `Repartitioned`: another run goes on there."""
        assert self._moving is not None and self._target is not None, "somewhere it is to move"
        began_ms = self._clock.elapsed_ms()
        how = self._environment, self._bindings, self._graph
        move = Repartitioning(*how, self.plan, self._target, self._moving)
        moved = await asyncio.get_running_loop().run_in_executor(self._writer, move.run)
        raise repartitioned(self.plan, self._target, moved, self._clock.elapsed_ms() - began_ms)

    async def _write_metrics(self, stream: str) -> None:
        """Write the numbers of this container to a stream, again and again, and a last time when it ends."""

        def write(found: RunMetrics) -> None:
            snapshot = snapshot_of(self.plan.app, found, self._clock.now_ms())
            self._environment.append([Append(stream, 0, snapshot)])

        def begin() -> None:
            self._environment.create_stream(stream, METRICS_CONFIG)

        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._sender, begin)
        try:
            while True:
                await sleep_ms(METRICS_EVERY_MS)
                await loop.run_in_executor(self._sender, write, self.metrics())
        finally:
            # What ends a run is told elsewhere: it may be why nothing can be written any more.
            with suppress(Exception):
                await loop.run_in_executor(self._sender, write, self.metrics())

    async def _deliver_in_time(self) -> None:
        """Hand sinks rows that have waited for others, or for their turn, also where nothing is committed any more."""
        while True:
            await sleep_ms(min(max(self._bindings.look_ms, LEAST_LOOK_MS), MOST_LOOK_MS))
            await asyncio.get_running_loop().run_in_executor(self._writer, self._loop.committer.deliver_due)

    def _readers(self) -> Iterator[Reader]:
        return (reader for task in self._loop.tasks for lane in task.lanes for reader in lane.readers)

    def _chains(self) -> Iterator[Chain]:
        return (lane.chain for task in self._loop.tasks for lane in task.lanes)

    async def _heed_held(self) -> None:
        """Raise `HeldBack` once all that is left to read is held back by transactions that are open for long."""
        # Our own transactions, and those of others that live, end sooner.
        while True:
            await sleep_ms(held.LOOK_MS)
            left = [one for one in self._readers() if one.stop_at is not None and not one.exhausted]
            found = [(one.stop_at or 0, by) for one in left if (by := _held_for_long(one)) is not None]
            if left and len(found) == len(left):
                raise held.held_back_error(found)

    def _check(self) -> None:
        """Raise what ended the run before its time."""
        if self._error is not None:
            raise self._error

    def _fenced(self) -> Fenced | None:
        """Return the error that others have taken over, if they have; None where they have not, or nobody can tell."""
        app, generation = self._loop.committer.app, self._loop.committer.generation
        try:
            current = self._environment.generation(app)
            if current == generation and self._follower is not None:
                self._follower.membership.check()
        except Fenced as fenced:
            return fenced
        except EnvironmentFault:
            return None
        return fenced_error(app, generation, current) if current != generation else None

    def _assemble(self, around: tuple[Around, ...], opened: Opened, settings: RunSettings) -> None:
        share, span, until_now = settings.share, settings.span, settings.until_now
        history = share.history if share is not None else None
        if share is not None:
            ends = {(stream, partition): end for stream, partition, end in share.ends}
        else:
            self._recovered = recover(self._environment, opened, self._graph, self._clock.now_ms())
            until_now = self._is_until_now(opened, settings)
            ends = ends_of(self._environment, opened, self._graph, settings.drains) if until_now else {}
            if span is not None:
                where = self._environment, self._bindings, self._graph, self.plan
                history = open_history(span, *where, opened.generation)
        ends = follow(history, self._bindings) if history is not None else ends
        # What comes from now on is for another run.
        self._is_short = until_now or span is not None
        # Of containers the process that has started them takes in.
        self._takes_in = bool(self._bindings.inboxes) and share is None and not self._is_short
        self._may_be_held = bool(ends) and self._bindings.have_transactions
        by_task = commits_by_task(self.plan, self._bindings, self._graph, is_shared=share is not None)
        checkpoints: Mapping[str, Checkpoint] = self._environment.checkpoints(self.plan.app)
        if share is None:
            # Else others of the run may go on who will not tell again how far they are.
            checkpoints = without_past_ends(checkpoints, self.plan, self._bindings)
        assembly = Assembly(
            self.plan,
            self._graph,
            self._bindings,
            self._clock,
            around,
            checkpoints,
            ends,
            lambda: self._loop.call_returned(),
            lambda effects: self._loop.grant(effects),
            Path(self._data) if isinstance(self._data, str | Path) else None,
            levers=storing(self._levers) if by_task else self._levers,
            discovers=not (until_now or ends),
            ceilings=span.ceilings if span is not None else {},
            rests=span.rests if span is not None else {},
            stays=share is None and span is None and not by_task,
        )
        numbers = range(self.plan.tasks) if share is None else ()
        # How far partitions are is asked once, for all together: a loop asks no broker.
        assembly.look(numbers)
        self._composition = composition = Composition(assembly, numbers)
        self._functions, committer = composition.functions, self._committer(opened, assembly)
        self._sender = self._writer = threads_here(1, WRITER)
        if by_task:
            self._part(committer, numbers)
        mode = self._mode(share is not None, history.per_second if history is not None else None, by_task)
        self._loop = composition.loop(committer, self._writer, mode)
        # Only now is there a loop that could be woken.
        self._bindings.listen(self._loop.wake)
        if share is None and isinstance(self._environment, LiveEnvironment):
            self._environment.announce(self.plan.app, opened.generation)
        if share is not None:
            self._follower = self._follow(share, assembly, composition.tables)
        elif span is None and not self.is_moving:
            how = self._loop, self._writer, self._functions, self._replan
            self._scaler = Scaler(assembly, opened, composition.tables, *how)

    def _mode(self, shared: bool, per_second: float | None, by_task: bool) -> LoopMode:
        # An environment that wakes the loop is looked at seldom: an idle run takes half of the processor then.
        poll_ms = HEARING_POLL_MS if self.keeps_state else self._poll_ms
        return LoopMode(poll_ms, shared, per_second, by_task, gathers=self._levers.gathering)

    def _is_until_now(self, opened: Opened, settings: RunSettings) -> bool:
        """Return whether it reads only what is there by now, with what sources push; raises SamzaError as they do."""
        if settings.until_now and not settings.drains and settings.span is None:
            self._bindings.fill(opened.generation)
        return settings.until_now or _completes(opened, settings.span)

    def _replan(self, plan: Plan, job: JobMetrics) -> None:
        self.plan, self._job = plan, job

    def _committer(self, opened: Opened, assembly: Assembly) -> Committer:
        app, generation, positions = self.plan.app, opened.generation, self._recovered.positions
        committer = Committer(app, generation, self._bindings, self._clock, positions, assembly.relays)
        committer.share(self.plan)
        return committer

    def _part(self, committer: Committer, tasks: Collection[int]) -> None:
        """Let tasks commit by themselves, and several at once where the environment can tell them apart."""
        if isinstance(self._environment, LiveEnvironment):
            committer.taken |= self._environment.commit_by_task(self.plan.app, tasks)
            # Threads begin as they are needed: tasks may be split into more while it runs.
            self._writer = threads_here(MOST_WRITERS, WRITER)

    def _follow(self, share: Share, assembly: Assembly, broadcast: Mapping[str, TableContents]) -> Follower:
        """Join the containers that share the tasks; return what follows their job model."""
        seat = self.plan.app, share.generation, share.container, self.plan.tasks
        membership = self._environment.join(*seat, self._placement, share.standby)
        if self.keeps_state:
            # To bring state back takes a while, in which the writer must go on committing.
            self._beside = threads_here(1, "samza-dsl-member")
        how = (self._beside, self._functions, HEARING_MS) if self.keeps_state else (self._writer, self._functions)
        return Follower(membership, assembly, broadcast, self._loop, *how)

    async def _open(self) -> None:
        try:
            for functions in self._functions:
                await functions.open()
            self._is_open = True
        finally:
            self._opened.set()

    async def _close(self, quietly: bool = False) -> None:
        """Close users' objects, and all that the run holds: each, even when another fails.

        Raises the first failure, unless something else was wrong before.
        """
        failures = [*await close_all(self._functions), *self.release()]
        if failures and not quietly:
            raise failures[0]

    def release(self) -> list[Exception]:
        """Let go of threads, bindings and the environment, as a run does at its end; return what failed."""
        failures: list[Exception] = []
        # Threads first: none may use what is closed after them.
        closers: list[Callable[[], object]] = [
            _shut(pool) for name in ("_beside", "_sender", "_writer") if (pool := getattr(self, name, None))
        ]
        if hasattr(self, "_composition"):
            closers.append(self._composition.release)
        if self._desk is not None:
            closers.append(self._desk.close)
        if self._follower is not None:
            closers.append(self._follower.membership.leave)
        if self._sampler is not None:
            closers.append(self._sampler.close)
        if hasattr(self, "_bindings"):
            closers.append(self._bindings.close)
        if self._owned:
            closers.append(self._environment.close)
        self._is_released = True
        for close in closers:
            try:
                close()
            except Exception as error:
                failures.append(error)
        return failures


def opened_where_it_lies(
    environment: Environment,
    pipeline: Pipeline,
    bound: Mapping[str, object],
    *,
    levers: Levers,
    from_start: bool = False,
    state: State = None,
    since: int | None = None,
) -> Opened:
    """Open an application, whose state is moved before, in this process, where its streams have other partitions."""
    where = environment, pipeline, bound
    while True:
        opened = open_application(*where, levers=levers, from_start=from_start, state=state, since=since)
        if opened.moving is None:
            return opened
        opened.bindings.close()
        from_start, state, since = False, None, opened.since
        with suppress(Repartitioned):
            asyncio.run(Run(pipeline, environment, RunSettings(bind=bound, levers=levers)).drive())


def run_blocking(
    pipeline: Pipeline,
    data: str | Path | Environment,
    settings: RunSettings = UNSAID,
    watch: Watch | None = None,
) -> Run:
    """Run to the end; the first SIGINT or SIGTERM drains, commits and stops, a second stops at once.

    `watch(run)` is awaited beside the run, and cancelled at its end.
    """
    check_no_loop()
    return run_whatever_fails(keeping_size(partial(Run, pipeline, data)), watch, settings)


def running(
    pipeline: Pipeline,
    data: str | Path | Environment,
    settings: RunSettings = UNSAID,
    watch: Watch | None = None,
) -> AbstractAsyncContextManager[Run]:
    """Run in the background of an `async with`; at its end what is in flight completes and is committed.

    `watch(run)` is awaited beside the run, and cancelled at its end.
    """

    @asynccontextmanager
    async def context() -> AsyncIterator[Run]:
        made = keeping_size(partial(Run, pipeline, data))
        run = made(settings)
        while run.is_moving:
            with suppress(Repartitioned):
                await run.drive()
            run = made(replace(settings, from_start=False, state=None))
        driving = asyncio.create_task(run.drive())
        watching = asyncio.create_task(beside(watch, run)) if watch is not None else None
        try:
            await run.opened()
            yield run
            if not driving.done():  # one that has ended by itself was not stopped
                run.stop()
            await driving
        finally:
            if not driving.done():
                driving.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await driving
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])
            # A drive that was cancelled before it began has closed nothing.
            run.release()

    return context()


def _shut(pool: Executor) -> Callable[[], object]:
    return lambda: pool.shutdown(wait=True, cancel_futures=True)


def _held_for_long(reader: Reader) -> OpenTransaction | None:
    """Return the transaction, open for long, that holds back a reader which has read all it could; else None."""
    found = reader.origin.held()
    is_long = found is not None and found.for_ms >= held.HELD_MS and reader.next_offset >= found.first
    return found if is_long else None


def _completes(opened: Opened, span: HistorySpan | None) -> bool:
    """Return whether a run completes what lies by former partitions; raises SamzaError where it would read a part."""
    if span is not None and opened.moving is not None:
        raise SamzaError(
            f"{opened.plan.app!r} keeps state by keys of a stream that was given more partitions since: its history "
            "can't be read by parts, as keys lay elsewhere then; run it from the start"
        )
    return opened.moving is not None
