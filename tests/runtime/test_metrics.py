"""The numbers that a run tells of itself are those that a naive count finds."""

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.clock import LoopClock, SystemClock
from runtime.model.metrics import BOUNDS_MS, ContainerMetrics, Durations, OperatorMetrics, RunMetrics
from runtime.ports.streams import Append, StreamConfig
from runtime.run.measurement import snapshot_of
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSource
from runtime.units.driver.application import check_grouping
from samza_dsl import App, Options, PlanError, count, produce, retry, skip, tumbling
from tests.scale import examples
from tests.shapes import app_of, interpreted, shapes
from tests.simulation.loop import rest, simulate


def finished(app, partitions=1, **inputs):
    bind = {name: ListSource(values, partitions=partitions) for name, values in inputs.items()}
    environment = MemoryEnvironment()
    run = Run(app.pipeline(), environment, RunSettings(bind=bind))
    asyncio.run(run.drive())
    return run.metrics()


def passed(metrics, *operators):
    """Return what each operator took in and sent on."""
    return {one: (metrics.received(one), metrics.emitted(one)) for one in operators}


def odd(n):
    return n % 2


def many(n):
    return range(n)


async def thrice(n):
    return [n] * 3


def test_a_chain():
    app = App("metrics")
    chain = app.input("numbers", value=int).filter(odd, op_id="odd").map(abs, op_id="abs").flat_map(many, op_id="many")
    chain.map(abs, op_id="again").sink(print_nothing, op_id="sink")
    found = passed(finished(app, numbers=[1, 2, 3, 4]), "numbers", "odd", "abs", "many", "again", "sink")
    assert found == {"numbers": (4, 4), "odd": (4, 2), "abs": (2, 2), "many": (2, 4), "again": (4, 4), "sink": (4, 0)}


def print_nothing(value):
    """Do nothing."""


def test_branches():
    app = App("metrics")
    arms = app.input("numbers", value=int).branch(
        lambda n: ("small", "odd") if n == 1 else "odd" if n % 2 else (), into=("small", "odd", "none"), op_id="split"
    )
    for name, arm in arms.items():
        arm.map(abs, op_id=f"abs-{name}").sink(print_nothing, op_id=f"sink-{name}")
    found = finished(app, numbers=[1, 2, 3, 4, 5])
    assert passed(found, "split", "abs-small", "sink-small", "abs-odd", "abs-none", "sink-none") == {
        "split": (5, 5),
        "abs-small": (1, 1),
        "sink-small": (1, 0),
        "abs-odd": (3, 3),
        "abs-none": (0, 0),
        "sink-none": (0, 0),
    }


def test_merges_and_shared_outputs():
    app = App("metrics")
    numbers, out = app.input("numbers", value=int), app.output("out", value=int)
    odds, low = numbers.filter(odd, op_id="odd"), numbers.filter(lambda n: n < 3, op_id="low")
    both = odds.merge(low, op_id="both")
    both.map(abs, op_id="abs").send_to(out, op_id="send-both")
    low.send_to(out, op_id="send-low")
    found = passed(finished(app, numbers=[1, 2, 3, 4]), "odd", "low", "both", "abs", "send-both", "send-low")
    assert found == {
        "odd": (4, 2),
        "low": (4, 2),
        "both": (4, 4),
        "abs": (4, 4),
        "send-both": (4, 0),
        "send-low": (2, 0),
    }


def test_a_stream_that_is_read_twice():
    app = App("metrics")
    numbers = app.input("numbers", value=int)
    numbers.map(abs, op_id="abs").sink(print_nothing, op_id="one")
    numbers.filter(odd, op_id="odd").sink(print_nothing, op_id="other")
    found = passed(finished(app, numbers=[1, 2, 3]), "numbers", "abs", "one", "odd", "other")
    assert found == {"numbers": (3, 3), "abs": (3, 3), "one": (3, 0), "odd": (3, 2), "other": (2, 0)}


def test_async_operators():
    app = App("metrics")
    looked = app.input("numbers", value=int).filter(odd, op_id="odd").async_flat_map(thrice, op_id="thrice")
    looked.map(abs, op_id="abs").sink(print_nothing, op_id="sink")
    found = passed(finished(app, numbers=[1, 2, 3]), "numbers", "odd", "thrice", "abs", "sink")
    assert found == {"numbers": (3, 3), "odd": (3, 2), "thrice": (2, 6), "abs": (6, 6), "sink": (6, 0)}


def test_the_retries_of_calls_are_counted():
    calls = []

    async def flaky(n):
        calls.append(n)
        return [1 / (len(calls) > 2)]

    app = App("metrics")
    looked = app.input("numbers", value=int).async_flat_map(flaky, on_error=retry(3, backoff_ms=0), op_id="flaky")
    looked.sink(print_nothing, op_id="sink")
    found = finished(app, numbers=[1])
    assert [one.retried for one in found.operators if one.operator == "flaky"] == [2]


def test_stages_and_windows_over_several_tasks():
    app = App("metrics")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n, partitions=2)
    keyed = numbers.partition_by(lambda n: n % 3, partitions=2, op_id="by-rest")
    panes = keyed.window(tumbling(milliseconds=100), count(), op_id="counts")
    panes.map(lambda pane: pane.value, op_id="value").sink(print_nothing, op_id="sink")
    found = finished(app, partitions=2, numbers=[[1, 2, 3, 4], [5, 6]])
    assert passed(found, "numbers", "by-rest", "counts", "value", "sink") == {
        "numbers": (6, 6),
        "by-rest": (6, 6),
        "counts": (6, 3),
        "value": (3, 3),
        "sink": (3, 0),
    }
    assert len(found.tasks) == 2


def test_joins():
    app = App("metrics")
    rows = app.table("rows", value=int, key=lambda n: n, broadcast=True)
    numbers = app.input("numbers", value=int)
    for how in ("inner", "left"):
        joined = numbers.join(rows, lambda n, row: n, on=abs, how=how, op_id=how)
        joined.sink(print_nothing, op_id=f"sink-{how}")
    found = passed(finished(app, numbers=[1, 2, 3], rows=[1, 3]), "inner", "left", "sink-inner", "sink-left")
    assert found == {"inner": (3, 2), "left": (3, 3), "sink-inner": (2, 0), "sink-left": (3, 0)}


def test_records_that_fail_are_counted_once():
    app = App("metrics")

    def careful(n):
        if n == 2:
            raise ValueError("two")
        return n

    numbers = app.input("numbers", value=int).map(abs, op_id="abs")
    numbers.map(careful, on_error=skip, op_id="careful").sink(print_nothing, op_id="sink")
    found = finished(app, numbers=[1, 2, 3])
    assert found.received("sink") == 2
    assert (found.total("skipped"), found.total("dead_lettered"), found.total("retried")) == (1, 0, 0)


def test_lag_positions_commits_and_state():
    app = App("metrics", Options(commit_interval_ms=1_000_000))

    def add(n, context):
        context.state += n
        return ()

    numbers = app.input("numbers", value=int, key=lambda n: "all", timestamp=lambda n: n, max_disorder_ms=1)
    numbers.process(add, init=int, op_id="sum").sink(print_nothing)
    environment = MemoryEnvironment()

    async def main():
        async with app.running(environment) as run:
            for n in (5, 7, 6):
                await run.send("numbers", n)
            await run.settled()
            return run.metrics()

    found = asyncio.run(main())
    (numbers,) = found.inputs
    assert (numbers.stream, numbers.partition, numbers.offset, numbers.end, numbers.lag) == ("numbers", 0, 3, 3, 0)
    assert numbers.watermark == 6
    assert not numbers.ended
    assert found.commits >= 1
    assert [(one.store, one.task, one.entries) for one in found.stores] == [("sum", 0, 1)]
    assert found.stores[0].bytes > 0
    assert [one.in_flight for one in found.tasks] == [0]
    assert found.since_commit_ms is not None
    assert min(found.elapsed_ms, found.commit_ms, found.tasks[0].process_ms) >= 0


def test_a_ladder_of_merges_is_counted_in_no_time():
    app = App("metrics")
    stream = app.input("numbers", value=int).filter(odd, op_id="odd")
    for rung in range(30):
        stream = stream.map(abs).merge(stream, op_id=f"rung-{rung}") if rung < 3 else _split(stream, rung)
    stream.sink(print_nothing, op_id="sink")
    found = finished(app, numbers=[1, 2, 3])
    assert passed(found, "rung-0", "rung-2", "rung-29", "sink") == {
        "rung-0": (4, 4),
        "rung-2": (16, 16),
        "rung-29": (16, 16),
        "sink": (16, 0),
    }


def _split(stream, rung):
    arms = stream.branch(lambda n: "one" if n == 1 else "other", into=("one", "other"))
    return arms["one"].map(abs).merge(arms["other"], op_id=f"rung-{rung}")


@given(shapes(), st.lists(st.integers(0, 1_000), max_size=12))
def test_every_operator_has_the_counts_of_the_interpreter(shape, values):
    app = app_of(*shape)
    found = finished(app, numbers=values)
    _, emitted = interpreted(*shape, values)
    graph = app.graph()
    stateless = [id for id, spec in graph.specs.items() if spec.code is not None or spec.source]
    places = {id: place for place, id in enumerate(graph.specs)}
    assert {id: found.emitted(id) for id in stateless} == {id: emitted[places[id]] for id in stateless}
    assert {id: found.received(id) for id in graph.specs if not graph.specs[id].source} == {
        id: sum(emitted[places[parent]] for parent in graph.streams_into(id))
        for id in graph.specs
        if not graph.specs[id].source
    }


def simulated(app, values, start_ms=0):
    """Run an application over values in virtual time, and return its numbers at the end."""

    async def main():
        bind = {"numbers": ListSource(values, partitions=1)}
        run = Run(app.pipeline(), MemoryEnvironment(), RunSettings(bind=bind, clock=LoopClock(start_ms)))
        await run.drive()
        return run.metrics()

    return simulate(main)


@settings(max_examples=examples(20, 200))
@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([0, 3, 700]))
def test_all_calls_are_counted_with_how_long_they_take(number, most, wait_ms):
    async def slow(n):
        await rest(wait_ms)
        return [n]

    app = App("timed", Options(max_in_flight=50))
    called = app.input("numbers", value=int).async_flat_map(slow, max_in_flight=most, op_id="slow")
    called.send_to(app.output("out", value=int))
    found = simulated(app, list(range(number))).histogram("call", "slow")
    assert found.count == number
    assert abs(found.sum_ms - number * wait_ms) < 0.01 * number
    assert found.quantile(0.001) <= max(wait_ms, 0.125) and found.quantile(1) >= wait_ms


def test_calls_that_fail_and_are_tried_again_are_counted_each_time():
    async def failing(n):
        await rest(50)
        raise ValueError(n)

    app = App("timed")
    called = app.input("numbers", value=int).async_flat_map(
        failing, on_error=retry(2, backoff_ms=1_000, then=skip), op_id="failing"
    )
    called.send_to(app.output("out", value=int))
    found = simulated(app, [1]).histogram("call", "failing")
    assert (found.count, round(found.sum_ms)) == (3, 150)


def test_latency_counts_every_message_from_its_own_time_to_its_commit():
    app = App("timed")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n)
    numbers.send_to(app.output("out", value=int))
    found = simulated(app, [1_000] * 150 + [9_000] * 50, start_ms=10_000).histogram("event_to_output", "out")
    assert found.count == 200
    # Every seventh row stands for itself and the six behind it.
    assert abs(found.counts[BOUNDS_MS.index(1_024.0)] - 50) < 7 > abs(found.counts[BOUNDS_MS.index(16_384.0)] - 150)


@settings(max_examples=examples(60, 600))
@given(st.lists(st.integers(0, 10_000), max_size=500))
def test_looking_at_some_rows_counts_all_of_them(times):
    durations = Durations("event_to_output", "out")
    durations.add_since(times, 20_000)
    assert sum(durations.counts) == len(times)
    if times:
        assert 20_000 - max(times) <= durations.sum_ms / len(times) <= 20_000 - min(times)


def test_commits_and_drains_are_counted_with_how_long_they_wait():
    async def slow(n):
        await rest(400)
        return [n]

    app = App("timed", Options(commit_interval_ms=100))
    app.input("numbers", value=int).async_flat_map(slow, op_id="slow").send_to(app.output("out", value=int))
    metrics = simulated(app, [1])
    assert metrics.histogram("commit").count == metrics.histogram("drain").count == metrics.commits
    (container,) = metrics.containers
    assert (container.commits, container.tasks, container.settled) == (metrics.commits, (0,), True)
    assert 200 <= metrics.histogram("drain").sum_ms <= 400, "it was due after 100 ms, and had to wait for the call"


def test_how_long_records_have_waited_in_the_log_is_counted():
    environment = MemoryEnvironment(now_ms=lambda: 1_000)
    environment.create_stream("numbers", StreamConfig())
    environment.append([Append("numbers", 0, Batch([b"1", b"2", b"3"]))])
    environment.end_stream("numbers")
    app = App("timed")
    app.input("numbers", value=int).send_to(app.output("out", value=int))

    class Later(SystemClock):
        def now_ms(self):
            return 6_000

    run = Run(app.pipeline(), environment, RunSettings(clock=Later()))
    asyncio.run(run.drive())
    found = run.metrics().histogram("append_to_commit", "numbers")
    assert (found.count, found.sum_ms) == (3, 15_000.0)


def test_values_that_no_cache_held_are_counted():
    def remember(n, context):
        context.state = [n]
        return [n]

    environment = MemoryEnvironment()
    environment.create_stream("numbers", StreamConfig())
    missed = []
    for _ in range(2):
        environment.append([Append("numbers", 0, Batch([b"1", b"2", b"3"]))])
        app = App("timed")
        keyed = app.input("numbers", value=int, key=lambda n: n, partitioned_by_key=True)
        keyed.process(remember, op_id="remember").send_to(app.output("out", value=int))
        run = Run(app.pipeline(), environment, RunSettings(until_now=True))
        asyncio.run(run.drive())
        missed.append(sum(one.cache_misses for one in run.metrics().operators if one.operator == "remember"))
    # One was read when it was looked whether there are any.
    assert missed == [0, 2], "the second run has to read what the first has kept"


@settings(max_examples=examples(60, 600))
@given(st.lists(st.none() | st.integers(0, 30_000), max_size=300))
def test_who_listens_hears_of_the_rows_that_are_counted(times):
    heard = []
    counted = Durations("event_to_output")
    told = Durations("event_to_output", listener=lambda what, of, ms, held: heard.append(ms))
    counted.add_since(times, 20_000)
    told.add_since(times, 20_000)
    assert (told.counts, told.sum_ms) == (counted.counts, counted.sum_ms)
    assert len(heard) <= 32 and len(heard) >= min(sum(time is not None for time in times), 1) * (None not in times)


def told_of(environment, stream):
    found, offset = [], 0
    while (read := environment.read(stream, 0, offset)) is not None:
        found += zip(read.batch.keys, map(msgspec.json.decode, read.batch.values), strict=True)
        offset = read.next_offset
    return found


def test_snapshots_are_written_to_a_stream_again_and_again_and_at_the_end():
    environment = MemoryEnvironment()

    async def slow(n):
        await rest(25_000)
        return [n]

    async def main():
        app = App("timed", Options(metrics_to="how-it-goes", max_drain_ms=100_000))
        called = app.input("numbers", value=int).async_flat_map(slow, timeout_ms=60_000, op_id="slow")
        called.send_to(app.output("out", value=int))
        bind = {"numbers": ListSource([1], partitions=1)}
        await Run(app.pipeline(), environment, RunSettings(bind=bind, clock=LoopClock(0))).drive()

    simulate(main)
    found = told_of(environment, "how-it-goes")
    assert [key for key, _ in found] == [b"0"] * 3
    assert [round(one["at_ms"], -3) for _, one in found] == [10_000, 20_000, 25_000]
    assert {(one["app"], one["container"]) for _, one in found} == {("timed", "0")}
    numbers = [msgspec.convert(one["metrics"], RunMetrics) for _, one in found]
    assert [one.tasks[0].in_flight for one in numbers] == [1, 1, 0]
    assert [one.commits for one in numbers][-1] == 1


@pytest.mark.parametrize("name", ["", "a b", 7])
def test_a_stream_for_snapshots_has_a_name_that_a_stream_may_have(name):
    with pytest.raises(PlanError, match=r"stream|metrics_to"):
        App("timed", Options(metrics_to=name))


def test_a_counter_whose_name_can_not_be_encoded_is_written_as_its_code():
    metrics = RunMetrics(
        operators=(OperatorMetrics(operator="op", task=0, counters={"caf\udce9": 1}),),
        containers=(ContainerMetrics(container="0"),),
    )
    (value,) = snapshot_of("app", metrics, 5).values
    assert msgspec.json.decode(value)["metrics"]["operators"][0]["counters"] == {"caf\\udce9": 1}


def test_a_batch_engine_refuses_to_write_snapshots():
    with pytest.raises(PlanError, match=r"metrics_to='how-it-goes'.*writes no stream but its outputs"):
        check_grouping(Options(metrics_to="how-it-goes"))


def test_virtual_tasks_alone_take_time_to_find_what_is_their_own(tmp_path):
    def told(factor):
        app = App("metrics", Options(elasticity=factor, commit_interval_ms=10))
        clicks = app.input("clicks", value=dict, timestamp=lambda one: one["at"]).partition_by(lambda one: one["user"])
        clicks.window(tumbling(seconds=1), count()).map(repr).send_to(app.output("counts", value=str))
        data = tmp_path / str(factor)

        async def main(rows):
            produce("clicks", rows, data=data)
            async with app.running(data=data) as run:
                await run.settled()
                return run.metrics().tasks

        # The second run has none of the windows in memory that fire in it.
        asyncio.run(main([{"user": str(at), "at": at} for at in range(500)]))
        return asyncio.run(main([{"user": "0", "at": 5_000}]))

    (alone,), parts = told(1), told(2)
    assert alone.hash_ms == alone.own_ms == 0 < alone.read_ms
    assert len(parts) == 2 and all(one.own_ms > 0 for one in parts)
    assert sum(one.hash_ms for one in parts) > 0 and all(one.read_ms > 0 for one in parts)
