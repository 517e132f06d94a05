"""Topics of a real broker as inputs and outputs of runs on Spark itself, on two cores of this machine."""

import random
import signal
import subprocess
import sys
from collections import Counter
from unittest.mock import patch

import msgspec
import pytest

from operators.partition_by import murmur2
from runtime.ports.stream_values import values_of
from runtime.spark.batch import SparkEngine
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.units.driver.application import Application
from runtime.units.driver.engine import run_together
from samza_dsl import App, KafkaCluster, SamzaError, Spark, dead_letter, produce
from samza_dsl.testing import unordered
from tests.conformance import pipelines
from tests.conformance.pipelines import PIPELINES, app_of
from tests.conformance.test_runners import counts, lived
from tests.kafka import topics as kafka
from tests.kafka.sharing import shared_broker
from tests.kafka.topics import consume, create
from tests.scale import scale
from tests.source import ROOT
from tests.spark.publishing import counting
from tests.spark.watching import ticks, told, watching


@pytest.mark.timeout(900)
def test_a_topic_comes_on_spark_to_what_it_comes_to_live(session, broker, topics, tmp_path):
    ticks(broker, f"{topics}-ticks")
    bind = {"ticks": f"kafka://{broker.bootstrap}/{topics}-ticks"}
    live = watching(topics).run(tmp_path / "live", bind=bind, until_now=True)
    spark = watching(topics).run(tmp_path / "spark", bind=bind, on=Spark(session))
    assert told(live) == told(spark)
    assert min(map(len, told(live).values())) > 3
    again = {"bind": bind, "start": {"ticks": 30, "ticks:1": 50}, "until": {"ticks:2": 90}}
    here = watching(topics).reprocess(tmp_path / "here", **again)
    assert told(here) == told(watching(topics).reprocess(tmp_path / "there", **again, on=Spark(session)))
    assert told(here) != told(live)


def published(broker, topic):
    return sorted(
        (number, record.key, tuple(msgspec.json.decode(record.value)), record.timestamp)
        for number, records in consume(broker, topic).items()
        for record in records
    )


def program(*arguments):
    command = [sys.executable, ROOT / "tests" / "spark" / "publishing.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def given(broker, topics):
    """Write ticks, and return them."""
    create(broker, f"{topics}-ticks", 3)
    chance = random.Random(3)
    rows = [[f"k{chance.randrange(9)}", at * 5] for at in range(300)]
    kafka.produce(broker, f"{topics}-ticks", *((row[1] % 3, row[0].encode(), msgspec.json.encode(row)) for row in rows))
    return rows


def check(rows, broker, topics):
    """See that each tick was copied once, to where its key belongs, and counted once."""
    copies = published(broker, f"{topics}-copies")
    assert sorted(list(value) for _, _, value, _ in copies) == sorted(rows)
    assert all(
        (number, key, at) == (murmur2(key) % 2, value[0].encode(), value[1]) for number, key, value, at in copies
    )
    found = Counter((key, at // 100 * 100) for key, at in rows)
    counts = sorted(value for _, _, value, _ in published(broker, f"{topics}-counts"))
    assert counts == sorted((*place, number) for place, number in found.items())


@pytest.mark.timeout(900)
def test_drivers_of_micro_batches_that_are_killed_lose_and_double_nothing(broker, topics, tmp_path):
    address, rows = f"kafka://{broker.bootstrap}/{topics}", given(broker, topics)
    kafka.produce(broker, f"{topics}-ticks", (1, b"k", b"no tick"))
    for most in (2, 5)[: scale(1, 1, 2)]:  # in the midst of a micro-batch
        killed = program(tmp_path, address, most, "on", "environment")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = program(tmp_path, address, 0, "on", "environment")
    assert last.returncode == 0, last.stderr
    check(rows, broker, topics)
    ((letter,),) = consume(broker, f"{topics}-letters").values()
    assert letter.value == b"no tick"


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_while_it_publishes_goes_on_and_computes_nothing_again(session, broker, topics, tmp_path):
    address, rows = f"kafka://{broker.bootstrap}/{topics}", given(broker, topics)
    killed = program(tmp_path, address, 2)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kafka.produce(broker, f"{topics}-ticks", (0, b"k", b'["k", 1]'))  # which comes too late
    other = {"ticks": f"{address}-ticks", "counts": f"{address}-counts"}
    with pytest.raises(
        SamzaError, match=r"was stopped while it published to kafka://.*: run it so once more, or remove"
    ):
        counting().run(tmp_path / "data", bind=other, on=Spark(session))
    for most in (3, 2)[: scale(1, 1, 2)]:
        killed = program(tmp_path, address, most)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    bind = {name: f"{address}-{name}" for name in ("ticks", "counts", "copies")}
    done = counting().run(tmp_path / "data", bind=bind, on=Spark(session))
    assert done.metrics().received("ticks") == 300
    check(rows, broker, topics)
    with pytest.raises(SamzaError, match=r"the topic kafka://.* holds records already"):
        counting().run(tmp_path / "data", bind=bind, on=Spark(session))
    assert [file.name for file in (tmp_path / "data" / "spark" / "counting").iterdir()] == ["lock"]


@pytest.mark.timeout(900)
def test_every_operator_comes_over_a_cluster_to_what_the_live_run_comes_to(session, tmp_path):
    with shared_broker(tmp_path / "kafka") as broker:
        cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
        with patch.object(pipelines, "memory", lambda: KafkaEnvironment(cluster, tmp_path / "filled")):
            environment = pipelines.filled()
        applications, expected = [], {}
        # In CI a third of them: what each does is the same over any environment, and topics take long to make.
        for name in [*PIPELINES][:: scale(3, 3, 1)]:
            app = app_of(name)
            written = [stream.name for stream in app.plan(counts(environment)).results]
            bind = {stream: f"stream:{app.name}-{stream}" for stream in written}
            expected |= {bind[stream].removeprefix("stream:"): values for stream, values in lived(name).items()}
            applications.append(Application(app.pipeline(), tmp_path / name, bind, cluster=cluster))
        run_together(SparkEngine(session, most_tasks=4), applications)
        found = {stream: values_of(environment, stream, None) for stream in expected}
        assert unordered(found) == unordered(expected)
        environment.close()


@pytest.mark.timeout(900)
def test_a_cluster_is_the_environment_of_a_bounded_run(session, broker, topics, tmp_path):
    cluster = f"kafka://{broker.bootstrap}"

    def copying():
        app = App(f"{topics}-app")
        words = app.input(f"{topics}-words", value=str, key=str).map(words_of, on_error=dead_letter(f"{topics}-bad"))
        words.send_to(app.output(f"{topics}-copies", value=str, key=str, partitions=2))
        return app

    def words_of(word):
        return word[0] + word

    produce(f"{topics}-words", ["ahoy", "", "land"], value=str, key=str, environment=cluster)
    run = copying().run(tmp_path / "data", environment=cluster, on=Spark(session))
    assert sorted(run.received(f"{topics}-copies")) == ["aahoy", "lland"]
    assert run.received(f"{topics}-bad") == [b""]
    copying().run(tmp_path / "live", environment=cluster, until_now=True)
    copies = [
        (number, one.key, one.value) for number, found in consume(broker, f"{topics}-copies").items() for one in found
    ]
    assert len(copies) == 4 and len(set(copies)) == 2
    with pytest.raises(SamzaError, match=r"the topic kafka://.*-(copies|bad) holds records already"):
        copying().run(tmp_path / "data", environment=cluster, on=Spark(session))
