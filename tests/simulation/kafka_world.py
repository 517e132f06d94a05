"""Plays a scenario on a simulated Kafka: lives of a process on two hosts, and checks of all that is ever committed."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from planner.model.virtual_tasks import VirtualTask, is_task
from runtime.commit.commit import STATE
from runtime.model.assignment import Scale
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.clock import LoopClock
from runtime.model.errors import EnvironmentFault, Fenced, SamzaError
from runtime.opening.opening import open_application
from runtime.ports.commits import Commit
from runtime.ports.streams import StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.state.changelog import TaskState
from runtime.systems.kafka.state.ledger import ledger_of
from samza_dsl import App
from samza_dsl.testing.environment import Crash
from tests.building import build
from tests.simulation.check import Outcome, Shares
from tests.simulation.crash import NOW_MS, append_rows, fill
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import DEAD, DYING, LOST, PROCESS, UNHEARD, Cluster, Died, Record, Trouble
from tests.simulation.loop import rest, simulate
from tests.simulation.scenario import Fault, Scenario
from tests.strategies import APP, Event, stored, tables

HOSTS = "here", "there"
LOOK_MS = 10.0
"""How often a run looks whether it is asked for another factor: these are short."""
COME_EVERY = 20
"""After how many turns of the loop more records come, where not all are there before."""
LOOK_EVERY = 50
"""After how many turns of the loop the state of tasks is looked at."""
TROUBLES = {"killed": (DYING, DEAD), "fails": (LOST, UNHEARD)}
MOST_LIVES = 4
"""How many more lives than faults it may take: what has struck may be told in the next one."""
ENDED_S = 30.0
"""After how long nothing is left of clients that do not stop when they are told to."""
MEMORY = Path("/dev/shm")
"""Where files lie in memory, on systems that have such a place: a disk takes longer than all else."""


class KafkaWorld:
    """All that there is in one simulation: a cluster, two hosts, and a process that lives on either."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.struck: Counter[str] = Counter()
        self.chance = random.Random(scenario.seed)
        self.cluster = Cluster(scenario.seed)
        self.shares = Shares()
        self.sunk: Counter[tuple[int, Event]] = Counter()
        self.asks = [*scenario.asks]
        self.wrong: BaseException | None = None
        """What was found while somebody else was asking, who would take it for a broker's trouble."""
        self.others = copy_context()
        """In which others than the process ask."""
        self.others.run(PROCESS.set, "others")

    def play(self) -> None:
        """Play it to its end; raises what is wrong."""
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
            simulated(self.cluster) as thread,
        ):
            self.folder = Path(folder)
            self.arriving = self.others.run(Arriving, self.scenario, self.folder, self.cluster)
            while self.arriving.left and not self.scenario.arriving:
                self.others.run(self.arriving.come, None)
            self.environment = self.arriving.environment
            self.cluster.committed = self._on_commit
            with patch("runtime.run.scaling.FAR_LOOK_MS", LOOK_MS):
                self._live()
            self.cluster.committed = None
            self.others.run(self.environment.close)
            self._check_end()
            thread.catch_up(self.cluster.loop.time() + ENDED_S)  # what ends by itself must leave nothing open

    def tell(self, what: str) -> None:
        """Note what happens."""
        if self.trace is not None:
            self.trace.append(f"{self.cluster.loop.time():9.4f} s  {what}")

    def app(self) -> App:
        """Return the application, whose sinks are watched."""

        def see(place: int, event: Event) -> None:
            self.sunk[place, event] += 1

        return build(self.scenario.pipeline, self.scenario.options, self.scenario.seed, on_sink=see)

    def ask(self, factor: int) -> None:
        """Ask for tasks that are split by a factor."""
        with untroubled(self.cluster):
            self.environment.ask_scale(APP, Scale(factor))

    def take_over(self) -> None:
        """Have the application be another process's, which splits its tasks otherwise and goes."""
        environment = opened(self.folder / "other", "other")
        pipeline = self.app().pipeline()
        factor = self.chance.choice((1, 2, 4))
        pipeline = replace(pipeline, options=msgspec.structs.replace(pipeline.options, elasticity=factor))
        open_application(environment, pipeline, {}).bindings.close()
        environment.close()

    def check_state(self, environment: KafkaEnvironment) -> None:
        """Check that what tasks have on a host is what was committed of their keys."""
        tasks = environment._state.tasks(APP)
        check_entries(self.cluster, {task: environment._state._tasks[APP, task] for task in tasks})

    def _on_commit(self, written: Mapping[tuple[str, int], Sequence[Record]]) -> None:
        """See what a transaction has written that is committed, whoever hears of it."""
        said = {(one.key or b":").decode(): one.value for one in written.get((ledger_of(APP), 0), ())}
        tasks = {name: value for name, value in said.items() if is_task(name) or name == STATE}
        checkpoints = {
            name: msgspec.msgpack.decode(value, type=Checkpoint) for name, value in tasks.items() if value is not None
        }
        commit = Commit(APP, 0, [], [], checkpoints, gone=[name for name, value in tasks.items() if value is None])
        self.tell(f"committed: {', '.join(checkpoints)}; gone: {', '.join(commit.gone)}")
        try:
            self.shares.note(commit)
            counted = {name: self._counted(one) for name, one in checkpoints.items()}
            self._outcome(self.environment).note(commit._replace(checkpoints=counted))
        except AssertionError as error:
            self.wrong = self.wrong or error
        self.struck["split or merged"] += bool(commit.gone)

    def _counted(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with the numbers of records that are read: markers of transactions take offsets, too."""
        inputs = self.scenario.pipeline.inputs().values()

        def records(at: Position) -> int:
            log = self.cluster.partition(at.stream, at.partition).log
            return sum(one.record is not None for one in log[: at.offset])

        read = [one for one in checkpoint.positions if one.stream in inputs]
        return Checkpoint(0, tuple(msgspec.structs.replace(one, offset=records(one)) for one in read))

    def _live(self) -> None:
        faults = [*self.scenario.processes[0]]
        for number, fault in enumerate([*faults, *[None] * MOST_LIVES]):
            came = Life(self, number, fault).live()
            if self.wrong is not None:
                raise self.wrong
            if came:
                return
        raise AssertionError("it does not come to its end")

    def _outcome(self, environment: Any) -> Outcome:
        return Outcome(self.scenario.pipeline, self.scenario.parts, environment, sunk=self.sunk, is_split=True)

    def _check_end(self) -> None:
        """Compare results with what the records say, and state as changelogs alone bring it back."""
        self.cluster.troubles = []
        environment = opened(self.folder / "anew")
        outcome = self._outcome(environment)
        self._check_ledger()
        if self.scenario.options.guarantee == "exactly_once":
            environment.own(APP)
            expected = outcome.check_results()
            assert outcome.counts() == expected.counts
            assert self.sunk >= expected.sunk, "sinks"
            left = [store for store, _ in environment.state_stats(APP) if store.startswith("window")]
            assert left == [], "windows are open after the end of all streams"
        else:
            outcome.check_all_sent()  # where all was read there may lie markers behind
        environment.close()

    def _check_ledger(self) -> None:
        """Check that versions before elasticity can read the ledger where tasks are whole: they know no other names."""
        partition = self.cluster.partition(ledger_of(APP), 0)
        written = [one.record for at, one in enumerate(partition.log) if at not in partition.aborted]
        names = {one.key: one.value for one in written if one is not None and one.key is not None}
        said = [key.decode().rpartition(":")[2] for key, value in names.items() if value is not None]
        parts = [name for name in said if is_task(name) and "-" in name]
        assert not parts or any(key.decode() in parts for key, value in names.items() if value is not None), parts


class Life:
    """From the start of a process to its end."""

    def __init__(self, world: KafkaWorld, number: int, fault: Fault | None) -> None:
        self.world, self.number, self.fault = world, number, fault
        self.host = world.chance.choice(HOSTS)
        self.struck = ""
        self.driving: asyncio.Task[None] | None = None
        self.environment: KafkaEnvironment | None = None

    def live(self) -> bool:
        """Run the application, and return whether it has come to its end; raises what no fault explains."""
        world, cluster = self.world, self.world.cluster
        cluster.changes, cluster.troubles = 0, []
        if self.fault is not None and self.fault.kind in TROUBLES:
            cluster.troubles = [Trouble(self.fault.number, world.chance.choice(TROUBLES[self.fault.kind]))]
        try:
            self.environment = opened(world.folder / self.host, self.host)
            watch = world.tell if world.trace is not None else None
            simulate(self._main, world.scenario.seed + self.number, self._at_turn, watch)
            self.environment.close()
        except (Crash, Died, SamzaError, asyncio.CancelledError) as error:
            if not self._explains(error):
                raise
            world.tell(f"life {self.number} ends with {error!r}")
            self._end(isinstance(error, SamzaError | asyncio.CancelledError))
            return False
        assert self.struck != "cancelled", "it went on to its end although it was cancelled"
        return True

    def _explains(self, error: BaseException) -> bool:
        cluster, fault = self.world.cluster, self.fault
        if fault is not None and fault.kind in TROUBLES and not cluster.troubles:
            self.world.struck[fault.kind] += 1
            return isinstance(error, Died | EnvironmentFault)
        expected = {"dies": Crash, "cancelled": asyncio.CancelledError, "fenced": Fenced}.get(self.struck, ())
        return isinstance(error, expected)

    def _end(self, is_alive: bool) -> None:
        """Have the process be gone; one that has failed may still die as it closes."""
        cluster, environment = self.world.cluster, self.environment
        is_alive = is_alive and PROCESS.get() not in cluster.dead  # who dies may hear of it first
        try:
            if is_alive and environment is not None:
                environment.close()
        except Died:
            is_alive = False
        if not is_alive and environment is not None:
            die(cluster, environment)
        cluster.dead.discard(PROCESS.get())

    async def _main(self) -> None:
        world = self.world
        how = RunSettings(clock=LoopClock(NOW_MS))
        assert self.environment is not None
        run = Run(world.app().pipeline(), self.environment, how)
        asking = asyncio.create_task(self._ask(), context=world.others.copy())
        self.driving = asyncio.create_task(run.drive())
        try:
            await self.driving
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    async def _ask(self) -> None:
        """Ask for tasks that are split, or merged."""
        world = self.world
        while world.asks:
            await rest(world.asks[0][0])
            factor = world.asks.pop(0)[1]
            world.tell(f"each task is to be split into {factor}")
            world.ask(factor)

    def _at_turn(self, turn: int) -> None:
        world, fault = self.world, self.fault
        if world.wrong is not None:
            raise world.wrong
        if turn % COME_EVERY == 0 and world.arriving.left:
            world.others.run(world.arriving.come)
        assert self.environment is not None
        if turn % LOOK_EVERY == 0:
            world.check_state(self.environment)
        if fault is None or not fault.at_turn or self.struck or turn < fault.number:
            return
        if self.driving is None or self.driving.done() or APP not in self.environment._owners:
            return
        self.struck = fault.kind
        world.struck[fault.kind] += 1
        world.tell(f"life {self.number} is struck: {fault.kind}")
        if fault.kind == "dies":
            raise Crash
        if fault.kind == "cancelled":
            self.driving.cancel()
        else:
            world.others.run(world.take_over)


class Arriving:
    """The records of a world, which come by and by while its application runs."""

    def __init__(self, world: Any, folder: Path, cluster: Cluster) -> None:
        self.cluster, self.chance = cluster, random.Random(world.seed)
        self.environment = opened(folder / "filling")
        self.left: dict[tuple[str, int], Any] = {}
        for stream, parts in world.pipeline.split(world.parts).items():
            self.environment.create_stream(stream, StreamConfig(partitions=len(parts)))
            self.left |= {(stream, partition): rows for partition, rows in enumerate(stored(parts))}
        for stream, rows in tables(world.pipeline).items():
            fill(self.environment, stream, rows)

    def come(self, most: int | None = 3) -> None:
        """Have some more come, all of a partition where no number is said; in the end say that there are no more."""
        some = [place for place, rows in self.left.items() if rows]
        with untroubled(self.cluster):
            if some:
                place = self.chance.choice(some)
                size = len(self.left[place]) if most is None else self.chance.randint(1, most)
                append_rows(self.environment, *place, self.left[place][:size])
                self.left[place] = self.left[place][size:]
            elif self.left:
                for stream in sorted({stream for stream, _ in self.left}):
                    self.environment.end_stream(stream)
                self.left = {}


@contextmanager
def untroubled(cluster: Cluster) -> Iterator[None]:
    """Have nothing go wrong in what is done in a block, which is beside what is looked at."""
    changes, troubles, cluster.troubles = cluster.changes, cluster.troubles, []
    try:
        yield
    finally:
        cluster.changes, cluster.troubles = changes, troubles


def check_entries(cluster: Cluster, tasks: Mapping[VirtualTask, TaskState], are_copies: bool = False) -> int:
    """Check that what lies somewhere of tasks is what was committed up to there; return how many entries they have."""
    entries = 0
    for task, one in tasks.items():
        for name, topic in cluster.topics.items():
            store = name.removeprefix(f"{APP}-").removesuffix("-changelog")
            partition = topic.partitions[one.partition % len(topic.partitions)]
            place = next((place for place in one.positions if place.startswith(f"{store}/")), None)
            if not name.endswith("-changelog") or place is None:
                continue
            committed, at = {}, one.positions[place]
            assert at <= (partition.stable if are_copies else partition.end), "it is ahead of what is committed"
            for offset, written in enumerate(partition.log[: at - partition.start], partition.start):
                if written.record is not None and offset not in partition.aborted:
                    of, key = written.record.key[:4], written.record.key[4:]
                    if int.from_bytes(of, "big") == task.base and one.has(store, key):
                        committed[key] = written.record.value
            held, kept = dict(one.entries(store)), {key: value for key, value in committed.items() if value is not None}
            assert held == kept, f"{task.name}: {store}"
            entries += len(held)
    return entries
