"""What an application is said to need on a cluster is enough to run it, and nothing of it is left out."""

import json
import shlex
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from runtime.model.errors import SamzaError
from runtime.systems.kafka.needs import needs_of
from samza_dsl import App, KafkaCluster, String, produce
from samza_dsl.cli.main import commands as command
from tests.kafka.rights import PASSWORD
from tests.kafka.topics import consume, names

PROGRAM = """
from samza_dsl import App, Json, Options, String, count, dead_letter, tumbling

app = App("{name}", Options(metrics_to="{name}.how"))
words = app.input("{name}.in", value=String(), key=str, on_error=dead_letter("{name}.bad"))
by_word = words.partition_by(lambda word: word, partitions=2, op_id="by")
counts = by_word.scan(lambda total, word: (total or 0) + 1, op_id="count")
counts.send_to(app.output("{name}.counts", value=Json(int), partitions=1, retention_ms=86_400_000))
"""
BOUND = """
from dataclasses import dataclass

from samza_dsl import App, Json

@dataclass
class Word:
    id: int
    word: str

@dataclass
class Count:
    word: str
    number: int

app = App("{name}")
words = app.input("{name}.in", value=Json(Word), key=int)
by_word = words.partition_by(lambda row: row.word, partitions=2, op_id="by")
numbers = by_word.scan(lambda count, row: Count(row.word, count.number + 1 if count else 1), op_id="count")
numbers.send_to(app.output("{name}.counts", value=Json(Count)))
"""


def called(*words):
    done = CliRunner().invoke(command, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def known(guard, path):
    """Return a user whom nothing is allowed yet, with what clients need to be taken for it in a file."""
    name, guard.users = f"u{guard.users}", guard.users + 1
    how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    options = {**how, "sasl_plain_username": name, "sasl_plain_password": PASSWORD}
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in options.items()))
    return f"User:{name}"


@pytest.mark.parametrize("containers", [1, 2])
def test_an_application_runs_with_what_it_is_said_to_need_and_no_more(guard, topics, tmp_path, containers):
    name = f"team-{topics}"
    program = tmp_path / f"{topics}.py"
    program.write_text(PROGRAM.format(name=name))
    user = known(guard, tmp_path / "kafka.toml")
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


@pytest.mark.parametrize("containers", [1, 2])
def test_so_does_one_whose_streams_are_bound_to_a_database(guard, topics, tmp_path, containers):
    name, user = f"team-{topics}", known(guard, tmp_path / "kafka.toml")
    program = tmp_path / f"{topics}.py"
    program.write_text(BOUND.format(name=name))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("create table words (id integer primary key, word text)")
        connection.executemany("insert into words (word) values (?)", [("x",), ("y",), ("x",)])
    database = f"sqlite:///{tmp_path / 'shop.db'}"
    bind = ["--bind", f"{name}.in={database}?table=words", "--bind", f"{name}.counts={database}?table=counts"]
    where = ["--environment", f"{guard.open}?prefix=team-", "--principal", user, *bind]
    before = json.loads(called("kafka", "topics", program, *where, "--json"))
    roles = {one["name"]: one["role"] for one in before["topics"]}
    assert not {f"{name}.in", f"{name}.counts"} & roles.keys()
    assert sorted(roles.values()).count("inbox") == 2 and "outbox" in roles.values()
    called("kafka", "topics", program, *where, "--apply")
    after = json.loads(called("kafka", "topics", program, *where, "--json"))
    assert {one["state"] for one in after["topics"]} == {"there"}
    run = ["run", program, "--environment", f"{guard.address}?prefix=team-", "--kafka-options", tmp_path / "kafka.toml"]
    called(*run, *bind, "--until-now", "--data", tmp_path / "data", "--containers", containers)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("select * from counts order by 1, 2").fetchall() == [("x", 1), ("x", 2), ("y", 1)]
    made = {one["name"] for one in json.loads(called("kafka", "topics", program, *where, "--json"))["topics"]}
    assert {one for one in names(guard.brokers) if one.startswith(name)} <= made, "no topic is there that was not told"


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


def test_what_takes_a_pushed_source_in_is_told_as_well(tmp_path):
    program = tmp_path / "app.py"
    program.write_text(BOUND.format(name="words"))
    where = [
        "--environment",
        "kafka://no.such.host:9092",
        "--offline",
        "--bind",
        "words.in=listen://127.0.0.1:8080/words",
    ]
    told = called("kafka", "topics", program, *where)
    assert "--create --if-not-exists --topic words.in --partitions 1" in told
    assert "--topic words.in --operation Read --operation Write" in told
    assert "--topic words.in.notes. --resource-pattern-type prefixed --operation Read --operation Write" in told
    assert "--transactional-id words.in.notes. --resource-pattern-type prefixed --operation Write" in told


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
