"""Runs on the embedded log: where they begin, where they end, and what they leave behind."""

import asyncio
from itertools import chain

import pytest

from planner.model.errors import PlanError
from runtime.encoding.serdes import Tagged
from runtime.model.errors import OperatorFailure, Owned, SamzaError
from runtime.systems.log.state_reader import LogStateReader
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, Options, Pane, Spark, count, dead_letter, fold, ranges, skip, testing, tumbling


def summing(app, op_id="sum", store="lmdb", **said):
    """Send on the sum of the numbers so far."""

    def add(n, context):
        context.state += n
        return [context.state]

    numbers = app.input("numbers", value=int, key=lambda n: "all", timestamp=lambda n: n)
    numbers.process(add, init=int, op_id=op_id, store=store, **said).send_to(app.output("sums", value=int))
    return app


def counting(app):
    """Count the numbers per window of ten."""
    numbers = app.input("numbers", value=int, key=lambda n: "all", timestamp=lambda n: n)
    panes = numbers.window(tumbling(milliseconds=10), count(), op_id="tens")
    panes.map(lambda pane: pane.start * 100 + pane.value).send_to(app.output("counts", value=int))
    return app


def test_a_restart_goes_on_where_the_last_run_stopped(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    log.write("numbers", [3])
    app.run(log.path, until_now=True)
    assert log.values("sums") == [1, 3, 6]


def test_until_now_fires_nothing_and_a_later_run_goes_on(app, log):
    counting(app)
    log.write("numbers", [1, 2, 11])
    app.run(log.path, until_now=True)
    assert log.values("counts") == [2]
    log.write("numbers", [12, 21])
    app.run(log.path, until_now=True)
    assert log.values("counts") == [2, 1000 + 2]
    log.write("numbers", [22], ended=True)
    app.run(log.path)
    assert log.values("counts") == [2, 1000 + 2, 2000 + 2]


def test_until_now_stops_at_what_was_there_at_the_start(app, log):
    log.write("numbers", [1, 2, 3])

    def write_more(n):
        log.write("numbers", [n * 10])
        return n

    app.input("numbers", value=int).map(write_more).send_to(app.output("seen", value=int))
    app.run(log.path, until_now=True)
    assert log.values("seen") == [1, 2, 3]
    assert log.values("numbers") == [1, 2, 3, 10, 20, 30]


def test_until_now_of_several_stages(app, log):
    log.write("numbers", [1, 2, 3, 4])
    by_rest = app.input("numbers", value=int).partition_by(lambda n: n % 2, partitions=2)
    by_rest.partition_by(lambda n: 0, partitions=1, op_id="again").send_to(app.output("seen", value=int))
    app.run(log.path, until_now=True)
    assert sorted(log.values("seen")) == [1, 2, 3, 4]


def test_the_end_of_the_stream_ends_the_run_and_fires_what_is_open(app, log):
    counting(app)
    log.write("numbers", [1, 2, 11], ended=True)
    app.run(log.path)
    assert log.values("counts") == [2, 1000 + 1]


def test_a_run_of_what_has_ended_does_nothing(app, log):
    counting(app)
    log.write("numbers", [1, 2, 11], ended=True)
    app.run(log.path)
    assert app.run(log.path).metrics().commits == 0
    assert log.values("counts") == [2, 1000 + 1]


def test_from_the_start_without_state(app, log):
    app.input("numbers", value=int).send_to(app.output("seen", value=int))
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    app.run(log.path, until_now=True, from_start=True)
    assert log.values("seen")[-2:] == [1, 2]


def test_from_the_start_must_say_what_becomes_of_state(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    with pytest.raises(SamzaError, match=r"--state reset .* or --state keep"):
        app.run(log.path, until_now=True, from_start=True)
    assert log.values("sums") == [1, 3]


def test_from_the_start_with_a_word_that_is_none(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    with pytest.raises(SamzaError, match=r"state='forget' .*state=\"reset\" or state=\"keep\""):
        app.run(log.path, until_now=True, from_start=True, state="forget")


def test_what_becomes_of_state_without_a_rewind(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    with pytest.raises(SamzaError, match=r"state='reset' .*from_start=True"):
        app.run(log.path, until_now=True, state="reset")


def test_from_the_start_with_reset_state(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    app.run(log.path, until_now=True, from_start=True, state="reset")
    assert log.values("sums")[-2:] == [1, 3]


def test_from_the_start_with_kept_state(app, log):
    summing(app)
    log.write("numbers", [1, 2])
    app.run(log.path, until_now=True)
    app.run(log.path, until_now=True, from_start=True, state="keep")
    assert log.values("sums") == [1, 3, 4, 6]


def test_records_replayed_over_kept_state_are_late_where_windows_have_fired(app, log):
    counting(app)
    log.write("numbers", [1, 2, 11])
    app.run(log.path, until_now=True)
    run = app.run(log.path, until_now=True, from_start=True, state="keep")
    assert run.metrics().total("late") == 2
    log.write("numbers", [21])
    app.run(log.path, until_now=True)
    assert log.values("counts") == [2, 1000 + 2]


def test_a_pattern_is_rewound_as_well(app, log):
    app.input("orders-*", value=int, key=lambda n: n).process(lambda n, context: [n]).send_to(app.output("seen"))
    log.write("orders-de", [1])
    app.run(log.path, until_now=True)
    app.run(log.path, until_now=True, from_start=True, state="keep")
    assert log.values("seen") == [1, 1]


def test_a_pattern_reads_all_streams_that_match(app, log):
    app.input("orders-*", value=int).send_to(app.output("seen", value=int))
    log.write("orders-de", [1, 2])
    log.write("orders-fr", [3])
    log.write("returns-fr", [4])
    app.run(log.path, until_now=True)
    log.write("orders-it", [5])
    log.write("orders-de", [6])
    app.run(log.path, until_now=True)
    assert sorted(log.values("seen")) == [1, 2, 3, 5, 6]


def test_streams_of_a_pattern_may_differ_in_partitions(app, log):
    app.input("orders-*", value=int).send_to(app.output("seen", value=int, partitions=1))
    log.write("orders-de", [1], partition=2, partitions=3)
    log.write("orders-fr", [2])
    app.run(log.path, until_now=True)
    assert sorted(log.values("seen")) == [1, 2]


def test_streams_of_higher_priority_are_read_first(log):
    app = App("runs", Options(batch_records=1))
    low = app.input("low", value=int)
    low.merge(app.input("high", value=int, priority=5)).send_to(app.output("seen", value=int))
    log.write("low", [1, 2, 3])
    log.write("high", [11, 12, 13])
    app.run(log.path, until_now=True)
    assert log.values("seen") == [11, 12, 13, 1, 2, 3]


def test_a_partitioned_table_is_complete_before_the_stream_that_joins_it(app, log):
    numbers = app.input("numbers", value=int, key=str, partitions=2)
    rows = app.table("rows", value=int, key=str, partitions=2)
    numbers.join(rows, lambda n, row: n * row, op_id="join").send_to(app.output("products", value=int))
    for partition in range(2):
        log.write("numbers", [1, 2], partition, keys=["a", "b"], partitions=2)
        log.write("rows", [10 + partition, 20 + partition], partition, keys=["a", "a"], partitions=2)
    app.run(log.path, until_now=True)
    assert sorted(chain(*log.read("products"))) == [20, 21]
    log.write("rows", [30], 0, keys=["a"])
    log.write("numbers", [2, 3], 0, keys=["a", "b"])
    app.run(log.path, until_now=True)
    assert sorted(chain(*log.read("products"))) == [20, 21, 60]


def test_a_broadcast_table_is_whole_in_every_task(app, log):
    numbers = app.input("numbers", value=int, partitions=2)
    rows = app.table("rows", value=int, key=str, broadcast=True)
    numbers.join(rows, lambda n, row: n * (row or 0), on=str, how="left").send_to(app.output("products", value=int))
    log.write("rows", [10, 20], keys=["1", "2"])
    for partition in range(2):
        log.write("numbers", [1, 2, 3], partition, partitions=2)
    app.run(log.path, until_now=True)
    assert sorted(chain(*log.read("products"))) == [0, 0, 10, 10, 40, 40]


def test_late_records_go_to_their_stream(app, log):
    numbers = app.input("numbers", value=int, key=lambda n: "all", timestamp=lambda n: n)
    panes = numbers.window(tumbling(milliseconds=10), count(), op_id="tens", late=dead_letter("late"))
    panes.map(lambda pane: pane.value).send_to(app.output("counts", value=int))
    log.write("numbers", [1, 25, 2, 26, 3], ended=True)
    run = app.run(log.path)
    assert log.values("counts") == [1, 2]
    letters = log.records("late")
    assert [Tagged().decode(letter.value) for letter in letters] == [2, 3]
    where = {"stream": b"numbers", "partition": b"0", "operator": b"tens", "error": b"late"}
    assert [letter.headers for letter in letters] == [{**where, "offset": b"2"}, {**where, "offset": b"4"}]
    assert run.metrics().total("late") == 2


def test_state_without_its_operator_is_refused(log):
    log.write("numbers", [1, 2])
    summing(App("runs"), op_id="sum").run(log.path, until_now=True)
    with pytest.raises(
        SamzaError,
        match=r"state of 'sum' .*, and no operator of that id now: .*move it: .*op_id='sum'.*forget runs sum",
    ):
        summing(App("runs"), op_id="total").run(log.path, until_now=True)
    summing(App("runs"), op_id="sum").run(log.path, until_now=True)


def test_records_between_stages_are_read_before_there_are_other_partitions(log):
    def repartitioned(partitions):
        app = App("runs")
        by_rest = app.input("numbers", value=int).partition_by(lambda n: n % 3, partitions=partitions, op_id="by-rest")
        by_rest.send_to(app.output("seen", value=int, partitions=1))
        return app

    log.write("numbers", [1, 2])
    repartitioned(2).run(log.path, until_now=True)
    log.write("numbers", [3, 4])
    run = repartitioned(3).run(log.path, until_now=True)
    assert sorted(run.received("seen")) == [1, 2, 3, 4]


def test_two_owners_are_refused(app, log):
    summing(app)

    async def main():
        async with app.running(log.path):
            with pytest.raises(Owned):
                await app.run_async(log.path)

    asyncio.run(main())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_both_guarantees_give_all(guarantee, log):
    app = App("runs", Options(guarantee=guarantee))

    async def twice(n):
        return [n, n]

    app.input("numbers", value=int).async_flat_map(twice).send_to(app.output("seen", value=int))
    log.write("numbers", range(100), ended=True)
    app.run(log.path)
    assert sorted(log.values("seen")) == sorted([*range(100), *range(100)])


def test_messages_are_sent_to_a_run_in_a_running_loop(app, log):
    summing(app)

    async def main():
        async with app.running(log.path) as run:
            for number in (1, 2, 3):
                await run.send("numbers", number)
            with pytest.raises(SamzaError, match="the app reads no such stream"):
                await run.send("others", 1)
            await run.settled()
        return run

    run = asyncio.run(main())
    assert log.values("sums") == [1, 3, 6]
    assert run.metrics().received("sum") == 3


def test_a_run_that_waits_holds_no_moment_of_the_state(app, log, monkeypatch):
    read, begin = [], LogStateReader._begin
    monkeypatch.setattr(LogStateReader, "_begin", lambda reader: read.append(reader) or begin(reader))
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.scan(lambda total, n: (total or 0) + n, op_id="sum").send_to(app.output("sums", value=int))

    async def main():
        for expected in (1, 2):
            async with app.running(log.path) as run:
                for number in range(100):
                    await run.send("numbers", number)
                await run.settled()
                assert log.values("sums")[-100:] == [number * expected for number in range(100)]
                assert not read[-1]._database.readers if read else expected == 1

    asyncio.run(main())
    assert read, "the second run has looked into the store"


def test_run_inside_a_running_loop_says_what_to_write(app, log):
    summing(app)

    async def main():
        app.run(log.path)

    with pytest.raises(SamzaError, match=r"await app\.run_async\(\)"):
        asyncio.run(main())


def test_run_async_ends_with_the_stream(app, log):
    counting(app)
    log.write("numbers", [1, 2], ended=True)
    run = asyncio.run(app.run_async(log.path))
    assert log.values("counts") == [2]
    assert run.metrics().commits > 0


def test_an_error_in_the_block_ends_the_run_and_is_the_one_that_is_told(app, log):
    summing(app)

    async def main():
        async with app.running(log.path):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
    summing(App("runs")).run(log.path, until_now=True)


def test_a_timer_that_fails_names_its_operator(app):
    def on_timer(at_ms, context):
        raise ValueError("ring")

    numbers = app.input("numbers", value=int, key=abs, timestamp=abs)
    numbers.process(lambda n, context: context.set_timer(n), on_timer=on_timer, op_id="timed").sink(print)
    with pytest.raises(OperatorFailure, match=r"process 'timed' at .*test_run.py:\d+: ValueError: ring"):
        testing.run(app, {"numbers": [1]})


def test_an_aggregation_that_can_not_finish_names_its_window(app):
    numbers = app.input("numbers", value=int, key=abs, timestamp=abs)
    ratio = fold(int, lambda total, n: total + n, finish=lambda total: 1 / 0)
    numbers.window(tumbling(hours=1), ratio, op_id="ratios").sink(print)
    with pytest.raises(OperatorFailure, match=r"window 'ratios' at .*ZeroDivisionError"):
        testing.run(app, {"numbers": [1]})


def test_streams_have_the_partitions_that_were_planned(app, log):
    numbers = app.input("numbers", value=int, partitions=3)
    numbers.partition_by(lambda n: n, op_id="kept").send_to(app.output("as-it-comes"))
    numbers.partition_by(lambda n: n, partitions=5, op_id="said").send_to(app.output("said", partitions=2))
    log.write("numbers", [1], partitions=3)
    app.run(log.path, until_now=True)
    found = {name: log.partitions(name) for name in ("runs-kept", "as-it-comes", "runs-said", "said")}
    assert found == {"runs-kept": 3, "as-it-comes": 3, "runs-said": 5, "said": 2}
    assert found == {name: app.plan({"numbers": 3}).stream(name).partitions for name in found}


def test_broadcast_reaches_every_task(app, log):
    tasks = set()

    class Noting:
        def open(self, context):
            self.task = context.task

        def __call__(self, n):
            tasks.add((self.task, n))
            return n

    app.input("numbers", value=int).broadcast(partitions=3).map(Noting()).send_to(app.output("out", value=int))
    log.write("numbers", [1, 2], ended=True)
    app.run(log.path)
    assert tasks == {(task, n) for task in range(3) for n in (1, 2)}
    assert log.read("out") == [[1, 2], [1, 2], [1, 2]]


def placed(app, log, by, partitions):
    """Return what comes to each task behind a repartitioning."""
    seen = {}

    class Noting:
        def open(self, context):
            self.seen = seen[context.task] = []

        def __call__(self, n):
            self.seen.append(n)

    by_number = app.input("numbers", value=int).partition_by(lambda n: n, by=by, partitions=partitions, op_id="by-n")
    by_number.sink(Noting())
    log.write("numbers", range(10), ended=True)
    app.run(log.path)
    return [seen[task] for task in range(log.partitions("runs-by-n"))]


def test_ranges_lead_to_their_partitions(app, log):
    assert placed(app, log, ranges([3, 8]), None) == [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]


def test_a_function_leads_to_its_partitions(app, log):
    assert placed(app, log, lambda n, count: n % count, 2) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_a_function_that_leads_nowhere(app, log):
    with pytest.raises(OperatorFailure, match=r"partition_by 'by-n' at .*by= returned 2 for the key 2; it must be"):
        placed(app, log, lambda n, count: n, 2)


def test_a_message_without_value_passes_a_repartitioning(app):
    numbers = app.input("numbers", value=int).map(lambda n: n if n % 2 else None)
    numbers.partition_by(str, partitions=1).map(str).send_to(app.output("out"))
    assert testing.run(app, {"numbers": [1, 2]})["out"] == ["1", "None"]


def test_a_plan_that_is_refused_leaves_nothing_behind(app, log):
    app.input("numbers", value=int)
    with pytest.raises(PlanError):
        app.run(log.path, until_now=True)
    summing(App("runs")).run(log.path, until_now=True)


def test_a_mistaken_binding_is_refused(app):
    summing(app)
    with pytest.raises(
        SamzaError, match="bind has 'others', which the app neither reads nor writes; it has numbers, sums"
    ):
        app.run(MemoryEnvironment(), bind={"others": ListSink()})


@pytest.mark.parametrize("on", [None, Spark()], ids=["here", "on Spark"])
def test_an_environment_that_is_no_cluster_is_refused(on, app, tmp_path):
    counting(app)
    with pytest.raises(SamzaError, match=r"environment=True is no cluster; write instead: environment="):
        app.run(tmp_path, environment=True, on=on)


def test_a_bad_record_is_skipped_where_it_is_read(app, log):
    app.input("numbers", value=int, on_error=skip).send_to(app.output("out", value=int))
    log.write("numbers", [1, "x", 3], ended=True)
    assert app.run(log.path).metrics().total("skipped") == 1
    assert log.values("out") == [1, 3]


def test_panes_are_values_like_others(app, log):
    counting(app)
    panes = app.input("words", value=str, timestamp=lambda word: 1).window_all(tumbling(milliseconds=10), count())
    panes.send_to(app.output("panes", value=Pane[None, int]))
    log.write("words", ["a", "b"], ended=True)
    log.write("numbers", [1], ended=True)
    app.run(log.path)
    assert [record.value for record in log.records("panes")] == [b'{"key":null,"start":0,"end":10,"value":2}']
