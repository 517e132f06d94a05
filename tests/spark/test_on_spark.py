"""Whole runs on Spark itself, on two cores of this machine; one session for all, since it takes long to begin."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from threading import Event
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from runtime.model.clock import sleep_ms
from runtime.model.errors import OperatorFailure
from runtime.spark.batch import SparkEngine
from runtime.spark.connection import ThroughJvm
from runtime.spark.session import clone_of
from runtime.units.driver import engine
from runtime.units.driver.application import Application
from runtime.units.driver.engine import run_together
from runtime.units.shipping import shipped
from samza_dsl import App, Options, SamzaError, Spark, count, dead_letter, produce, tumbling
from samza_dsl.view.live import finish, picture_of
from samza_dsl.view.progress import Progress
from tests.building import build
from tests.conformance.pipelines import PIPELINES, app_of, filled
from tests.conformance.test_runners import lived, results
from tests.flights.streams import OUTPUTS, example, records
from tests.runtime.test_laws import World
from tests.scale import examples, scale
from tests.simulation.crash import memory, run_once
from tests.source import ROOT
from tests.spark.combining import app_of as app_of_choices
from tests.spark.combining import choices
from tests.spark.test_columnar import KINDS, measuring, write
from tests.spark.test_combining import filled as seen
from tests.strategies import any_pipeline, any_records

MOST_FLIGHTS = scale(60_000, 60_000, 400_000)
"""Two months of flights, and in the long tier the year."""


class Tick(msgspec.Struct, frozen=True):
    key: str
    at: int


def written(directory, files=3, rows=500):
    """Write ticks in disorder, one file per partition, and return their directory."""
    chance = random.Random(0)
    directory.mkdir()
    for number in range(files):
        ticks = [Tick(f"k{chance.randint(0, 6)}", max(row * 10 - chance.choice((0, 0, 500)), 0)) for row in range(rows)]
        (directory / f"{number}.jsonl").write_bytes(b"".join(msgspec.json.encode(tick) + b"\n" for tick in ticks))
    return directory


def counting():
    app = App("counting")
    ticks = app.input("ticks", value=Tick, timestamp=lambda tick: tick.at, max_disorder_ms=100)
    panes = ticks.partition_by(lambda tick: tick.key, partitions=3).window(tumbling(seconds=1), count())
    panes.map(lambda pane: {"key": pane.key, "start": pane.start, "n": pane.value}).send_to(app.output("counts"))
    return app


def drawn(number, strategy):
    """Return as many examples as Hypothesis draws."""
    found = []

    @settings(max_examples=number, database=None, phases=[Phase.generate])
    @given(strategy)
    def draw(one):
        found.append(one)

    draw()
    return found


def test_windows_that_are_folded_in_parts_come_on_spark_to_what_a_live_run_comes_to(session):
    drawings = drawn(examples(40, 2_000), choices())
    apps, environments = [*map(app_of_choices, drawings)], [seen(one.parts) for one in drawings]
    run_together(SparkEngine(session, most_tasks=4), [prepared(*one) for one in zip(apps, environments, strict=True)])
    for one, app, environment in zip(drawings, apps, environments, strict=True):
        live = seen(one.parts)
        run_once(app, live)
        assert results(app, environment) == results(app, live), one


def test_inputs_that_are_folded_as_columns_come_on_spark_to_what_a_live_run_comes_to(session, tmp_path):
    drawings = drawn(examples(40, 2_000), st.tuples(choices(), st.sampled_from(["count", *KINDS])))
    apps, environments, applications = [measuring(*one) for one in drawings], [memory() for _ in drawings], []
    for number, ((one, _), app, environment) in enumerate(zip(drawings, apps, environments, strict=True)):
        directory = tmp_path / str(number)
        directory.mkdir()
        write(directory, one.parts)
        applications.append(Application(app.pipeline(), environment, {"seen": directory}))
    run_together(SparkEngine(session, most_tasks=4), applications)
    for number, (one, app, environment) in enumerate(zip(drawings, apps, environments, strict=True)):
        live = memory()
        run_once(app, live, bind={"seen": tmp_path / str(number)})
        assert results(app, environment) == results(app, live), one


def lines(path):
    return Counter(path.read_text().splitlines())


def prepared(app, environment):
    return Application(app.pipeline(), environment, {})


def test_every_operator_comes_on_spark_to_what_the_live_run_comes_to(session):
    apps, environments = [app_of(name) for name in PIPELINES], [filled() for _ in PIPELINES]
    run_together(SparkEngine(session, most_tasks=4), [prepared(*one) for one in zip(apps, environments, strict=True)])
    for name, app, environment in zip(PIPELINES, apps, environments, strict=True):
        assert results(app, environment) == lived(name), name


def test_pipelines_that_are_drawn_come_on_spark_to_what_their_records_say(session):
    worlds = []
    for seed in range(examples(40, 2_000)):
        chance = random.Random(seed)
        pipeline = any_pipeline(chance)
        parts = any_records(chance, pipeline.partitions, nulls=pipeline.nulls)
        worlds.append(World(pipeline, parts, seed, build(pipeline).options))
    applications = [prepared(build(one.pipeline, pace=one.seed), one.environment) for one in worlds]
    run_together(SparkEngine(session, most_tasks=4), applications)
    for seed, world in enumerate(worlds):
        try:
            world.outcome.check_results()
        except AssertionError as error:
            error.add_note(f"seed {seed}: {world.pipeline}")
            raise


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_files_become_files(session, tmp_path, suffix):
    ticks, out, live = written(tmp_path / "ticks"), tmp_path / f"out.{suffix}", tmp_path / f"live.{suffix}"
    app = App("copying")
    read = app.input("ticks", value=Tick)
    read.filter(lambda tick: tick.at % 20 == 0).send_to(app.output("out", value=Tick))
    run = app.run(on=Spark(session), bind={"ticks": ticks, "out": out})
    app.run(tmp_path / "log", bind={"ticks": ticks, "out": live})
    again = App("reading")
    again.input("out", value=Tick).send_to(again.output("copy", value=Tick))
    found = [again.run(tmp_path / f"log-{path.stem}", bind={"out": path}).received("copy") for path in (out, live)]
    assert Counter(found[0]) == Counter(found[1]) != Counter()
    assert run.metrics().emitted("filter-ticks") == len(found[0])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] == ".") == []


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_directory_takes_a_file_of_each_task(session, tmp_path, suffix):
    ticks, out, whole = written(tmp_path / "ticks"), tmp_path / f"out.{suffix}", tmp_path / f"whole.{suffix}"
    out.mkdir()
    app = App("copying")
    app.input("ticks", value=Tick).filter(lambda tick: tick.at >= 10).send_to(app.output("out", value=Tick))
    for path in (out, whole):
        app.run(on=Spark(session), bind={"ticks": ticks, "out": path})
    parts = sorted(out.iterdir())
    assert [path.name for path in parts] == [f"part-{number:06}.{suffix}" for number in range(len(parts))]
    assert 1 < len(parts) <= len([*ticks.iterdir()])
    headers = 1 if suffix == "csv" else 0
    found = [line for part in parts for line in part.read_text().splitlines()[headers:]]
    assert found == whole.read_text().splitlines()[headers:] != []
    with pytest.raises(SamzaError, match="has something in it already"):
        app.run(on=Spark(session), bind={"ticks": ticks, "out": out})


def test_event_time_goes_through_the_shuffle(session, tmp_path):
    ticks, out, live = written(tmp_path / "ticks"), tmp_path / "out.jsonl", tmp_path / "live.jsonl"
    run = counting().run(on=Spark(session), bind={"ticks": ticks, "counts": out})
    alive = counting().run(tmp_path / "log", bind={"ticks": ticks, "counts": live})
    assert lines(out) == lines(live) != Counter()
    for id in (one.id for one in run.plan.operators):
        assert (run.metrics().received(id), run.metrics().emitted(id)) == (
            alive.metrics().received(id),
            alive.metrics().emitted(id),
        ), id


def test_streams_of_the_log_become_streams_of_the_log_at_once(session, tmp_path):
    app = App("shouting")
    words = app.input("words", value=str, key=str)
    words.map(str.upper, on_error=dead_letter("letters")).send_to(app.output("shouts", value=str, partitions=2))
    produce("words", ["ahoy", "land"], value=str, key=lambda word: word[0], data=tmp_path / "data")
    run = app.run(tmp_path / "data", on=Spark(session))
    assert sorted(run.received("shouts")) == ["AHOY", "LAND"] and run.received("letters") == []
    with pytest.raises(SamzaError, match="'shouts' holds records already"):
        app.run(tmp_path / "data", on=Spark(session))


def test_an_error_in_a_worker_is_the_error_of_a_live_run_and_leaves_nothing(session, tmp_path):
    ticks, out = written(tmp_path / "ticks"), tmp_path / "out.jsonl"
    app = App("failing")
    app.input("ticks", value=Tick).map(lambda tick: tick.at // (tick.at - 70)).send_to(app.output("out"))
    said = []
    for how in ({"on": Spark(session)}, {}):
        with pytest.raises(OperatorFailure) as raised:
            app.run(tmp_path / f"log-{len(said)}", bind={"ticks": ticks / "0.jsonl", "out": out}, **how)
        said.append(str(raised.value))
        assert not out.exists() or not out.stat().st_size
        out.unlink(missing_ok=True)
    assert said[0] == said[1] and "test_on_spark.py" in said[0] and "ZeroDivisionError" in said[0]
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []


def test_a_run_is_not_looked_at_while_it_is_sent(session, tmp_path):
    app, looked = App("sent"), Event()
    app.input("ticks", value=Tick).map(lambda tick: tick.at).send_to(app.output("out"))

    def sent(program, imported=()):
        (job,) = program.jobs
        before = [*vars(job)]
        looked.clear()
        assert looked.wait(300)
        assert [*vars(job)] == before, "who looks at it leaves it as it is"
        return shipped(program, imported)

    async def watch(run):
        while True:
            run.metrics()
            looked.set()
            await sleep_ms(1)

    bind = {"ticks": written(tmp_path / "ticks"), "out": tmp_path / "out.jsonl"}
    with patch.object(engine, "shipped", sent):
        assert app.run(on=Spark(session), bind=bind, watch=watch).metrics().received("ticks") == 1_500


def test_a_bounded_run_is_seen_while_it_goes_on(session, tmp_path):
    ticks, out, gate = written(tmp_path / "ticks"), tmp_path / "out.jsonl", tmp_path / "gate"
    app, seen = App("seen", Options(batch_records=50)), []

    async def waiting(tick):
        while tick.at > 2_000 and not gate.exists():
            await sleep_ms(10)
        return [tick]

    read = app.input("ticks", value=Tick).async_flat_map(waiting, op_id="waiting", timeout_ms=20_000)
    read.partition_by(lambda tick: tick.key, partitions=2, op_id="keyed").map(
        lambda tick: tick.at, op_id="told"
    ).send_to(app.output("out"))

    async def watch(run):
        progress = Progress(run.plan)
        try:
            while True:
                progress.take(run.metrics())
                seen.append((run.metrics(), picture_of(progress, "running", (120, 100))))
                if 0 < progress.read < 1_500 and progress.passed("waiting").received:
                    gate.touch()
                await sleep_ms(10)
        finally:
            seen.append((run.metrics(), picture_of(progress, finish(progress, run), (120, 100))))

    run = app.run(on=Spark(session), bind={"ticks": ticks, "out": out}, watch=watch)
    between = next(one for one, _ in seen if 0 < one.received("waiting") < 1_500)
    assert [one.stage for one in between.stages] == [stage.id for stage in run.plan.stages]
    assert between.stages[0].running and not between.stages[1].running and between.received("told") == 0
    assert abs(sum(one.end for one in between.inputs) - 1_500) < 100, "what nobody has begun is estimated"
    assert sum(one.offset for one in between.inputs) < 1_400
    last = seen[-1][0]
    assert [(one.tasks, one.done, one.running) for one in last.stages] == [(3, 3, 0), (2, 2, 0)]
    assert last.operators == run.metrics().operators and last.received("told") == 1_500
    counts = [one.received("told") for one, _ in seen]
    assert counts == sorted(counts)


def test_a_retried_task_doubles_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "spark" / "retried.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "tries.json").read_text()) == {"tries": 2}
    assert lines(tmp_path / "out.jsonl") == Counter(str(n) for n in range(100))
    seen = json.loads(done.stdout)
    assert seen == sorted(seen) and seen[-1] == 100, "what the first attempt has read is not counted again"


@pytest.mark.timeout(900)
def test_a_driver_that_dies_between_two_outputs_is_gone_on_with(tmp_path):
    (tmp_path / "numbers.jsonl").write_text("1\n2\n3\n")
    program = [sys.executable, ROOT / "tests" / "spark" / "two_files.py", tmp_path]
    assert subprocess.run([*program, "1"], capture_output=True).returncode == -signal.SIGKILL
    assert (tmp_path / "first.jsonl").exists() and not (tmp_path / "second.jsonl").exists()
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "1", "2", "3"]), done.stderr
    assert lines(tmp_path / "first.jsonl") == lines(tmp_path / "second.jsonl") == Counter("123")
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []
    again = subprocess.run(program, capture_output=True, text=True)
    assert "first.jsonl has something in it already" in again.stderr


def test_a_script_needs_no_java_and_takes_its_own_classes_along(tmp_path):
    without = tmp_path / "bin"
    without.mkdir()
    for name in ("bash", "sh", "dirname", "env", "uname", "ps", "cat", "sed", "nice", "id", "hostname", "rm"):
        if (found := shutil.which(name)) is not None:
            (without / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    environment |= {"PATH": str(without), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, ROOT / "tests" / "spark" / "script.py", tmp_path]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "4"]


@pytest.mark.timeout(900)
def test_flights_come_on_spark_to_what_they_come_to_live(session, tmp_path):
    load, flights = example("flights_data").load, example("flights")
    for name, how in (("live", {}), ("spark", {"on": Spark(session)})):
        load(tmp_path / name, MOST_FLIGHTS)
        flights.pipeline().run(tmp_path / name, **how)
    for stream in OUTPUTS:
        live, spark = (Counter(records(tmp_path / name, stream)) for name in ("live", "spark"))
        assert live == spark != Counter(), stream


def by_first_letter():
    app = App("letters")
    words = app.input("words", value=str)
    words.partition_by(lambda word: word[0], partitions=2).scan(
        lambda seen, word: seen + 1, init=int, emit=lambda key, seen: (key, seen)
    ).send_to(app.output("seen"))
    return app


def test_a_session_stays_as_it_is_and_what_is_set_there_holds(session, tmp_path):
    from pyspark.sql import SparkSession

    def told():
        made = session.sparkContext.parallelize([(1,)]).toDF(["a"]).sparkSession
        # PySpark 3.5 makes another object of the same session whenever it is asked for the active one.
        sessions = [one._jsparkSession for one in (made, SparkSession.getActiveSession())]
        return sessions, session.sql("SET").collect()

    path, out = tmp_path / "words.jsonl", tmp_path / "seen.jsonl"
    path.write_text('"ahoy"\n"aye"\n"land"\n')
    session.range(3).createOrReplaceTempView("three")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    before = told()
    clone_of(session).conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    assert told() == before
    by_first_letter().run(tmp_path / "data", on=Spark(session), bind={"words": path, "seen": out})
    assert lines(out) == Counter(['["a",1]', '["a",2]', '["l",1]'])
    assert told() == before
    assert session.table("three").count() == 3
    copy = ThroughJvm(session).numbers(1, 1)
    assert copy._jdf.sparkSession().conf().get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert copy._jdf.sparkSession().conf().get("spark.sql.adaptive.enabled") == "false"
    session.conf.unset("spark.sql.session.timeZone")


def test_where_a_session_can_not_be_copied_it_plans_itself(session):
    class Other:
        _jsparkSession = None
        sparkContext = session.sparkContext
        range = staticmethod(session.range)

    assert [row.id for row in ThroughJvm(Other()).numbers(3, 2).collect()] == [0, 1, 2]
