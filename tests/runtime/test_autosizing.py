"""An application has as many containers as its load asks for, no more than bring something, and does not flap."""

import asyncio
import logging
import re
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planner.checks.splitting import check_factor
from planner.model.virtual_tasks import VirtualTask
from runtime.containers.autosizing import Autosizer, beside, load_between
from runtime.model.assignment import Scale
from runtime.model.metrics import ContainerMetrics, InputMetrics, RunMetrics, TaskMetrics
from runtime.model.sizing import SHRINKS_AFTER, ByLoad, Load, Sized, remembered
from samza_dsl import App, Options
from tests.scale import examples

LOOK_S = 5.0


class Backlog:
    """An application that reads so many records a second in each container, up to what is slow elsewhere."""

    def __init__(self, came_per_s, each_per_s, most_per_s=1e9):
        self.came_per_s, self.each_per_s, self.most_per_s = came_per_s, each_per_s, most_per_s
        self.lag, self.containers, self.loads, self.sizes = 0.0, 1, [], []

    def look(self, sizing):
        able = min(self.containers * self.each_per_s, self.most_per_s)
        read = min(self.lag / LOOK_S + self.came_per_s, able)
        self.lag += (self.came_per_s - read) * LOOK_S
        load = Load(
            containers=self.containers,
            lag=round(self.lag),
            came_per_s=self.came_per_s,
            read_per_s=read,
            busy=read / (self.containers * self.each_per_s),
        )
        self.loads = remembered([*self.loads, load])
        sized = sizing(self.loads)
        if sized is not None:
            assert sized.containers != self.containers
            self.containers = sized.containers
        self.sizes.append(self.containers)


RATES = st.integers(1, 20_000)


@given(RATES, RATES, st.integers(1, 4), st.integers(0, 12))
@settings(max_examples=examples(200, 20_000))
def test_under_a_steady_load_it_settles_where_nothing_more_lies_unread_than_must(came, each, least, more):
    sizing, backlog = ByLoad(min=least, max=least + more), Backlog(came, each)
    for _ in range(600):
        backlog.look(sizing)
    last = backlog.sizes[-1]
    assert all(least <= size <= sizing.max for size in backlog.sizes[1:])
    assert {*backlog.sizes[-100:]} == {last}, "it flaps"
    assert last == sizing.max or backlog.lag <= sizing.behind_s * last * each
    # Nor is it far too large: half of it would be at work for more of its time than it may.
    assert last == least or came > 0.7 * max(last // 2, least) * each or came >= last * each


@given(RATES, st.integers(1, 8))
def test_what_brings_nothing_is_not_done_twice(each, times):
    backlog = Backlog(each * 20, each, most_per_s=each * times)
    for _ in range(200):
        backlog.look(ByLoad(max=64))
    assert backlog.sizes[-1] <= 2 * max(1 << (times - 1).bit_length(), 1)


@given(
    st.lists(st.builds(Load, containers=st.integers(1, 20), lag=st.integers(0, 10**6), read_per_s=st.floats(0, 1e5)))
)
def test_whatever_the_loads_were_the_size_is_within_bounds(loads):
    sized = ByLoad(min=2, max=9)(loads) if loads else None
    assert sized is None or 2 <= sized.containers <= 9


def test_a_job_that_hangs_or_brings_its_state_back_gets_no_more_containers():
    assert ByLoad()([Load(containers=1, lag=10**6)] * 10) is None


def test_a_short_peak_is_waited_for():
    calm, peak = Load(containers=2, read_per_s=10, came_per_s=10), Load(containers=2, lag=10**6, read_per_s=10)
    assert ByLoad()([calm, peak, peak, calm, peak, peak]) is None
    assert ByLoad()([*[calm] * (SHRINKS_AFTER - 1)]) is None
    assert ByLoad()([calm] * SHRINKS_AFTER) == Sized(1, "at work for 0% of the time at most")


@pytest.mark.parametrize("wrong", [{"min": 3, "max": 2}, {"min": 9}])
def test_bounds_that_exclude_each_other_are_refused(wrong):
    with pytest.raises(ValueError, match=r"containers are more than max=.*; write instead: max="):
        ByLoad(**wrong)


def numbers(elapsed_ms, offsets, ends, settled=1, worked_ms=0.0):
    inputs = [
        InputMetrics(stream="in", partition=0, task=task, offset=offset, end=end, lag=end - offset, watermark=0)
        for task, (offset, end) in enumerate(zip(offsets, ends, strict=True))
    ]
    containers = tuple(ContainerMetrics(container=str(one), settled=one < settled) for one in range(3))
    tasks = (TaskMetrics(task=0, process_ms=worked_ms),)
    return RunMetrics(elapsed_ms=elapsed_ms, inputs=tuple(inputs), containers=containers, tasks=tasks)


def test_what_virtual_tasks_read_together_counts_once():
    before, now = numbers(0, [0, 0], [100, 100]), numbers(2_000, [50, 150], [400, 400], worked_ms=1_500)
    assert load_between(before, now, containers=2, factor=2) == Load(
        containers=2, factor=2, lag=300, came_per_s=150, read_per_s=50, busy=0.375
    )


def test_a_partition_that_comes_into_sight_was_not_read_since_the_look_before():
    before, now = numbers(0, [0], [100]), numbers(2_000, [50], [150])
    others = InputMetrics(stream="in", partition=1, task=1, offset=10**6, end=10**6 + 30, lag=30, watermark=0)
    wider = replace(now, inputs=(*now.inputs, others))
    found = load_between(before, wider, containers=1, factor=1)
    assert (found.lag, found.came_per_s, found.read_per_s) == (130, 25, 25)
    assert load_between(replace(before, inputs=wider.inputs), now, containers=1, factor=1).came_per_s >= 0


def planned(factor=1, partitions=1, keyed=True):
    app = App("sized", Options(elasticity=factor))
    numbers = app.input("in", value=int, key=lambda n: n, partitioned_by_key=True)
    app.task(numbers, lambda message, context: None, keyed=keyed, op_id="own")
    return app.plan({"in": partitions})


def test_tasks_are_split_as_far_as_there_are_containers_for_them():
    autosizer = Autosizer(lambda loads: Sized(6, "so it is"))
    assert autosizer.look(numbers(0, [0], [9]), planned(), 1) is None
    assert autosizer.look(numbers(1_000, [1], [9]), planned(), 1) == Scale(8, 6, "so it is")


def test_while_tasks_come_and_go_nothing_is_measured():
    seen = []
    autosizer = Autosizer(lambda loads: seen.append(loads[-1]))
    for at_ms, settled in [(0, 2), (1_000, 1), (2_000, 2), (3_000, 2)]:
        autosizer.look(numbers(at_ms, [at_ms], [9_000], settled=settled), planned(), 2)
    assert [one.read_per_s for one in seen] == [1_000]


@pytest.mark.parametrize(("partitions", "wanted"), [(1, None), (2, Scale(1, 2, "so it is"))])
def test_tasks_that_cant_be_split_have_a_container_each_at_most_and_it_is_told_why(partitions, wanted, caplog):
    autosizer, plan = Autosizer(lambda loads: Sized(4, "so it is")), planned(partitions=partitions, keyed=False)
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        found = [autosizer.look(numbers(1_000 * look, [0], [9]), plan, 1) for look in range(8)]
    assert {*found} - {None} == ({wanted} if wanted else set())
    assert len([one for one in caplog.records if "containers at most" in one.message]) == 1
    assert "keyed=True" in caplog.text


def test_a_factor_that_is_enough_stays():
    autosizer = Autosizer(lambda loads: Sized(2, "so it is"))
    autosizer.look(numbers(0, [0], [9], settled=3), planned(factor=4), 3)
    assert autosizer.look(numbers(1_000, [0], [9], settled=3), planned(factor=4), 3) == Scale(4, 2, "so it is")
    assert VirtualTask(0, 1, 4).factor == 4


def fails(loads):
    raise ZeroDivisionError("no loads of this kind")


NO_SIZES = Sized(0, "so"), Sized(-1, "so"), Sized(2.5, "so"), Sized("3", "so"), Sized(3, None), 3, (3, "so")


@pytest.mark.parametrize(
    ("sizing", "told"),
    [
        *((lambda loads, sized=sized: sized, "returned .*; write instead: Sized") for sized in NO_SIZES),
        (fails, r"raised ZeroDivisionError: no loads of this kind\n(.*\n)*.*in fails"),
    ],
)
def test_a_sizing_that_fails_or_says_no_size_leaves_it_and_is_told_once(sizing, told, caplog):
    autosizer = Autosizer(sizing)
    with caplog.at_level(logging.ERROR, "samza_dsl"):
        assert {autosizer.look(numbers(1_000 * look, [0], [9]), planned(), 1) for look in range(8)} == {None}
    (record,) = caplog.records
    assert re.search(rf"test_autosizing.py:\d+: the size stays as it is, for autosize= {told}", record.message)


@pytest.mark.parametrize(("partitions", "most"), [(1, 4_096), (4, 4_096), (12, 1_024)])
def test_there_are_never_more_parts_than_can_be_opened(partitions, most):
    autosizer, plan = Autosizer(lambda loads: Sized(10**6, "so it is")), planned(partitions=partitions)
    autosizer.look(numbers(0, [0], [9]), plan, 1)
    assert autosizer.look(numbers(1_000, [0], [9]), plan, 1) == Scale(most, most * partitions, "so it is")
    check_factor(plan, most)


class Asked(Exception):
    pass


def test_a_run_is_sized_beside_its_view():
    told = []

    class Sized4:
        plan, number, failed, begins_anew, stopping = planned(), 1, False, False, False

        at_ms, seen_ms, looks = 0, 0, 0
        elsewhere = tuple(
            InputMetrics(stream="in", partition=at, task=at, offset=0, end=lag, lag=lag, watermark=0, owned=False)
            for at, lag in enumerate((70, 100, 30))
        )

        @property
        def heeds_sizes(self):
            self.looks += 1
            told.append("led by another one" if self.looks <= 4 else "leads")
            return self.looks > 4

        async def renew(self):
            self.at_ms += 1_000

        def metrics(self, stores=True):
            assert self.at_ms > self.seen_ms, "containers tell their numbers of now when they are asked"
            self.seen_ms = self.at_ms
            return numbers(self.at_ms, [0], [9])

        def stop(self): ...

        async def drive(self): ...

        async def ask_size(self, wanted):
            told.append(wanted)
            raise Asked

    async def view(run):
        told.append("seen")

    async def watched():
        with patch("runtime.containers.autosizing.LOOK_MS", 0.0), pytest.raises(Asked):
            await beside(view, Autosizer(lambda loads: lags.append(loads[-1].lag) or Sized(4, "why not")))(Sized4())

    lags = []
    asyncio.run(watched())
    # What others have to read counts as well; of a partition that is read here, too, what is here does.
    assert lags == [9 + 100 + 30]
    # Of processes that share a run, who leads it gives it another size: the others measure nothing, and ask for none.
    assert "seen" in told
    asked = [one for one in told if one not in ("seen", "leads")]
    assert asked == [*["led by another one"] * 4, Scale(4, 4, "why not")]
