"""What an application is said to need on a cluster is enough to run it, and nothing of it is left out."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from runtime.model.errors import SamzaError
from runtime.systems.kafka.needs import needs_of
from samza_dsl import App, KafkaCluster, String, produce
from samza_dsl.cli.main import commands as command
from tests.kafka.rights import PASSWORD
from tests.kafka.topics import consume

PROGRAM = """
from samza_dsl import App, Json, Options, String, count, dead_letter, tumbling

app = App("{name}", Options(metrics_to="{name}.how"))
words = app.input("{name}.in", value=String(), key=str, on_error=dead_letter("{name}.bad"))
by_word = words.partition_by(lambda word: word, partitions=2, op_id="by")
counts = by_word.scan(lambda total, word: (total or 0) + 1, op_id="count")
counts.send_to(app.output("{name}.counts", value=Json(int), partitions=1, retention_ms=86_400_000))
"""


def called(*words):
    done = CliRunner().invoke(command, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("containers", [1, 2])
def test_an_application_runs_with_what_it_is_said_to_need_and_no_more(guard, topics, tmp_path, containers):
    name = f"team-{topics}"
    program = tmp_path / f"{topics}.py"
    program.write_text(PROGRAM.format(name=name))
    user = f"User:u{guard.users}"
    guard.users += 1
    how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    options = {**how, "sasl_plain_username": user.removeprefix("User:"), "sasl_plain_password": PASSWORD}
    (tmp_path / "kafka.toml").write_text("".join(f"{key} = {value!r}\n" for key, value in options.items()))
    produce(f"{name}.in", ["x", "y", "x"], value=String(), key=str, environment=guard.open)
    run = ["run", program, "--environment", f"{guard.address}?prefix=team-", "--kafka-options", tmp_path / "kafka.toml"]
    run += ["--until-now", "--data", tmp_path / "data", "--containers", containers]
    assert CliRunner().invoke(command, [*map(str, run)]).exit_code != 0, "nothing is allowed yet"

    where = ["--environment", f"{guard.open}?prefix=team-", "--principal", user]
    before = json.loads(called("kafka", "topics", program, *where, "--json"))
    states = {one["name"]: one["state"] for one in before["topics"]}
    made = {
        f"{name}.bad",
        f"{name}.counts",
        f"{name}.how",
        f"{name}-by",
        f"{name}-count-changelog",
        f"{name}-checkpoints",
    }
    assert states.pop(f"{name}.in") == "there" and states.keys() - {"team-samza-dsl-streams"} == made
    assert {states[one] for one in made} == {"missing"}
    told = called("kafka", "topics", program, *where, "--apply")
    assert f"made the topic {name}-count-changelog" in told and f"allowed {user} Read, Describe" in told
    after = json.loads(called("kafka", "topics", program, *where, "--json"))
    assert {one["state"] for one in after["topics"]} == {"there"}
    called(*run)
    (found,) = consume(guard.brokers, f"{name}.counts").values()
    assert sorted(record.value for record in found) == [b"1", b"1", b"2"]
    again = called("kafka", "topics", program, *where, "--apply")
    assert "made" not in again and "changed" not in again


def test_it_is_told_as_commands_without_asking_anybody(tmp_path):
    program = tmp_path / "app.py"
    program.write_text(PROGRAM.format(name="words"))
    told = called("kafka", "topics", program, "--environment", "kafka://no.such.host:9092", "--offline")
    assert (
        "kafka-acls.sh --bootstrap-server no.such.host:9092 --add --allow-principal User:NAME --topic words- "
        "--resource-pattern-type prefixed --operation Read" in told
    )
    (output,) = [line for line in told.splitlines() if "--topic words.counts --partitions" in line]
    assert "--partitions 1" in output and "--config retention.ms=86400000" in output
    assert not [line for line in told.splitlines() if "topics.sh" in line and "--topic words.in " in line]


def test_the_commands_are_typed_as_they_are_told():
    app = App("words")
    app.input("*", value=String(), partitions=1).send_to(app.output("copy"))
    principal = "User:CN=ann o'neil,OU=a*"
    needs = needs_of(app.plan(), KafkaCluster("kafka://one:9092,two:9092"), principal)
    told = [shlex.split(command) for command in needs.commands("one:9092,two:9092")]
    allowed = [one for one in told if one[0] == "kafka-acls.sh"]
    assert len(allowed) == len(needs.rights)
    for right, words in zip(needs.rights, allowed, strict=True):
        assert words[words.index("--allow-principal") + 1] == principal
        assert words[words.index(f"--{right.resource}") + 1] == right.name
    assert "*" in {right.name for right in needs.rights}
    # Nothing is left that a shell would take for something else.
    assert all(shlex.join(shlex.split(one)) == one for one in needs.commands("one:9092,two:9092"))


def test_an_application_whose_name_has_not_the_prefix_is_refused(broker, tmp_path):
    app = App("other")
    app.input("words", value=String()).send_to(app.output("copy", value=String()))
    with pytest.raises(SamzaError, match=r"write instead: App\('team-other'\)"):
        app.run(tmp_path, environment=f"kafka://{broker.bootstrap}?prefix=team-", until_now=True)


@pytest.mark.parametrize("address", ["kafka://b:1?prefix=a b", "kafka://b:1?start=latest", "kafka://b:1?prefix=a&x=1"])
def test_a_cluster_has_a_prefix_and_nothing_else(address):
    with pytest.raises(SamzaError, match="prefix="):
        KafkaCluster(address)
