"""Tasks that are split and merged from run to run: what all of them come to is what the records say."""

import asyncio
import sys
from collections import Counter
from contextlib import closing
from itertools import combinations
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_options

from operators.core.base import Batch
from operators.partition_by import bucket_of
from planner.checks.splitting import splittable
from planner.model.errors import PlanError
from planner.model.levers import Levers
from planner.model.virtual_tasks import VirtualTask, is_task
from runtime.commit.commit import Committer
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Bytes, Tagged
from runtime.job.job_model import HASH, JOB, job_of
from runtime.model.assignment import REFUSED, Scale
from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.clock import LoopClock, SystemClock, sleep_ms
from runtime.model.errors import Grown, SamzaError
from runtime.opening.rescaling import rescaled, scalings
from runtime.ports.commits import Commit
from runtime.ports.store import StorePlace
from runtime.ports.streams import Append, Control, StreamConfig
from runtime.reading.sieve import KeyShare, Sieve
from runtime.reading.taken import Taken
from runtime.reading.watermarks import ProducerWatermarks
from runtime.run import scaling
from runtime.run.run import Run, run_blocking
from runtime.run.settings import RunSettings
from runtime.stores.cache import CachedStore
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, count, produce, tumbling
from tests.building import APP, build
from tests.runtime.test_laws import World, crash_points, worlds
from tests.scale import examples, scale
from tests.simulation.crash import memory, run_once, run_through
from tests.simulation.loop import rest, simulate
from tests.strategies import Event, Node, Pipeline

FACTORS = st.lists(st.sampled_from((1, 2, 4)), min_size=2, max_size=5)


def can_be_split(world: World) -> bool:
    partitions = {name: config.partitions for name, config in world.environment.streams().items()}
    return not splittable(build(world.pipeline).plan(partitions))


def factored(world: World, factors: list[int], crashes, on_commit=lambda: None, **how):
    """Run a world through crashes, each life with the next factor."""
    world.outcome.is_split = True
    lives = iter([*factors, *[factors[-1]] * len(crashes)])

    def app():
        options = with_options(world.options, elasticity=next(lives))
        return build(world.pipeline, options, world.seed, on_sink=see)

    def see(place, event):
        world.outcome.sunk[place, event] += 1

    def note(commit):
        world.outcome.note(commit)
        on_commit()

    return run_through(app, world.environment, crashes, world.seed, note, **how)


@given(worlds(), FACTORS, st.lists(crash_points, min_size=1, max_size=4), st.booleans())
@settings(max_examples=examples(100, 20_000))
def test_whatever_the_factors_from_run_to_run_the_end_is_that_of_the_records(world, factors, crashes, relays):
    assume(can_be_split(world))
    factored(world, factors, crashes, levers=Levers(relays=relays))
    world.outcome.check_end()
    if world.options.commit_by != "task":
        world.outcome.check_gone()


def split_live(world: World, asks: dict[int, int], crashes, relays: bool):
    """Run a world in which a factor is asked for behind commits, and compare all that it leaves with the records."""
    world.outcome.is_split = True
    commits = 0

    def ask():
        nonlocal commits
        commits += 1
        if commits in asks:
            world.environment.ask_scale(APP, Scale(asks[commits]))

    with patch("runtime.run.scaling.LOOK_MS", 1.0):  # so that what is asked for is taken up before a short run ends
        world.run(crashes, lambda commit: ask(), levers=Levers(relays=relays))
    world.outcome.check_end()


ASKS = st.dictionaries(st.integers(1, 8), st.sampled_from((1, 2, 4)), min_size=1)


@pytest.mark.parametrize("kinds", [(), ("partition_by", "window"), ("partition_by", "process", "window")])
@given(st.data(), ASKS, st.lists(crash_points, max_size=3), st.booleans())
@settings(max_examples=scale(10, 36, 20_000))  # with fewer one of `tests.bite` gets away
def test_tasks_that_are_split_and_merged_while_they_run_come_to_what_the_records_say(
    kinds, data, asks, crashes, relays
):
    world = data.draw(worlds(kinds, commit_by=(None, "container")))
    assume(can_be_split(world))
    split_live(world, asks, crashes, relays)


ENDING = Pipeline(
    nodes=(Node("input"), Node("partition_by", (0,)), Node("process", (1,)), Node("partition_by", (0,))),
    partitions=1,
    disorder_ms=0,
    nulls=False,
    policy="skip",
)
"""What counts by key in a second stage, and tells by a timer that the end has come."""


@pytest.mark.parametrize("relays", [False, True])
@pytest.mark.parametrize("records", [1, 4])
@pytest.mark.parametrize("factors", [(2, 1, 2), (4, 2, 4)])
def test_the_end_is_told_also_by_tasks_whose_names_were_there_before(records, factors, relays):
    events = [Event(number, f"k{number % 3}", number) for number in range(records)]
    options = Options(commit_interval_ms=5, batch_records=1, max_in_flight=1, max_uncommitted=1)
    asked = [*combinations(range(1, 8), len(factors))]
    for commits in Random(records).sample(asked, scale(4, 12, len(asked))):
        split_live(World(ENDING, [events], 0, options), dict(zip(commits, factors, strict=True)), (), relays)


POSITIONS = st.builds(
    Position,
    st.just("log"),
    st.sampled_from(("clicks", "between")),
    st.integers(0, 2),
    st.integers(0, 99),
    producers=st.dictionaries(st.sampled_from(("0", "1")), st.integers(0, 99)),
)


def at_rest(positions: list[Position]) -> dict[str, Checkpoint]:
    """Return the checkpoints of base tasks that have read so far, each its own partition."""
    places = {(one.stream, one.partition): one for one in positions}
    tasks: dict[int, list[Position]] = {}
    for _, one in sorted(places.items()):
        tasks.setdefault(one.partition, []).append(one)
    return {str(task): Checkpoint(0, tuple(found)) for task, found in tasks.items()}


@given(st.lists(POSITIONS, min_size=1), st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=4))
def test_a_checkpoint_that_is_split_and_merged_at_rest_is_the_one_before(positions, factors):
    before = now = at_rest(positions)
    for factor in (*factors, 1):
        found = rescaled(now, factor)
        now = now if found is None else found.checkpoints
        assert {VirtualTask.of(name).factor for name in now} == {factor}
    assert now == before


KEYS = st.lists(st.none() | st.sampled_from([b"%d" % number for number in range(12)]), min_size=4, max_size=12)
MOVES = st.tuples(st.just("read"), st.integers(0, 7), st.integers(1, 4))
CHANGES = st.tuples(st.just("rescale"), st.sampled_from((1, 2, 4, 8)), st.just(0))


@given(KEYS, st.lists(MOVES | MOVES | CHANGES, min_size=8, max_size=30), st.booleans())
@settings(max_examples=examples(300, 20_000))
def test_whatever_is_split_and_merged_wherever_tasks_are_each_record_is_processed_once(keys, steps, by_key):
    batch = Batch([b""] * len(keys), keys=keys, offsets=range(len(keys)))
    now, seen = {"0": Checkpoint(0, (Position("log", "clicks", 0, 0),))}, Counter()
    for what, number, most in steps:
        if what == "rescale":
            found = rescaled(now, number)
            now = now if found is None else found.checkpoints
        else:
            name = sorted(now)[number % len(now)]
            now[name], rows = read_on(batch, name, now[name], most, by_key)
            seen.update(rows)
    for name, checkpoint in now.items():
        seen.update(read_on(batch, name, checkpoint, len(keys), by_key)[1])
    assert seen == dict.fromkeys(range(len(keys)), 1)


def read_on(batch: Batch, name: str, checkpoint: Checkpoint, most: int, by_key: bool) -> tuple[Checkpoint, list[int]]:
    """Let a task read so many rows from where it is; return where it is then, and which ones it has processed."""
    (own,) = (one for one in checkpoint.positions if one.bucket == "all")
    ahead = [one for one in checkpoint.positions if one is not own]
    sieve = Sieve(KeyShare(VirtualTask.of(name), by_key), ahead, KeySerde(Bytes()))
    end = min(own.offset + most, len(batch))
    rows = batch.slice(own.offset, end)
    found = sieve.sift(Taken(rows, rows, [], end, 0))
    now = (with_options(own, offset=end), *sieve.ahead_of(end))
    return Checkpoint(0, now), [*(found.batch.offsets or ())]


@pytest.mark.parametrize(
    "position", [Position("log", "clicks", 0, 10), Position("log", "clicks", 0, 20, bucket="1/4")], ids=["own", "ahead"]
)
def test_where_a_task_is_after_a_split_is_what_its_checkpoint_says_and_not_what_one_of_its_name_had_read(position):
    app, environment = App(APP, Options(elasticity=4)), memory()
    app.input("clicks", value=int).send_to(app.output("out"))
    generation = environment.own(APP)
    committer = Committer(APP, generation, SimpleNamespace(environment=environment), SystemClock(), {}, {})
    plan = app.plan({"clicks": 1})
    for reached in (Position("log", "clicks", 0, 20), position):  # a merge begins where the last of its parents is
        checkpoints = {"0-1-4": Checkpoint(generation, (reached,))}
        environment.commit(Commit(APP, generation, [], [], checkpoints))
        committer.share(plan)
    assert committer.reached == ({("0-1-4", "clicks", 0): 10} if position.bucket == "all" else {})


def test_a_task_says_again_how_far_event_time_is_where_one_of_its_name_has_said_so_before_a_merge():
    app, environment = App(APP, Options(elasticity=4)), memory()
    app.input("clicks", value=int).send_to(app.output("out"))
    generation = environment.own(APP)
    committer = Committer(APP, generation, SimpleNamespace(environment=environment), SystemClock(), {}, {})
    committer._note({"between": [Control("0-1-4", 99, generation)]})
    assert committer._told
    committer.share(app.plan({"clicks": 1}))
    assert not committer._told


PLACES = st.integers(0, 9).map(lambda number: b"%d" % number)
TOUCHES = st.tuples(st.integers(0, 3), st.sampled_from(("put", "delete", "drop", "commit")), PLACES, PLACES)


@given(st.lists(TOUCHES, min_size=8, max_size=30), st.sampled_from((0, 1, 100)))
def test_virtual_tasks_that_keep_their_entries_in_one_place_find_and_drop_their_own(touches, cache_entries):
    environment, tasks = memory(), [VirtualTask(0, bucket, 4) for bucket in range(4)]
    generation = environment.own(APP)
    stores = [
        CachedStore.open(
            StorePlace(
                environment,
                APP,
                "count",
                0,
                Tagged(),
                cache_entries,
                owns=lambda key, own=own: bucket_of(key, 0, 4) == own,
            )
        )
        for own in range(4)
    ]
    own: list[dict[bytes, int]] = [{} for _ in tasks]
    for at, (which, what, first, last) in enumerate(touches):
        if what in ("put", "delete"):
            which = bucket_of(first, 0, len(tasks))  # who writes an entry is who has its key
        store, entries = stores[which], own[which]
        if what == "put":
            store.put(first, at)
            entries[first] = at
        elif what == "delete":
            store.delete(first)
            entries.pop(first, None)
        elif what == "drop":
            gone = [place for place in entries if first <= place < last]
            assert store.drop(first, last) == len(gone)
            own[which] = {place: number for place, number in entries.items() if place not in gone}
        elif what == "commit":
            environment.commit(Commit(APP, generation, [], [store.changes()], {}))
            store.committed()
        for one, expected in zip(stores, own, strict=True):
            assert dict(one.range()) == expected


@given(
    st.dictionaries(st.sampled_from(("0", "1")), st.integers(0, 50), min_size=2),
    st.lists(st.tuples(st.sampled_from(("hear", "split", "merge")), st.integers(0, 9), st.integers(0, 99)), min_size=8),
    st.booleans(),
)
def test_event_time_never_falls_nor_runs_ahead_while_producers_are_split_and_merged(known, steps, are_idle):
    producers = ProducerWatermarks(known, known)
    said = {(VirtualTask.of(name).base, bucket): at for name, at in known.items() for bucket in range(8)}
    for what, which, at in steps:
        names, before = sorted(producers.by_producer), producers.value
        task = VirtualTask.of(names[which % len(names)])
        if what == "hear":
            producers.take(Control(task.name, at, idle=are_idle and which % 2 == 0))
            for bucket in range(task.bucket, 8, task.factor):
                said[task.base, bucket] = max(said[task.base, bucket], at)
        elif what == "split" and task.factor < 8:
            buckets = (task.bucket, task.bucket + task.factor)
            producers.hand_over(task.name, [VirtualTask(task.base, one, task.factor * 2).name for one in buckets])
        elif what == "merge" and task.factor > 1:
            half = task.factor // 2
            heir = VirtualTask(task.base, task.bucket % half, half).name
            for bucket in (task.bucket % half, task.bucket % half + half):
                producers.hand_over(VirtualTask(task.base, bucket, task.factor).name, [heir])
        assert producers.value >= before
        assert are_idle or producers.value <= min(said.values()), "no key's task has come so far"


async def until(done):
    """Let the loop turn until something is so."""
    while not done():
        await sleep_ms(1)


def test_tasks_are_split_on_the_log_while_they_run_and_where_it_is_asked_of_an_application_at_rest(tmp_path):
    app = App("spend", Options(commit_interval_ms=20))
    clicks = app.input("clicks", value=dict, timestamp=lambda one: one["at"])
    counts = clicks.partition_by(lambda one: one["user"]).window(tumbling(seconds=1), count())
    counts.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts", value=list))

    def click(start):
        rows = [{"user": f"u{at % 7}", "at": at} for at in range(start, start + 5_000)]
        produce("clicks", rows, data=tmp_path)

    async def main():
        async with app.running(data=tmp_path) as run:
            assert (run.metrics().job.tasks, run.metrics().job.checkpoints_ms) == (1, None)
            assert [one.hash_ms for one in run.metrics().tasks] == [0], "whoever has a partition alone hashes nothing"
            for start, factor in ((0, 4), (5_000, 2), (10_000, 8)):
                click(start)
                await run.settled()
                with closing(LogEnvironment(tmp_path)) as log:
                    log.ask_scale("spend", Scale(factor))
                await until(lambda factor=factor: run.plan.options.factor == factor)
                told = run.metrics().job
                assert (told.tasks, told.model_ms > 0, told.checkpoints_ms > 0) == (factor, True, True)
            click(15_000)
            await run.settled()
            assert len(run.tasks) == 8
            parts = run.metrics().tasks
            assert all(one.read_ms > 0 for one in parts), "siblings read together, and each asks for what is read"
            assert sum(one.hash_ms for one in parts) > 0
            return run.received("counts")

    found = asyncio.run(main())
    assert len(found) == len({(user, start) for user, start, _ in found}) == 7 * 19
    assert sum(number for _, _, number in found) == 19_000
    with closing(LogEnvironment(tmp_path)) as log:
        assert [(one.before, one.now) for one in scalings(log.checkpoints("spend"))] == [(1, 4), (4, 2), (2, 8)]
        log.ask_scale("spend", Scale(1))
        log.end_stream("clicks")
    app.run(data=tmp_path)
    with closing(LogEnvironment(tmp_path)) as log:
        assert {name for name in log.checkpoints("spend") if is_task(name)} == {"0"}


def test_a_pipeline_that_cannot_be_split_is_refused_and_a_run_that_is_asked_to_goes_on_as_it_was(tmp_path, caplog):
    app = App("spend", Options(commit_interval_ms=20))
    numbers = app.input("numbers", value=int, key=str, timestamp=lambda one: one)
    numbers.deduplicate(lambda one: one // 3, within_ms=9, op_id="lately").send_to(app.output("counts"))
    split = App("split", Options(elasticity=2))
    lately = split.input("numbers", value=int, key=str, timestamp=lambda one: one)
    lately.deduplicate(lambda one: one // 3, within_ms=9, op_id="lately").send_to(split.output("counts"))
    with pytest.raises(PlanError, match=r"deduplicate 'lately' at .*test_elasticity.py:\d+: it looks for"):
        split.plan()
    with pytest.raises(PlanError, match=r"test_elasticity.py:\d+: elasticity=3 in Options.*3 is no power of two"):
        App("split", Options(elasticity=3))

    async def main():
        async with app.running(data=tmp_path) as run:
            with closing(LogEnvironment(tmp_path)) as log:
                log.ask_scale("spend", Scale(2))
                await until(lambda: log.asked_scale("spend").why.startswith(REFUSED))
                kept = log.asked_scale("spend")
                assert (kept.factor, kept.number, kept.factor_by) == (1, 1, 1)
                assert "deduplicate 'lately' at " in kept.wrong and "write instead: " in kept.wrong
            assert run.plan.options.factor == 1

    asyncio.run(main())
    assert "its tasks stay as they are" in caplog.text
    with closing(LogEnvironment(tmp_path)) as log:
        log.ask_scale("spend", Scale(2))  # as it is at rest
    with pytest.raises(PlanError, match=r"deduplicate 'lately'(.|\n)*without it: samza-dsl scale spend --factor 1"):
        app.run(data=tmp_path, until_now=True)


def test_what_was_asked_of_a_run_before_is_asked_anew_of_the_next_one(tmp_path):
    """A program that says its factor begins with that; the same size as of the run before is another request."""
    app = App("spend", Options(commit_interval_ms=20, elasticity=2))
    clicks = app.input("clicks", value=int, partitions=1)
    clicks.partition_by(lambda one: one % 7, partitions=1).scan(lambda n, one: (n or 0) + one).send_to(
        app.output("sums")
    )

    async def main():
        for factors in ((2, 4), (2, 4, 1)):
            async with app.running(data=tmp_path) as run:
                assert run.plan.options.factor == factors[0]
                for factor in factors[1:]:
                    with closing(LogEnvironment(tmp_path)) as log:
                        log.ask_scale("spend", Scale(factor))
                    await until(lambda factor=factor, run=run: run.plan.options.factor == factor)
                produce("clicks", range(100), data=tmp_path)
                await run.settled()

    asyncio.run(main())


@pytest.mark.parametrize("is_keyed", [False, True], ids=["by itself", "with its state"])
@pytest.mark.parametrize("is_in_between", [False, True], ids=["before", "in between"])
def test_a_run_that_begins_anew_keeps_the_size_that_was_asked_of_it(is_keyed, is_in_between, monkeypatch):
    """A request that comes between two lives of a run is one of that run, too; nothing is read meanwhile."""
    monkeypatch.setattr("runtime.run.scaling.LOOK_MS", 1.0)
    monkeypatch.setattr("runtime.run.driver.GROWN_MS", 0.0)
    app, environment, factors = App("spend", Options(commit_interval_ms=5, elasticity=2)), memory(), []
    clicks = app.input("clicks", value=int, key=str)
    summed = clicks.scan(lambda n, one: n + one, init=int) if is_keyed else clicks.map(lambda one: one)
    summed.send_to(app.output("sums"))
    environment.create_stream("clicks", StreamConfig(partitions=1))

    async def watch(run):
        factors.append(run.plan.options.factor)
        if environment.streams()["clicks"].partitions == 1:
            if not is_in_between:
                environment.ask_scale("spend", Scale(4))
                await until(lambda: run.plan.options.factor == 4)
            environment.grow_stream("clicks", 2)
            await until(lambda: run.over)
        elif not run.is_moving:
            run.stop()

    check_grown_now = scaling.check_grown

    def check(*about):
        try:
            check_grown_now(*about)
        except Grown:
            if is_in_between:
                environment.ask_scale("spend", Scale(4))
            raise

    monkeypatch.setattr(scaling, "check_grown", check)
    run_blocking(app.pipeline(), environment, watch=watch)
    assert (factors[0], factors[-1]) == (2, 4)
    assert job_of(environment, "spend").factor == 4
    run_blocking(app.pipeline(), environment, RunSettings(until_now=True))
    assert job_of(environment, "spend").factor == 2, "the next run has what the program says"


def test_a_split_before_the_first_commit_is_noted_as_any_other(tmp_path):
    app = App("spend")
    app.input("clicks", value=int, partitions=1).partition_by(lambda one: one, partitions=1).scan(
        lambda n, one: (n or 0) + one
    ).send_to(app.output("sums"))

    async def main():
        async with app.running(data=tmp_path) as run:
            with closing(LogEnvironment(tmp_path)) as log:
                log.ask_scale("spend", Scale(4))
                await until(lambda: run.plan.options.factor == 4)
                assert job_of(log, "spend").factor == 4
                await until(lambda: bool(scalings(log.checkpoints("spend"))))
                told = [(one.before, one.now, one.moved) for one in scalings(log.checkpoints("spend"))]
                assert told == [(1, 4, 0)]

    asyncio.run(main())


class Slow:
    """A function that takes its time to be opened."""

    def __call__(self, value):
        return value

    async def open(self, context):
        await rest(70)


def test_the_history_says_how_long_it_took_until_tasks_went_on():
    app, environment = App(APP), memory()
    environment.create_stream("clicks", StreamConfig(partitions=1))
    app.input("clicks", value=int).map(Slow()).send_to(app.output("seen", value=int))

    async def main():
        run = Run(app.pipeline(), environment, RunSettings(clock=LoopClock(0)))
        driving = asyncio.create_task(run.drive())
        environment.ask_scale(APP, Scale(2))
        while run.plan.options.factor != 2:
            await rest(10)
        run.stop()
        await driving

    simulate(main)
    (split,) = scalings(environment.checkpoints(APP))
    assert (split.before, split.now, split.why) == (1, 2, "asked for")
    assert split.took_ms >= 2 * 70, "two tasks were opened one after the other"


def calls_of_a_run(factor):
    """Return how many calls of the plan and of what makes tasks of it a run has that keeps state in so many parts."""
    app, environment = App(APP, Options(elasticity=factor)), memory()
    environment.create_stream("words", StreamConfig())
    environment.append([Append("words", 0, Batch([b"1"], keys=[b"one"]))])
    sums = app.input("words", value=int, key=str).scan(lambda so_far, one: (so_far or 0) + one, op_id="sums")
    sums.send_to(app.output("seen", value=int))
    calls = 0

    def count_it(frame, event, argument):
        nonlocal calls
        calls += event == "call" and any(one in frame.f_code.co_filename for one in ("planner", "assembly"))

    sys.setprofile(count_it)
    try:
        run_once(app, environment, until_now=True)
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_to_begin_grows_with_the_number_of_parts_and_not_with_its_square():
    once, few, many = map(calls_of_a_run, (32, 128, 512))
    assert many - few < 5 * (few - once), "of four times as many parts each is the same work"


def summing(factor: int) -> App:
    app = App("summing", Options(elasticity=factor))
    words = app.input("words", value=str, key=str).scan(lambda seen, word: seen + 1, init=int, op_id="seen")
    words.send_to(app.output("seen-of", value=int))
    return app


@pytest.mark.parametrize("factor", [1, 2])
def test_tasks_that_were_split_by_another_hash_are_refused(factor, tmp_path):
    produce("words", ["a", "b", "c"], key=str, data=tmp_path)
    summing(factor).run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        job = log.checkpoints("summing")[JOB]
        without = {name: said for name, said in job.meanings.items() if name != HASH}
        earlier = with_options(job, meanings=without, generation=log.own("summing"))
        log.commit(Commit("summing", earlier.generation, [], [], {JOB: earlier}))
    produce("words", ["a"], key=str, data=tmp_path)
    if factor == 1:
        summing(2).run(tmp_path, until_now=True)  # what is whole can be split by any
    else:
        with pytest.raises(SamzaError, match=r"were split by an earlier version.*reset summing --data"):
            summing(2).run(tmp_path, until_now=True)
        summing(2).run(tmp_path, until_now=True, from_start=True, state="reset")
