"""Crashes and restarts of an application under test: nothing is lost or doubled, and versions may change."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import SamzaError
from samza_dsl import App, Options, testing
from samza_dsl.testing import CrashPoint, Schedule
from tests.simulation.loop import rest
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


@pytest.mark.parametrize(
    "make",
    [
        lambda run: run.crash("before-commit"),
        lambda run: run.crash("now"),
        lambda run: run.crash(3),
        lambda run: CrashPoint("beforecommit", 1),
        lambda run: CrashPoint("before_commit", 0),
        lambda run: CrashPoint("turn", 1.5),
        lambda run: CrashPoint(None),
    ],
)
def test_a_crash_point_that_there_is_not_is_refused_with_those_that_there_are(make):
    told = r"a run can't die at .*before_commit.*after_commit.*turn.*crash\(\) for now"
    with testing.running(summing()) as run, pytest.raises(ValueError, match=told):
        make(run)


def test_a_schedule_has_crash_points():
    with pytest.raises(ValueError, match=r"'before_commit' is no crash point; write instead: .*CrashPoint"):
        Schedule(crashes=("before_commit",))


def play(story):
    with testing.running(summing()) as run:
        story(run)


MISSED = {
    "the end": lambda run: None,
    "a restart": lambda run: run.restart(),
    "the next point": lambda run: run.crash("before_commit"),
}


@pytest.mark.parametrize("then", MISSED.values(), ids=MISSED)
@pytest.mark.parametrize(
    ("point", "told"),
    [
        (CrashPoint("before_commit", 3), "when='before_commit', number=3. was not reached: commits since .*: 1, "),
        (CrashPoint("after_commit", 3), "number=3. was not reached: commits since .*: 1, and the process lives on"),
        (CrashPoint("turn", 1_000), r"number=1000. was not reached: turns of its event loop since .*: \d+, "),
    ],
    ids=["before a commit", "after a commit", "at a turn"],
)
def test_a_crash_point_that_is_not_reached_is_told(then, point, told):
    def story(run):
        run.crash(point)
        run.send("numbers", 1, key="a")
        then(run)

    with pytest.raises(AssertionError, match=told):
        play(story)


def test_a_crash_point_that_an_end_forestalls_is_told():
    def story(run):
        run.end()
        run.crash("before_commit")

    with pytest.raises(AssertionError, match=r"commits since .*: 0, and the process has come to its end"):
        play(story)


def test_a_crash_point_that_a_failure_forestalls_is_told():
    def story(run):
        run.crash("before_commit")
        with pytest.raises(SamzaError):
            run.send_bytes("numbers", b"malformed", key=b"a")

    with pytest.raises(AssertionError, match=r"commits since .*: 0, and the process is dead"):
        play(story)


def test_the_error_of_a_story_comes_before_a_point_that_was_not_reached():
    def story(run):
        run.crash("before_commit")
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        play(story)


def test_a_crash_now_does_where_a_point_was_not_reached():
    with testing.running(summing()) as run:
        run.crash(CrashPoint("before_commit", 9))
        run.send("numbers", 1, key="a")
        run.crash()
        run.restart()
        assert run.received("sums") == [1]


def test_a_point_may_lie_in_the_next_life():
    with testing.running(summing()) as run:
        run.crash()
        run.send("numbers", 1, key="a")
        run.crash("before_commit")
        run.restart()
        assert run.crashed
        assert run.received("sums") == []
        run.restart()
        assert run.received("sums") == [1]


class Connected:
    """Counts how many are open, closed, and being called."""

    def __init__(self, diary):
        self.diary = diary

    def __deepcopy__(self, memo):
        return self

    def open(self, context):
        self.diary.append("open")

    async def close(self):
        await rest(10)
        self.diary.append("close")

    async def __call__(self, n):
        try:
            await rest(20_000)
        finally:
            self.diary.append("finally")
        self.diary.append("effect")
        return [n]


def connecting(diary):
    app = App("connecting")
    numbers = app.input("numbers", value=int)
    numbers.async_flat_map(Connected(diary), op_id="call", timeout_ms=30_000, max_in_flight=1).send_to(
        app.output("out", value=int)
    )
    return app


CRASHES = {"now": None, "at a turn": CrashPoint("turn", 30), "before a commit": "before_commit"}


@pytest.mark.parametrize("at", CRASHES.values(), ids=CRASHES)
def test_a_crash_closes_nothing_before_the_story_is_over(at):
    diary = []
    with testing.running(connecting(diary)) as run:
        run.send("numbers", 1)
        run.crash(at)
        for _ in range(100):
            run.advance_time(seconds=1)
        assert run.crashed
        assert diary.count("close") == 0
        assert diary[:2] == ["open", "finally"]
        run.restart()
        assert diary.count("open") == 2
        run.stop()
        assert diary.count("close") == 1, "a stop closes what is its own"
    assert diary.count("close") == diary.count("open") == 2


def test_a_crash_takes_no_time_and_who_clings_to_life_does_nothing_in_it():
    effects, app = [], App("clinging")

    async def cling(n):
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await rest(1_000)
        await rest(3_000)
        effects.append(n)
        return [n]

    app.input("numbers", value=int).async_flat_map(cling, timeout_ms=30_000).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", 1)
        run.crash()
        assert (run.now_ms, effects) == (0, [])


def test_what_is_in_flight_beside_a_commit_that_crashes_goes_no_further():
    effects, app = [], App("beside", Options(guarantee="at_least_once", commit_interval_ms=1_000))

    async def call(n):
        await rest(n * 1_000)
        effects.append(n)
        return [n]

    numbers = app.input("numbers", value=int)
    numbers.async_flat_map(call, order="none", timeout_ms=30_000).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.crash("before_commit")
        run.send("numbers", 1, 20)
        run.advance_time(minutes=1)
        assert run.crashed
        assert effects == [1]
