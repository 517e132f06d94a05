"""While something runs the collector looks less often, and it still finds what is garbage."""

import asyncio
import gc

import pytest

from runtime.commit.commit import Committer
from runtime.model.errors import OperatorFailure
from runtime.model.garbage import MADE, MANY, collector_patient
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App
from tests.simulation.crash import memory
from tests.spark.shuffling import run_here


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def calling(function, calls):
    app = App("calling")
    app.input("numbers").async_flat_map(function, max_in_flight=calls, order="none").send_to(app.output("out"))
    return app


async def looking(_number):
    await asyncio.sleep(0)
    return [gc.get_threshold()[:2]]  # the third is always 0 in some versions


def test_a_run_is_patient(tmp_path):
    out = ListSink()
    calling(looking, 2).run(data=tmp_path, bind={"numbers": [1, 2], "out": out})
    assert out.values == [(MADE, 1)] * 2
    assert gc.get_threshold()[:2] == (700, 10)


def test_a_unit_on_spark_is_as_patient():
    run = run_here(calling(looking, MANY), memory(), bind={"numbers": [1, 2]})
    assert run.received("out") == [[MADE, 1]] * 2
    assert gc.get_threshold()[:2] == (700, 10)


def test_a_run_that_fails_leaves_the_collector_as_it_was(tmp_path):
    async def failing(_number):
        raise ValueError

    with pytest.raises(OperatorFailure):
        calling(failing, MANY).run(data=tmp_path, bind={"numbers": [1], "out": ListSink()})
    assert gc.get_threshold()[:2] == (700, 10)


@pytest.mark.parametrize("threshold", [(0, 10, 10), (MADE, 10, 10), (2 * MADE, 5, 5)])
def test_who_has_it_more_patient_or_not_at_all_keeps_that(threshold):
    gc.set_threshold(*threshold)
    with collector_patient():
        assert gc.get_threshold()[:2] == threshold[:2]
    assert gc.get_threshold()[:2] == threshold[:2]


def test_what_is_set_meanwhile_stays():
    with collector_patient():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold()[:2] == (123, 4)


def test_runs_that_overlap_leave_it_as_it_was():
    first, second = collector_patient(), collector_patient()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold()[:2] == (700, 10)


class Knot:
    """What refers to itself, so that only the collector frees it."""

    alive = most = 0

    def __init__(self):
        self.itself = self
        Knot.alive += 1
        Knot.most = max(Knot.most, Knot.alive)

    def __del__(self):
        Knot.alive -= 1


def test_cycles_that_calls_leave_are_collected_while_it_runs(tmp_path):
    async def tying(number):
        knot = Knot()
        await asyncio.sleep(0)
        return [number] if knot else []

    calling(tying, MANY).run(data=tmp_path, bind={"numbers": [*range(2 * MADE)], "out": ListSink()})
    assert MANY <= Knot.most < MADE


def remembering(keys):
    """A run whose one commit has so many entries of state."""
    app = App("remembering")
    numbers = app.input("numbers", key=str, value=int)
    numbers.scan(lambda seen, number: number, op_id="seen").send_to(app.output("out"))
    return app, {"numbers": ListSource([*range(keys)], keys=[b"%d" % key for key in range(keys)]), "out": ListSink()}


@pytest.mark.parametrize("keys", [MANY // 2, 2 * MANY])
def test_the_collector_looks_behind_a_commit_of_many_entries_and_not_at_it(keys, tmp_path, monkeypatch):
    looks, write = [], Committer.write

    def writing(committer, commit, tasks):
        if commit.state:
            looks.append(gc.isenabled())
        write(committer, commit, tasks)
        if commit.state:
            looks.append(gc.isenabled())

    monkeypatch.setattr(Committer, "write", writing)
    app, bind = remembering(keys)
    app.run(data=tmp_path, bind=bind)
    assert looks == [keys < MANY] * len(looks) != []
    assert gc.isenabled()


def test_a_commit_that_fails_leaves_the_collector_on(tmp_path, monkeypatch):
    def failing(committer, commit, tasks):
        assert not gc.isenabled()
        raise OSError("no space left")

    monkeypatch.setattr(Committer, "write", failing)
    app, bind = remembering(2 * MANY)
    with pytest.raises(OSError, match="no space left"):
        app.run(data=tmp_path, bind=bind)
    assert gc.isenabled()
