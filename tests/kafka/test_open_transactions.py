"""A transaction that others have left open on an input is told and counted, and no run takes it for the end."""

import asyncio
import logging
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from runtime.job.pipeline import Pipeline
from runtime.model.errors import HeldBack
from runtime.ports import open_transactions as held
from runtime.run import run as runs
from runtime.run.settings import RunSettings
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.streams import fetcher as kafka_fetcher
from runtime.units.topics import as_it_is
from samza_dsl import App, KafkaTopic, Options, String
from samza_dsl.cli.main import commands
from tests.faults.processes import wait_until
from tests.kafka.topics import consume, create, produce

BEFORE, HELD = 10, 100


@contextmanager
def left_open(broker, topic, number, partition=0, **how):
    """Have a transaction open during a block that has written records; it is rolled back at its end."""
    thread = KafkaThread.acquire()

    async def begin():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-others", **how)
        await producer.start()
        await producer.begin_transaction()
        for each in range(number):
            await producer.send(topic, b"held-%d" % each, partition=partition)
        await producer.flush()
        return producer

    async def end(producer, is_committed):
        await (producer.commit_transaction() if is_committed else producer.abort_transaction())
        await producer.stop()

    producer, is_open = thread.call(begin()), True

    def close(is_committed=False):
        nonlocal is_open
        if is_open:
            is_open = False
            thread.call(end(producer, is_committed))

    try:
        yield close
    finally:
        close()
        thread.release()


@pytest.fixture
def soon(monkeypatch):
    """Take a transaction for one that stays open after a moment."""
    monkeypatch.setattr(held, "HELD_MS", 1_500.0)
    monkeypatch.setattr(kafka_fetcher, "HELD_TOLD_MS", 500.0)


def passing(name, **options):
    app = App(name, Options(commit_interval_ms=100, **options))
    app.input(f"{name}-in", value=String()).send_to(app.output(f"{name}-out", value=String(), partitions=1))
    return app


def rows(number, partition=0):
    return [(partition, None, b"row-%d" % each) for each in range(number)]


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_run_until_now_does_not_take_an_open_transaction_for_the_end(
    is_bound, soon, broker, topics, tmp_path, caplog
):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *rows(BEFORE))
    address = f"kafka://{broker.bootstrap}"
    how = {"bind": {f"{topics}-in": f"{address}/{topics}-in"}} if is_bound else {"environment": address}
    with left_open(broker, f"{topics}-in", HELD), pytest.raises(HeldBack) as told:
        passing(topics).run(tmp_path, until_now=True, **how)
    said = str(told.value)
    assert f"{topics}-in, partition 0: 100 offsets from 10 on" in said
    assert f"abort --topic {topics}-in --partition 0 --start-offset 10" in said
    warned = [one.getMessage() for one in caplog.records if one.name == "samza_dsl" and one.levelno == logging.WARNING]
    assert [one for one in warned if "an open transaction holds 100 offsets back, from 10 on" in one]
    run = passing(topics).run(tmp_path, until_now=True, **how)  # which was rolled back
    assert len(run.received(f"{topics}-out")) == BEFORE


def test_one_that_ends_in_time_is_waited_for(broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *rows(BEFORE))

    async def until_held(run):
        await asyncio.to_thread(wait_until, lambda: any(one.held for one in run.metrics(stores=False).inputs))
        (found,) = run.metrics(stores=False).inputs
        seen.append((found.offset, found.lag, found.held))
        await asyncio.to_thread(close, True)

    seen = []
    with left_open(broker, f"{topics}-in", HELD) as close:
        run = runs.run_blocking(
            Pipeline(passing(topics).graph(), Options()),
            tmp_path,
            RunSettings(environment=f"kafka://{broker.bootstrap}", until_now=True),
            watch=until_held,
        )
    assert seen == [(BEFORE, HELD, HELD)]
    assert len(consume(broker, f"{topics}-out")[0]) == BEFORE + HELD
    assert [one.held for one in run.metrics().inputs] == [0]
    assert not run.stopping, "it has come to the end by itself"


def test_so_is_one_on_spark(soon, broker, topics):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *rows(BEFORE))
    topic = KafkaTopic(f"kafka://{broker.bootstrap}/{topics}-in")
    with left_open(broker, f"{topics}-in", HELD) as close:
        with pytest.raises(HeldBack, match=f"{topics}-in, partition 0: 100 offsets from 10 on"):
            as_it_is(f"{topics}-in", topic)
        close(True)
        source = as_it_is(f"{topics}-in", topic)
    assert source.offsets(0).end >= BEFORE + HELD


def test_what_is_recomputed_of_a_topic_waits_for_one_as_well(soon, broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *rows(BEFORE))
    bind = {f"{topics}-in": f"kafka://{broker.bootstrap}/{topics}-in"}
    with left_open(broker, f"{topics}-in", HELD), pytest.raises(HeldBack, match="100 offsets from 10 on"):
        passing(topics).reprocess(tmp_path, bind=bind)


def test_where_an_application_is_told_to_be_it_is_told_as_well(broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *rows(BEFORE))
    address = f"kafka://{broker.bootstrap}"
    passing(topics).run(tmp_path, until_now=True, environment=address)
    with left_open(broker, f"{topics}-in", HELD):
        words = ["checkpoint", "show", topics, "--environment", address, "--data", str(tmp_path)]
        shown = CliRunner().invoke(commands, words).output
    assert f"{topics}-in, partition 0: an open transaction holds {HELD} offsets back" in shown
    row, *_ = (line.split() for line in shown.splitlines() if f" {topics}-in " in line)
    assert str(HELD) in row, "that is its lag"


@pytest.mark.parametrize("is_bound", [True, False])
def test_no_table_is_taken_for_whole_that_one_holds_back(is_bound, soon, broker, topics, tmp_path):
    for name in ("in", "table"):
        create(broker, f"{topics}-{name}")
        produce(broker, f"{topics}-{name}", (0, b"k", b"v"))
    app = App(topics)
    table = app.table(f"{topics}-table", key=String(), value=String())
    read = app.input(f"{topics}-in", key=String(), value=String())
    read.join(table, lambda value, found: value).send_to(app.output(f"{topics}-out", value=String()))
    address = f"kafka://{broker.bootstrap}"
    bind = {f"{topics}-{name}": f"{address}/{topics}-{name}" for name in ("in", "table")}
    how = {"bind": bind} if is_bound else {"environment": address}
    with left_open(broker, f"{topics}-table", HELD), pytest.raises(HeldBack, match="100 offsets from 1 on"):
        app.run(tmp_path, until_now=True, **how)


def test_what_was_rolled_back_is_no_lag(broker, topics, tmp_path):
    create(broker, f"{topics}-in", 2)
    produce(broker, f"{topics}-in", *rows(3), *rows(3, 1))
    passing(topics).run(tmp_path, environment=f"kafka://{broker.bootstrap}", until_now=True)
    with left_open(broker, f"{topics}-in", 5):
        pass
    where = ["--environment", f"kafka://{broker.bootstrap}", "--data", str(tmp_path)]

    def lags():
        found = CliRunner().invoke(commands, ["checkpoint", "show", topics, *where])
        assert found.exit_code == 0, found.output
        lines = [line.split() for line in found.output.splitlines() if f"{topics}-in" in line]
        return [line[5] for line in lines]

    assert lags() == ["0", "0"]
    produce(broker, f"{topics}-in", *rows(2), *rows(1, 1))
    assert lags() == ["2", "1"]
