"""Seeds of tasks that are split and merged on a simulated Kafka while faults strike: 1,000 in CI with the other's."""

import pytest

from tests.scale import scale
from tests.simulation.test_simulation import check_seeds

PARTS = 4
SEEDS = scale(8, 400, 10_000)


@pytest.mark.timeout(0 if scale(0, 0, 1) else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_as_tasks_are_split_the_outcome_is_that_of_an_undisturbed_run(part, capsys):
    check_seeds("rescaling-kafka", part * SEEDS // PARTS, SEEDS // PARTS, capsys)


@pytest.mark.parametrize("seed", [30_066, 30_785])
def test_nothing_is_told_of_parts_of_tasks_that_died_before_their_first_commit(seed, capsys):
    check_seeds("rescaling-kafka", seed, 1, capsys)
