"""A look at a run: what is slow comes first, in words, and every line of the picture has its rate."""

import re

import msgspec

from planner.model.flow import edges
from planner.picture.drawing import to_svg
from runtime.model.metrics import (
    ContainerMetrics,
    Durations,
    InputMetrics,
    OperatorMetrics,
    RunMetrics,
    StoreMetrics,
    TaskMetrics,
)
from samza_dsl import App
from samza_dsl.room.look import Interval, causes, edge_rates, look


async def look_up(n):
    return [n]


def planned(name="app", out="out"):
    app = App(name)
    looked = app.input("numbers", value=int).filter(bool, op_id="some").async_flat_map(look_up, op_id="look-up")
    looked.map(abs, op_id="abs").send_to(app.output(out, value=int), op_id="write")
    return app.plan()


PLAN = planned()


def calls(*times):
    counted = Durations("call", "look-up")
    for ms in times:
        counted.add(ms)
    return counted.metrics()


def metrics(elapsed_ms, process_ms=0.0, lag=0, received=0, times=(), window_ms=0.0, busy_ms=None, read=0):
    return RunMetrics(
        elapsed_ms=elapsed_ms,
        operators=tuple(
            OperatorMetrics(operator=one.id, task=0, received=received, emitted=received) for one in PLAN.operators
        ),
        tasks=(TaskMetrics(task=0, process_ms=process_ms, window_ms=window_ms),),
        inputs=(InputMetrics(stream="numbers", partition=0, task=0, offset=read, end=lag, lag=lag, watermark=0),),
        containers=(ContainerMetrics(container="0", histograms=(calls(*times),), busy_ms=busy_ms or {}),),
    )


def told(before, now):
    return [one.words for one in causes(PLAN, Interval(before, now))]


def test_what_takes_most_of_the_time_is_named_first():
    assert told(metrics(1_000, 50, window_ms=7), metrics(11_000, 9_050, window_ms=1_007)) == [
        "functions and operators on records: 90% of the time, in the busiest task",
        "windows and timers that fire: 10% of the time, in the busiest task",
    ]


def test_an_operator_that_waits_for_others_is_named_with_its_line_and_its_times():
    first, second = told(metrics(0, times=[1.0] * 50), metrics(10_000, 500, times=[1.0] * 50 + [100.0] * 900))
    assert re.match(r"look-up \(test_look.py:\d+\) waits for others: half of its calls take 96 ms", first)
    assert "about 9.0 are under way at a time" in first and second.startswith("functions")


def test_an_operator_that_samples_find_at_work_comes_before_calls_that_cost_nobody_anything():
    times = [1.0] * 50 + [100.0] * 900
    first, second, *rest = told(
        metrics(0, busy_ms={"some": 500.0}),
        metrics(10_000, 9_700, times=times, busy_ms={"some": 9_500.0, "abs": 300.0}),
    )
    assert re.match(r"some \(test_look.py:\d+\) takes 90% of the time of the busiest container", first)
    assert second.startswith("look-up") and rest[0].startswith("reading, decoding and handing on")
    assert not any("functions and operators" in one for one in rest)


def test_a_stream_that_falls_behind_is_an_alert():
    def alerts(before, now):
        return look(PLAN, Interval(before, now), "runs", (), 0).alerts

    assert alerts(metrics(0, lag=10), metrics(10_000, 9_000, lag=500)) == ("numbers falls behind: 500 records wait",)
    assert alerts(metrics(0, lag=500), metrics(10_000, lag=10)) == ()
    # A run that keeps up has some records to read whenever it is looked at.
    assert alerts(metrics(0), metrics(10_000, lag=7)) == ()
    assert alerts(metrics(0), metrics(10_000, lag=300, read=2_000)) == ()
    assert alerts(metrics(0), metrics(10_000, lag=500, read=2_000)) == ("numbers falls behind: 500 records wait",)


def test_a_look_has_all_that_there_is():
    stores = (
        StoreMetrics(store="kept", task=0, entries=2, bytes=10),
        StoreMetrics(store="kept", task=1, entries=1, bytes=5),
    )
    before = metrics(0)
    gone = ContainerMetrics(container="0", settled=False, deaths=2, died="was killed by SIGKILL", silent_ms=20_000.0)
    found = look(PLAN, Interval(before, metrics(2_000, received=200, times=[3.0])), "runs", stores, 60_000)
    assert (found.received_per_s, found.written_per_s, found.lag) == (100, 100, 0)
    assert [(one.id, one.received_per_s) for one in found.operators] == [(one.id, 100) for one in PLAN.operators]
    assert [(one.store, one.tasks, one.entries, one.bytes) for one in found.stores] == [("kept", 2, 3, 15)]
    assert [(one.behind_ms, one.watermark) for one in found.inputs] == [(60_000, "1970-01-01 00:00:00")]
    (container,) = look(PLAN, Interval(before, RunMetrics(containers=(gone,))), "runs", (), 0).containers
    assert not container.well and container.died == "was killed by SIGKILL" and len(container.words) == 2


class Counted(tuple):
    """Numbers that tell how often somebody goes through all of them."""

    passes = 0

    def __iter__(self):
        type(self).passes += 1
        return super().__iter__()


def test_a_large_run_is_gone_through_as_often_as_a_small_one(monkeypatch):
    monkeypatch.setattr(Counted, "passes", 0)
    before, now = (
        msgspec.structs.replace(one, operators=Counted(one.operators)) for one in (metrics(0), metrics(2_000))
    )
    look(PLAN, Interval(before, now), "runs", (), 0)
    assert Counted.passes == 2 < len(PLAN.operators)


def test_every_line_of_the_picture_has_its_rate():
    found = edge_rates(PLAN, Interval(metrics(0), metrics(2_000, received=200)))
    assert found.keys() == {*edges(PLAN)} and set(found.values()) == {"100/s"}
    svg = PLAN.to_svg()
    with_rates = to_svg(PLAN, found)
    assert svg.count("100/s") == 0 and with_rates.count("100/s") == len(found)
    assert all(f'data-id="{one.id}"' in with_rates for one in PLAN.operators) and "data-id" not in svg
