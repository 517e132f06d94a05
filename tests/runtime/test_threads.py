"""Tasks with blocking functions in threads: side by side, in order within a task, and none may hang unnoticed."""

import asyncio
import gc
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import methodcaller

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.joins.table_join import TableContents
from planner.codegen.fusion import compile_segment, row_in
from runtime.job.pipeline import Pipeline
from runtime.loop.threads import Watch
from runtime.model.errors import OperatorFailure
from runtime.ports.streams import StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.stores.memory import MemoryStore
from runtime.stores.shared import SharedStore
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from samza_dsl import App, Options, count, dead_letter, every, maximum, retry, skip, tumbling
from tests.real_time import run_in_real_time
from tests.scale import examples

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


HANGING = {
    "map": lambda numbers, hang: numbers.map(hang, op_id="it").sink(id),
    "sink": lambda numbers, hang: numbers.sink(hang, op_id="it"),
    "process": lambda numbers, hang: numbers.process(lambda n, context: hang(n), op_id="it").sink(id),
    "timer": lambda numbers, hang: numbers.process(
        lambda n, context: context.set_timer(n), on_timer=lambda at, context: hang(at), op_id="it"
    ).sink(id),
    "window": lambda numbers, hang: numbers.window(tumbling(seconds=1), maximum(hang), op_id="it").sink(id),
    "key": lambda numbers, hang: numbers.partition_by(hang, op_id="it").sink(id),
    "task": lambda numbers, hang: numbers.app.task(numbers, lambda message, context: hang(message.value), op_id="it"),
    "beside a call": lambda numbers, hang: (
        numbers.async_flat_map(doubled).map(lambda pair: pair[0]).map(hang, op_id="it").sink(id)
    ),
    "an input's time": lambda numbers, hang: (
        numbers.app.input("it", value=int, timestamp=hang).window_all(tumbling(seconds=1), count()).sink(id)
    ),
}


@pytest.mark.parametrize("builtin", [False, True])
@pytest.mark.parametrize("where", HANGING)
def test_a_call_that_hangs_is_noticed_and_its_operator_named(where, builtin):
    forever = threading.Event()
    app = App("threads", Options(threads=1, blocking_timeout_ms=50))
    numbers = app.input("numbers", value=int, key=lambda n: n, timestamp=lambda n: n)
    numbers.map(str).sink(id)
    HANGING[where](numbers, forever.wait if builtin else lambda n: forever.wait(ALONE_S))
    try:
        with pytest.raises(OperatorFailure, match=r"^it has not returned after blocking_timeout_ms=50"):
            run_in_real_time(app, {"numbers": [7], "it": [7]})
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
    asyncio.run(Run(app.pipeline(), environment).drive())
    assert where == [False]


@given(data=st.data())
@settings(max_examples=examples(30, 1_000))
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


def test_a_stream_waits_until_the_last_row_of_its_table_is_in_its_place(monkeypatch):
    taken = TableContents.process

    def slowly(contents, batch):
        if batch.values == [1, 3]:
            with suppress(threading.BrokenBarrierError):
                late.wait(0.2)
        return taken(contents, batch)

    late = threading.Barrier(2)  # which nobody else comes to
    monkeypatch.setattr(TableContents, "process", slowly)
    app = App("threads", Options(threads=2))
    keyed = {"key": lambda row: row, "value": int, "partitions": 2, "partitioned_by_key": True}
    joined = app.input("numbers", **keyed).join(app.table("rows", **keyed), lambda n, row: row, how="left")
    joined.send_to(app.output("out"))
    out = run_in_real_time(app, {"numbers": [[2, 4], [1, 3]], "rows": [[2, 4], [1, 3]]})["out"]
    assert sorted(out, key=str) == [1, 2, 3, 4]


def test_a_firing_that_fills_several_commits_goes_on_after_each():
    app = App("threads", Options(threads=2, max_uncommitted=50))
    numbers = app.input("numbers", value=int, key=lambda n: n, timestamp=lambda n: 0)
    numbers.window(tumbling(seconds=1), count()).map(lambda pane: pane.key).send_to(app.output("out", value=int))
    assert sorted(run_in_real_time(app, {"numbers": [*range(500)]})["out"]) == [*range(500)]


def test_who_counts_what_waits_to_be_written_is_not_disturbed_by_the_threads_that_add_to_it():
    app = App("threads", Options(threads=3, batch_records=50, commit_interval_ms=20))
    numbers = app.input("numbers", value=int, partitions=3)
    numbers.partition_by(lambda n: n, partitions=128, op_id="by").send_to(app.output("out", value=int))
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        out = run_in_real_time(app, {"numbers": [list(range(part, 3_000, 3)) for part in range(3)]})["out"]
    finally:
        sys.setswitchinterval(switching)
    assert sorted(out) == [*range(3_000)]


def test_an_async_function_reads_its_state_while_its_task_blocks():
    entered, read = threading.Event(), threading.Event()
    waited = []

    async def remember(number, context):
        if number == 1:
            await asyncio.to_thread(entered.wait, ALONE_S)
        context.state = (context.state or 0) + number
        if number == 1:
            read.set()
        return [number]

    def block(number):
        if number == 0:
            entered.set()
            waited.append(read.wait(ALONE_S))

    app = App("threads", Options(threads=1))
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.async_flat_map(remember, timeout_ms=25_000).sink(block)
    run_in_real_time(app, {"numbers": [0, 1]})
    assert waited == [True]


def test_a_task_may_ask_for_a_commit_and_the_end_from_its_thread():
    def process(message, context):
        context.commit()
        if message.value == 99:
            context.shutdown()

    app = App("threads", Options(threads=1, batch_records=5))
    app.task(app.input("numbers", value=int), process, op_id="task")
    run = Run(
        Pipeline(app.graph(), app.options), MemoryEnvironment(), RunSettings(bind={"numbers": ListSource(range(200))})
    )
    asyncio.run(run.drive(), debug=True)  # in which the loop refuses calls from other threads


def test_a_callback_may_come_after_the_end_of_the_run():
    late = []
    app = App("threads")
    app.task(
        app.input("numbers", value=int), lambda m, c, done: late.append(done), timeout_ms=1, on_error=skip, op_id="t"
    )
    run_in_real_time(app, {"numbers": [1]})
    late[0].complete()
    late[0].fail(ValueError("late"))


def test_a_run_may_be_stopped_and_woken_from_a_thread_after_its_end():
    app = App("threads")
    app.input("numbers", value=int).sink(id)
    run = Run(Pipeline(app.graph(), app.options), MemoryEnvironment(), RunSettings(bind={"numbers": ListSource([1])}))
    asyncio.run(run.drive())
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run.stop).result()
        thread.submit(run.wake).result()
