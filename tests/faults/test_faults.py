"""Every fault that needs no more than Python does no harm, and does some where its safeguard is off."""

import subprocess
import sys

import pytest

from tests.faults.command import FAULTS
from tests.source import ROOT

TIMES = {"bit-flip": 30, "truncation": 8, "hostile": 2_000, "two-owners": 4, "stop": 1, "clock-jump": 2}


def verdict(*arguments):
    """Return what the command ends with, and its last line."""
    command = [sys.executable, "-W", "error", "-m", "tests.faults", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    return run.returncode, run.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", TIMES)
def test_a_fault_does_no_harm(name):
    status, told = verdict(name, "--times", TIMES[name])
    done = int(told.split()[0].replace(",", ""))
    assert status == 0 and done >= TIMES[name] and ", 0 failed (seed 0; " in told


@pytest.mark.parametrize("name", TIMES)
def test_the_verdict_can_fail(name):
    status, told = verdict(name, "--times", TIMES[name], "--broken")
    assert status == 1 and " without the safeguard " in told and ", 0 failed" not in told


def test_faults_are_listed_with_what_they_need():
    listed = subprocess.run(
        [sys.executable, "-m", "tests.faults"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [fault.name for fault in FAULTS]
    for fault, line in zip(FAULTS, listed, strict=True):
        assert f"needs {fault.needs}" in line and f"{fault.ci:,}" in line and f"{fault.long:,}" in line
