"""On a simulated Kafka, whatever is lost or dies: what runs come to is what their records say, each once."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import SamzaError
from samza_dsl.testing.environment import Crash
from tests.building import build
from tests.kafka import test_conformance as real
from tests.runtime.test_laws import crash_points, worlds
from tests.scale import scale
from tests.simulation.check import Outcome
from tests.simulation.crash import Watched, fill, run_once
from tests.simulation.kafka import TROUBLES, Cluster, Died, Trouble, die, opened, simulated
from tests.strategies import APP, stored, tables

globals().update({name: getattr(real.suite, name) for name in real.SUITE})
clock = real.clock

HOSTS = "here", "there"
troubles = st.lists(st.builds(Trouble, st.integers(1, 120), st.sampled_from(TROUBLES)), max_size=4)


@pytest.fixture
def environment(tmp_path):
    with simulated(Cluster()):
        environment = opened(tmp_path)
        yield environment
        environment.close()


def run_on_kafka(world, folder, troubles, crashes):
    """Run a world's application until it is through, on either of two machines; return how often it has ended badly."""
    chance, cluster = random.Random(world.seed), Cluster(world.seed)
    with simulated(cluster):
        filling = opened(folder / "filling")
        for stream, parts in world.pipeline.split(world.parts).items():
            fill(filling, stream, stored(parts))
        for stream, rows in tables(world.pipeline).items():
            fill(filling, stream, rows)
        filling.close()
        cluster.changes, cluster.troubles = 0, list(troubles)
        for attempt, crash in enumerate([*crashes, *[None] * (len(troubles) + 1)]):
            if lived(world, cluster, folder / chance.choice(HOSTS), crash, world.seed + attempt):
                break
        else:
            raise AssertionError("it does not come to its end")
        cluster.troubles = []
        check(world, folder / "anew")
        return attempt


def lived(world, cluster, directory, crash, seed):
    """Whether a process has run an application to its end."""

    def see(place, event):
        world.outcome.sunk[place, event] += 1

    environment = None
    try:
        environment = opened(directory)
        run_once(build(world.pipeline, world.options, world.seed, on_sink=see), Watched(environment, crash), seed)
    except (Crash, Died):
        if environment is not None:
            die(cluster, environment)
        cluster.is_dead = False
        return False
    except SamzaError:
        if environment is not None:
            environment.close()
        return False
    environment.close()
    return True


def check(world, directory):
    """Check results, and that state comes to the same from its changelogs alone."""
    environment = opened(directory)
    environment.own(APP)
    outcome = Outcome(world.pipeline, world.parts, environment, sunk=world.outcome.sunk)
    expected = outcome.check_results()
    assert outcome.counts() == expected.counts
    assert outcome.sunk >= expected.sunk
    assert [store for store, _ in environment.state_stats(APP) if store.startswith("window")] == []
    environment.close()


@given(worlds(), troubles, st.lists(crash_points, max_size=2))
@settings(max_examples=scale(25, 300, 20_000))
def test_a_run_comes_to_what_its_records_say_whatever_brokers_do(world, troubles, crashes):
    with tempfile.TemporaryDirectory() as folder:
        run_on_kafka(world, Path(folder), troubles, crashes)
