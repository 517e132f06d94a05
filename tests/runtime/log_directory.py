"""Data directories for tests, and programs that use them in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from operators.core.base import Batch
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, Control, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.log.journal import Journals

ROOT = Path(__file__).parents[2]


def start(program, *arguments):
    """Run a program in a Python of its own, with the environment's names imported."""
    names = (
        "import os, sys\n"
        "from operators.core.base import Batch\n"
        "from runtime.model.errors import *\n"
        "from runtime.ports.commits import *\n"
        "from runtime.ports.state import *\n"
        "from runtime.ports.streams import *\n"
        "from runtime.systems.log.environment import LogEnvironment\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", names + program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output(program, *arguments):
    """Return what a program prints; it must end well."""
    process = start(program, *arguments)
    printed, _ = process.communicate()
    assert process.returncode == 0
    return printed.split()


def write(path):
    """Make a directory with a stream of ten batches, a store whose entries are merged, and another with a journal."""
    log = merging(path)
    log.create_stream("s", StreamConfig(partitions=2))
    generation = log.own("app")
    for number in range(10):
        batch = Batch([b"value-%03d" % number * 30], [b"key"])
        state = StateWrites("st", 0, [(b"k%d" % number, b"state-%03d" % number * 30)])
        log.commit(Commit("app", generation, [Append("s", 1, batch, Control("p", number))], [state], {}))
    log._database.journals = Journals(log._database)
    for number in range(3):
        state = StateWrites("newer", 0, [(b"k%d" % number, b"newer-%03d" % number * 30), (b"k9", None)])
        log.commit(Commit("app", generation, [], [state], {}))
    log.close()
    return path


def merging(path):
    """Open a log that merges what changed in state at each commit."""
    log = LogEnvironment(path)
    log._database.journals = Journals(log._database, most_records=0)
    return log


def flip(path, pattern):
    """Change the lowest bit of the first byte of every copy of `pattern` in the data file."""
    data = bytearray((path / "data.mdb").read_bytes())
    assert pattern in data
    place = -1
    while (place := data.find(pattern, place + 1)) >= 0:
        data[place] ^= 1
    (path / "data.mdb").write_bytes(data)
