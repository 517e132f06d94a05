"""The command line as the tests call it: in this process, or in one of its own, in a folder that a test may fill."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from samza_dsl.cli.main import commands

PROGRAM = Path(sys.executable).with_name("samza-dsl")

SHOUTING = """
    from samza_dsl import App

    app = App("shouting")
    app.input("words", value=str).map(str.upper, op_id="loud").send_to(app.output("shouts", value=str))
"""
SPENDING = """
    from msgspec import Struct
    from samza_dsl import App, total, tumbling

    class Order(Struct):
        customer: str
        amount: int
        at_ms: int

    app = App("spending")
    orders = app.input("orders", value=Order, timestamp=lambda order: order.at_ms)
    (
        orders.partition_by(lambda order: order.customer, partitions=2, op_id="by-customer")
        .window(tumbling(seconds=10), total(lambda order: order.amount))
        .send_to(app.output("spent", key=str))
    )
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the current one; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(folder):
    """Write a file in the folder, with its folders."""

    def write(name: str, text: str) -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip("\n"))
        return file

    return write


@pytest.fixture
def shouting(write):
    """A stateless application, words in and shouts out."""
    return write("shouting.py", SHOUTING)


@pytest.fixture
def spending(write):
    """An application with state and an intermediate stream."""
    return write("spending.py", SPENDING)


@pytest.fixture
def call(folder):
    """Call the command line in this process."""

    def call(*arguments: str, stdin: str | None = None):
        return CliRunner().invoke(commands, list(arguments), input=stdin)

    return call


@pytest.fixture
def program(folder):
    """Start the command line in a process of its own, and end that with the test."""
    started = []

    def start(*arguments: str, **how):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
        environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"}
        process = subprocess.Popen([PROGRAM, *arguments], env=environment, cwd=folder, **how)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
