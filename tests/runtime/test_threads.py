"""Tasks with blocking functions in threads: side by side, in order within a task, and none may hang unnoticed."""

import asyncio
import gc
import sqlite3
import sys
import threading
from operator import methodcaller

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.fuse import compile_segment, row_in
from runtime.errors import OperatorFailure
from runtime.run import Run
from runtime.stores.memory import MemoryStore
from runtime.stores.shared import SharedStore
from runtime.systems.base import StreamConfig
from runtime.systems.memory import MemoryEnvironment
from runtime.workers import Watch
from samza_dsl import App, Options, count, dead_letter, every, retry, skip, tumbling
from tests.real_time import run_in_real_time
from tests.scale import scale

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


def in_main_thread():
    return threading.current_thread() is threading.main_thread()


def test_what_blocks_beside_what_awaits_is_in_threads_too():
    both = threading.Barrier(2, timeout=ALONE_S)
    where = {}

    def note(name, value):
        where.setdefault(name, set()).add(in_main_thread())
        return value

    async def fetch(number, context):
        note("async", number)
        context.state = (context.state or 0) + 1
        await asyncio.sleep(0)
        return [number]

    app = App("threads", Options(threads=2))
    numbers = app.input("numbers", key=lambda n: n % 2, value=int, partitions=2, partitioned_by_key=True)
    before = numbers.map(lambda n: (both.wait(), note("before", n))[1])
    fetched = before.async_flat_map(fetch)
    after = fetched.filter(lambda n: note("after", True))
    after.sink(lambda n: note("sink", None))
    after.send_to(app.output("out", value=int))
    out = run_in_real_time(app, {"numbers": [[0, 2, 4], [1, 3, 5]]})["out"]
    assert sorted(out) == [0, 1, 2, 3, 4, 5]
    assert where == {"before": {False}, "async": {True}, "after": {False}, "sink": {False}}


def test_a_timer_of_a_task_is_called_in_a_thread():
    where = []

    def at_end(context):
        where.append(in_main_thread())
        context.shutdown()

    app = App("threads", Options(threads=1))
    numbers = app.input("numbers", value=int)
    app.task(numbers, lambda message, context: None, window=every(at_end, seconds=0.001), op_id="task")
    environment = MemoryEnvironment()
    environment.create_stream("numbers", StreamConfig(partitions=1))
    asyncio.run(Run(app.graph(), app.options, app.around, environment).drive())
    assert where == [False]


@given(data=st.data())
@settings(max_examples=scale(15, 60, 1_000))
def test_threads_change_nothing_of_what_a_pipeline_comes_to(data):
    numbers = data.draw(st.lists(st.integers(0, 40), max_size=60))
    policy = data.draw(st.sampled_from([skip, dead_letter("bad"), retry(1, then=skip)]))
    order = data.draw(st.sampled_from(["key", "partition"]))
    parts = [[n for n in numbers if n % 4 % 3 == part] for part in range(3)]

    def run(threads):
        app = App("threads", Options(threads=threads, batch_records=7, commit_interval_ms=1))
        source = app.input(
            "numbers", key=lambda n: n % 4, value=int, timestamp=lambda n: n, partitions=3, partitioned_by_key=True
        )
        fetched = source.map(lambda n: (60 // (n - 3), n)[1], on_error=policy).async_flat_map(
            counted if order == "key" else doubled, order=order, on_error=policy
        )
        fetched.process(summed, on_error=policy).send_to(app.output("sums"))
        fetched.window(tumbling(milliseconds=10), count()).send_to(app.output("counts"))
        return {name: sorted(map(repr, values)) for name, values in run_in_real_time(app, {"numbers": parts}).items()}

    assert run(3) == run(0)


async def counted(number, context):
    context.state = (context.state or 0) + 1
    for _ in range(number % 2):
        await asyncio.sleep(0)
    return [(number, context.state)][: 60 // (number - 5) and 2]


async def doubled(number):
    for _ in range(number % 3):
        await asyncio.sleep(0)
    return [(number, 0), (number, 1)]


def summed(pair, context):
    number, _ = pair
    context.state = (context.state or 0) + number
    return [(context.key, context.state, 60 // (number - 7))]


def test_what_a_thread_may_yet_take_back_is_not_seen():
    asked, written = threading.Event(), threading.Event()

    class Alone:
        lock = threading.RLock()

        def __enter__(self):
            asked.set()
            return self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()

    def write_and_take_back():
        with Alone.lock:
            store.savepoint()
            store.put(b"key", "not to be seen")
            written.set()
            asked.wait(ALONE_S)
            store.rollback()

    store = MemoryStore("states")
    shared = SharedStore(store, Alone())
    thread = threading.Thread(target=write_and_take_back)
    thread.start()
    written.wait(ALONE_S)
    assert shared.get(b"key") is None
    assert list(shared.range()) == []
    thread.join()
    shared.put(b"key", "seen")
    assert list(shared.range()) == [(b"key", "seen")]
    shared.delete(b"key")
    assert shared.get(b"key") is None
