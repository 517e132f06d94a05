"""Classes of the main program have one name however it is run: as a script, by its own name, in a spawned process."""

import subprocess
import sys

import pytest

from runtime.encoding.classes import find, name_of
from samza_dsl import Change, Pane, Revision
from tests.source import ROOT

PROGRAM = """
import multiprocessing
import sys

import msgspec

from runtime.encoding.serdes import Evolving
from samza_dsl import App
from samza_dsl.cli.main import commands
from typer.testing import CliRunner


class Order(msgspec.Struct):
    user: str
    tags: list


def is_order(order):
    assert type(order) is Order, type(order).__module__
    return True


app = App("shop")
orders = app.input("orders", value=Order).partition_by(lambda order: order.user, op_id="by-user").filter(is_order)
orders.scan(lambda last, order: order, op_id="last").filter(is_order).send_to(app.output("last"))


def kept():
    return Evolving().encode(Order("a", [1]))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        ran = CliRunner().invoke(commands, ["run", __file__, "--data", "data", "--bind", "orders=orders.jsonl"])
        print(ran.output)
        sys.exit(ran.exit_code)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(kept) == kept())
"""


def run(folder, how):
    program, records = folder / "shop.py", folder / "orders.jsonl"
    program.write_text(PROGRAM)
    records.write_text("".join(f'{{"user": "u{number % 3}", "tags": [{number}]}}\n' for number in range(30)))
    ran = subprocess.run(
        [sys.executable, program, how], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.ci
def test_a_program_that_runs_its_own_file_finds_the_classes_of_what_is_run(tmp_path):
    assert "30 read" in run(tmp_path, "run")
    run(tmp_path, "run")  # and what was kept of them


@pytest.mark.ci
def test_a_spawned_process_keeps_the_same_bytes(tmp_path):
    assert run(tmp_path, "spawn") == "True\n"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Pane, "operators.window:Pane"), (Change, "operators.changes:Change"), (Revision, "operators.revisions:Revision")],
)
def test_a_class_of_our_own_keeps_its_name_in_stored_bytes_wherever_it_moves(kind, name):
    assert name_of(kind) == name
    assert find(name) is kind
