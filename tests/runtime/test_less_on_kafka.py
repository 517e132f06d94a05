"""What a cluster has less of than was committed is an error that says so, and never another result."""

import shutil
from contextlib import closing

import msgspec
import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from operators.core.base import Batch
from planner.model.virtual_tasks import VirtualTask
from runtime.model.errors import Damaged, EnvironmentFault
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.kafka.client.topic import REGISTRY, topic_of
from runtime.systems.kafka.state import task_state as kafka_state
from runtime.systems.kafka.state.changelog import PARTITIONS, ChangelogEnd
from runtime.systems.kafka.state.ledger import said_of_reached
from runtime.systems.kafka.state.standby import Standby
from runtime.systems.kafka.streams.publication import PUBLISHED, KafkaPublisher
from samza_dsl import App
from samza_dsl.cli.main import commands
from samza_dsl.data.positions import move_keeping
from tests.simulation.crash import rows_of, run_once
from tests.simulation.kafka import opened
from tests.simulation.kafka_brokers import Partition, Topic

CHANGELOG, LEDGER, BETWEEN = "counting-count-changelog", "counting-checkpoints", "counting-thirds"
ROUNDS = 3


PROGRAM = "from tests.runtime.test_less_on_kafka import counting\n\napp = counting()\n"


def counting():
    app = App("counting")
    words = app.input("words", key=str, value=int).partition_by(lambda value: value % 3, op_id="thirds")
    words.scan(lambda count, value: (count or 0) + 1, op_id="count").send_to(app.output("counts", value=int))
    return app


def write(environment, first, last):
    environment.create_stream("words", StreamConfig(partitions=2))
    for partition in range(2):
        values = range(first + partition, last, 2)
        batch = Batch([b"%d" % value for value in values], [b"k%d" % value for value in values])
        environment.append([Append("words", partition, batch)])


def run(folder, **how):
    with closing(opened(folder)) as environment:
        run_once(counting(), environment, until_now=True, **how)


def counts(folder):
    """Return how many values of each kind had come, whenever one came."""
    with closing(opened(folder)) as environment:
        return sorted(int(value) for rows in rows_of(environment, "counts") for _, value, _ in rows)


@pytest.fixture
def ran(cluster, tmp_path):
    """The application has run three times on a machine, and there is more to read."""
    for number in range(ROUNDS):
        with closing(opened(tmp_path / "here")) as environment:
            write(environment, 30 * number, 30 * (number + 1))
        run(tmp_path / "here")
    with closing(opened(tmp_path / "here")) as environment:
        write(environment, 90, 120)
    return counts(tmp_path / "here")


RIGHT = sorted([*range(1, 41)] * 3)


def made_anew(cluster, name, partitions=None):
    number = len(cluster.topics[name].partitions) if partitions is None else partitions
    configs = cluster.topics[name].configs
    cluster.delete(name)
    cluster.topics[name] = Topic([Partition() for _ in range(number)], configs, cluster.topic_id())


def cut_at_the_start(cluster, name):
    for partition in cluster.topics[name].partitions:
        partition.purge(partition.start + (partition.end - partition.start) // 2)


def emptied(cluster, name):
    for partition in cluster.topics[name].partitions:
        partition.purge(partition.end)


def cut_at_the_end(cluster, name):
    for partition in cluster.topics[name].partitions:
        del partition.log[len(partition.log) // 2 :]


def deleted(cluster, name):
    cluster.delete(name)


def of_other_partitions(cluster, name):
    made_anew(cluster, name, 3)


LOSSES = [made_anew, cut_at_the_start, emptied, cut_at_the_end, deleted, of_other_partitions]


@pytest.mark.parametrize("lost", LOSSES)
def test_a_changelog_that_has_less_is_an_error_where_the_state_is_not(cluster, ran, tmp_path, lost):
    lost(cluster, CHANGELOG)
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"{CHANGELOG}.*'counting'.*samza-dsl reset counting"):
            run(tmp_path / "there")
    assert counts(tmp_path / "there") == ran


def test_entries_that_somebody_has_removed_are_an_error(cluster, ran, tmp_path):
    for one in cluster.topics[CHANGELOG].partitions[1].log:  # as compaction does after a deletion, in time
        one.record = None
    with pytest.raises(Damaged, match=f"{CHANGELOG}' has 0 entries of store 'count', task 1, and 1 were committed"):
        run(tmp_path / "there")
    assert counts(tmp_path / "there") == ran


def test_a_copy_that_was_away_while_a_changelog_was_cut_is_none(cluster, ran, tmp_path, caplog):
    with closing(opened(tmp_path / "there")) as environment:
        standby = Standby(environment._streams, environment._state, "counting")
        tasks = [VirtualTask(0), VirtualTask(1)]

        def follow():
            standby.keep(tasks, environment._ledger("counting"))
            standby._look_at_ms = 0.0
            standby.follow()

        while standby.warm != tasks:
            follow()
        run(tmp_path / "here")
        emptied(cluster, CHANGELOG)
        for _ in range(3):
            follow()
            assert standby.warm == []
        standby.stop()
    assert "no copies of state are kept here of application 'counting'" in caplog.text
    with pytest.raises(Damaged, match=f"{CHANGELOG}' begins at offset"):
        run(tmp_path / "there")
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == RIGHT


@pytest.mark.parametrize("most_apart", [0, 9])
@pytest.mark.parametrize("lost", [emptied, cut_at_the_start])
def test_of_several_directories_that_have_a_task_the_whole_one_is_gone_on_with(
    cluster, ran, tmp_path, monkeypatch, lost, most_apart
):
    monkeypatch.setattr(kafka_state, "MOST_APART", most_apart)
    state, stale = tmp_path / "here" / "state" / "counting", tmp_path / "stale"
    with closing(opened(tmp_path / "here")) as environment:
        environment.own("counting")
        assert environment.state_stats("counting")
    shutil.copytree(state, stale)
    run(tmp_path / "here")
    with closing(opened(tmp_path / "here")) as environment:
        write(environment, 120, 150)
    for path in stale.iterdir():  # as where somebody was stopped, others took over, and both have ended since
        (state / path.name).rename(state / f"{path.name}.1")
        shutil.copytree(path, state / path.name)
    lost(cluster, CHANGELOG)
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == sorted([*range(1, 51)] * 3)


@pytest.mark.parametrize("lost", LOSSES)
def test_where_the_state_still_lies_it_is_an_error_or_right(cluster, ran, tmp_path, lost, caplog):
    lost(cluster, CHANGELOG)
    if lost in (cut_at_the_start, emptied):
        run(tmp_path / "here")
        assert counts(tmp_path / "here") == RIGHT
        assert f"{CHANGELOG}' was cut" in caplog.text
        with pytest.raises(Damaged, match=CHANGELOG):
            run(tmp_path / "there")
    else:
        with pytest.raises(Damaged, match=CHANGELOG):
            run(tmp_path / "here")
        assert counts(tmp_path / "here") == ran


def test_state_that_was_taken_over_from_the_dead_is_whole_for_who_ends_well_without_writing(
    cluster, ran, tmp_path, caplog
):
    with closing(opened(tmp_path / "here")) as environment:
        ledger = environment._ledger("counting")
        dead = {
            task: {place: ChangelogEnd(one.end) for place, one in known.items()}
            for task, known in ledger.reached.items()
        }
        assert any(dead.values())
        environment._streams.write(LEDGER, said_of_reached(dead))
    with closing(opened(tmp_path / "here")) as environment:
        environment.own("counting")
        assert environment.state_stats("counting")
    emptied(cluster, CHANGELOG)
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == RIGHT
    assert f"{CHANGELOG}' was cut" in caplog.text


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("name", [CHANGELOG, LEDGER])
def test_a_reset_begins_anew_whatever_is_lost(cluster, ran, tmp_path, lost, name):
    lost(cluster, name)
    with closing(opened(tmp_path / "there")) as environment:
        environment.reset("counting")
        environment.delete_stream(BETWEEN)
    before = len(ran)
    run(tmp_path / "there")
    assert len(counts(tmp_path / "there")) == before + 120
    run(tmp_path / "elsewhere")
    assert len(counts(tmp_path / "there")) == before + 120


@pytest.mark.parametrize("lost", [made_anew, cut_at_the_start, emptied, deleted, of_other_partitions])
@pytest.mark.parametrize("where", ["here", "there"])
def test_checkpoints_that_are_lost_beside_what_the_group_has_committed_are_an_error(
    cluster, ran, tmp_path, lost, where
):
    lost(cluster, LEDGER)
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"{LEDGER}.*'counting'.*samza-dsl reset counting"):
            run(tmp_path / where)
    assert counts(tmp_path / where) == ran


@pytest.mark.parametrize("task", [0, 1])
def test_so_is_the_checkpoint_of_one_task(cluster, ran, tmp_path, task):
    with closing(opened(tmp_path / "here")) as environment:
        environment._streams.write(LEDGER, Batch([None], [b"%d" % task]))
    with pytest.raises(Damaged, match=rf"{LEDGER}.*no checkpoint.*'words', partition {task}, up to"):
        run(tmp_path / "here")
    assert counts(tmp_path / "here") == ran


def test_where_one_checkpoint_is_lost_it_is_said_where_to_go_on(cluster, ran, tmp_path):
    group = {(place.topic, place.partition): at.offset for place, at in cluster.offsets["counting"].items()}
    with closing(opened(tmp_path / "here")) as environment:
        environment._streams.write(LEDGER, Batch([None], [b"1"]))
        environment.own("counting")
        move_keeping(environment, "counting", {place: offset for place, offset in group.items() if place[1] == 1})
    run(tmp_path / "there")
    assert counts(tmp_path / "there") == RIGHT


def told(*words):
    return CliRunner().invoke(commands, [*words, "--environment", "kafka://simulated:9092"])


def test_the_commands_that_the_error_names_have_it_go_on_with_state(cluster, ran, tmp_path):
    group = {(place.topic, place.partition): at.offset for place, at in cluster.offsets["counting"].items()}
    with closing(opened(tmp_path / "here")) as environment:
        environment._streams.write(LEDGER, Batch([None], [b"1"]))
    for (stream, partition), offset in sorted(group.items()):
        if partition == 1:
            words = "checkpoint", "set", "counting", f"{stream}:1", str(offset), "--state", "keep"
            done = told(*words, "--data", str(tmp_path / "here"))
            assert done.exit_code == 0, done.output
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == RIGHT


def test_and_without(cluster, ran, tmp_path):
    group = {place.partition: at.offset for place, at in cluster.offsets["counting"].items() if place.topic == "words"}
    deleted(cluster, LEDGER)
    with pytest.raises(Damaged):
        run(tmp_path / "here")
    (tmp_path / "app.py").write_text(PROGRAM)
    where = "--data", str(tmp_path / "here")
    done = told("reset", str(tmp_path / "app.py"), "--yes", *where)
    assert done.exit_code == 0, done.output
    for partition, offset in group.items():
        done = told("checkpoint", "set", str(tmp_path / "app.py"), f"words:{partition}", str(offset), *where)
        assert done.exit_code == 0, done.output
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == sorted([*ran, *[*range(1, 11)] * 3])  # what came since, counted anew


def test_a_ledger_that_is_older_than_the_group_is_an_error(cluster, ran, tmp_path):
    partition = cluster.topics[LEDGER].partitions[0]
    older = partition.log[: len(partition.log)]
    run(tmp_path / "here")
    partition.log[:] = older
    with pytest.raises(Damaged, match=f"{LEDGER}.*no checkpoint of what the group 'counting' has committed"):
        run(tmp_path / "here")


def test_a_group_of_others_is_not_taken_for_nothing(cluster, tmp_path):
    with closing(opened(tmp_path)) as environment:
        write(environment, 0, 30)
    cluster.offsets["counting"] = {TopicPartition("words", 0): OffsetAndMetadata(7, "")}
    with pytest.raises(Damaged, match="the group is another program's, give the application another name"):
        run(tmp_path)


def test_an_input_that_is_read_no_more_is_no_loss(cluster, ran, tmp_path):
    cluster.offsets["counting"][TopicPartition("former", 0)] = OffsetAndMetadata(7, "")
    run(tmp_path / "here")
    assert counts(tmp_path / "here") == RIGHT


@pytest.mark.parametrize("for_s", [0.01, 0.03, 0.1, 5])
@pytest.mark.parametrize("name", [CHANGELOG, LEDGER, "words"])
def test_a_topic_of_which_brokers_tell_for_a_moment_after_it_was_deleted_is_gone(cluster, ran, tmp_path, name, for_s):
    cluster.gone[name] = cluster.topics[name], cluster.loop.time() + for_s
    deleted(cluster, name)
    with pytest.raises(EnvironmentFault) as found:
        run(tmp_path / "here")
    assert name in str(found.value) and "TimeoutError" not in str(found.value)
    assert counts(tmp_path / "here") == ran


def test_what_is_whole_is_right_anywhere(cluster, ran, tmp_path):
    run(tmp_path / "there")
    assert counts(tmp_path / "there") == RIGHT


@pytest.mark.parametrize("name", [CHANGELOG, LEDGER, REGISTRY])
def test_topics_of_earlier_versions_are_compacted_alone_from_now_on(cluster, ran, tmp_path, name, caplog):
    assert cluster.topics[name].configs["cleanup.policy"] == "compact"
    cluster.topics[name].configs |= {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    run(tmp_path / "here")
    assert cluster.topics[name].configs["cleanup.policy"] == "compact"
    assert f"changes the topic {name!r}, which had cleanup.policy=compact,delete" in caplog.text
    assert counts(tmp_path / "here") == RIGHT


@pytest.mark.parametrize("lost", [made_anew, emptied, deleted])
def test_what_topics_are_is_known_again_where_the_cluster_has_forgotten_it(cluster, ran, tmp_path, lost):
    lost(cluster, REGISTRY)
    run(tmp_path / "there")
    assert counts(tmp_path / "there") == RIGHT
    with closing(opened(tmp_path / "there")) as environment:
        between = {name: one.intermediate for name, one in environment.streams().items()}
        assert between == {"words": False, "counts": False, BETWEEN: True}
        assert environment.applications() == ["counting"]


def test_what_is_compacted_is_so_before_it_is_large(cluster, ran):
    found = {name: topic.configs.get("segment.bytes") for name, topic in cluster.topics.items()}
    assert (found[CHANGELOG], found[LEDGER]) == (str(1 << 26), str(1 << 22)), "each commit writes to the ledger"
    assert found[BETWEEN] is None


def test_what_may_not_be_changed_is_refused_with_the_command(cluster, ran, tmp_path):
    cluster.topics[CHANGELOG].configs["cleanup.policy"] = "compact,delete"
    cluster.fixed.add(CHANGELOG)
    with pytest.raises(
        EnvironmentFault, match=rf"kafka-configs.sh .*--entity-name {CHANGELOG} .*cleanup.policy=compact"
    ):
        run(tmp_path / "here")


def test_what_lies_between_stages_is_kept_until_it_is_consumed(cluster, ran, tmp_path):
    (between,) = [name for name in cluster.topics if name.startswith("counting-thirds")]
    cluster.topics[between].configs |= {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    run(tmp_path / "here")
    assert {"cleanup.policy": "delete", "retention.ms": "-1"}.items() <= cluster.topics[between].configs.items()


def test_a_topic_that_was_made_beforehand_with_other_partitions_is_refused(cluster, tmp_path):
    with closing(opened(tmp_path)) as environment:
        write(environment, 0, 30)
    cluster.topics[CHANGELOG] = Topic([Partition() for _ in range(3)], {}, cluster.topic_id())
    with pytest.raises(EnvironmentFault, match=rf"{CHANGELOG}.*needs {PARTITIONS} partitions, and has 3: delete it"):
        run(tmp_path)


def test_what_lies_in_a_topic_that_was_made_beforehand_is_nobodys_state(cluster, ran, tmp_path):
    junk = cluster.topics[CHANGELOG]
    with closing(opened(tmp_path / "here")) as environment:
        environment.reset("counting")
        environment.delete_stream(BETWEEN)
    cluster.topics[CHANGELOG] = junk
    run(tmp_path / "there")
    run(tmp_path / "elsewhere")
    assert len(counts(tmp_path / "there")) == len(ran) + 120


def as_before(cluster):
    """Have the ledger be as the version before has written it."""
    stored = cluster.topics[LEDGER].partitions[0].log
    for number, one in enumerate(stored):
        record = one.record
        if record is not None and record.key is not None and record.value is not None:
            if record.key.startswith((b"reached:", b"whole:")):
                stored[number] = type(one)(record._replace(value=None), one.writer)
            elif record.key.startswith(b"changelog:"):
                identity = msgspec.msgpack.decode(record.value)[0]
                stored[number] = type(one)(record._replace(value=msgspec.msgpack.encode([identity])), one.writer)
    for name in (CHANGELOG, LEDGER):
        cluster.topics[name].configs["cleanup.policy"] = "compact,delete"


@pytest.mark.parametrize("where", ["here", "there"])
def test_what_the_version_before_has_written_is_read_on(cluster, ran, tmp_path, where):
    as_before(cluster)
    emptied_once = cluster.topics[CHANGELOG].partitions[7]
    emptied_once.start = 12  # as its reset did
    run(tmp_path / where)
    assert counts(tmp_path / where) == RIGHT
    cut_at_the_start(cluster, CHANGELOG)
    with pytest.raises(Damaged, match=CHANGELOG):
        run(tmp_path / "elsewhere")


def test_a_retention_on_a_topic_of_the_version_before_has_removed_state(cluster, ran, tmp_path):
    as_before(cluster)
    cluster.topics[CHANGELOG].configs |= {"retention.ms": "1000"}
    cut_at_the_start(cluster, CHANGELOG)
    with pytest.raises(Damaged, match=CHANGELOG):
        run(tmp_path / "there")
    assert counts(tmp_path / "there") == ran


def test_a_ledger_of_the_version_before_that_was_cut_is_an_error(cluster, ran, tmp_path):
    as_before(cluster)
    cut_at_the_start(cluster, LEDGER)
    with pytest.raises(Damaged, match=f"{LEDGER}.*begins at offset"):
        run(tmp_path / "there")


def test_what_says_how_far_publishing_has_come_is_kept_or_refused(cluster, tmp_path):
    topic = topic_of("kafka://simulated:9092/published")
    with closing(KafkaPublisher(topic, StreamConfig(), "publishing")) as publisher:
        publisher.publish(1, [(0, Batch([b"1", b"2"]))])
    cluster.topics[PUBLISHED].configs["cleanup.policy"] = "delete"
    with closing(KafkaPublisher(topic, StreamConfig(), "publishing")) as publisher:
        publisher.publish(1, [(0, Batch([b"1", b"2"]))])
    assert cluster.topics[PUBLISHED].configs["cleanup.policy"] == "compact"
    assert sum(one.record is not None for one in cluster.topics["published"].partitions[0].log) == 2
    emptied(cluster, PUBLISHED)
    with pytest.raises(Damaged, match=f"{PUBLISHED}.*was cut.*'publishing' has come"):
        KafkaPublisher(topic, StreamConfig(), "publishing")
