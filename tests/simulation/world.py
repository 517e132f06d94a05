"""Plays a scenario: processes on one simulated loop, directory and clock, and checks of all that they leave."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from planner.model.graph import Graph
from planner.model.plan import Options, Plan
from planner.passes import plan
from runtime.model.assignment import Scale
from runtime.model.errors import Owned
from runtime.ports.commits import Commit
from runtime.ports.streams import StreamConfig
from samza_dsl import App, every
from tests.building import Resource, build
from tests.simulation.check import Outcome, Shares
from tests.simulation.clock import JumpingClock
from tests.simulation.crash import Crash, append_rows, fill
from tests.simulation.directory import Directory, SimulatedLog
from tests.simulation.file import File
from tests.simulation.life import Life
from tests.simulation.loop import Stuck, VirtualLoop, rest, simulate
from tests.simulation.scenario import Scenario
from tests.strategies import APP, REPARTITIONS, Event, Pipeline, keys_of, stored, tables

PATIENCE_S = 120.0
"""For so long a commit may have to wait for calls, and more; what commits nothing for longer never will."""
FLOOD = 20
BACKLOG = 100
MOST_FLOODED = 1_000
"""So many records of one partition may be read while another one waits with a few."""
TICK_MS = 100


class Starved(Exception):
    """A partition is not served while another one is, again and again."""


class World:
    """All that there is in one simulation."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.struck: Counter[str] = Counter()
        self.chance = random.Random(scenario.seed)
        self.directory = Directory()
        self.clock = JumpingClock(scenario.start_ms, scenario.jumps or ())
        self.options = scenario.options
        self.opened: list[Resource] = []
        self.sunk: Counter[tuple[int, Event]] = Counter()
        self.files = {name: File() for name in scenario.pipeline.outputs()[:1] if scenario.bound}
        self.alone = len(scenario.processes) == 1
        self.tasks: set[asyncio.Task[Any]] = set()
        self.lives: list[Life] = []
        self.parts = [list(part) for part in scenario.parts]
        self.shares = Shares()
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._ticks: dict[tuple[int, int], float] = {}
        self._seen_version, self._moved_s = -1, 0.0
        self._errors: list[dict[str, Any]] = []
        self.graph = self._graph()

    def play(self) -> None:
        """Play it to its end; raises what is wrong."""
        try:
            with patch("runtime.opening.opening.make_plan", self._planned), patch("runtime.run.scaling.LOOK_MS", 2.0):
                simulate(self._main, self.scenario.seed, self._at_turn, self.tell if self.trace is not None else None)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        unexplained = [one for one in self._errors if not isinstance(one.get("exception"), Crash)]
        assert not unexplained, f"the loop was told of errors: {unexplained}"

    def _planned(self, graph: Graph, options: Options, counts: dict[str, int], **how: Any) -> Plan:
        """Plan an application once: every life of it comes to the same, and it is a sixth of a small one."""
        sizes = (options, *sorted(counts.items()))
        if sizes not in self._plans:
            self._plans[sizes] = plan(graph, options, counts, **how)
        return self._plans[sizes]

    def tell(self, what: str) -> None:
        """Note what happens."""
        if self.trace is not None and hasattr(self, "loop"):
            self.trace.append(f"{self.loop.turns:5} {self.loop.time():9.4f} s  {what}")

    def take_over(self, app: str, lasting: bool) -> None:
        """Have the owner lose its lock, without knowing; `lasting`: another one has come since, and gone."""
        self.directory.owners.pop(app, None)
        if lasting:
            other = SimulatedLog(self.directory, now_ms=self.clock.now_ms)
            other.own(app)
            other.close()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.loop.set_exception_handler(lambda loop, context: self._errors.append(context))
        self.environment = SimulatedLog(self.directory, now_ms=self.clock.now_ms)
        self.outcome = Outcome(self.scenario.pipeline, self.parts, self.environment, self.files, self.sunk)
        repartitions = any(node.kind in REPARTITIONS for node in self.scenario.pipeline.nodes)
        self.outcome.is_split = bool(self.scenario.asks and repartitions)
        for stream, rows in tables(self.scenario.pipeline).items():
            fill(self.environment, stream, rows)
        if self.scenario.jumps is not None:
            fill(self.environment, "ticked", [[]])
        for stream, parts in self.scenario.pipeline.split(self.parts).items():
            if not self.scenario.arriving:
                fill(self.environment, stream, stored(parts), self.chance)
            else:
                self.environment.create_stream(stream, StreamConfig(partitions=len(parts)))
        async with asyncio.TaskGroup() as group:
            for number, faults in enumerate(self.scenario.processes):
                self.tasks.add(group.create_task(self._process(f"process {number}", faults)))
            if self.scenario.arriving:
                self.tasks.add(group.create_task(self._produce()))
            if self.scenario.asks:
                self.tasks.add(group.create_task(self._ask()))
            self.tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        if self.options.guarantee == "exactly_once" or not any(self.scenario.processes):
            self.outcome.check_end()
        else:
            self.outcome.check_nothing_lost()
        self.struck["clock set"] += len(self.clock.passed())
        await self._see_the_dead_off()

    async def _process(self, name: str, faults: tuple[Any, ...]) -> None:
        """Start the application again after each of its faults, until it has come to its end."""
        left = [*faults]
        while True:
            life = Life(self, name, left[0] if left else None)
            self.lives.append(life)
            try:
                if await life.live():
                    self.tell(f"{name} has come to the end")
                    return
            except Owned:
                self.lives.remove(life)
                await rest(self.chance.choice((1, 50, 300)))
                continue
            del left[:1]
            # Tasks that share a partition have read it to several places, of which this check knows one.
            if self.options.guarantee == "exactly_once" and not self.scenario.asks:
                self.outcome.check_cut()

    async def _ask(self) -> None:
        """Ask for tasks that are split, or merged."""
        for after_ms, factor in self.scenario.asks:
            await rest(after_ms)
            self.tell(f"each task is to be split into {factor}")
            self.environment.ask_scale(APP, Scale(factor))

    def on_commit(self, commit: Commit) -> None:
        """See a commit that is durable."""
        newest = self.environment.generation(APP)
        assert commit.generation == newest, f"the run {commit.generation} commits though the run {newest} has begun"
        self.outcome.note(commit)
        self.shares.note(commit)
        self.struck["split or merged"] += bool(commit.gone)

    async def _produce(self) -> None:
        """Append the records bit by bit; a flood has more as long as another partition has something left."""
        flood = self.scenario.flood
        left = [list(part) for part in self.parts]
        while any(left):
            await rest(self.chance.choice((0, 1, 5, 60)))
            number = self.chance.choice([number for number, part in enumerate(left) if part])
            size = self.chance.randint(1, 5)
            self._append(number, left[number][:size])
            del left[number][:size]
        if flood is not None:
            await self._flood(flood)
        for stream in self.scenario.pipeline.inputs().values():
            self.environment.end_stream(stream)

    async def _flood(self, number: int) -> None:
        """Have always more in one partition, of the stream that is read first, until nothing else waits."""
        pipeline, more = self.scenario.pipeline, 0
        first = max(pipeline.inputs(), key=pipeline.priority)
        flooded, second = (pipeline.inputs()[first], number), first != 0
        while True:
            behind = self.outcome.behind()
            waiting = [f"{stream}[{other}]" for stream, other in behind if (stream, other) != flooded]
            if not waiting:
                return
            end = self.environment.offsets(*flooded).end
            if end - behind.get(flooded, end) < BACKLOG:
                if more > MOST_FLOODED:
                    raise Starved(f"{', '.join(waiting)} wait while {more} records of partition {number} were read")
                at = max((event.at for event in self.parts[number]), default=0)
                key = keys_of(number, len(self.parts))[0]
                drawn = [3 * self.chance.randint(0, 330) + (not second) for _ in range(FLOOD)]
                events = [Event(each, key, at) for each in drawn]
                self.parts[number] += events
                more += len(events)
                self._append(number, events)
            await rest(2)

    def _append(self, number: int, events: list[Event]) -> None:
        self.tell(f"{len(events)} records come in partition {number}")
        for stream, parts in self.scenario.pipeline.split([events]).items():
            if parts[0]:
                append_rows(self.environment, stream, number, stored(parts)[0])

    def _at_turn(self, turns: int) -> None:
        now_s = self.loop.time() if hasattr(self, "loop") else 0.0
        if self.directory.version != self._seen_version:
            self._seen_version, self._moved_s = self.directory.version, now_s
        elif now_s - self._moved_s > PATIENCE_S:
            raise Stuck(f"nothing was committed for {PATIENCE_S:.0f} s, and there is work left: {self._work_left()}")
        for life in self.lives:
            life.turn(turns)

    def _work_left(self) -> str:
        ends = self.outcome.ends()
        return ", ".join(
            f"{stream}[{number}] at {at} of {ends[stream, number]}"
            for (stream, number), at in self.outcome.behind().items()
        )

    async def _see_the_dead_off(self) -> None:
        left = [life.driving for life in self.lives if life.driving is not None and not life.driving.done()]
        if left:
            await asyncio.wait(left)
        for life in self.lives:
            if life.driving is not None and not life.driving.cancelled():
                life.driving.exception()

    def _graph(self) -> Graph:
        pipeline = self.scenario.pipeline
        if self.scenario.jumps is None and not any(node.poison == "once" for node in pipeline.nodes):
            built = _built(pipeline)
            built.pace.seed(self.scenario.seed)
            built.world, self._plans = self, built.plans
            return built.graph
        app = build(pipeline, None, self.scenario.seed, opened=self.on_open, on_read=self.on_read, on_sink=self.on_sink)
        if self.scenario.jumps is not None:
            self._add_ticker(app)
        return app.graph()

    def on_open(self, resource: Resource) -> None:
        """See a function being opened."""
        self.opened.append(resource)

    def on_read(self) -> None:
        """See a record being read."""
        self.loop.work(self.scenario.work_ms / 1_000)

    def on_sink(self, place: int, event: Event) -> None:
        """See an event where a sink puts it."""
        self.sunk[place, event] += 1

    def _add_ticker(self, app: App) -> None:
        """Have a task be called every so often, which must not happen more often when the wall clock jumps."""

        def tick(context: Any) -> None:
            owner, now_ms = (len(self.lives), context.task), self.clock.elapsed_ms()
            since_ms = now_ms - self._ticks.get(owner, -TICK_MS)
            assert since_ms > TICK_MS - 1, f"a timer of {TICK_MS} ms was called again after {since_ms:.1f} ms"
            self._ticks[owner] = now_ms

        ticked = app.input("ticked", value=int)
        app.task(ticked, lambda message, context: None, op_id="ticker", window=every(tick, seconds=TICK_MS / 1_000))


class _Built:
    """A pipeline whose functions remember nothing, and which can serve one world after the other."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pace = random.Random()
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.world: World | None = None
        self.graph = build(
            pipeline, None, self.pace, opened=self._on_open, on_read=self._on_read, on_sink=self._on_sink
        ).graph()

    def _on_open(self, resource: Resource) -> None:
        assert self.world is not None
        self.world.on_open(resource)

    def _on_read(self) -> None:
        assert self.world is not None
        self.world.on_read()

    def _on_sink(self, place: int, event: Event) -> None:
        assert self.world is not None
        self.world.on_sink(place, event)


_built = lru_cache(maxsize=100)(_Built)
