"""A broker that lets in who it knows, by TLS and SASL: all of the library gets in, and shows no secret to anybody."""

import logging
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from runtime.model.errors import SamzaError
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, Json, KafkaCluster, KafkaTopic, String, produce
from tests.kafka.brokers import HOST, Brokers, free_ports
from tests.sample import sample

PASSWORD, KEY_PASSWORD = "not-to-be-seen-pa55", "not-to-be-seen-k3y"
LISTENERS = "SSL", "SASL_SSL", "SASL_PLAINTEXT"
KINDS = ["SSL", "SASL_SSL PLAIN", "SASL_SSL SCRAM-SHA-512", "SASL_PLAINTEXT SCRAM-SHA-512"]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(autouse=True)
def heard(caplog):
    """Hear aiokafka, which other tests of this process may have silenced."""
    caplog.set_level(logging.WARNING, "aiokafka")


@dataclass
class Secured:
    """The broker, where its listeners are, and the certificates that it and its clients have."""

    brokers: Brokers
    ports: dict[str, int]
    folder: Path
    other: trustme.CA

    def cluster(self, kind: str, **instead: Any) -> KafkaCluster:
        """Return the cluster as it is reached by a kind of listener and of proof."""
        return KafkaCluster(self.address(kind), options={**self.options(kind), **instead})

    def address(self, kind: str) -> str:
        return f"kafka://{HOST}:{self.ports[kind.partition(' ')[0]]}"

    def options(self, kind: str) -> dict[str, Any]:
        protocol, _, mechanism = kind.partition(" ")
        said = {"security_protocol": protocol}
        if "SSL" in protocol:
            said["ssl_cafile"] = str(self.folder / "ca.pem")
        if protocol == "SSL":
            said |= {"ssl_certfile": str(self.folder / "client.pem"), "ssl_keyfile": str(self.folder / "client.key")}
            said["ssl_password"] = KEY_PASSWORD
        if mechanism:
            said |= {"sasl_mechanism": mechanism, "sasl_plain_username": "ann", "sasl_plain_password": PASSWORD}
        return said


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secured")
    authority, other = trustme.CA(), trustme.CA()
    server, client = authority.issue_cert(HOST), authority.issue_cert("ann@example.org")
    (folder / "server.pem").write_bytes(pkcs8(server) + server.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    (folder / "client.key").write_bytes(pkcs8(client, KEY_PASSWORD))
    client.cert_chain_pems[0].write_to_path(folder / "client.pem")
    ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
    users = f'required username="inside" password="{PASSWORD}" user_ann="{PASSWORD}";'
    said = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        + ",".join(f"{name}:{name}" for name in LISTENERS),
    }
    for name in ("sasl_ssl", "sasl_plaintext"):
        said[f"listener.name.{name}.plain.sasl.jaas.config"] = f"{PLAIN} {users}"
        said[f"listener.name.{name}.scram-sha-512.sasl.jaas.config"] = f"{SCRAM} required;"
    brokers = Brokers(folder / "broker", said=said)
    (node,) = brokers.nodes
    outside = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    node.said["listeners"] = f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port},{outside}"
    node.said["advertised.listeners"] = f"PLAINTEXT://{HOST}:{node.port},{outside}"
    try:
        brokers.start()
        words = f"SCRAM-SHA-512=[password={PASSWORD}]"
        brokers.tell("--add-config", words, "--entity-type", "users", "--entity-name", "ann")
        yield Secured(brokers, ports, folder, other)
    finally:
        brokers.stop()


def pkcs8(certificate: trustme.LeafCert, password: str | None = None) -> bytes:
    """Return a private key in the only form that Kafka reads."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    locked = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)


def counting(name: str) -> App:
    app = App(name)
    words = app.input(f"{name}-words", value=String(), key=str)
    words.scan(lambda total, word: (total or 0) + 1, op_id="count").send_to(
        app.output(f"{name}-counts", value=Json(int), partitions=1)
    )
    return app


@pytest.mark.parametrize("kind", KINDS)
def test_an_application_runs_wholly_on_such_a_cluster_and_with_a_topic_of_it(kind, secured, topics, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    cluster = secured.cluster(kind)
    produce(f"{topics}-words", ["x", "y", "x"], value=String(), key=str, environment=cluster)
    run = counting(topics).run(tmp_path, environment=cluster, until_now=True)
    assert sorted(run.received(f"{topics}-counts")) == [1, 1, 2]
    words = KafkaTopic(f"{secured.address(kind)}/{topics}-words", options=secured.options(kind))
    bound = counting("bound")
    counted = bound.run(tmp_path / "log", bind={"bound-words": words}, until_now=True)
    assert sorted(counted.received("bound-counts")) == [1, 1, 2]
    assert not is_shown(caplog.text, repr(cluster), repr(words), repr(run), repr(vars(run)["_where"]))


def is_shown(*told: str) -> bool:
    """Whether any secret is in what was told."""
    return any(secret in one for one in told for secret in (PASSWORD, KEY_PASSWORD))


def toml(options: dict[str, Any]) -> str:
    return "".join(f'{name} = "{value}"\n' for name, value in options.items())


@pytest.mark.parametrize("kind", sample(["SASL_SSL SCRAM-SHA-512", "SSL"], ci=2))
def test_so_do_containers_and_commands_which_show_no_secret(kind, secured, topics, tmp_path):
    cluster = secured.cluster(kind)
    rows = [f"w{number % 7}" for number in range(100)]
    produce(f"{topics}-words", rows, value=String(), key=str, environment=cluster, partitions=2)
    (tmp_path / "kafka.toml").write_text(toml(secured.options(kind)))
    (tmp_path / "app.py").write_text(
        "from samza_dsl import App, Json, String\n"
        f"app = App('{topics}')\n"
        f"words = app.input('{topics}-words', value=String(), key=str)\n"
        "counts = words.scan(lambda n, word: (n or 0) + 1, op_id='count')\n"
        f"counts.send_to(app.output('{topics}-counts', value=Json(int)))\n"
    )
    where = ["--environment", cluster.address, "--kafka-options", "kafka.toml"]
    program = str(Path(sys.executable).with_name("samza-dsl"))
    told = []
    for words in (
        ["run", "app.py", "--until-now", "--containers", "2"],
        ["job", "show", topics, "--json"],
        ["checkpoint", "show", topics],
        ["streams", "list"],
    ):
        said = subprocess.run([program, *words, *where], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert said.returncode == 0, said.stderr
        told.append(said.stdout + said.stderr)
    with closing(KafkaEnvironment(cluster, tmp_path / "reader")) as environment:
        assert sum(one.end for one in environment.ranges()[f"{topics}-counts"]) >= len(rows)
    assert not is_shown(*told)
    assert f"{topics}-counts" in told[-1]
    logs = [*(secured.brokers.directory / "1" / "logs").glob(f"{topics}*/*.log")]
    assert logs and not [path for path in logs if PASSWORD.encode() in path.read_bytes()]
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "kafka.toml"]
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


WRONG = {
    "password": ("SASL_SSL PLAIN", {"sasl_plain_password": f"{PASSWORD}-wrong"}, "Invalid username or password"),
    "scram password": (
        "SASL_SSL SCRAM-SHA-512",
        {"sasl_plain_password": f"{PASSWORD}-wrong"},
        "SaslAuthenticationFailed: .*invalid credentials",
    ),
    "user": ("SASL_PLAINTEXT SCRAM-SHA-512", {"sasl_plain_username": "bob"}, "invalid credentials"),
    "authority": ("SASL_SSL PLAIN", {"ssl_cafile": "other.pem"}, "certificate verify failed"),
    "no certificate": ("SSL", {"ssl_certfile": None, "ssl_keyfile": None}, "closed"),
    "protocol": ("SASL_SSL PLAIN", {"security_protocol": "SASL_PLAINTEXT"}, "closed"),
    "no file": ("SASL_SSL PLAIN", {"ssl_cafile": "nowhere.pem"}, r"ssl_cafile=.*nowhere.pem: .* can't be used for TLS"),
    "no authority": (
        "SASL_SSL PLAIN",
        {"ssl_cafile": "client.key"},
        r"ssl_cafile=.*client.key: .* can't be used for TLS",
    ),
}
"""What is wrong of the options by which a listener is reached, and what is told."""


@pytest.mark.parametrize("what", WRONG)
def test_who_is_not_let_in_is_told_why_at_once(what, secured, topics, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    kind, instead, told = WRONG[what]
    options = {**secured.options(kind), **instead}
    options["ssl_cafile"] = str(secured.folder / options.get("ssl_cafile", ""))
    options = {name: value for name, value in options.items() if value is not None}
    if kind.startswith("SASL_PLAINTEXT"):
        del options["ssl_cafile"]
    address = secured.address(kind)
    with pytest.raises(SamzaError, match=told) as whole:
        counting(topics).run(tmp_path, environment=KafkaCluster(address, options=options), until_now=True)
    bind = {f"{topics}-words": KafkaTopic(f"{address}/{topics}-words", options=options)}
    with pytest.raises(SamzaError, match=told) as bound:
        counting(topics).run(tmp_path / "log", bind=bind, until_now=True)
    for error in (whole.value, bound.value):
        assert not is_shown(f"{error!r} {error.__cause__!r}")
    assert not is_shown(caplog.text)
