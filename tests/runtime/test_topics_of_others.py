"""What is told and done of topics that others have made, or configured, is what the brokers know of them."""

from collections import defaultdict
from contextlib import closing
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from operators.core.base import Batch
from planner.model.errors import PlanError
from runtime.model.errors import Damaged
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, count, produce, tumbling
from samza_dsl.cli.main import commands
from tests.simulation.crash import rows_of, run_once
from tests.simulation.kafka import opened
from tests.simulation.kafka_brokers import NOW_MS, Partition, Topic

STAMPED = {"message.timestamp.type": "LogAppendTime"}
MINUTE_MS = 60_000


@pytest.fixture
def theirs(cluster, tmp_path):
    """A topic of three partitions, with a thousand records in each, which another client has made."""
    topic = Topic([Partition() for _ in range(3)], {"retention.ms": "7000"}, cluster.topic_id())
    cluster.topics["theirs"] = topic
    for partition in range(3):
        cluster.write(None, 0, ("theirs", partition), [(None, b"1", None, [])] * 1_000)
    return topic


def told(*words):
    found = CliRunner().invoke(commands, [*words, "--environment", "kafka://simulated:9092"])
    assert found.exit_code == 0, found.output
    return found.output


def test_all_partitions_end(theirs, cluster, tmp_path):
    with closing(opened(tmp_path)) as environment:
        environment.end_stream("theirs")
        assert [environment.offsets("theirs", number).ended for number in range(3)] == [True] * 3


def test_so_do_those_that_a_stream_of_ours_has_got_since(cluster, tmp_path):
    with closing(opened(tmp_path)) as environment:
        environment.create_stream("ours", StreamConfig(partitions=2))
        environment.append([Append("ours", 0, Batch([b"1"]))])
        cluster.topics["ours"].partitions.append(Partition())
        environment.end_stream("ours")
        assert [environment.offsets("ours", number).ended for number in range(3)] == [True] * 3


def test_all_records_are_counted(theirs, tmp_path):
    with closing(opened(tmp_path)) as environment:
        assert environment.stream_stats("theirs") == (3_000, 3_000)


def test_the_commands_tell_and_end_all_of_it(theirs, tmp_path):
    assert "partitions   3" in told("streams", "describe", "theirs")
    assert "7,000 ms" in told("streams", "describe", "theirs")
    archived = told("streams", "archive", "theirs", str(tmp_path / "archive"), "--as", "jsonl")
    assert "archived 3,000 records of theirs" in archived
    assert "has ended" in told("streams", "end", "theirs")
    assert told("streams", "describe", "theirs").count("ended") == 3


def test_a_run_ends_when_all_partitions_have(theirs, tmp_path):
    app = App("counting")
    app.input("theirs", value=int).send_to(app.output("copied", value=int, partitions=3))
    with closing(opened(tmp_path)) as environment:
        environment.end_stream("theirs")
        run_once(app, environment)
        assert sum(map(len, rows_of(environment, "copied"))) == 3_000


def test_what_is_written_goes_to_all_partitions(theirs, cluster):
    keys = range(30)
    produce("theirs", keys, key=lambda value: f"k{value}", environment="kafka://simulated:9092")
    assert all(partition.end > 1_000 for partition in theirs.partitions)


def test_what_an_output_says_is_compared_with_what_the_topic_is(theirs, tmp_path):
    def app(retention_ms):
        app = App("writing")
        app.input("numbers", value=int).send_to(app.output("theirs", value=int, retention_ms=retention_ms))
        return app

    with closing(opened(tmp_path)) as environment:
        environment.create_stream("numbers", StreamConfig())
        run_once(app(7_000), environment, until_now=True)
        with pytest.raises(PlanError, match="retention_ms=8000, and the stream 'theirs' exists and has 7000"):
            run_once(app(8_000), environment, until_now=True)
        assert environment.streams()["theirs"] == StreamConfig(partitions=3, retention_ms=7_000)


def windows(timestamp=None):
    app = App("windows")
    numbers = app.input("numbers", value=int, timestamp=timestamp)
    by_kind = numbers.partition_by(lambda value: value % 2, op_id="kinds")
    by_kind.window(tumbling(minutes=1), count(), op_id="count").send_to(app.output("panes"))
    return app


def write(environment, minutes=10, is_over=True):
    environment.create_stream("numbers", StreamConfig())
    times = [NOW_MS - MINUTE_MS * (minutes - number) for number in range(minutes)]
    environment.append([Append("numbers", 0, Batch([b"%d" % number for number in range(minutes)], None, times))])
    if is_over:
        environment.end_stream("numbers")


def panes(environment):
    return sum(map(len, rows_of(environment, "panes")))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_windows_behind_a_repartitioning_are_the_same_whatever_the_cluster_s_default(cluster, tmp_path, kind):
    cluster.defaults["message.timestamp.type"] = kind
    with closing(opened(tmp_path)) as environment:
        write(environment)
        run_once(windows(), environment)
        assert panes(environment) == 10


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_duplicates_are_those_of_plain_python_in_the_order_in_which_they_are_read(cluster, tmp_path, kind, partitions):
    app = App("seen")
    events = app.input("events", value=list[int], timestamp=lambda event: event[1], max_disorder_ms=10 * MINUTE_MS)
    here = events.partition_by(lambda event: 0, partitions=1, op_id="here")
    here.deduplicate(lambda event: event[0], within_ms=MINUTE_MS).send_to(app.output("first"))
    here.send_to(app.output("read"))
    random = Random(5)
    made = [[random.randrange(9), NOW_MS + 7_000 * number] for number in range(300)]
    cluster.defaults["message.timestamp.type"] = kind
    with closing(opened(tmp_path)) as environment:
        environment.create_stream("events", StreamConfig(partitions=partitions))
        for number in range(partitions):
            batch = Batch([*map(msgspec.json.encode, made[number::partitions])])
            environment.append([Append("events", number, batch)])
        environment.end_stream("events")
        run_once(app, environment)
        read, first = (
            [msgspec.json.decode(value) for part in rows_of(environment, name) for _, value, _ in part]
            for name in ("read", "first")
        )
    went_on: defaultdict[int, list[int]] = defaultdict(list)
    for id, at in read:
        if all(abs(at - other) >= MINUTE_MS for other in went_on[id]):
            went_on[id].append(at)
    assert sorted(read) == sorted(made)
    assert first == [event for event in read if event[1] in went_on[event[0]]]


def test_a_topic_between_stages_that_brokers_stamp_is_changed_where_it_is_empty(cluster, tmp_path, caplog):
    with closing(opened(tmp_path)) as environment:
        environment.create_stream("windows-kinds", StreamConfig(intermediate=True))
        cluster.topics["windows-kinds"].configs |= STAMPED
        write(environment)
        run_once(windows(), environment)
        assert panes(environment) == 10
    assert "changes the topic 'windows-kinds', which had message.timestamp.type=LogAppendTime" in caplog.text


def test_where_it_holds_records_it_is_refused(cluster, tmp_path):
    with closing(opened(tmp_path)) as environment:
        write(environment, is_over=False)
        run_once(windows(), environment, until_now=True)  # with a checkpoint they are not what a reset has left
        cluster.topics["windows-kinds"].configs |= STAMPED
        environment.append([Append("windows-kinds", 0, Batch([b"1"]))])
        for _ in range(2):
            with pytest.raises(Damaged, match=r"'windows-kinds'.*LogAppendTime.*samza-dsl reset"):
                run_once(windows(), environment)


@pytest.mark.parametrize("timestamp", [None, lambda value: NOW_MS + value])
def test_an_input_that_brokers_stamp_is_told_where_its_time_counts(cluster, tmp_path, caplog, timestamp):
    with closing(opened(tmp_path)) as environment:
        write(environment)
        cluster.topics["numbers"].configs |= STAMPED
        run_once(windows(timestamp), environment)
    told = "'numbers' has message.timestamp.type=LogAppendTime, so that window 'count' at" in caplog.text
    assert told == (timestamp is None)


@pytest.mark.parametrize("timestamp", [None, lambda value: NOW_MS + value])
@pytest.mark.parametrize("by_time", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_an_output_that_brokers_stamp_is_told_by_who_writes_it(cluster, tmp_path, caplog, timestamp, by_time, outside):
    app = App("windows")
    numbers = app.input("numbers", value=int, key=lambda value: value % 2, timestamp=timestamp, partitioned_by_key=True)
    numbers = numbers.window(tumbling(minutes=1), count(), op_id="count") if by_time else numbers
    numbers.send_to(app.output("panes"))
    cluster.topics["panes"] = Topic([Partition()], dict(STAMPED), cluster.topic_id())
    bind = {"panes": "kafka://simulated:9092/panes"} if outside else {}
    with closing(opened(tmp_path)) as environment:
        write(environment)
        run_once(app, environment, bind=bind)
    told = "output 'panes': its topic has message.timestamp.type=LogAppendTime" in caplog.text
    assert told == (by_time or timestamp is not None)


def test_no_application_writes_into_a_topic_between_the_stages_of_another(cluster, tmp_path):
    app = App("other")
    app.input("numbers", value=int).send_to(app.output("windows-kinds", value=int))
    with closing(opened(tmp_path)) as environment:
        write(environment)
        run_once(windows(), environment)
        with pytest.raises(PlanError, match="between the stages of an app"):
            run_once(app, environment)
