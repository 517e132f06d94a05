"""History of a Kafka environment is computed anew into it, beside the live run, and taken over, on a real broker."""

from collections import Counter

import msgspec
import pytest
from typer.testing import CliRunner

from planner.model.errors import PlanError
from samza_dsl import App, KafkaCluster, Spark, produce
from samza_dsl.cli.main import commands
from tests.kafka.topics import consume, names

WORDS = [f"w{number % 9}" for number in range(600)]
PROGRAM = """
from samza_dsl import App, Json

app = App("{name}")
words = app.input("{name}-words", value=str).partition_by(lambda word: word, partitions=2, op_id="by-word")
counts = words.scan(lambda total, word: (total or 0) + {step}, emit=lambda word, total: [word, total], op_id="count")
counts.send_to(app.output("{name}-counts", value=Json(list)))
"""


@pytest.fixture
def cluster(broker):
    return KafkaCluster(f"kafka://{broker.bootstrap}")


@pytest.fixture
def app(topics, tmp_path, cluster, monkeypatch):
    """An application that has counted the first half of some words, as a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(PROGRAM.format(name=topics, step=1))
    (tmp_path / "changed.py").write_text(PROGRAM.format(name=topics, step=10))
    produce(f"{topics}-words", WORDS[:300], value=str, environment=cluster)
    command(cluster, "run", "app.py", "--until-now")
    return topics


def command(cluster, *words: str, where: str = "data") -> str:
    """Run a command of the library on a cluster, which is to succeed."""
    done = CliRunner().invoke(commands, [*words, "--environment", cluster.address, "--data", where])
    assert done.exit_code == 0, done.output
    return done.stdout


def counted(broker, stream: str) -> Counter:
    found = consume(broker, stream)
    return Counter(tuple(msgspec.json.decode(record.value)) for records in found.values() for record in records)


def expected(words: list[str], step: int = 1) -> Counter:
    seen = Counter(words)
    return Counter((word, step * (number + 1)) for word, count in seen.items() for number in range(count))


@pytest.mark.parametrize("containers", ["1", "2"])
def test_history_is_computed_anew_into_another_topic_beside_the_live_run(containers, app, broker, cluster):
    how = ["--to", f"{app}-counts=stream:{app}-anew", "--containers", containers]
    command(cluster, "reprocess", "changed.py", *how)
    assert counted(broker, f"{app}-anew") == expected(WORDS[:300], step=10)
    produce(f"{app}-words", WORDS[300:], value=str, environment=cluster)
    command(cluster, "run", "app.py", "--until-now")
    assert counted(broker, f"{app}-counts") == expected(WORDS), "the live run has gone on untouched"
    left = {name for name in names(broker) if name.startswith(f"{app}.recomputing")}
    assert left == {f"{app}.recomputing-checkpoints"}


def test_what_was_handed_over_is_taken_over_and_gone_on_from(app, broker, cluster):
    command(cluster, "reprocess", "changed.py", "--to", f"{app}-counts=stream:{app}-anew", "--handover", "history")
    command(cluster, "take-over", "changed.py", "history", "--yes")
    produce(f"{app}-words", WORDS[300:], value=str, environment=cluster)
    command(cluster, "run", "changed.py", "--until-now", where="elsewhere")
    later = counted(broker, f"{app}-counts") - expected(WORDS[:300])
    assert counted(broker, f"{app}-anew") + later == expected(WORDS, step=10)


def test_results_are_merged_into_the_topic_of_the_live_ones(topics, broker, cluster, tmp_path):
    def naming(sign: str) -> App:
        app = App(topics)
        numbers = app.input(f"{topics}-numbers", value=int, key=lambda n: str(n % 4), partitioned_by_key=True)
        numbers.map(lambda n: f"{sign}{n}").send_to(app.output(f"{topics}-names", value=str, key=str))
        return app

    produce(f"{topics}-numbers", [0, 1, 2, 3], value=int, environment=cluster)
    naming("live ").run(tmp_path, environment=cluster, from_start=False, until_now=True)
    produce(f"{topics}-numbers", [7], value=int, environment=cluster)
    merged = {f"{topics}-names": f"{topics}-names"}
    naming("anew ").reprocess(
        tmp_path, environment=cluster, merge_into=merged, merge=lambda key, live, anew: anew if key == "3" else live
    )
    (found,) = consume(broker, f"{topics}-names").values()
    assert {record.key: record.value for record in found} == {
        b"0": b"live 0",
        b"1": b"live 1",
        b"2": b"live 2",
        b"3": b"anew 7",
    }


def test_on_spark_topics_are_bound(cluster, tmp_path):
    app = App("app")
    app.input("words", value=str).send_to(app.output("out", value=str))
    with pytest.raises(PlanError, match="on Spark a reprocessing reads and writes the topics that streams are bound"):
        app.reprocess(tmp_path, environment=cluster, on=Spark())
