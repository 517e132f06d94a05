"""What brokers do not let a client do is one clear error, when the run begins: what, of what, and how it is allowed."""

import json
import os
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections import Counter
from pathlib import Path

import pytest
from aiokafka.abc import AbstractTokenProvider

from runtime.model.errors import EnvironmentFault, SamzaError, Unavailable
from samza_dsl import App, Json, KafkaCluster, KafkaTopic, String, produce
from tests.faults.processes import wait_until
from tests.kafka.brokers import HOST
from tests.kafka.rights import PASSWORD
from tests.kafka.topics import configure, consume, create, names
from tests.source import ROOT

TOKEN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def counting(name):
    app = App(name)
    words = app.input(f"{name}-words", value=String(), key=str)
    by_word = words.partition_by(lambda word: word, partitions=1, op_id="by")
    counts = by_word.scan(lambda total, word: (total or 0) + 1, op_id="count")
    counts.send_to(app.output(f"{name}-counts", value=Json(int), partitions=1))
    return app


DENIED = {
    "group": ("group", "", "read", "use the group '{0}'.*--group {0} --operation Read"),
    "id": ("transactional id", "", "write", "use the transactional id '{0}'.*--transactional-id {0} "),
    "input": ("topic", "-words", "read", "read the topic '{0}-words'.*--topic {0}-words --operation Read"),
    "unseen input": ("topic", "-words", "describe", "the topic '{0}-words'.*--topic {0}-words"),
    "output": ("topic", "-counts", "write", "write to the topic '{0}-counts'.*--topic {0}-counts --operation Write"),
    "between, to write": ("topic", "-by", "write", "write to the topic '{0}-by'.*--topic {0}-by --operation Write"),
    "between, to read": ("topic", "-by", "read", "read the topic '{0}-by'.*--topic {0}-by --operation Read"),
    "ledger": ("topic", "-checkpoints", "write", "the topic '{0}-checkpoints'.*--topic {0}-checkpoints"),
    "group, to look at": ("group", "", "describe", "use the group '{0}'.*--group {0} --operation Read"),
    "id, to look at": ("transactional id", "", "describe", "use the transactional id '{0}'.*--operation Describe"),
    "ledger, to read": ("topic", "-checkpoints", "read", "the topic '{0}-checkpoints'.*--topic {0}-checkpoints"),
    "unseen output": ("topic", "-counts", "describe", "the topic '{0}-counts'.*--topic {0}-counts"),
    "changelog": ("topic", "-count-", "write", "write to the topic '{0}-count-.*'.*--operation Write"),
}
"""What a user may not do, of what begins with the application's name, and what is told."""


@pytest.mark.parametrize("what", DENIED)
def test_what_is_denied_is_told_with_the_command_that_allows_it(what, guard, topics, tmp_path):
    kind, behind, how, told = DENIED[what]
    produce(f"{topics}-words", ["x", "y"], value=String(), key=str, environment=guard.open)
    cluster = guard.cluster((kind, f"{topics}{behind}", how))
    with pytest.raises(EnvironmentFault, match=told.format(topics)) as error:
        counting(topics).run(tmp_path, environment=cluster, until_now=True)
    assert not isinstance(error.value, Unavailable)
    assert PASSWORD not in f"{error.value!r} {error.value.__cause__!r}"


@pytest.mark.parametrize("is_denied", [True, False])
def test_what_may_not_be_removed_once_it_was_read_is_told_and_stays(is_denied, guard, topics, tmp_path, caplog):
    produce(f"{topics}-words", ["x", "y"], value=String(), key=str, environment=guard.open)
    denied = [("topic", f"{topics}-by", "delete")] * is_denied
    counting(topics).run(tmp_path, environment=guard.cluster(*denied), until_now=True)
    told = [line for line in caplog.messages if "stay for good" in line]
    assert len(told) == is_denied
    assert not told or f"--topic {topics}-by --operation Delete" in told[0]


def test_an_input_that_may_be_read_no_more_is_told_by_what_commits_without_reading_it(guard, topics, tmp_path):
    """As `samza-dsl reset` does, which tells the group of the application that it has read nothing."""
    produce(f"{topics}-words", ["x", "y"], value=String(), key=str, environment=guard.open)
    counting(topics).run(tmp_path, environment=guard.open, until_now=True)
    options = guard.user(("topic", f"{topics}-words", "read"))
    (tmp_path / "options.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in options.items()))
    words = ["reset", topics, "--yes", "--environment", guard.address, "--kafka-options", "options.toml"]
    program = Path(sys.executable).with_name("samza-dsl")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    *before, last = done.stderr.splitlines()
    assert done.returncode == 1 and before == ["Sending username and password in the clear"]
    assert f"let this client read the topic '{topics}-words'" in last and last.endswith("--operation Read")


def test_so_is_a_topic_that_may_not_be_made(guard, topics, tmp_path):
    produce(f"{topics}-words", ["x"], value=String(), key=str, environment=guard.open)
    cluster = guard.cluster(("cluster", "kafka-cluster", "create"), ("topic", topics, "create"))
    with pytest.raises(EnvironmentFault, match=rf"make the topic '{topics}-.*--operation Create"):
        counting(topics).run(tmp_path, environment=cluster, until_now=True)


def test_containers_that_may_not_be_members_end_the_run_at_once(guard, topics, tmp_path):
    produce(f"{topics}-words", ["x"], value=String(), key=str, environment=guard.open)
    options = guard.user(("group", f"{topics}-members", "read"))
    (tmp_path / "options.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in options.items()))
    (tmp_path / "app.py").write_text(
        "from samza_dsl import App, String\n"
        f"app = App('{topics}')\n"
        f"app.input('{topics}-words', value=String()).send_to(app.output('{topics}-counts', value=String()))\n"
    )
    words = ["run", "app.py", "--containers", "2", "--environment", guard.address, "--kafka-options", "options.toml"]
    program = Path(sys.executable).with_name("samza-dsl")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert last.startswith("error: The brokers at") and f"use the group '{topics}-members'" in last
    assert "takes the place of" not in done.stderr


@pytest.mark.parametrize(("behind", "how"), [("-words", "read"), ("-counts", "write")])
def test_so_is_a_bound_topic(behind, how, guard, topics, tmp_path):
    produce(f"{topics}-words", ["x"], value=String(), key=str, environment=guard.open)
    produce(f"{topics}-counts", ["x"], value=String(), key=str, environment=guard.open)
    options = guard.user(("topic", f"{topics}{behind}", how))
    streams = [f"{topics}-words", f"{topics}-counts"]
    bind = {stream: KafkaTopic(f"{guard.address}/{stream}", options=options) for stream in streams}
    with pytest.raises(EnvironmentFault, match=rf"the topic '{topics}{behind}'.*--operation {how.title()}"):
        counting(topics).run(tmp_path, bind=bind, until_now=True)


def token(expires_in_s=3_600):
    """Return a token that a broker for development takes."""
    said = {"sub": "u0", "iat": time.time() - 60, "exp": time.time() + expires_in_s}
    parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, said)]
    return f"{parts[0]}.{parts[1]}."


class Tokens(AbstractTokenProvider):
    def __init__(self, expires_in_s=3_600):
        self._expires_in_s = expires_in_s

    async def token(self):
        return token(self._expires_in_s)


class Failing(AbstractTokenProvider):
    async def token(self):
        raise RuntimeError("no token today")


def no_token():
    return None


WRONG = {
    "rejected": (Tokens(-30), "the token was rejected"),
    "failing": (Failing(), "the token provider Failing has failed: RuntimeError.'no token today'"),
    "none": (no_token, "the token provider no_token returned NoneType"),
    "no provider": (7, "can't be a int"),
    "unknown": ("tests.kafka.test_denied:nothing", "can't be found"),
    "ending": (sys.exit, "the token provider exit has failed: SystemExit"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_token_that_is_none_is_told_at_once(what, guard, tmp_path):
    provider, told = WRONG[what]
    cluster = KafkaCluster(guard.token_address, options={**TOKEN, "sasl_oauth_token_provider": provider})
    with pytest.raises(SamzaError, match=told) as error:
        counting("none").run(tmp_path, environment=cluster, until_now=True)
    assert not isinstance(error.value, Unavailable)


@pytest.mark.parametrize(
    "provider", [token, Tokens, Tokens(), f"{__name__}:token"], ids=["function", "class", "object", "name"]
)
def test_a_token_is_asked_of_whatever_gives_one(provider, guard, topics, tmp_path):
    guard.user()
    cluster = KafkaCluster(guard.token_address, options={**TOKEN, "sasl_oauth_token_provider": provider})
    produce(f"{topics}-words", ["x", "x"], value=String(), key=str, environment=guard.open)
    run = counting(topics).run(tmp_path, environment=cluster, until_now=True)
    assert run.received(f"{topics}-counts") == [1, 2]


PROGRAM = """
import json, sys, time
from base64 import urlsafe_b64encode

from aiokafka.abc import AbstractTokenProvider
from samza_dsl import App, Json, KafkaCluster, String


class Tokens(AbstractTokenProvider):
    def __init__(self, user):
        self.user = user

    async def token(self):
        said = {"sub": self.user, "iat": time.time() - 60, "exp": time.time() + 3_600}
        parts = [urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in ({"alg": "none"}, said)]
        return f"{parts[0]}.{parts[1]}."


async def token():
    return await Tokens("u0").token()


app = App("NAME")
words = app.input("NAME-words", value=String(), key=str)
words.scan(lambda total, word: (total or 0) + 1, op_id="count").send_to(app.output("NAME-counts", value=Json(int)))

if __name__ == "__main__":
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    options["sasl_oauth_token_provider"] = PROVIDER
    cluster = KafkaCluster(sys.argv[1], options=options)
    run = app.run("data", environment=cluster, until_now=True, containers=2)
    print(run.metrics().received("NAME-words"))
"""


@pytest.mark.parametrize("provider", ["token", 'Tokens("u0")'])
def test_containers_have_the_token_provider_as_well(provider, guard, topics, tmp_path):
    guard.user()
    rows = [f"w{number}" for number in range(40)]
    produce(f"{topics}-words", rows, value=String(), key=str, environment=guard.open, partitions=2)
    (tmp_path / "program.py").write_text(PROGRAM.replace("NAME", topics).replace("PROVIDER", provider))
    command = [sys.executable, "program.py", guard.token_address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.split()) == (0, ["40"]), done.stderr


REFRESHED = """
import json, os, time
from base64 import urlsafe_b64encode
from pathlib import Path

from samza_dsl import App, Json, String


def token():
    with Path("asked").open("a") as file:
        print(os.getpid(), file=file)
    said = {"sub": "u0", "iat": time.time() - 60, "exp": time.time() + 3}
    parts = [urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in ({"alg": "none"}, said)]
    return f"{parts[0]}.{parts[1]}."


app = App("NAME")
words = app.input("NAME-words", value=String(), key=str)
words.scan(lambda total, word: (total or 0) + 1, op_id="count").send_to(app.output("NAME-counts", value=Json(int)))
"""


def test_a_token_is_asked_for_anew_before_it_is_too_old_in_containers_and_on_the_command_line(guard, topics, tmp_path):
    """Records come for longer than a token lasts, and all are counted, each once."""
    guard.user()
    rows = [f"w{number}" for number in range(40)]
    produce(f"{topics}-words", rows, value=String(), key=str, environment=guard.open, partitions=2)
    (tmp_path / "app.py").write_text(REFRESHED.replace("NAME", topics))
    said = {**TOKEN, "sasl_oauth_token_provider": "app:token"}
    (tmp_path / "kafka.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in said.items()))
    where = ["--environment", guard.token_address, "--kafka-options", "kafka.toml"]
    program = str(Path(sys.executable).with_name("samza-dsl"))
    command = [program, "run", "app.py", *where, "--containers", "2"]
    how = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}}
    with subprocess.Popen(command, **how) as running:
        try:
            for turn in range(2):
                # All three processes have asked for a token, and again when connections were as old as theirs.
                wait_until(lambda turn=turn: sum(times > turn for times in asked(tmp_path).values()) >= 3)
                produce(f"{topics}-words", rows, value=String(), key=str, environment=guard.open)
            wait_until(lambda: len(counts(guard, topics)) == 120)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait() == 0
    assert sorted(counts(guard, topics)) == sorted([*range(1, 4)] * 40)
    shown = subprocess.run([program, "checkpoint", "show", topics, *where], capture_output=True, text=True, **how)
    assert shown.returncode == 0 and f"{topics}-words" in shown.stdout, shown.stderr


def asked(folder):
    """Return how often each process has asked for a token."""
    file = folder / "asked"
    return Counter(file.read_text().split() if file.exists() else ())


def counts(guard, topics):
    """Return the counts that are committed."""
    found = consume(guard.brokers, f"{topics}-counts").values()
    return [int(record.value) for records in found for record in records]


OPTIONS = {
    "mechanism": ({"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM"}, "sasl_mechanism='SCRAM'.*one of"),
    "protocol": ({"security_protocol": "TLS"}, "security_protocol='TLS'.*one of"),
    "no password": ({"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "u0"}, "sasl_plain_password="),
    "no protocol": ({"sasl_mechanism": "PLAIN"}, "SASL_SSL"),
    "no library": ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}, "pip install gssapi"),
    "no provider": (TOKEN, "sasl_oauth_token_provider= as well"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_options_that_prove_nothing_are_told_before_anything_is_asked(what, tmp_path):
    options, told = OPTIONS[what]
    with pytest.raises(SamzaError, match=told):
        counting("none").run(tmp_path, environment=KafkaCluster(f"kafka://{HOST}:1", options=options))


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (f"kafka://{HOST}:1", "Nothing answers there: look at host and port"),
        ("kafka://no-such-host.invalid:9092", "No machine is known by that name here"),
        ("kafka://[::1]:1", r"/samza-dsl-streams can't be used: ::1:1: \[Errno \d+\]"),
        (f"kafka://{HOST}", f"{HOST}:9092: .*Nothing answers there|closed"),
    ],
)
def test_an_address_that_cannot_be_reached_is_told_with_the_reason(address, told, tmp_path):
    with pytest.raises(Unavailable, match=told):
        counting("none").run(tmp_path, environment=KafkaCluster(address), until_now=True)


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_a_port_that_is_none_is_refused(port):
    for address in (f"kafka://{HOST}:{port}", f"kafka://{HOST}:9092,[::1]:{port}"):
        with pytest.raises(SamzaError, match=r"a port is a number from 1 to 65,535"):
            KafkaCluster(address)
        with pytest.raises(SamzaError, match=r"a port is a number from 1 to 65,535"):
            KafkaTopic(f"{address}/words")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(SamzaError, match="'broker:port' is no broker: write kafka://host:9092"):
        KafkaCluster("kafka://broker:port")


def test_an_option_that_other_processes_cannot_be_given_is_named(guard, tmp_path):
    options = {**TOKEN, "sasl_oauth_token_provider": lambda: token()}
    app = counting("none")
    sys.modules[__name__].app = app
    try:
        with pytest.raises(SamzaError, match=r"sasl_oauth_token_provider .*can't be given to other processes"):
            app.run(tmp_path, environment=KafkaCluster(guard.token_address, options=options), containers=2)
    finally:
        del sys.modules[__name__].app


def test_a_path_among_the_options_is_given_as_text(tmp_path):
    from runtime.containers.protocol import as_given

    cluster = KafkaCluster("kafka://broker:9092", options={"ssl_cafile": Path("ca.pem")})
    assert as_given(cluster, "it").options == {"ssl_cafile": "ca.pem"}


def test_what_a_topic_is_compressed_by_and_is_not_installed_is_told_before_anything_comes(
    guard, topics, tmp_path, monkeypatch
):
    monkeypatch.setattr("aiokafka.codec.cramjam", None)
    create(guard.brokers, f"{topics}-words", **{"compression.type": "zstd"})
    bind = {f"{topics}-words": f"{guard.open}/{topics}-words"}
    for how in ({"bind": bind}, {"environment": guard.open}):
        with pytest.raises(EnvironmentFault, match=rf"{topics}-words can't be read: .*zstd.*pip install cramjam"):
            counting(topics).run(tmp_path, until_now=True, **how)


@pytest.mark.parametrize("name", ["group_id", "transactional_id", "enable_idempotence", "bootstrap_servers", "acks"])
def test_an_option_that_the_library_sets_itself_is_refused(name):
    for make in (KafkaTopic, KafkaCluster):
        with pytest.raises(SamzaError, match=rf"'{name}' .* is set by the library itself"):
            make("kafka://broker:9092" + "/topic" * (make is KafkaTopic), options={name: "any"})
    KafkaCluster("kafka://broker:9092", options={"connections_max_idle_ms": 1_000, "retry_backoff_ms": 10})


@pytest.mark.parametrize("which", ["output", "between", "changelog"])
def test_a_topic_that_asks_for_more_replicas_than_it_has_is_told_as_the_run_begins(which, broker, topics, tmp_path):
    address, name = f"kafka://{broker.bootstrap}", {"output": "counts", "between": "by"}.get(which)
    produce(f"{topics}-words", ["x"], value=String(), key=str, environment=address)
    if name is None:
        counting(topics).run(tmp_path, environment=address, until_now=True)
        (changelog,) = [one for one in names(broker) if one.startswith(f"{topics}-count-")]
        configure(broker, changelog, **{"min.insync.replicas": "2"})
        found = changelog
    else:
        found = f"{topics}-{name}"
        create(broker, found, 1, **{"min.insync.replicas": "2"})
    began = time.monotonic()
    with pytest.raises(
        EnvironmentFault, match=rf"{found} can't be written: of 2 replicas .*min.insync.replicas.* has 1"
    ):
        counting(topics).run(tmp_path, environment=address, until_now=True)
    assert time.monotonic() - began < 40, "nobody waits for a transaction that brokers never take"
