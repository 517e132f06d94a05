"""Topics of a real broker as tests write and read them, by a client that knows nothing of this library."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import GroupCoordinatorNotAvailableError
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.faults.processes import wait_until


def create(broker, topic: str, partitions: int = 1, **configs: str) -> None:
    """Make a topic."""
    made = NewTopic(topic, partitions, 1, topic_configs=configs)
    answer = _administer(broker, lambda admin: admin.create_topics([made]))
    assert not answer.topic_errors[0][1], answer


def produce(broker, topic: str, *rows, abort: bool = False, transaction: str | None = None) -> None:
    """Write (partition, key, value) in order; in a transaction where that has an id, which may be aborted.

    None is waited for before the next one is sent: a round trip each is what most of a test would take.
    """

    async def work():
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=transaction) as producer:
            if transaction:
                await producer.begin_transaction()
            sent = [await producer.send(topic, value, key=key, partition=at) for at, key, value in rows]
            await asyncio.gather(*sent)
            if transaction:
                await (producer.abort_transaction() if abort else producer.commit_transaction())

    asyncio.run(work())


def consume(broker, topic: str, isolation: str = "read_committed"):
    """Return all records that a topic holds, by partition; a transaction that is under way is waited for.

    A commit is answered before its markers are written: who asks then where committed records end is told of an end
    that lies before it.
    """
    partitions = partitions_of(broker, topic)

    async def work():
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = {place.partition: [] for place in places}
        async with (
            AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_uncommitted") as all_there_is,
            AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level=isolation) as consumer,
        ):
            ends = await all_there_is.end_offsets(places)
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            for place in places:
                while await consumer.position(place) < ends[place]:
                    for other, records in (await consumer.getmany(timeout_ms=100)).items():
                        found[other.partition] += records
        return found

    return asyncio.run(work())


def names(broker) -> set[str]:
    """Return the names of all topics."""
    return set(_administer(broker, lambda admin: admin.list_topics()))


def remove(broker, topic: str, below: int) -> None:
    """Remove the records of partition 0 below an offset, as retention does."""
    gone = {TopicPartition(topic, 0): RecordsToDelete(before_offset=below)}
    _administer(broker, lambda admin: admin.delete_records(gone))


def remove_all(broker, topic: str) -> None:
    """Remove the records of all partitions, as DeleteRecords does."""
    places = [TopicPartition(topic, number) for number in range(partitions_of(broker, topic))]

    async def work():
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            return await consumer.end_offsets(places)

    gone = {place: RecordsToDelete(before_offset=end) for place, end in asyncio.run(work()).items()}
    _administer(broker, lambda admin: admin.delete_records(gone))


def configure(broker, topic: str, **settings: str) -> None:
    """Change how a topic is configured, as Kafka's own tool does without a Java of its own."""
    how = AlterConfigOpType.SET
    said = [ConfigEntry(name, value, incremental_operation=how) for name, value in settings.items()]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (done,) = admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=said)]).values()
    done.result()


def delete(broker, *topics: str) -> None:
    """Remove topics."""
    _administer(broker, lambda admin: admin.delete_topics([*topics]))


def delete_group(broker, group: str) -> None:
    """Remove a group, with the offsets that it has committed, once nobody is in it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (done,) = admin.delete_consumer_groups([group]).values()
    done.result()


def replace(broker, topic: str, *values: bytes) -> None:
    """Make a topic of one partition anew, and write to it."""
    delete(broker, topic)
    wait_until(lambda: topic not in names(broker))
    create(broker, topic)
    produce(broker, topic, *((0, None, value) for value in values))


def grow(broker, topic: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until the broker tells of them."""
    _administer(broker, lambda admin: admin.create_partitions({topic: NewPartitions(partitions)}))
    wait_until(lambda: partitions_of(broker, topic) == partitions)


def partitions_of(broker, topic: str) -> int:
    """Return how many partitions a topic has."""
    (told,) = _administer(broker, lambda admin: admin.describe_topics([topic]))
    return len(told["partitions"])


def group_offsets(broker, group: str) -> dict[tuple[str, int], int]:
    """Return the offsets that a group has committed, as tools that show its lag see them; none before it has any."""
    try:
        found = _administer(broker, lambda admin: admin.list_consumer_group_offsets(group))
    except GroupCoordinatorNotAvailableError:  # the broker makes the topic of offsets when it is asked for first
        return {}
    return {(place.topic, place.partition): at.offset for place, at in found.items()}


def _administer(broker, ask):
    """Return what an administrator of the broker answers."""

    async def work():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            return await ask(admin)
        finally:
            await admin.close()

    return asyncio.run(work())
