"""The embedded log on disks and maps that are full."""

import os

import pytest

from operators.core.base import Batch
from runtime.model.errors import EnvironmentFull
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log import database as log_database
from runtime.systems.log.environment import LogEnvironment, verify
from tests.runtime.log_directory import output, write


@pytest.fixture
def written(tmp_path):
    """A closed directory with a stream of ten batches and some state."""
    return write(tmp_path)


def test_a_full_map_leaves_nothing_of_a_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(log_database, "MAP_SIZES_BYTES", (1 << 18,))
    log = LogEnvironment(tmp_path)
    log.create_stream("s", StreamConfig())
    generation = log.own("app")
    big = Append("s", 0, Batch([b"x" * 100_000]))
    with pytest.raises(EnvironmentFull, match=r"map .* is full"):
        log.commit(Commit("app", generation, [big] * 3, [StateWrites("st", 0, [(b"k", b"v")])], {}))
    assert log.offsets("s", 0).end == 0
    log.commit(Commit("app", generation, [], [StateWrites("st", 0, [(b"k", b"v")])], {}))
    assert log.state_get("app", "st", 0, b"k") == b"v"
    log.close()


def test_a_full_disk_leaves_nothing_of_a_commit(written):
    program = """
import resource
log = LogEnvironment(sys.argv[1])
generation = log.own("app")
size = os.path.getsize(os.path.join(sys.argv[1], "data.mdb"))
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, resource.RLIM_INFINITY))
number = 0
try:
    while True:
        log.commit(Commit("app", generation, [Append("s", 0, Batch([b"x" * 50_000]))], [], {}))
        number += 1
except EnvironmentFull:
    print("full")
try:
    log.read("s", 0, 0)
except EnvironmentFault:
    print("refused")
log.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log = LogEnvironment(sys.argv[1])
assert log.offsets("s", 0).end == number > 0
log.append([Append("s", 0, Batch([b"x" * 50_000]))])
print(log.offsets("s", 0).end - number)
"""
    assert output(program, written) == ["full", "refused", "1"]
    assert verify(written) == []


@pytest.mark.parametrize("lock_exists", [False, True])
def test_a_disk_that_is_full_from_the_start_is_told_and_leaves_nothing_in_the_way(written, tmp_path, lock_exists):
    program = """
import resource, shutil
lock, places = sys.argv[1], sys.argv[2]
for room in range(0, 90_000, 3_000):
    path = os.path.join(places, str(room))
    os.mkdir(path)
    if lock:
        shutil.copy(lock, path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        LogEnvironment(path).close()
        print("opened")
    except EnvironmentFull:
        print("full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log = LogEnvironment(path)
    log.create_stream("s", StreamConfig())
    log.close()
"""
    places = tmp_path / "places"
    places.mkdir()
    found = output(program, written / "lock.mdb" if lock_exists else "", places)
    assert found == sorted(found) and set(found) == {"full", "opened"}


def test_the_file_that_readers_write_into_by_memory_has_no_holes(tmp_path):
    for _ in range(2):
        log = LogEnvironment(tmp_path)
        status = (tmp_path / "lock.mdb").stat()
        assert status.st_blocks * 512 >= status.st_size > 0
        log.close()
        os.truncate(tmp_path / "lock.mdb", 4096)


def test_a_full_disk_is_told_to_who_would_own_an_application(written):
    program = """
import resource
log = LogEnvironment(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    log.own("another")
except EnvironmentFull:
    print("full")
log.close()
"""
    assert output(program, written) == ["full"]


def test_a_data_file_that_was_never_made_whole_is_made_anew(written, tmp_path):
    whole = (written / "data.mdb").read_bytes()
    for number, begun in enumerate((b"", whole[:100], whole[:4096], bytes(8192), whole[:4096] + bytes(4096))):
        path = tmp_path / f"begun-{number}"
        path.mkdir()
        (path / "data.mdb").write_bytes(begun)
        LogEnvironment(path).close()
        assert verify(path) == []
