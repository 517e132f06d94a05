"""A driver that dies while it makes the outputs of a bounded run visible leaves a run that is gone on with."""

import os
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from runtime.model.errors import Owned
from runtime.ports.stream_values import values_of
from runtime.spark import recomputation as recompute
from runtime.systems.log import staging as log_staging
from runtime.systems.log.environment import LogEnvironment, verify
from runtime.systems.log.staging import Staging
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from runtime.units.driver import application
from runtime.units.publication import intent
from runtime.units.publication.handover_parts import StagedHandover
from runtime.units.publication.intent import Intent
from runtime.units.publication.staged_topics import StagedRows
from samza_dsl import App, Json, SamzaError, Spark, dead_letter, produce
from tests.sample import crossed
from tests.simulation.crash import memory
from tests.spark.deaths import death
from tests.spark.shuffling import batch_here, run_here
from tests.spark.test_reprocess_on_spark import counted, counting, ticks
from tests.spark.test_streaming import dying

STEPS = (
    (application, "note"),
    (Intent, "rename"),
    (Path, "replace"),
    (Intent, "sweep"),
    (application, "forget"),
)
IN_MEMORY = ((MemoryEnvironment, "create_stream"), (MemoryEnvironment, "commit"))
ON_DISK = (
    (LogEnvironment, "create_stream"),
    (LogEnvironment, "stage"),
    (Staging, "append"),
    (StagedRows, "remove"),
    (LogEnvironment, "publish"),
)
NUMBERS = range(20)
REFUSED = range(0, 20, 7)
TAKEN = Counter(set(NUMBERS) - set(REFUSED))


def checked(number):
    if number in REFUSED:
        raise ValueError(number)
    return number


def app():
    app = App("writing")
    numbers = app.input("numbers", value=int)
    for name in ("first", "second"):
        numbers.send_to(app.output(name, value=int))
    numbers.map(checked, on_error=dead_letter("refused")).send_to(app.output("third", value=int))
    return app


def numbers_in(path):
    return Counter(int(line) for line in path.read_text().splitlines())


def check(environment, directory):
    """See that each output has each number once; of one that is refused nothing is left but a dead letter."""
    for name in ("first", "second"):
        assert numbers_in(directory / f"{name}.jsonl") == TAKEN
    assert Counter(values_of(environment, "third", Json(int))) == TAKEN
    assert Counter(map(int, values_of(environment, "refused", None))) == Counter(REFUSED)
    assert not (directory / ".first.jsonl.publishing").exists()


def driven_to_death(environment, directory, where, step, is_before, number):
    """Have a driver die at a step, see that nothing is there in half, and have another one come after it."""
    bind = {"numbers": list(NUMBERS), "first": directory / "first.jsonl", "second": directory / "second.jsonl"}
    with death(), dying(where, step, is_before, number):
        run_here(app(), environment, bind)
    if (directory / ".first.jsonl.publishing").exists() or not (directory / "first.jsonl").exists():
        assert run_here(app(), environment, bind).metrics().received("numbers") == len(NUMBERS)
    return bind


@pytest.mark.parametrize(("step", "is_before", "number"), crossed(STEPS + IN_MEMORY, [True, False], [1, 2, 3]))
def test_all_outputs_are_there_whole_whenever_a_driver_dies(tmp_path, step, is_before, number):
    environment = memory()
    bind = driven_to_death(environment, tmp_path, *step, is_before, number)
    check(environment, tmp_path)
    with pytest.raises(SamzaError, match=r"holds records already|has something in it already"):
        run_here(app(), environment, bind)


@pytest.mark.parametrize(("step", "is_before", "number"), crossed(STEPS + ON_DISK, [True, False], [1, 2, 3]))
def test_nothing_is_there_in_half_on_disk_whenever_a_driver_dies(tmp_path, monkeypatch, step, is_before, number):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 1)  # a transaction for each part
    data = tmp_path / "data"
    bind = driven_to_death(data, tmp_path, *step, is_before, number)
    with closing(LogEnvironment(data)) as log:
        check(log, tmp_path)
    assert verify(data) == []
    assert not (data / "spark").exists() or not [*(data / "spark").rglob("*-*")], "nothing of an attempt is left"
    with pytest.raises(SamzaError, match=r"holds records already|has something in it already"):
        run_here(app(), data, bind)


HANDING_OVER = (
    (StagedHandover, "complete"),
    (application, "note"),
    (LogEnvironment, "publish"),
    (Intent, "rename"),
    (Intent, "sweep"),
    (application, "forget"),
)


def recomputed(app, data):
    with patch.object(recompute, "run_batch", batch_here):
        return app.reprocess(data, on=Spark(), handover=data.parent / "handover")


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(("where", "step"), HANDING_OVER)
def test_a_handover_comes_with_the_results_before_it_whenever_a_driver_dies(tmp_path, where, step, is_before):
    app, data, live, sent = counting(), tmp_path / "data", tmp_path / "live", ticks(1)
    produce("ticks", sent, data=live, key=lambda tick: tick.key, partitions=3, end=True)
    produce("ticks", sent[:200], data=data, key=lambda tick: tick.key, partitions=3)
    with death(), dying(where, step, is_before, 1):
        recomputed(app, data)
    with suppress(SamzaError):  # where all was done already
        recomputed(app, data)
    assert not [*(data / "spark").rglob("*.publishing")]
    produce("ticks", sent[200:], data=data, key=lambda tick: tick.key, end=True)
    app.take_over(tmp_path / "handover", data)
    assert counted(app.run(data)) == counted(app.run(live))
    assert verify(data) == []


def test_half_of_what_goes_to_the_log_is_never_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 1)
    data, bind = tmp_path / "data", {"numbers": list(NUMBERS), "first": tmp_path / "1.jsonl", "second": ListSink()}
    for number in (1, 2):
        with death(), dying(Staging, "append", False, number):
            run_here(app(), data, bind)
        with closing(LogEnvironment(data)) as log:
            assert [values_of(log, name, None) for name in ("third", "refused")] == [[], []]
    with pytest.raises(RuntimeError), patch.object(LogEnvironment, "publish", side_effect=RuntimeError):
        run_here(app(), data, bind)
    with closing(LogEnvironment(data)) as log:
        assert values_of(log, "third", None) == [], "nor where the driver lives on"
    assert verify(data) == []


def test_what_another_driver_publishes_is_left_to_it(tmp_path):
    place = intent.place_beside([tmp_path / "first.jsonl", tmp_path / "second.jsonl"])
    held = intent.note(Intent([], [], False, run_here(app(), memory(), {"numbers": []}).metrics()), place)
    bind = {"numbers": [1], "first": tmp_path / "first.jsonl", "second": tmp_path / "second.jsonl"}
    with pytest.raises(Owned, match="another run is publishing"):
        run_here(app(), memory(), bind)
    os.close(held)
