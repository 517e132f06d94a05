"""Whether a topic has no more is said by brokers alone: who has not heard of them knows nothing of that."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.clock import sleep_ms
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.clients import BEGIN_S
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams import compacted_topic
from runtime.systems.kafka.streams.compacted_topic import load, scan
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster

WRITE, BEGIN, END, SILENCE, REST, READ = "write", "begin", "end", "silence", "rest", "read"
ANSWER_MS = 5_000
"""How long it takes at most until a broker that has nothing new says so."""


@given(st.lists(st.sampled_from([WRITE, BEGIN, END, SILENCE, REST, READ, READ]), max_size=15), st.integers(0, 100))
def test_nothing_lay_there_when_it_was_last_heard_of(steps, seed):
    cluster = Cluster(seed)
    with simulated(cluster) as thread, tempfile.TemporaryDirectory() as folder:
        writer, environment = opened(Path(folder, "writer")), opened(Path(folder, "reader"))
        writer.create_stream("words", StreamConfig())
        members = environment.join("reading", environment.own("reading"), "a", 1)  # from now on nothing is waited for
        partition = cluster.partition("words", 0)
        ends, offset, open_one = [(0.0, 0)], 0, None

        def rest(seconds):
            until_s = cluster.loop.time() + seconds
            while cluster.loop.time() < until_s:
                thread.catch_up(min(cluster.loop.time() + 0.4, until_s))
                check()

        def check():
            ends.append((cluster.loop.time(), partition.end))
            unheard_ms = environment.unheard_ms("words", 0, offset)
            then_s = cluster.loop.time() - unheard_ms / 1_000
            assert unheard_ms == math.inf or max(end for at_s, end in ends if at_s <= then_s) <= offset

        def read():
            nonlocal offset
            for _ in range(5):
                found = environment.read("words", 0, offset)
                offset = offset if found is None else found.next_offset
                rest(0.4)

        for step in steps:
            if step == WRITE and cluster.silent_until_s <= cluster.loop.time():
                writer.append([Append("words", 0, Batch([b"word"]))])
            elif step == BEGIN and open_one is None:
                open_one = cluster.begin("other")
                cluster.write("other", open_one, ("words", 0), [(None, b"open", None, ())])
            elif step == END and open_one is not None:
                cluster.end(open_one, committed=True)
                open_one = None
            elif step == SILENCE:
                cluster.silent_until_s = cluster.loop.time() + 40
                rest(39)
            elif step == REST:
                rest(10)
            elif step == READ:
                read()
            check()
        if open_one is not None:
            cluster.end(open_one, committed=True)
        rest(45)
        read()
        while offset < partition.end:
            read()
        rest(10)
        assert environment.unheard_ms("words", 0, offset) <= ANSWER_MS
        assert environment.unheard_ms("words", 0, offset + 1) == math.inf
        members.leave()
        for one in (environment, writer):
            one.close()


def none_of(consumer):
    """Have a consumer fetch nothing, as from a broker that has gone for good behind its last answer."""

    async def getmany(*places, timeout_ms=0):
        await sleep_ms(timeout_ms)
        return {}

    consumer.getmany = getmany
    return consumer


async def read_as_table(topic):
    await load(topic)


async def read_by_scan(topic):
    async for _ in scan(topic, {0: 0}, {0: 1}):
        raise AssertionError("nothing comes")


@pytest.mark.parametrize("read", [read_as_table, read_by_scan])
def test_who_waits_for_brokers_that_have_gone_ends(read, tmp_path, monkeypatch):
    cluster = Cluster()
    with simulated(cluster) as thread:
        environment = opened(tmp_path)
        environment.create_stream("words", StreamConfig())
        environment.append([Append("words", 0, Batch([b"word"], [b"key"]))])
        made = compacted_topic._consumer
        monkeypatch.setattr(compacted_topic, "_consumer", lambda *how, **what: none_of(made(*how, **what)))
        began_s = cluster.loop.time()
        with pytest.raises(TimeoutError, match="nothing came"):
            thread.call(read(KafkaTopic("kafka://simulated:9092/words")))
        assert cluster.loop.time() - began_s < 2 * BEGIN_S
        environment.close()
