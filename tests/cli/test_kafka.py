"""The commands that start a broker, stop it, and say whether one runs."""

import pytest

from runtime.systems.kafka.broker import broker as kafka_broker


@pytest.mark.ci
def test_a_broker_is_started_found_and_stopped(call, folder):
    directory = folder / "kafka"
    try:
        started = call("kafka", "start", "--dir", "kafka")
        broker = kafka_broker.running(directory)
        assert broker is not None
        assert started.output == f"a Kafka broker runs in kafka: kafka://{broker.bootstrap} (process {broker.pid})\n"
        found = call("kafka", "status", "--dir", "kafka")
        assert (found.exit_code, found.output) == (0, started.output)
        assert call("kafka", "stop", "--dir", "kafka").output == "the broker in kafka has stopped\n"
    finally:
        kafka_broker.stop(directory, kill=True)
    missed = call("kafka", "status", "--dir", "kafka")
    assert (missed.exit_code, missed.output) == (1, "no broker runs in kafka\n")
    assert call("kafka", "stop", "--dir", "kafka").output == "no broker runs in kafka\n"
