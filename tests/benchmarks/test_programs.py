"""Whole programs come to the same as the programs by hand."""

import pytest

from benchmarks.programs import PROGRAMS
from benchmarks.programs.kit.measure import SIDES_OF, agreed

MESSAGES = 600
SEED = 5


@pytest.mark.parametrize(("mode", "partitions"), [("memory", 1), ("memory", 3)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_comes_to_what_its_hand_program_does(name, mode, partitions, tmp_path):
    program = PROGRAMS[name]
    sides = SIDES_OF[mode](program, program.made(MESSAGES, SEED, partitions), SEED, tmp_path)
    rows = agreed(sides)
    assert sum(map(len, rows.values()))
