"""Inputs and outputs that are topics of a real broker, with state and checkpoints in the embedded log."""

import asyncio
import math
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest
from aiokafka.partitioner import DefaultPartitioner

from runtime.model.errors import Damaged, EnvironmentFault, SamzaError
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.topic import topic_of
from runtime.systems.kafka.streams import fetcher as kafka_fetcher
from runtime.systems.kafka.streams import sink as kafka_sink
from runtime.systems.kafka.streams.sink import KafkaSink
from samza_dsl import App, Bytes, Json, PlanError, String
from tests.kafka.topics import consume, create, delete, grow, produce, remove, replace


def counting(name: str) -> App:
    """Count words, and tell each new count, by word."""
    app = App(name)
    words = app.input("words", value=String(), key=String())
    counts = words.scan(lambda total, word: (total or 0) + 1, op_id="count")
    counts.send_to(app.output("counts", value=Json(), key=String()))
    return app


def test_a_pipeline_reads_a_topic_and_writes_another(broker, topics, tmp_path):
    create(broker, f"{topics}-words", 3)
    create(broker, f"{topics}-counts", 3)
    bind = {name: f"kafka://{broker.bootstrap}/{topics}-{name}" for name in ("words", "counts")}
    rows = [(number % 3, b"%d" % (number % 7), b"w") for number in range(100)]
    rows = [(int(key) % 3, key, value) for _, key, value in rows]
    for part in (rows[:60], rows[60:], []):
        if part:
            produce(broker, f"{topics}-words", *part)
        counting(topics).run(tmp_path / "data", bind=bind, until_now=True)
    found = consume(broker, f"{topics}-counts")
    told = [(record.key, msgspec.json.decode(record.value)) for records in found.values() for record in records]
    seen = Counter(key for _, key, _ in rows)
    assert sorted(told) == sorted((key, count + 1) for key in seen for count in range(seen[key]))


def copying(name: str, seen=lambda word: None, **output) -> App:
    """Copy words as they are, and tell each."""
    app = App(name)
    words = app.input("words", value=Bytes(), key=Bytes()).map(lambda word: (seen(word), word)[1])
    words.send_to(app.output("copies", value=Bytes(), key=Bytes(), **output))
    return app


@pytest.fixture
def bind(broker, topics):
    """Both streams of `copying` as topics."""
    return {name: f"kafka://{broker.bootstrap}/{topics}-{name}" for name in ("words", "copies")}


def values(records) -> list[bytes]:
    return [record.value for partition in records.values() for record in partition]


def test_keys_lie_where_javas_own_partitioner_puts_them(broker, topics, bind, tmp_path):
    create(broker, f"{topics}-words", 1)
    keys = [b"%d" % number for number in range(50)]
    produce(broker, f"{topics}-words", *((0, key, b"v") for key in keys))
    copying(topics, partitions=5).run(tmp_path / "data", bind=bind, until_now=True)
    found = consume(broker, f"{topics}-copies")
    partition_as_java = DefaultPartitioner()
    places = list(range(5))
    expected = {number: [key for key in keys if partition_as_java(key, places, places) == number] for number in places}
    assert {number: [record.key for record in records] for number, records in found.items()} == expected


def test_what_was_rolled_back_is_not_read_and_its_markers_are_passed(broker, topics, bind, tmp_path):
    topic = f"{topics}-words"
    create(broker, topic, 1)
    produce(broker, topic, (0, None, b"kept"), transaction=f"{topics}-writer")
    produce(broker, topic, (0, None, b"rolled back"), transaction=f"{topics}-writer", abort=True)
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    produce(broker, topic, (0, None, b"rolled back, too"), transaction=f"{topics}-writer", abort=True)
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    produce(broker, topic, (0, None, b"last"), transaction=f"{topics}-writer")
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    assert values(consume(broker, f"{topics}-copies")) == [b"kept", b"last"]


def test_times_come_through_compressed(broker, topics, bind, tmp_path):
    create(broker, f"{topics}-words", 1)
    produce(broker, f"{topics}-words", (0, b"k", b"v"))
    before = consume(broker, f"{topics}-words")[0][0]
    bind["copies"] += "?compression=gzip"
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    after = consume(broker, f"{topics}-copies")[0][0]
    assert (after.key, after.value, after.timestamp) == (b"k", b"v", before.timestamp)


@pytest.mark.parametrize(("start", "read"), [("earliest", [b"old", b"new"]), ("latest", [b"new"])])
def test_where_reading_begins_is_said_with_the_topic(start, read, broker, topics, bind, tmp_path):
    create(broker, f"{topics}-words", 1)
    produce(broker, f"{topics}-words", (0, None, b"old"))
    bind["words"] += f"?start={start}"

    async def run():
        came = asyncio.Event()
        app = copying(topics, seen=lambda word: came.set() if word == b"new" else None)
        async with app.running(tmp_path / "data", bind=bind):
            await asyncio.to_thread(produce, broker, f"{topics}-words", (0, None, b"new"))
            await came.wait()

    asyncio.run(run())
    assert values(consume(broker, f"{topics}-copies")) == read


def test_an_offset_that_retention_has_removed_stops_the_run(broker, topics, bind, tmp_path):
    topic = f"{topics}-words"
    create(broker, topic, 1)
    produce(broker, topic, *((0, None, b"%d" % number) for number in range(4)))
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    produce(broker, topic, *((0, None, b"%d" % number) for number in range(4)))
    remove(broker, topic, 6)
    with pytest.raises(Damaged, match=r"has no offset 4: there is 6 to 8\. Retention has removed it"):
        copying(topics).run(tmp_path / "data", bind=bind, until_now=True)


def test_a_topic_that_was_made_anew_and_has_grown_past_the_position_stops_the_run(broker, topics, bind, tmp_path):
    topic = f"{topics}-words"
    create(broker, topic, 1)
    produce(broker, topic, *((0, None, b"%d" % number) for number in range(4)))
    copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    replace(broker, topic, *(b"%d" % number for number in range(10, 20)))
    for _ in range(2):
        with pytest.raises(Damaged, match=r"partition 0, was made anew since it was read up to offset 4: .*reset"):
            copying(topics).run(tmp_path / "data", bind=bind, until_now=True)
    assert values(consume(broker, f"{topics}-copies")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("happens", "wrong"),
    [(delete, "is gone, and this run reads it"), (partial(grow, partitions=3), "has 3 partitions now, and had 1")],
    ids=["deleted", "grown"],
)
def test_a_topic_that_is_no_more_what_is_read_stops_the_run(
    happens, wrong, broker, topics, bind, tmp_path, monkeypatch
):
    monkeypatch.setattr(kafka_fetcher, "QUIET_MS", 100.0)
    create(broker, f"{topics}-words", 1)

    async def run():
        async with copying(topics).running(tmp_path / "data", bind=bind) as running:
            await asyncio.to_thread(happens, broker, f"{topics}-words")
            await running.ended()

    with pytest.raises(Damaged, match=wrong):
        asyncio.run(run())


def test_a_topic_that_is_made_anew_while_nobody_looks_stops_the_run_that_reads_it(
    broker, topics, bind, tmp_path, monkeypatch
):
    monkeypatch.setattr(kafka_fetcher, "QUIET_MS", math.inf)
    create(broker, f"{topics}-words", 1)

    async def run():
        async with copying(topics).running(tmp_path / "data", bind=bind) as running:
            await asyncio.to_thread(replace, broker, f"{topics}-words", b"another")
            monkeypatch.setattr(kafka_fetcher, "QUIET_MS", 100.0)
            await running.ended()

    with pytest.raises(Damaged, match=r"made anew while this run read it: .*samza-dsl reset"):
        asyncio.run(run())


def test_a_compression_that_is_not_installed_is_named(topics, bind, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_sink, "find_spec", lambda name: None)
    with pytest.raises(SamzaError, match=r"written with zstd, which needs cramjam: .* or say compression=\"gzip\""):
        KafkaSink(topic_of(bind["copies"]), StreamConfig(compression="zstd"))


def test_a_topic_that_is_absent_is_named(broker, topics, bind, tmp_path):
    with pytest.raises(EnvironmentFault, match=f"there is no topic '{topics}-words' at {broker.bootstrap}: create it"):
        copying(topics).run(tmp_path / "data", bind=bind, until_now=True)


def test_a_topic_that_contradicts_the_plan_is_refused(broker, topics, bind, tmp_path):
    create(broker, f"{topics}-words", 1)
    create(broker, f"{topics}-copies", 2)
    with pytest.raises(PlanError, match=r"partitions=3, and the stream '.*-copies' exists and has 2"):
        copying(topics, partitions=3).run(tmp_path / "data", bind=bind, until_now=True)


def test_brokers_that_do_not_answer_are_named(topics, tmp_path):
    bind = {"words": "kafka://127.0.0.1:1/words"}
    with pytest.raises(EnvironmentFault, match=r"127\.0\.0\.1:1/words can't be read: .* whether its brokers"):
        copying(topics).run(tmp_path / "data", bind=bind, until_now=True)


def test_a_record_above_the_size_limit_ends_the_run_and_is_not_lost(broker, topics, bind, tmp_path):
    create(broker, f"{topics}-words", 1)
    create(broker, f"{topics}-copies", 1, **{"max.message.bytes": "1000"})
    produce(broker, f"{topics}-words", (0, None, b"x" * 5_000))
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=f"{topics}-copies can't be written: .* larger than the topic's max"):
            copying(topics).run(tmp_path / "data", bind=bind, until_now=True)


def test_containers_share_what_is_bound_to_topics(broker, topics, tmp_path):
    create(broker, f"{topics}-words", 4)
    rows = [(number % 4, b"%d" % (number % 9), b"w%d" % number) for number in range(400)]
    produce(broker, f"{topics}-words", *rows)
    (tmp_path / "app.py").write_text(
        "from samza_dsl import App, Bytes\n"
        f"app = App('{topics}')\n"
        "words = app.input('words', value=Bytes(), key=Bytes())\n"
        "words.send_to(app.output('copies', value=Bytes(), key=Bytes(), partitions=2))\n"
    )
    bind = [f"--bind={name}=kafka://{broker.bootstrap}/{topics}-{name}" for name in ("words", "copies")]
    program = Path(sys.executable).with_name("samza-dsl")
    ended = subprocess.run(
        [program, "run", "app.py", "--containers", "2", "--until-now", *bind],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(values(consume(broker, f"{topics}-copies"))) == sorted(value for _, _, value in rows)


@pytest.mark.parametrize("named", ["{host}:{port}", "{other}:1,{host}:{port}"])
def test_a_topic_of_the_environment_is_told_from_streams_however_it_is_bound(broker, topics, tmp_path, named):
    host, _, port = broker.bootstrap.rpartition(":")
    own = f"kafka://{named.format(host=host, port=port, other=host)}"
    app = App(topics)
    app.input(f"{topics}-day-*", value=Bytes()).send_to(app.output(f"{topics}-next", value=Bytes()))
    create(broker, f"{topics}-day-1", 1)
    create(broker, f"{topics}-day-2", 1)
    produce(broker, f"{topics}-day-1", (0, None, b"w"))
    where = {"environment": f"kafka://{broker.bootstrap}", "until_now": True}
    for _ in range(3):
        app.run(tmp_path, bind={f"{topics}-next": f"{own}/{topics}-day-2"}, **where)
    assert sum(map(len, consume(broker, f"{topics}-day-2").values())) == 1
    feeding = App(f"{topics}-2")
    feeding.input(f"{topics}-day-1", value=Bytes()).send_to(feeding.output("next", value=Bytes()))
    with pytest.raises(SamzaError, match="it would feed itself"):
        feeding.run(tmp_path, bind={"next": f"{own}/{topics}-day-1"}, **where)
