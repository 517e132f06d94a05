"""Many tasks with state in one process: their producers share connections, and each is fenced by itself."""

import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from operators.core.base import Batch
from runtime.model.checkpoint import Checkpoint
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.client.clients import SHARED, SharedClients, begun, ended
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.environment import KafkaEnvironment
from runtime.systems.kafka.state import shared_state
from runtime.systems.kafka.state import task_state as kafka_state
from runtime.systems.kafka.streams.sink import send_all
from samza_dsl import App, Json, KafkaCluster, Options, String
from tests.faults.processes import wait_until
from tests.kafka.test_placement import Container
from tests.kafka.topics import consume, create, produce

TASKS = 64
CONNECTIONS_BESIDE = 30
"""What fetchers, tables and administrators have."""


def sockets() -> int:
    """How many connections this process has."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(descriptor).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def test_the_producers_of_many_tasks_have_few_connections_and_write_exactly_once(broker, topics, tmp_path):
    create(broker, f"{topics}-words", TASKS)
    produce(broker, f"{topics}-words", *((task, None, b"%d" % task) for task in range(TASKS) for _ in range(3)))
    app, before, most = App(topics, Options(commit_by="task")), sockets(), 0

    def seen(told: list[object]) -> list[object]:
        nonlocal most
        most = max(most, sockets() - before)
        return told

    words = app.input(f"{topics}-words", value=String(), key=lambda word: word, partitioned_by_key=True)
    counts = words.scan(lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count")
    counts.map(seen).send_to(app.output(f"{topics}-counts", value=Json(list)))
    app.run(tmp_path, environment=KafkaCluster(f"kafka://{broker.bootstrap}"), until_now=True)
    records = [one for found in consume(broker, f"{topics}-counts").values() for one in found]
    told = sorted(msgspec.json.decode(record.value) for record in records)
    assert told == sorted([f"{task}", number] for task in range(TASKS) for number in (1, 2, 3))
    assert 0 < most <= 2 * SHARED + CONNECTIONS_BESIDE


@pytest.mark.parametrize("commit_by", ["container", "task"])
def test_the_state_of_all_tasks_is_looked_for_at_once(commit_by, broker, topics, tmp_path, monkeypatch):
    """What lies here of others is walked through once a run, however many tasks there are, and whether any is new."""
    walked = []
    looked = shared_state.tasks_in
    for module in (shared_state, kafka_state):
        monkeypatch.setattr(module, "tasks_in", lambda directory: (walked.append(directory), looked(directory))[1])
    monkeypatch.setattr(kafka_state, "MOST_APART", 3)
    create(broker, f"{topics}-words")
    app = App(topics, Options(commit_by=commit_by))
    words = app.input(f"{topics}-words", value=String()).partition_by(lambda word: word, partitions=TASKS, op_id="by")
    counts = words.scan(lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count")
    counts.send_to(app.output(f"{topics}-counts", value=Json(list), partitions=1))
    for run in range(1, 3):
        produce(broker, f"{topics}-words", *((0, None, b"%d" % word) for word in range(2 * TASKS)))
        app.run(tmp_path, environment=f"kafka://{broker.bootstrap}", until_now=True)
        assert len(walked) <= 2 * run
    told = [record.value for record in consume(broker, f"{topics}-counts")[0]]
    assert sorted(map(msgspec.json.decode, told)) == sorted([f"{word}", n] for word in range(2 * TASKS) for n in (1, 2))


def test_who_shares_a_client_ends_for_itself(broker, topics):
    create(broker, topics, 4)
    how = {"bootstrap_servers": broker.bootstrap}

    async def write() -> None:
        shared, producers = SharedClients(most=1), []
        for number in range(4):
            producer = AIOKafkaProducer(**how, transactional_id=f"{topics}-{number}")
            shared.share(producer)
            producers.append(await begun(producer))
        for number, producer in enumerate(producers):
            async with producer.transaction():
                await send_all(producer, {(topics, number): Batch([b"%d" % number], [b"k"])})
            await ended(producer)
        again = AIOKafkaProducer(**how, transactional_id=f"{topics}-0")
        shared.share(again)  # after the last one has closed what they had
        await begun(again)
        async with again.transaction():
            await send_all(again, {(topics, 0): Batch([b"4"], [b"k"])})
        await ended(again)

    thread, before = KafkaThread.acquire(), sockets()
    try:
        thread.call(write())
        assert sockets() <= before + 4  # the loop's own
    finally:
        thread.release()
    found = [record.value for records in consume(broker, topics).values() for record in records]
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]


def test_state_is_gone_on_with_wherever_it_lies(broker, topics, tmp_path, monkeypatch):
    state = tmp_path / "state" / topics
    for turn, most_apart in enumerate((9, 2, 2, 9, 2)):  # as the version before had it, together, and back again
        monkeypatch.setattr(kafka_state, "MOST_APART", most_apart)
        with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path)) as environment:
            generation = environment.own(topics)
            for task in range(4):
                held = dict(environment.state_range(topics, "st", task))
                assert held == {b"%d" % before: b"%d" % task for before in range(turn)}
                assert environment.state_get(topics, "st", task, b"0") == (b"%d" % task if turn else None)
            assert environment.restored(topics) == 0, "nothing is replayed that lies here"
            writes = [StateWrites("st", task, [(b"%d" % turn, b"%d" % task)]) for task in range(4)]
            checkpoints = {f"{task}": Checkpoint(generation) for task in range(4)}
            environment.commit(Commit(topics, generation, [], writes, checkpoints))
            assert environment.state_stats(topics) == {("st", task): (turn + 1, 2 * (turn + 1)) for task in range(4)}
            apart = {f"{task}" for task in range(4)} & {path.name for path in state.iterdir()}
            assert apart == ({"0", "1", "2", "3"} if most_apart == 9 else set())


def test_containers_of_one_machine_take_over_what_lies_together(broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_state, "MOST_APART", 0)
    with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path / "owner")) as owner:
        owner.create_stream(f"{topics}-words", StreamConfig(partitions=5))
        run = owner.own(topics)
        first = Container(broker, tmp_path, topics, run, "here", "a")
        wait_until(lambda: len(first.settles()) == 5)
        first.commits(*range(50))
        second = Container(broker, tmp_path, topics, run, "here", "b")
        wait_until(lambda: (len(first.settles()), len(second.settles())) == (3, 2))
        assert second.restored() == 0, "it is copied from where the first has it"
        second.commits(50)
        first.dies()
        wait_until(lambda: len(second.settles()) == 5)
        assert second.restored() == 0
        held = {task: len([*second.environment.state_range(topics, "st", task)]) for task in range(5)}
        assert sorted(held.values()) == [50, 50, 50, 51, 51]
        second.dies()


def test_a_task_whose_state_was_damaged_where_many_lie_is_made_anew(broker, topics, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_state, "MOST_APART", 0)
    entries = [(b"%d" % number, b"value-%03d" % number * 20) for number in range(100)]
    for turn in range(2):
        with closing(KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path)) as environment:
            generation = environment.own(topics)
            if turn:
                assert [*environment.state_range(topics, "st", 1)] == sorted(entries)
                assert environment.restored(topics) == 2 * len(entries)
                continue
            writes = [StateWrites("st", task, entries) for task in range(2)]
            environment.commit(Commit(topics, generation, [], writes, {"0": Checkpoint(generation)}))
        data = tmp_path / "state" / topics / "shared" / "data.mdb"
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
