"""Delivery from an outbox on brokers: what is committed may lie behind what others hold open, or be seen later."""

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import HeldBack
from runtime.ports.commits import Commit
from runtime.ports.connectors import AtLeastOnceSink
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.connectors.outbox import Outbox
from samza_dsl import App
from tests.scale import examples
from tests.simulation.crash import run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster

APP, PARTITIONS = "writing", 2


class World:
    """A starter with an outbox, and a container that commits rows for it."""

    def __init__(self, cluster, folder):
        self.cluster, self.given = cluster, []
        self.starter, self.container = (opened(folder / name) for name in ("starter", "container"))
        sink = AtLeastOnceSink("list", lambda rows: self.given.extend(row.value for row in rows))
        self.outbox = Outbox(self.starter, APP, output(), sink)
        self.starter.create_stream(self.outbox.stream, StreamConfig(partitions=PARTITIONS))
        self.generation = self.container.own("container")
        self.outbox.open(1, 1, {})

    def commit(self, *rows):
        appends = [
            Append(self.outbox.stream, number, Batch([b"%d" % row for row in rows if row % PARTITIONS == number]))
            for number in range(PARTITIONS)
            if any(row % PARTITIONS == number for row in rows)
        ]
        self.container.commit(Commit("container", self.generation, appends, [], {}))

    def hang(self, name, partition):
        """Have a process write into the outbox, and be killed before it commits."""
        writer = self.cluster.begin(name)
        self.cluster.write(name, writer, (self.outbox.stream, partition), [(None, b"-1", None, ())])

    def close(self):
        self.starter.close()
        self.container.close()


def output():
    """Return the output of an application that writes one."""
    app = App(APP)
    app.input("in", value=int).send_to(app.output("rows", value=int))
    return next(one for spec in app.graph().specs.values() for one in spec.outputs)


@contextmanager
def world_of(cluster):
    with simulated(cluster), TemporaryDirectory() as folder:
        world = World(cluster, Path(folder))
        yield world
        world.close()


@given(
    seed=st.integers(0, 10_000),
    commits=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    hangs=st.sets(st.tuples(st.integers(0, 5), st.integers(0, PARTITIONS - 1)), max_size=3),
)
@settings(max_examples=examples(40, 5_000))
def test_the_last_delivery_has_all_that_was_committed(seed, commits, hangs):
    rows: list[int] = []
    with world_of(Cluster(seed)) as world:
        for number, size in enumerate(commits):
            for at, partition in hangs:
                if at == number:
                    world.hang(f"hung-{at}-{partition}", partition)
            new = range(len(rows), len(rows) + size)
            rows += new
            world.commit(*new)
        world.outbox.deliver(whole=True)
        assert sorted(world.given) == rows


def test_what_a_transaction_keeps_back_for_ever_is_told():
    with world_of(Cluster(1)) as world:
        world.cluster._time_out = lambda *how: None
        world.hang("hung", 0)
        world.commit(0, 2)
        world.outbox.deliver()
        assert not world.given
        with pytest.raises(HeldBack, match="transaction"):
            world.outbox.deliver(whole=True)
        world.outbox.end()
        world.outbox.deliver(whole=True)  # who is stopped leaves it to the next run
        assert not world.given


@given(seed=st.integers(0, 10_000), hangs=st.booleans())
@settings(max_examples=examples(20, 1_000))
def test_a_run_up_to_now_has_delivered_all_of_it(seed, hangs):
    given_rows = []
    sink = AtLeastOnceSink("list", lambda rows: given_rows.extend(row.value for row in rows))
    app = App(APP)
    app.input("in", value=int).send_to(app.output("rows", value=int, partitions=1))
    cluster = Cluster(seed)
    with simulated(cluster), TemporaryDirectory() as folder:
        environment = opened(Path(folder))
        environment.create_stream("in", StreamConfig())
        for number in range(2):
            environment.append([Append("in", 0, Batch([b"%d" % number]))])
            run_once(app, environment, seed, bind={"rows": sink}, until_now=True)
            assert given_rows == [*range(number + 1)]
            if hangs:
                stream = next(name for name in environment.streams() if "outbox" in name)
                writer = cluster.begin("hung")
                cluster.write("hung", writer, (stream, 0), [(None, b"-1", None, ())])
        environment.close()
