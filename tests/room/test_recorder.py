"""What a run notes of itself: how it goes, what has happened, and what becomes of it when it can't."""

import asyncio
import errno
import json
import logging
import os
import socket
import urllib.request
from itertools import pairwise
from types import SimpleNamespace
from urllib.error import URLError

import pytest
from typer.testing import CliRunner

from planner.model.plan import OperatorPlan, Plan, StagePlan
from runtime.model.clock import sleep_ms
from runtime.model.metrics import ContainerMetrics, InputMetrics, OperatorMetrics, RunMetrics
from samza_dsl import App, Metrics, Options, SamzaError, dead_letter, produce
from samza_dsl.cli.main import commands
from samza_dsl.room import recorder as noting
from samza_dsl.room.notes import Notes, Wish, applications, events_of
from samza_dsl.room.recorder import recorded
from samza_dsl.room.ring import RingReader, RingWriter
from samza_dsl.room.runs import NotedRun, Place
from samza_dsl.settings import logs


def third(n):
    return 3 // n


def thirds(on_error=None):
    app = App("thirds")
    policy = {} if on_error is None else {"on_error": on_error}
    app.input("numbers", value=int).map(third, op_id="third", **policy).send_to(app.output("out", value=int))
    return app


def run_noted(app, data, numbers, **options):
    produce("numbers", numbers, value=int, data=data)
    with recorded(data, app.name, "here") as recorder:
        return app.run(data, watch=recorder.watch, until_now=True, **options)


def noted(data, app="thirds"):
    return NotedRun(f"0/{app}", Place(data), app)


def happened(run):
    return [one.what for one in run.happened()]


def test_a_run_that_has_ended_leaves_its_numbers_and_what_has_happened(tmp_path):
    run_noted(thirds(dead_letter("bad")), tmp_path, [1, 0, 3])
    run = noted(tmp_path)
    told = run.look()
    assert applications(tmp_path) == ["thirds"] and told["state"] == "has ended"
    assert {one["id"]: one["received"] for one in told["look"]["operators"]}["third"] == 3, "the one that failed, too"
    # What the log tells at the end is one of the things that have happened.
    assert happened(run) == ["began", "ended", "warning"]
    assert told["rest_ms"] == 0.0, "nothing comes behind the end"
    assert run.plan().app == "thirds" and "data-id" in run.picture()
    assert len(json.loads(run.samples(-1))) >= 1


def test_a_run_that_has_failed_leaves_the_error_and_the_users_line(tmp_path):
    with pytest.raises(SamzaError):
        run_noted(thirds(), tmp_path, [1, 0])
    run = noted(tmp_path)
    assert run.look()["state"] == "has failed" and happened(run)[-1] == "failed"
    failed = run.happened()[-1]
    assert "ZeroDivisionError" in failed.text and "test_recorder.py" in "\n".join(failed.lines)


def test_the_next_run_goes_on_with_the_history_of_the_one_before(tmp_path):
    for _ in range(2):
        run_noted(thirds(dead_letter("bad")), tmp_path, [1])
    run = noted(tmp_path)
    assert happened(run) == ["began", "ended"] * 2 and len(json.loads(run.samples(-1))) >= 2


def test_a_look_without_a_writer_tells_that_the_run_was_killed(tmp_path, monkeypatch):
    run_noted(thirds(dead_letter("bad")), tmp_path, [1])
    notes = Notes(tmp_path, "thirds")
    said = json.loads(notes.get("look"))
    said["look"]["state"] = "runs"
    notes.put("look", json.dumps(said).encode())
    assert noted(tmp_path).look()["state"] == "was killed"
    rings = notes.writes()
    monkeypatch.setattr("samza_dsl.room.runs.wall_clock_ms", lambda: said["at_ms"] + 1_000)
    assert noted(tmp_path).look()["state"] == "runs"
    monkeypatch.setattr("samza_dsl.room.runs.wall_clock_ms", lambda: said["at_ms"] + 60_000)
    assert noted(tmp_path).look()["state"] == "is silent"
    # A run of many operators takes long to look at, and rests accordingly: that is no silence.
    notes.put("look", json.dumps({**said, "rest_ms": 55_000.0}).encode())
    assert noted(tmp_path).look()["state"] == "runs"
    for ring in rings:
        ring.close()


def test_warnings_are_noted_without_the_secrets_that_are_known(tmp_path):
    logs.hide("hunter2-hunter2")
    with recorded(tmp_path, "thirds", "here") as recorder:
        assert recorder._open()
        logging.getLogger("samza_dsl").warning("the password is %s", "hunter2-hunter2")
        recorder.note("warning", "x" * 10_000_000, ("y" * 10_000,) * 1_000)
    first, second = events_of(RingReader(Notes(tmp_path, "thirds").events))
    assert first.text == "the password is ***" and len(second.text) < 10_000 and len(second.lines) == 32


def test_nothing_is_made_before_a_run_is_there(tmp_path):
    with pytest.raises(ValueError, match="a mistake"), recorded(tmp_path, "thirds", "here"):
        raise ValueError("a mistake")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_nothing_ends_no_run_and_is_told_once(tmp_path, monkeypatch, caplog, fault):
    produce("numbers", [1, 2], value=int, data=tmp_path)

    def full(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(RingWriter, "append", full)
    monkeypatch.setattr(Notes, "put", full)
    with recorded(tmp_path, "thirds", "here") as recorder:
        run = thirds().run(tmp_path, watch=recorder.watch, until_now=True)
    assert run.received("out") == [3, 1]
    assert len([one for one in caplog.messages if "can't note" in one]) == 1


def test_one_process_notes_the_runs_of_an_application(tmp_path):
    with recorded(tmp_path, "thirds", "here") as first, recorded(tmp_path, "thirds", "there") as second:
        assert first._open() and not second._open()
    assert not Notes(tmp_path, "thirds").is_alive()


@pytest.mark.parametrize(("what", "ended"), [("stop", "was stopped"), ("other", "has ended")])
def test_a_run_does_what_it_is_asked_and_forgets_what_was_asked_long_ago(tmp_path, what, ended):
    app = App("thirds")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    notes = Notes(tmp_path, "thirds")
    produce("numbers", [1], value=int, data=tmp_path, end=what != "stop")
    notes.folder.mkdir(parents=True)
    notes.ask(Wish(what=what, at_ms=noting.wall_clock_ms()))
    with recorded(tmp_path, "thirds", "here") as recorder:
        app.run(tmp_path, watch=recorder.watch)
    assert noted(tmp_path).look()["state"] == ended and notes.get("asked") is None
    notes.ask(Wish(what="stop", at_ms=0))
    assert notes.heed(60_000) is None and notes.heed(0) is None


@pytest.mark.parametrize("has_commits", [True, False])
def test_a_run_is_asked_to_commit_where_it_can(tmp_path, has_commits):
    asked = []
    run = SimpleNamespace(**({"want_commit": lambda: asked.append("commit")} if has_commits else {}))
    recorder = noting.Recorder(Notes(tmp_path, "thirds"), "here")
    recorder._notes.folder.mkdir(parents=True)
    recorder._notes.ask(Wish(what="commit", at_ms=noting.wall_clock_ms()))
    for _ in range(2):
        recorder._heed(run)
    assert asked == ["commit"] * has_commits


def test_a_real_run_commits_when_it_is_asked_to(tmp_path):
    """It would not by itself: a call is in flight, so it is not idle, and its interval is an hour."""
    produce("numbers", [1, 2], value=int, data=tmp_path)

    async def main():
        held = asyncio.Event()

        async def looked_up(n):
            if n == 2:
                await held.wait()
            return [n]

        app = App("asked", Options(commit_interval_ms=3_600_000, guarantee="at_least_once"))
        app.input("numbers", value=int).async_flat_map(looked_up, op_id="look-up").send_to(app.output("out", value=int))
        async with app.running(tmp_path, metrics=Metrics(address="127.0.0.1:0", ui=True)) as run:
            while not any(one.operator == "look-up" and one.emitted for one in run.metrics().operators):
                await sleep_ms(5)
            assert run.metrics().commits == 0
            Notes(tmp_path, "asked").ask(Wish(what="commit", at_ms=noting.wall_clock_ms()))
            while not run.metrics().commits:
                await sleep_ms(5)
            held.set()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_run_of_the_command_line_and_one_with_a_page_are_noted_and_others_are_not(tmp_path):
    app = thirds()
    produce("numbers", [1], value=int, data=tmp_path)
    app.run(tmp_path, until_now=True)
    assert applications(tmp_path) == []
    app.run(tmp_path, until_now=True, metrics=Metrics(address="127.0.0.1:0", ui=True))
    assert applications(tmp_path) == ["thirds"]


def test_notes_are_removed_with_all_that_a_deleted_application_has_kept(tmp_path):
    def call(*arguments):
        result = CliRunner().invoke(commands, [*arguments, "--data", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    run_noted(thirds(dead_letter("bad")), tmp_path, [1])
    call("gc")
    assert applications(tmp_path) == ["thirds"], "it is not deleted"
    call("delete", "thirds", "--yes")
    assert "removed what thirds had kept" in call("gc") and applications(tmp_path) == []
    assert "nothing to remove" in call("gc")


async def in_an_async_with(app, data):
    async with app.running(data, until_now=True, metrics=Metrics(address="127.0.0.1:0", ui=True)) as run:
        await run.ended()


async def awaited(app, data):
    await app.run_async(data, until_now=True, metrics=Metrics(address="127.0.0.1:0", ui=True))


@pytest.mark.parametrize("way", [in_an_async_with, awaited])
def test_a_run_inside_of_the_programs_own_loop_is_noted_too(way, tmp_path):
    produce("numbers", [1, 0, 3], value=int, data=tmp_path)
    asyncio.run(way(thirds(dead_letter("bad")), tmp_path))
    run = noted(tmp_path)
    assert run.look()["state"] == "has ended" and happened(run) == ["began", "ended", "warning"]
    produce("numbers", [0], value=int, data=tmp_path)
    with pytest.raises(SamzaError):
        asyncio.run(way(thirds(), tmp_path))
    assert run.look()["state"] == "has failed" and happened(run)[-1] == "failed"


def test_the_page_is_open_while_a_run_in_the_programs_own_loop_goes_on(tmp_path):
    async def asked():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        metrics = Metrics(address=f"127.0.0.1:{port}", ui=True)
        async with thirds(dead_letter("bad")).running(tmp_path, metrics=metrics) as run:
            await run.send("numbers", 3)
            opened = urllib.request.Request(f"http://127.0.0.1:{port}/livez")
            reply = await asyncio.to_thread(urllib.request.urlopen, opened)
            assert reply.status == 200
        with pytest.raises(URLError):
            await asyncio.to_thread(urllib.request.urlopen, opened)

    asyncio.run(asked())


@pytest.mark.parametrize(
    ("tasks", "operators", "name", "streams", "step_ms"),
    [
        pytest.param(500, 3, "op", 1, 5_000, id="many tasks"),
        pytest.param(1, 40, "a" * 400, 40, 5_000, id="long names"),
        pytest.param(1, 900, "an-operator", 1, 15_000, id="many operators", marks=pytest.mark.ci),
        pytest.param(1, 2_000, "a" * 600, 1, 30_000, id="more than a record may have", marks=pytest.mark.ci),
    ],
)
def test_the_page_shows_a_whole_hour_however_large_a_run_is(
    tmp_path, monkeypatch, tasks, operators, name, streams, step_ms
):
    """By a virtual clock, an hour and a half of looks, of which all of the last hour is there in the end."""
    ids, hour_ms = [f"{name}-{number}" for number in range(operators)], 3_600_000
    plan = Plan(
        app="large",
        operators=tuple(OperatorPlan(id=one, kind="map", stage="stage-1") for one in ids),
        stages=(StagePlan(id="stage-1", inputs=(), operators=tuple(ids), partitions=tasks),),
    )
    of_one = {"task": 0, "offset": 5, "end": 5, "lag": 10**6, "watermark": 7}
    numbers = RunMetrics(
        operators=tuple(OperatorMetrics(operator=one, task=task) for task in range(tasks) for one in ids),
        inputs=tuple(InputMetrics(stream=f"{name}-{one}", partition=0, **of_one) for one in range(streams)),
        containers=tuple(ContainerMetrics(container=str(one)) for one in range(64)),
    )
    now_ms = 0.0
    monkeypatch.setattr(noting, "monotonic_ms", lambda: now_ms)
    monkeypatch.setattr(noting, "wall_clock_ms", lambda: round(now_ms))
    monkeypatch.setattr(Notes, "put", lambda *_: None)  # the last look, which is no history
    with recorded(tmp_path, "large", "here") as recorder:
        assert recorder._open()
        found = noting.look(plan, noting.Interval(RunMetrics(), numbers), "runs", (), 0)
        while now_ms < 1.5 * hour_ms:
            recorder._write(plan, found, step_ms)
            now_ms += step_ms
    told = json.loads(noted(tmp_path, "large").samples(-1))
    times = [sample["at_ms"] for _, sample in told]
    between = [later - sooner for sooner, later in pairwise(times)]
    assert times[0] <= hour_ms / 2 and times == sorted(times) and len(times) >= 60
    assert max(between) <= 60_000 and now_ms - times[-1] <= 60_000, "a minute apart at most"
    assert sum(path.stat().st_size for path in Notes(tmp_path, "large").folder.iterdir()) < 16 << 20
