"""Containers of a second program that come to a run in the same directory, and stay when its beginner is gone."""

import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest

from operators.core.base import Batch
from planner.model.virtual_tasks import is_task
from runtime.model.assignment import Scale
from runtime.opening.rescaling import scalings
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from tests.faults.processes import wait_until

COUNTING = """
    from samza_dsl import App, Options

    app = App("counting", Options(commit_interval_ms=50))
    numbers = app.input("numbers", value=int)
    counted = numbers.partition_by(lambda number: number % 10, op_id="by-digit").scan(
        lambda seen, number: seen + 1, init=int, emit=lambda key, seen: [key, seen], op_id="count"
    )
    counted.send_to(app.output("counts", value=list))
"""
DIGITS = 10


@pytest.fixture
def counting(write):
    return write("counting.py", COUNTING)


@pytest.fixture
def log(folder):
    """The log beside the run, with an input of four partitions."""
    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        log.create_stream("numbers", StreamConfig(partitions=4))
        yield log


def write_numbers(log, first: int, last: int) -> None:
    for number in range(first, last):
        log.append([Append("numbers", number % 4, Batch([b"%d" % number]))])


def counts(log) -> list:
    found = []
    for partition in range(log.streams()["counts"].partitions if "counts" in log.streams() else 0):
        offset = 0
        while read := log.read("counts", partition, offset):
            found += map(json.loads, read.batch.values)
            offset = read.next_offset
    return found


def check_counts(log, number: int) -> None:
    expected = [[digit, one + 1] for digit in range(DIGITS) for one in range(number // DIGITS)]
    assert sorted(counts(log)) == expected


def children(program) -> list[int]:
    return [*map(int, Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split())]


def is_shared(log, containers: int) -> bool:
    model = log.job_model("counting")
    return len(model.containers) == containers and {one for one in model.tasks if one} == {*model.containers}


@pytest.mark.ci
def test_a_second_program_joins_and_goes_on_when_the_one_that_began_is_gone(program, folder, counting, log):
    began = program("run", "counting.py", "--containers", "2")
    write_numbers(log, 0, 100)
    wait_until(lambda: is_shared(log, 2))
    joined = program("run", "counting.py", "--join", "--containers", "2")
    wait_until(lambda: is_shared(log, 4))
    write_numbers(log, 100, 200)
    wait_until(lambda: len(counts(log)) == 200)
    os.kill(began.pid, signal.SIGKILL)
    write_numbers(log, 200, 300)
    wait_until(lambda: is_shared(log, 2) and len(counts(log)) == 300)
    refused = program("run", "counting.py")
    assert "that have joined application 'counting' live on" in refused.communicate()[1]
    third = program("run", "counting.py", "--join")
    wait_until(lambda: is_shared(log, 3))
    third.send_signal(signal.SIGINT)
    assert third.wait() == 0, third.stderr.read()
    write_numbers(log, 300, 400)
    log.end_stream("numbers")
    assert joined.wait() == 0, joined.stderr.read()
    began.communicate()
    check_counts(log, 400)


@pytest.mark.ci
@pytest.mark.parametrize("said", ["", ", elasticity=4"])
def test_all_end_together_and_a_split_takes_along_who_has_joined(said, program, folder, counting, log):
    counting.write_text(counting.read_text().replace("interval_ms=50", "interval_ms=50" + said))
    began = program("run", "counting.py", "--containers", "2")
    write_numbers(log, 0, 100)
    wait_until(lambda: is_shared(log, 2))
    joined = program("run", "counting.py", "--join")
    wait_until(lambda: is_shared(log, 3))
    processes = {*children(began), *children(joined)}
    log.ask_scale("counting", Scale(2))
    write_numbers(log, 100, 200)
    wait_until(lambda: len(scalings(log.checkpoints("counting"))) == 1)
    assert scalings(log.checkpoints("counting"))[0].now == 2, "what is asked of a run holds, whatever its program says"
    wait_until(lambda: is_shared(log, 3))
    assert {*children(began), *children(joined)} == processes, "tasks do not wait until Python has started"
    write_numbers(log, 200, 300)
    log.end_stream("numbers")
    assert (began.wait(), joined.wait()) == (0, 0), began.stderr.read() + joined.stderr.read()
    check_counts(log, 300)
    assert len([name for name in log.checkpoints("counting") if is_task(name)]) == 8


def test_where_no_containers_live_nothing_is_joined(program, folder, counting, log):
    said = program("run", "counting.py", "--join").communicate()[1]
    assert re.search(r"no containers of the application 'counting' live here.*--containers 2 or more", said)


@pytest.mark.ci
def test_containers_come_and_go_while_the_others_go_on(program, folder, counting, log):
    began = program("run", "counting.py", "--containers", "2")
    write_numbers(log, 0, 100)
    wait_until(lambda: is_shared(log, 2))
    for round, (number, names) in enumerate(
        ((4, {"0.0", "1.0", "2.0", "3.0"}), (1, {"0.0"}), (2, {"0.0", "1.1"})), start=1
    ):
        scaled = program("scale", "counting.py", "--containers", str(number))
        shown = scaled.communicate()[0]
        assert scaled.returncode == 0 and f"in {number} container" in shown
        assert {*log.job_model("counting").containers} == names, "who was there and stays has not begun anew"
        write_numbers(log, round * 100, round * 100 + 100)
        wait_until(lambda round=round: len(counts(log)) == round * 100 + 100)
    log.end_stream("numbers")
    assert began.wait() == 0, began.stderr.read()
    check_counts(log, 400)
    assert [one.containers for one in scalings(log.checkpoints("counting"))] == [(2, 4), (4, 1), (1, 2)]
