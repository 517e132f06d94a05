"""Makes an environment of its own for each peer, once, and runs a program in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import Peer

ROOT = Path(__file__).parents[2]
OUR_OWN = ("msgspec", "networkx", "lmdb")
"""What the hand loops and the measuring need; none of them needs anything else."""
INSTALL_SECONDS = 1_800
LONGEST_REASON = 300
OTHER_LOGGERS = ("slf4j-log4j12*", "log4j-slf4j-impl*", "log4j-1.2.17.jar")
MARKS = ("ERROR: ", "[ERROR] ")
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Differs)\b")


class Unavailable(Exception):
    """A peer can't be had, or a case of it can't be run; the message says why, in one line."""


def cache() -> Path:
    """Return where the environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samza-dsl" / "peers"


def ready(peer: Peer) -> Path:
    """Return the Python of the peer's environment, which is made where there is none; raises Unavailable."""
    for program in peer.programs:
        if shutil.which(program) is None:
            raise Unavailable(f"it needs {program}, which is not here")
    sources = Path(__file__).parent / peer.sources
    own = [file.read_text() for file in sorted(sources.iterdir())] if peer.sources else []
    packages = [*peer.requirements, *(f"{name}=={version(name)}" for name in OUR_OWN)]
    wanted = "\n".join((*packages, *own))
    place = cache() / f"{peer.name}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python, stamp = place / "bin" / "python", place / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    output([sys.executable, "-m", "venv", str(place)], INSTALL_SECONDS)
    output([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], INSTALL_SECONDS)
    if peer.sources:
        compile_java(sources, place)
    stamp.write_text(wanted)
    return python


def compile_java(sources: Path, place: Path) -> None:
    """Fetch what a pom names, and compile the sources beside it."""
    jars = place / "jars"
    fetch = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    output(["mvn", "-B", "-ntp", "-q", "-f", str(sources / "pom.xml"), *fetch], INSTALL_SECONDS)
    for pattern in OTHER_LOGGERS:
        for jar in jars.glob(pattern):
            jar.unlink()
    files = map(str, sources.glob("*.java"))
    output(["javac", "-nowarn", "-d", str(place / "classes"), "-cp", f"{jars}/*", *files], INSTALL_SECONDS)


def output(command: list[str], seconds: float) -> str:
    """Return what a program printed; one that fails or takes too long is ended, with all that it started."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            shown, errors = process.communicate("", timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"it took longer than {seconds:,.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise Unavailable(reason(errors) or reason(shown) or f"exit status {process.returncode}")
    return shown


def reason(errors: str) -> str:
    """Return the line of a program's errors that says most: pip's or Maven's first, the last exception, or the last."""
    told = [line.strip() for line in errors.splitlines() if line.strip()]
    marked = [line.removeprefix(mark) for line in told for mark in MARKS if line.startswith(mark)]
    raised = [line.removeprefix("benchmarks.measure.Differs: ") for line in told if EXCEPTION.match(line)]
    return (marked[:1] or raised[-1:] or told[-1:] or [""])[0][:LONGEST_REASON]
