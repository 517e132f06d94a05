"""Who reads a topic looks again only when told that there may be more: whatever has come is told."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster

PATIENCE_S = 60


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 100))
def test_a_fetch_of_nothing_but_the_marker_of_a_transaction_is_told(transactions, fetched, seed):
    cluster = Cluster(seed)
    cluster.chance.randint = lambda least, most: fetched
    with simulated(cluster) as thread, tempfile.TemporaryDirectory() as folder:
        environment = opened(Path(folder))
        environment.create_stream("words", StreamConfig())
        for rows in transactions:
            environment.append([Append("words", 0, Batch([b"word"] * rows))])
        members = environment.join("reading", environment.own("reading"), "a", 1)  # from now on nothing is waited for
        offset, end, began_s = 0, environment.offsets("words", 0).end, cluster.loop.time()
        while offset < end:
            version = environment.version()
            read = environment.read("words", 0, offset)
            if read is not None:
                offset = read.next_offset
                continue
            while environment.version() == version:
                assert cluster.loop.time() < began_s + PATIENCE_S, f"nothing is told behind offset {offset} of {end}"
                thread.catch_up(cluster.loop.time() + 0.1)
        members.leave()
        environment.close()
