"""Record batches are read as a whole, and hold what aiokafka gives record by record."""

import asyncio
import struct
from types import SimpleNamespace

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from runtime.systems.kafka.client.private_names import KeptRecords
from runtime.systems.kafka.streams.record_batches import BatchRows, _Fetched, by_batches, hold_back, rows_of
from tests.kafka.topics import create, produce

PLACE = TopicPartition("t", 0)
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
GZIP, CONTROL = 1, 0x20

texts = st.none() | st.binary(max_size=5)
headers = st.lists(st.tuples(st.sampled_from(["a", "b"]), texts), max_size=2)
rows = st.tuples(texts, texts, headers, st.integers(0, 2**40))
batches = st.tuples(
    st.lists(
        st.tuples(st.integers(0, 3), rows), max_size=5
    ),  # each so far behind the one before: compaction leaves gaps
    st.integers(0, 3),  # and so far before the end
    st.sampled_from([None, 1, 2]),  # the producer, where it is in a transaction
    st.sampled_from([None, ABORT, COMMIT]),  # or this marker of it alone
    st.sampled_from([0, GZIP]),
)


def stored(base, found):
    """Return a batch as a broker keeps it, and the offset behind it."""
    records, behind, producer, marker, codec = found
    if producer is not None and marker is not None:
        records, behind, codec = [(0, (marker, b"\0" * 6, [], 0))], 0, 0
    builder = DefaultRecordBatchBuilder(2, codec, int(producer is not None), producer or -1, 0, 0, 1 << 20)
    at = -1
    for gap, (key, value, said, time) in records:
        at += gap + 1
        builder.append(at, time, key, value, said)
    buffer = builder.build()
    last = max(at, 0) + behind
    struct.pack_into(">q", buffer, 0, base)
    struct.pack_into(">i", buffer, 23, last)
    if producer is not None and marker is not None:
        struct.pack_into(">h", buffer, 21, struct.unpack_from(">h", buffer, 21)[0] | CONTROL)
    struct.pack_into(">I", buffer, 17, calc_crc32c(bytes(buffer[21:])))
    return bytes(buffer), base + last + 1


def fetched(data, aborted, start):
    return PartitionRecords(PLACE, MemoryRecords(data), aborted, start, None, None, True, READ_COMMITTED)


def told(records):
    """Return what one-by-one records hold, row by row."""
    return [(one.offset, one.timestamp, one.key, one.value, dict(one.headers)) for one in records]


def told_of(rows):
    headers = [said or {} for said in rows.headers or [None] * len(rows)]
    return list(zip(rows.offsets, rows.timestamps, rows.keys, rows.values, headers, strict=True))


@given(
    st.lists(batches, min_size=1, max_size=5),
    st.sets(st.tuples(st.sampled_from([1, 2]), st.integers(0, 20))),
    st.data(),
)
def test_a_batch_holds_what_is_given_record_by_record(found, aborted, data):
    kept, end = b"", 0
    for batch in found:
        buffer, end = stored(end, batch)
        kept += buffer
    start = data.draw(st.integers(0, end))
    one_by_one, whole = fetched(kept, [*aborted], start), fetched(kept, [*aborted], start)
    _Fetched()[PLACE] = SimpleNamespace(_partition_records=whole)
    assert told_of(rows_of(list(whole))) == told(one_by_one)
    assert whole.next_fetch_offset == one_by_one.next_fetch_offset


class Name(str):
    """A header's name that is written as these bytes, whatever they are."""

    def __new__(cls, data):
        made = super().__new__(cls, data.decode("utf-8", "backslashreplace"))
        made.data = data
        return made

    def encode(self, *_):
        return self.data


@given(
    found=st.lists(st.lists(st.tuples(st.binary(max_size=4).map(Name), texts), max_size=3), min_size=1, max_size=4),
    codec=st.sampled_from([0, GZIP]),
    at=st.integers(0, 2),
)
def test_names_of_headers_that_are_no_text_end_nothing(found, codec, at):
    """As any producer may write them, in whichever batch of those that are fetched at once."""
    plain, behind = stored(0, ([(0, (b"k", b"v", [("a", b"1")], 0))] * at, 0, None, None, 0))
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 1 << 20)
    for number, said in enumerate(found):
        builder.append(number, 7, b"key %d" % number, None if number % 2 else b"value", said)
    odd = builder.build()
    struct.pack_into(">q", odd, 0, behind)
    records = fetched(plain * bool(at) + bytes(odd), [], 0)
    records._records = KeptRecords(plain * bool(at) + bytes(odd))
    queue = _Fetched()
    queue[PLACE] = SimpleNamespace(_partition_records=records)
    batch = rows_of([*records])
    assert len(batch) == at + len(found)
    for number, said in enumerate(found):
        row = at + number
        assert batch.keys[row] == b"key %d" % number and batch.values[row] == (None if number % 2 else b"value")
        assert (batch.headers or [None] * len(batch))[row] == ({str(name): value for name, value in said} or None)


def test_a_consumer_gives_batches_from_the_midst_of_one_on(broker, topics):
    create(broker, topics)
    produce(broker, topics, *((0, b"k", b"%d" % number) for number in range(10)), transaction=topics)
    produce(broker, topics, (0, None, b"rolled back"), transaction=topics, abort=True)

    async def read():
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
        await consumer.start()
        by_batches(consumer)
        hold_back(consumer, 7)
        assert consumer._fetcher._fetch_max_wait_ms == 7
        place = TopicPartition(topics, 0)
        consumer.assign([place])
        consumer.seek(place, 4)
        found = []
        while await consumer.position(place) < 13:
            for given_now in (await consumer.getmany(timeout_ms=100)).values():
                assert {type(one) for one in given_now} == {BatchRows}
                found += told_of(rows_of(given_now))
        await consumer.stop()
        return found

    found = asyncio.run(read())
    assert [(offset, key, value) for offset, _, key, value, _ in found] == [
        (number, b"k", b"%d" % number) for number in range(4, 10)
    ]
