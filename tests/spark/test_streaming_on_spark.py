"""Micro-batches on Spark itself, on two cores of this machine: many applications in one job, and drivers that die."""

import asyncio
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from unittest.mock import patch

import pytest

from runtime.model.errors import OperatorFailure
from runtime.spark.batch import run_job
from runtime.spark.connection import connected
from runtime.units.driver.engine import told_by
from runtime.units.program import Program
from runtime.units.shipping import dumps
from samza_dsl import App, Spark, count, produce, tumbling
from tests.building import build
from tests.conformance.pipelines import PIPELINES, app_of, filled
from tests.conformance.test_runners import lived, results
from tests.faults.processes import wait_until
from tests.runtime.test_laws import World
from tests.scale import examples, scale
from tests.source import ROOT
from tests.spark.streaming import CutAtRandom, opened
from tests.strategies import any_pipeline, any_records

PATIENCE_S = 200.0
NOISE = ("WARN", "INFO", "log4j", "Setting default log level", "Stage ", "incubator", "NativeCodeLoader")
"""The words of Java's that a session of our own keeps from the terminal."""


def run_all(session, apps, environments, directory, seed=0):
    """Run micro-batches of all applications, those at a time in one job, to the end of their inputs."""

    class CutInFew(CutAtRandom):
        chance, sizes = random.Random(seed), (10, 40, 100)

    with patch("runtime.units.driver.micro_batch_application.Offered", CutInFew):
        running = [
            opened(app, environment, directory / str(number))
            for number, (app, environment) in enumerate(zip(apps, environments, strict=True))
        ]
    while left := [one for one in running if not one.is_over]:
        going = [(one, batch) for one in left if (batch := one.next()) is not None]
        if not going:
            continue
        program = Program(tuple(one.job for one, _ in going))
        batches = [batch for _, batch in going]
        rows = run_job(connected(session), dumps(program), program.at(batches), 4, pickle.dumps(batches))
        parts, reports = told_by(rows, program)
        for number, (one, batch) in enumerate(going):
            one.commit(batch, parts[number], reports[number], program.units)
    for one in running:
        one.close()


@pytest.mark.timeout(900)
def test_every_operator_comes_in_micro_batches_to_what_the_live_run_comes_to(session, tmp_path):
    apps, environments = [app_of(name) for name in PIPELINES], [filled() for _ in PIPELINES]
    run_all(session, apps, environments, tmp_path)
    for name, app, environment in zip(PIPELINES, apps, environments, strict=True):
        assert results(app, environment) == lived(name), name


@pytest.mark.timeout(900)
def test_pipelines_that_are_drawn_come_in_micro_batches_to_what_their_records_say(session, tmp_path):
    worlds = []
    for seed in range(examples(40, 1_000)):
        chance = random.Random(seed)
        pipeline = any_pipeline(chance)
        parts = any_records(chance, pipeline.partitions, nulls=pipeline.nulls)
        worlds.append(World(pipeline, parts, seed, build(pipeline).options))
    apps = [build(one.pipeline, pace=one.seed) for one in worlds]
    run_all(session, apps, [one.environment for one in worlds], tmp_path)
    for seed, world in enumerate(worlds):
        try:
            world.outcome.check_results()
        except AssertionError as error:
            error.add_note(f"seed {seed}: {world.pipeline}")
            raise


def counting():
    app = App("counting")
    ticks = app.input("ticks", value=list, timestamp=lambda tick: tick[1])
    counts = ticks.partition_by(lambda tick: tick[0], partitions=2).window(tumbling(milliseconds=100), count())
    counts.map(lambda pane: [pane.key, pane.start, pane.value]).send_to(app.output("counts", value=list))
    return app


def test_a_run_goes_on_from_its_checkpoint_until_its_inputs_end(session, tmp_path):
    data, spark = tmp_path / "data", {"session": session, "checkpoint": tmp_path / "checkpoint"}
    produce("ticks", [["a", 10], ["a", 20], ["a", 120]], value=list, data=data)
    run = counting().run(data, on=Spark(**spark, max_records=1), until_now=True)
    assert (run.received("counts"), run.metrics().commits) == ([["a", 0, 2]], 3)
    assert run.metrics().received("ticks") == 3
    produce("ticks", [["a", 130], ["b", 210]], value=list, data=data)
    assert counting().run(data, on=Spark(**spark), until_now=True).received("counts") == [["a", 0, 2], ["a", 100, 2]]
    ended = counting().run(data, on=Spark(**spark, end=True))
    assert sorted(ended.received("counts")) == [["a", 0, 2], ["a", 100, 2], ["b", 200, 1]]
    assert counting().run(data, on=Spark(**spark)).metrics().commits == 0


def test_a_run_is_watched_as_of_its_last_micro_batch(session, tmp_path):
    data, seen, ended = tmp_path / "data", [], []
    produce("ticks", [["a", at] for at in range(5)], value=list, data=data)

    async def watch(run):
        try:
            while True:
                found = run.metrics()
                seen.append(
                    (
                        found.commits,
                        found.received("ticks"),
                        sum(one.lag for one in found.inputs if one.stream == "ticks"),
                    )
                )
                await asyncio.sleep(0)
        finally:
            ended.append((run.failed, run.stopping, run.metrics().received("ticks")))

    spark = Spark(session, checkpoint=tmp_path / "checkpoint", max_records=2)
    counting().run(data, on=spark, until_now=True, watch=watch)
    assert {(1, 2, 3), (2, 4, 1)} < set(seen) <= {(0, 0, 0), (1, 2, 3), (2, 4, 1), (3, 5, 0)}
    assert ended == [(False, False, 5)]


def test_an_error_in_a_worker_commits_nothing(session, tmp_path):
    data, spark = tmp_path / "data", Spark(session, checkpoint=tmp_path / "checkpoint", end=True)
    produce("numbers", [1, 0], value=int, data=data)

    def dividing(by):
        app = App("dividing")
        app.input("numbers", value=int).map(by).send_to(app.output("out", value=int))
        return app

    with pytest.raises(OperatorFailure, match="ZeroDivisionError"):
        dividing(lambda n: 10 // n).run(data, on=spark)
    assert dividing(lambda n: 10 * n).run(data, on=spark).received("out") == [10, 0]


def ticks():
    chance = random.Random(0)
    return [[f"k{chance.randint(0, 5)}", at] for at in range(3_000)]


def expected(found):
    counts = {}
    for key, at in found:
        place = key, at // 100 * 100
        counts[place] = counts.get(place, 0) + 1
    return sorted([key, start, number] for (key, start), number in counts.items())


def started(directory, *arguments):
    command = [sys.executable, ROOT / "tests" / "spark" / "going_on.py", directory, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def written(directory):
    files = sorted((directory / "files.jsonl").glob("part-*"))
    return sorted(json.loads(line) for file in files for line in file.read_text().splitlines())


@pytest.mark.timeout(900)
def test_drivers_that_are_killed_and_a_task_that_is_retried_lose_and_double_nothing(tmp_path):
    produce("ticks", ticks(), value=list, data=tmp_path / "data")
    chance, commits = random.Random(1), []
    for _ in range(scale(1, 1, 20)):
        driver = started(tmp_path, "100")
        wait_for_commit(driver, tmp_path, (commits or [0])[-1] + chance.randint(1, 4))
        driver.kill()
        said = driver.communicate()[1]
        assert driver.returncode == -signal.SIGKILL, said
        commits.append(committed(tmp_path))
    last = started(tmp_path, "1000", "fails")
    out, said = last.communicate()
    assert last.returncode == 0, said
    assert json.loads(out) == written(tmp_path) == expected(ticks())
    assert commits[0] > 0
    assert (tmp_path / "tries").read_text() == "xx"


def committed(directory):
    """Return the number of the last micro-batch that counts."""
    manifest = directory / "checkpoint" / "manifest.json"
    return json.loads(manifest.read_text())["batch"] if manifest.exists() else 0


def wait_for_commit(run, directory, number):
    """Wait until a micro-batch counts, or the run is over."""
    wait_until(lambda: run.poll() is not None or committed(directory) >= number, PATIENCE_S)


@pytest.mark.timeout(900)
def test_a_run_that_is_asked_to_stop_ends_behind_its_micro_batch_and_says_nothing_else(tmp_path):
    produce("ticks", ticks()[:500], value=list, data=tmp_path / "data")
    command = [sys.executable, "-m", "samza_dsl", "run", ROOT / "tests" / "spark" / "going_on.py", "--on", "spark"]
    command += ["--master", "local[2]", "--checkpoint", tmp_path / "checkpoint", "--data", tmp_path / "data"]
    command += ["--bind", f"files={tmp_path / 'files.jsonl'}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_commit(run, tmp_path, 1)
    os.kill(run.pid, signal.SIGTERM)
    out, said = run.communicate()
    assert run.returncode == 0, said
    assert not [line for line in (said + out).splitlines() if any(word in line for word in NOISE)]
    begun, *lines, ended = out.splitlines()
    assert begun == "going-on: running, 2 stages, 7 operators"
    assert re.match(r"going-on: stopped in .*: 500 read \(.*/s\), \d+ written, \d+ commit", ended), ended
    assert all(re.match(r"going-on: .*: \d+ read .* \d+ written, lag \d+, 0 in flight", line) for line in lines)
    assert written(tmp_path) == expected(ticks()[:400])
