"""A `partition_by` that has other partitions from life to life on a simulated Kafka: each record counts once."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.partition_by import murmur2
from runtime.model.errors import SamzaError
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, Json, Options, String
from tests.runtime.test_laws import crash_points, worlds
from tests.runtime.test_laws_on_kafka import HOSTS, check, filled, lived, troubles
from tests.runtime.test_repartitioning import KINDS, TURNS, can_be_moved, resized, with_sizes
from tests.scale import examples, scale
from tests.simulation.crash import rows_of, run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, TROUBLES, Cluster, Died, Partition, Trouble


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


def counting(partitions: int | None) -> App:
    """Return an application that counts words, by who writes them where no partitions are said."""
    app = App("counting", Options(commit_interval_ms=5))
    words = app.input("words", value=String(), key=str)
    if partitions is not None:
        words = words.partition_by(lambda word: word, partitions=partitions, key_type=str, op_id="by-word")
    counts = words.scan(lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count")
    counts.send_to(app.output("counts", value=Json(list)))
    return app


def write(environment, words):
    partitions = environment.streams()["words"].partitions
    rows = [[word for word in words if murmur2(word) % partitions == number] for number in range(partitions)]
    environment.append([Append("words", number, Batch(mine, keys=mine)) for number, mine in enumerate(rows)])


def counted(environment) -> list[bytes]:
    return sorted(value for rows in rows_of(environment, "counts") for _, value, _ in rows)


def expected(words) -> list[bytes]:
    totals = Counter(words)
    return sorted(b'["%s",%d]' % (word, n) for word, total in totals.items() for n in range(1, total + 1))


def lives_through(cluster, directory, partitions: int | None) -> bool:
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


def strike(folder, before: int | None, now: int, grown: int, last: int) -> None:
    """Check that a move is completed wherever it is struck: to other partitions, behind a topic that gets so many."""
    struck = 0
    for at in range(1, LAST_CHANGE, scale(26, 7, 1)):
        what = TROUBLES[at % len(TROUBLES)]
        cluster, here = Cluster(at), folder / str(at) / "here"
        with simulated(cluster):
            environment = opened(folder / str(at) / "filling")
            environment.create_stream("words", StreamConfig(partitions=2))
            write(environment, WORDS)
            assert lives_through(cluster, here, before)
            partitions = cluster.topics["words"].partitions
            partitions += [Partition() for _ in range(grown - len(partitions))]
            environment.close()
            environment = opened(folder / str(at) / "filling-anew")
            write(environment, WORDS)
            cluster.changes, cluster.troubles = 0, [Trouble(at, what)]
            is_through = lives_through(cluster, here, now)
            struck += not cluster.troubles
            cluster.troubles = []
            # On another machine, which has what changelogs say; and back where the former state lies.
            assert is_through or lives_through(cluster, folder / str(at) / "there", now)
            write(environment, WORDS)
            assert lives_through(cluster, here, last)
            assert counted(environment) == expected(WORDS * 3)
            environment.close()
    assert struck, "there was something to strike"


@pytest.mark.parametrize("sizes", [(4, 2), (2, 3)], ids=str)
def test_wherever_it_is_struck_a_move_is_completed(sizes, tmp_path):
    before, now = sizes
    strike(tmp_path, before, now, grown=2, last=before)


@pytest.mark.parametrize("grown", [2, 5])
def test_wherever_it_is_struck_state_by_a_topics_keys_moves_behind_a_repartitioning(grown, tmp_path):
    strike(tmp_path, None, 3, grown, last=3)


@pytest.mark.parametrize("grown", [3, 4])
def test_wherever_it_is_struck_state_follows_its_keys_where_their_topic_has_grown(grown, tmp_path):
    strike(tmp_path, None, None, grown, last=None)
