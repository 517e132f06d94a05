"""Kills the main job a few times; the long tier does it as often as one likes."""

import pytest

from tests.faults.kill_9 import main
from tests.scale import scale

FLIGHTS = scale(20_000, 20_000, 400_000)


@pytest.mark.ci
def test_a_killed_job_gives_what_an_undisturbed_one_gives():
    assert main(["--times", str(scale(1, 3, 20)), "--flights", str(FLIGHTS)]) == 0
