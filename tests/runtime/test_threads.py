"""Tasks with blocking functions in threads: side by side, in order within a task, and none may hang unnoticed."""

import gc
import sqlite3
import sys
import threading
from operator import methodcaller

import pytest

from planner.fuse import compile_segment, row_in
from runtime.errors import OperatorFailure
from runtime.workers import Watch
from samza_dsl import App, Options, retry
from tests.real_time import run_in_real_time

ALONE_S = 20


def test_tasks_run_side_by_side():
    both = threading.Barrier(2, timeout=ALONE_S)
    app = App("threads", Options(threads=2))
    numbers = app.input("numbers", value=int, partitions=2)
    numbers.map(lambda n: (both.wait(), n)[1]).send_to(app.output("out", value=int))
    assert sorted(run_in_real_time(app, {"numbers": [[1], [2]]})["out"]) == [1, 2]


def test_a_task_is_in_one_thread_at_a_time_and_keeps_its_order():
    inside = [threading.Lock() for _ in range(3)]

    def alone(number):
        with_lock = inside[number % 3]
        assert with_lock.acquire(blocking=False), "another thread is in this task"
        with_lock.release()
        return number

    app = App("threads", Options(threads=3, batch_records=5))
    numbers = app.input("numbers", value=int, partitions=3)
    numbers.map(alone).send_to(app.output("out", value=int))
    parts = [list(range(part, 300, 3)) for part in range(3)]
    out = run_in_real_time(app, {"numbers": parts})["out"]
    assert [[n for n in out if n % 3 == part] for part in range(3)] == parts


def test_state_can_be_used_there():
    def count(number, context):
        context.state = (context.state or 0) + 1
        return [context.state]

    app = App("threads", Options(threads=2, batch_records=3))
    numbers = app.input(
        "numbers", value=int, partitions=2, key=lambda n: n % 2, partitioned_by_key=True, timestamp=lambda n: n
    )
    numbers.process(count).send_to(app.output("out", value=int))
    out = run_in_real_time(app, {"numbers": [list(range(0, 40, 2)), list(range(1, 41, 2))]})["out"]
    assert sorted(out) == sorted([*range(1, 21), *range(1, 21)])


def test_what_a_thread_raises_ends_the_run_with_the_operator_named():
    app = App("threads", Options(threads=2))
    app.input("numbers", value=int).map(lambda n: 1 // n).send_to(app.output("out", value=int))
    with pytest.raises(OperatorFailure, match=r"map 'map-numbers' at .*test_threads\.py.*ZeroDivisionError"):
        run_in_real_time(app, {"numbers": [1, 0]})


def test_of_two_threads_that_fail_one_is_told_and_nothing_is_left(caplog):
    both = threading.Barrier(2, timeout=ALONE_S)
    app = App("threads", Options(threads=2))
    numbers = app.input("numbers", value=int, partitions=2)
    numbers.map(lambda n: (both.wait(), n // 0)).send_to(app.output("out"))
    with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
        run_in_real_time(app, {"numbers": [[1], [2]]})
    gc.collect()
    assert caplog.records == []


def test_a_connection_for_any_thread_is_made_in_open():
    class Lookup:
        def open(self, context):
            self.connection = sqlite3.connect(":memory:", check_same_thread=False)

        def close(self):
            self.connection.close()

        def __call__(self, number):
            return self.connection.execute("select ? + 1", [number]).fetchone()[0]

    app = App("threads", Options(threads=2))
    app.input("numbers", value=int, partitions=2).map(Lookup()).send_to(app.output("out", value=int))
    assert sorted(run_in_real_time(app, {"numbers": [[1], [2]]})["out"]) == [2, 3]


def test_retries_may_wait_in_a_thread():
    tries = []

    def flaky(number):
        tries.append(number)
        return 1 // (len(tries) - 1)

    app = App("threads", Options(threads=1))
    numbers = app.input("numbers", value=int)
    numbers.map(flaky, on_error=retry(2, backoff_ms=1)).send_to(app.output("out", value=int))
    assert run_in_real_time(app, {"numbers": [5]})["out"] == [1]


@pytest.mark.parametrize("through", ["map", "sink", "builtin"])
def test_a_call_that_hangs_is_noticed(through):
    forever = threading.Event()
    app = App("threads", Options(threads=1, blocking_timeout_ms=50))
    numbers = app.input("numbers", value=int)
    if through == "sink":
        numbers.sink(lambda n: forever.wait(ALONE_S))
    else:
        hanging = forever.wait if through == "builtin" else lambda n: forever.wait(ALONE_S)
        numbers.map(hanging).send_to(app.output("out"))
    try:
        with pytest.raises(OperatorFailure, match="has not returned after blocking_timeout_ms=50"):
            run_in_real_time(app, {"numbers": [7]})
    finally:
        forever.set()


@pytest.mark.parametrize("plain", [False, True])
def test_each_row_is_a_call_of_its_own(plain):
    app = App("threads")
    app.input("locks").map(methodcaller("acquire")).filter(bool).send_to(app.output("out"))
    (segment,) = app.plan().stages[0].segments
    run, _ = compile_segment(segment, {id: spec.functions() for id, spec in app.graph().specs.items()}, plain)
    locks = [threading.Lock(), threading.Lock()]
    for lock in locks:
        lock.acquire()
    thread = threading.Thread(target=run, args=[locks])
    thread.start()
    watch = Watch(50, {})
    try:
        until_at(thread, 0)
        watch.check([thread.ident], 0)
        watch.check([thread.ident], 50)
        locks[0].release()
        until_at(thread, 1)
        watch.check([thread.ident], 1_000)
        with pytest.raises(OperatorFailure, match="has not returned"):
            watch.check([thread.ident], 1_051)
    finally:
        for lock in locks:
            if lock.locked():
                lock.release()
        thread.join()


def until_at(thread, row):
    """Wait until a thread is at a row of a fused function."""
    while (frame := sys._current_frames().get(thread.ident)) is None or row_in(frame) != row:
        pass
