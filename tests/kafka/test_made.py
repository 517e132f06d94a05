"""Everything that may be said of a stream that is yet to be made, as the topic has it that comes of it."""

import json
import logging

import pytest
from typer.testing import CliRunner

from samza_dsl import App, KafkaCluster, PlanError, String
from samza_dsl import produce as produce_stream
from samza_dsl.cli.main import commands
from tests.kafka.test_less import configs
from tests.kafka.topics import configure, consume, create, produce

SAID = {"partitions": 2, "retention_ms": 900_000_000, "retention_bytes": 1 << 30}
KAFKAS = {"retention.ms": "900000000", "retention.bytes": str(1 << 30)}
CODECS = {"zstd": "zstd", "zlib": "gzip"}


@pytest.fixture
def cluster(broker):
    return KafkaCluster(f"kafka://{broker.bootstrap}")


def copying(topics: str, **said: object) -> App:
    app = App(topics)
    app.input(f"{topics}-words", value=String()).send_to(app.output(f"{topics}-made", value=String(), **said))
    return app


def made_by(how: str, cluster: KafkaCluster, topics: str, tmp_path, compression: str) -> None:
    """Have the topic made, in one of the ways in which a user says what it is to be like."""
    name, address = f"{topics}-made", f"{cluster.address}"
    if how == "produce":
        produce_stream(name, ["word"] * 100, environment=cluster, value=String(), **SAID, compression=compression)
    elif how == "streams produce":
        (tmp_path / "lines").write_text(json.dumps("word") + "\n")
        flags = [part for key, said in SAID.items() for part in (f"--{key.replace('_', '-')}", str(said))]
        called = ["streams", "produce", name, "--file", str(tmp_path / "lines"), "--environment", address, *flags]
        found = CliRunner().invoke(commands, [*called, "--compression", compression])
        assert found.exit_code == 0, found.output
    elif how == "kafka topics":
        program = tmp_path / "app.py"
        said = "".join(f", {key}={value!r}" for key, value in (SAID | {"compression": compression}).items())
        program.write_text(
            f"from samza_dsl import App, String\napp = App({topics!r})\n"
            f"app.input('{topics}-words', value=String()).send_to(app.output({name!r}, value=String(){said}))\n"
        )
        called = ["kafka", "topics", str(program), "--environment", address]
        found = CliRunner().invoke(commands, [*called, "--apply", "--principal", "User:me"])
        assert found.exit_code == 0, found.output
    else:
        bind = {name: f"{address}/{name}"} if how == "bound" else {}
        app = copying(topics, **SAID, compression=compression)
        app.run(tmp_path / "data", environment=cluster, bind=bind, until_now=True)


@pytest.mark.parametrize("compression", ["zstd", "zlib"])
@pytest.mark.parametrize("how", ["an output", "produce", "streams produce", "kafka topics", "bound"])
def test_a_topic_is_made_as_was_said_and_a_run_goes_on_with_it(how, compression, broker, topics, cluster, tmp_path):
    create(broker, f"{topics}-words")
    produce(broker, f"{topics}-words", (0, None, b"word"))
    made_by(how, cluster, topics, tmp_path, compression)
    found = configs(cluster, f"{topics}-made")
    # A bound output compresses itself as it writes, so that the brokers keep it as it comes.
    wanted = KAFKAS | {"compression.type": "producer" if how == "bound" else CODECS[compression]}
    assert {name: found[name] for name in wanted} == wanted
    if how != "bound":
        copying(topics, **SAID, compression=compression).run(tmp_path / "data", environment=cluster, until_now=True)
        assert {record.value for part in consume(broker, f"{topics}-made").values() for record in part} <= {
            b"word",
            b'"word"',
        }


def test_a_topic_that_is_compressed_otherwise_is_refused(broker, topics, cluster, tmp_path):
    create(broker, f"{topics}-words")
    create(broker, f"{topics}-made", **{"compression.type": "gzip"})
    with pytest.raises(PlanError, match=r"compression='zstd', and the stream .* exists and has zlib"):
        copying(topics, compression="zstd").run(tmp_path, environment=cluster, until_now=True)
    copying(topics, compression="zlib").run(tmp_path, environment=cluster, until_now=True)


def test_a_topic_that_an_earlier_version_left_uncompressed_is_told(broker, topics, cluster, tmp_path, caplog):
    create(broker, f"{topics}-words")
    copying(topics, compression="zstd").run(tmp_path, environment=cluster, until_now=True)
    configure(broker, f"{topics}-made", **{"compression.type": "producer"})
    with caplog.at_level(logging.WARNING, "samza_dsl"):
        copying(topics, compression="zstd").run(tmp_path, environment=cluster, until_now=True)
    assert "is not compressed; type: kafka-configs.sh" in caplog.text
    assert f"--entity-name {topics}-made --add-config compression.type=zstd" in caplog.text
