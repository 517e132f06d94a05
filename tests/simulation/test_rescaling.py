"""Seeds of tasks that are split and merged on the embedded log while faults strike: 1,000 in CI with the other's."""

import pytest

from tests.scale import scale
from tests.simulation.test_simulation import check_seeds

PARTS = 3
SEEDS = scale(16, 600, 10_000)


@pytest.mark.timeout(0 if scale(0, 0, 1) else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_as_tasks_are_split_the_outcome_is_that_of_an_undisturbed_run(part, capsys):
    check_seeds("rescaling", part * SEEDS // PARTS, SEEDS // PARTS, capsys)
