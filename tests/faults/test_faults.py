"""Every fault that needs no more than Python does no harm, and does some where its safeguard is off."""

import subprocess
import sys

import pytest

from tests.faults import bit_flip, kill_database
from tests.faults.command import FAULTS
from tests.faults.command import main as faults
from tests.faults.kill_9 import main as kill
from tests.faults.processes import apart
from tests.faults.trials import MOST_TRIALS, Missed, Order, one_by_one
from tests.simulation.__main__ import main as simulation
from tests.source import ROOT

TIMES = {
    "bit-flip": 30,
    "truncation": 8,
    "hostile": 2_000,
    "two-owners": 4,
    "stop": 1,
    "kill-state": 8,
    "kill-calls": 2,
    "clock-jump": 2,
}
SAMPLE = "truncation"


def names(mark):
    """Return the names of all, those but one with a mark."""
    return [name if name == SAMPLE else pytest.param(name, marks=mark) for name in TIMES]


def verdict(*arguments):
    """Return what the command ends with, and its last line."""
    command = [sys.executable, "-W", "error", "-m", "tests.faults", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    return run.returncode, run.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", names(pytest.mark.long))  # in CI `scripts/faults` does the same, and more often
def test_a_fault_does_no_harm(name):
    status, told = verdict(name, "--times", TIMES[name])
    done = int(told.split()[0].replace(",", ""))
    assert status == 0 and done >= TIMES[name] and ", 0 failed (seed 0; " in told


@pytest.mark.parametrize("name", names(pytest.mark.ci))
def test_the_verdict_can_fail(name):
    status, told = verdict(name, "--times", TIMES[name], "--broken")
    assert status == 1 and " without the safeguard " in told and ", 0 failed" not in told


@pytest.mark.long
@pytest.mark.parametrize("kind", kill_database.KINDS)
def test_the_verdict_on_each_database_can_fail(kind):
    # Two of three kills come where rows are written and their position is not noted: of eight some do.
    status, told = verdict("kill-database", "--times", 8, "--on", kind, "--broken")
    assert status == 1 and " without the safeguard " in told and ", 0 failed" not in told


def test_trials_go_on_until_the_fault_has_struck(tmp_path):
    def trial(seed, work):
        if seed % 3:
            raise Missed("came too late")
        assert seed != 6
        return {"struck": 1}

    verdict = one_by_one(Order(4, 1, tmp_path), trial)
    assert (verdict.done, verdict.failed, verdict.counts) == (4, 1, {"struck": 3, "came too late": 8})


def test_trials_end_where_the_fault_never_strikes(tmp_path):
    def trial(seed, work):
        raise Missed("came too late")

    verdict = one_by_one(Order(2, 0, tmp_path), trial)
    assert (verdict.done, verdict.counts) == (0, {"came too late": 2 * MOST_TRIALS})


@pytest.mark.parametrize("number", ["0", "-3", "many"])
@pytest.mark.parametrize("command", [faults, simulation, kill], ids=["faults", "simulation", "kill"])
def test_nothing_is_tried_less_than_once(command, number, capsys):
    option = "--seeds" if command is simulation else "--times"
    with pytest.raises(SystemExit, match="2"):
        command([*(["bit-flip"] if command is faults else []), option, number])
    assert f"invalid positive value: '{number}'" in capsys.readouterr().err


def test_the_file_that_is_damaged_is_always_the_same(tmp_path):
    for name in ("one", "other"):
        apart(bit_flip._write, tmp_path / name, None)
    one, other = ((tmp_path / name / "data.mdb").read_bytes() for name in ("one", "other"))
    assert one == other


def test_faults_are_listed_with_what_they_need():
    listed = subprocess.run(
        [sys.executable, "-m", "tests.faults"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [fault.name for fault in FAULTS]
    for fault, line in zip(FAULTS, listed, strict=True):
        assert f"needs {fault.needs}" in line and f"{fault.ci:,}" in line and f"{fault.long:,}" in line
