"""Both sides of a program on topics of a real broker: ours on Kafka, the program by hand on confluent-kafka."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from itertools import count
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.broker import bootstrap
from benchmarks.programs.kit.hand import Hand, Place
from benchmarks.programs.kit.hand_store import decoded
from benchmarks.programs.kit.on_log import as_stored, preload_streams
from benchmarks.programs.kit.program import Program, Streams, encode
from benchmarks.programs.kit.sides import Sides
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster

COMMIT_S = 1.0
PART_BYTES = 1 << 19
"""The most bytes of a record of state: what a program by hand keeps is sent in such parts."""
WAIT_S = 60.0


class OnKafka(Sides):
    """Streams lie in topics before a run begins, and have ended; both sides are exactly-once, with durable state.

    Ours runs with the options that an application has by itself. The program by hand makes a transaction of outputs,
    state and offsets once a second, as ours does. What is written by one run is dropped before the next.
    """

    def __init__(self, program: Program, streams: Streams, seed: int, scratch: Path) -> None:
        super().__init__(program, streams, seed, scratch)
        records, keys = as_stored(program, streams)
        self.streams = {}  # read from the broker, from now on
        self._runs = count()
        self._admin = AdminClient({"bootstrap.servers": bootstrap()})
        self._drop(self._topics())
        with closing(KafkaEnvironment(KafkaCluster(f"kafka://{bootstrap()}"), scratch / "preload")) as environment:
            preload_streams(environment, records, keys)
        lying = read_all(sorted(records))
        self.ends = {place: rows[-1].offset() + 1 if rows else 0 for place, rows in lying.items()}

    def ready(self) -> None:
        """Drop the outputs of the run before, and make empty ones."""
        super().ready()
        self._run = next(self._runs)
        outputs, partitions = self.program.outputs, max(number for _, number in self.ends) + 1
        self._drop(self._topics() & {*outputs})
        # Records have their event time, which is long ago: brokers would remove them by it, some minutes later.
        new = [NewTopic(name, partitions, config={"retention.ms": "-1"}) for name in outputs]
        new.append(NewTopic(state_of(self._run), 1, config={"cleanup.policy": "compact"}))
        for done in self._admin.create_topics(new).values():
            done.result()
        until(lambda: self._topics() >= {*outputs})

    def ours(self) -> str:
        """Run as a user does, under a name of this run, so that nothing is there of the one before."""
        app = self.program.pipeline(self.workspace)
        app.name = f"{app.name}-{self._run}"
        app.run(self.workspace / "data", environment=f"kafka://{bootstrap()}")
        return "ours"

    def by_hand(self) -> str:
        """Run from topics to topics."""
        topics, program = Topics(self.program, self.ends, self._run), self.program.by_hand(self.workspace)
        with closing(topics), closing(program) as hand:
            topics.restore(hand)
            hand.run(topics)
        return "by_hand"

    def rows(self, result: str) -> dict[str, list[Any]]:
        """Return what that side has written and committed."""
        return {
            name: [one.value() for part in read_all([name]).values() for one in part] for name in self.program.outputs
        }

    def _drop(self, names: Set[str]) -> None:
        for done in (self._admin.delete_topics([*names]) if names else {}).values():
            done.result()
        until(lambda: not self._topics() & names)

    def _topics(self) -> set[str]:
        """Return the topics but for those of the brokers themselves."""
        return {name for name in self._admin.list_topics(timeout=WAIT_S).topics if not name.startswith("__")}


class Topics:
    """The feed of a program by hand on Kafka: it reads what has come, and commits by transactions."""

    def __init__(self, program: Program, ends: Mapping[Place, int], run: int) -> None:
        self.program = program
        self.places: list[Place] = [place for place in ends if place[0] not in program.tables]
        self._ends = ends
        self._positions = dict.fromkeys(self.places, 0)
        self._state = state_of(run)
        self._consumer = consumer_of(f"by-hand-{run}")
        self._producer = Producer(
            {"bootstrap.servers": bootstrap(), "transactional.id": f"by-hand-{run}", "linger.ms": 5}
        )
        self._producer.init_transactions()
        self._committed = perf_counter()

    def restore(self, hand: Hand) -> None:
        """Read the tables, and go on from the last commit."""
        if self.program.tables:
            for (name, _), records in read_all(sorted(self.program.tables)).items():
                decode = self.program.streams[name].decoder()
                hand.learn(name, [decode(one.value()) for one in records if one.value()])
        committed = self._positions_committed()
        self._positions = {(one.topic, one.partition): max(one.offset, 0) for one in committed}
        if any(self._positions.values()):
            parts = {one.key(): one.value() for rows in read_all([self._state]).values() for one in rows}
            whole = b"".join(parts[key] for key in sorted(parts))
            hand.watermarks, kept = pickle.loads(whole)
            vars(hand).update(kept)
        self._consumer.assign([TopicPartition(*place, at) for place, at in self._positions.items()])

    def _positions_committed(self) -> list[TopicPartition]:
        ends = perf_counter() + WAIT_S
        while True:
            try:
                return self._consumer.committed([TopicPartition(*place) for place in self.places], timeout=WAIT_S)
            except KafkaException as error:  # a broker that has just begun has no coordinator yet
                if not error.args[0].retriable() or perf_counter() > ends:
                    raise
                sleep(0.05)

    def chunks(self, hand: Hand) -> Iterator[tuple[Place, list[Any] | None]]:
        """Yield what has come of each partition, decoded."""
        decoders = {name: stream.decoder() for name, stream in self.program.streams.items()}
        left = {place for place in self.places if self._positions[place] < self._ends[place]}
        for place in {*self.places} - left:
            yield place, None
        while left:
            found: dict[Place, list[bytes]] = {}
            for message in self._consumer.consume(hand.chunk, timeout=0.5):
                place = message.topic(), message.partition()
                # Behind the end lies what tells ours of it.
                if message.offset() < self._ends[place]:
                    found.setdefault(place, []).append(message.value())
                    self._positions[place] = message.offset() + 1
            for place, records in found.items():
                yield place, decoded(hand, place[0], records, decoders[place[0]])
                if self._positions[place] == self._ends[place]:
                    left.discard(place)
                    yield place, None

    def taken(self, hand: Hand, count: int) -> None:
        """Commit where enough time has gone."""
        if perf_counter() - self._committed >= COMMIT_S:
            self._commit(hand)

    def finished(self, hand: Hand) -> None:
        """Commit what is left."""
        self._commit(hand)

    def _commit(self, hand: Hand) -> None:
        producer = self._producer
        producer.begin_transaction()
        for name, values in hand.out.items():
            for value in values:
                self._send(name, value if type(value) is bytes else encode(value))
            values.clear()
        state = pickle.dumps((hand.watermarks, {name: getattr(hand, name) for name in hand.keeps}), 5)
        for number, first in enumerate(range(0, len(state), PART_BYTES)):
            self._send(self._state, state[first : first + PART_BYTES], b"%08d" % number)
        positions = [TopicPartition(*place, at) for place, at in self._positions.items()]
        producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata())
        producer.commit_transaction()
        self._committed = perf_counter()

    def _send(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key)
            except BufferError:  # its queue is full: until some of it is sent
                self._producer.poll(0.1)
            else:
                return

    def close(self) -> None:
        """Close both clients."""
        self._consumer.close()


def state_of(run: int) -> str:
    """Return the topic of what a program by hand keeps."""
    return f"by-hand-{run}-state"


def consumer_of(group: str, isolation: str = "read_committed") -> Consumer:
    """Return a consumer that commits nothing by itself."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap(),
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def read_all(topics: Sequence[str]) -> dict[Place, list[Message]]:
    """Return all committed records of topics, by partition, but for what tells ours of an end."""
    # A commit is answered before its markers are written: up to where all lies, not to where the first open one begins.
    with closing(consumer_of("looking", isolation="read_uncommitted")) as looking:
        known = looking.list_topics(timeout=WAIT_S).topics
        places = [(name, number) for name in topics for number in known[name].partitions]
        ends = {place: looking.get_watermark_offsets(TopicPartition(*place), timeout=WAIT_S)[1] for place in places}
    found: dict[Place, list[Message]] = {place: [] for place in places}
    left = {place: end for place, end in ends.items() if end}
    with closing(consumer_of("reading")) as consumer:
        consumer.assign([TopicPartition(*place, 0) for place in left])
        while left:
            for message in consumer.consume(10_000, timeout=0.5):
                if message.value() and not message.headers():
                    found[message.topic(), message.partition()].append(message)
            at = {
                (one.topic, one.partition): one.offset
                for one in consumer.position([TopicPartition(*one) for one in left])
            }
            left = {place: end for place, end in left.items() if at[place] < end}
    return found


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; raises TimeoutError where it does not."""
    ends = perf_counter() + WAIT_S
    while not holds():
        if perf_counter() > ends:
            raise TimeoutError("the broker does not come to it")
        sleep(0.05)
