"""What a task for each partition of each stream can't do is refused, with what to write instead."""

import pytest

from samza_dsl import App, Options
from tests.planner.refusal import refused


def run(message, context):
    """Do nothing."""


@pytest.fixture
def apart():
    return App("apart", Options(group_by="stream_partition"))


BY_PARTITION = 'Options(group_by="partition")'


def test_state_of_two_streams_whose_partitions_have_tasks_of_their_own(apart):
    one, other = (apart.input(stream, value=int, key=str) for stream in ("one", "other"))
    with refused("its state is of 'one' and 'other'", f".partition_by(...) before it, or {BY_PARTITION}", apart):
        one.merge(other).process(run, init=int).sink(print)


def test_a_join_of_two_streams_whose_partitions_have_tasks_of_their_own(apart):
    one, other = (apart.input(stream, value=int, key=str) for stream in ("one", "other"))
    with refused("its state is of 'one' and 'other'", f".partition_by(...) before it, or {BY_PARTITION}", apart):
        one.join(other, run, within=(-1, 1)).sink(print)


def test_a_partitioned_table_for_streams_whose_partitions_have_tasks_of_their_own(apart):
    rows = apart.table("rows", value=int, key=str)
    with refused("partitions of 'rows' are not in the tasks", "broadcast=True in app.table(...)", apart):
        apart.input("one", value=int, key=str).join(rows, run).sink(print)


def test_a_pattern_of_streams_whose_partitions_have_tasks_of_their_own(apart):
    with refused("streams that come to match it would need new tasks", "an app.input(...) for each stream", apart):
        apart.input("orders-*", value=int).sink(print)


def test_state_behind_a_repartitioning_may_be_of_all_streams(apart):
    one, other = (apart.input(stream, value=int, key=str) for stream in ("one", "other"))
    one.merge(other).partition_by(str, partitions=4).process(run, init=int).sink(print)
    assert [(len(stage.tasks), stage.partitions) for stage in apart.plan().stages] == [(2, 1), (4, 4)]
