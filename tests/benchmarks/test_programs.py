"""Whole programs come to the same as the programs by hand, and these to the same when they stop and go on."""

import msgspec
import pytest

from benchmarks.programs import PROGRAMS
from benchmarks.programs.kit.figure import Spread, slopes
from benchmarks.programs.kit.hand_store import Store
from benchmarks.programs.kit.measure import SIDES_OF, agreed
from benchmarks.programs.kit.on_kafka import Topics
from benchmarks.programs.kit.on_log import OnLog
from benchmarks.programs.sweep.drawing import draw, program_of
from tests.benchmarks.test_figures import program
from tests.sample import crossed

MESSAGES = 600
SEED = 5


def sides_of(name, mode, partitions, scratch, messages=MESSAGES):
    program = PROGRAMS[name]
    return SIDES_OF[mode](program, program.made(messages, SEED, partitions), SEED, scratch)


@pytest.mark.parametrize(("mode", "partitions"), [("memory", 1), ("memory", 3), ("log", 1)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_comes_to_what_its_hand_program_does(name, mode, partitions, tmp_path):
    rows = agreed(sides_of(name, mode, partitions, tmp_path))
    assert sum(map(len, rows.values()))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "partitions"), crossed([name for name, one in PROGRAMS.items() if one.is_on_kafka], [1, 3])
)
def test_so_it_does_on_a_broker_and_by_hand_goes_on_where_it_has_committed(name, partitions, tmp_path, monkeypatch):
    sides = sides_of(name, "kafka", partitions, tmp_path)
    expected = agreed(sides)
    sides.ready()
    with monkeypatch.context() as stopping:
        stopping.setattr("benchmarks.programs.kit.on_kafka.COMMIT_S", 0.0)
        stopping.setattr(Topics, "finished", _stop)
        with pytest.raises(Stopped):
            sides.by_hand()
    assert sides.outcome(sides.by_hand()) == expected


def _stop(topics, hand):
    raise Stopped


class Stopped(Exception):
    """The program by hand has been stopped."""


class StopsOnce(Store):
    """Stops behind its first commit, with something taken that is in none."""

    def taken(self, hand, count):
        if self._uncommitted < 0:
            raise Stopped
        self._commit(hand)
        self._uncommitted = -1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_by_hand_goes_on_where_it_has_committed(name, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.programs.kit.hand_store.STORED", 100)
    sides = sides_of(name, "log", 2, tmp_path)
    sides.ready()
    expected = sides.outcome(sides.by_hand())
    sides.ready()
    with monkeypatch.context() as stopping:
        stopping.setattr("benchmarks.programs.kit.on_log.Store", StopsOnce)
        with pytest.raises(Stopped):
            sides.by_hand()
    assert isinstance(sides, OnLog)
    begun = sides.outcome("by_hand")
    assert sides.outcome(sides.by_hand()) == expected
    assert begun != expected


@pytest.mark.parametrize(
    ("seed", "mode"), [*((seed, "memory") for seed in range(100, 112)), *((seed, "log") for seed in range(100, 104))]
)
def test_a_random_pipeline_comes_to_what_its_hand_loop_does(seed, mode, tmp_path):
    drawn = draw(seed)
    program = program_of(drawn, seed, tmp_path)
    agreed(SIDES_OF[mode](program, program.made(1_500, seed, drawn.partitions), seed, tmp_path))


def test_a_seed_draws_the_same_pipeline_each_time():
    assert draw(3) == draw(3) != draw(4)


def test_a_sweep_is_told_as_its_distribution():
    spread = Spread.of([program(float(ratio)) for ratio in range(101, 0, -1)])
    assert (spread.p50, spread.p90, spread.worst.workload) == (51.0, 91.0, "sweep_101.0")


def test_a_slope_is_of_the_most_partitions_over_one():
    found = [
        msgspec.structs.replace(program(ratio), workload="words", partitions=n) for n, ratio in ((1, 2.0), (64, 5.0))
    ]
    assert slopes(found) == {("words", "memory"): 2.5}
