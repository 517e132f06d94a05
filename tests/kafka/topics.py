"""Topics of a real broker as tests write and read them, by a client that knows nothing of this library."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import GroupCoordinatorNotAvailableError

from tests.faults.processes import wait_until


def create(broker, topic: str, partitions: int = 1, **configs: str) -> None:
    """Make a topic."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        await admin.close()
        assert not answer.topic_errors[0][1], answer

    asyncio.run(work())


def produce(broker, topic: str, *rows, abort: bool = False, transaction: str | None = None) -> None:
    """Write (partition, key, value) in order; in a transaction where that has an id, which may be aborted."""

    async def work():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=transaction)
        await producer.start()
        if transaction:
            await producer.begin_transaction()
        for partition, key, value in rows:
            await producer.send_and_wait(topic, value, key=key, partition=partition)
        if transaction:
            await (producer.abort_transaction() if abort else producer.commit_transaction())
        await producer.stop()

    asyncio.run(work())


def consume(broker, topic: str, isolation: str = "read_committed"):
    """Return all records that a topic holds, by partition."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        partitions = len((await admin.describe_topics([topic]))[0]["partitions"])
        await admin.close()
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level=isolation)
        await consumer.start()
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        found = {place.partition: [] for place in places}
        for place in places:
            while await consumer.position(place) < ends[place]:
                for other, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[other.partition] += records
        await consumer.stop()
        return found

    return asyncio.run(work())


def names(broker) -> set[str]:
    """Return the names of all topics."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        found = await admin.list_topics()
        await admin.close()
        return set(found)

    return asyncio.run(work())


def remove(broker, topic: str, below: int) -> None:
    """Remove the records of partition 0 below an offset, as retention does."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=below)})
        await admin.close()

    asyncio.run(work())


def delete(broker, topic: str) -> None:
    """Remove a topic."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()

    asyncio.run(work())


def replace(broker, topic: str, *values: bytes) -> None:
    """Make a topic of one partition anew, and write to it."""
    delete(broker, topic)
    wait_until(lambda: topic not in names(broker))
    create(broker, topic)
    produce(broker, topic, *((0, None, value) for value in values))


def grow(broker, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.create_partitions({topic: NewPartitions(partitions)})
        await admin.close()

    asyncio.run(work())


def group_offsets(broker, group: str) -> dict[tuple[str, int], int]:
    """Return the offsets that a group has committed, as tools that show its lag see them; none before it has any."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(group)
        except GroupCoordinatorNotAvailableError:  # the broker makes the topic of offsets when it is asked for first
            found = {}
        finally:
            await admin.close()
        return {(place.topic, place.partition): at.offset for place, at in found.items()}

    return asyncio.run(work())
