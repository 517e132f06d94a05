"""What every environment does, on a real broker."""

import pytest

from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster
from tests.conformance import test_environment as suite
from tests.kafka.apart import Apart

OTHERWISE = {
    "test_a_commit_that_is_refused_has_consumed_nothing": "the marker of a transaction takes an offset",
    "test_a_control_alone_has_an_offset_of_its_own": "the marker of a transaction takes an offset",
    "test_all_columns_come_back": "only streams between stages carry stamps and signs",
    "test_an_ended_partition_takes_nothing_more": "the marker of a transaction takes an offset",
    "test_big_values_come_back": "a record is as large as its topic takes",
    "test_compaction_comes_by_and_by": "brokers compact when they see fit",
    "test_compaction_keeps_the_newest_row_of_each_key": "brokers compact when they see fit",
    "test_compaction_keeps_what_each_producer_said_last": "brokers compact when they see fit",
    "test_reads_go_on_from_any_offset": "what a producer says takes an offset",
    "test_records_are_counted_and_neither_controls_nor_what_is_gone": "brokers compact when they see fit",
    "test_retention_drops_whole_batches_by_age": "brokers drop when they see fit",
    "test_retention_drops_whole_batches_by_size": "brokers drop when they see fit",
    "test_rows_without_a_timestamp_have_the_time_of_their_append": "the time is the client's",
    "test_what_is_consumed_goes_faster_than_it_comes": "what is consumed goes all at once, now and then",
    "test_what_is_consumed_of_an_intermediate_stream_goes_in_whole_batches": "what is consumed goes now and then",
    "test_what_is_consumed_of_another_stream_stays": "the marker of a transaction takes an offset",
    "test_what_each_of_several_producers_said_last_outlives_compaction": "brokers compact when they see fit",
}
"""What is not so on Kafka, and why; what is so instead is in test_environment.py."""

SUITE = [name for name in dir(suite) if name.startswith("test_") and name not in OTHERWISE]
globals().update({name: getattr(suite, name) for name in SUITE})
clock = suite.clock


def test_what_is_otherwise_on_kafka_is_in_the_suite():
    assert OTHERWISE.keys() <= set(dir(suite))


@pytest.fixture
def environment(broker, topics, tmp_path):
    environment = Apart(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path), f"{topics}-")
    yield environment
    environment.close()
