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
        self.rows, self.at, self.assigned, self.id = [], 0, set(), 0

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


LONGER = [(b"c", b"4")] * 9


@pytest.fixture
def topic(monkeypatch):
    topic = Topic()

    async def begun(*_):
        return topic

    monkeypatch.setattr(compacted_topic, "begun", begun)
    monkeypatch.setattr(compacted_topic, "_consumer", lambda topic: None)
    return topic


@pytest.mark.parametrize(
    ("how", "ids", "rows"),
    [
        ("looks", (0, 0), LONGER[:1]),
        ("rests", (0, 0), LONGER[:1]),
        ("looks", (1, 2), LONGER[:1]),
        ("rests", (1, 2), LONGER),
        ("doubts", (1, 2), LONGER),
        ("sees it gone", (0, 0), LONGER),
    ],
)
def test_a_topic_that_is_made_anew_is_read_anew(topic, how, ids, rows):
    """It has another id, or brokers tell of none and it is shorter, or somebody has looked while it was gone."""

    async def looks():
        async def id_of():
            return topic.id

        table = KafkaTable(SimpleNamespace(name="ledger"), id_of)
        topic.rows, topic.id = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], ids[0]
        found = [await table.now()]
        if how == "rests":
            table._rest()
        elif how == "doubts":
            table.doubt()
        elif how == "sees it gone":
            assert await table.forget() == {}
        topic.rows, topic.id = [*rows], ids[1]
        found.append(await table.now())
        topic.rows.append((b"c", b"5"))
        found.append(await table.now())
        table._resting.cancel()
        return found

    assert asyncio.run(looks()) == [{b"a": b"3", b"b": b"2"}, {b"c": b"4"}, {b"c": b"5"}]


@pytest.mark.parametrize("rests", [False, True])
def test_what_is_known_of_the_same_topic_stays_known_where_brokers_tell_of_less_for_a_moment(topic, rests):
    async def looks():
        async def id_of():
            return 1

        table = KafkaTable(SimpleNamespace(name="ledger"), id_of)
        rows = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
        topic.rows = [*rows]
        await table.now()
        if rests:
            table._rest()
        topic.rows = rows[:1]
        found = [(await table.now(), table.known_to)]
        topic.rows = [*rows, (b"b", b"4")]
        found.append((await table.now(), table.known_to))
        table._resting.cancel()
        return found

    assert asyncio.run(looks()) == [({b"a": b"3", b"b": b"2"}, 3), ({b"a": b"3", b"b": b"4"}, 4)]
