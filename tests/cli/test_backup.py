"""A data directory is backed up while its application runs, and goes on from where that was."""

import signal

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("backup", "spending", "copies"), 2, "no data directory"),
        (("backup", "spending", "copies", "--environment", "kafka://host:9092"), 2, "brokers replicate"),
        (("restore", "absent", "--data", "restored"), 1, "no backups"),
        (("restore", "absent"), 2, "--data"),
        (("verify", "--backups", "absent"), 1, "no backups"),
    ],
)
def test_what_cannot_be_done_is_told(call, folder, arguments, code, told):
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
