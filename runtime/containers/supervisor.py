"""Runs an application in several containers: starts them, replaces those that die, and ends them together."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from planner.checks.splitting import check_factor
from planner.model.errors import PlanError
from planner.model.levers import Levers
from planner.model.plan import Options
from runtime.assembly.history import History, beside, open_history, shared_among
from runtime.assembly.pattern_spread import check_spread
from runtime.commit.commit import deliver
from runtime.containers.container import PATIENCE_S, Container, Processes
from runtime.containers.crew_numbers import SILENCE_S, CrewNumbers, Resizing, Round, Silences, renewed
from runtime.containers.crew_state import CrewState
from runtime.containers.leadership import Leadership, Spanning
from runtime.containers.protocol import (
    Ask,
    CommitNow,
    EndedWell,
    Failed,
    Finished,
    Go,
    Holds,
    Idle,
    Joined,
    Report,
    Rounds,
    Start,
    Stop,
    ToldNumbers,
    ToldState,
    as_given,
    error_of,
    held_by,
    shared_out,
)
from runtime.containers.worker import digest_of
from runtime.job.pipeline import Pipeline
from runtime.model.assignment import REFUSED, Scale
from runtime.model.clock import Clock, SystemClock, sleep_ms, wall_clock_ms
from runtime.model.errors import EnvironmentFault, Fenced, Grown, SamzaError, Unavailable
from runtime.model.history import HistorySpan
from runtime.model.metrics import InputMetrics, RunMetrics, StoreMetrics
from runtime.opening.opening import Opened, Recovered, Share, ends_of, join_application, recover, with_changes
from runtime.opening.regrouping import regrouped_in
from runtime.opening.rescaling import note_size, prepare_split
from runtime.opening.rewind import check_rewind
from runtime.opening.shared_run import SharedRun, called, check_same, shared_from_here
from runtime.queries.state_query import QueriedState
from runtime.queries.state_requests import StateAnswer, StateRequest
from runtime.run.driver import Watch, check_no_loop, has_failed, in_thread, keeping_size, run_whatever_begins
from runtime.run.measurement import left_alone
from runtime.run.run import opened_where_it_lies
from runtime.run.scaling import FAR_LOOK_MS, asked_size, check_grown, follow_ahead
from runtime.run.settings import UNSAID, CrewSettings, RunSettings, open_environment
from runtime.systems.kafka.client.topic import KafkaTopic, cluster_of
from runtime.systems.log.environment import LogEnvironment

ROUND_MS, CALM_MS = 250.0, 1_000.0
"""The pause between two rounds of questions to containers, the longer one while nobody looks at the numbers."""
MOST_DEATHS = 5
"""The deaths in a row, without a commit between them, that end the run."""
PAUSE_MS = 500.0
"""The pause before another container takes the place of one that failed; it doubles each time in a row."""
MOST_SILENCE_S = 16.0
"""The longest time to wait for answers: it doubles from `SILENCE_S`, as a container that is stopped gives none."""
ALONE_MS = 2_000.0
"""The interval between two looks at the tasks that no container has."""
LOOK_MS = 250.0
"""The interval between two looks at what was asked for, and at what is to be delivered."""

SETTLED_MS = 100.0
"""The interval between two looks at whether all containers have their tasks."""

_log = logging.getLogger("samza_dsl")


class Containers:
    """One run of an application in several processes: `metrics()` tells how it goes, `stop()` ends it.

    This process is the application's owner and runs nothing of it. The containers agree among themselves who has which
    task; they end when this process is gone.

    All is called in the thread of the event loop that drives it; `stop()` may be called from a signal handler. What
    asks brokers runs in threads beside, and is awaited before anything is closed. Invariants: a slot has at most one
    container, and no two containers of a run ever have one name; the numbers of one that is gone are kept once; no
    process is left when `drive` returns.
    """

    _goes_on: Literal["", "here", "elsewhere"] = ""
    """Where the run is opened that follows this one, in which processes here take part; "" where none does."""

    _recovered = Recovered({})
    """The state in which the run began; nothing where others have begun it."""
    _resizing: Resizing | None = None
    """The last change of the size, which is noted again once all containers have their tasks."""
    _takes_in = False
    """Whether sources that can't be read again are taken in here: of a run that goes on, by the one that leads it."""

    heeds_sizes = False
    """Whether this process gives the run another size: of those that share it, the one that leads it."""

    def __init__(
        self,
        pipeline: Pipeline,
        data: str | Path,
        crew: CrewSettings,
        settings: RunSettings = UNSAID,
    ) -> None:
        levers, self._until_now = settings.levers, settings.until_now
        check_rewind(settings.from_start, settings.state)
        self._placement, self._standby = crew.placement, crew.standby
        options = pipeline.options
        self._graph = graph = beside(pipeline.graph, crew.beside)
        pipeline = pipeline.of(graph)
        self._clock: Clock = settings.clock or SystemClock()
        self._replica_age_ms = settings.replica_age_ms
        self._numbers, self._alone_at_ms = CrewNumbers(graph.app, self._clock), -ALONE_MS
        self._processes, self._number = Processes(crew.command), crew.number
        self._containers: dict[int, Container] = {}
        self._named: Counter[int] = Counter()
        """By slot, the number of containers that it has had."""
        self._alone: tuple[InputMetrics, ...] = ()
        """The inputs of tasks that no container had at the last look."""
        self.elsewhere: tuple[InputMetrics, ...] = ()
        """The inputs of tasks that others had then, who share the run, as of their last commits."""
        self._round = Round(self._containers, Silences(self._graph.app), self._clock)
        self._one_finished = asyncio.Event()
        self._final: RunMetrics | None = None
        self.start_up_ms = 0.0
        """The time until all containers had loaded the application and could begin."""
        self._begun = self._ending = self._is_watched = self.stopping = self.failed = self.begins_anew = False
        self._cluster = cluster = cluster_of(settings.environment)
        bound, here = shared_out(graph, settings.bind or {})
        self._shared = as_given(cluster, f"environment={cluster!r}") if cluster is not None else None
        self._environment = open_environment(data, cluster, settings.host_id)
        self._spanning = Spanning(self._environment, graph.app)
        self._state = CrewState(graph, self._environment, cluster, self._containers, settings.token_file)
        try:
            # On brokers whoever comes shares the run that goes on; in a directory who does not say so may mean another.
            where = self._environment, graph.app, cluster is not None or crew.joins
            self._sharing, alive = shared_from_here(*where, crew.joins, crew.fenced)
            self._leadership = Leadership(graph.app, self._sharing, lambda: self._bindings, self._clock)
            if alive is not None:
                share = self._join_run(alive, pipeline, here, settings.from_start)
            else:
                share = self._open_run(pipeline, here, settings)
        except BaseException:
            self._release()
            raise
        self._scales(alive is None and settings.span is None, pipeline, here, levers)
        self._start = self._start_of(crew, settings, data, options, share, bound)

    def _start_of(
        self,
        crew: CrewSettings,
        settings: RunSettings,
        data: str | Path,
        options: Options,
        share: Share,
        bound: dict[str, str | KafkaTopic],
    ) -> Start:
        """Return what each container is told as it starts."""
        module, name = crew.found
        return Start(
            module=module,
            name=name,
            data=os.fspath(data),
            options=options,
            share=share,
            bind=bound,
            plan=digest_of(self.plan),
            beside=crew.beside,
            environment=self._shared,
            host_id=settings.host_id,
            state_address=settings.state_address,
            opentelemetry=crew.opentelemetry,
        )

    def _scales(self, may_scale: bool, pipeline: Pipeline, here: Mapping[str, object], levers: Levers) -> None:
        """Know the size that was asked for until now, of which another one differs, and how it is opened anew."""
        self.heeds_sizes, self._pipeline = may_scale, pipeline
        self._here, self._opens = here, partial(opened_where_it_lies, self._environment, bound=here, levers=levers)
        self._why, self._resizing_since_ms = "", 0.0

    def _open_run(self, pipeline: Pipeline, here: Mapping[str, object], settings: RunSettings) -> Share:
        """Begin a run, which this process owns."""
        levers, from_start, state, since = settings.levers, settings.from_start, settings.state, settings.since
        where = self._environment, pipeline, here
        opened = opened_where_it_lies(*where, levers=levers, from_start=from_start, state=state, since=since)
        self._bindings, self.plan, self._job, self._graph = opened.bindings, opened.plan, opened.job, opened.graph
        self._takes_in = not self._until_now and settings.span is None
        return self._begin_run(opened, levers, settings.span, settings.drains)

    def _join_run(self, alive: SharedRun, pipeline: Pipeline, here: Mapping[str, object], from_start: bool) -> Share:
        """Join the run that others have begun; raises SamzaError where it is of another application."""
        opened = join_application(self._environment, pipeline, here, alive.share)
        self._bindings, self.plan, self._job, self._graph = opened.bindings, opened.plan, opened.job, opened.graph
        self.since = opened.since
        how = from_start, self._placement, self._standby
        check_same(alive, self._graph.app, digest_of(self.plan), self._until_now, *how)
        return alive.share

    def _begin_run(
        self,
        opened: Opened,
        levers: Levers,
        span: HistorySpan | None = None,
        drains: bool = False,
        until: tuple[tuple[str, int, int], ...] = (),
    ) -> Share:
        """Return the share of all containers of a new run, and note it where others may start some as well.

        Where the one before knew `until` which offsets it reads, so does this one.
        """
        check_spread(opened.plan, opened.bindings, opened.graph, "run containers=1")
        self.since, self._asked = opened.since, opened.asked
        # What is asked of a run holds until it ends, however often it begins anew, and whoever leads it.
        self._number = self._asked.since(self.since).containers or self._number
        self._recovered = recover(self._environment, opened, opened.graph, wall_clock_ms())
        is_first = self._until_now and not until
        if is_first and not drains and span is None:
            opened.bindings.fill(opened.generation)
        ends = ends_of(self._environment, opened, opened.graph, drains) if is_first else {}
        share = Share(
            levers=levers,
            container="",
            generation=opened.generation,
            counts=opened.counts,
            ends=until or tuple((stream, partition, end) for (stream, partition), end in ends.items()),
            history=self._shared_history(span, opened, self._number) if span is not None else None,
            placement=self._placement,
            standby=self._standby,
            factor=opened.plan.options.elasticity,
            since=opened.since,
            regrouped=(*regrouped_in(opened.graph),),
        )
        if self._sharing is not None:
            self._sharing.begin(SharedRun(share, digest_of(opened.plan), self._until_now))
        return share

    @property
    def number(self) -> int:
        """The number of containers that it has, or is about to have."""
        return self._number

    def metrics(self, stores: bool = True) -> RunMetrics:
        """Return the numbers of this moment, of all containers; after the end, the last ones."""
        if self._final is not None:
            return self._final
        self._is_watched = True
        numbers = self._numbers.now(self._containers, self._alone)
        found = self._bindings.counted(with_changes(numbers, self._recovered, self._job, self._replica_age_ms))
        # On a cluster each container has told of the stores that it has.
        if not stores or self._cluster is not None:
            return found
        stats = self._environment.state_stats(self._graph.app)
        kept = (StoreMetrics(store=s, task=t, entries=n, bytes=size) for (s, t), (n, size) in stats.items())
        return msgspec.structs.replace(found, stores=tuple(kept))

    async def renew(self) -> None:
        """Ask all containers for their numbers, which `metrics` then returns; who looks seldom would see old ones."""
        if self._begun and self._final is None:
            await renewed(self._containers.values())

    def state(self, operator: str) -> QueriedState:
        """Return the committed state of an operator, by its id, of all containers, for any thread to ask.

        On Kafka containers are asked for it, those of other machines as well, which the event loop itself can't do.
        Raises PlanError for an operator that has none that can be asked for.
        """
        return self._state.state(operator)

    async def state_answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer of the container that has the state which is asked for."""
        return await self._state.answer(request)

    def stop(self) -> None:
        """Ask all containers to complete what is in flight, commit and end; may be called from a signal handler."""
        self.stopping = True
        self._bindings.end()
        self._end_all()

    def want_commit(self) -> None:
        """Ask all containers to commit as soon as they can."""
        for container in self._containers.values():
            container.line.say(CommitNow())

    def _shared_history(self, span: HistorySpan, opened: Opened, number: int) -> History:
        """Return the history of a span as each container reads it, with its share of the rate."""
        where = self._environment, opened.bindings, self._graph, opened.plan
        return shared_among(open_history(span, *where, opened.generation), number)

    def _end_all(self) -> None:
        self._ending = True
        self._one_finished.set()  # for who asks, who would else sleep on for a second
        for container in self._containers.values():
            container.line.say(Stop())

    async def drive(self) -> None:
        """Run to the end, and leave no process whatever happens; raises what ended a container before its time."""
        try:
            await self._drive_on()
            # At the end alone: other containers would go on with what waits.
            await in_thread(self._deliver_now, whole=True)
            if not self.stopping:
                await in_thread(self._leadership.tell_end)
        except BaseException as error:
            self.failed, self.begins_anew = True, isinstance(error, Grown)
            raise
        finally:
            await self._processes.end()
            with suppress(SamzaError):
                self._final = self.metrics()
            self._release()

    async def _drive_on(self) -> None:
        """Run the containers to their end, one run after the other where tasks are to be others."""
        while True:
            try:
                await self._drive_crew()
            except Fenced as fenced:
                if self._goes_on != "elsewhere" or self.stopping:
                    raise
                await self._take_part(fenced)
                continue
            if self._goes_on != "here" or self.stopping:
                return
            await in_thread(self._take_up)

    async def _take_part(self, fenced: Fenced) -> None:
        """Take part in the run that has begun elsewhere; raises what it was fenced by where none is announced."""
        assert not self._containers, "who shares a run has ended its part of the former"
        alive = await self._leadership.next_run(fenced, lambda: self.stopping)
        _log.warning("begins anew: %s", fenced)
        self._bindings.close()
        share = await in_thread(self._join_run, alive, self._pipeline, self._here, from_start=False)
        self._takes_in = self.heeds_sizes = False
        self._begin_anew(share)

    def _begin_anew(self, share: Share) -> None:
        """Go on with another run, of which the next containers are."""
        self._start = msgspec.structs.replace(self._start, share=share, plan=digest_of(self.plan))
        self._begun, self._ending, self._goes_on = False, self.stopping, ""
        # Their tasks are no more, and others say from now on how far the inputs are read.
        self._numbers.begin_anew(self._number)

    async def _drive_crew(self) -> None:
        """Run the containers to their end, or until they are to be others."""
        self._state.begin(self.plan.tasks)
        keeping = [asyncio.create_task(self._keep(slot)) for slot in range(self._number)]
        asking = asyncio.create_task(self._ask())
        heeding = asyncio.create_task(self._heed_scale(keeping))
        following = asyncio.create_task(self._leadership.follow(lambda: self._ending, self._open_anew))
        noting = asyncio.create_task(self._note_resized())
        delivering = asyncio.create_task(self._deliver())
        taking_in = asyncio.create_task(self._take_in())
        spanning = asyncio.create_task(self._spanning.end(self._start.share.generation, lambda: self._ending))
        # What delivers, takes in and heeds ends with an error alone, while containers run.
        watched = [asking, delivering, taking_in, heeding, noting]
        try:
            while not all(one.done() for one in (*keeping, asking)) and not any(map(has_failed, (*keeping, *watched))):
                waiting = [one for one in (*keeping, *watched) if not one.done()]
                # Not for ever: more may be kept since.
                await asyncio.wait(waiting, timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
            watched += keeping
            # Where one has failed, the others drain, commit and end.
            self._end_all()
            await asyncio.wait([*keeping, asking], timeout=PATIENCE_S)
            failures = [one.exception() for one in watched if one.done()]
            for failure in filter(None, failures):
                raise failure
        finally:
            for task in (*keeping, *watched, following, spanning):
                task.cancel()
            await asyncio.wait([*keeping, *watched, following, spanning])
        await in_thread(self._deliver_now)  # what the last commits have written

    async def _deliver(self) -> None:
        """Hand sinks what containers have committed."""
        while self._bindings.outboxes:
            await sleep_ms(min(LOOK_MS, max(self._bindings.look_ms, 1.0)))
            await in_thread(self._deliver_now)

    async def _take_in(self) -> None:
        """Take in what comes of sources that can't be read again, where this process leads the run."""
        if self._bindings.inboxes and self._takes_in:
            await self._bindings.take_in(self._start.share.generation)

    def _deliver_now(self, whole: bool = False) -> None:
        if self._bindings.outboxes:
            share = self._start.share
            how = self._bindings, self._graph.app, share.generation, self._recovered.positions
            self._recovered = self._recovered._replace(positions=deliver(*how, takes_out=True, whole=whole))

    async def _heed_scale(self, keeping: list[asyncio.Task[None]]) -> None:
        """Let containers come and go as is asked for; where tasks are to be others, all end, and others begin."""
        if not self.heeds_sizes and self._cluster is not None:
            how = self.since, self._leadership.say_ready, self._leadership.rest, lambda: not self._ending
            try:
                await follow_ahead(self._environment, self.plan, self._graph, *how)
            except Fenced:
                self._goes_on = "elsewhere" if self._may_take_part else ""
                raise
        while self.heeds_sizes and not self._ending:
            await sleep_ms(LOOK_MS if self._cluster is None else FAR_LOOK_MS)
            asked = await in_thread(asked_size, self._environment, self._graph.app)
            try:
                await in_thread(check_grown, self._bindings, self._graph, self._start.share.counts)
            except Grown as grown:
                _log.warning("containers begin anew: %s", grown)
                await self._open_anew()
                return
            if asked is None or asked.number == self._asked.number:
                continue
            wanted, self._asked = asked.since(self._asked.number), asked
            try:
                check_factor(self.plan, wanted.factor or 1)
            except PlanError as error:
                _log.warning("%s: its tasks stay as they are: %s", self._graph.app, error)
                refusal = Scale(self.plan.options.factor, self._number, f"{REFUSED}: {error}", asked.number)
                await in_thread(self._environment.refuse_scale, self._graph.app, refusal)
                continue
            await prepare_split(self._environment, self.plan, self._graph, wanted.factor, lambda: not self._ending)
            if self._cluster is not None and wanted.factor not in (None, self.plan.options.factor):
                await self._leadership.others_ready(asked.number, lambda: not self._ending)
            if self._begun and wanted.factor in (None, self.plan.options.factor):
                await self._resize(wanted, keeping)
            elif not self._ending:  # which may have begun while state was copied
                await self._open_anew(wanted.why, wanted.containers)

    async def _open_anew(self, why: str = "asked for", number: int | None = None) -> None:
        """End all containers, and let this process open the application anew, as it is or in another size."""
        await self._spanning.begin((number or self._number) - len(self._containers))
        if self._ending:  # all is done meanwhile, or it is to stop
            return
        # Where another one has opened it just before, that is the newest run.
        self._goes_on, self._why = self._goes_on or "here", why
        self._resizing_since_ms = self._clock.elapsed_ms()
        self._end_all()

    async def _resize(self, asked: Scale, keeping: list[asyncio.Task[None]]) -> None:
        """Let some containers come, or the last ones go: tasks that neither get nor leave go on meanwhile."""
        self._resizing_since_ms = self._clock.elapsed_ms()
        before, self._number = self._number, asked.containers or self._number
        self._resizing = self._resizing_from(before, self.plan.options.factor, asked.why)
        keeping += [asyncio.create_task(self._keep(slot)) for slot in range(before, self._number)]
        for slot in range(self._number, before):
            if slot in self._containers:
                self._containers[slot].line.say(Stop())
        await self._note_resized()

    def _are_all_here(self) -> bool:
        return len(self._containers) == self._number and all(one.joined for one in self._containers.values())

    def _resizing_from(self, number: int, factor: int, why: str) -> Resizing | None:
        """Return what to note of a change that begins, given the size before it; None where it is the same."""
        if (number, factor) == (self._number, self.plan.options.factor):
            return None
        return Resizing(number, factor, why, self._resizing_since_ms, self._numbers.moved(self._containers))

    async def _note_resized(self) -> None:
        """Note a change of the size in the application's history, once all containers have their tasks."""
        resizing, moved = self._resizing, None
        try:
            while resizing is not None and not self._ending and moved is None:
                await sleep_ms(SETTLED_MS)
                if self._begun and self._are_all_here():
                    await self.renew()
                    moved = self._numbers.moved_by(resizing, self._containers)
        finally:
            # Also where the run ends meanwhile, as it had that size; unless another change has begun since.
            if resizing is not None and resizing is self._resizing:
                await in_thread(self._note, resizing, self._start.share.generation, moved)

    def _note(self, resizing: Resizing, generation: int, moved: int | None) -> None:
        now = self._number, self.plan.options.factor, self._clock.elapsed_ms(), moved
        note_size(self._environment, self._graph.app, generation, resizing.scaled(*now))

    async def ask_size(self, wanted: Scale) -> None:
        """Ask for another size of this run, as a command would."""
        await in_thread(self._environment.ask_scale, self._graph.app, wanted)

    def _take_up(self) -> None:
        """Open the application anew, to lead it or in another size; all containers have committed and ended."""
        assert not self._containers, "nobody is at work where checkpoints are rewritten"
        before, factor, before_number = self._start.share, self.plan.options.factor, self._number
        self._bindings.close()
        # So is the factor that it has, where who leads it now has a program that says another one.
        if before.factor is not None:
            options = msgspec.structs.replace(self._pipeline.options, elasticity=before.factor)
            self._pipeline = replace(self._pipeline, options=options)
        opened = self._opens(self._pipeline, since=before.since)
        self._bindings, self.plan, self._job, self._graph = opened.bindings, opened.plan, opened.job, opened.graph
        share = self._begin_run(opened, before.levers, until=before.ends)
        self._takes_in, self.heeds_sizes = not self._until_now, True
        self._begin_anew(share)
        self._resizing = self._resizing_from(before_number, factor, self._why)
        if self._resizing is not None:
            # Also here, as no container may come to have a task: what is known then is noted once they have them.
            self._note(self._resizing, opened.generation, None)

    async def _keep(self, slot: int) -> None:
        """Keep a container running, another one in the place of each that dies, until all are to end."""
        deaths, former = 0, ""
        while not self._ending and slot < self._number:
            # A new name each time: the ledger must not take the new container for the one that is gone.
            name = f"{slot}.{self._named[slot]}"
            self._named[slot] += 1
            name = called(self._sharing.name, name) if self._sharing is not None else name
            container = await self._begin(slot, name)
            assert slot not in self._containers, "a slot has one container at a time"
            self._containers[slot] = container
            if slot >= self._number:
                container.line.say(Stop())  # it was to leave before it had begun
            if former:
                self._numbers.replace(former, container)
            listened = False
            try:
                listened = await self._listen(container)
            finally:
                if listened and self._stays(slot, container):
                    self._processes.keep(slot, container)
                else:
                    await container.end(at_once=not listened)
                self._count_out(slot)
            former = container.name
            failed = container.failed
            is_last = failed is not None and not self._may_go_on(failed)
            if is_last and container.idle and self._may_take_part:  # idle, as it was fenced
                self._goes_on = "elsewhere"
            if not container.ended and self._goes_on != "elsewhere":
                self._numbers.mourn(slot, container)
            if failed is not None and is_last:
                raise error_of(failed)
            if slot >= self._number:
                return  # asked to leave
            if container.ended and not self._ending:
                # It has ended by itself and well: the user's code asked for the end.
                self.stop()
            elif not self._ending:
                # Whoever commits gets on, so a rare death ends nothing, however often it comes.
                deaths = 0 if container.has_committed else deaths + 1
                if deaths >= MOST_DEATHS:
                    raise error_of(failed) if failed is not None else SamzaError(container.how_it_died(deaths))
                if failed is not None:
                    # Brokers may be away for a while.
                    await sleep_ms(PAUSE_MS * 2**deaths)

    def _stays(self, slot: int, container: Container) -> bool:
        """Whether the process of a container, which is over, is to take part in another run."""
        if not container.idle or slot >= self._number or self.stopping:
            return False
        if container.failed is not None:  # as it was fenced
            return self._may_take_part
        return bool(self._goes_on)

    @property
    def _may_take_part(self) -> bool:
        """Whether the run of others can be shared that has begun since."""
        return self._sharing is not None and self._start.share.history is None and bool(self._sharing.name)

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
            # Brokers do not say: the next container finds out.
            return self._cluster is not None

    async def _begin(self, slot: int, name: str) -> Container:
        environment, held = self._environment, list[int]()
        if isinstance(environment, LogEnvironment) and (lock := environment.lock_of(self._graph.app)) is not None:
            # The owner's lock is then held as long as one of us lives: nobody else begins before the last has ended.
            held.append(lock)
        process, line = await self._processes.begin(slot, held)
        container = Container(name, process, line, self._clock.elapsed_ms())
        share = msgspec.structs.replace(self._start.share, container=name)
        container.line.say(msgspec.structs.replace(self._start, share=share))
        return container

    async def _listen(self, container: Container) -> bool:
        """Take in the messages of a container, until its run is over, or it is gone."""
        while (said := await container.line.hear()) is not None:
            container.heard_ms = self._clock.elapsed_ms()
            if isinstance(said, Joined):
                container.joined = True
                self._let_begin(container)
            elif isinstance(said, Finished):
                self._one_finished.set()
            elif isinstance(said, Holds):
                container.tasks = said.tasks
            elif isinstance(said, Report):
                container.report, container.tasks = said, said.tasks
                if said.metrics is not None:
                    container.renew(said.metrics)
            elif isinstance(said, ToldNumbers):
                container.renew(said.metrics)
            elif isinstance(said, ToldState):
                if said.number in container.asked and not container.asked[said.number].done():
                    container.asked[said.number].set_result(said.answer)
            elif isinstance(said, Failed):
                container.failed = said
            elif isinstance(said, EndedWell):
                container.ended, container.metrics = True, said.metrics
            elif isinstance(said, Idle):
                container.idle = True
            self._round.changed.set()
            if container.idle:
                break
        return True

    def _let_begin(self, container: Container) -> None:
        """Let the first containers begin together, so that tasks need not move."""
        if self._begun:
            container.line.say(Go())
        elif self._are_all_here():
            self._begun = True
            self.start_up_ms = self._numbers.elapsed_ms
            for one in self._containers.values():
                one.line.say(Go())
        if self._ending:
            container.line.say(Stop())

    def _count_out(self, slot: int) -> None:
        """Keep the numbers of a container that is gone."""
        gone = self._containers.pop(slot)
        self._state.count_out(gone)
        self._round.changed.set()
        self._numbers.count_out(slot, gone, leaves=slot >= self._number)

    async def _ask(self) -> None:
        """Ask how far all are, and end the run when nothing is left to do anywhere."""
        rounds, number, was_quiet, silence_s = Rounds(self.plan.tasks), 0, False, SILENCE_S
        while not self._ending:
            number += 1
            # Asked for before the containers look again: they have then seen what is said here.
            before = await self._leadership.said_by_others() if was_quiet else {}
            asked = {one.name: one for one in self._containers.values()} if self._begun else {}
            for one in asked.values():
                one.line.say(Ask(round=number, metrics=self._is_watched))
            # Whoever calls metrics() marks it, so that an idle run is asked four times as seldom: 0.05 s of the
            # processor a minute.
            pause_ms, self._is_watched = ROUND_MS if self._is_watched else CALM_MS, False
            reports = await self._round.answers(number, silence_s) if asked else {}
            silence_s = SILENCE_S if reports.keys() == asked.keys() else min(2 * silence_s, MOST_SILENCE_S)
            was_quiet = False
            if reports.keys() == asked.keys() and len(asked) == self._number:
                was_quiet = all(report.finished for report in reports.values())
                pause_ms = ROUND_MS if was_quiet else pause_ms
                is_over = rounds.over(reports) or (
                    was_quiet and await self._leadership.agree(reports, before, self.plan.tasks)
                )
                if is_over and await self._leadership.is_delivered():
                    self._end_all()
                # The second round follows at once: with all tasks here, only that has to be the same.
                elif was_quiet and len(held_by(reports)) == self.plan.tasks:
                    continue
            await self._look_alone()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1_000):
                    await self._one_finished.wait()
            self._one_finished.clear()

    async def _look_alone(self) -> None:
        """Look now and then at the tasks that no container has, here or where others have started some."""
        left = {*range(self.plan.tasks)} - {task for one in self._containers.values() for task in one.tasks}
        if not left:
            self._alone = self.elsewhere = ()
        elif self._clock.elapsed_ms() >= self._alone_at_ms + ALONE_MS:
            self._alone_at_ms = self._clock.elapsed_ms()
            ours = {one.name for one in self._containers.values()}
            self._alone, self.elsewhere = await in_thread(self._not_here, left, ours)

    def _not_here(
        self, tasks: Collection[int], ours: Collection[str]
    ) -> tuple[tuple[InputMetrics, ...], tuple[InputMetrics, ...]]:
        with suppress(SamzaError):  # brokers that don't answer now are asked again
            theirs: set[int] = set()
            if self._sharing is not None:
                model = self._environment.job_model(self._graph.app)
                others = {*model.containers} - {*ours} - self._state.gone
                theirs = {task for task in tasks if task < len(model.tasks) and model.tasks[task] in others}
            found = left_alone(self._bindings, self._graph, self.plan, tasks)
            alone = tuple(one for one in found if one.task not in theirs)
            return alone, tuple(one for one in found if one.task in theirs)
        return self._alone, self.elsewhere

    def _release(self) -> None:
        self._state.end()
        if hasattr(self, "_bindings"):
            self._bindings.close()
        self._environment.close()


def run_containers(
    pipeline: Pipeline,
    data: str | Path,
    crew: CrewSettings,
    settings: RunSettings = UNSAID,
    watch: Watch | None = None,
) -> Containers:
    """Run in several processes to the end, as `run_blocking` does in this one."""
    check_no_loop()

    def made(settings: RunSettings, fenced: Fenced | None) -> Containers:
        return Containers(pipeline, data, replace(crew, fenced=fenced), settings)

    return run_whatever_begins(keeping_size(made), watch, settings)
