"""A table that is looked at for long knows nothing of a topic that was deleted, and made anew, since."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from runtime.systems.kafka.streams import compacted_topic
from runtime.systems.kafka.streams.compacted_topic import KafkaTable

PLACE = TopicPartition("ledger", 0)


class Topic:
    """A topic, and the consumer of it."""

    def __init__(self):
        self.rows, self.at, self.assigned = [], 0, set()

    async def end_offsets(self, places):
        return {PLACE: len(self.rows)}

    async def position(self, place):
        return self.at

    async def getmany(self, timeout_ms):
        found, self.at = self.rows[self.at :], len(self.rows)
        return {PLACE: [SimpleNamespace(key=key, value=value) for key, value in found]}

    async def seek_to_beginning(self, place):
        self.at = 0

    async def stop(self):
        pass

    def seek(self, place, offset):
        self.at = offset

    def assign(self, places):
        self.assigned = {*places}

    def assignment(self):
        return self.assigned

    def unsubscribe(self):
        self.assigned = set()

    def pause(self, place):
        pass

    resume = pause


@pytest.mark.parametrize(("rests", "is_seen_gone", "more"), [(False, False, 0), (True, False, 0), (False, True, 9)])
def test_a_topic_that_is_made_anew_is_read_anew(monkeypatch, rests, is_seen_gone, more):
    """It is shorter than it was, or somebody has looked while it was gone."""
    topic = Topic()

    async def begun(*_):
        return topic

    monkeypatch.setattr(compacted_topic, "begun", begun)
    monkeypatch.setattr(compacted_topic, "_consumer", lambda topic: None)

    async def looks():
        table = KafkaTable(SimpleNamespace(name="ledger"), remade=True)
        topic.rows = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
        found = [await table.now()]
        if rests:
            table._rest()
        if is_seen_gone:
            assert await table.forget() == {}
        topic.rows = [(b"c", b"4")] * (1 + more)
        found.append(await table.now())
        topic.rows.append((b"c", b"5"))
        found.append(await table.now())
        table._resting.cancel()
        return found

    assert asyncio.run(looks()) == [{b"a": b"3", b"b": b"2"}, {b"c": b"4"}, {b"c": b"5"}]
