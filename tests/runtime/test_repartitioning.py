"""Streams that have other partitions from run to run: what all runs come to is what the records say."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.partition_by import PartitionBy
from planner.checks.splitting import splittable
from planner.model.errors import PlanError
from planner.model.levers import Levers
from runtime.model.errors import Repartitioned, SamzaError
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, String, count, produce, session, total, tumbling
from samza_dsl.laws import check_laws
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.building import build
from tests.runtime.test_laws import World, worlds
from tests.scale import examples
from tests.simulation.crash import Watched, rows_of, run_once
from tests.strategies import Node, Pipeline

TURNS = st.lists(st.permutations((1, 2, 3, 4)), min_size=2, max_size=4)
"""Of each life the partitions that a `partition_by` has in the place of 1 to 4: equal ones stay equal."""


def resized(app: App, turn: Sequence[int]) -> App:
    """Return an application each of whose repartitionings has another number of partitions."""
    other = copy(app)
    other._specs = {}
    for id, spec in app.graph().specs.items():
        how = {"parents": tuple(other._specs[parent.op_id] for parent in spec.parents)}
        if isinstance(spec, PartitionBy) and id.startswith("partition_by"):
            how["partitions"] = turn[spec.partitions - 1]
        other._specs[id] = replace(spec, **how)
    return other


def with_sizes(pipeline: Pipeline, turn: Sequence[int]) -> Pipeline:
    """Return the pipeline that says what a run with these sizes comes to."""
    nodes = (replace(node, number=turn[node.number - 1]) if is_resized(node) else node for node in pipeline.nodes)
    return replace(pipeline, nodes=tuple(nodes))


def is_resized(node: Node) -> bool:
    return node.kind == "partition_by"


def can_be_moved(world: World, turns: Sequence[Sequence[int]]) -> bool:
    """Whether all lives can be planned, no operator's state is of no one key, and numbers mean partitions alone."""
    sizes = {name: config.partitions for name, config in world.environment.streams().items()}
    if any(is_resized(node) and node.poison for node in world.pipeline.nodes):
        return False
    try:
        plans = [resized(build(world.pipeline), turn).plan(sizes) for turn in turns]
    except PlanError:
        return False
    return not splittable(plans[0])


def run_resized(world: World, turns: Sequence[Sequence[int]], crashes: Sequence[CrashPoint], **how) -> None:
    """Run a world through crashes, each life with the partitions of the next turn, and check what it leaves."""

    def app() -> App:
        return resized(build(world.pipeline, world.options, world.seed, on_sink=see), turn)

    def see(place, event):
        world.outcome.sunk[place, event] += 1

    world.outcome.is_split = True  # what is left between stages at a cut is brought together before what comes then
    for number, crash in enumerate([*crashes, None]):
        turn = turns[min(number, len(turns) - 1)]
        watched = Watched(world.environment, crash, world.outcome.note)
        with suppress(Crash):
            while True:
                try:
                    run_once(app(), watched, world.seed + number, **how)
                except Repartitioned:
                    continue
                break
            break
    world.outcome.pipeline = with_sizes(world.pipeline, turn)
    world.outcome.check_end()


KINDS = (
    ("partition_by", "window", "scan"),
    ("partition_by", "process", "window"),
    ("partition_by", "meet", "merge", "window"),
    ("partition_by", "nearest", "merge", "window"),
    ("partition_by", "lookup", "remember", "task"),
)
CRASHES = st.lists(
    st.builds(CrashPoint, st.sampled_from(("before_commit", "after_commit")), st.integers(2, 12))
    | st.builds(CrashPoint, st.just("turn"), st.integers(5, 150)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@given(st.data(), TURNS, CRASHES, st.booleans())
@settings(max_examples=examples(25, 20_000))
def test_whatever_the_partitions_from_run_to_run_the_end_is_that_of_the_records(kinds, data, turns, crashes, relays):
    world = data.draw(worlds(kinds))
    assume(can_be_moved(world, turns))
    run_resized(world, turns, crashes, levers=Levers(relays=relays))


def counting(windows, by_value: bool) -> App:
    """Return an application that keeps state by the keys of its input, and behind a repartitioning of its size."""
    app = App("growing")
    how = {"key": lambda tick: "abcdefg"[tick % 7], "partitioned_by_key": True} if by_value else {"key": str}
    ticks = app.input("ticks", value=int, timestamp=lambda tick: tick, **how)
    ticks.scan(lambda seen, tick: seen + tick, init=int, emit=lambda key, seen: f"{key} {seen}", op_id="sums").send_to(
        app.output("sums-seen", value=str)
    )
    panes = ticks.window(windows, count(), op_id="panes")
    panes.map(lambda pane: f"{pane.key} {pane.start} {pane.value}").send_to(app.output("panes-seen", value=str))
    again = ticks.partition_by(lambda tick: f"k{tick % 3}", op_id="by-tick", key_type=str)
    again.window(windows, total(lambda tick: tick), op_id="totals").map(
        lambda pane: f"{pane.key} {pane.start} {pane.value}"
    ).send_to(app.output("totals-seen", value=str))
    return app


TICKS = {
    False: st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 60)), min_size=4, max_size=20),
    True: st.lists(st.integers(0, 60), min_size=4, max_size=20),
}


@pytest.mark.parametrize("by_value", [False, True], ids=["stored", "by value"])
@pytest.mark.parametrize("windows", [tumbling(milliseconds=10), session(milliseconds=7)], ids=str)
def test_inputs_that_get_more_partitions_while_they_are_read_change_no_result(windows, by_value):
    check_laws(counting(windows, by_value), {"ticks": TICKS[by_value]}, rescale=True, examples=examples(30, 5_000))


def sums() -> App:
    """Return an application that sums the values of each key of its input on the embedded log."""
    app = App("sums")
    ticks = app.input("ticks", value=dict, key=str)
    summed = ticks.scan(
        lambda seen, tick: seen + tick["n"], init=int, emit=lambda key, seen: f"{key} {seen}", op_id="s"
    )
    summed.send_to(app.output("sums-seen", value=str))
    return app


def tick(data, numbers) -> None:
    produce("ticks", [{"k": f"k{n % 7}", "n": n} for n in numbers], key=lambda tick: tick["k"], data=data)


def grow(data, partitions: int) -> None:
    with closing(LogEnvironment(data)) as log:
        log.grow_stream("ticks", partitions)


def seen(data) -> list[str]:
    with closing(LogEnvironment(data)) as log:
        rows = [row for part in rows_of(log, "sums-seen") for row in part]
        return sorted(String().decode(value) for _, value, _ in rows)


def expected(numbers) -> list[str]:
    totals, found = Counter(), []
    for n in numbers:
        key = f"k{n % 7}"
        totals[key] += n
        found.append(f"{key} {totals[key]}")
    return sorted(found)


@pytest.mark.parametrize("sizes", [(5,), (2, 4), (3, 7)], ids=str)
def test_an_application_that_did_not_run_meanwhile_takes_each_growth_up_in_turn(sizes, tmp_path):
    produce("ticks", [], data=tmp_path, partitions=2)
    tick(tmp_path, range(20))
    sums().run(tmp_path, until_now=True)
    tick(tmp_path, range(20, 40))
    for number, size in enumerate(sizes):
        grow(tmp_path, size)
        tick(tmp_path, range(40 + number * 20, 60 + number * 20))
    sums().run(tmp_path, until_now=True)
    assert seen(tmp_path) == expected(range(40 + 20 * len(sizes)))


def test_what_begins_anew_reads_the_first_partitions_first(tmp_path):
    produce("ticks", [], data=tmp_path, partitions=2)
    tick(tmp_path, range(20))
    grow(tmp_path, 5)
    tick(tmp_path, range(20, 40))
    sums().run(tmp_path, until_now=True)
    assert seen(tmp_path) == expected(range(40))
    sums().run(tmp_path, until_now=True, from_start=True, state="reset")
    assert Counter(seen(tmp_path)) == Counter(expected(range(40)) * 2)
    with pytest.raises(SamzaError, match="was given more partitions since its start"):
        sums().run(tmp_path, until_now=True, from_start=True, state="keep")


def test_state_stays_where_somebody_else_has_chosen_where_keys_lie(tmp_path):
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("ticks", StreamConfig(partitions=2))
        for partition in range(2):
            log.append([Append("ticks", partition, Batch([b'{"n": 1}'], [f"k{partition}".encode()]))])
            log.append([Append("ticks", partition, Batch([b'{"n": 1}'], [f"j{partition}".encode()]))])
    sums().run(tmp_path, until_now=True)
    grow(tmp_path, 3)
    with pytest.raises(PlanError, match="whoever writes the stream has chosen by another one"):
        sums().run(tmp_path, until_now=True)
    with closing(LogEnvironment(tmp_path)) as log:
        assert {task for _, task in log.state_stats("sums")} == {0, 1}, "as it was"


def test_what_is_of_no_one_key_is_refused_with_what_to_write(tmp_path):
    app = App("seen")
    ticks = app.input("ticks", value=dict, key=str, timestamp=lambda tick: tick["n"])
    ticks.deduplicate(lambda tick: tick["n"] // 3, within_ms=5).send_to(app.output("seen", value=dict))
    produce("ticks", [], data=tmp_path, partitions=2)
    tick(tmp_path, range(20))
    app.run(tmp_path, until_now=True)
    grow(tmp_path, 4)
    with pytest.raises(PlanError, match=r"can't be moved: .*write instead: "):
        app.run(tmp_path, until_now=True)
