"""Laws of connections to Kafka: whoever has closed all that was opened has none, and readers know what one hears."""

import asyncio
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import SamzaError
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.clients import during
from runtime.systems.kafka.client.topic import KafkaTopic
from runtime.systems.kafka.streams.ranges import KafkaRanges
from runtime.systems.kafka.streams.sink import KafkaSink
from tests.scale import examples
from tests.simulation import kafka_clients
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import LOST, UNHEARD, Cluster, Trouble
from tests.simulation.kafka_clients import Admin, Consumer, Producer

TOPIC = KafkaTopic("kafka://simulated:9092/words")
troubles = st.builds(Trouble, st.integers(1, 12), st.sampled_from([LOST, UNHEARD]))


def own(environment, stack):
    environment.announce("counting", environment.own("counting"))


def span(environment, stack):
    environment.span("counting", 2)


def join(environment, stack):
    members = environment.join("counting", environment.generation("counting"), "a", 1, standby=1)
    stack.callback(members.leave)
    members.mine()


def write(environment, stack):
    environment.create_stream("words", StreamConfig())
    environment.append([Append("words", 0, Batch([b"word"]))])


def read(environment, stack):
    environment.read("words", 0, 0)
    environment.offsets("words", 0)


def look(environment, stack):
    environment.applications()
    environment.runs("counting").model()


def sink(environment, stack):
    stack.enter_context(closing(KafkaSink(TOPIC, StreamConfig())))


def ranges(environment, stack):
    stack.enter_context(closing(KafkaRanges(TOPIC)))


@example(2, [UNHEARD, LOST], 1)
@given(st.integers(1, 4), st.lists(st.sampled_from([LOST, UNHEARD]), min_size=1, max_size=4), st.integers(0, 1_000))
def test_whatever_an_append_leaves_open_the_next_one_can_be_read(first, troubles, seed):
    cluster = Cluster(seed)
    with tempfile.TemporaryDirectory() as folder, simulated(cluster):
        with closing(opened(Path(folder))) as environment:
            environment.create_stream("words", StreamConfig())
            cluster.changes = 0
            cluster.troubles = [Trouble(first + number, what) for number, what in enumerate(troubles)]
            with suppress(SamzaError):
                environment.append([Append("words", 0, Batch([b"first"]))])
            cluster.troubles = []
            environment.append([Append("words", 0, Batch([b"second"]))])
        with closing(opened(Path(folder))) as environment:
            values, offset = [], 0
            while (read := environment.read("words", 0, offset)) is not None:
                values, offset = [*values, *read.batch.values], read.next_offset
            assert values.count(b"second") == 1 and values.count(b"first") <= 1


@given(
    st.lists(st.sampled_from([own, span, join, write, read, look, sink, ranges]), max_size=8),
    st.lists(troubles, max_size=2),
    st.integers(0, 1_000),
)
def test_who_has_closed_all_has_no_connection(steps, troubles, seed):
    cluster = Cluster(seed)
    cluster.refuses = 0.1
    cluster.troubles = [*troubles]
    with simulated(cluster), tempfile.TemporaryDirectory() as folder, suppress(SamzaError), ExitStack() as stack:
        environment = opened(Path(folder))
        stack.callback(environment.close)
        for step in steps:
            with suppress(SamzaError):
                step(environment, stack)


@given(
    st.sampled_from([Consumer, Producer, Admin]),
    st.sampled_from([0, 0.5, 1]),
    st.lists(st.integers(0, 6_000), min_size=1, max_size=3),
    st.integers(0, 1_000),
)
@settings(max_examples=examples(100, 5_000))
def test_who_is_cancelled_while_a_client_begins_or_ends_has_no_connection(kind, refuses, waits_ms, seed):
    cluster = Cluster(seed)
    cluster.refuses = refuses

    async def use() -> None:
        async with during(kind(cluster)), during(kind(cluster)):
            pass

    async def cancelled() -> None:
        using = asyncio.ensure_future(use())
        for wait_ms in waits_ms:
            await asyncio.wait([using], timeout=wait_ms / 1_000)
            using.cancel()
        await asyncio.wait([using])

    with patch.object(kafka_clients, "HANGS", 0.4), simulated(cluster) as thread:
        thread.call(cancelled())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at", range(1, 9))
def test_who_can_not_fence_one_of_several_leaves_no_other_behind(at, seed, tmp_path):
    cluster = Cluster(seed)
    with simulated(cluster):
        first = opened(tmp_path / "here")
        first.own("app")
        first.commit_by_task("app", range(4))
        die(cluster, first)
        second = opened(tmp_path / "there")
        cluster.changes, cluster.troubles = 0, [Trouble(at, LOST)]
        with suppress(SamzaError):
            second.own("app")
        second.close()
        assert not cluster.connections


@given(st.integers(1, 5), st.integers(0, 5), st.integers(0, 1_000))
@settings(max_examples=examples(20, 1_000))
def test_an_end_that_one_reader_has_fetched_all_of_them_know(rows, behind, seed):
    """Whoever is behind the end when it comes, as siblings are that share reads, fetches nothing that would tell it."""
    cluster = Cluster(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated(cluster) as thread,
        closing(opened(Path(folder, "there"))) as writer,
    ):
        writer.create_stream("words", StreamConfig())
        writer.append([Append("words", 0, Batch([b"word"] * rows))])
        with closing(opened(Path(folder, "here"))) as environment:
            readers, end = [environment.reader(number) for number in range(3)], 0
            assert not any(reader.offsets("words", 0).ended for reader in readers)
            for step in range(20):
                read = readers[0].read("words", 0, end)
                end = end if read is None else read.next_offset
                thread.catch_up(cluster.loop.time() + 1)
                if step == 9:
                    writer.end_stream("words")
                    readers[1].expect("words", {0: end + behind})
            assert end > rows and [reader.known("words", 0).ended for reader in readers] == [True] * 3
