"""What units of a plan come to when rows are shuffled between them as Spark does, for pipelines that are drawn."""

import asyncio
import gc
import gzip
import random
import sys
import threading
from collections import Counter
from contextlib import closing
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from runtime.model.clock import SystemClock
from runtime.ports.stream_values import values_of
from runtime.systems.memory.lists import ListSink
from runtime.units.driver.application import Application
from runtime.units.driver.engine import finish
from runtime.units.program import Program
from runtime.units.shuffle_rows import beginnings
from runtime.units.worker.worker import new_event_loop, run_units
from samza_dsl import App, Options, count, dead_letter, session, tumbling, whole
from tests.building import build
from tests.conformance.process_pool import process_pool, run_in_pool
from tests.runtime.test_laws import worlds
from tests.scale import examples
from tests.simulation.crash import memory, run_once
from tests.spark.shuffling import run_here, shuffled
from tests.strategies import SEVERAL_STAGES


@given(worlds(), st.integers(0, 999))
@settings(max_examples=examples(40, 20_000))
def test_what_units_come_to_is_what_the_records_say(world, seed):
    with patch("runtime.units.shuffle_rows.BLOCK", 1 + seed % 3):
        run_here(build(world.pipeline, world.options, world.seed), world.environment, seed=seed)
    world.outcome.check_results()


@pytest.mark.parametrize("kinds", SEVERAL_STAGES, ids="-".join)
@given(st.data(), st.integers(0, 999))
@settings(max_examples=examples(10, 5_000))
def test_what_units_come_to_between_shuffles_is_what_the_records_say(kinds, data, seed):
    world = data.draw(worlds(kinds))
    with patch("runtime.units.shuffle_rows.BLOCK", 1 + seed % 3):
        run_here(build(world.pipeline, world.options, world.seed), world.environment, seed=seed)
    world.outcome.check_results()


def test_state_lies_on_disk_while_a_unit_runs_and_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},{tmp_path / 'other'}")
    seen = []

    def counted(state, number):
        seen.append(len(list(tmp_path.iterdir())))
        return state + 1

    app = App("spilling", Options(max_uncommitted=10, cache_entries=0, batch_records=10))
    numbers = app.input("numbers", value=int).partition_by(lambda n: n % 50, partitions=2)
    numbers.scan(counted, init=int).send_to(app.output("counts", value=int))
    run = run_here(app, memory(), bind={"numbers": list(range(500))})
    assert Counter(run.received("counts")) == Counter(dict.fromkeys(range(1, 11), 50))
    assert 1 in seen and [*tmp_path.iterdir()] == []


def test_lists_and_sinks_of_the_users_own_are_bound():
    app, sink = App("lists"), ListSink()
    words = app.input("words", value=str).map(str.upper)
    words.send_to(app.output("shouts", value=str))
    words.partition_by(len, partitions=2).map(len).send_to(app.output("lengths", value=int))
    run = run_here(app, memory(), bind={"words": ["ahoy", "land"], "shouts": sink, "lengths": ListSink(columns=())})
    assert sink.values == run.received("shouts") == ["AHOY", "LAND"]
    assert run.received("lengths") == [4, 4]


def test_blocking_functions_have_threads():
    app = App("threads", Options(threads=2))
    numbers = app.input("numbers", value=int).map(lambda n: (n, threading.get_ident() != home))
    numbers.send_to(app.output("seen"))
    home = threading.get_ident()
    application = Application(app.pipeline(), memory(), {"numbers": [1, 2]})
    program = Program((application.job,))
    (found,) = finish([application], program, shuffled(program, random.Random(0), SystemClock()), 0.0)
    assert found.received("seen") == [[1, True], [2, True]]


def test_a_stage_that_ends_early_leaves_the_rest_unread():
    def first_only(message, context):
        context.send(out, message.value)
        context.shutdown()

    app = App("ending", Options(batch_records=1))
    out = app.output("out", value=int)
    app.task(
        app.input("numbers", value=int).partition_by(lambda n: 0, partitions=1), first_only, outputs=[out], op_id="t"
    )
    assert run_here(app, memory(), bind={"numbers": [5, 6, 7]}).received("out") == [5]


@pytest.mark.parametrize(
    ("how", "goes"),
    [({}, False), ({"late": dead_letter("late")}, True), ({"on_error": dead_letter("bad")}, True)],
)
def test_values_that_windows_only_count_do_not_go_through_the_shuffle(how, goes):
    app = App("counting")
    keyed = app.input("in", value=str, timestamp=len).partition_by(lambda text: text[0], partitions=1)
    keyed.window(tumbling(milliseconds=10), count(), **how).map(lambda pane: pane.value).send_to(app.output("out"))
    application = Application(app.pipeline(), memory(), {"in": ["a secret", "b"], "out": ListSink()})
    program = Program((application.job,))
    written = b"".join(
        value
        for batch in run_units(program, 0, [beginnings(program.levels[0])])
        for value in batch.column("value").to_pylist()
        if value is not None
    )
    assert (b"a secret" in written) is goes


def test_a_unit_that_nobody_asks_on_ends_without_a_word():
    app = App("copying", Options(max_uncommitted=10, batch_records=10))
    app.input("numbers", value=int).partition_by(lambda n: n, partitions=2).send_to(app.output("copy"))
    application = Application(app.pipeline(), memory(), {"numbers": list(range(500))})
    units = run_units(Program((application.job,)), 0, [beginnings([0])])
    next(units)
    next(units)
    units.close()
    application.close()


def test_units_are_run_on_uvloop_where_it_is_installed_and_else_on_pythons_own_event_loop(monkeypatch):
    with closing(new_event_loop()) as loop:
        assert isinstance(loop, uvloop.Loop)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with closing(new_event_loop()) as loop:
        assert isinstance(loop, asyncio.BaseEventLoop)


@pytest.mark.parametrize("windows", [tumbling(milliseconds=25), session(milliseconds=5), whole()], ids=str)
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv"])
def test_windows_of_the_stage_that_reads_fire_at_the_end_of_a_file(tmp_path, windows, kind):
    """How long a file is only its end tells, and behind that nothing comes by which something would fire."""
    rows = [("a", 1), ("a", 100), ("b", 130)]
    text = "".join(f"{key},{at}\n" if kind == "csv" else f'{{"key": "{key}", "at": {at}}}\n' for key, at in rows)
    text = f"key,at\n{text}" if kind == "csv" else text
    file = tmp_path / f"ticks.{kind}"
    file.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    found = []
    for run in (run_here, lambda app, environment, bind: run_once(app, environment, bind=bind)):
        app, environment = App("alone"), memory()
        ticks = app.input("ticks", value=Keyed, key=lambda tick: tick.key, timestamp=lambda tick: tick.at)
        ticks.window(windows, count()).map(repr).send_to(app.output("out", value=str))
        run(app, environment, bind={"ticks": file})
        found.append(sorted(values_of(environment, "out", None)))
    assert found[0] == found[1] != []


class Keyed(msgspec.Struct):
    key: str
    at: int


def looked_at():
    """Return what Python's collector looks at in this process where it collects all."""
    gc.collect()
    return len(gc.get_objects())


def test_what_a_first_task_imports_is_not_looked_at_behind_each_task_that_follows(tmp_path):
    # Spark collects all behind each task: what a task had imported took longer to look at than a small task to run.
    with process_pool(at_once=1) as engine:

        def run(number):
            source, found = tmp_path / f"{number}.parquet", tmp_path / f"found-{number}.parquet"
            parquet.write_table(pa.table({"key": ["a", "b"]}), source)
            app = App("twice")
            app.input("rows", value=dict).map(lambda row: row).send_to(app.output("found", value=dict))
            run_in_pool(engine, app, tmp_path, {"rows": source, "found": found})
            return engine.pool.submit(looked_at).result()

        first, second, third = map(run, range(3))
    assert second < first / 4
    assert third < first / 4
