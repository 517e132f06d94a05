"""Tasks commit together, or each by itself while the others go on."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.commit import schedule as commits
from runtime.job.pipeline import Pipeline
from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Fenced, SamzaError, Unavailable
from runtime.ports.commits import Commit
from runtime.ports.streams import StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.kafka.coordination import owner
from samza_dsl import App, Options
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.runtime.test_laws import crash_points, worlds
from tests.scale import examples
from tests.simulation.crash import Watched, append_rows, fill, memory, rows_of, run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import Cluster
from tests.simulation.loop import rest

CALL_MS, INTERVAL_MS = 20_000, 100


@given(worlds(commit_by=("task",)), st.lists(crash_points, max_size=2))
@settings(max_examples=examples(60, 10_000))
def test_by_task_a_commit_is_of_one_task_with_all_that_it_did(world, crashes):
    def see(commit):
        for task in (name for name in commit.checkpoints if name.isdecimal()):
            assert len(commit.checkpoints) == 1
            assert {writes.task for writes in commit.state} <= {int(task)}
            assert {one.producer for append in commit.appends if append.control for one in append.control.words} <= {
                task
            }
        world.outcome.check_cut()

    world.run(crashes, see)
    world.outcome.check_end()


def slowly(app, slow):
    """Have values of some partitions take long."""

    async def call(value):
        if value // 100 in slow:
            await rest(CALL_MS)
        return [value]

    stream = app.input("in", value=int).async_flat_map(call, max_in_flight=2, timeout_ms=2 * CALL_MS)
    stream.send_to(app.output("out", value=int))
    return app


def committed_at(commit_by, sizes, slow):
    """Return when each task had committed all that it was to read, in ms."""
    found = {}

    def see(commit):
        for name, checkpoint in commit.checkpoints.items():
            if any(position.offset >= sizes[int(name)] for position in checkpoint.positions):
                found.setdefault(int(name), asyncio.get_running_loop().time() * 1_000)

    environment = memory()
    parts = [[(None, b"%d" % (100 * part + row), 0) for row in range(size)] for part, size in enumerate(sizes)]
    fill(environment, "in", parts)
    app = App("app", Options(commit_by=commit_by, commit_interval_ms=INTERVAL_MS, max_drain_ms=2 * CALL_MS))
    run_once(slowly(app, slow), Watched(environment, None, see))
    return found


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.data())
@settings(max_examples=examples(40, 2_000))
def test_by_task_slow_calls_of_one_hold_up_no_other(sizes, data):
    slow = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=len(sizes) - 1))
    found = committed_at("task", sizes, slow)
    assert found.keys() == {*range(len(sizes))}
    for task, at in found.items():
        assert (at >= CALL_MS) == (task in slow)


def test_by_container_all_wait_for_the_slowest():
    assert min(committed_at("container", [1, 1], {0}).values()) >= CALL_MS


def ran(app, directory, records=("1", "2"), bind=None):
    """Run an application on a simulated Kafka, and return its commits."""
    environment = opened(directory)
    try:
        fill(environment, "in", [[(b"k", value.encode(), 0)] for value in records])
        watched = Watched(environment)
        run_once(app, watched, bind=bind)
        return [commit for commit in watched.commits if any(name.isdecimal() for name in commit.checkpoints)]
    finally:
        environment.close()


def copying(commit_by=None):
    app = App("app", Options(commit_by=commit_by))
    app.input("in", value=int).send_to(app.output("out", value=int))
    return app


def waiting(commit_by=None):
    async def same(number):
        return [number]

    app = App("app", Options(commit_by=commit_by))
    app.input("in", value=int).async_flat_map(same).send_to(app.output("out", value=int))
    return app


def in_threads(commit_by=None):
    app = App("app", Options(commit_by=commit_by, threads=2))
    app.input("in", value=int).map(lambda number: number).send_to(app.output("out", value=int))
    return app


def counting(commit_by=None):
    app = App("app", Options(commit_by=commit_by))
    numbers = app.input("in", value=int).partition_by(lambda number: number, op_id="by-number")
    numbers.scan(lambda total, number: (total or 0) + number, op_id="sum").send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize(
    ("app", "commit_by", "by_task"),
    [
        (copying, None, False),
        (copying, "task", True),
        (counting, None, False),
        (counting, "task", True),
        (waiting, None, True),
        (waiting, "container", False),
        (in_threads, None, True),
        (in_threads, "container", False),
    ],
)
def test_on_kafka_each_task_commits_by_itself_where_one_may_hold_up_others_or_it_is_said(
    app, commit_by, by_task, tmp_path
):
    with simulated(Cluster()):
        made = ran(app(commit_by), tmp_path)
    assert made
    assert all((len(commit.tasks) == 1) == by_task for commit in made)
    assert {task for commit in made for task in commit.tasks} == ({0, 1} if by_task else set())


@pytest.mark.parametrize(("commit_by", "by_task"), [(None, False), ("task", True)])
def test_on_kafka_very_many_tasks_commit_together_unless_another_way_is_said(commit_by, by_task, tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "MOST_ALONE", 1)
    with simulated(Cluster()):
        made = ran(waiting(commit_by), tmp_path)
    assert made
    assert all(bool(commit.tasks) == by_task for commit in made)


def following():
    """The pattern has three tasks and one partition: two of them tell the next stage what the first has come to."""
    app = App("app", Options(threads=2))
    numbers = app.input("i*", value=int, partitions=3).partition_by(lambda number: number, op_id="by-number")
    numbers.send_to(app.output("out", value=int))
    return app


@pytest.mark.parametrize(("app", "bound"), [(waiting, True), (following, False)])
def test_there_all_commit_together_where_one_alone_can_not(app, bound, tmp_path):
    with simulated(Cluster()):
        bind = {"out": tmp_path / "out.jsonl"} if bound else None
        commits = ran(app(), tmp_path / "data", records=["1"], bind=bind)
    assert commits
    assert not any(commit.tasks for commit in commits)


crashes = st.none() | st.builds(CrashPoint, st.sampled_from(["before_commit", "after_commit"]), st.integers(1, 3))


@given(st.lists(st.tuples(st.sampled_from(["task", "container", None]), st.integers(0, 4), crashes), max_size=5))
@settings(max_examples=examples(20, 1_000), deadline=None)
def test_the_next_run_may_commit_otherwise_than_the_one_before_whether_it_ended_or_was_killed(lives):
    cluster, expected = Cluster(), 0
    with simulated(cluster), tempfile.TemporaryDirectory() as directory:
        for commit_by, count, crash in [*lives, (None, 1, None)]:
            environment = opened(Path(directory))
            environment.create_stream("in", StreamConfig(partitions=2))
            for number in range(count):
                append_rows(environment, "in", number % 2, [(b"k", b"1", 0)])
            expected += count
            try:
                run_once(counting(commit_by), Watched(environment, crash), until_now=True)
            except Crash:
                die(cluster, environment)
            else:
                environment.close()
        environment = opened(Path(directory))
        sums = [int(value) for part in rows_of(environment, "out") for _, value, _ in part]
        environment.close()
    assert sums == [*range(1, expected + 1)]


@pytest.mark.parametrize("seed", range(10))
def test_at_least_once_what_was_in_flight_when_a_stage_had_read_all_is_read_by_the_next(seed, tmp_path):
    async def call(value):
        await rest(10 * INTERVAL_MS)
        return [value]

    app = App("app", Options(guarantee="at_least_once", commit_interval_ms=INTERVAL_MS))
    called = app.input("in", value=int).async_flat_map(call).partition_by(lambda number: number, op_id="by-number")
    called.send_to(app.output("out", value=int))
    with simulated(Cluster(seed)):
        ran(app, tmp_path)
        environment = opened(tmp_path)
        assert sum(map(len, rows_of(environment, "out"))) == 2
        environment.close()


def test_what_a_run_claims_late_hides_nothing_of_who_has_claimed_it_since(tmp_path):
    with simulated(Cluster()):
        late, next_one = opened(tmp_path / "late"), opened(tmp_path / "next")
        late.own("app")
        generation = next_one.own("app")
        next_one.commit_by_task("app", [0])
        with pytest.raises(Fenced):
            late.commit_by_task("app", [0])
        last = opened(tmp_path / "last")
        last.own("app")
        commit = Commit("app", generation, [], [], {"0": Checkpoint(generation)}, tasks={0: 1})
        with pytest.raises(Fenced):
            next_one.commit(commit)
        for environment in (late, next_one, last):
            environment.close()


def test_when_a_commit_has_failed_all_others_fail_of_the_same(tmp_path, monkeypatch):
    with simulated(Cluster()):
        environment = opened(tmp_path)
        generation = environment.own("app")
        environment.commit_by_task("app", [0, 1])
        commits = [Commit("app", generation, [], [], {f"{task}": Checkpoint(9)}, tasks={task: 1}) for task in (0, 1)]

        async def unanswered(*what):
            raise Unavailable("nobody has answered")

        with monkeypatch.context() as patched:
            patched.setattr(owner, "transact", unanswered)
            with pytest.raises(Unavailable, match="nobody has answered"):
                environment.commit(commits[0])
        for commit in commits:
            with pytest.raises(Unavailable, match="nobody has answered"):
                environment.commit(commit)
        assert environment.checkpoints("app") == {}
        environment.close()


def test_a_pattern_whose_tasks_have_not_all_something_to_read_is_refused():
    environment = memory()
    fill(environment, "in-a", [[(None, b"1", 0)]])
    app = App("app", Options(commit_by="task"))
    numbers = app.input("in-*", value=int, partitions=3).partition_by(lambda number: number, op_id="by-number")
    numbers.send_to(app.output("out", value=int))
    with pytest.raises(PlanError, match='leave commit_by="task" out: tasks without a partition follow the others'):
        run_once(app, environment)


def test_what_all_tasks_write_to_is_not_committed_by_one(tmp_path):
    environment = memory()
    fill(environment, "in", [[(None, b"1", 0)]])
    with pytest.raises(SamzaError, match="'out' is written outside of the environment, by all tasks together"):
        Run(
            Pipeline(copying("task").graph(), Options(commit_by="task")),
            environment,
            RunSettings(bind={"out": tmp_path / "out.jsonl"}),
        )
