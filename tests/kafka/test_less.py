"""Topics of a real broker that hold less than was committed, or are not configured as they must be."""

import logging

import pytest

from runtime.model.errors import Damaged
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.admin import described
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, KafkaCluster, String, count, tumbling
from tests.kafka.topics import configure as change
from tests.kafka.topics import consume, create, delete, group_offsets, produce, remove


def counting(topics: str) -> App:
    """Count words after a repartitioning, and tell each new count."""
    app = App(topics)
    words = app.input(f"{topics}-words", value=String()).partition_by(lambda word: word, partitions=1, op_id="by-word")
    words.scan(lambda total, _: (total or 0) + 1, op_id="count").send_to(app.output(f"{topics}-counts", value=int))
    return app


@pytest.fixture
def cluster(broker):
    return KafkaCluster(f"kafka://{broker.bootstrap}")


@pytest.fixture
def run(broker, topics, cluster, tmp_path):
    """Run the application on a machine over one more word, and return the counts that it has told so far."""
    create(broker, f"{topics}-words")

    def run(machine: str) -> list[int]:
        produce(broker, f"{topics}-words", (0, None, b"word"))
        counting(topics).run(until_now=True, environment=cluster, data=str(tmp_path / machine))
        return counts(broker, topics)

    return run


def counts(broker, topics: str) -> list[int]:
    return [int(record.value) for records in consume(broker, f"{topics}-counts").values() for record in records]


def configs(cluster: KafkaCluster, name: str) -> dict[str, str]:
    thread = KafkaThread.acquire()
    try:
        return thread.call(described(cluster.topic(name)))
    finally:
        thread.release()


def test_windows_and_ends_are_right_on_topics_that_others_have_made(broker, topics, cluster, tmp_path, caplog):
    numbers, between = f"{topics}-numbers", f"{topics}-kinds"
    create(broker, numbers, 3, **{"message.timestamp.type": "LogAppendTime", "retention.ms": "900000000"})
    produce(broker, numbers, *((number % 3, None, b"%d" % number) for number in range(30)))
    app = App(topics)
    by_kind = app.input(numbers, value=int, timestamp=lambda value: value * 60_000).partition_by(
        lambda value: value % 2, op_id="kinds"
    )
    by_kind.window(tumbling(minutes=1), count(), op_id="count").send_to(app.output(f"{topics}-panes"))
    environment = KafkaEnvironment(cluster, tmp_path / "here")
    assert environment.stream_stats(numbers)[0] == 30
    assert environment.streams()[numbers] == StreamConfig(partitions=3, retention_ms=900_000_000)
    assert environment.is_stamped(numbers)
    environment.create_stream(between, StreamConfig(partitions=3, intermediate=True))
    environment.end_stream(numbers)
    environment.close()
    change(broker, between, **{"message.timestamp.type": "LogAppendTime"})
    app.run(environment=cluster, data=str(tmp_path / "here"))  # comes to its end
    assert sum(map(len, consume(broker, f"{topics}-panes").values())) == 30
    assert configs(cluster, between)["message.timestamp.type"] == "CreateTime"


def test_own_topics_are_compacted_alone_and_what_they_have_lost_is_told(broker, topics, cluster, run, tmp_path, caplog):
    changelog, ledger, between = f"{topics}-count-changelog", f"{topics}-checkpoints", f"{topics}-by-word"
    assert run("here") == [1]
    assert run("there") == [1, 2]
    assert configs(cluster, changelog)["cleanup.policy"] == configs(cluster, ledger)["cleanup.policy"] == "compact"
    change(
        broker,
        changelog,
        **{"cleanup.policy": "compact,delete", "retention.ms": "100000000", "max.message.bytes": "2000000"},
    )
    change(broker, between, **{"retention.ms": "100000000", "message.timestamp.type": "CreateTime"})
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        assert run("here") == [1, 2, 3]
    found = configs(cluster, changelog)
    assert (found["cleanup.policy"], found["max.message.bytes"]) == ("compact", "2000000")
    assert configs(cluster, between)["retention.ms"] == "-1"
    assert f"changes the topic {changelog!r}, which had cleanup.policy=compact,delete" in caplog.text

    change(broker, changelog, **{"cleanup.policy": "delete"})
    remove(broker, changelog, below=3)
    with pytest.raises(Damaged, match=rf"{changelog}' begins at offset 3 of partition 0, and not at 0"):
        run("elsewhere")
    assert run("here") == [1, 2, 3, 4, 5]
    delete(broker, changelog)
    for machine in ("here", "elsewhere"):
        with pytest.raises(Damaged, match=rf"{changelog}' is no longer there"):
            run(machine)
    create(broker, changelog, 8)
    with pytest.raises(Damaged, match=rf"{changelog}' was deleted and made anew"):
        run("here")
    assert counts(broker, topics) == [1, 2, 3, 4, 5]

    delete(broker, ledger)
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"{ledger}' has no checkpoint of what the group '{topics}' has committed"):
            run("here")
    environment = KafkaEnvironment(cluster, tmp_path / "here")
    environment.reset(topics)
    environment.delete_stream(between)
    environment.close()
    assert group_offsets(broker, topics)[f"{topics}-words", 0] == 0
    told = run("here")
    assert told[5:] == [*range(1, len(told) - 4)]
    assert run("there") == [*told, told[-1] + 1]
