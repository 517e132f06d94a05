"""Tasks that are split and merged on a simulated Kafka: what all of them come to is what the records say, each once."""

import random
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_options

from runtime.model.assignment import Scale
from runtime.model.errors import EnvironmentFault
from tests.runtime.test_elasticity import can_be_split
from tests.runtime.test_laws import crash_points, worlds
from tests.runtime.test_laws_on_kafka import (
    HOSTS,
    check,
    filled,
    happenings,
    lived,
    run_among_on_kafka,
    run_on_kafka,
    troubles,
)
from tests.scale import examples
from tests.simulation.kafka import simulated
from tests.simulation.kafka_brokers import Cluster
from tests.strategies import APP

FACTORS = st.lists(st.sampled_from((1, 2, 4)), min_size=2, max_size=5)


def split(world, factor):
    """Return a world whose tasks are split by a factor, and which shares in what the first one sees."""
    world.outcome.is_split = True
    found = replace(world, options=with_options(world.options, elasticity=factor))
    found.outcome = world.outcome
    return found


def run_through_factors(world, folder, factors, troubles, crashes):
    """Run a world's application until it is through, each life with the next factor and on either of two machines."""
    chance, cluster = random.Random(world.seed), Cluster(world.seed)
    with simulated(cluster):
        filled(world, folder)
        cluster.changes, cluster.troubles = 0, list(troubles)
        lives = [*crashes, *[None] * (len(troubles) + len(factors))]
        for attempt, crash in enumerate(lives):
            one = split(world, factors[min(attempt, len(factors) - 1)])
            if lived(one, cluster, folder / chance.choice(HOSTS), crash, world.seed + attempt):
                break
        else:
            raise AssertionError("it does not come to its end")
        cluster.troubles = []
        check(world, folder / "anew")


@given(worlds(), FACTORS, troubles, st.lists(crash_points, min_size=1, max_size=4))
@settings(max_examples=examples(20, 5_000))
def test_whatever_the_factors_from_life_to_life_the_end_is_that_of_the_records(world, factors, troubles, crashes):
    assume(can_be_split(world))
    with tempfile.TemporaryDirectory() as folder:
        run_through_factors(world, Path(folder), factors, troubles, crashes)


@given(worlds(), st.sampled_from((2, 4)), troubles, st.integers(1, 3), happenings, st.integers(0, 1))
@settings(max_examples=examples(8, 3_000))
def test_containers_that_come_and_die_share_the_parts_of_tasks(world, factor, troubles, number, happenings, standby):
    assume(can_be_split(world))
    with tempfile.TemporaryDirectory() as folder:
        one = split(world, factor)
        run_among_on_kafka(one, Path(folder), troubles, number, happenings, standby)


ASKS = st.dictionaries(st.integers(1, 8), st.sampled_from((1, 2, 4)), min_size=1)


@given(worlds(), ASKS, troubles, st.lists(crash_points, max_size=3))
@settings(max_examples=examples(12, 5_000))
def test_tasks_that_are_split_and_merged_while_they_run_come_to_what_the_records_say(world, asks, troubles, crashes):
    assume(can_be_split(world))
    world.outcome.is_split = True
    commits = 0

    def ask(environment):
        nonlocal commits
        commits += 1
        if commits in asks:
            with suppress(EnvironmentFault):  # which was to be heard by a broker that is in trouble
                environment.ask_scale(APP, Scale(asks[commits]))

    with patch("runtime.run.scaling.FAR_LOOK_MS", 1.0), tempfile.TemporaryDirectory() as folder:
        run_on_kafka(world, Path(folder), troubles, crashes, check, on_commit=ask)
