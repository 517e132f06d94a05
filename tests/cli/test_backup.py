"""A data directory is backed up while its application runs, and goes on from where that was."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from runtime.systems.log.backup import BackupError, backups, restore
from runtime.systems.log.environment import LogEnvironment
from runtime.watching.exposition import prometheus_text
from samza_dsl import App, produce
from samza_dsl.application import replica
from samza_dsl.application.run_request import RunRequest, served
from tests.faults.processes import wait_until

ORDERS = "".join(f'{{"customer": "c{number % 3}", "amount": 1, "at_ms": {number * 1_000}}}\n' for number in range(40))


def spent(call, data):
    return call("streams", "show", "spent", "--data", data).stdout


def test_an_application_goes_on_from_a_backup_that_was_taken_while_it_ran(call, program, spending, folder):
    call("streams", "produce", "orders", stdin=ORDERS)
    running = program("run", "spending.py")
    wait_until(lambda: "40" in call("checkpoint", "show", "spending").stdout)
    first = call("backup", "spending", "copies")
    assert first.exit_code == 0 and first.stdout.startswith("backup 1 of .samza-dsl in copies: "), first.output
    call("streams", "produce", "orders", stdin=ORDERS.replace('"at_ms": ', '"at_ms": 1'))
    running.send_signal(signal.SIGINT)
    assert running.wait() == 0
    call("streams", "end", "orders")
    assert call("run", "spending.py").exit_code == 0
    assert call("verify", "--backups", "copies").stdout == "copies is as it was written\n"
    restored = call("restore", "copies", "--data", "restored")
    assert restored.exit_code == 0 and restored.stdout.startswith("restored is backup 1 of "), restored.output
    call("streams", "produce", "orders", "--data", "restored", stdin=ORDERS.replace('"at_ms": ', '"at_ms": 1'))
    call("streams", "end", "orders", "--data", "restored")
    assert call("run", "spending.py", "--data", "restored").exit_code == 0
    found = spent(call, ".samza-dsl")
    assert found.count("c0") > 3
    assert sorted(line.split()[-1] for line in spent(call, "restored").splitlines()) == sorted(
        line.split()[-1] for line in found.splitlines()
    )


@pytest.mark.ci
def test_a_copy_is_kept_up_while_a_run_goes_on_and_is_whole_whenever_either_is_killed(call, program, spending, folder):
    """Killed again and again at moments of chance, it always leaves a backup from which a run comes to the same."""
    call("streams", "produce", "orders", stdin=ORDERS)
    running = program("run", "spending.py")
    wait_until(lambda: "40" in call("checkpoint", "show", "spending").stdout)
    chance, numbers = random.Random(3), []
    for turn in range(4):
        copying = program("backup", "spending", "copies", "--every", "1ms", "--keep", "3")
        had = numbers[-1] if numbers else 0
        wait_until(lambda had=had: newest("copies") > had)
        for _ in range(chance.randrange(1, 4)):
            call("streams", "produce", "orders", stdin=ORDERS.replace('"at_ms": ', f'"at_ms": {turn + 1}'))
        copying.kill()
        copying.wait()
        numbers.append(newest("copies"))
        assert call("verify", "--backups", "copies").exit_code == 0
    running.kill()
    running.wait()
    copying = program("backup", "spending", "copies", "--every", "1ms")
    wait_until(lambda: newest("copies") > numbers[-1])
    copying.send_signal(signal.SIGTERM)
    assert copying.wait() == 0, "a signal ends it in order"
    assert call("restore", "copies", "--data", "restored").exit_code == 0
    totals = []
    for data in (".samza-dsl", "restored"):
        call("streams", "end", "orders", "--data", data)
        assert call("run", "spending.py", "--data", data).exit_code == 0
        totals.append(sorted(line.split()[-1] for line in spent(call, data).splitlines()))
    assert totals[0] == totals[1] and len(totals[0]) > 3


@pytest.mark.ci
@pytest.mark.parametrize("containers", ["1", "2"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_keeps_up_a_replica_that_has_all_it_had_at_its_end(call, program, spending, folder, end, containers):
    call("streams", "produce", "orders", stdin=ORDERS)
    running = program("run", "spending.py", "--replica", "other/disk", "--containers", containers)
    wait_until(lambda: "40" in call("checkpoint", "show", "spending").stdout and newest("other/disk"))
    call("streams", "produce", "orders", stdin=ORDERS.replace('"at_ms": ', '"at_ms": 1'))
    wait_until(lambda: "80" in call("checkpoint", "show", "spending").stdout)
    had = newest("other/disk")
    running.send_signal(end)
    assert running.wait() == (0 if end == signal.SIGTERM else -end)
    wait_until(lambda: newest("other/disk") > had)  # by who is told that the run is gone
    assert call("restore", "other/disk", "--data", "restored").exit_code == 0
    totals = []
    for data in (".samza-dsl", "restored"):
        assert "80" in call("checkpoint", "show", "spending", "--data", data).stdout
        call("streams", "end", "orders", "--data", data)
        # Containers whose starter was killed end a moment later.
        wait_until(lambda data=data: call("run", "spending.py", "--data", data).exit_code == 0)
        totals.append(sorted(line.split()[-1] for line in spent(call, data).splitlines()))
    assert totals[0] == totals[1] and len(totals[0]) > 3


@pytest.mark.parametrize("said", ["file", "variable"])
def test_a_replica_may_be_said_by_a_file_and_a_variable(call, write, spending, monkeypatch, said):
    if said == "file":
        write("samza-dsl.toml", 'replica = "other/disk"\n')
    else:
        monkeypatch.setenv("SAMZA_DSL_REPLICA", "other/disk")
    call("streams", "produce", "orders", stdin=ORDERS)
    assert call("run", "spending.py", "--until-now").exit_code == 0 and newest("other/disk")
    shown = call("config", "spending.py").stdout
    assert re.search(
        rf"^replica +other/disk +{'samza-dsl.toml:1' if said == 'file' else 'SAMZA_DSL_REPLICA'}$", shown, re.M
    )


def test_a_replica_that_fails_is_told_once_and_that_it_goes_on(tmp_path, caplog, monkeypatch):
    """The disk is away, and comes back; the run itself ends as if nothing were wrong."""
    monkeypatch.setattr(replica, "EVERY_S", 0.05)
    monkeypatch.setattr(
        replica, "PROGRAM", replica.PROGRAM.replace("import main;", "import main; replica.EVERY_S = 0.05;")
    )
    monkeypatch.setattr(replica, "PROGRAM", f"from samza_dsl.application import replica; {replica.PROGRAM}")
    data, disk = tmp_path / "data", tmp_path / "disk"
    disk.write_text("no directory")
    produce("words", ["a"], value=str, data=data)
    with caplog.at_level("INFO", "samza_dsl"), replica.replicated(data, disk) as age_ms:
        wait_until(lambda: "is not kept up" in caplog.text)
        before = age_ms()
        wait_until(lambda: age_ms() > before + 200)  # older and older, as long as it fails
        disk.unlink()
        wait_until(lambda: "is kept up again" in caplog.text)
        before = age_ms()
        wait_until(lambda: age_ms() < before)  # and never old where nothing comes
        produce("words", ["b"], value=str, data=data)
    assert caplog.text.count("is not kept up") == 1 and len(backups(disk)) == 2


def test_the_last_copy_is_taken_though_the_run_was_killed_during_another_and_no_line_is_torn(tmp_path):
    data, target = tmp_path / "data", tmp_path / "copies"
    produce("words", ["a"], value=str, data=data)
    command = [sys.executable, "-c", replica.PROGRAM, json.dumps(sys.path), os.fspath(data), os.fspath(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copying:
        copying.stdout.close()  # who hears it is gone before it says anything
        wait_until(lambda: (target / "backups" / "00000001").exists())
        produce("words", ["b"], value=str, data=data)
        copying.stdin.close()
        assert copying.wait() == 0 and copying.stderr.read() == b""
    assert sorted(path.name for path in (target / "backups").iterdir()) == ["00000001", "00000002"]


@pytest.mark.parametrize("is_early", [True, False])
def test_the_last_copy_is_taken_though_what_copies_has_died(tmp_path, caplog, is_early):
    """It dies well before the end of the run, or as it takes the last copy."""
    data, disk = tmp_path / "data", tmp_path / "disk"
    produce("words", ["a"], value=str, data=data)
    keeper = replica._Keeper(data, disk)
    wait_until(lambda: newest(disk))
    produce("words", ["b"], value=str, data=data)
    if is_early:
        keeper._process.kill()
        wait_until(lambda: "exit code -9" in caplog.text)
    else:
        keeper._process.send_signal(signal.SIGSTOP)
        keeper._closing.set()
        keeper._let_end()
        keeper._process.kill()
    keeper.close()
    assert newest(disk) == 2
    restore(disk, tmp_path / "restored")
    with closing(LogEnvironment(tmp_path / "restored")) as log:
        assert len(log.read("words", 0, 1).batch.values) == 1


def test_a_disk_that_hangs_holds_up_no_end(tmp_path, caplog, monkeypatch):
    """What copies goes on with the last copy, as it does where the run is killed."""
    monkeypatch.setattr(replica, "MOST_LAST_S", 0.05)
    monkeypatch.setattr(replica, "PROGRAM", "import sys; sys.stdin.read(); input_of_nobody = open(sys.argv[3]).read()")
    produce("words", ["a"], value=str, data=tmp_path / "data")
    os.mkfifo(tmp_path / "disk")  # to open it hangs until somebody writes
    with caplog.at_level("INFO", "samza_dsl"), replica.replicated(tmp_path / "data", tmp_path / "disk"):
        pass
    assert re.search(r"its last copy takes over 0 s; process \d+ goes on with it", caplog.text)
    (tmp_path / "disk").write_text("the disk is back")


def test_what_a_machine_has_no_room_to_start_is_told_and_tried_again(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(replica, "EVERY_S", 0.05)
    data, disk = tmp_path / "data", tmp_path / "disk"
    produce("words", ["a"], value=str, data=data)
    keeper = replica._Keeper(data, disk)
    wait_until(lambda: newest(disk))
    begun, full = keeper._started, [True]

    def started():
        if full:
            raise OSError("no memory")
        return begun()

    monkeypatch.setattr(keeper, "_started", started)
    keeper._process.kill()
    wait_until(lambda: "can't be started: no memory" in caplog.text)
    full.clear()
    wait_until(lambda: newest(disk) == 2)
    keeper.close()


def test_a_run_tells_how_old_its_replica_is(tmp_path):
    app = App("copied")
    app.input("words", value=str).map(lambda word: word, op_id="same").send_to(app.output("out"))
    request = RunRequest(tmp_path / "data", bind={"words": ["a"]}, replica=tmp_path / "copies", until_now=True)
    told = served(app, request).metrics()
    assert told.replica_age_ms is not None
    assert "samza_replica_age_seconds{" in prometheus_text("copied", told, 0)
    alone = app.run(tmp_path / "alone", bind={"words": ["a"]}, until_now=True).metrics()
    assert alone.replica_age_ms is None and "samza_replica" not in prometheus_text("copied", alone, 0)


def newest(target):
    """Return the number of the newest backup; 0 where there is none."""
    with suppress(BackupError):
        return max((one.number for one in backups(Path(target))), default=0)
    return 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("backup", "spending", "copies"), 2, "no data directory"),
        (("backup", "spending", "copies", "--environment", "kafka://host:9092"), 2, "brokers replicate"),
        (("restore", "absent", "--data", "restored"), 1, "no backups"),
        (("backup", "spending", "copies", "--every", "0"), 2, "write 10s"),
        (("backup", "spending", "copies", "--every", "often"), 2, "write 30s"),
        (("restore", "absent"), 2, "--data"),
        (("run", "spending.py", "--replica", ".samza-dsl/copy"), 1, "would be lost with it"),
        (("run", "spending.py", "--replica", "copy", "--environment", "kafka://host:9092"), 2, "brokers keep copies"),
        (("verify", "--backups", "absent"), 1, "no backups"),
    ],
)
def test_what_cannot_be_done_is_told(call, folder, spending, arguments, code, told):
    result = call(*arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.output


def test_an_application_that_has_not_run_has_nothing_to_back_up(call, folder):
    call("streams", "produce", "orders", stdin=ORDERS)
    result = call("backup", "spendnig", "copies")
    assert result.exit_code == 2 and "no application 'spendnig' has run" in result.stderr


def test_damage_is_told_with_a_code(call, folder, spending):
    call("streams", "produce", "orders", stdin=ORDERS)
    call("run", "spending.py", "--until-now")
    call("backup", "spending", "copies", "--keep", "1")
    (pack,) = (folder / "copies" / "packs").glob("*.pack")
    pack.write_bytes(pack.read_bytes()[:5_000])
    result = call("verify", "--backups", "copies")
    assert result.exit_code == 1 and "is not what was written" in result.stderr
