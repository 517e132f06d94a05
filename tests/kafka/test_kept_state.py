"""State that lies on a host, on a real broker: what can't be gone on with is made anew, and says so."""

import logging

import pytest

from runtime.model.checkpoint import Checkpoint
from runtime.model.errors import Damaged
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster

ENTRIES = [(b"%d" % number, b"value-%03d" % number * 20) for number in range(100)]


def flipped(data):
    """Change a bit of every copy of a value that a commit has written."""
    data.write_bytes(data.read_bytes().replace(b"value-042", b"walue-042"))


def cut(data):
    """Lose half of the file."""
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])


def of_another_version(data):
    """Be what another version has written."""
    (data.parent / "format").write_bytes(b"samza-dsl log 0\n")


@pytest.mark.parametrize("damaged", [flipped, cut, of_another_version])
def test_state_that_is_not_what_was_written_is_made_anew_and_says_so(damaged, broker, topics, tmp_path, caplog):
    def opened():
        environment = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path)
        return environment, environment.own(topics)

    environment, generation = opened()
    checkpoints = {"0": Checkpoint(generation)}
    environment.commit(Commit(topics, generation, [], [StateWrites("st", 0, ENTRIES)], checkpoints))
    environment.close()
    damaged(tmp_path / "state" / topics / "0" / "data.mdb")
    if damaged is flipped:  # which nobody sees before it is read
        environment, _ = opened()
        with pytest.raises(Damaged, match=f"application {topics!r}, store 'st', task 0"):
            list(environment.state_range(topics, "st", 0))
        environment.close()
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        environment, _ = opened()
    found, restored = list(environment.state_range(topics, "st", 0)), environment.restored(topics)
    environment.close()
    assert (found, restored) == (sorted(ENTRIES), len(ENTRIES))
    assert f"makes state of application {topics!r} anew" in caplog.text
