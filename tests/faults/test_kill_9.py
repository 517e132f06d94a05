"""The main job is killed as often as one likes; in CI `scripts/faults` does it."""

import pytest

from tests.faults.kill_9 import main

FLIGHTS = 400_000


@pytest.mark.long
def test_a_killed_job_gives_what_an_undisturbed_one_gives():
    assert main(["--times", "20", "--flights", str(FLIGHTS)]) == 0
