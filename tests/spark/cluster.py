"""A cluster of Spark on this machine: a master, and workers that share no directory with the driver but one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from runtime.spark.java import found
from tests.source import ROOT
from tests.spark.classes import class_path, options

WORKERS = ("127.0.0.2", "127.0.0.3")
"""Where each is: Spark tries a task at the same time again only where another worker is on another host."""
STARTS_WITHIN_S = 300

ALONE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
number=0
for kept in "$@"; do
    number=$((number + 1))
    mkdir /mnt/$number && mount --bind "$kept" /mnt/$number
done
mount -t tmpfs tmpfs /tmp
number=0
for kept in "$@"; do
    number=$((number + 1))
    mkdir -p "$kept" && mount --move /mnt/$number "$kept"
done
mkdir /tmp/work
cd /tmp/work
exec {command}
"""
"""Sees a /tmp of its own, but for what is named: the driver's other files are there no more."""


def bare_python(place: Path) -> Path:
    """Return a Python that has all that we need but ourselves, as machines have that were made for something else."""
    venv.create(place / "bare", with_pip=False)
    (packages,) = (place / "bare").glob("lib/python*/site-packages")
    (here,) = {path for path in sys.path if path.endswith("site-packages")}
    (packages / "rest.pth").write_text(here)
    bare = place / "bare" / "bin" / "python"
    lacking = subprocess.run([bare, "-I", "-c", "import samza_dsl"], cwd=place, capture_output=True, text=True)
    assert "No module named 'samza_dsl'" in lacking.stderr
    return bare


@contextmanager
def cluster(shared: Path, logs: Path) -> Iterator[str]:
    """Run a master and workers of one core each, which see `shared` and no other file of a test; yield its address."""
    with found():
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        kept = [str(shared), str(ROOT), sys.prefix, *([home] if home else [])]
        command = [java, "-cp", class_path(Path(pyspark.__file__).parent), "-Xmx512m", *options().split()]
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        running = []
        try:
            running.append(_started([*command, *master], logs / "master.log"))
            address = _told(logs / "master.log", running[0], r"Starting Spark master at (spark://\S+)")
            for number, host in enumerate(WORKERS):
                worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0"]
                worker += ["--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work", address]
                alone = ALONE.format(command=" ".join(f"'{word}'" for word in [*command, *worker]))
                unshared = ["unshare", "--mount", "sh", "-c", alone, "sh", *dict.fromkeys(kept)]
                running.append(_started(unshared, logs / f"worker-{number}.log"))
                _told(logs / f"worker-{number}.log", running[-1], r"Successfully (registered) with master")
            yield address
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(300)


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    home = str(Path(pyspark.__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "SPARK_HOME": home,
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_DIRS": "/tmp",
    }
    with log.open("wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)


def _told(log: Path, process: subprocess.Popen[bytes], words: str) -> str:
    """Return what a process says in its log when it is up."""
    until = time.monotonic() + STARTS_WITHIN_S
    while (said := re.search(words, log.read_text())) is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None and time.monotonic() < until, log.read_text()
    return said[1]
