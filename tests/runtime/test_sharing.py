"""Whatever containers come, die and go: together they come to what one alone comes to, exactly once."""

import asyncio
import json
import random
from collections import defaultdict
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.loop.loop import Loop
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, Options
from tests.building import build
from tests.runtime.test_laws import crash_points, worlds
from tests.scale import examples
from tests.simulation.containers import Event, run_among
from tests.simulation.crash import fill, memory, rows_of
from tests.simulation.loop import rest

events = st.builds(Event, st.integers(0, 600), st.sampled_from(("is cancelled", "stops")), number=st.integers(0, 3)) | (
    st.builds(Event, st.integers(0, 600), st.just("comes"), st.none() | crash_points)
)

moves = st.builds(
    Event, st.integers(0, 60), st.sampled_from(("comes", "is cancelled", "stops")), number=st.integers(0, 3)
)


def among(world, number, happenings):
    def see(place, event):
        world.outcome.sunk[place, event] += 1

    app = build(world.pipeline, world.options, world.seed, on_sink=see)
    return run_among(app, world.environment, number, happenings, world.seed, world.outcome.note)


@given(worlds(), st.integers(1, 4))
def test_several_containers_come_to_what_the_records_say(world, number):
    among(world, number, ())
    world.outcome.check_end()


@given(worlds(), st.integers(1, 3), st.lists(events, min_size=1, max_size=6))
@settings(max_examples=examples(60, 20_000))
def test_so_do_those_that_come_and_die_and_go(world, number, happenings):
    among(world, number, happenings)
    world.outcome.check_end()


@given(worlds(("process", "async", "partition_by"), "at_least_once"), st.lists(events, min_size=1, max_size=4))
def test_at_least_once_nothing_is_lost_among_them(world, happenings):
    among(world, 2, happenings)
    world.outcome.check_nothing_lost()


@pytest.mark.parametrize("kinds", [("window",), ("window", "partition_by", "window")])
@given(st.data(), st.sampled_from((1, 2, 5)), st.lists(events, max_size=4))
@settings(max_examples=examples(20, 5_000))
def test_a_firing_that_moves_while_it_is_cut_goes_on_where_it_was(kinds, data, most, happenings):
    world = data.draw(worlds(kinds))
    with patch("runtime.task.lane.MOST_FIRED", most):
        among(world, 2, happenings)
    world.outcome.check_end()


@pytest.fixture
def environment():
    return memory()


def counting(options=None, slow=False):
    """Count words by themselves, whichever of four partitions the line is in; a `slow` one takes a second."""

    def count_up(word, context):
        context.state = (context.state or 0) + 1
        return [[word, context.state]]

    async def take_time(line):
        await rest(5)
        return [line]

    app = App("counting", options)
    read = app.input("lines", value=str)
    if slow:
        read = read.async_flat_map(take_time, max_in_flight=1)
    words = read.flat_map(str.split).partition_by(lambda word: word, partitions=4, op_id="by")
    words.process(count_up, op_id="counts").send_to(app.output("counts", partitions=4))
    return app


def lines(environment, number, ended=False):
    environment.create_stream("lines", StreamConfig(partitions=4))
    for partition in range(4):
        batch = Batch([f"a b c d{n % 5}".encode() for n in range(number)])
        environment.append([Append("lines", partition, batch)])
    if ended:
        environment.end_stream("lines")


def newest(environment):
    rows = [value for partition in rows_of(environment, "counts") for _, value, _ in partition]
    assert len(rows) == len(set(rows)), "something was counted twice"
    return len(rows)


@pytest.mark.parametrize("ended", [True, False])
def test_the_end_is_when_nobody_has_anything_left_to_do(environment, ended):
    lines(environment, 20, ended)
    cluster = run_among(counting(Options(batch_records=3)), environment, 3, until_now=not ended)
    assert newest(environment) == 320
    assert cluster.came == 3 and cluster.died == 0


def test_more_containers_than_tasks_stand_by(environment):
    lines(environment, 20, ended=True)
    cluster = run_among(counting(), environment, 7)
    assert newest(environment) == 320
    assert sorted(len(run.metrics().tasks) for run in cluster.ran) == [0, 0, 0, 1, 1, 1, 1]


def test_what_one_that_died_had_is_taken_over(environment):
    lines(environment, 200, ended=True)
    cluster = run_among(counting(slow=True), environment, 2, [Event(500, "is cancelled")])
    assert newest(environment) == 3_200
    assert cluster.died == 1 and cluster.came == 2
    assert sorted(len(run.metrics().tasks) for run in cluster.ran) == [2, 4]


def test_one_that_comes_late_gets_its_share_and_no_count_is_lost(environment):
    lines(environment, 200, ended=True)
    late = [Event(200, "comes"), Event(200, "comes")]
    cluster = run_among(counting(slow=True), environment, 1, late)
    assert newest(environment) == 3_200
    assert sorted(len(run.metrics().tasks) for run in cluster.ran) == [1, 1, 2]
    assert sum(run.metrics().received("counts") for run in cluster.ran) == 3_200


def test_one_that_stops_leaves_its_tasks_to_the_others(environment):
    lines(environment, 200, ended=True)
    cluster = run_among(counting(slow=True), environment, 2, [Event(500, "stops")])
    assert newest(environment) == 3_200
    assert cluster.died == 0
    assert sum(run.metrics().received("counts") for run in cluster.ran) == 3_200


@given(st.lists(moves, min_size=1, max_size=6), st.sampled_from((5, 50, 1_000)), st.integers(0, 999))
@settings(max_examples=examples(20, 2_000))
def test_tasks_that_move_often_lose_nothing(happenings, commit_interval_ms, seed):
    environment = memory()
    lines(environment, 20, ended=True)
    with patch("runtime.run.rebalance.FOLLOW_MS", 7.0):
        app = counting(Options(commit_interval_ms=commit_interval_ms), slow=True)
        run_among(app, environment, 2, happenings, seed)
    assert newest(environment) == 320


@given(st.lists(moves, min_size=1, max_size=6), st.sampled_from((5, 50, 1_000)), st.integers(0, 999))
@settings(max_examples=examples(20, 2_000))
def test_what_is_handed_on_in_memory_is_neither_lost_nor_passed_where_tasks_move(happenings, commit_interval_ms, seed):
    """Readers are slow to take what is handed on, and tasks move often: each key's numbers come through in order."""
    environment, chance, feed = memory(), random.Random(seed), Loop._feed_relayed
    numbers = [[(None, b"[%d, %d]" % (partition, n), 0) for n in range(40)] for partition in range(4)]
    fill(environment, "numbers", numbers)
    with (
        patch("runtime.run.rebalance.FOLLOW_MS", 7.0),
        patch.object(Loop, "_feed_relayed", lambda loop: chance.random() < 0.2 and feed(loop)),
    ):
        run_among(in_order(Options(commit_interval_ms=commit_interval_ms)), environment, 2, happenings, seed)
    found = [json.loads(value) for partition in rows_of(environment, "seen") for _, value, _ in partition]
    assert {key: [n for k, n in found if k == key] for key in range(4)} == {key: [*range(40)] for key in range(4)}


def in_order(options):
    """Pass numbers on by the partition that they came from, some of them at a time."""

    async def take_time(pair):
        await rest(3)
        return [pair]

    def remember(pair, context):
        context.state = pair[1]
        return [pair]

    app = App("in-order", options)
    read = app.input("numbers", value=list).async_flat_map(take_time, max_in_flight=3, order="partition")
    read.partition_by(lambda pair: pair[0], partitions=4, op_id="by").process(remember, op_id="last").send_to(
        app.output("seen", partitions=4)
    )
    return app


@pytest.mark.parametrize("commit_by", ["task", "container"])
def test_a_task_that_stays_does_not_wait_for_one_that_leaves_unless_they_commit_together(commit_by):
    slow, call_ms, quick_ms, times = {2, 3}, 2_000, 10, defaultdict(list)

    async def call(partition):
        await rest(call_ms if partition in slow else quick_ms)
        return [partition]

    def see(commit):
        for task, generation in commit.tasks.items():
            times[task, generation].append(asyncio.get_running_loop().time() * 1_000)

    environment = memory()
    fill(environment, "in", [[(None, b"%d" % number, 0)] * (4 if number in slow else 600) for number in range(4)])
    app = App("app", Options(commit_by=commit_by, commit_interval_ms=50))
    called = app.input("in", value=int).async_flat_map(call, max_in_flight=1, timeout_ms=2 * call_ms)
    called.send_to(app.output("out", value=int))
    run_among(app, environment, 1, [Event(2_100, "comes")], on_commit=see)
    assert {task for task, generation in times if generation == 2} == slow
    longest_ms = [max(then - at for at, then in pairwise(times[task, 1])) for task in (0, 1)]
    assert (max(longest_ms) < call_ms / 4) == (commit_by == "task")
