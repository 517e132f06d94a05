"""A row of an output is explained by the records that led to it, and a test that is written gives the same row."""

import subprocess
import sys

import pytest

PROGRAM = """
    import msgspec
    from samza_dsl import App

    class Order(msgspec.Struct):
        who: str
        amount: int

    app = App("shop")

    def full(order, context):
        context.state = (context.state or 0) + order.amount
        return [Order(order.who, context.state)] if context.state > 100 else []

    orders = app.input("orders", value=Order, key=lambda order: order.who, partitioned_by_key=True)
    orders.process(full, op_id="sum").send_to(app.output("alerts", value=Order))
"""


@pytest.fixture
def ran(write, call):
    write("shop.py", PROGRAM)
    amounts = [("a", 60), ("b", 90), ("a", 30), ("a", 50), ("b", 5)]
    orders = "".join(f'{{"who":"{who}","amount":{amount}}}\n' for who, amount in amounts)
    call("streams", "produce", "orders", stdin=orders)
    assert call("run", "shop.py", "--until-now").exit_code == 0


def test_records_and_state_are_told_and_a_test_is_written(ran, call, tmp_path, monkeypatch):
    said = call("why", "shop.py", "alerts", "0:0", "--pytest", "test_alert.py")
    assert said.exit_code == 0, said.stderr
    assert "led to by 3 records, and none of them can be left out" in said.stdout
    places = [line.split()[:3] for line in said.stdout.splitlines() if line.startswith("orders")]
    assert places == [["orders", "0", "0"], ["orders", "0", "2"], ["orders", "0", "3"]]
    assert "the state that these have made before:" in said.stdout
    assert '"who":"a","amount":50' in said.stdout.partition("the row comes with it")[2]
    run = subprocess.run(
        [sys.executable, "-c", "import test_alert; test_alert.test_alerts_0_at_0()"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("output", "place", "wrong"),
    [
        ("alerts", "7", "is no place in a stream: write PARTITION:OFFSET"),
        ("alerts", "0:7", "alerts/0 has no record at 7"),
        ("others", "0:0", "writes no 'others'"),
    ],
)
def test_what_is_not_there_is_refused(ran, call, output, place, wrong):
    said = call("why", "shop.py", output, place)
    assert said.exit_code != 0
    assert wrong in said.stderr


def test_another_program_says_so(ran, call, write):
    write("shop.py", PROGRAM.replace("> 100", "> 10_000"))
    said = call("why", "shop.py", "alerts", "0:0")
    assert said.exit_code == 1
    assert "does not come again from 5 records" in said.stderr
