"""Crashes and restarts of an application under test: nothing is lost or doubled, and versions may change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import SamzaError
from samza_dsl import App, testing
from samza_dsl.testing import CrashPoint
from tests.testing.apps import add_up, looking_up, summing

AMOUNTS = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5)]


@given(st.lists(st.sampled_from(("now", "before_commit", "after_commit")), max_size=5), st.booleans())
def test_crashes_lose_and_double_nothing(moments, at_the_end):
    with testing.running(summing()) as run:
        for number, (key, value) in enumerate(AMOUNTS):
            moment = moments[number] if number < len(moments) else None
            if moment in ("before_commit", "after_commit"):
                run.crash(moment)
            run.send("numbers", value, key=key)
            if moment == "now":
                run.crash()
            assert run.crashed or moment is None
            if run.crashed and not at_the_end:
                run.restart()
        while run.crashed:
            run.restart()
        assert run.received("sums") == [1, 2, 4, 8, 7]
        assert run.state("sum") == {"a": 8, "b": 7}
        assert run.position("numbers") == 5


@pytest.mark.parametrize(("moment", "committed"), [("before_commit", []), ("after_commit", [1])])
def test_before_a_restart_there_is_what_was_committed(moment, committed):
    with testing.running(summing(), watch=["sum"]) as run:
        run.crash(moment)
        run.send("numbers", 1, key="a")
        assert run.crashed
        assert run.received("sums") == run.received("sum") == committed
        assert run.position("numbers") == len(committed)
        run.send("numbers", 2, key="a")
        assert run.position("numbers") == len(committed), "a dead process processes nothing"
        run.restart()
        assert run.received("sums") == run.received("sum") == [1, 3]


def test_a_crash_at_a_turn_of_the_event_loop():
    with testing.running(looking_up(), watch=["look-up"]) as run:
        run.crash(CrashPoint("turn", 4))
        run.send("numbers", 1, 2)
        run.advance_time(seconds=5)
        assert run.crashed
        run.restart()
        run.advance_time(seconds=5)
        assert run.received("found") == [1, 2]


def test_a_crash_cancels_calls_that_wait():
    with testing.running(looking_up()) as run:
        run.hold("look-up")
        run.send("numbers", 1)
        [call] = run.calls("look-up")
        run.crash()
        assert run.calls("look-up") == []
        with pytest.raises(RuntimeError, match="has ended already"):
            call.returns(1)
        run.restart()
        [again] = run.calls("look-up")
        again.returns(7)
        assert run.read("found") == [7]


def test_a_restart_may_bring_another_version():
    with testing.running(summing()) as run:
        run.send("numbers", 1, key="a")
        run.restart(summing(factor=10))
        run.send("numbers", 1, key="a")
        assert run.received("sums") == [1, 11]


def test_a_restart_holds_what_was_held():
    with testing.running(looking_up()) as run:
        run.hold("look-up")
        run.restart(looking_up("partition"))
        run.send("numbers", 1)
        assert len(run.calls("look-up")) == 1


def test_a_version_that_can_not_run_leaves_a_dead_process_and_the_streams():
    with testing.running(summing()) as run:
        run.send("numbers", 1, key="a")
        renamed = App("summing")
        numbers = renamed.input("numbers", value=int, key=str)
        numbers.process(add_up, init=int, op_id="other").send_to(renamed.output("sums", value=int))
        with pytest.raises(SamzaError, match="sum"):
            run.restart(renamed)
        assert run.crashed
        with pytest.raises(RuntimeError, match=r"the process is dead; run.restart\(\) begins another one"):
            run.metrics()
        run.restart(summing())
        run.send("numbers", 2, key="a")
        assert run.received("sums") == [1, 3]


def test_memory_does_not_outlive_a_crash():
    with testing.running(summing(store="memory")) as run:
        run.send("numbers", 1, key="a")
        assert run.state("sum") == {"a": 1}
        run.restart()
        assert run.state("sum") == {}
