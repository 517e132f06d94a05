"""A driver that dies while it makes the outputs of a bounded run visible leaves a run that is gone on with."""

import os
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from runtime.errors import Owned
from runtime.received import values_of
from runtime.spark import application, intent
from runtime.spark.application import Application
from runtime.spark.intent import Intent
from runtime.systems.log_locks import lock
from runtime.systems.memory import MemoryEnvironment
from samza_dsl import App, Json, SamzaError
from tests.simulation.crash import memory
from tests.spark.shuffling import run_here
from tests.spark.test_streaming import Died, dying

STEPS = (
    (application, "note"),
    (MemoryEnvironment, "create_stream"),
    (MemoryEnvironment, "commit"),
    (Intent, "rename"),
    (Path, "replace"),
    (Intent, "sweep"),
    (application, "forget"),
)
NUMBERS = range(20)


def app():
    app = App("writing")
    numbers = app.input("numbers", value=int)
    for name in ("first", "second", "third"):
        numbers.send_to(app.output(name, value=int))
    return app


@contextmanager
def death():
    """Have a driver end as it does when it is killed: it removes nothing, and its locks are let go."""
    locks = []

    def locked(path, *, wait):
        locks.append(lock(path, wait=wait))
        return locks[-1]

    with (
        suppress(Died),
        patch.object(intent, "lock", locked),
        patch.object(Application, "close", lambda self: None),
    ):
        yield
    for descriptor in locks:
        with suppress(OSError):
            os.close(descriptor)


def gone_on(environment, bind):
    """Run as a new driver does: what is left is published, and else all of it is run."""
    one = app()
    found = Application(one.graph(), one.options, one.around, environment, bind)
    try:
        if found.is_unpublished:
            return found.go_on()
    finally:
        found.close()
    return run_here(app(), environment, bind).metrics()


def numbers_in(path):
    return Counter(int(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(("where", "step"), STEPS)
def test_all_outputs_are_there_whole_whenever_a_driver_dies(tmp_path, where, step, is_before, number):
    environment = memory()
    bind = {"numbers": list(NUMBERS), "first": tmp_path / "first.jsonl", "second": tmp_path / "second.jsonl"}
    with death(), dying(where, step, is_before, number):
        run_here(app(), environment, bind)
    if (tmp_path / ".first.jsonl.publishing").exists() or not (tmp_path / "first.jsonl").exists():
        assert gone_on(environment, bind).received("numbers") == len(NUMBERS)
    for name in ("first", "second"):
        assert numbers_in(tmp_path / f"{name}.jsonl") == Counter(NUMBERS)
    assert Counter(values_of(environment, "third", Json(int))) == Counter(NUMBERS)
    assert not (tmp_path / ".first.jsonl.publishing").exists()
    with pytest.raises(SamzaError, match=r"holds records already|has something in it already"):
        gone_on(environment, bind)


def test_what_another_driver_publishes_is_left_to_it(tmp_path):
    place = intent.place_beside([tmp_path / "first.jsonl", tmp_path / "second.jsonl"])
    held = intent.note(Intent([], [], False, run_here(app(), memory(), {"numbers": []}).metrics()), place)
    bind = {"numbers": [1], "first": tmp_path / "first.jsonl", "second": tmp_path / "second.jsonl"}
    with pytest.raises(Owned, match="another run is publishing"):
        gone_on(memory(), bind)
    os.close(held)
