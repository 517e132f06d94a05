"""Topics as tests read them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from aiokafka import AIOKafkaProducer

from tests.kafka.topics import consume, create, produce


def test_what_is_read_ends_behind_a_transaction_that_was_open(broker, topics):
    """A commit is answered before its markers are written: who reads at once finds its transaction still open."""
    create(broker, topics)
    produce(broker, topics, (0, b"k", b"before"))

    async def work():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topics)
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait(topics, b"within", key=b"k", partition=0)
        with ThreadPoolExecutor(1) as threads:
            reading = asyncio.get_running_loop().run_in_executor(threads, consume, broker, topics)
            done, _ = await asyncio.wait([reading], timeout=2)
            await producer.commit_transaction()
            found = await reading
        await producer.stop()
        return done, found

    done, found = asyncio.run(work())
    assert not done
    assert [record.value for record in found[0]] == [b"before", b"within"]
