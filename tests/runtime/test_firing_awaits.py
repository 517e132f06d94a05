"""What is awaited below a window: panes of one firing at once, nothing else meanwhile, and how long that was."""

import asyncio

import pytest

from runtime.model.errors import OperatorFailure
from samza_dsl import App, count, fail, retry, skip, tumbling
from samza_dsl.testing import Record, running

KEYS = ["a", "b", "c"]


def app_of(look_up, on_error=fail, order="key"):
    app = App("awaiting")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    panes = visits.window(tumbling(milliseconds=10), count(), op_id="counted")
    found = panes.async_flat_map(
        look_up, op_id="look-up", timeout_ms=1_000, on_error=on_error, order=order, max_in_flight=2 * len(KEYS)
    )
    found.send_to(app.output("found", value=list))
    return app


async def told(pane):
    return [[pane.key, pane.start, pane.value]]


async def never(pane):
    await asyncio.Event().wait()
    return []


FIRST = [Record(1, key, at) for at in (1, 2) for key in KEYS]
PANES = [[key, 0, 2] for key in KEYS]


@pytest.mark.parametrize("order", ["key", "none", "partition"])
def test_panes_of_one_firing_are_awaited_at_once_and_nothing_else_goes_on_meanwhile(order):
    with running(app_of(told, order=order)) as run:
        run.hold("look-up")
        run.send("visits", *FIRST, Record(1, "a", 11))
        calls = run.calls("look-up")
        assert [call.argument.key for call in calls] == KEYS, "all at once"
        before = run.metrics().received("counted")
        position = run.position("visits")
        run.send("visits", Record(1, "b", 12), Record(1, "a", 13))
        run.advance_time(milliseconds=300)
        assert run.metrics().received("counted") == before, "nothing is taken in while a firing is not complete"
        for call in calls[:-1]:
            call.returns([call.argument.key, call.argument.start, call.argument.value])
        run.advance_time(milliseconds=200)
        assert run.metrics().received("counted") == before, "one of its panes is awaited still"
        assert run.position("visits") == position and run.read("found") == [], "nothing of it is committed"
        calls[-1].returns(["c", 0, 2])
        assert run.metrics().received("counted") == before + 2
        assert sorted(run.read("found")) == PANES
        assert run.position("visits") == len(FIRST) + 3
        (task,) = run.metrics().tasks
        assert task.starved_ms == 500


def test_what_a_firing_has_starved_its_task_of_is_seen_while_it_lasts():
    with running(app_of(told)) as run:
        run.hold("look-up")
        run.send("visits", *FIRST, Record(1, "a", 11))
        run.advance_time(milliseconds=400)
        assert run.metrics().tasks[0].starved_ms == pytest.approx(400)
        for call in run.calls("look-up"):
            call.returns([])
        run.advance_time(seconds=5)
        assert run.metrics().tasks[0].starved_ms == pytest.approx(400), "it is over"


def test_a_firing_whose_calls_time_out_fails():
    with running(app_of(never)) as run:
        run.send("visits", *FIRST, Record(1, "a", 11))
        with pytest.raises(OperatorFailure, match="look-up"):
            run.advance_time(seconds=2)


@pytest.mark.parametrize(("policy", "starved_ms"), [(skip, 1_000), (retry(1, then=skip, backoff_ms=100), 2_100)])
def test_a_firing_ends_when_the_policy_has_dropped_what_timed_out(policy, starved_ms):
    with running(app_of(never, policy)) as run:
        run.send("visits", *FIRST, Record(1, "a", 11))
        run.advance_time(seconds=5)
        assert run.read("found") == []
        assert run.position("visits") == len(FIRST) + 1
        metrics = run.metrics()
        assert metrics.total("skipped") == len(KEYS)
        assert metrics.tasks[0].starved_ms == pytest.approx(starved_ms)


def test_a_crash_while_panes_are_awaited_fires_them_again():
    with running(app_of(told)) as run:
        run.hold("look-up")
        run.send("visits", *FIRST, Record(1, "a", 11))
        first, *_ = run.calls("look-up")
        first.returns(["a", 0, 2])
        run.crash()
        run.restart()
        calls = run.calls("look-up")
        assert [call.argument.key for call in calls] == KEYS, "none of them had taken effect for good"
        for call in calls:
            call.returns([call.argument.key, 0, 2])
        assert sorted(run.read("found")) == PANES


def test_a_firing_that_awaits_nothing_starves_nobody():
    app = App("plain")
    visits = app.input("visits", value=int, key=str, max_disorder_ms=0)
    visits.window(tumbling(milliseconds=10), count()).map(lambda pane: pane.value).send_to(app.output("counts"))
    with running(app) as run:
        run.send("visits", *FIRST, Record(1, "a", 11))
        run.advance_time(seconds=5)
        assert sorted(run.read("counts")) == [2, 2, 2]
        assert run.metrics().tasks[0].starved_ms == 0
