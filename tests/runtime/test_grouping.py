"""Whichever way partitions become tasks, results are the same; what needs partitions together is refused."""

import re
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planner.model.errors import PlanError
from planner.model.plan import Options
from runtime.job.job_model import job_of
from runtime.model.errors import SamzaError
from runtime.ports.commits import Commit
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Spark, produce
from tests.building import build
from tests.conformance.pipelines import PIPELINES, app_of, filled
from tests.conformance.test_runners import counts, results
from tests.runtime.test_laws import crash_points, worlds
from tests.runtime.test_laws_on_kafka import run_among_on_kafka, troubles
from tests.sample import sample
from tests.scale import examples
from tests.simulation.containers import Event, run_among
from tests.simulation.crash import fill, memory, rows_of, run_once

APART = Options(group_by="stream_partition")
REFUSED = r"write instead: .*Options\(group_by=\"partition\"\)"

happenings = st.lists(
    st.builds(
        Event, st.integers(0, 600), st.sampled_from(("is cancelled", "stops", "comes")), number=st.integers(0, 3)
    ),
    max_size=3,
)


def is_about_grouping(error):
    return re.search(REFUSED, str(error), re.DOTALL) is not None


def grouped(world):
    """Have a world's application read each partition of each stream in a task of its own, where it may."""
    world.options = replace(world.options, group_by="stream_partition")
    try:
        plan = build(world.pipeline, world.options, world.seed).plan(counts(world.environment))
    except PlanError as error:
        assume(not is_about_grouping(error))
        raise
    assume(len(world.pipeline.inputs()) > 1)

    def partition_of(store, task):
        apart = plan.stage(plan.operator(store).stage).apart
        return next((partition for number, _, partition in apart if number == task), task)

    world.outcome.partition_of = partition_of
    return plan


@given(worlds(), st.lists(crash_points, max_size=2))
@settings(max_examples=examples(20, 10_000), suppress_health_check=[HealthCheck.filter_too_much])
def test_a_task_for_each_partition_of_each_stream_comes_to_what_records_say(world, crashes):
    plan = grouped(world)
    assert plan.tasks > max(stage.partitions for stage in plan.stages if stage.apart)
    world.run(crashes)
    world.outcome.check_end()


@given(worlds(), st.integers(1, 3), happenings)
@settings(max_examples=examples(10, 5_000), suppress_health_check=[HealthCheck.filter_too_much])
def test_so_do_containers_that_share_such_tasks(world, number, happenings):
    grouped(world)
    app = build(
        world.pipeline,
        world.options,
        world.seed,
        on_sink=lambda place, event: world.outcome.sunk.update([(place, event)]),
    )
    run_among(app, world.environment, number, happenings, world.seed, on_commit=world.outcome.note)
    world.outcome.check_end()


@given(worlds(), troubles, st.integers(1, 3), happenings)
@settings(max_examples=examples(10, 5_000), suppress_health_check=[HealthCheck.filter_too_much])
def test_so_they_do_on_kafka(world, troubles, number, happenings):
    grouped(world)
    with tempfile.TemporaryDirectory() as folder:
        run_among_on_kafka(world, Path(folder), troubles, number, happenings)


@pytest.mark.parametrize("name", sample(PIPELINES))
def test_every_pipeline_comes_to_the_same_or_is_refused_with_what_to_write(name):
    app, environment = app_of(name), filled()
    apart = App(app.name, APART)
    PIPELINES[name](apart)
    try:
        run_once(apart, environment)
    except PlanError as error:
        if is_about_grouping(error):
            return
        raise
    other = filled()
    run_once(app, other)
    assert results(apart, environment) == results(app, other)


def test_some_pipelines_are_not_refused():
    assert sum(is_allowed(say) for say in PIPELINES.values()) > len(PIPELINES) / 3


def is_allowed(say):
    app = App("a", APART)
    say(app)
    try:
        return bool(app.plan(counts(filled())))
    except PlanError:
        return False


def said(name="app", options=APART, streams=("a", "b"), partitions=2):
    """Return an application that hands each of its streams on, by itself."""
    app = App(name, options)
    for stream in streams:
        rows = app.input(stream, value=int, partitions=partitions)
        rows.map(lambda n: n + 1).send_to(app.output(f"{stream}-out", value=int, partitions=partitions))
    return app


def test_tasks_have_the_numbers_of_their_partitions_and_streams():
    plan = said(partitions=3).plan()
    assert [stage.apart for stage in plan.stages] == [
        ((0, "a", 0), (2, "a", 1), (4, "a", 2)),
        ((1, "b", 0), (3, "b", 1), (5, "b", 2)),
    ]
    assert plan.tasks == 6
    assert [stage.tasks for stage in said(partitions=4).plan().stages] == [[0, 2, 4, 6], [1, 3, 5, 7]], "what was stays"
    assert type(plan).from_json(plan.to_json()) == plan
    assert "a task per stream and partition" in plan.to_text()


@given(st.integers(0, 9))
def test_a_record_without_a_key_keeps_its_partition(seed):
    environment = memory()
    for stream in "ab":
        rows = [[(None, b"%d" % (10 * partition), 0)] for partition in range(2)]
        fill(environment, stream, rows)
    run_once(said(), environment, seed)
    for stream in "ab":
        found = rows_of(environment, f"{stream}-out")
        assert [[value for _, value, _ in part] for part in found] == [[b"1"], [b"11"]]


def test_the_job_model_tells_what_each_task_reads(tmp_path):
    for stream in "ab":
        produce(stream, [1, 2], data=tmp_path, partitions=2)
    said().run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        found = job_of(log, "app")
    assert [task.reads for task in found.tasks] == [(("a", 0),), (("b", 0),), (("a", 1),), (("b", 1),)]
    assert found.options.group_by == "stream_partition"


@pytest.mark.parametrize(
    "other",
    [said(options=Options()), said(streams=("a", "b", "c")), said(streams=("b", "a")), said(streams=("a",))],
    ids=["by partition", "another stream", "another order", "one stream"],
)
def test_who_would_have_other_tasks_than_positions_are_kept_by_is_refused(other):
    environment = memory()
    for stream in "abc":
        fill(environment, stream, [[(None, b"1", 0)], []])
    run_once(said(), environment)
    with pytest.raises(SamzaError, match=r"has run with a task for each partition of each of a, b, and would now have"):
        run_once(other, environment)
    run_once(other, environment, from_start=True, state="reset")
    assert rows_of(environment, "a-out")[0] == [(None, b"2", 0)] * 2


def test_by_partition_there_may_be_other_inputs_as_ever():
    environment = memory()
    for stream in "abc":
        fill(environment, stream, [[(None, b"1", 0)], []])
    run_once(said(options=Options()), environment)
    run_once(said(options=Options(), streams=("a", "b", "c")), environment)
    assert rows_of(environment, "c-out")[0] == [(None, b"2", 0)]
    with pytest.raises(SamzaError, match=r"has run with a task for each partition, and would now have a task for each"):
        run_once(said(), environment)


def test_more_partitions_are_taken_up():
    environment = memory()
    for stream in "ab":
        fill(environment, stream, [[(None, b"1", 0)]])
    run_once(said(partitions=None), environment)
    grown = memory()
    for stream in "ab":
        fill(grown, stream, [[(None, b"1", 0)], [(None, b"7", 0)]])
    grown.own("app")
    known = environment.checkpoints("app")
    for task, one in known.items():
        positions = tuple(replace(position, stream_id=grown.stream_id(position.stream)) for position in one.positions)
        grown.commit(Commit("app", 1, [], [], {task: replace(one, generation=1, positions=positions)}))
    run_once(said(partitions=None), grown)
    assert [value for rows in rows_of(grown, "a-out") for _, value, _ in rows] == [b"8"], "the first was read already"


def test_history_begins_where_it_was_said_of_each_stream(tmp_path):
    for stream in "ab":
        produce(stream, [1, 2, 3, 4], data=tmp_path, partitions=2)
    places = dict.fromkeys(("a:0", "a:1", "b:0"), 0) | {"b:1": 1}
    run = said().reprocess(tmp_path, bind={"a-out": "stream:a-anew", "b-out": "stream:b-anew"}, start=places)
    found = [len(run.received(f"{stream}-out")) for stream in "ab"]
    assert found == [4, 3]


def test_on_spark_it_is_refused(tmp_path):
    with pytest.raises(PlanError, match=r'group_by=.stream_partition.*write instead: group_by="partition"'):
        said().run(tmp_path, on=Spark())
