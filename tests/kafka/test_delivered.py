"""Rows of a run whose environment is a real broker, delivered to a table exactly once."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from runtime.model.errors import Fenced
from runtime.ports.connectors import SinkOwner, SinkRow
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, Options, connectors
from tests.kafka.topics import create, produce


class Count(msgspec.Struct):
    word: str
    count: int


def counting(name: str) -> App:
    app = App(name, Options(batch_records=5, max_uncommitted=10))
    words = app.input(f"{name}-words", value=str, key=str).partition_by(lambda word: word, op_id="by", partitions=2)

    def count(word: str, context: Any) -> list[Count]:
        context.state = (context.state or 0) + 1
        return [Count(word, context.state)]

    words.process(count, op_id="count").send_to(app.output(f"{name}-counts", value=Count, partitions=2))
    return app


def test_rows_are_in_a_table_once_and_who_was_taken_over_writes_none(broker: Any, topics: str, tmp_path: Any) -> None:
    create(broker, f"{topics}-words", 2)
    path, seen = tmp_path / "counts.db", 0
    claimed: list[tuple[Any, SinkOwner, int]] = []
    for _ in range(3):
        produce(broker, f"{topics}-words", *((n % 2, b"%d" % (n % 3), b"w%d" % (n % 3)) for n in range(20)))
        sink = connectors.sqlite(path, "counts")

        def claim(owner: SinkOwner, sink: Any = sink) -> int:
            position = int(sink.claim(owner))
            claimed.append((sink, owner, position))
            return position

        bound = replace(sink, claim=claim)
        with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "data")) as environment:
            counting(topics).run(environment, bind={f"{topics}-counts": bound}, until_now=True)
        seen += 20
        with closing(sqlite3.connect(path)) as found:
            rows = found.execute("SELECT word, count FROM counts").fetchall()
        assert len(rows) == len({*rows}) == seen
    sink, owner, position = claimed[0]
    with pytest.raises(Fenced):
        sink.write(owner, [SinkRow(Count("w0", 1))], position, position + 1)
    sink.close()
