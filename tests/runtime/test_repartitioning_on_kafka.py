"""A `partition_by` that has other partitions from life to life on a simulated Kafka: each record counts once."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import SamzaError
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, Json, Options, String
from tests.runtime.test_laws import crash_points, worlds
from tests.runtime.test_laws_on_kafka import HOSTS, check, filled, lived, troubles
from tests.runtime.test_repartitioning import KINDS, TURNS, can_be_moved, resized, with_sizes
from tests.scale import examples, scale
from tests.simulation.crash import rows_of, run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, TROUBLES, Cluster, Died, Trouble


def run_through_sizes(world, folder, turns, troubles, crashes):
    """Run a world's application until it is through, each life with the partitions of the next turn on some machine."""
    chance, cluster = random.Random(world.seed), Cluster(world.seed)
    world.outcome.is_split = True  # what is left between stages at a cut is brought together before what comes then
    with simulated(cluster):
        filled(world, folder)
        cluster.changes, cluster.troubles = 0, list(troubles)
        for attempt, crash in enumerate([*crashes, *[None] * (len(troubles) + len(turns))]):
            turn = turns[min(attempt, len(turns) - 1)]
            how = folder / chance.choice(HOSTS), crash, world.seed + attempt
            if lived(world, cluster, *how, changed=lambda app, turn=turn: resized(app, turn)):
                break
        else:
            raise AssertionError("it does not come to its end")
        cluster.troubles = []
        world.pipeline = with_sizes(world.pipeline, turn)
        check(world, folder / "anew")


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@given(st.data(), TURNS, troubles, st.lists(crash_points, min_size=1, max_size=4))
@settings(max_examples=examples(18, 3_000))
def test_whatever_the_sizes_from_life_to_life_the_end_is_that_of_the_records(kinds, data, turns, troubles, crashes):
    world = data.draw(worlds(kinds))
    assume(can_be_moved(world, turns))
    with tempfile.TemporaryDirectory() as folder:
        run_through_sizes(world, Path(folder), turns, troubles, crashes)


WORDS = [b"w%d" % (number % 9) for number in range(40)]
LAST_CHANGE = 110
"""The number of changes on the brokers in a life that moves state, and more."""


def counting(partitions: int) -> App:
    app = App("counting", Options(commit_interval_ms=5))
    words = app.input("words", value=String())
    counts = words.partition_by(lambda word: word, partitions=partitions, op_id="by-word").scan(
        lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
    )
    counts.send_to(app.output("counts", value=Json(list)))
    return app


def write(environment, words):
    environment.append([Append("words", number, Batch(words[number::2])) for number in range(2)])


def counted(environment) -> list[bytes]:
    return sorted(value for rows in rows_of(environment, "counts") for _, value, _ in rows)


def expected(words) -> list[bytes]:
    totals = Counter(words)
    return sorted(b'["%s",%d]' % (word, n) for word, total in totals.items() for n in range(1, total + 1))


def lives_through(cluster, directory, partitions) -> bool:
    """Whether a process has counted all words that there are with so many partitions."""
    environment = None
    try:
        environment = opened(directory)
        run_once(counting(partitions), environment, until_now=True)
        environment.close()
    except (Died, SamzaError):
        if environment is not None:
            die(cluster, environment)
        cluster.dead.discard(PROCESS.get())
        return False
    return True


@pytest.mark.parametrize("sizes", [(4, 2), (2, 3)], ids=str)
def test_wherever_it_is_struck_a_move_is_completed(sizes, tmp_path):
    before, now = sizes
    struck = 0
    for at in range(1, LAST_CHANGE, scale(26, 7, 1)):
        what = TROUBLES[at % len(TROUBLES)]
        cluster, folder = Cluster(at), tmp_path / str(at)
        with simulated(cluster):
            environment = opened(folder / "filling")
            environment.create_stream("words", StreamConfig(partitions=2))
            write(environment, WORDS)
            assert lives_through(cluster, folder / "here", before)
            write(environment, WORDS)
            cluster.changes, cluster.troubles = 0, [Trouble(at, what)]
            is_through = lives_through(cluster, folder / "here", now)
            struck += not cluster.troubles
            cluster.troubles = []
            # On another machine, which has what changelogs say; and back where the former state lies.
            assert is_through or lives_through(cluster, folder / "there", now)
            write(environment, WORDS)
            assert lives_through(cluster, folder / "here", before)
            assert counted(environment) == expected(WORDS * 3)
            environment.close()
    assert struck, "there was something to strike"
