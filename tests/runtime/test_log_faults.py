"""The embedded log under kills, damage, full disks and other processes."""

import errno
import os
import random
import shutil

import pytest

from operators.core.base import Batch
from runtime.model.errors import Damaged, EnvironmentFault, Owned
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append
from runtime.systems.host import locks as log_locks
from runtime.systems.log import database as log_database
from runtime.systems.log.environment import LogEnvironment, verify
from runtime.systems.log.recovery import structure
from tests.runtime.log_directory import flip, merging, output, start, write
from tests.scale import examples


def killed(path, program="log.commit(Commit('app', log.own('app'), [], [], {}))"):
    """Leave a directory as a process that was killed while it had it open."""
    process = start(
        f"log = LogEnvironment(sys.argv[1])\n{program}\nprint('ready', flush=True)\nsys.stdin.read()\n",
        path,
    )
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()


@pytest.fixture
def written(tmp_path):
    """A closed directory with a stream of ten batches and some state."""
    return write(tmp_path)


# The codec


def contents(path):
    """All that can be read from a directory as `written` makes it."""
    log = LogEnvironment(path)
    try:
        reads = [tuple(log.read("s", 1, offset)) for offset in range(10)]
        state = [list(log.state_range("app", store, 0)) for store in ("st", "newer")]
        return reads, log.offsets("s", 1), state, log.state_stats("app"), log.checkpoints("app"), log.streams()
    finally:
        log.close()


def test_no_flipped_bit_goes_unnoticed(written):
    expected = contents(written)
    data = (written / "data.mdb").read_bytes()
    randomness = random.Random(5)
    noticed = 0
    for number in range(examples(600, 100_000)):
        changed = bytearray(data)
        # Every fourth is where the first two pages say which state is the newest.
        place = (
            randomness.randrange(len(data)) if number % 4 else randomness.choice([0, 4096]) + randomness.randrange(160)
        )
        changed[place] ^= 1 << randomness.randrange(8)
        (written / "data.mdb").write_bytes(changed)
        if verify(written):
            noticed += 1
        else:
            assert contents(written) == expected
    assert noticed > 20


@pytest.mark.parametrize(
    ("place", "length"), [(144, 8), (44, 2), (92, 2)], ids=["transaction", "flags of free pages", "flags of tables"]
)
def test_no_changed_bit_of_what_lmdb_goes_by_goes_unnoticed(written, place, length):
    data = (written / "data.mdb").read_bytes()
    program = "from runtime.systems.log.environment import verify\nprint(verify(sys.argv[1]) != [])"
    for page in (0, 4096):
        for bit in range(length * 8):
            changed = bytearray(data)
            changed[page + place + bit // 8] ^= 1 << bit % 8
            (written / "data.mdb").write_bytes(changed)
            if structure(written) == []:  # then LMDB opens it, and may end the process
                assert output(program, written) == ["True"], f"bit {bit} at {place} of page {page}"


def test_a_damaged_batch_is_refused_where_it_is(written):
    flip(written, b"value-007")
    log = LogEnvironment(written)
    assert log.read("s", 1, 6) is not None
    with pytest.raises(Damaged, match="Stream 's', partition 1: the batch up to offset 7 is not what was written"):
        log.read("s", 1, 7)
    log.close()
    assert verify(written) == ["stream 's', partition 1: the batch up to offset 7: its checksum does not match"]


def test_damaged_state_is_refused_where_it_is(written):
    flip(written, b"state-003")
    log = LogEnvironment(written)
    assert log.state_get("app", "st", 0, b"k2")
    with pytest.raises(Damaged, match=r"application 'app', store 'st', task 0, at or after key b'k3'"):
        log.state_get("app", "st", 0, b"k3")
    with pytest.raises(Damaged, match="store 'st'"):
        list(log.state_range("app", "st", 0))
    log.close()
    assert len(verify(written)) == 1


def test_a_table_that_is_gone_is_not_made_anew(written):
    flip(written, b"checkpoints")
    with pytest.raises(Damaged, match="tables"):
        LogEnvironment(written)
    assert verify(written) != []


def test_a_sound_directory_has_no_findings(written):
    assert verify(written) == []
    log = LogEnvironment(written)
    assert verify(written) == []
    log.close()
    with pytest.raises(EnvironmentFault, match="no data directory"):
        verify(written / "nosuch")


def test_missing_batches_are_found(written):
    log = LogEnvironment(written)
    with log._database.writing() as transaction:
        cursor = transaction.cursor(log._database.log)
        cursor.first()
        cursor.next()
        cursor.delete()
    log.close()
    assert verify(written)[0] == "stream 's', partition 1: after offset 1 comes the batch from 2 to 2"


def test_missing_and_outdated_entries_of_state_are_found(written):
    log = merging(written)
    place, outdated = b"", b""
    with log._database.reading() as transaction:
        for view, record in transaction.cursor(log._database.state):
            place, outdated = bytes(view), bytes(record)
    log.commit(Commit("app", log.own("app"), [], [StateWrites("st", 0, [(b"k9", b"newer")])], {}))
    assert verify(written) == []
    with log._database.writing() as transaction:
        transaction.put(place, outdated, db=log._database.state)
    assert verify(written) == ["state of 'app', store 'st', task 0: its entries are not those of the last commit"]
    with log._database.writing() as transaction:
        transaction.delete(place, db=log._database.state)
    log.close()
    assert verify(written) == ["state of 'app', store 'st', task 0: 9 entries, not 10"]


def test_a_truncated_file_is_refused_and_kills_nobody(written):
    size = (written / "data.mdb").stat().st_size
    program = """
for size in map(int, sys.argv[2:]):
    os.truncate(os.path.join(sys.argv[1], "data.mdb"), size)
    try:
        log = LogEnvironment(sys.argv[1])
        print(sum(len(log.read("s", 1, offset).batch) for offset in range(10)))
        log.close()
    except Damaged:
        print("Damaged")
"""
    sizes = [size - size * part // 20 for part in range(20)] + [8192, 5000, 4096, 100, 10, 0]
    found = output(program, written, *sizes)
    whole = found.count("10")  # At its end the file may have pages that are free.
    assert whole < 8
    assert found == ["10"] * whole + ["Damaged"] * (len(sizes) - whole)


def test_a_file_that_is_gone_is_not_made_anew(written):
    (written / "data.mdb").unlink()
    with pytest.raises(Damaged, match="gone or empty"):
        LogEnvironment(written)


def test_another_format_is_refused(written):
    (written / "format").write_text("samza-dsl log 99\n")
    with pytest.raises(EnvironmentFault, match="format"):
        LogEnvironment(written)


def test_a_kill_in_the_same_boot_needs_no_verification(written, monkeypatch):
    killed(written)
    assert len(list((written / "users").iterdir())) == 1
    monkeypatch.setattr(log_database.Database, "verify", None)
    log = LogEnvironment(written)
    assert len(list((written / "users").iterdir())) == 1
    log.close()
    assert list((written / "users").iterdir()) == []


def test_kills_lose_and_double_nothing(tmp_path):
    program = """
log = LogEnvironment(sys.argv[1])
generation = log.own("app")
log.create_stream("s", StreamConfig())
while True:
    number = log.offsets("s", 0).end
    state = StateWrites("st", 0, [(b"count", b"%d" % (number + 1)), (b"k%d" % (number % 10), b"x" * 3_000)])
    log.commit(Commit("app", generation, [Append("s", 0, Batch([b"%d" % number * 900]))], [state], {}))
    print(number + 1, flush=True)
"""
    for kill in range(examples(10, 2_000)):
        process = start(program, tmp_path)
        acknowledged = [int(process.stdout.readline()) for _ in range(1 + 7 * kill % 20)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
        process.communicate()
        log = LogEnvironment(tmp_path)
        end = log.offsets("s", 0).end
        assert acknowledged[-1] <= end <= acknowledged[-1] + 1
        assert log.state_get("app", "st", 0, b"count") == b"%d" % end
        assert [log.read("s", 0, offset).batch.values for offset in range(end)] == [
            [b"%d" % offset * 900] for offset in range(end)
        ]
        log.close()
    assert verify(tmp_path) == []


@pytest.mark.parametrize("boot_id", [b"another boot", b""], ids=["another boot", "no boot id"])
def test_after_a_reboot_all_is_verified(written, monkeypatch, boot_id):
    killed(written)
    monkeypatch.setattr(log_locks, "boot_id", lambda: boot_id)
    flip(written, b"value-007")
    for _ in range(2):
        with pytest.raises(Damaged, match="the batch up to offset 7: its checksum"):
            LogEnvironment(written)
    flip(written, b"walue-007")
    LogEnvironment(written).close()
    assert list((written / "users").iterdir()) == []


def test_after_an_error_of_lmdb_all_is_refused_until_it_is_verified(written):
    log, other = LogEnvironment(written), LogEnvironment(written)
    with pytest.raises(Damaged, match="go on from the checkpoint"), log._database.writing() as transaction:
        transaction.put(b"", b"LMDB refuses an empty key")
    for refused in (lambda: log.read("s", 1, 0), lambda: other.own("app"), lambda: LogEnvironment(written)):
        with pytest.raises(EnvironmentFault, match="failed before"):
            refused()
    log.close()
    other.close()
    flip(written, b"value-007")
    with pytest.raises(Damaged, match="the batch up to offset 7: its checksum"):
        LogEnvironment(written)


def test_an_error_is_told_where_the_disk_does_not_answer_at_all(written, monkeypatch):
    def gone(path):
        raise OSError(errno.EIO, "Input/output error")

    log = LogEnvironment(written)
    monkeypatch.setattr(os, "statvfs", gone)
    with pytest.raises(Damaged, match="go on from the checkpoint"), log._database.writing() as transaction:
        transaction.put(b"", b"LMDB refuses an empty key")
    log.close()


def test_a_closed_environment_refuses_everything(written):
    log = LogEnvironment(written)
    log.close()
    log.close()
    for refused in (log.streams, log.version, lambda: log.own("app"), lambda: log.compact("s")):
        with pytest.raises(EnvironmentFault, match="is closed"):
            refused()


# Several processes


def test_an_application_has_one_owner(written):
    program = "log = LogEnvironment(sys.argv[1])\nprint(log.own('app'), flush=True)\nsys.stdin.read()"
    process = start(program, written)
    assert process.stdout.readline() == "2\n"
    log = LogEnvironment(written)
    with pytest.raises(Owned, match=f"Process {process.pid} runs application 'app'"):
        log.own("app")
    assert log.own("another") == 1
    process.kill()
    process.communicate()
    assert log.own("app") == 3
    second = LogEnvironment(written)
    with pytest.raises(Owned, match=f"Process {os.getpid()} runs"):
        second.own("app")
    log.close()
    assert second.own("app") == 4
    second.close()


def test_a_reader_in_another_process_sees_commits(written):
    program = """
log = LogEnvironment(sys.argv[1])
for line in sys.stdin:
    print(log.version(), len(log.read("s", 0, int(line)).batch), flush=True)
"""
    log = LogEnvironment(written)
    process = start(program, written)
    for number in range(5):
        log.append([Append("s", 0, Batch([b"x"] * (number + 1)))])
        process.stdin.write(f"{log.offsets('s', 0).end - number - 1}\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == [str(log.version()), str(number + 1)]
    process.communicate()
    assert process.returncode == 0
    log.close()


def test_a_version_is_not_told_before_what_it_brings_can_be_read(written, tmp_path_factory):
    # A commit of another process is in the file before readers may see it, for as long as the disk takes to sync.
    ahead = tmp_path_factory.mktemp("ahead")
    shutil.copytree(written, ahead, dirs_exist_ok=True)
    log = LogEnvironment(written)
    version, end = log.version(), log.offsets("s", 0).end
    other = LogEnvironment(ahead)
    while other.version() <= version:
        other.append([Append("s", 0, Batch([b"x"]))])
    other.close()
    with (written / "data.mdb").open("r+b") as data:
        data.write((ahead / "data.mdb").read_bytes())
    assert (log.version(), log.offsets("s", 0).end) == (version, end)
    log.close()


def test_producers_in_several_processes_append_side_by_side(written):
    program = """
log = LogEnvironment(sys.argv[1])
for number in range(20):
    log.append([Append("s", 0, Batch([b"%d" % number], keys=[sys.argv[2].encode()]))])
log.close()
"""
    producers = [start(program, written, name) for name in ("a", "b")]
    for producer in producers:
        producer.communicate()
        assert producer.returncode == 0
    log = LogEnvironment(written)
    rows = [log.read("s", 0, offset).batch for offset in range(40)]
    for name in (b"a", b"b"):
        assert [row.values[0] for row in rows if row.keys == [name]] == [b"%d" % number for number in range(20)]
    log.close()
    assert verify(written) == []


def test_a_forked_child_is_refused_and_harms_nobody(written):
    program = """
log = LogEnvironment(sys.argv[1])
log.own("app")
child = os.fork()
if not child:
    for refused in (lambda: log.read("s", 1, 0), lambda: LogEnvironment(sys.argv[1])):
        try:
            refused()
        except EnvironmentFault as error:
            print("start a new process" in str(error))
    log.close()
    sys.exit()
os.waitpid(child, 0)
log.commit(Commit("app", 2, [Append("s", 0, Batch([b"parent"]))], [], {}))
print(log.read("s", 0, 0).batch.values)
log.close()
"""
    assert output(program, written) == ["True", "True", "[b'parent']"]


def test_a_forked_child_leaves_alone_what_is_being_read(written):
    program = """
log = LogEnvironment(sys.argv[1])
generation = log.own("app")
log.commit(Commit("app", generation, [], [StateWrites("st", 0, [(b"k", b"old")])], {}))
reader = log.state_reader("app", "st", 0)
print(reader.get(b"k"))
if not (child := os.fork()):
    try:
        log.state_reader("app", "st", 0).get(b"k")
    except EnvironmentFault as error:
        print("start a new process" in str(error))
    reader.release()
    sys.exit()
os.waitpid(child, 0)
print(log._database.env.readers().count("\\n"))
for number in range(20):
    items = [(b"%d" % number, b"x" * 4_000), (b"k", b"new")]
    log.commit(Commit("app", generation, [], [StateWrites("st", 0, items)], {}))
print(reader.get(b"k"))
reader.release()
print(reader.get(b"k"))
reader.release()
log.close()
"""
    assert output(program, written) == ["b'old'", "True", "2", "b'old'", "b'new'"]


def test_a_directory_that_can_not_be_made_is_a_fault(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "data" / "data.mdb").mkdir(parents=True)
    for path in (tmp_path / "file", tmp_path / "data"):
        with pytest.raises(EnvironmentFault, match="can't"):
            LogEnvironment(path)


def test_the_directory_is_only_for_its_owner(tmp_path):
    LogEnvironment(tmp_path / "a" / "data").close()
    assert (tmp_path / "a" / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "data" / "data.mdb").stat().st_mode & 0o077 == 0


def test_one_process_opens_a_directory_in_one_way(written):
    log = LogEnvironment(written)
    with pytest.raises(EnvironmentFault, match="sync=True"):
        LogEnvironment(written, sync=False)
    log.close()
    LogEnvironment(written, sync=False).close()
