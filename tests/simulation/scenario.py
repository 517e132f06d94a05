"""What one seed stands for: a pipeline, its records, and everything that happens to the processes that run it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from planner.checks.splitting import splittable
from samza_dsl import Options
from tests.building import build
from tests.simulation.clock import HOUR_MS, NIGHTS_MS
from tests.simulation.crash import NOW_MS
from tests.strategies import REPARTITIONS, Event, Node, Pipeline, any_pipeline, any_records, tables

Kind = Literal["crashes", "cancellations", "clock", "small", "rescaling", "rescaling-kafka"]
KINDS: tuple[Kind, ...] = get_args(Kind)

STRETCH = HOUR_MS // 4
SMALL = Pipeline((Node("input"), Node("async", (0,), 2), Node("map", (1,))), 1, 0, False, "skip")
REPEATABLE = (
    *("filter", "flat_map", "async", "async", "branch", "partition_by", "process"),
    *("input", "merge", "broadcast", "sink", "task"),
)
"""What loses nothing when its records are processed again."""
CALM = ("map", "flat_map", "async", "async", "partition_by", "partition_by", "window", "window")
"""What commits in its midst may upset, where they do not wait for what is in flight."""


@dataclass(frozen=True)
class Fault:
    """What ends a life of a process before its time, at its nth turn of the loop or nth step in the directory.

    At a turn it "dies" or is "cancelled"; its lock is lost and it lives on, not knowing ("unlocked"); or another owner
    has come and gone ("fenced"). At a step it is "killed" there, finds the disk "full", or the disk "fails" it.
    """

    kind: Literal["dies", "cancelled", "unlocked", "fenced", "killed", "full", "fails"]
    number: int

    @property
    def at_turn(self) -> bool:
        return self.kind in ("dies", "cancelled", "unlocked", "fenced")


@dataclass(frozen=True)
class Scenario:
    """One simulation, as it can be had again and made smaller.

    `seed` decides the schedule. Every process has its faults, one per life; after the last it runs undisturbed.
    Records are there from the start, or come in `arriving` by and by; then one partition may be a `flood` that has
    always more while another has something left. `jumps` are (after ms, by ms) of the wall clock, which begins at
    `start_ms`; with them, events lie about the night in which summer time changes. Runs are awaited, or they go on
    `beside` the block of an `async with`. To read a record takes `work_ms`. With `bound`, an output is a
    file. Of `asks` each is (after ms, a factor by which tasks are then to be split). It is on a log, or `on_kafka`,
    where a process is killed, or brokers fail it, at the nth request that changes something.
    """

    seed: int
    pipeline: Pipeline
    parts: tuple[tuple[Event, ...], ...]
    options: Options
    processes: tuple[tuple[Fault, ...], ...] = ((),)
    arriving: bool = False
    flood: int | None = None
    jumps: tuple[tuple[int, int], ...] | None = None
    start_ms: int = NOW_MS
    beside: bool = False
    work_ms: float = 0.0
    bound: bool = False
    asks: tuple[tuple[int, int], ...] = ()
    on_kafka: bool = False


def scenario(seed: int, kind: Kind = "crashes") -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(f"{kind} {seed}")
    if kind == "small":
        parts = any_records(chance, SMALL.partitions, most=8)
        faults = _faults(chance, chance.choice((1, 1, 1, 2)), ("dies", "killed"), _length(SMALL, parts))
        return Scenario(seed, SMALL, _frozen(parts), _options(chance), (faults,))
    repeated, calm = chance.random() < 0.2, kind == "crashes" and chance.random() < 0.04
    pipeline = _calm(chance) if calm else any_pipeline(chance, most=5, kinds=REPEATABLE if repeated else ())
    is_rescaled = kind in ("rescaling", "rescaling-kafka")
    while is_rescaled and not _can_be_split(pipeline):
        pipeline = any_pipeline(chance, most=5, kinds=REPEATABLE if repeated else ())
    parts = any_records(chance, pipeline.partitions, most=10, nulls=pipeline.nulls)
    length = _length(pipeline, parts)
    options = _options(chance, "at_least_once" if repeated or calm else "exactly_once")
    arriving = chance.random() < 0.3
    if kind == "cancellations":
        faults = _faults(chance, chance.choice((1, 1, 2)), ("cancelled",), length)
        return Scenario(seed, pipeline, _frozen(parts), options, (faults,), arriving, beside=chance.random() < 0.5)
    if kind == "clock":
        faults = _faults(chance, chance.randint(0, 1), ("dies", "killed"), length)
        night_ms = chance.choice(NIGHTS_MS)
        pipeline = replace(pipeline, disorder_ms=pipeline.disorder_ms * STRETCH)
        parts = [[_stretched(event, night_ms) for event in part] for part in parts]
        start_ms = night_ms - chance.randint(0, 300)
        return Scenario(
            seed, pipeline, _frozen(parts), options, (faults,), arriving, jumps=_jumps(chance), start_ms=start_ms
        )
    if is_rescaled:
        on_kafka = kind == "rescaling-kafka"
        calm_one = Scenario(seed, pipeline, _frozen(parts), options, arriving=arriving, on_kafka=on_kafka)
        return _rescaled(calm_one, chance, length)
    kinds = ["dies", "dies", "killed", "killed", "full", "fails", "fenced", "cancelled"]
    number = chance.choice((1, 1, 2))
    if number > 1:
        kinds += ["unlocked", "unlocked"]
    processes = tuple(_faults(chance, chance.choice((1, 1, 2)), tuple(kinds), length) for _ in range(number))
    work_ms = chance.choice((0.0, 0.5, 3.0))
    flood = None
    if arriving and chance.random() < 0.3:
        flood, work_ms = chance.randrange(pipeline.partitions), 0.5
        options = msgspec.structs.replace(options, batch_records=chance.choice((1, 3)), commit_interval_ms=5)
    bound = number == 1 and chance.random() < 0.3
    if calm:
        processes, options = ((),) * number, msgspec.structs.replace(options, commit_interval_ms=5)
    if not bound and chance.random() < 0.3:
        options = msgspec.structs.replace(options, commit_by="task")
    return Scenario(seed, pipeline, _frozen(parts), options, processes, arriving, flood, work_ms=work_ms, bound=bound)


def _rescaled(what: Scenario, chance: random.Random, length: tuple[float, float]) -> Scenario:
    """Return a scenario with splits and merges, and faults of the process."""
    after_ms = (0, 10, 50, 200) if what.on_kafka else (0, 1, 5, 20, 60)
    asks = tuple((chance.choice(after_ms), chance.choice((1, 2, 4, 8))) for _ in range(chance.choice((1, 2, 3, 5))))
    kinds = ("dies", "dies", "killed", "killed", "killed", "full", "fails", "fenced", "cancelled")
    if what.on_kafka:
        kinds = tuple(kind for kind in kinds if kind != "full")  # what is full there are brokers' disks
    processes = (_faults(chance, chance.choice((1, 2, 3)), kinds, length),)
    options = what.options
    if chance.random() < 0.3:
        options = msgspec.structs.replace(options, commit_by="task")
    if chance.random() < 0.3:
        what = replace(what, parts=tuple(map(_skewed, what.parts)))
    return replace(what, processes=processes, options=options, asks=asks, work_ms=chance.choice((0.0, 0.5, 3.0)))


def _skewed(part: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events of a partition of which half and more have one key."""
    most = next((event.key for event in part if event.key is not None), None)
    return tuple(
        msgspec.structs.replace(event, key=most) if place % 2 and event.key is not None else event
        for place, event in enumerate(part)
    )


@lru_cache(maxsize=1_000)
def _can_be_split(pipeline: Pipeline) -> bool:
    partitions = dict.fromkeys(pipeline.inputs().values(), pipeline.partitions)
    partitions |= {table: len(rows) for table, rows in tables(pipeline).items()}
    return not splittable(build(pipeline).plan(partitions))


def _calm(chance: random.Random) -> Pipeline:
    """Return a pipeline that has all of what is calm."""
    while True:
        pipeline = any_pipeline(chance, most=5, kinds=CALM)
        if {node.kind for node in pipeline.nodes} >= set(CALM) - {"map", "flat_map"}:
            return pipeline


def _length(pipeline: Pipeline, parts: list[list[Event]]) -> tuple[float, float]:
    """Return about how many turns and steps a run takes that nothing disturbs: half of it to twice, as was measured."""
    kinds = [node.kind for node in pipeline.nodes]
    records = 1 + sum(map(len, parts))
    turns = 7 * records**0.5 * 1.7 ** sum(node.awaits for node in pipeline.nodes)
    steps = 14 * (records * len(kinds)) ** 0.45 * 1.6 ** sum(kind in REPARTITIONS for kind in kinds)
    return turns, steps


def _faults(
    chance: random.Random, number: int, kinds: tuple[str, ...], length: tuple[float, float]
) -> tuple[Fault, ...]:
    """Return faults that mostly strike: beyond the end of a run nothing does."""
    faults = []
    for _ in range(number):
        fault = Fault(chance.choice(kinds), 1)  # type: ignore[arg-type]
        most = length[not fault.at_turn] * chance.choice((0.2, 0.3, 0.4, 0.6, 1.2))
        faults.append(replace(fault, number=chance.randint(1, max(int(most), 1))))
    return tuple(faults)


def _stretched(event: Event, night_ms: int) -> Event:
    """Return an event some days about a night, where others lie within a second."""
    return Event(event.number, event.key, night_ms - 36 * HOUR_MS + event.at * STRETCH)


def _jumps(chance: random.Random) -> tuple[tuple[int, int], ...]:
    return tuple(
        (chance.randint(0, chance.choice((10, 50, 500))), chance.choice((-HOUR_MS, HOUR_MS)))
        for _ in range(chance.randint(1, 4))
    )


def _options(chance: random.Random, guarantee: str = "exactly_once") -> Options:
    return Options(
        guarantee=guarantee,  # type: ignore[arg-type]
        batch_records=chance.choice((1, 3, 2_000)),
        max_uncommitted=chance.choice((1, 5, 100_000)),
        max_in_flight=chance.choice((1, 4, 1_000)),
        commit_interval_ms=chance.choice((5, 1_000)),
        cache_entries=chance.choice((0, 1, 100)),
    )


def _frozen(parts: list[list[Event]]) -> tuple[tuple[Event, ...], ...]:
    return tuple(map(tuple, parts))
