"""Runs an application in several containers: starts them, sees to it that there are as many, and ends them together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from planner.errors import PlanError
from planner.graph import Graph
from planner.levers import ALL, Levers
from planner.plan import Options
from runtime import errors
from runtime.agreement import Quiet
from runtime.clock import Clock, SystemClock, sleep_ms
from runtime.container import digest_of
from runtime.errors import EnvironmentFault, Fenced, SamzaError, Unavailable
from runtime.functions import Around
from runtime.given import check_can_be_given, places
from runtime.history import History, Span, beside, open_history
from runtime.metrics import RunMetrics, StoreMetrics
from runtime.opening import Opened, Share, ends_of, join_application, open_application, recover
from runtime.rewind import check_rewind
from runtime.run import open_environment
from runtime.sharing import SharedEnvironment, SharedRun, Sharing, check_same
from runtime.spread import check_spread
from runtime.systems.kafka_topic import KafkaCluster
from runtime.systems.log import LogEnvironment
from runtime.talk import (
    Ask,
    Elsewhere,
    Ended,
    Failed,
    Finished,
    Go,
    Joined,
    Line,
    Report,
    Rounds,
    Start,
    Stop,
    combined,
)

ROUND_MS, CALM_MS = 250.0, 1_000.0
"""How often containers are asked how far they are, the latter while nobody looks; at once when one seems to be done."""
MOST_DEATHS = 5
"""How often in a row a container may die without having committed anything."""
PAUSE_MS = 500.0
"""How long is waited until another container takes the place of one that failed, and then twice as long each time."""
SILENCE_S, MOST_SILENCE_S = 1.0, 16.0
"""How long an answer is waited for, twice as long each time in a row: a container that is stopped gives none."""
PATIENCE_S = 60.0
"""How long containers have to end, when one has failed."""
JOIN_MS, LOOK_MS = 20_000.0, 250.0
"""How long containers of a run that has fenced this one have to come, and how often it is looked whether they have."""


class Container:
    """One process with a share of the tasks."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, line: Line) -> None:
        self.name = name
        self.process = process
        self.line = line
        self.joined = False
        self.report: Report | None = None
        self.metrics = RunMetrics()
        self.failed: Failed | None = None
        self.ended = False

    @property
    def has_committed(self) -> bool:
        """Whether anything came of it."""
        return self.report is not None and self.report.commits > 0


class Containers:
    """One run of an application in several processes: `metrics()` tells how it goes, `stop()` ends it.

    This process is the application's owner and runs nothing of it. The containers agree among themselves who has which
    task; they end when this process is gone.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        around: tuple[Around, ...],
        data: str | Path,
        number: int,
        command: list[str],
        found: tuple[str, str],
        *,
        bind: Mapping[str, Any] | None = None,
        from_start: bool = False,
        state: Literal["reset", "keep"] | None = None,
        until_now: bool = False,
        clock: Clock | None = None,
        levers: Levers = ALL,
        span: Span | None = None,
        name: str = "",
        environment: KafkaCluster | None = None,
        host_id: str | None = None,
        placement: str = "sticky",
        standby: int = 0,
        fenced: Fenced | None = None,
    ) -> None:
        check_rewind(from_start, state)
        self._placement, self._standby = placement, standby
        self._graph = graph = beside(graph, name)
        self._clock: Clock = clock or SystemClock()
        self._started_ms = self._clock.elapsed_ms()
        self._command, self._number = command, number
        self._containers: dict[int, Container] = {}
        self._former: list[RunMetrics] = []
        """What those have told last that are gone; of one that has died, only what adds up."""
        self._changed, self._one_finished = asyncio.Event(), asyncio.Event()
        self._final: RunMetrics | None = None
        self.start_up_ms = 0.0
        """How long it took until all had loaded the application and could begin."""
        self._begun = self._ending = self._is_watched = self.stopping = self.failed = False
        bound = places(graph, bind or {})
        check_can_be_given(environment, f"environment={environment!r}")
        self._cluster = environment
        self._environment = open_environment(data, environment, host_id)
        self._sharing: Sharing | None = None
        try:
            alive = self._shared_run() if fenced is None else self._newer_run(fenced)
            if alive is not None:
                share = self._join_run(alive, options, bound, bool(around), until_now, from_start)
            else:
                how: dict[str, Any] = {"levers": levers, "from_start": from_start, "state": state}
                opened = open_application(self._environment, graph, options, bound, wrapped=bool(around), **how)
                self._bindings, self.plan = opened.bindings, opened.plan
                share = self._begin_run(opened, levers, until_now, span)
        except BaseException:
            self._release()
            raise
        where: dict[str, Any] = {"data": os.fspath(data), "bind": bound, "environment": environment}
        what: dict[str, Any] = {"module": found[0], "name": found[1], "beside": name, "host_id": host_id}
        self._start = Start(options=options, share=share, plan=digest_of(self.plan), **where, **what)

    def _join_run(
        self,
        alive: SharedRun,
        options: Options,
        bound: dict[str, Any],
        wrapped: bool,
        until_now: bool,
        from_start: bool,
    ) -> Share:
        """Take part in what others have begun; raises SamzaError where that is something else."""
        opened = join_application(self._environment, self._graph, options, bound, alive.share, wrapped=wrapped)
        self._bindings, self.plan = opened.bindings, opened.plan
        how = from_start, self._placement, self._standby
        check_same(alive, self._graph.app, digest_of(self.plan), until_now, *how)
        return alive.share

    def _shared_run(self) -> SharedRun | None:
        """Return the run that others have begun and that goes on, where several may share one."""
        if isinstance(self._environment, SharedEnvironment):
            self._sharing = Sharing(self._environment.runs(self._graph.app))
        return self._sharing.found() if self._sharing is not None else None

    def _newer_run(self, fenced: Fenced) -> SharedRun:
        """Return the run that has fenced the one before; raises what has told so where others can't share it."""
        until_ms = self._clock.elapsed_ms() + JOIN_MS
        while (alive := self._shared_run()) is None:
            if self._sharing is None or self._clock.elapsed_ms() >= until_ms:
                raise fenced
            asyncio.run(sleep_ms(LOOK_MS))
        return alive

    def _begin_run(self, opened: Opened, levers: Levers, until_now: bool, span: Span | None) -> Share:
        """Make ready what all containers share, and say so where others may start some as well."""
        check_spread(opened.plan, opened.bindings, self._graph, "run containers=1")
        recover(self._environment, opened, self._graph)
        ends = ends_of(self._environment, opened, self._graph) if until_now else {}
        share = Share(
            levers=levers,
            container="",
            generation=opened.generation,
            counts=opened.counts,
            ends=tuple((stream, partition, end) for (stream, partition), end in ends.items()),
            history=self._shared_history(span, opened, self._number) if span is not None else None,
            placement=self._placement,
            standby=self._standby,
        )
        if self._sharing is not None:
            self._sharing.begin(SharedRun(share, digest_of(opened.plan), until_now))
        return share

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment, of all containers; after the end, the last ones."""
        if self._final is not None:
            return self._final
        self._is_watched = True
        found = combined([*self._former, *(container.metrics for container in self._containers.values())])
        found = msgspec.structs.replace(found, elapsed_ms=self._clock.elapsed_ms() - self._started_ms)
        if not stores or self._cluster is not None:  # each container has told what it has
            return found
        stats = self._environment.state_stats(self._graph.app)
        kept = (StoreMetrics(store=s, task=t, entries=n, bytes=size) for (s, t), (n, size) in stats.items())
        return msgspec.structs.replace(found, stores=tuple(kept))

    def stop(self) -> None:
        """Ask all containers to complete what is in flight, commit and end; may be called from a signal handler."""
        self.stopping = True
        self._end_all()

    def _shared_history(self, span: Span, opened: Opened, number: int) -> History:
        """Return what each of the containers is told of a span: its share of the rate, too."""
        where = self._environment, opened.bindings, self._graph, opened.plan
        history = open_history(span, *where, opened.generation)
        share = None if history.per_second is None else history.per_second / number
        return msgspec.structs.replace(history, per_second=share)

    def _end_all(self) -> None:
        self._ending = True
        for container in self._containers.values():
            container.line.say(Stop())

    async def drive(self) -> None:
        """Run to the end, and leave no process whatever happens; raises what ended a container before its time."""
        keeping = [asyncio.create_task(self._keep(slot)) for slot in range(self._number)]
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait([*keeping, asking], return_when=asyncio.FIRST_EXCEPTION)
            self._end_all()  # where one has failed, the others come to an end
            await asyncio.wait([*keeping, asking], timeout=PATIENCE_S)
            failures = [one.exception() for one in (*keeping, asking) if one.done()]
            for failure in filter(None, failures):
                raise failure
        except BaseException:
            self.failed = True
            raise
        finally:
            for task in (*keeping, asking):
                task.cancel()
            await asyncio.wait([*keeping, asking])
            with suppress(SamzaError):
                self._final = self.metrics()
            self._release()

    async def _keep(self, slot: int) -> None:
        """Keep a container running, another one in the place of each that dies, until all are to end."""
        deaths = incarnation = 0
        while not self._ending:
            name = f"{slot}.{incarnation}"
            container = await self._begin(f"{self._sharing.name}.{name}" if self._sharing is not None else name)
            self._containers[slot] = container
            listened = False
            try:
                listened = await self._listen(container)
            finally:
                await _end(container, at_once=not listened)
                self._count_out(slot)
            incarnation += 1
            failed = container.failed
            if failed is not None and not self._may_go_on(failed):
                raise _error_of(failed)
            if container.ended and not self._ending:
                self.stop()  # of itself: the user's code asked for the end
            elif not self._ending:
                deaths = 0 if container.has_committed else deaths + 1
                if deaths >= MOST_DEATHS:
                    raise _error_of(failed) if failed is not None else SamzaError(_how_it_died(container, deaths))
                if failed is not None:
                    await sleep_ms(PAUSE_MS * 2**deaths)  # brokers may be away for a while

    def _may_go_on(self, failed: Failed) -> bool:
        """Whether another container can do what one could not: others have its tasks, or brokers did not answer it."""
        if failed.kind == Unavailable.__name__:
            return True
        if failed.kind == EnvironmentFault.__name__:
            return self._cluster is not None
        if failed.kind != Fenced.__name__:
            return False
        try:
            return self._environment.generation(self._graph.app) == self._start.share.generation
        except EnvironmentFault:
            return self._cluster is not None  # the next container finds out

    async def _begin(self, name: str) -> Container:
        mine, its = socket.socketpair()
        with its:
            environment, held = self._environment, [its.fileno()]
            if isinstance(environment, LogEnvironment):
                held.append(environment.lock_of(self._graph.app))  # which holds while one of us lives
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(its.fileno()),
                pass_fds=held,
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for us alone
            )
        container = Container(name, process, await Line.over(mine))
        share = msgspec.structs.replace(self._start.share, container=name)
        container.line.say(msgspec.structs.replace(self._start, share=share))
        return container

    async def _listen(self, container: Container) -> bool:
        """Take in what a container says, until it is gone."""
        while (said := await container.line.hear()) is not None:
            if isinstance(said, Joined):
                container.joined = True
                self._let_begin(container)
            elif isinstance(said, Finished):
                self._one_finished.set()
            elif isinstance(said, Report):
                container.report = said
                container.metrics = said.metrics or container.metrics
            elif isinstance(said, Failed):
                container.failed = said
            elif isinstance(said, Ended):
                container.ended, container.metrics = True, said.metrics
            self._changed.set()
        return True

    def _let_begin(self, container: Container) -> None:
        """Have containers begin together at first, so that tasks need not move."""
        if self._begun:
            container.line.say(Go())
        elif len(self._containers) == self._number and all(one.joined for one in self._containers.values()):
            self._begun = True
            self.start_up_ms = self._clock.elapsed_ms() - self._started_ms
            for one in self._containers.values():
                one.line.say(Go())
        if self._ending:
            container.line.say(Stop())

    def _count_out(self, slot: int) -> None:
        """Remember what a container that is gone has done."""
        gone = self._containers.pop(slot)
        self._changed.set()
        told = gone.metrics
        self._former.append(
            told if gone.ended else RunMetrics(operators=told.operators, commits=told.commits, commit_ms=told.commit_ms)
        )

    async def _ask(self) -> None:
        """Ask how far all are, and end the run when nothing is left to do anywhere."""
        rounds, number, was_quiet, silence_s = Rounds(self.plan.tasks), 0, False, SILENCE_S
        while not self._ending:
            number += 1
            before = await self._said_by_others() if was_quiet else {}
            asked = {one.name: one for one in self._containers.values()} if self._begun else {}
            for one in asked.values():
                one.line.say(Ask(round=number, metrics=self._is_watched))
            pause_ms, self._is_watched = ROUND_MS if self._is_watched else CALM_MS, False
            reports = await self._answers(number, silence_s) if asked else {}
            silence_s = SILENCE_S if reports.keys() == asked.keys() else min(2 * silence_s, MOST_SILENCE_S)
            was_quiet = False
            if reports.keys() == asked.keys() and len(asked) == self._number:
                was_quiet = all(report.finished for report in reports.values())
                pause_ms = ROUND_MS if was_quiet else pause_ms
                if rounds.over(reports) or (was_quiet and await self._agree(reports, before)):
                    self._end_all()
                elif was_quiet and len(_held(reports)) == self.plan.tasks:
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1_000):
                    await self._one_finished.wait()
            self._one_finished.clear()

    async def _said_by_others(self) -> dict[str, Quiet]:
        if self._sharing is not None:
            with suppress(EnvironmentFault):  # brokers that don't answer now are asked again
                return await asyncio.to_thread(self._sharing.quiet)
        return {}

    async def _agree(self, reports: dict[str, Report], before: dict[str, Quiet]) -> bool:
        """Say to others who have started containers that ours have nothing to do; return whether nobody has."""
        held = _held(reports)
        if self._sharing is None or len(held) == self.plan.tasks:
            return False
        commits = ", ".join(f"{name} {report.commits}" for name, report in sorted(reports.items()))
        with suppress(EnvironmentFault):
            return await asyncio.to_thread(self._sharing.agree, held, commits, before, self.plan.tasks)
        return False

    async def _answers(self, number: int, silence_s: float) -> dict[str, Report]:
        """Return the answers to a round by container, once each that is there has answered, or after a while."""
        answers: dict[str, Report] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(silence_s):
                while len(answers) < len(self._containers):
                    self._changed.clear()
                    found = {one.name: one.report for one in self._containers.values()}
                    answers = {name: report for name, report in found.items() if report and report.round >= number}
                    if len(answers) < len(self._containers):
                        await self._changed.wait()
        return answers

    def _release(self) -> None:
        if hasattr(self, "_bindings"):
            self._bindings.close()
        self._environment.close()


def _held(reports: Mapping[str, Report]) -> set[int]:
    """Return the tasks that our containers have."""
    return {task for report in reports.values() for task in report.tasks}


async def _end(container: Container, *, at_once: bool) -> None:
    """See the end of a process whose line is cut, or make it."""
    process = container.process
    if not at_once:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # process.kill() would reap it, and asyncio would miss it
        await process.wait()
    await container.line.close()


def _how_it_died(container: Container, deaths: int) -> str:
    status = container.process.returncode or 0
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return (
        f"container {container.name} {how}, as did {deaths - 1} before it, and none of them has committed anything: "
        "look at what they have printed, and whether there is memory enough for so many"
    )


def _error_of(failed: Failed) -> Exception:
    """Return the error that a container has ended with, as if it had been raised here."""
    kind = PlanError if failed.kind == PlanError.__name__ else getattr(errors, failed.kind, None)
    error = kind(failed.text) if kind is not None else SamzaError(f"{failed.kind}: {failed.text}")
    error.__cause__ = Elsewhere(failed.lines) if failed.lines else None
    return error
