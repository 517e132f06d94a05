"""Rows of long ago that are written to a topic whose brokers will remove them: told, once for each topic."""

import logging
from contextlib import closing

import pytest

from operators.core.base import Batch
from runtime.model.clock import wall_clock_ms
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.topic import KafkaCluster, topic_of
from runtime.systems.kafka.streams.publication import KafkaPublisher, PublishedEnd
from samza_dsl import App
from samza_dsl import produce as produce_stream
from tests.kafka.topics import create, produce

WEEK_MS = 7 * 86_400_000


def write(how: str, broker, name: str, times: list[int], tmp_path) -> None:
    """Write rows of these times to a topic, in several commits."""
    cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
    if how == "produce":
        for at in times:
            produce_stream(
                *(name, [at]), environment=cluster, key=lambda value: str(value), timestamp=lambda value: value
            )
    elif how == "published":
        with closing(KafkaPublisher(topic_of(f"{cluster.address}/{name}"), StreamConfig(), name)) as publisher:
            for part, at in enumerate(times, 1):
                publisher.publish(part, [(0, Batch([b"%d" % at], [b"key"], [at]))])
            assert publisher.reached == PublishedEnd(len(times), 1)
    else:
        create(broker, f"{name}-read", len(times))
        produce(broker, f"{name}-read", *((number, b"key", b"%d" % at) for number, at in enumerate(times)))
        app = App(name)
        written = app.output(name, key=str, value=int)
        app.input(f"{name}-read", key=str, value=int, timestamp=lambda value: value).send_to(written)
        bind = {name: f"{cluster.address}/{name}"} if how == "bound" else {}
        app.run(tmp_path / how, environment=cluster, bind=bind, until_now=True)


@pytest.mark.parametrize("how", ["an output", "bound", "produce", "published"])
def test_rows_that_brokers_will_remove_by_their_times_are_told_by_whoever_writes(how, broker, topics, tmp_path, caplog):
    now = wall_clock_ms()
    for name, age_ms, configs in (
        ("recent", 3 * 3_600_000, {}),
        ("old", 30 * 86_400_000, {}),  # a topic keeps a week where nothing is said
        ("kept", 30 * 86_400_000, {"retention.ms": "-1"}),
    ):
        create(broker, f"{topics}-{name}", **configs)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "samza_dsl"):
            write(how, broker, f"{topics}-{name}", [now - age_ms, now - age_ms - 1], tmp_path / name)
        told = [line for line in caplog.messages if "brokers remove them" in line]
        # Each `produce` is a process of its own, to its user: it tells by itself.
        assert len(told) == (name == "old") * (2 if how == "produce" else 1), (name, caplog.messages)
        assert all(f"topic '{topics}-old': it has retention.ms={WEEK_MS} " in line for line in told)


def test_a_topic_that_is_made_with_a_retention_removes_old_rows_as_well(broker, topics, tmp_path, caplog):
    app, cluster = App(topics), KafkaCluster(f"kafka://{broker.bootstrap}")
    create(broker, f"{topics}-read")
    produce(broker, f"{topics}-read", (0, None, b"1000"), (0, None, b"-1000"))
    written = app.output(f"{topics}-made", value=int, retention_ms=WEEK_MS)
    app.input(f"{topics}-read", value=int, timestamp=lambda value: value).send_to(written)
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        app.run(tmp_path, environment=cluster, until_now=True)
    (told,) = (line for line in caplog.messages if "brokers remove them" in line)
    assert "rows as old as 1970-01-01 00:00:00 are written" in told
    assert f"retention.ms={WEEK_MS} (7 days, 0:00:00)" in told
