"""On a simulated Kafka, whatever is lost or dies: what runs come to is what their records say, each once."""

import random
import tempfile
from contextvars import copy_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFault, Fenced, SamzaError, Unavailable
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.topic import topic_of
from runtime.systems.kafka.streams.compacted_topic import SEEN_S
from runtime.systems.kafka.streams.publication import KafkaPublisher
from samza_dsl.testing.environment import Crash
from tests.building import build
from tests.kafka import test_conformance as real
from tests.runtime.test_laws import crash_points, worlds
from tests.scale import examples
from tests.simulation.check import Outcome
from tests.simulation.containers import Event, run_among
from tests.simulation.crash import Watched, fill, run_once
from tests.simulation.kafka import close_or_die, die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, TROUBLES, Cluster, Died, Trouble
from tests.simulation.kafka_world import COME_EVERY, LOOK_EVERY, Arriving, check_entries
from tests.strategies import APP, stored, tables

globals().update({name: getattr(real.suite, name) for name in real.SUITE})
clock = real.clock

HOSTS = "here", "there"
AT_LEAST_ONCE = ("filter", "flat_map", "async", "async", "branch", "partition_by", "process")
troubles = st.lists(st.builds(Trouble, st.integers(1, 120), st.sampled_from(TROUBLES)), max_size=4)


happenings = st.lists(
    st.builds(
        Event,
        st.integers(0, 600),
        st.sampled_from(("is cancelled", "stops", "falls silent", "comes")),
        number=st.integers(0, 3),
    ),
    max_size=4,
)


@pytest.fixture
def environment(tmp_path):
    with simulated(Cluster()):
        environment = opened(tmp_path)
        yield environment
        environment.close()


@pytest.mark.parametrize("what", TROUBLES)
@pytest.mark.parametrize("at", range(1, 8))
def test_a_stream_that_was_made_by_half_is_made_whole(at, what, tmp_path):
    cluster, config = Cluster(), StreamConfig(partitions=2, intermediate=True)
    with simulated(cluster):
        opened(tmp_path / "first").close()
        cluster.changes, cluster.troubles = 0, [Trouble(at, what)]
        environment = opened(tmp_path / "here")
        close_or_die(cluster, environment, lambda: environment.create_stream("between", config))
        cluster.troubles = []
        environment = opened(tmp_path / "there")
        assert environment.create_stream("between", config) == config
        assert environment.streams()["between"] == config
        environment.close()


@pytest.mark.parametrize("seed", range(10))
def test_what_was_written_can_be_read_by_all_when_its_writer_has_closed(seed, tmp_path):
    with simulated(Cluster(seed)):
        writer, reader = opened(tmp_path / "here"), opened(tmp_path / "there")
        writer.create_stream("words", StreamConfig())
        writer.append([Append("words", 0, Batch([b"word"]))])
        writer.close()
        assert [*reader.read("words", 0, 0).batch.values] == [b"word"]
        reader.close()


def test_who_closes_waits_for_no_topic_that_others_have_deleted(tmp_path):
    cluster = Cluster()
    with simulated(cluster):
        writer, other = opened(tmp_path / "here"), opened(tmp_path / "there")
        writer.create_stream("words", StreamConfig())
        writer.append([Append("words", 0, Batch([b"word"]))])
        other.delete_stream("words")
        began_s = cluster.loop.time()
        writer.close()
        assert cluster.loop.time() - began_s < SEEN_S
        assert "words" not in cluster.topics
        other.close()


def test_who_closes_does_not_wait_for_brokers_that_are_silent(tmp_path):
    cluster = Cluster()
    with simulated(cluster):
        writer = opened(tmp_path)
        writer.create_stream("words", StreamConfig())
        writer.append([Append("words", 0, Batch([b"word"]))])
        began_s = cluster.loop.time()
        cluster.silent_until_s = began_s + 1_000
        writer.close()
        assert cluster.loop.time() - began_s < 60


@pytest.mark.parametrize("seed", range(10))
def test_so_can_what_was_published(seed, tmp_path):
    with simulated(Cluster(seed)):
        publisher = KafkaPublisher(topic_of("kafka://simulated:9092/words"), StreamConfig(), "job")
        reader = opened(tmp_path)
        publisher.publish(1, [(0, Batch([b"word"]))])
        publisher.close()
        assert [*reader.read("words", 0, 0).batch.values] == [b"word"]
        reader.close()


def run_on_kafka(world, folder, troubles, crashes, check, on_commit=None):
    """Run a world's application until it is through, on either of two machines, then `check` what it has come to."""
    chance, cluster = random.Random(world.seed), Cluster(world.seed)
    with simulated(cluster):
        filled(world, folder)
        cluster.changes, cluster.troubles = 0, list(troubles)
        for attempt, crash in enumerate([*crashes, *[None] * (len(troubles) + 1)]):
            if lived(world, cluster, folder / chance.choice(HOSTS), crash, world.seed + attempt, on_commit):
                break
        else:
            raise AssertionError("it does not come to its end")
        cluster.troubles = []
        check(world, folder / "anew")


def filled(world, folder):
    """Write the records of a world."""
    environment = opened(folder / "filling")
    for stream, parts in world.pipeline.split(world.parts).items():
        fill(environment, stream, stored(parts))
    for stream, rows in tables(world.pipeline).items():
        fill(environment, stream, rows)
    environment.close()


def lived(world, cluster, directory, crash, seed, on_commit=None, changed=lambda app: app):
    """Whether a process has run an application, as it is `changed` for this life, to its end."""

    def see(place, event):
        world.outcome.sunk[place, event] += 1

    environment = None
    try:
        environment = opened(directory)
        watched = Watched(environment, crash, None if on_commit is None else lambda commit: on_commit(environment))
        run_once(changed(build(world.pipeline, world.options, world.seed, on_sink=see)), watched, seed)
        environment.close()
    except (Crash, Died, SamzaError) as error:
        is_alive = isinstance(error, SamzaError) and PROCESS.get() not in cluster.dead  # who dies may hear of it first
        if environment is not None:
            _end(cluster, environment, is_alive)
        cluster.dead.discard(PROCESS.get())
        return False
    return True


def _end(cluster, environment, is_alive):
    """Close the environment of a run that has failed, of which a process may still die."""
    try:
        if is_alive:
            environment.close()
    except Died:
        is_alive = False
    if not is_alive:
        die(cluster, environment)


def outcome_of(world, environment):
    seen = {name: getattr(world.outcome, name) for name in ("sunk", "partition_of", "is_split")}
    return Outcome(world.pipeline, world.parts, environment, **seen)


def check_nothing_lost(world, directory):
    """Check that each result is there, once or more often."""
    environment = opened(directory)
    outcome_of(world, environment).check_nothing_lost()
    environment.close()


def check(world, directory):
    """Check results, and that state comes to the same from its changelogs alone."""
    environment = opened(directory)
    environment.own(APP)
    outcome = outcome_of(world, environment)
    expected = outcome.check_results()
    assert outcome.counts() == expected.counts
    assert outcome.sunk >= expected.sunk
    assert [store for store, _ in environment.state_stats(APP) if store.startswith("window")] == []
    environment.close()


@given(worlds(), troubles, st.lists(crash_points, max_size=2))
@settings(max_examples=examples(16, 5_000))
def test_a_run_comes_to_what_its_records_say_whatever_brokers_do(world, troubles, crashes):
    with tempfile.TemporaryDirectory() as folder:
        run_on_kafka(world, Path(folder), troubles, crashes, check)


@given(worlds(AT_LEAST_ONCE, "at_least_once"), troubles, st.lists(crash_points, max_size=2))
@settings(max_examples=examples(10, 5_000))
def test_at_least_once_it_loses_nothing_whatever_brokers_do(world, troubles, crashes):
    with tempfile.TemporaryDirectory() as folder:
        run_on_kafka(world, Path(folder), troubles, crashes, check_nothing_lost)


class Hosts:
    """Where containers run on Kafka: each has a directory to itself, which may be that of one before it."""

    def __init__(self, cluster, folder, seed, troubles):
        self.cluster, self.folder, self.chance = cluster, folder, random.Random(seed)
        self.environments, self.directories, self.troubles = {}, {}, troubles

    def context(self, name):
        if self.troubles:  # from the first container on
            self.cluster.changes, self.cluster.troubles, self.troubles = 0, list(self.troubles), ()
        context = copy_context()
        context.run(PROCESS.set, name)
        return context

    def open(self, name):
        free = sorted({f"{number}" for number in range(3)} - {*self.directories.values()})
        self.directories[name] = self.chance.choice(free) if free else f"of {name}"
        host = self.directories[name]
        self.environments[name] = environment = opened(self.folder / host, host)
        return environment

    def gone(self, name, well):
        environment = self.environments.pop(name, None)
        if environment is not None:
            try:
                if not well or name in self.cluster.dead:  # it may be cancelled as it dies
                    raise Died
                environment.close()
            except Died:  # as one may while it says how much it has committed
                die(self.cluster, environment)
        self.directories.pop(name, None)

    def silence(self, name):
        self.cluster.silence(name)

    def survives(self, error):
        return isinstance(error, (Crash, Died, Fenced)) or type(error) in (EnvironmentFault, Unavailable)


def check_copies(cluster, environment):
    """Check that copies are what was committed up to where they are; return how many entries they have."""
    return check_entries(cluster, environment._state.copies(APP), are_copies=True)


def run_among_on_kafka(world, folder, troubles, number, happenings, standby=0, is_arriving=False):
    """Run a world's application in containers that come, die and go; return how many entries of copies were seen."""
    cluster, copied = Cluster(world.seed), []
    with simulated(cluster):
        arriving = Arriving(world, folder, cluster) if is_arriving else filled(world, folder)
        starter = opened(folder / "starter")

        def at_turn(turn):
            if arriving and turn % COME_EVERY == 0:
                arriving.come()
            if standby and turn % LOOK_EVERY == 0:
                copied.extend(check_copies(cluster, one) for one in hosts.environments.values())

        def see(place, event):
            world.outcome.sunk[place, event] += 1

        app = build(world.pipeline, world.options, world.seed, on_sink=see)
        hosts = Hosts(cluster, folder, world.seed, troubles)
        run_among(app, starter, number, happenings, world.seed, places=hosts, at_turn=at_turn, standby=standby)
        for name in [*hosts.environments]:
            hosts.gone(name, True)
        starter.close()
        cluster.troubles = []
        if arriving:
            arriving.environment.close()
        check(world, folder / "anew")
    return sum(copied)


@given(worlds(), troubles, st.integers(1, 3), happenings, st.booleans())
@settings(max_examples=examples(40, 3_000))
def test_so_do_containers_that_come_and_die_and_fall_silent(world, troubles, number, happenings, is_arriving):
    with tempfile.TemporaryDirectory() as folder:
        run_among_on_kafka(world, Path(folder), troubles, number, happenings, is_arriving=is_arriving)


@given(worlds(), troubles, st.integers(2, 3), happenings, st.integers(1, 2))
@settings(max_examples=examples(10, 3_000))
def test_so_do_containers_that_keep_copies_of_what_others_have(world, troubles, number, happenings, standby):
    with tempfile.TemporaryDirectory() as folder:
        run_among_on_kafka(world, Path(folder), troubles, number, happenings, standby)
