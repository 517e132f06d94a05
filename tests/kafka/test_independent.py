"""An independent client, librdkafka, writes what an application reads, and finds what it has written, each once."""

import os
import subprocess
import sys
from collections import Counter, defaultdict

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from planner.model.errors import PlanError
from samza_dsl import App, KafkaCluster
from tests.kafka.topics import create
from tests.source import ROOT

SENT = 2_000
KEYS = 37
PARTITIONS = 3


class Order(msgspec.Struct):
    """The value of a record; its number says when it was written."""

    number: int


def written(broker, topic: str) -> list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]:
    """Write records to where Java's producers would put them, every tenth without a value."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
    )
    rows = []
    for number in range(SENT):
        key = b"k%d" % (number % KEYS)
        value = None if number % 10 == 9 else msgspec.json.encode(Order(number))
        headers = [("number", b"%d" % number), ("raw", bytes([number % 256, 0, 255]))] if number % 3 else []
        rows.append((key, value, headers))
        producer.produce(topic, value, key, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0
    return rows


def read(broker, topic: str, expected: int) -> dict[int, list]:
    """Return what is committed in a topic, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found: dict[int, list] = defaultdict(list)
    # It says for each partition when it is at the end, so that doubles beyond what is expected are found as well.
    at_end: set[int] = set()
    try:
        while len(at_end) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"{sum(map(len, found.values()))} of {expected} records within 30 s"
            if message.error():
                at_end.add(message.partition())
            else:
                found[message.partition()].append(message)
    finally:
        consumer.close()
    return found


PROGRAM = """
from samza_dsl import App
from tests.kafka.test_independent import Order

app = App("{name}")
orders = app.input("{name}-orders", value=Order | None, key=str, headers=True)
orders.send_to(app.output("{name}-copy", value=Order | None, partitions={partitions}))
orders.filter(lambda order: order is not None).partition_by(
    lambda order: order.number % 5, partitions=2, op_id="by-five"
).map(lambda order: order).send_to(
    app.output("{name}-fives", value=Order, partitions=2),
    headers=lambda order, headers: {{**headers, "five": b"%d" % (order.number % 5)}},
)
"""


def run(broker, name: str, tmp_path, containers: int) -> None:
    (tmp_path / "copying.py").write_text(PROGRAM.format(name=name, partitions=PARTITIONS))
    options = "--environment", f"kafka://{broker.bootstrap}", "--containers", str(containers), "--until-now"
    command = [sys.executable, "-m", "samza_dsl", "run", "copying.py", *options]
    how = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(command, **how, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("containers", [1, 2])
def test_another_client_finds_every_record_once_in_order_with_key_and_headers(broker, topics, tmp_path, containers):
    create(broker, f"{topics}-orders", PARTITIONS)
    rows = written(broker, f"{topics}-orders")
    run(broker, topics, tmp_path, containers)

    copies = read(broker, f"{topics}-copy", SENT)
    by_key = defaultdict(list)
    for partition in copies.values():
        for message in partition:
            by_key[message.key()].append((message.value(), message.headers() or []))
    expected = defaultdict(list)
    for key, value, headers in rows:
        expected[key].append((value, headers))
    assert by_key == expected, "every record of a key once, in the order in which it was written, with its headers"
    places = {(message.key(), number) for number, partition in copies.items() for message in partition}
    assert len(places) == KEYS, "a key lies in one partition"
    came = {(m.key(), number) for number, found in read(broker, f"{topics}-orders", SENT).items() for m in found}
    assert places == came, "in that in which librdkafka's murmur2_random puts it"

    fives = [message for partition in read(broker, f"{topics}-fives", SENT).values() for message in partition]
    numbers = Counter(msgspec.json.decode(message.value(), type=Order).number for message in fives)
    assert numbers == Counter(number for number in range(SENT) if number % 10 != 9)
    for message in fives:
        number = msgspec.json.decode(message.value(), type=Order).number
        assert dict(message.headers()) == {**dict(rows[number][2]), "five": b"%d" % (number % 5)}
        assert message.key() == b"%d" % (number % 5)


def test_topics_that_other_partitioners_have_written_are_told_where_keys_have_to_meet(broker, topics, tmp_path):
    """Librdkafka goes by CRC32 where nothing is said, and Kafka by murmur2: a join of both would find half of it."""
    for name, said in (("java", {"partitioner": "murmur2_random"}), ("c", {}), ("too", {})):
        create(broker, f"{topics}-{name}", PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.bootstrap, **said})
        for number in range(200):
            producer.produce(f"{topics}-{name}", b"%d" % number, b"k%d" % number)
        assert producer.flush(60) == 0

    def joined(one: str, other: str, shuffled: bool = False) -> App:
        app = App(f"{topics}-{one}-{other}-{shuffled}")
        left, right = (app.input(f"{topics}-{name}", value=int, key=str) for name in (one, other))
        if shuffled:
            left, right = (
                stream.partition_by(lambda number: f"k{number}", key_type=str, op_id=f"by-{n}")
                for n, stream in enumerate((left, right))
            )
        found = left.join(right, lambda number, same: [number, same], within=(-(10**9), 10**9), op_id="join")
        found.send_to(app.output(f"{app.name}-out", value=list, partitions=1))
        return app

    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
    with pytest.raises(PlanError, match=rf"keys of '{topics}-c' .* CRC32, as librdkafka does by default"):
        joined("java", "c").run(tmp_path / "differ", environment=cluster, until_now=True)
    for number, app in enumerate((joined("java", "c", shuffled=True), joined("c", "too"))):
        app.run(tmp_path / f"meet-{number}", environment=cluster, until_now=True)
        (found,) = read(broker, f"{app.name}-out", 200).values()
        assert sorted(msgspec.json.decode(message.value()) for message in found) == [[n, n] for n in range(200)]


@pytest.mark.parametrize("is_read", [True, False])
def test_headers_of_any_name_with_and_without_values_go_on_as_they_were_written(broker, topics, tmp_path, is_read):
    """Some are named as the library's own are, and mean nothing to it."""
    ours = ("samza-stamp", "samza-sign", "samza-time", "samza-control", "samza-carried-samza-stamp")
    said = [[(name, value)] for name in ours for value in (None, b"", b"zzz", b"\xff" * 8)]
    said += [[("a", None)], [("", b"")], [("\N{SNOWMAN}", b"1"), ("a", None)], []]
    name = f"{topics}-{is_read}"
    create(broker, f"{name}-in", 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, headers in enumerate(said):
        producer.produce(f"{name}-in", b"%d" % number, headers=headers)
    assert producer.flush(60) == 0

    app = App(name)
    numbers = app.input(f"{name}-in", value=int, headers=is_read)
    added = {"headers": lambda number, headers: {**headers, "schema": None}} if is_read else {}
    numbers.send_to(app.output(f"{name}-out", value=int, partitions=1), **added)
    shuffled = numbers.partition_by(lambda number: number % 2, partitions=1, op_id="by")
    shuffled.send_to(app.output(f"{name}-shuffled", value=int, partitions=1), op_id="shuffled")
    app.run(tmp_path / "run", environment=KafkaCluster(f"kafka://{broker.bootstrap}"), until_now=True)

    for output, more in ((f"{name}-out", {"schema": None}), (f"{name}-shuffled", {})):
        (messages,) = read(broker, output, len(said)).values()
        found = {int(message.value()): dict(message.headers() or []) for message in messages}
        assert found == {number: {**dict(one), **more} if is_read else {} for number, one in enumerate(said)}
