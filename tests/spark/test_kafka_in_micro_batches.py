"""Topics of a real broker as inputs and outputs of micro-batches, which are run in this process."""

import pickle
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from unittest.mock import patch

import msgspec
import pytest

from runtime.model.errors import Damaged, EnvironmentFault
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.client.topic import topic_of
from runtime.systems.kafka.streams import publication as kafka_published
from runtime.systems.kafka.streams import ranges as kafka_ranges
from runtime.systems.kafka.streams.publication import KafkaPublisher
from runtime.units.driver import micro_batch_application as streamed
from runtime.units.topics import as_it_is
from samza_dsl import KafkaCluster, SamzaError
from tests.kafka.topics import consume, create, grow, produce
from tests.scale import scale
from tests.simulation.crash import memory
from tests.spark.publishing import counting
from tests.spark.streaming import one_batch, opened, stream_here
from tests.spark.test_streaming import STEPS, Died, dying
from tests.spark.watching import as_told, ticks, told, watching

pytestmark = pytest.mark.ci


def test_a_topic_that_is_cut_into_micro_batches_comes_to_what_it_comes_to_live(broker, topics, tmp_path):
    ticks(broker, f"{topics}-ticks")
    bind = {"ticks": f"kafka://{broker.bootstrap}/{topics}-ticks"}
    live = watching(topics).run(tmp_path / "live", bind=bind, until_now=True)
    for seed in range(scale(1, 1, 3)):
        environment = memory()
        assert stream_here(lambda: watching(topics), environment, tmp_path / str(seed), bind, seed, ends=True) > 3
        assert as_told(environment) == told(live)


def test_what_is_in_an_open_transaction_is_waited_for_by_a_bounded_input(broker, topics):
    create(broker, f"{topics}-words", 2)
    topic = topic_of(f"kafka://{broker.bootstrap}/{topics}-words")
    produce(broker, topic.name, (0, b"k", b"kept"), (1, b"k", b"kept, too"), transaction=f"{topics}-done")
    writer = KafkaPublisher(topic, StreamConfig(), topics)
    thread = KafkaThread.acquire()
    thread.call(writer._producer.begin_transaction())
    thread.call(writer._producer.send_and_wait(topic.name, b"open", partition=0))
    produce(broker, topic.name, (0, b"k", b"behind it"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(as_it_is, "words", topic)
        thread.call(writer._producer.commit_transaction())
        words = pickle.loads(pickle.dumps(waiting.result()))
    produce(broker, topic.name, (1, b"k", b"later"))
    thread.release()
    writer.close()
    with closing(words):
        assert [values_in(words, partition) for partition in (0, 1)] == [
            [b"kept", b"open", b"behind it"],
            [b"kept, too"],
        ]


def values_in(source, partition):
    offset, found = source.offsets(partition).start, []
    while (read := source.read(partition, offset)) is not None:
        found += read.batch.values
        offset = read.next_offset
    assert offset == source.offsets(partition).end and source.offsets(partition).ended
    return found


class DyingInTransactions:
    """Has a driver die before or behind the so-manyth transaction."""

    def __init__(self, is_before, number):
        self.came, self.is_before, self.number = 0, is_before, number

    def patched(self, real=KafkaPublisher._transact):
        async def transact(publisher, pending, reached):
            self.came += 1
            if self.came == self.number and self.is_before:
                raise Died
            await real(publisher, pending, reached)
            if self.came == self.number:
                raise Died

        return patch.object(KafkaPublisher, "_transact", transact)


def run_to_the_end(running):
    while not running.is_over:
        if (batch := running.next()) is not None:
            one_batch(running, batch)


def deaths(*steps):
    """Return what has drivers die at each of these steps, and in transactions."""
    return [
        *(
            dying(where, step, is_before, number)
            for where, step in steps
            for is_before in (True, False)
            for number in (1, 3)
        ),
        *(DyingInTransactions(is_before, number).patched() for is_before in (True, False) for number in (1, 2, 5, 8)),
    ]


def test_topics_are_written_once_whatever_dies(broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_published, "ROWS", 15)
    chance, environment = random.Random(4), memory()
    bind = {name: f"kafka://{broker.bootstrap}/{topics}-{name}" for name in ("ticks", "counts", "copies")}
    create(broker, f"{topics}-ticks", 2)
    rows = [[f"k{chance.randrange(5)}", at * 5] for at in range(400)]
    rows_left = list(rows)
    dying_so = deaths(*STEPS)
    chance.shuffle(dying_so)
    for number, dies in enumerate(dying_so):
        come, rows_left = (rows_left[:12], rows_left[12:]) if number + 1 < len(dying_so) else (rows_left, [])
        produce(broker, f"{topics}-ticks", *((row[1] % 2, row[0].encode(), msgspec.json.encode(row)) for row in come))
        running = opened(counting(), environment, tmp_path / "checkpoint", bind, most_records=20)
        try:
            with suppress(Died), dies:
                while (batch := running.next()) is not None:
                    one_batch(running, batch)
        finally:
            running.close()
    running = opened(counting(), environment, tmp_path / "checkpoint", bind, most_records=20, ends=True)
    run_to_the_end(running)
    running.close()
    found = [
        tuple(msgspec.json.decode(one.value)) for part in consume(broker, f"{topics}-copies").values() for one in part
    ]
    assert sorted(found) == sorted(map(tuple, rows))
    panes = [
        tuple(msgspec.json.decode(one.value)) for part in consume(broker, f"{topics}-counts").values() for one in part
    ]
    expected = {(key, at // 100 * 100): 0 for key, at in rows}
    for key, at in rows:
        expected[key, at // 100 * 100] += 1
    assert sorted(panes) == sorted((*place, number) for place, number in expected.items())


def copied(broker, topic):
    return sorted(tuple(msgspec.json.decode(one.value)) for part in consume(broker, topic).values() for one in part)


def test_the_streams_of_a_cluster_are_written_once_whatever_dies(broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_published, "ROWS", 15)
    chance, data = random.Random(5), tmp_path / "data"
    prefix, cluster = f"{topics}-", KafkaCluster(f"kafka://{broker.bootstrap}")
    create(broker, f"{prefix}ticks", 2)
    create(broker, f"{prefix}letters", 2)  # more than are planned
    rows = [[f"k{chance.randrange(5)}", at * 5] for at in range(400)]
    sent = [msgspec.json.encode(row) if at % 9 else b"malformed %d" % at for at, row in enumerate(rows)]
    rows = [row for at, row in enumerate(rows) if at % 9]
    dying_so = chance.sample(deaths((streamed, "write_told"), *STEPS[:2]), 12)
    for number, dies in enumerate([*dying_so, nullcontext()]):
        is_last = number == len(dying_so)
        come, sent = (sent, []) if is_last else (sent[:30], sent[30:])
        produce(broker, f"{prefix}ticks", *((at % 2, b"key", value) for at, value in enumerate(come)))
        how = {"most_records": 20, "cluster": cluster, "ends": is_last}
        running = opened(counting(prefix), data, tmp_path / "checkpoint", {}, **how)
        try:
            with suppress(Died), dies:
                while (batch := running.next()) is not None:
                    one_batch(running, batch)
            if is_last:
                assert running.is_over
                assert Counter(running.values_of(f"{prefix}letters")) == letters_of(broker, prefix)
        finally:
            running.close()
    assert copied(broker, f"{prefix}copies") == sorted(map(tuple, rows))
    found = Counter((key, at // 100 * 100) for key, at in rows)
    assert copied(broker, f"{prefix}counts") == sorted((*place, number) for place, number in found.items())
    assert letters_of(broker, prefix) == Counter(b"malformed %d" % at for at in range(0, 400, 9))
    assert not (data / "data.mdb").exists(), "nothing of it lies in the embedded log"


def test_a_stream_of_a_cluster_that_is_no_more_what_is_read_stops_the_run(broker, topics, tmp_path):
    where = tmp_path / "data", tmp_path / "checkpoint", {}
    prefix, how = f"{topics}-", {"cluster": KafkaCluster(f"kafka://{broker.bootstrap}")}
    with pytest.raises(SamzaError, match=f"there is no stream '{prefix}ticks' to read"):
        opened(counting(prefix), *where, **how)
    create(broker, f"{prefix}ticks", 1)
    with closing(opened(counting(prefix), *where, **how)) as running:
        grow(broker, f"{prefix}ticks", 2)
        with pytest.raises(EnvironmentFault, match="partition"):
            running.next()
    with pytest.raises(SamzaError, match="other stages"):
        opened(counting(prefix), *where, **how)


def letters_of(broker, prefix):
    return Counter(one.value for part in consume(broker, f"{prefix}letters").values() for one in part)


def test_what_a_topic_begins_with_is_said_once(broker, topics, tmp_path):
    bind = {"ticks": f"kafka://{broker.bootstrap}/{topics}-ticks?start=latest"}
    bind |= {name: tmp_path / f"{name}.jsonl" for name in ("counts", "copies")}
    create(broker, f"{topics}-ticks", 2)
    produce(broker, f"{topics}-ticks", (0, b"k", b'["k", 1]'))
    environment = memory()

    def ran():
        running = opened(counting(), environment, tmp_path / "checkpoint", bind)
        try:
            if (batch := running.next()) is not None:
                one_batch(running, batch)
            produce(broker, f"{topics}-ticks", (1, b"k", b'["k", 2]'))
            if (batch := running.next()) is not None:
                one_batch(running, batch)
        finally:
            running.close()

    ran()
    produce(broker, f"{topics}-ticks", (0, b"k", b'["k", 3]'))  # where nothing was read before
    ran()
    files = sorted((tmp_path / "copies.jsonl").glob("part-*"))
    assert sorted(file.read_text().strip() for file in files) == ['["k",2]', '["k",2]', '["k",3]']


def test_a_topic_that_is_no_more_what_is_read_stops_the_run(broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_ranges, "QUIET_MS", 0.0)
    bind = {name: f"kafka://{broker.bootstrap}/{topics}-{name}" for name in ("ticks", "counts", "copies")}
    with pytest.raises(EnvironmentFault, match="there is no topic"):
        opened(counting(), memory(), tmp_path / "checkpoint", bind)
    create(broker, f"{topics}-ticks", 1)
    running = opened(counting(), memory(), tmp_path / "checkpoint", bind)
    with pytest.raises(SamzaError, match=r"received\('counts'\): the output is kafka://"):
        running.values_of("counts")
    grow(broker, f"{topics}-ticks", 2)
    with pytest.raises(Damaged, match="has 2 partitions now, and had 1"):
        run_to_the_end(running)
    running.close()
