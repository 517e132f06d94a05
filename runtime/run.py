"""A run of an application: opens what it needs, drives the loop, and answers for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from operators.base import Batch
from operators.io import Input
from operators.partition_by import murmur2
from operators.table_join import TableContents
from planner.graph import Graph
from planner.levers import ALL, Levers
from planner.plan import Options
from runtime.assembly import Assembly
from runtime.assignment import Placement, sticky
from runtime.awaiting import calls_at_once
from runtime.bindings import outputs_of
from runtime.clock import Clock, SystemClock
from runtime.commit import Committer
from runtime.commits import MOST_WRITERS, commits_by_task, storing
from runtime.driving import Watch, check_no_loop, run_whatever_begins, run_whatever_fails
from runtime.errors import Damaged, EnvironmentFault, Fenced, SamzaError
from runtime.following import HEARING_MS, Follower
from runtime.functions import Around, Functions, close_all
from runtime.garbage import collector_patient
from runtime.history import Span, follow, open_history
from runtime.loop import HEARING_POLL_MS, POLL_MS, Loop
from runtime.measure import measure
from runtime.metrics import RunMetrics
from runtime.opening import Opened, Share, ends_of, join_application, open_application, recover
from runtime.received import values_of
from runtime.rewind import check_rewind
from runtime.serdes import Tagged
from runtime.systems.base import Append, Environment, LiveEnvironment, is_fenced
from runtime.systems.kafka_topic import KafkaCluster, cluster_of
from runtime.workers import Workers

if TYPE_CHECKING:
    from runtime.containers import Containers

State = Literal["reset", "keep"] | None
Cluster = str | KafkaCluster | None
"""The Kafka cluster that is a run's environment; None for the embedded log."""
WRITER = "samza-dsl-writer"
"""What the threads are called that commit."""


class Run:
    """One run of a planned application: `metrics()` tells how it goes, `stop()` ends it."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        around: tuple[Around, ...],
        data: str | Path | Environment,
        *,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: State = None,
        until_now: bool = False,
        clock: Clock | None = None,
        poll_ms: float = POLL_MS,
        levers: Levers = ALL,
        share: Share | None = None,
        environment: Cluster = None,
        span: Span | None = None,
        host_id: str | None = None,
        placement: Placement = sticky,
    ) -> None:
        check_rewind(from_start, state)
        self._graph = graph
        self._clock: Clock = clock or SystemClock()
        self._started = self._clock.elapsed_ms()
        self._poll_ms = poll_ms
        self._levers = levers if share is None else share.levers
        self._data = data
        self._owned = isinstance(data, str | Path)
        self._where = data, environment, host_id
        self._placement = placement
        self._environment = open_environment(*self._where)
        self._functions: list[Functions] = []
        self._follower: Follower | None = None
        self._final: RunMetrics | None = None
        self._is_open = self._over = self._is_released = False
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: Exception | None = None
        try:
            where = self._environment, graph, options, bind or {}
            wrapped = bool(around)
            if share is None:
                opened = open_application(*where, wrapped=wrapped, levers=levers, from_start=from_start, state=state)
            else:
                opened = join_application(*where, share, wrapped=wrapped)
            self._bindings, self.plan = opened.bindings, opened.plan
            self._assemble(around, opened, until_now, share, span)
        except BaseException:
            self.release()
            raise

    @property
    def finished(self) -> bool:
        """Whether, in a container that shares the tasks with others, nothing was left to do when it last looked."""
        return self._loop.finished

    def when_finished(self, tell: Callable[[], None]) -> None:
        """Have it told whenever `finished` comes to be so."""
        self._loop.on_finished = tell

    @property
    def commits(self) -> int:
        """How many commits there were."""
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
            return True  # what is committed can be read at once
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
        former = self._follower.former if self._follower is not None else []
        return msgspec.structs.replace(found, operators=(*former, *found.operators)) if former else found

    @property
    def failed(self) -> bool:
        """Whether the run has ended before its time."""
        return self._error is not None

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._loop.stopping

    def stop(self) -> None:
        """Ask the run to complete what is in flight, commit and end; may be called from a signal handler."""
        self._loop.stop()

    def wake(self) -> None:
        """Have the run look whether something was written to its inputs, which it would do soon anyway."""
        self._loop.wake()

    def stores(self, operator: str) -> list[Any]:
        """Return the live stores of an operator, task by task; none after the end."""
        tasks = [] if self._is_released else self._loop.tasks
        for lane in (lane for task in tasks for lane in task.lanes):
            lane.chain.write_back()
        return [task.stores[operator] for task in tasks if operator in task.stores]

    def abandon(self) -> list[Functions]:
        """Have the end leave the users' objects open, as it does in a process that is killed; return what has them."""
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
        spec = next((s for s in self._graph.specs.values() if isinstance(s, Input) and s.stream == stream), None)
        if spec is None or stream in self._bindings.sources:
            raise SamzaError(f"run.send({stream!r}): the app reads no such stream from its data directory")
        data = (spec.key or Tagged()).encode(key) if key is not None else None
        partition = murmur2(data) % self._bindings.partitions(stream) if data is not None else 0
        batch = Batch([spec.value.encode(value)], [data], None if timestamp is None else [timestamp])
        await asyncio.get_running_loop().run_in_executor(
            self._sender, self._environment.append, [Append(stream, partition, batch)]
        )
        self._loop.wake()

    def received(self, stream: str) -> list[Any]:
        """Return the values of an output that are committed so far, partition by partition; dead letters are bytes.

        Where a record has no value, it is None. Raises what ended the run before its time; SamzaError for an output
        that is bound to a file, and for a record that is not of the output's type.
        """
        self._check()
        if stream in self._bindings.sinks:
            return self._bindings.values_of(stream)
        written = {output.stream: output for spec in self._graph.specs.values() for output in outputs_of(spec)}
        serde = written[stream].value if stream in written else None
        if not self._owned or not self._ended.is_set():
            return values_of(self._environment, self._bindings.place_of(stream), serde)
        with closing(open_environment(*self._where)) as reopened:
            return values_of(reopened, self._bindings.place_of(stream), serde)

    async def drive(self) -> None:
        """Run to the end, and close everything whatever happens."""
        try:
            try:
                await self._work()
                self._final = self.metrics()
            except BaseException as error:
                fenced = self._fenced() if isinstance(error, Damaged) else None
                with suppress(BaseException):  # an environment that has failed may tell nothing
                    self._final = self.metrics(stores=False)
                await self._close(quietly=True)
                if fenced is not None:
                    raise fenced from error
                raise
            await self._close()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else SamzaError("the run was cancelled")
            raise
        finally:
            self._ended.set()

    async def _work(self) -> None:
        following: asyncio.Task[None] | None = None
        try:
            await self._open()
            self._bindings.expect(reader for task in self._loop.tasks for lane in task.lanes for reader in lane.readers)
            if self._follower is not None:
                following = asyncio.create_task(self._follower.follow())
                following.add_done_callback(lambda following: self._loop.stop())
            with collector_patient(calls_at_once(self._graph, self.plan.options)):
                await self._loop.run()
            if following is not None and following.done():
                following.result()
        finally:
            if following is not None:
                following.cancel()
                await asyncio.wait([following])
            self._over = True

    def _check(self) -> None:
        """Raise what ended the run before its time."""
        if self._error is not None:
            raise self._error

    def _fenced(self) -> Fenced | None:
        """Return what is wrong where others have taken over: what these have consumed since is no damage."""
        app, generation = self._loop.committer.app, self._loop.committer.generation
        try:
            current = self._environment.generation(app)
            if current == generation and self._follower is not None:
                self._follower.membership.check()
        except Fenced as fenced:
            return fenced
        except EnvironmentFault:
            return None
        return is_fenced(app, generation, current) if current != generation else None

    def _assemble(
        self, around: tuple[Around, ...], opened: Opened, until_now: bool, share: Share | None, span: Span | None
    ) -> None:
        history = share.history if share is not None else None
        if share is not None:
            positions, ends = {}, {(stream, partition): end for stream, partition, end in share.ends}
        else:
            positions = recover(self._environment, opened, self._graph)
            ends = ends_of(self._environment, opened, self._graph) if until_now else {}
            if span is not None:
                history = open_history(
                    span, self._environment, self._bindings, self._graph, self.plan, opened.generation
                )
        if history is not None:
            ends = follow(history, self._bindings)
        options, by_task = self.plan.options, commits_by_task(self.plan, self._bindings, self._graph)
        assembly = Assembly(
            self.plan,
            self._graph,
            self._bindings,
            self._clock,
            around,
            self._environment.checkpoints(self.plan.app),
            ends,
            lambda: self._loop.wake(),
            lambda effects: self._loop.grant(effects),
            Path(self._data) if isinstance(self._data, str | Path) else None,
            levers=storing(self._levers) if by_task else self._levers,
            discovers=not (until_now or ends),
        )
        numbers = range(self.plan.tasks) if share is None else ()
        assembly.look(numbers)
        functions = assembly.shared_functions()
        broadcast = assembly.broadcast_tables(functions)
        contents = {id: contents for id, (_, contents, _) in broadcast.items()}
        tasks = assembly.tasks(contents, numbers)
        self._functions = [functions, *(task.functions for task in tasks)]
        committer = Committer(self.plan.app, opened.generation, self._bindings, self._clock, positions, assembly.relays)
        self._sender = self._writer = ThreadPoolExecutor(1, WRITER)
        if by_task:
            self._part(committer, numbers)
        self._threads = Workers(options.threads) if options.threads else None
        self._loop = Loop(
            tasks,
            broadcast,
            committer,
            options,
            self._clock,
            self._writer,
            self._threads,
            HEARING_POLL_MS if self.keeps_state else self._poll_ms,
            shared=share is not None,
            per_second=history.per_second if history is not None else None,
            by_task=by_task,
        )
        self._bindings.listen(self._loop.wake)
        if share is None and isinstance(self._environment, LiveEnvironment):
            self._environment.announce(self.plan.app, opened.generation)
        if share is not None:
            self._follower = self._follow(share, assembly, contents)

    def _part(self, committer: Committer, tasks: Collection[int]) -> None:
        """Have tasks commit by themselves, and several at once where the environment can tell them apart."""
        if isinstance(self._environment, LiveEnvironment):
            committer.taken |= self._environment.commit_by_task(self.plan.app, tasks)
            self._writer = ThreadPoolExecutor(min(self.plan.tasks, MOST_WRITERS), WRITER)

    def _follow(self, share: Share, assembly: Assembly, broadcast: Mapping[str, TableContents]) -> Follower:
        """Be one of the containers that share the tasks."""
        seat = self.plan.app, share.generation, share.container, self.plan.tasks
        membership = self._environment.join(*seat, self._placement, share.standby)
        if self.keeps_state:
            self._beside = ThreadPoolExecutor(1, "samza-dsl-member")  # to bring state back takes a while
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
        closers: list[Callable[[], object]] = [
            _shut(pool) for name in ("_beside", "_sender", "_writer", "_threads") if (pool := getattr(self, name, None))
        ]
        if self._follower is not None:
            closers.append(self._follower.membership.leave)
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


def open_environment(
    data: str | Path | Environment, cluster: Cluster = None, host_id: str | None = None
) -> Environment:
    """Open the embedded log in a directory, or a Kafka cluster, with state in that directory, which a host has.

    An environment is passed through.
    """
    if not isinstance(data, str | Path):
        return data
    found = cluster_of(cluster)
    if found is not None:
        from runtime.systems.kafka import KafkaEnvironment

        return KafkaEnvironment(found, data, host_id)
    from runtime.systems.log import LogEnvironment

    return LogEnvironment(data)


def run_blocking(
    graph: Graph,
    options: Options,
    around: tuple[Around, ...],
    data: str | Path | Environment,
    *,
    watch: Watch | None = None,
    **how: Any,
) -> Run:
    """Run to the end; the first SIGINT or SIGTERM drains, commits and stops, a second stops at once.

    `watch(run)` is awaited beside the run, and cancelled at its end.
    """
    check_no_loop()
    return run_whatever_fails(lambda how: Run(graph, options, around, data, **how), watch, how)


def run_containers(*what: Any, watch: Watch | None = None, **how: Any) -> Containers:
    """Run in several processes to the end, as `run_blocking` does in this one."""
    from runtime.containers import Containers

    check_no_loop()
    return run_whatever_begins(lambda how: Containers(*what, **how), watch, how)


def running(
    graph: Graph, options: Options, around: tuple[Around, ...], data: str | Path | Environment, **how: Any
) -> AbstractAsyncContextManager[Run]:
    """Run in the background of an `async with`; at its end what is in flight completes and is committed."""

    @asynccontextmanager
    async def context() -> AsyncIterator[Run]:
        run = Run(graph, options, around, data, **how)
        driving = asyncio.create_task(run.drive())
        try:
            await run.opened()
            yield run
            run.stop()
            await driving
        finally:
            if not driving.done():
                driving.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await driving
            run.release()  # what was cancelled before it began has closed nothing

    return context()


def _shut(pool: Executor) -> Callable[[], object]:
    return lambda: pool.shutdown(wait=True, cancel_futures=True)
