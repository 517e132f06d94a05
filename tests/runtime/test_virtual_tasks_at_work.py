"""The functional tests that the published design of virtual tasks names, each under its name, on the embedded log."""

import asyncio
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from operators.partition_by import bucket_of
from planner.model.virtual_tasks import is_task
from runtime.encoding.serdes import Json
from runtime.model.assignment import Scale
from runtime.model.clock import sleep_ms
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, produce
from tests.runtime.test_elasticity import FACTORS, can_be_split, factored
from tests.runtime.test_laws import crash_points, worlds
from tests.simulation.crash import rows_of

USERS = [f"u{number}" for number in range(9)]


def write(data, first: int, last: int) -> None:
    clicks = [{"user": USERS[number % len(USERS)], "n": number} for number in range(first, last)]
    produce("clicks", clicks, key=lambda click: click["user"], data=data)


def stateless(**options) -> App:
    app = App("spend", Options(commit_interval_ms=20, **options))
    clicks = app.input("clicks", value=dict, key=str)
    clicks.map(lambda click: [click["user"], click["n"]], op_id="pair").send_to(app.output("seen", value=list))
    return app


def kept(**options) -> App:
    """Return an application that keeps by the key of its input how many came, and emits each with its number."""
    app = App("spend", Options(commit_interval_ms=20, **options))
    clicks = app.input("clicks", value=dict, key=str)
    clicks.scan(
        lambda all, click: [*all, click["n"]], init=list, emit=lambda user, all: [user, len(all), all[-1]], op_id="all"
    ).send_to(app.output("seen", value=list))
    return app


def repartitioned(**options) -> App:
    """Return an application whose second stage has other keys than the first, from a stream of two partitions."""
    app = App("spend", Options(commit_interval_ms=20, **options))
    moved = app.input("clicks", value=dict, key=str).partition_by(
        lambda click: f"k{click['n'] % 5}", partitions=2, op_id="by-n"
    )
    moved.scan(
        lambda all, click: [*all, click["n"]], init=list, emit=lambda key, all: [key, len(all), all[-1]], op_id="all"
    ).send_to(app.output("seen", value=list))
    return app


def seen(data) -> list[list]:
    with closing(LogEnvironment(data)) as log:
        return [Json(list).decode(value) for part in rows_of(log, "seen") for _, value, _ in part]


async def scaled(run, data, factor: int) -> None:
    with closing(LogEnvironment(data)) as log:
        log.ask_scale("spend", Scale(factor))
    while run.plan.options.factor != factor:
        await sleep_ms(5)


async def through_factors(app: App, data, factors, then=lambda run: None) -> None:
    """Write a hundred records, then ask for a factor while they are read, and so on."""
    async with app.running(data=data) as run:
        for round, factor in enumerate(factors):
            write(data, round * 100, round * 100 + 100)
            await scaled(run, data, factor)
            assert run.metrics().job.tasks == len(run.tasks)
        await run.settled()
        then(run)


def test_scale_up_and_scale_down_without_increasing_input_partition_count(tmp_path):
    write(tmp_path, 0, 0)
    asyncio.run(through_factors(stateless(), tmp_path, (4, 1, 2, 1)))
    with closing(LogEnvironment(tmp_path)) as log:
        assert log.streams()["clicks"].partitions == 1
    found = seen(tmp_path)
    assert Counter(number for _, number in found) == Counter(range(400))
    for user in USERS:
        mine = [number for one, number in found if one == user]
        assert mine == sorted(mine), "of each key one comes after the other"


@pytest.mark.parametrize("factor", [2, 8])
def test_stateless_jobs_are_correct_with_no_duplicate_processing_and_respecting_key_buckets(tmp_path, factor):
    write(tmp_path, 0, 0)
    processed = {}

    def note(run):
        processed.update(
            {
                run.plan.virtual(one.task).bucket: one.received
                for one in run.metrics().operators
                if one.operator == "pair"
            }
        )

    asyncio.run(through_factors(stateless(elasticity=factor), tmp_path, (factor,) * 3, note))
    buckets = Counter(bucket_of(USERS[number % len(USERS)].encode(), 0, factor) for number in range(300))
    assert processed == {bucket: buckets[bucket] for bucket in range(factor)}
    assert Counter(number for _, number in seen(tmp_path)) == Counter(range(300))


@given(worlds(("filter", "flat_map", "async", "branch", "partition_by"), "at_least_once"), FACTORS, st.data())
def test_checkpoint_migration_with_scale_up_and_down_upholds_at_least_once(world, factors, data):
    assume(can_be_split(world))
    factored(world, factors, data.draw(st.lists(crash_points, min_size=1, max_size=3)))
    world.outcome.check_nothing_lost()


def test_input_stream_repartition_after_virtual_task_scale_up(tmp_path):
    write(tmp_path, 0, 100)
    kept(elasticity=2).run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        log.grow_stream("clicks", 2)
    write(tmp_path, 100, 200)
    kept(elasticity=2).run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        assert {name for name in log.checkpoints("spend") if is_task(name)} == {"0-0-2", "0-1-2", "1-0-2", "1-1-2"}
    write(tmp_path, 200, 300)
    kept(elasticity=1).run(tmp_path, until_now=True)  # what the partitions bring now, virtual tasks need not
    check_kept(seen(tmp_path), lambda number: USERS[number % len(USERS)])


@pytest.mark.parametrize("factors", [(2, 4, 1), (1, 8, 2)], ids=str)
def test_intermediate_topic_correctness(tmp_path, factors):
    write(tmp_path, 0, 0)
    asyncio.run(through_factors(repartitioned(), tmp_path, factors))
    with closing(LogEnvironment(tmp_path)) as log:
        between = [config.partitions for name, config in log.streams().items() if "by-n" in name]
        assert between == [2], "it stays as it is"
    check_kept(seen(tmp_path), lambda number: f"k{number % 5}")


def check_kept(found: list[list], key_of) -> None:
    """Check that each key's state goes from record to record, each once, whoever has processed them."""
    by_key: dict[str, list[list[int]]] = {}
    for key, count, number in found:
        by_key.setdefault(key, []).append([count, number])
    assert Counter(number for _, _, number in found) == Counter(range(300))
    for key, all in by_key.items():
        assert [count for count, _ in all] == [*range(1, len(all) + 1)]
        assert {key_of(number) for _, number in all} == {key}
