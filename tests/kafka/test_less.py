"""Topics of a real broker that hold less than was committed, or are not configured as they must be."""

import logging
import re
from time import monotonic

import pytest
from typer.testing import CliRunner

from runtime.model.errors import Damaged
from runtime.ports.streams import StreamConfig
from runtime.systems.connectors.inbox import inbox_of
from runtime.systems.kafka.client.admin import described
from runtime.systems.kafka.client.thread import KafkaThread
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, Forget, KafkaCluster, String, count, tumbling
from samza_dsl.cli.main import commands
from samza_dsl.connectors import AtLeastOnceSink, Pulled, PulledRecord, PulledSource
from tests.kafka.topics import configure as change
from tests.kafka.topics import consume, create, delete, delete_group, group_offsets, names, produce, remove, remove_all


def counting(topics: str) -> App:
    """Count words after a repartitioning, and tell each new count."""
    app = App(topics)
    words = app.input(f"{topics}-words", value=String()).partition_by(lambda word: word, partitions=1, op_id="by-word")
    words.scan(lambda total, _: (total or 0) + 1, op_id="count").send_to(app.output(f"{topics}-counts", value=int))
    return app


@pytest.fixture
def cluster(broker):
    return KafkaCluster(f"kafka://{broker.bootstrap}")


@pytest.fixture
def run(broker, topics, cluster, tmp_path):
    """Run the application on a machine over one more word, and return the counts that it has told so far."""
    create(broker, f"{topics}-words")

    def run(machine: str) -> list[int]:
        produce(broker, f"{topics}-words", (0, None, b"word"))
        counting(topics).run(until_now=True, environment=cluster, data=str(tmp_path / machine))
        return counts(broker, topics)

    return run


def counts(broker, topics: str) -> list[int]:
    return [int(record.value) for records in consume(broker, f"{topics}-counts").values() for record in records]


def configs(cluster: KafkaCluster, name: str) -> dict[str, str]:
    thread = KafkaThread.acquire()
    try:
        return thread.call(described(cluster.topic(name)))
    finally:
        thread.release()


def test_windows_and_ends_are_right_on_topics_that_others_have_made(broker, topics, cluster, tmp_path, caplog):
    numbers, between = f"{topics}-numbers", f"{topics}-kinds"
    create(broker, numbers, 3, **{"message.timestamp.type": "LogAppendTime", "retention.ms": "900000000"})
    produce(broker, numbers, *((number % 3, None, b"%d" % number) for number in range(30)))
    app = App(topics)
    by_kind = app.input(numbers, value=int, timestamp=lambda value: value * 60_000).partition_by(
        lambda value: value % 2, op_id="kinds"
    )
    by_kind.window(tumbling(minutes=1), count(), op_id="count").send_to(app.output(f"{topics}-panes"))
    environment = KafkaEnvironment(cluster, tmp_path / "here")
    assert environment.stream_stats(numbers)[0] == 30
    assert environment.streams()[numbers] == StreamConfig(partitions=3, retention_ms=900_000_000)
    assert environment.is_stamped(numbers)
    environment.create_stream(between, StreamConfig(partitions=3, intermediate=True))
    environment.end_stream(numbers)
    environment.close()
    change(broker, between, **{"message.timestamp.type": "LogAppendTime"})
    app.run(environment=cluster, data=str(tmp_path / "here"))  # comes to its end
    assert sum(map(len, consume(broker, f"{topics}-panes").values())) == 30
    assert configs(cluster, between)["message.timestamp.type"] == "CreateTime"


def test_own_topics_are_compacted_alone_and_what_they_have_lost_is_told(broker, topics, cluster, run, tmp_path, caplog):
    changelog, ledger, between = f"{topics}-count-changelog", f"{topics}-checkpoints", f"{topics}-by-word"
    assert run("here") == [1]
    assert run("there") == [1, 2]
    assert configs(cluster, changelog)["cleanup.policy"] == configs(cluster, ledger)["cleanup.policy"] == "compact"
    change(
        broker,
        changelog,
        **{"cleanup.policy": "compact,delete", "retention.ms": "100000000", "max.message.bytes": "2000000"},
    )
    change(broker, between, **{"retention.ms": "100000000", "message.timestamp.type": "CreateTime"})
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        assert run("here") == [1, 2, 3]
    found = configs(cluster, changelog)
    assert (found["cleanup.policy"], found["max.message.bytes"]) == ("compact", "2000000")
    assert configs(cluster, between)["retention.ms"] == "-1"
    assert f"changes the topic {changelog!r}, which had cleanup.policy=compact,delete" in caplog.text

    change(broker, changelog, **{"cleanup.policy": "delete"})
    remove(broker, changelog, below=3)
    with pytest.raises(Damaged, match=rf"{changelog}' begins at offset 3 of partition 0, and not at 0"):
        run("elsewhere")
    assert run("here") == [1, 2, 3, 4, 5]
    delete(broker, changelog)
    for machine in ("here", "elsewhere"):
        with pytest.raises(Damaged, match=rf"{changelog}' is no longer there"):
            run(machine)
    create(broker, changelog, 8)
    with pytest.raises(Damaged, match=rf"{changelog}' was deleted and made anew"):
        run("here")
    assert counts(broker, topics) == [1, 2, 3, 4, 5]

    delete(broker, ledger)
    for _ in range(2):
        with pytest.raises(Damaged, match=rf"{ledger}' has no checkpoint of what the group '{topics}' has committed"):
            run("here")
    environment = KafkaEnvironment(cluster, tmp_path / "here")
    environment.reset(topics)
    environment.delete_stream(between)
    environment.close()
    assert group_offsets(broker, topics)[f"{topics}-words", 0] == 0
    told = run("here")
    assert told[5:] == [*range(1, len(told) - 4)]
    assert run("there") == [*told, told[-1] + 1]


def typed(broker, *words: str) -> str:
    """Run a command on the cluster, within the time that a broker is asked for one topic, and return what it says."""
    began = monotonic()
    done = CliRunner().invoke(commands, [*words, "--environment", f"kafka://{broker.bootstrap}"])
    assert done.exit_code == 0, done.output
    assert monotonic() - began < 30, "nobody waits for a topic that is gone"
    return done.output


def advised(error: Damaged, broker) -> None:
    """Type the first command that an error advises, as it is told."""
    words = re.search(rf"samza-dsl (state forget [^.]*) --environment kafka://{broker.bootstrap}\. ", str(error))
    assert words is not None, str(error)
    typed(broker, *words[1].split(), "--yes")
    others = re.findall(r"samza-dsl [a-z]+ [^.;]*", str(error))
    assert all("--environment kafka://" in one for one in others), str(error)


@pytest.mark.parametrize("how", ["the command", "the run"])
def test_a_lost_changelog_is_forgotten_alone(how, broker, topics, cluster, tmp_path):
    words, changelog = f"{topics}-words", f"{topics}-count-changelog"
    create(broker, words)

    def app():
        app = App(topics)
        keyed = app.input(words, value=String()).partition_by(lambda word: word, partitions=1, op_id="by-word")
        out = app.output(f"{topics}-counts", value=int)
        for op_id in ("count", "other"):
            keyed.scan(lambda total, _: (total or 0) + 1, op_id=op_id).send_to(out)
        return app

    def run(machine, **more):
        produce(broker, words, (0, None, b"word"))
        app().run(until_now=True, environment=cluster, data=str(tmp_path / machine), **more)
        return sorted(counts(broker, topics))

    assert run("here") == [1, 1]
    delete(broker, changelog)
    with pytest.raises(Damaged, match=rf"{changelog}' is no longer there: state of 'count'") as found:
        run("here")
    listed = typed(broker, "state", "list", topics)
    assert f"count has less than was committed, as the topic {changelog!r} is no longer there" in listed
    assert re.search(r"other +1 ", listed)
    if how == "the command":
        advised(found.value, broker)
        forgotten = {}
    else:
        forgotten = {"state": Forget("count")}
    # `count` begins with the word that was not read then, and `other` goes on.
    assert run("elsewhere", **forgotten) == [1, 1, 1, 2, 2, 3]
    assert run("here") == [1, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("how", ["deleted", "made anew", "cut"])
def test_a_lost_stream_between_stages_is_told_as_the_run_begins_and_forgotten_alone(how, broker, topics, run):
    between = f"{topics}-by-word"
    assert run("here") == [1]
    if how == "cut":
        # As it is where a stage was behind: what it had not read is gone.
        produce(broker, between, *((0, b"x", b"x") for _ in range(3)))
        remove_all(broker, between)
    else:
        delete(broker, between)
    if how == "made anew":
        create(broker, between, 1)
    with pytest.raises(Damaged, match=rf"The stream '{between}' between stages .* had not read of it is lost") as found:
        run("here")
    assert f"by-word has less than was committed, as the stream {between!r}" in typed(broker, "state", "list", topics)
    advised(found.value, broker)
    assert run("here") == [1, 2, 3]
    assert run("elsewhere") == [1, 2, 3, 4]


def test_lost_checkpoints_are_begun_without_at_an_offset(broker, topics, run, tmp_path):
    assert run("here") == [1]
    delete(broker, f"{topics}-checkpoints")
    with pytest.raises(Damaged, match=rf"samza-dsl reset {topics} --environment kafka://{broker.bootstrap}; after"):
        run("here")
    typed(broker, "reset", topics, "--yes")
    file = tmp_path / "app.py"
    file.write_text(
        f"from samza_dsl import App, String\napp = App({topics!r})\n"
        f"words = app.input('{topics}-words', value=String())"
        ".partition_by(lambda word: word, partitions=1, op_id='by-word')\n"
        f"words.scan(lambda n, _: (n or 0) + 1, op_id='count').send_to(app.output('{topics}-counts', value=int))"
    )
    typed(broker, "checkpoint", "set", str(file), f"{topics}-words:0", "1", "--state", "reset")
    assert run("here") == [1, 1, 2]


@pytest.mark.parametrize("lost", ["records", "positions"])
def test_a_lost_inbox_is_told_with_a_way_out(lost, broker, topics, cluster, tmp_path):
    inbox = inbox_of(topics, f"{topics}-numbers", "numbers of a queue")

    def run(most):
        def pull(reader, position):
            number = int(position or 0)
            found = [PulledRecord(number, key="k")] if number < most else []
            return Pulled(found, b"%d" % min(number + 1, most), number < most)

        app = App(topics)
        app.input(f"{topics}-numbers", value=int, key=str).send_to(app.output(f"{topics}-counts", value=int))
        source = PulledSource("numbers of a queue", pull, lambda reader, position: None)
        app.run(tmp_path, until_now=True, environment=cluster, bind={f"{topics}-numbers": source})
        return counts(broker, topics)

    assert run(2) == [0, 1]
    delete(broker, inbox if lost == "records" else f"{inbox}.position")
    with pytest.raises(Damaged) as found:
        run(3)
    assert counts(broker, topics) == [0, 1]
    if lost == "records":
        assert f"checkpoint set APP {topics}-numbers:0 earliest" in str(found.value)
        typed(broker, "checkpoint", "set", topics, f"{topics}-numbers:0", "earliest")
        assert run(3) == [0, 1, 2]
    else:
        where = f"--environment kafka://{broker.bootstrap}"
        reset = f"samza-dsl reset {topics} {where}, and then samza-dsl streams delete {inbox} {where}"
        assert reset in str(found.value)
        typed(broker, "reset", topics, "--yes")
        typed(broker, "streams", "delete", inbox)
        assert run(3) == [0, 1, 0, 1, 2]


def test_a_group_that_was_deleted_loses_nothing(broker, topics, run):
    assert run("here") == [1]
    delete_group(broker, topics)
    assert (topics, 0) not in group_offsets(broker, topics)
    assert run("here") == [1, 2]
    assert run("elsewhere") == [1, 2, 3]
    assert group_offsets(broker, topics)[f"{topics}-words", 0] == 3


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_a_lost_outbox_is_told_with_ways_out(how, broker, topics, cluster, tmp_path):
    words, taken = f"{topics}-words", []
    create(broker, words)

    def run(name):
        app = App(topics)
        app.input(words, value=String()).send_to(app.output(f"{topics}-out", value=String(), partitions=1))
        sink = AtLeastOnceSink(name, lambda rows: taken.append([row.value for row in rows]))
        app.run(tmp_path, until_now=True, environment=cluster, bind={f"{topics}-out": sink})

    produce(broker, words, (0, None, b"a"))
    run("a queue")
    assert taken == [["a"]]
    (outbox,) = [name for name in names(broker) if name.startswith(f"{topics}.outbox.")]
    if how == "deleted":
        delete(broker, outbox)
    else:
        produce(broker, outbox, *((0, None, b"x") for _ in range(3)))  # as rows that no run has delivered yet
        remove_all(broker, outbox)
    produce(broker, words, (0, None, b"b"))
    told = "was deleted and made anew" if how == "deleted" else "what waits to be delivered was lost"
    with pytest.raises(Damaged, match=f"(?s){told}.*samza-dsl reset {topics}"):
        run("a queue")
    assert taken == [["a"]]
    run("another queue")
    assert taken == [["a"], ["b"]]
