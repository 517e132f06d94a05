"""Three brokers of which one or two die, brokers that are slow to take what is written, and one whose disk is full."""

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster
from tests.faults.processes import wait_until
from tests.kafka.brokers import PATIENCE_S, Brokers, small_disks
from tests.kafka.test_containers import PROGRAM, check_counts, ended, start

ROWS = 4_000
DISK_MIB = 40


@pytest.fixture
def brokers(request, tmp_path):
    """As many brokers as a test says, of its own."""
    found = Brokers(tmp_path / "brokers", request.param)
    yield found
    found.stop()


class Job:
    """A job in containers, and its input."""

    def __init__(self, brokers: Brokers, app: str, folder: Path) -> None:
        self.app, self.folder, self.brokers = app, folder, brokers
        self.cluster = KafkaCluster(f"kafka://{brokers.bootstrap}")
        self.words: list[bytes] = []
        (folder / "app.py").write_text(PROGRAM.format(name=app))
        with self.opened() as environment:
            environment.create_stream(f"{app}-words", StreamConfig(partitions=4))

    def opened(self):
        return closing(KafkaEnvironment(self.cluster, self.folder / "writer"))

    def write(self, rows: int = ROWS) -> None:
        words = [b"w%d" % (number % 50) for number in range(len(self.words), len(self.words) + rows)]
        with self.opened() as environment:
            environment.append([Append(f"{self.app}-words", task, Batch(words[task::4])) for task in range(4)])
        self.words += words

    def committed(self) -> int:
        with self.opened() as environment:
            found = environment.checkpoints(self.app).values()
            return sum(one.offset for checkpoint in found for one in checkpoint.positions if "words" in one.stream)

    def goes_on(self) -> None:
        """Wait until more is committed than now."""
        before = self.committed()
        wait_until(lambda: self.committed() > before, PATIENCE_S)

    def runs(self) -> "subprocess.Popen[str]":
        return start(self.brokers, self.folder, "data", "--until-now")

    def check(self, process: "subprocess.Popen[str]") -> None:
        ended(process)
        check_counts(self.brokers, self.app, self.words)


@pytest.mark.parametrize("brokers", [3], indirect=True)
def test_the_leader_of_a_partition_and_then_two_brokers_are_lost_and_each_word_counts_once(brokers, topics, tmp_path):
    brokers.start()
    job = Job(brokers, topics, tmp_path)
    job.write(2 * ROWS)
    process = job.runs()
    wait_until(lambda: job.committed() > 0, PATIENCE_S)
    leader = brokers.leader(f"{topics}-words", 0)
    assert leader
    brokers.stop(leader)
    job.goes_on()
    brokers.start(leader)
    wait_until(brokers.are_in_sync, PATIENCE_S)  # else all that have what was acknowledged would be lost at once
    others = [node.number for node in brokers.nodes if node.number != leader]
    brokers.stop(*others)
    brokers.start(*others)
    job.check(process)


@pytest.mark.parametrize("brokers", [1], indirect=True)
def test_brokers_that_take_little_slow_a_run_down_and_nothing_else(brokers, topics, tmp_path):
    brokers.start()
    job = Job(brokers, topics, tmp_path)
    job.write()
    brokers.tell("--add-config", "producer_byte_rate=40000", "--entity-type", "clients", "--entity-default")
    job.check(job.runs())


@pytest.mark.parametrize("brokers", [1], indirect=True)
def test_a_broker_whose_disk_is_full_stops_and_when_it_has_room_each_word_counts_once(brokers, topics, tmp_path):
    with small_disks(brokers, DISK_MIB):
        brokers.start()
        job = Job(brokers, topics, tmp_path)
        job.write(4 * ROWS)  # a broker that is given nothing more to write does not notice that its disk is full
        process = job.runs()
        wait_until(lambda: job.committed() > 0, PATIENCE_S)
        brokers.fill_disk(1)
        brokers.start()
        job.check(process)
