"""A process may have hundreds of data directories open; what it runs out of is said, with what to do."""

import re
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log import database
from runtime.systems.log.environment import LogEnvironment
from tests.source import ROOT

PROGRAM = """
import resource, sys
from pathlib import Path
from runtime.systems.log.environment import LogEnvironment

limit, room = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(limit, (room, room))
opened = []
try:
    for number in range(1_000):
        opened.append(LogEnvironment(Path(f"{number}")))
except Exception as error:
    print(len(opened), error)
finally:
    for one in opened:
        one.close()
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("limit", "room", "told"),
    [
        ("RLIMIT_NOFILE", 100, "no file descriptors left for one more: close what is done with .*`ulimit -n`"),
        ("RLIMIT_AS", 16 << 30, "no address space left for one more: close what is done with .*`ulimit -v`"),
    ],
)
def test_what_a_process_has_no_more_of_is_said_with_what_to_do(tmp_path, limit, room, told):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, limit, str(room)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    number, _, error = ran.stdout.partition(" ")
    assert int(number) > 1
    assert f"This process has {number} other data directories open, and " in error
    assert re.search(told, error), error


def sizes(folder, number):
    """Return the bytes of the maps of so many environments that are open at once, each with a record."""
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(LogEnvironment(folder / f"{one}"))) for one in range(number)]
        for one in opened:
            if "numbers" not in one.streams():
                one.create_stream("numbers", StreamConfig())
            one.append([Append("numbers", 0, Batch([b"1"]))])
        return [one._database.env.info()["map_size"] for one in opened]


def test_where_many_are_open_others_take_less_of_the_addresses_and_never_less_than_they_have_need_of(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(database, "_shared", {})
    monkeypatch.setattr(database, "MAPS_OF_A_SIZE", 2)
    largest, second, third, *_ = database.MAP_SIZES_BYTES
    assert sizes(tmp_path, 5) == [largest, largest, second, second, third]
    assert sum(size * 64 for size in database.MAP_SIZES_BYTES) < 1 << 47, "all fit into what a process can address"
