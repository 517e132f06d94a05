"""What versions before elasticity stored is gone on from, whole and split; what is split they are told to refuse."""

import lzma
import tarfile
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from runtime.commit.commit import STATE
from runtime.model.assignment import Scale
from runtime.model.checkpoint import Checkpoint
from runtime.opening.rewind import UNFINISHED
from runtime.ports.streams import END, StreamConfig
from runtime.systems.kafka.state.ledger import ledger_of
from samza_dsl import Options
from tests.runtime.stored_unsplit import CLICKS, HALF, PARTITIONS, append_to, begin, clicks_app, go_on, results_in
from tests.simulation.crash import memory, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster, Partition, Record, Stored, Topic

HERE = Path(__file__).parent
FACTORS = (1, 2, 4)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return what a run of now comes to that was never split."""
    data = tmp_path_factory.mktemp("now")
    begin(data)
    found = go_on(data)
    assert len({name.partition(" ")[0] for name in found}) == 3
    return found


@pytest.mark.parametrize("factor", FACTORS)
def test_a_log_from_before_elasticity_is_gone_on_from(factor, expected, tmp_path):
    with tarfile.open(HERE / "stored_unsplit.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert go_on(tmp_path, Options(elasticity=factor)) == expected


def cluster_before():
    """Return a cluster as the version from before elasticity left it, in the midst of the clicks."""
    said = lzma.decompress((HERE / "stored_unsplit_kafka.xz").read_bytes())
    topics, offsets, number = msgspec.msgpack.decode(said)
    cluster = Cluster()
    for name, configs, id, logs, starts, aborted in topics:
        partitions = [
            Partition(start, [stored(name, place, start + at, row) for at, row in enumerate(log)], aborted={*gone})
            for place, (log, start, gone) in enumerate(zip(logs, starts, aborted, strict=True))
        ]
        cluster.topics[name] = Topic(partitions, configs, id)
    for group, topic, partition, offset in offsets:
        cluster.offsets[group][TopicPartition(topic, partition)] = OffsetAndMetadata(offset, "")
    while next(cluster.numbers) < number:
        """Give no id anew."""
    return cluster


def stored(topic, partition, offset, row):
    if row is None:
        return Stored(None)
    key, value, timestamp, headers = row
    return Stored(Record(topic, partition, offset, key, value, timestamp, [tuple(one) for one in headers]))


@pytest.mark.parametrize("factor", FACTORS)
def test_so_is_a_ledger(factor, expected, tmp_path):
    with simulated(cluster_before()):
        environment = opened(tmp_path)
        append_to(environment, CLICKS[HALF:], END)
        run_once(clicks_app(Options(elasticity=factor)), environment)
        found = results_in(environment)
        environment.close()
    assert found == expected


def noted(environment):
    """Return the word by which a version from before elasticity refuses to run; None where it has none."""
    return environment.checkpoints("clicks")[STATE].meanings.get(UNFINISHED)


def check_told(environment, factors):
    for factor in factors:
        run_once(clicks_app(Options(elasticity=factor)), environment, until_now=True)
        assert (noted(environment) is not None) is (factor > 1)
        assert factor == 1 or "samza-dsl scale clicks --factor 1" in noted(environment)


def test_a_version_from_before_is_told_as_long_as_tasks_are_split():
    environment = memory()
    environment.create_stream("clicks", StreamConfig(partitions=PARTITIONS))
    check_told(environment, (2, 1))
    append_to(environment, CLICKS[:HALF])
    check_told(environment, (1, 2, 4, 1))


def take_in_as_before(key, said):
    """Read a record of a ledger as that version does."""
    for prefix in (b"kept:", b"given:", b"homes:", b"reached:"):
        if key.startswith(prefix):
            return int(key.removeprefix(prefix))
    others = (b"generation", b"run:", b"whole:", b"changelog:", b"said:", b"claim:")
    return key if key.startswith(others) else msgspec.msgpack.decode(said, type=Checkpoint)


def test_so_it_is_on_kafka_whose_ledger_it_can_read_when_they_are_merged(tmp_path):
    cluster = cluster_before()
    with simulated(cluster):
        environment = opened(tmp_path)
        check_told(environment, (1, 2))
        environment.ask_scale("clicks", Scale(1))
        check_told(environment, (1,))
        environment.close()
    log = cluster.topics[ledger_of("clicks")].partitions[0].log
    newest = {one.record.key: one.record.value for one in log if one.record is not None}
    found = [take_in_as_before(key, said) for key, said in newest.items() if said is not None]
    assert len(found) > 10
