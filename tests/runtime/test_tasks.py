"""The user's own tasks: their three forms, what they may do, and that a failed call leaves nothing behind."""

import asyncio
import threading

import pytest

from runtime.job.pipeline import Pipeline
from runtime.model.errors import OperatorFailure
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options, dead_letter, every, retry, skip, testing
from samza_dsl.data.records import records_from
from samza_dsl.testing import Record
from tests.real_time import run_in_real_time
from tests.simulation.crash import fill, memory, run_once
from tests.simulation.loop import rest


@pytest.fixture
def app():
    return App("tasks")


@pytest.fixture
def numbers(app):
    return app.input("numbers", value=int, timestamp=lambda n: n)


@pytest.fixture
def out(app):
    return app.output("out", value=int)


def sending(out):
    def process(message, context):
        context.send(out, message.value * 10)

    return process


def in_three_forms(function):
    """Return a plain function of a message and its context as such, async, and with a callback from another thread."""

    async def awaited(message, context):
        await asyncio.sleep(0)
        function(message, context)

    def called_back(message, context, callback):
        function(message, context)
        thread = threading.Thread(target=callback.complete)
        thread.start()

    return [pytest.param(function, id="plain"), pytest.param(awaited, id="async"), pytest.param(called_back, id="back")]


def the_three(make):
    """Return the three forms of a function that `make(out)` makes, by name."""

    def forms(form, *parts):
        plain = make(*parts)
        return {param.id: param.values[0] for param in in_three_forms(plain)}[form]

    return forms


FORMS = pytest.mark.parametrize("form", ["plain", "async", "back"])


@FORMS
def test_a_message_is_processed(app, numbers, out, form):
    app.task(numbers, the_three(sending)(form, out), outputs=[out], op_id="task")
    assert run_in_real_time(app, {"numbers": [1, 2, 3]})["out"] == [10, 20, 30]


def summing(out):
    def process(message, context):
        context.put("sum", context.get("sum", 0) + message.value)
        context.put(message.value, "seen")
        if message.value % 2 == 0:
            context.delete(message.value)
        context.send(out, [context.get("sum"), [key for key, _ in context.items()], context.get(2, "never")])

    return process


@FORMS
def test_state_is_read_written_listed_and_deleted(app, numbers, form):
    out = app.output("out")
    app.task(numbers, the_three(summing)(form, out), outputs=[out], op_id="task")
    found = run_in_real_time(app, {"numbers": [1, 2, 3]})["out"]
    assert [total for total, _, _ in found] == [1, 3, 6]
    assert [set(keys) for _, keys, _ in found] == [{"sum", 1}, {"sum", 1}, {"sum", 1, 3}]
    assert {gone for _, _, gone in found} == {"never"}


def test_items_come_in_the_order_of_the_encoded_keys(app, numbers):
    out = app.output("out")

    def process(message, context):
        for key in ("b", "a", "c"):
            context.put(key, key.upper())
        context.send(out, [*context.items()])

    app.task(numbers, process, outputs=[out], op_id="task")
    assert testing.run(app, {"numbers": [1]})["out"] == [[("a", "A"), ("b", "B"), ("c", "C")]]


def test_an_envelope_has_all_of_a_message(app):
    seen = []
    numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n * 100)

    def process(message, context):
        seen.append((message.key, message.value, message.timestamp, message.stream, message.partition, message.offset))

    app.task(numbers, process, op_id="task")
    testing.run(app, {"numbers": [("a", 7), (None, 8)]})
    assert seen == [("a", 7, 700, "numbers", 0, 0), (None, 8, 800, "numbers", 0, 1)]


@FORMS
def test_messages_go_to_several_outputs_with_key_and_time(app, numbers, form):
    keyed, plain = app.output("keyed", value=int, key=str), app.output("plain", value=int)

    def make(keyed, plain):
        def process(message, context):
            context.send(keyed, message.value, key=f"k{message.value}", timestamp=5)
            context.send(keyed, -message.value)
            context.send(plain, message.value)

        return process

    app.task(numbers, the_three(make)(form, keyed, plain), outputs=[keyed, plain], op_id="task")
    _, sinks, _ = run_on_threads(app, [1, 2])
    assert sinks["keyed"].values == [1, -1, 2, -2]
    assert sinks["keyed"].keys == [b"k1", None, b"k2", None]
    assert sinks["keyed"].timestamps == [5, 1, 5, 2]
    assert (sinks["plain"].values, sinks["plain"].timestamps) == ([1, 2], [1, 2])


def run_on_threads(app, values):
    """Run on lists on a real event loop, which other threads can wake."""
    sinks = {stream.name: ListSink() for stream in app.plan().streams if stream.role == "output"}
    environment = MemoryEnvironment()
    run = Run(
        Pipeline(app.graph(), app.options), environment, RunSettings(bind={"numbers": ListSource(values), **sinks})
    )
    asyncio.run(run.drive())
    return run, sinks, environment


def test_a_key_is_not_lost_where_the_output_declares_none(app, numbers, out):
    def process(message, context):
        context.send(out, message.value, key="k")

    app.task(numbers, process, outputs=[out], op_id="task")
    with testing.running(app, {"numbers": [1]}) as run:
        assert run.records("out") == [Record(1, "k", 1)]


def test_an_output_has_the_partitions_that_it_declares(app, numbers):
    out = app.output("out", value=int, key=int, partitions=3)

    def process(message, context):
        context.send(out, message.value, key=message.value)

    app.task(numbers, process, outputs=[out], op_id="task")
    environment = MemoryEnvironment()
    run = Run(Pipeline(app.graph(), app.options), environment, RunSettings(bind={"numbers": ListSource([*range(20)])}))
    asyncio.run(run.drive())
    assert environment.streams()["out"].partitions == 3
    found = [[record.value for record in records_from(environment, "out", part, 0)] for part in range(3)]
    assert all(found)
    assert sorted(value for values in found for value in values) == sorted(str(n).encode() for n in range(20))


def test_an_output_that_was_not_declared(app, numbers, out):
    app.task(numbers, sending(out), op_id="task")
    with pytest.raises(
        OperatorFailure, match=r"task 'task' at .*test_tasks.*the task sent to 'out', which is not among"
    ):
        testing.run(app, {"numbers": [1]})


def failing(out):
    def process(message, context):
        context.put("sum", context.get("sum", 0) + message.value)
        context.send(out, context.get("sum"))
        if message.value == 2:
            raise ValueError("two")

    return process


@FORMS
def test_nothing_of_a_failed_call_is_visible(app, numbers, out, form):
    task = the_three(failing)(form, out)
    if form == "back":
        plain = failing(out)

        def task(message, context, callback):
            try:
                plain(message, context)
            except ValueError as error:
                callback.fail(error)
            else:
                callback.complete()

    app.task(numbers, task, outputs=[out], op_id="task", on_error=skip)
    run, sinks, _ = run_on_threads(app, [1, 2, 3])
    assert sinks["out"].values == [1, 4]
    assert run.metrics().total("skipped") == 1


@FORMS
def test_a_failed_call_becomes_a_dead_letter(app, numbers, out, form):
    app.task(numbers, the_three(failing)(form, out), outputs=[out], op_id="task", on_error=dead_letter("bad"))
    _, sinks, environment = run_on_threads(app, [1, 2, 3])
    assert sinks["out"].values == [1, 4]
    (letter,) = records_from(environment, "bad", 0, 0)
    assert letter.value == b"2"
    assert {"operator": b"task", "offset": b"1", "error": b"ValueError: two"}.items() <= letter.headers.items()


@FORMS
def test_a_failed_call_ends_the_run(app, numbers, out, form):
    app.task(numbers, the_three(failing)(form, out), outputs=[out], op_id="task")
    with pytest.raises(OperatorFailure, match=r"task 'task' at .*test_tasks.py:\d+: ValueError: two, on .*numbers/0"):
        run_in_real_time(app, {"numbers": [1, 2, 3]})


@FORMS
def test_a_call_is_made_again(app, numbers, out, form):
    tries = []

    def make(out):
        def process(message, context):
            tries.append(message.value)
            context.send(out, message.value)
            if len(tries) < 3:
                raise ValueError("not yet")

        return process

    app.task(numbers, the_three(make)(form, out), outputs=[out], op_id="task", on_error=retry(3, then=skip))
    assert run_in_real_time(app, {"numbers": [1]})["out"] == [1]
    assert tries == [1, 1, 1]


def test_a_call_that_takes_too_long(app, numbers, out):
    async def process(message, context):
        context.send(out, message.value)
        if message.value == 2:
            await rest(1_000)

    app.task(numbers, process, outputs=[out], op_id="task", timeout_ms=100, on_error=skip)
    with testing.running(app, {"numbers": [1, 2, 3]}) as run:
        assert run.read("out") == []
        run.advance_time(milliseconds=100)
        assert run.read("out") == [1, 3]
        assert run.metrics().total("skipped") == 1


def test_a_callback_that_is_never_completed(app, numbers, out):
    def process(message, context, callback):
        context.send(out, message.value)
        if message.value != 2:
            callback.complete()
            callback.complete()
            callback.fail(ValueError("too late"))

    app.task(numbers, process, outputs=[out], op_id="task", timeout_ms=100, on_error=skip)
    _, sinks, _ = run_on_threads(app, [1, 2, 3])
    assert sinks["out"].values == [1, 3]


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_calls_than_max_in_flight(app, numbers, out, most):
    under_way, widest = set(), []

    async def process(message, context):
        under_way.add(message.value)
        widest.append(len(under_way))
        await rest(10)
        under_way.discard(message.value)
        context.send(out, message.value)

    app.task(numbers, process, outputs=[out], op_id="task", max_in_flight=most)
    assert sorted(testing.run(app, {"numbers": [*range(10)]})["out"]) == [*range(10)]
    assert max(widest) == most


def test_calls_take_effect_in_the_order_of_completion(app, numbers, out):
    async def process(message, context):
        context.put("last", message.value)
        context.send(out, message.value)

    app.task(numbers, process, outputs=[out], op_id="task", max_in_flight=10)
    with testing.running(app) as run:
        run.hold("task")
        run.send("numbers", 10, 20, 30)
        for call in reversed(run.calls("task")):
            call.completes()
        assert run.read("out") == [30, 20, 10]
        assert run.state("task") == {"last": 10}


def test_a_task_asks_for_a_commit():
    app = App("tasks", Options(commit_interval_ms=1_000_000))
    commits = []

    async def process(message, context):
        commits.append(run.metrics().commits)
        context.commit()

    app.task(app.input("numbers", value=int), process, op_id="task")
    with testing.running(app) as run:
        run.send("numbers", 1, 2, 3)
    assert commits == [0, 1, 2]


def test_a_task_asks_for_the_end(app):
    seen = []

    async def process(message, context):
        seen.append(message.value)
        if message.value == 2:
            context.shutdown()

    app.task(app.input("numbers", value=int), process, op_id="task")
    with testing.running(app) as run:
        run.send("numbers", 1, 2, 3)
        assert run.ended
        assert (seen, run.position("numbers")) == ([1, 2], 2)


def test_a_window_is_called_every_so_often(app, numbers, out):
    def tick(context):
        context.put("ticks", context.get("ticks", 0) + 1)
        context.send(out, context.get("ticks"))

    app.task(numbers, sending(out), outputs=[out], op_id="task", window=every(tick, seconds=10))
    with testing.running(app, start_ms=1_000_000) as run:
        run.advance_time(seconds=35)
        assert run.records("out") == [Record(n, timestamp=1_000_000 + n * 10_000) for n in (1, 2, 3)]


def test_a_window_is_called_alone_in_its_task():
    app, under_way, widths = App("tasks"), set(), []

    async def process(message, context):
        under_way.add(message.value)
        await rest(30)
        under_way.discard(message.value)

    def tick(context):
        widths.append(len(under_way))

    app.task(app.input("numbers", value=int), process, op_id="task", max_in_flight=4, window=every(tick, seconds=0.1))
    testing.run(app, {"numbers": [*range(100)]})
    assert len(widths) > 3
    assert set(widths) == {0}


def test_a_window_that_is_due_waits_for_calls_without_looking_all_the_time():
    app, environment, turns = App("tasks"), memory(), []
    environment.at_turn = turns.append

    async def process(message, context):
        await rest(10_000)

    app.task(app.input("numbers", value=int), process, op_id="task", timeout_ms=20_000, window=every(id, seconds=1))
    fill(environment, "numbers", [[(None, b"1", 0)]])
    run_once(app, environment)
    assert len(turns) < 1_000


def test_a_window_that_fails_ends_the_run_and_names_the_task(app, numbers):
    def tick(context):
        raise ValueError("tick")

    app.task(numbers, lambda message, context: None, op_id="task", window=every(tick, seconds=10))
    with testing.running(app) as run, pytest.raises(OperatorFailure, match=r"task 'task' at .*ValueError: tick"):
        run.advance_time(seconds=15)


def test_nothing_of_a_window_that_is_skipped_is_visible(app, numbers, out):
    def tick(context):
        context.put("ticks", context.get("ticks", 0) + 1)
        context.send(out, context.get("ticks"))
        raise ValueError("tick")

    app.task(numbers, sending(out), outputs=[out], op_id="task", window=every(tick, seconds=10), on_error=skip)
    with testing.running(app) as run:
        run.advance_time(seconds=35)
        assert run.received("out") == []
        assert run.state("task") == {}
        assert run.metrics().total("skipped") == 3


def test_several_inputs_come_to_one_task(app, numbers, out):
    seen = set()

    def process(message, context):
        seen.add((message.stream, message.value))

    app.task([numbers, app.input("others", value=int).map(abs)], process, op_id="task")
    testing.run(app, {"numbers": [1], "others": [-2]})
    assert seen == {("numbers", 1), ("others", 2)}


@pytest.mark.parametrize("form", ["plain", "async"])
def test_several_async_inputs_come_to_one_task(app, numbers, form):
    seen = set()

    def make():
        def process(message, context):
            seen.add((message.stream, message.value))

        return process

    app.task([numbers, app.input("others", value=int)], the_three(make)(form), op_id="task", max_in_flight=5)
    testing.run(app, {"numbers": [1, 2, 3], "others": [4, 5, 6]})
    assert seen == {("numbers", 1), ("numbers", 2), ("numbers", 3), ("others", 4), ("others", 5), ("others", 6)}


def test_a_task_behind_async_operators_knows_where_its_message_came_from(app, numbers):
    seen = []

    async def twice(value):
        await rest(10 - value)
        return [value, -value]

    def process(message, context):
        seen.append((message.value, message.stream, message.partition, message.offset))

    app.task(numbers.async_flat_map(twice, order="partition"), process, op_id="task")
    testing.run(app, {"numbers": [1, 2]})
    assert seen == [(1, "numbers", 0, 0), (-1, "numbers", 0, 0), (2, "numbers", 0, 1), (-2, "numbers", 0, 1)]


def summing_state(out):
    def process(message, context):
        context.put("sum", context.get("sum", 0) + message.value)
        context.send(out, context.get("sum"))

    return process


@pytest.mark.parametrize(("store", "sums"), [("lmdb", [1, 3, 6]), ("memory", [1, 3, 3])])
def test_state_outlives_the_run_unless_it_is_in_memory(app, numbers, out, store, sums):
    app.task(numbers, summing_state(out), outputs=[out], op_id="task", store=store)
    with testing.running(app) as run:
        run.send("numbers", 1, 2)
        run.stop()
        run.restart()
        run.send("numbers", 3)
        assert run.received("out") == sums


async def ignored(message, context):
    """Await nothing."""


def test_calls_beside_a_task_are_not_fewer_for_it(app, numbers, out):
    async def alone(n):
        return [n]

    app.task(numbers, ignored, op_id="task")
    numbers.flat_map(range).async_flat_map(alone, max_in_flight=1).send_to(out)
    assert testing.run(app, {"numbers": [3]})["out"] == [0, 1, 2]


def test_a_record_brings_a_task_no_more_messages_than_it_takes_at_once(app, numbers):
    app.task(numbers.flat_map(range), ignored, op_id="task", max_in_flight=2)
    with pytest.raises(OperatorFailure, match="one message makes 3 calls, and the task takes 2 at once"):
        testing.run(app, {"numbers": [2, 3]})


@pytest.mark.parametrize("awaits", [False, True])
def test_a_task_that_takes_one_message_at_a_time_finds_what_the_one_before_has_left(app, numbers, out, awaits):
    def add(message, context):
        context.put("n", context.get("n", 0) + 1)
        context.send(out, context.get("n"))

    async def add_later(message, context):
        found = context.get("n", 0)
        await asyncio.sleep(0)
        context.put("n", found + 1)
        context.send(out, found + 1)

    keyed = app.input("keyed", value=int, key=lambda n: "k", timestamp=abs)
    timers = keyed.process(lambda n, context: context.set_timer(n + 1_000), on_timer=lambda at, context: [at])
    app.task(timers, add_later if awaits else add, outputs=[out], op_id="task")
    numbers.sink(id)
    for seed in range(10):
        assert testing.run(app, {"keyed": [1, 2, 3], "numbers": []}, testing.Schedule(seed))["out"] == [1, 2, 3]


def test_a_record_brings_a_task_no_more_messages_than_it_takes_at_once_beside_ordered_calls_either(app, numbers, out):
    async def process(message, context):
        context.put("n", context.get("n", 0) + 1)

    async def same(n):
        return [n]

    keyed = app.input("keyed", value=int, key=lambda n: "k")
    keyed.async_flat_map(same).send_to(out)
    app.task(keyed.flat_map(range), process, op_id="task")
    numbers.sink(id)
    with pytest.raises(OperatorFailure, match="one message makes 3 calls, and the task takes 1 at once"):
        testing.run(app, {"keyed": [3], "numbers": []})
