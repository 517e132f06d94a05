"""Backups: as of one commit while others write, with little for what has not changed, and whole whatever happens."""

import errno
import os
import signal
import tarfile
import threading
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import Damaged, EnvironmentFault, EnvironmentFull
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log import backup
from runtime.systems.log.backup import BackupError, back_up, backups, restore, verify_backups
from runtime.systems.log.database import verify
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App, Options, total, tumbling
from tests.faults.processes import child
from tests.scale import examples

HERE = Path(__file__).parent
PIECES = 6


def commit(log, generation, number, copies=20):
    """Commit a record, and its number as the state: they agree in every committed state."""
    value = b"%08d" % number * copies
    state = StateWrites("newest", 0, [(b"number", b"%d" % number), (b"k%d" % (number % 50), value)])
    log.commit(Commit("app", generation, [Append("s", 0, Batch([value]))], [state], {}))


def filled(path, commits, copies=20):
    log = LogEnvironment(path)
    log.create_stream("s", StreamConfig())
    generation = log.own("app")
    for number in range(1, commits + 1):
        commit(log, generation, number, copies)
    return log, generation


def number_in(path):
    """Return how many commits a data directory has; its stream and state must tell the same."""
    assert verify(path) == []
    log = LogEnvironment(path)
    try:
        end = log.offsets("s", 0).end
        assert log.state_get("app", "newest", 0, b"number") == b"%d" % end
        return end
    finally:
        log.close()


def spending():
    app = App("spending", Options(commit_interval_ms=1))
    numbers = app.input("numbers", value=int, key=int, timestamp=lambda number: number * 1_000)
    keyed = numbers.partition_by(lambda number: number % 3, partitions=2, op_id="by-rest")
    keyed.scan(lambda state, number: state + number, init=int, op_id="sums").send_to(app.output("sums", value=int))
    keyed.window(tumbling(seconds=5), total(lambda number: number), op_id="totals").send_to(app.output("totals"))
    return app


def produce(path, numbers):
    log = LogEnvironment(path)
    log.create_stream("numbers", StreamConfig())
    log.append([Append("numbers", 0, Batch([b"%d" % number for number in numbers]))])
    log.close()


def outputs(path):
    log = LogEnvironment(path)
    try:
        found = {}
        for stream in ("sums", "totals"):
            rows = []
            for partition in range(log.streams()[stream].partitions):
                offset = 0
                while (read := log.read(stream, partition, offset)) is not None:
                    rows += zip(read.batch.keys, read.batch.values, strict=True)
                    offset = read.next_offset
            found[stream] = sorted(rows)
        return found
    finally:
        log.close()


@given(
    pieces=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted), min_size=2, max_size=PIECES),
    data=st.data(),
)
@settings(max_examples=examples(12, 240), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_to_restore_at_any_moment_and_run_on_is_to_run_undisturbed(tmp_path_factory, pieces, data):
    folder = tmp_path_factory.mktemp("law")
    for number, piece in enumerate(pieces, 1):
        produce(folder / "log", piece)
        spending().run(folder / "log", until_now=True)
        assert back_up(folder / "log", folder / "backups").number == number
    moment = data.draw(st.integers(1, len(pieces)))
    restore(folder / "backups", folder / "restored", moment)
    for piece in pieces[moment:]:
        produce(folder / "restored", piece)
        spending().run(folder / "restored", until_now=True)
    undisturbed = outputs(folder / "log")
    assert len(undisturbed["sums"]) == sum(map(len, pieces))
    assert outputs(folder / "restored") == undisturbed


def test_every_backup_is_as_of_one_commit_while_others_write(tmp_path):
    log, generation = filled(tmp_path / "log", 200)
    stop, numbers = threading.Event(), count(201)

    def write():
        while not stop.is_set():
            commit(log, generation, next(numbers))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            back_up(tmp_path / "log", tmp_path / "backups")
    finally:
        stop.set()
        writer.join()
        log.close()
    found = []
    for one in backups(tmp_path / "backups"):
        restore(tmp_path / "backups", tmp_path / f"restored-{one.number}", one.number)
        found.append(number_in(tmp_path / f"restored-{one.number}"))
    assert found == sorted(found) and 200 <= found[0] < found[-1]


def test_only_what_has_changed_is_written(tmp_path):
    log, generation = filled(tmp_path / "log", 500, copies=2_000)
    first = back_up(tmp_path / "log", tmp_path / "backups")
    again = back_up(tmp_path / "log", tmp_path / "backups")
    commit(log, generation, 501)
    more = back_up(tmp_path / "log", tmp_path / "backups")
    log.close()
    assert first.data_bytes > 1 << 20 and first.new_bytes >= first.data_bytes // 2
    # What opening and closing note is in the two meta pages alone.
    assert again.new_bytes <= backup.CHUNK_BYTES
    assert more.new_bytes <= first.data_bytes // 10
    restore(tmp_path / "backups", tmp_path / "restored")
    assert number_in(tmp_path / "restored") == 501


def scattered(log, generation, numbers):
    """Commit an entry for each number; 400 of them lie on a page of their own each, in no order."""
    entries = [(b"%08x" % (number * 2_654_435_761 % (1 << 32)), os.urandom(1_500)) for number in numbers]
    log.commit(Commit("app", generation, [], [StateWrites("wide", 0, entries)], {}))


def test_a_change_that_is_scattered_writes_its_pages_and_not_their_neighbours(tmp_path):
    log, generation = filled(tmp_path / "log", 1)
    scattered(log, generation, range(4_000))
    first = back_up(tmp_path / "log", tmp_path / "backups")
    scattered(log, generation, range(0, 4_000, 100))
    more = back_up(tmp_path / "log", tmp_path / "backups")
    log.close()
    assert first.data_bytes > 4 << 20
    # Forty leaves, their branches and meta pages, and what a commit frees: in chunks it would be 40 of them at least.
    assert more.new_bytes < 40 * backup.CHUNK_BYTES // 2
    restore(tmp_path / "backups", tmp_path / "restored")
    assert verify(tmp_path / "restored") == []


@given(
    rounds=st.lists(st.lists(st.integers(0, 399), max_size=12), min_size=1, max_size=25),
    keep=st.one_of(st.none(), st.integers(1, 4)),
    most_packs=st.integers(1, 5),
)
@settings(max_examples=examples(10, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_changed_each_backup_that_stays_is_the_file_of_its_commit(tmp_path_factory, rounds, keep, most_packs):
    folder = tmp_path_factory.mktemp("pages")
    target = folder / "backups"
    log, generation = filled(folder / "log", 1)
    scattered(log, generation, range(400))
    files = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backup, "MOST_PACKS", most_packs)
        patched.setattr(backup, "_MOST_OPEN", 1)
        for numbers in rounds:
            scattered(log, generation, numbers)
            made = back_up(folder / "log", target, keep)
            files[made.number] = b"".join(backup._snapshot(folder / "log"))
        log.close()
        assert [one.number for one in backups(target)] == sorted(files)[-(keep or len(files)) :]
        for one in backups(target):
            assert b"".join(backup._verified(target, backup._list_of(target, one.number))) == files[one.number]
    newest = backup._list_of(target, max(files)).layout().pages_by_pack()
    assert newest.total() == len(files[max(files)]) // backup.PAGE_BYTES
    if keep is not None:
        # Half of those that are too many go with each backup, and one comes.
        assert len(newest) <= most_packs + 1


def test_packs_that_few_pages_are_of_use_in_go(tmp_path, monkeypatch):
    """Most backups write a page that stays as it is from then on, beside some that change again."""
    pages = [os.urandom(backup.PAGE_BYTES) for _ in range(400)]
    monkeypatch.setattr(backup, "_snapshot", lambda _: map(b"".join, batched(pages, backup._CHUNK_PAGES)))
    target, written, most = tmp_path / "backups", 0, 0
    for number in range(390):
        for page in (number, *range(390, 400)):
            pages[page] = os.urandom(backup.PAGE_BYTES)
        written += back_up(tmp_path / "log", target, keep=2).new_bytes
        packs = [pack.stat().st_size for pack in (target / "packs").iterdir()]
        most = max(most, sum(packs) / (400 * backup.PAGE_BYTES))
        assert len(packs) <= backup.MOST_PACKS + 3
    assert verify_backups(target) == []
    # Eleven pages each are new; those that stay are written once more, and some again where packs were too many.
    assert 390 * 11 <= written // backup.PAGE_BYTES <= 390 * 22
    assert 1 <= most < 3


def batched(values, length):
    return [values[start : start + length] for start in range(0, len(values), length)]


def test_a_restore_from_many_packs_opens_few_at_once(tmp_path, monkeypatch):
    log, generation = filled(tmp_path / "log", 1)
    scattered(log, generation, range(400))
    for number in range(60):
        scattered(log, generation, [number])
        back_up(tmp_path / "log", tmp_path / "backups")
    log.close()
    assert len(backup._list_of(tmp_path / "backups", 60).packs_in_use()) > 2 * backup._MOST_OPEN - 10
    opened, most = set(), 0
    opens, closes = os.open, os.close

    def counting(path, *arguments, **named):
        nonlocal most
        descriptor = opens(path, *arguments, **named)
        if str(path).endswith(".pack"):
            opened.add(descriptor)
            most = max(most, len(opened))
        return descriptor

    def closing(descriptor):
        opened.discard(descriptor)
        closes(descriptor)

    monkeypatch.setattr(os, "open", counting)
    monkeypatch.setattr(os, "close", closing)
    restore(tmp_path / "backups", tmp_path / "restored")
    assert 10 < most <= backup._MOST_OPEN and not opened


def test_a_pack_that_is_gone_is_made_up_for_by_the_next_backup(tmp_path):
    log, generation = filled(tmp_path / "log", 100, copies=200)
    target = tmp_path / "backups"
    back_up(tmp_path / "log", target)
    commit(log, generation, 101)
    (target / "packs" / "00000001.pack").unlink()
    back_up(tmp_path / "log", target)
    log.close()
    (found,) = verify_backups(target)
    assert found.startswith("Backup 1 ")
    restore(target, tmp_path / "restored")
    assert number_in(tmp_path / "restored") == 101


def test_backups_of_whole_chunks_that_an_earlier_version_made_are_read_and_gone_on_with(tmp_path):
    with tarfile.open(HERE / "backups_before.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    target = tmp_path / "backups"
    assert verify_backups(target) == []
    assert [one.taken_ms for one in backups(target)] == [1_790_000_000_000, 1_790_000_060_000]
    for number, commits in ((1, 40), (2, 60)):
        restore(target, tmp_path / f"restored-{number}", number)
        assert number_in(tmp_path / f"restored-{number}") == commits
    made = back_up(tmp_path / "restored-2", target)
    assert (made.number, made.new_bytes) == (3, 0) or made.new_bytes <= 4 * backup.PAGE_BYTES
    assert verify_backups(target) == []
    for number, commits in ((1, 40), (3, 60)):
        restore(target, tmp_path / f"again-{number}", number)
        assert number_in(tmp_path / f"again-{number}") == commits


def killed_at(step, path, target):
    """Back up, and be killed at a step on the way to the disk."""
    steps = count(1)

    def counted(real):
        def call(*arguments, **named):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    os.fsync = counted(os.fsync)
    backup.Path.replace = counted(backup.Path.replace)
    backup.Path.unlink = counted(backup.Path.unlink)
    back_up(path, target, keep=2)


def test_a_kill_at_any_step_leaves_every_earlier_backup_whole(tmp_path):
    log, _ = filled(tmp_path / "log", 300)
    log.close()
    target = tmp_path / "backups"
    back_up(tmp_path / "log", target)
    killed = 0
    for step in count(1):
        with child(killed_at, step, tmp_path / "log", target) as process:
            survived = process.wait() == 0
        assert verify_backups(target) == []
        restore(target, tmp_path / f"restored-{step}")
        assert number_in(tmp_path / f"restored-{step}") == 300
        if survived:
            break
        killed += 1
    assert killed >= 8
    assert len(backups(target)) == 2
    needed = {f"{one.number:08}" for one in backups(target)}
    assert {file.name for file in (target / "backups").iterdir()} == needed


@pytest.mark.parametrize("folder", ["packs", "backups"])
@given(data=st.data())
@settings(max_examples=examples(20, 400), deadline=None)
def test_a_changed_bit_is_found_and_restores_nothing(tmp_path_factory, folder, data):
    path = tmp_path_factory.mktemp("bits")
    log, _ = filled(path / "log", 20)
    log.close()
    back_up(path / "log", path / "backups")
    (file,) = (path / "backups" / folder).iterdir()
    content = bytearray(file.read_bytes())
    # What pads the last chunk belongs to nobody.
    length = len(content) if folder == "backups" else (path / "log" / "data.mdb").stat().st_size
    place = data.draw(st.integers(0, min(length, len(content)) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    assert len(verify_backups(path / "backups")) == 1
    with pytest.raises(Damaged):
        restore(path / "backups", path / "restored")
    assert not (path / "restored").exists()


def test_old_backups_go_and_what_later_ones_share_with_them_stays(tmp_path):
    log, generation = filled(tmp_path / "log", 500)
    for number in range(501, 506):
        commit(log, generation, number)
        back_up(tmp_path / "log", tmp_path / "backups", keep=2)
    log.close()
    assert [one.number for one in backups(tmp_path / "backups")] == [4, 5]
    for number, commits in ((4, 504), (5, 505)):
        restore(tmp_path / "backups", tmp_path / f"restored-{number}", number)
        assert number_in(tmp_path / f"restored-{number}") == commits


@pytest.mark.parametrize("where", [".", "backups", "../log", "to/../deep"])
def test_a_backup_into_the_data_directory_is_refused_and_leaves_nothing_there(tmp_path, where):
    log, _ = filled(tmp_path / "log", 1)
    log.close()
    before = sorted(one.name for one in (tmp_path / "log").rglob("*"))
    with pytest.raises(BackupError, match="outside"):
        back_up(tmp_path / "log", tmp_path / "log" / where)
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(BackupError, match="outside"):
        back_up(tmp_path / "log", tmp_path / "link" / "backups")
    assert sorted(one.name for one in (tmp_path / "log").rglob("*")) == before


def test_what_cannot_be_restored_is_refused(tmp_path):
    log, _ = filled(tmp_path / "log", 1)
    log.close()
    with pytest.raises(BackupError, match="no backups"):
        restore(tmp_path / "absent", tmp_path / "restored")
    back_up(tmp_path / "log", tmp_path / "backups")
    with pytest.raises(BackupError, match="no backup 7"):
        restore(tmp_path / "backups", tmp_path / "restored", 7)
    with pytest.raises(BackupError, match="something at"):
        restore(tmp_path / "backups", tmp_path / "log")
    (tmp_path / "backups" / "packs" / "00000001.pack").unlink()
    with pytest.raises(Damaged, match="gone"):
        restore(tmp_path / "backups", tmp_path / "restored")
    with pytest.raises(EnvironmentFault):
        back_up(tmp_path / "log", tmp_path / "log" / "data.mdb")


def test_a_restore_that_fails_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    log, _ = filled(tmp_path / "log", 3)
    log.close()
    back_up(tmp_path / "log", tmp_path / "backups")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFull, match="restored can't be written"):
            restore(tmp_path / "backups", tmp_path / "restored")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backups", "log"]
    restore(tmp_path / "backups", tmp_path / "restored")
    assert number_in(tmp_path / "restored") == 3


def test_what_another_process_drops_meanwhile_is_no_damage(tmp_path, monkeypatch):
    """One lists or verifies backups while those that are not kept go: what is there no more is passed over."""
    log, generation = filled(tmp_path / "data", 3)
    for number in range(4, 7):
        back_up(tmp_path / "data", tmp_path / "copies")
        commit(log, generation, number)
    log.close()
    listed = backup._numbers(tmp_path / "copies")
    assert listed == [1, 2, 3]
    opens = backup._opened

    def drops(target, number, pack):
        if number == 2 and 2 in backup._numbers(target):
            backup._drop(target, [2, 3])  # and with it all that shares pages with it
        return opens(target, number, pack)

    backup._drop(tmp_path / "copies", [1])
    with monkeypatch.context() as patched:
        patched.setattr(backup, "_numbers", lambda target: listed)
        assert [one.number for one in backups(tmp_path / "copies")] == [2, 3]
    monkeypatch.setattr(backup, "_opened", drops)
    with pytest.raises(BackupError, match=r"Backup 2 .* was dropped meanwhile"):
        restore(tmp_path / "copies", tmp_path / "restored", 2)
    assert verify_backups(tmp_path / "copies") == []
