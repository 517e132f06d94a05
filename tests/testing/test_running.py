"""An application under test, step by step: sending, time, held calls, crashes, and looking at what there is."""

import asyncio
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP
from runtime.model.errors import OperatorFailure
from samza_dsl import App, Json, Options, Pane, PlanError, count, dead_letter, every, retry, skip, testing, tumbling
from samza_dsl.testing import DeadLetter, Record
from tests.simulation.loop import rest
from tests.testing.apps import looking_up, summing, windowing


def test_a_step_comes_back_when_all_is_done_and_committed():
    with testing.running(summing()) as run:
        run.send("numbers", 1, 2, key="a")
        assert run.position("numbers") == 2
        assert run.read("sums") == [1, 3]
        assert run.read("sums") == []
        run.send("numbers", Record(5, key="b"), Record(6, key="a", timestamp=40))
        assert run.read("sums") == [5, 9]
        assert run.received("sums") == [1, 3, 5, 9]
        assert run.records("sums")[2:] == [Record(5, "b", 0), Record(9, "a", 40)]
        assert run.records("numbers") == [Record(1, "a", 0), Record(2, "a", 0), Record(5, "b", 0), Record(6, "a", 40)]
        assert run.state("sum") == {"a": 9, "b": 5}


def test_time_goes_on_only_when_it_is_told_to():
    with testing.running(looking_up(), start_ms=1_000_000) as run:
        run.send("numbers", 2, 1)
        assert (run.now_ms, run.read("found")) == (1_000_000, [])
        run.advance_time(seconds=1.9)
        assert (run.now_ms, run.position("numbers")) == (1_001_900, 0)
        run.advance_time(milliseconds=100)
        assert (run.now_ms, run.position("numbers"), run.read("found")) == (1_002_000, 2, [1, 2])


def test_records_have_the_time_of_the_clock_unless_they_have_their_own():
    app = App("times")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    with testing.running(app, start_ms=500) as run:
        run.send("numbers", 1)
        run.advance_time(minutes=1)
        run.send("numbers", 2)
        run.send("numbers", 3, timestamp=7)
        assert [record.timestamp for record in run.records("out")] == [500, 60_500, 7]


def test_timers_of_tasks_run_on_the_virtual_clock():
    app, ticks = App("ticking"), []
    numbers = app.input("numbers", value=int)
    tick = every(lambda context: ticks.append(context.task), minutes=1)
    app.task(numbers, lambda message, context: None, op_id="task", window=tick)
    with testing.running(app) as run:
        run.advance_time(hours=1)
    assert ticks == [0] * 60


@pytest.mark.parametrize("places", list(permutations(range(3))))
@pytest.mark.parametrize("order", ["none", "partition"])
def test_held_calls_end_in_the_order_of_the_test(places, order):
    with testing.running(looking_up(order)) as run:
        run.hold("look-up")
        run.send("numbers", 0, 1, 2)
        calls = run.calls("look-up")
        assert [call.argument for call in calls] == [0, 1, 2]
        for place in places:
            assert run.position("numbers") == 0
            calls[place].returns(place * 10, place * 10 + 1)
        assert run.calls("look-up") == []
        in_turn = places if order == "none" else range(3)
        assert run.read("found") == [n for place in in_turn for n in (place * 10, place * 10 + 1)]


def test_a_held_call_may_fail_be_made_again_and_then_call_the_function():
    with testing.running(looking_up(on_error=retry(1, then=dead_letter("bad")))) as run:
        run.hold("look-up")
        run.send("numbers", 3)
        run.calls("look-up")[0].fails(OSError("gone"))
        run.advance_time(milliseconds=1)
        [again] = run.calls("look-up")
        again.completes()
        assert run.calls("look-up") == []
        run.advance_time(seconds=3)
        assert run.read("found") == [3]


def test_a_call_ends_once():
    with testing.running(looking_up(on_error=skip)) as run:
        run.hold("look-up")
        run.send("numbers", 1, 2)
        first, second = run.calls("look-up")
        first.returns()
        with pytest.raises(RuntimeError, match="call of look-up with 1> has ended already"):
            first.returns(1)
        run.advance_time(seconds=5)
        with pytest.raises(RuntimeError, match="call of look-up with 2> has ended already"):
            second.fails(ValueError())
        assert run.position("numbers") == 2


def test_async_tasks_and_sinks_are_held_too():
    app, sunk = App("both"), []

    async def task(message, context):
        context.put("last", message.value)

    async def sink(value):
        sunk.append(value)

    numbers = app.input("numbers", value=int)
    app.task(numbers, task, op_id="task")
    numbers.sink(sink, op_id="sink")
    with testing.running(app) as run:
        run.hold("task")
        run.hold("sink")
        run.send("numbers", 7)
        [of_task], [of_sink] = run.calls("task"), run.calls("sink")
        assert (of_task.argument.value, of_sink.argument, sunk) == (7, 7, [])
        of_sink.completes()
        of_task.completes()
        assert (sunk, run.state("task")) == ([7], {"last": 7})


def test_only_what_awaits_can_be_held():
    with testing.running(summing()) as run, pytest.raises(ValueError, match=r"'sum' makes no async calls; .* none"):
        run.hold("sum")


def test_what_fails_is_raised_at_the_step_and_the_test_may_go_on():
    app = App("failing")
    app.input("numbers", value=int).map(lambda n: 10 // n).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", 5)
        with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
            run.send("numbers", 0)
        assert run.crashed
        assert run.received("out") == [2]
        with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
            run.restart()


def test_an_application_that_can_not_be_planned():
    app = App("unplannable")
    numbers = app.input("numbers", value=int)
    numbers.window(tumbling(seconds=1), count()).send_to(app.output("out"))
    with pytest.raises(PlanError), testing.running(app):
        pass


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_windows_are_seen_while_they_are_open(store):
    with testing.running(windowing(store=store)) as run:
        run.send("numbers", 1, 2, 1_500, key="a")
        run.send("numbers", 1_600, key="b")
        late = [Pane("a", 0, 1_000, 2)]
        assert run.read("counts") == [("a", 0, 2)], "the third number has closed the window of the first two"
        assert run.panes("per-second") == [Pane("a", 1_000, 2_000, 1), Pane("b", 1_000, 2_000, 1)] != late
        run.send("numbers", 999, key="a")
        where = {"stream": "numbers", "partition": 0, "offset": 4}
        assert run.dead_letters("late") == [DeadLetter(b"\x00\xcd\x03\xe7", "late", "per-second", b"a", **where)]
        run.end("numbers")
        assert run.ended
        assert (run.panes("per-second"), run.read("counts")) == ([], [("a", 1_000, 1), ("b", 1_000, 1)])


def test_a_watermark_is_told_per_partition_and_outlives_a_crash():
    with testing.running(windowing(partitions=2)) as run:
        run.send("numbers", 1, key="a", partition=0)
        run.send("numbers", 2, key="b", partition=1)
        assert run.watermark("numbers", 1) == 2
        run.advance_watermark("numbers", 1_000, partition=1)
        assert run.read("counts") == [("b", 0, 1)]
        run.crash()
        run.restart()
        run.send("numbers", 3, key="b", partition=1)
        assert len(run.dead_letters("late")) == 1
        run.advance_watermark("numbers", 500)
        assert [run.watermark("numbers", partition) for partition in (0, 1)] == [500, 1_000], "it never goes back"


def test_the_parts_of_a_run_that_has_seen_nothing():
    with testing.running(windowing()) as run:
        assert run.position("numbers") == 0
        assert run.watermark("numbers") is None
        assert run.received("counts") == run.dead_letters("late") == run.panes("per-second") == []


def test_timers_are_seen():
    app = App("timing")

    def remind(n, context):
        context.set_timer(n + 1_000)

    numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n)
    timed = numbers.process(remind, on_timer=lambda at_ms, context: [at_ms], op_id="timed")
    timed.send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", 5, key="a")
        run.send("numbers", 3, key="b")
        assert run.timers("timed") == [(1_003, "b"), (1_005, "a")]
        run.advance_watermark("numbers", 1_004)
        assert (run.timers("timed"), run.read("out")) == ([(1_005, "a")], [1_003])


def test_tables_are_there_from_the_start():
    app = App("tables")
    names = app.table("names", key=int, value=str)
    numbers = app.input("numbers", value=int, key=int)
    numbers.join(names, lambda n, name: f"{n} {name}").send_to(app.output("out", value=str))
    with testing.running(app, {"names": [(1, "one"), (2, "two")]}) as run:
        run.send("numbers", 7, key=2)
        run.send("names", "zwei", key=2)
        run.send("names", None, key=1)
        run.send("numbers", 8, key=2)
        run.send("numbers", 9, key=1)
        assert run.read("out") == ["7 two", "8 zwei"]
        assert run.state("names") == {2: "zwei"}


def test_malformed_records_become_dead_letters_with_their_place():
    app = App("careful")
    app.input("numbers", value=int, on_error=dead_letter("bad")).send_to(app.output("out", value=int))
    with testing.running(app, partitions={"numbers": 2}) as run:
        run.send("numbers", 1, partition=1)
        run.send_bytes("numbers", b"one", partition=1)
        [letter] = run.dead_letters("bad")
        assert (letter.value, letter.stream, letter.partition, letter.offset) == (b"one", "numbers", 1, 1)
        assert letter.operator == "numbers"
        assert "malformed" in letter.error


def test_what_an_operator_emits_inside_can_be_watched():
    app = App("inside")
    numbers = app.input("numbers", value=int)
    doubled = numbers.map(lambda n: {n}, op_id="sets")
    doubled.map(len).send_to(app.output("out", value=int))
    with testing.running(app, watch=["sets"]) as run:
        run.send("numbers", 1, 2)
        assert run.read("sets") == [{1}, {2}]
        assert run.read("out") == [1, 1]
    with pytest.raises(ValueError, match=r"watch has 'out', which emits nothing; .* numbers, sets"):
        testing.running(app, watch=["out"]).__enter__()


def test_a_stop_drains_and_a_hanging_one_is_told():
    with testing.running(looking_up()) as run:
        run.send("numbers", 3)
        run.stop()
        assert run.ended
        assert run.received("found") == [3]


def test_a_stop_that_comes_to_no_end_is_told(monkeypatch):
    monkeypatch.setattr("samza_dsl.testing.process.STUCK_S", 3)
    with testing.running(looking_up()) as run:
        run.hold("look-up")
        run.send("numbers", 1)
        with pytest.raises(RuntimeError, match=r"the run does not end: it waits for \[<call of look-up with 1>\]"):
            run.stop()


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda run: run.send("nowhere", 1), "the app reads no nowhere; it reads numbers"),
        (lambda run: run.end("nowhere"), "the app reads no nowhere"),
        (lambda run: run.position("nowhere"), "the app reads no nowhere"),
        (lambda run: run.read("nowhere"), "the app has no stream 'nowhere'; it has counts, late, numbers"),
        (lambda run: run.state("per-second"), "'per-second' has no state of its own; these operators have: none"),
        (lambda run: run.panes("numbers"), "'numbers' has no windows; these operators have: per-second"),
        (lambda run: run.timers("numbers"), "'numbers' has no timers; these operators have: none"),
        (lambda run: run.calls("numbers"), "'numbers' makes no async calls; these operators of the app do: none"),
        (lambda run: run.dead_letters("counts"), r"'counts' is an output: run.received\('counts'\); .* the app: late"),
        (lambda run: run.dead_letters("numbers"), "'numbers' is an input; streams of dead letters of the app: late"),
        (lambda run: run.position("numbers", 7), "'numbers' has no partition 7; it has 0 to 0"),
        (lambda run: run.watermark("numbers", 9), "'numbers' has no partition 9; it has 0 to 0"),
        (
            lambda run: run.advance_time(seconds=-1),
            r"by -1,000 ms: time only goes on; write .* advance_time\(seconds=1",
        ),
        (lambda run: run.advance_time(), "by 0 ms: time only goes on"),
        (lambda run: run.advance_watermark("numbers", 2.5), "'numbers', 2.5. has no time in whole ms; write instead: "),
        (lambda run: run.send("numbers", 1, key="a", timestamp=2.5), "timestamp=2.5 is no time in whole ms"),
    ],
)
def test_a_wrong_name_is_told_with_those_that_there_are(ask, told):
    with testing.running(windowing()) as run, pytest.raises(ValueError, match=told):
        ask(run)


def test_a_broadcast_table_has_rows_and_no_state():
    app = App("tables")
    names = app.table("names", key=int, value=str, broadcast=True)
    numbers = app.input("numbers", value=int)
    numbers.join(names, lambda n, name: name, on=lambda n: n).send_to(app.output("out", value=str))
    with testing.running(app, {"names": [(1, "one")]}) as run:
        with pytest.raises(ValueError, match=r"broadcast table, which is no state: .* run.records\('names'\) has"):
            run.state("names")
        with pytest.raises(ValueError, match="'numbers' has no state of its own; these operators have: none"):
            run.state("numbers")
        assert run.records("names") == [Record("one", 1, 0)]


def test_what_is_watched_is_a_list():
    with pytest.raises(ValueError, match=r"watch='sum' is no list; write instead: watch=\['sum'\]"):
        testing.running(summing(), watch="sum").__enter__()


@pytest.mark.parametrize("held", [False, True])
def test_what_belongs_to_another_event_loop_is_told_with_what_to_do(held):
    app, slots = App("slots"), asyncio.Semaphore(1)

    async def one_by_one(n):
        async with slots:
            await rest(500)
        return [n]

    numbers = app.input("numbers", value=int)
    numbers.async_flat_map(one_by_one, op_id="one-by-one", order="none").send_to(app.output("out", value=int))

    def story():
        with testing.running(app) as run:
            if held:
                run.hold("one-by-one")
            run.send("numbers", 1, 2)
            for call in run.calls("one-by-one"):
                call.completes()
            run.advance_time(seconds=1)
            assert run.read("out") == [1, 2]

    story()
    with pytest.raises(
        OperatorFailure, match=r"an event loop of its own, .* make in open\(context\) what belongs to one"
    ):
        story()


def test_a_connection_is_refused_with_what_to_do():
    app = App("online")

    async def connect(n):
        await asyncio.open_connection("localhost", 1)

    app.input("numbers", value=int).async_flat_map(connect, op_id="connect", on_error=dead_letter("bad")).send_to(
        app.output("out")
    )
    with testing.running(app) as run:
        run.send("numbers", 1)
        [letter] = run.dead_letters("bad")
        assert "has no network" in letter.error
        assert "run.hold" in letter.error


def test_a_thread_is_done_at_once():
    app = App("threads", Options(threads=2))

    async def in_thread(n):
        return [await asyncio.to_thread(lambda: n + 1)]

    found = app.input("numbers", value=int).async_flat_map(in_thread)
    found.map(lambda n: n * 2).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", 1)
        assert run.read("out") == [4]


async def in_a_running_loop():
    with testing.running(looking_up()) as run:
        run.send("numbers", 1)
        run.advance_time(seconds=1)
        return run.read("found")


def test_inside_a_running_loop_as_in_a_notebook():
    assert asyncio.run(in_a_running_loop()) == [1]


def test_the_story_is_told():
    with testing.running(summing()) as run:
        run.send("numbers", 1, key="a")
        run.advance_time(seconds=2)
        run.crash()
        assert run.story.splitlines() == [
            "        0 ms  sent 1 to numbers",
            "        0 ms  committed",
            "    2,000 ms  time went on by 2,000 ms",
            "    2,000 ms  the process died",
        ]


def test_a_process_dies_before_another_one_is_started():
    with testing.running(summing()) as run:
        run.restart()
        assert run.story.splitlines() == ["        0 ms  the process died", "        0 ms  restarted"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000)), max_size=20))
def test_whatever_is_sent_is_in_a_pane_or_late(numbers):
    with testing.running(windowing()) as run:
        for key, n in numbers:
            run.send("numbers", n, key=key)
        in_open = Counter({(pane.key, pane.start): pane.value for pane in run.panes("per-second")})
        emitted = Counter({(key, start): n for key, start, n in run.read("counts")})
        assert (in_open + emitted).total() + len(run.dead_letters("late")) == len(numbers)


def test_an_output_sees_its_values_through_its_serde():
    app = App("serdes")
    numbers = app.input("numbers", value=Json(int))
    numbers.map(lambda n: (n, n)).send_to(app.output("typed", value=list[int]))
    numbers.map(lambda n: (n, n)).send_to(app.output("untyped"))
    numbers.map(str).filter(lambda n: n == "13").send_to(app.output("wrong", value=int))
    with testing.running(app) as run:
        run.send("numbers", 1)
        assert (run.read("typed"), run.read("untyped")) == ([[1, 1]], [(1, 1)])
        with pytest.raises(OperatorFailure, match=r"send_to 'send_to-wrong' .* Expected `int`, got `str`"):
            run.send("numbers", 13)


def test_a_watermark_is_no_end():
    with testing.running(windowing()) as run:
        run.advance_watermark("numbers", MAX_TIMESTAMP - 1)
        assert not run.ended
        run.end()
        assert run.ended


def test_waiting_between_retries_in_a_thread_takes_no_time(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"the test slept for {seconds} s"))
    app, tries = App("patient", Options(threads=1)), []

    def third_time(n):
        tries.append(n)
        return n // (len(tries) // 3)

    numbers = app.input("numbers", value=int)
    numbers.map(third_time, on_error=retry(5, backoff_ms=60_000)).send_to(app.output("out", value=int))
    with testing.running(app) as run:
        run.send("numbers", 7)
        assert run.read("out") == [7]
    assert tries == [7, 7, 7]
