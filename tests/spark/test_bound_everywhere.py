"""Where the streams of an application live, for each command and each place that it runs in: bound, or not."""

import gzip
import json
import re
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from runtime.systems.log.environment import LogEnvironment
from samza_dsl import produce
from samza_dsl.cli.main import commands
from tests.kafka import topics as kafka

APP = """
    from samza_dsl import App

    app = App("{name}")
    orders = app.input("{name}-orders", value=dict)
    by_customer = orders.partition_by(lambda order: order["who"], partitions=2, op_id="by-customer")
    spent = by_customer.scan(lambda total, order: total + order["eur"], init=int, op_id="total")
    spent.send_to(app.output("{name}-spent", value=int))
"""
ORDERS = [{"who": who, "eur": eur} for who, eur in (("ann", 3), ("bob", 5), ("ann", 3))]
SPENT = Counter([3, 5, 6])
"""The totals, in whichever order the orders come."""
BEFORE = 1_000
"""What the stream that is named like the output holds before."""

COMMANDS = {"run": ("--bind", "--bind"), "reprocess": ("--from", "--to"), "reprocess --bind": ("--bind", "--bind")}
SOURCES = ("stream", "file", "topic")
OUTPUTS = ("stream", "another stream", "file", "topic")
MORE_SOURCES = ("folder", "table")
"""Other sources: folders named by a value, of compressed files and named by a pattern, and a table of Spark."""
MORE_OUTPUTS = ("columns", "table")
PLACES = {"local": (), "kafka": ("ci",), "spark": ("ci",)}
IN_CI = (
    ("spark", "run", "folder", "table"),
    ("spark", "reprocess", "table", "columns"),
    ("spark", "run", "table", "topic"),
)
"""Of the combinations with another source or output, those that CI has where they are slow: each of them once."""


def table():
    """Yield each combination that there is."""
    places = product(PLACES, COMMANDS, SOURCES + MORE_SOURCES, OUTPUTS + MORE_OUTPUTS)
    for place, command, source, output in places:
        if "table" in (source, output) and place != "spark":
            continue
        slow = PLACES[place] or (("ci",) if "topic" in (source, output) else ())
        marks = [pytest.mark.ci, pytest.mark.timeout(900)] if slow else []
        if source in MORE_SOURCES or output in MORE_OUTPUTS:
            is_long = (place, command, source, output) not in IN_CI
        else:  # CI has every pair of a command, a source and an output
            is_long = bool((list(COMMANDS).index(command) + SOURCES.index(source) + OUTPUTS.index(output)) % 3)
        if slow and is_long:
            marks.append(pytest.mark.long)
        yield pytest.param(place, command, source, output, marks=marks, id=f"{place} {command}, {source} to {output}")


class Streams:
    """The streams of one application wherever they may live, and what it is to read from there."""

    def __init__(self, name, folder, broker, session):
        self.name, self.folder, self.broker, self.session = name, folder, broker, session

    def create(self, place):
        """Have the environment hold what the input has, and something under the name of the output."""
        orders, spent = f"{self.name}-orders", f"{self.name}-spent"
        if place == "kafka":
            self.topic(orders, ORDERS)
            self.topic(spent, [BEFORE])
        else:
            produce(orders, ORDERS, data=self.folder / ".samza-dsl")
            produce(spent, [BEFORE], data=self.folder / ".samza-dsl")

    def topic(self, name, values):
        kafka.create(self.broker, name)
        kafka.produce(self.broker, name, *((0, None, msgspec.json.encode(value)) for value in values))

    def source(self, kind):
        """Return what the input is bound to; it holds the orders."""
        if kind == "file":
            Path("orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
            return "orders.jsonl"
        if kind == "folder":
            for number, order in enumerate(ORDERS):
                (place := Path(f"orders/day={number // 2}")).mkdir(parents=True, exist_ok=True)
                (place / f"{number}.jsonl.gz").write_bytes(gzip.compress(json.dumps(order).encode() + b"\n"))
            return "orders/day=*/*.jsonl.gz"
        if kind == "table":
            self.session.createDataFrame(ORDERS, "who string, eur long").createOrReplaceTempView(f"{self.plain}_orders")
            return f"table:{self.plain}_orders"
        self.topic(f"{self.name}-from", ORDERS)
        return f"kafka://{self.broker.bootstrap}/{self.name}-from"

    @property
    def plain(self):
        """Return a name that Spark takes for a table."""
        return self.name.replace("-", "_")

    def sink(self, kind):
        if kind in ("columns", "table"):
            return "spent.parquet" if kind == "columns" else f"table:{self.plain}_spent"
        if kind == "topic":
            kafka.create(self.broker, f"{self.name}-to")
            return f"kafka://{self.broker.bootstrap}/{self.name}-to"
        return f"stream:{self.name}-again" if kind == "another stream" else "spent.jsonl"

    def values(self, place, kind):
        """Return what lies where an output of that kind is written."""
        name = {"stream": "spent", "another stream": "again", "topic": "to"}.get(kind)
        if kind == "file":
            return Counter(map(json.loads, Path("spent.jsonl").read_text().splitlines()))
        if kind == "columns":
            return Counter(parquet.read_table("spent.parquet")["value"].to_pylist())
        if kind == "table":
            found = Counter(row[0] for row in self.session.table(f"{self.plain}_spent").collect())
            self.session.sql(f"DROP TABLE {self.plain}_spent")
            return found
        if kind == "topic" or place == "kafka":
            records = kafka.consume(self.broker, f"{self.name}-{name}").values()
            return Counter(msgspec.json.decode(record.value) for part in records for record in part)
        found = Counter()
        with closing(LogEnvironment(self.folder / ".samza-dsl")) as environment:
            for number in range(environment.streams()[f"{self.name}-{name}"].partitions):
                offset = 0
                while (read := environment.read(f"{self.name}-{name}", number, offset)) is not None:
                    found.update(map(msgspec.json.decode, read.batch.values))
                    offset = read.next_offset
        return found


def refusal(place, command, output):
    """Return what is said where nothing may be written: what would be added to, and what else to write to."""
    if output != "stream" or (command == "run" and place != "spark"):
        return None
    return "or to a file" if place != "spark" else "bind the output to a file"


@pytest.mark.parametrize(("place", "command", "source", "output"), [*table()])
def test_results_are_where_they_were_bound_to_and_nowhere_else(
    place, command, source, output, request, topics, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    needs_broker = place == "kafka" or "topic" in (source, output)
    broker = request.getfixturevalue("broker") if needs_broker else None
    streams = Streams(topics, tmp_path, broker, request.getfixturevalue("session") if place == "spark" else None)
    Path("app.py").write_text(dedent(APP.format(name=topics)))
    streams.create(place)
    how = [command.split()[0], "app.py"]
    how += [COMMANDS[command][0], f"{topics}-orders={streams.source(source)}"] if source != "stream" else []
    how += [COMMANDS[command][1], f"{topics}-spent={streams.sink(output)}"] if output != "stream" else []
    if place == "spark":
        how += ["--on", "spark"]
    elif command == "run":
        how += ["--until-now"]
    if place == "kafka":
        how += ["--environment", f"kafka://{streams.broker.bootstrap}"]
    result = CliRunner().invoke(commands, how)
    before = Counter([BEFORE])
    if (said := refusal(place, command, output)) is not None:
        assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
        assert streams.values(place, "stream") == before
        return
    known = ["is written at least once", *["may differ from a live run"] * (source in MORE_SOURCES)]
    told = [line for line in result.stderr.splitlines() if not any(map(line.__contains__, known))]
    assert (result.exit_code, told) == (0, [])
    assert streams.values(place, output) == (SPENT + before if output == "stream" else SPENT)
    if output != "stream":
        assert streams.values(place, "stream") == before


WITH_LETTERS = """
    from samza_dsl import App, dead_letter

    app = App("{name}")
    orders = app.input("{name}-orders", value=dict)
    shares = orders.map(lambda order: 6 // order["eur"], on_error=dead_letter("{name}-bad"))
    shares.send_to(app.output("{name}-spent", value=int))
"""


def letters():
    for place, command in product(("local", "spark"), COMMANDS):
        marks = [pytest.mark.ci, pytest.mark.timeout(900)] if place == "spark" else []
        yield pytest.param(place, command, marks=marks, id=f"{place} {command}")


@pytest.mark.parametrize(("place", "command"), [*letters()])
def test_dead_letters_go_to_the_stream_that_an_error_says_to_bind_them_to(
    place, command, request, topics, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(dedent(WITH_LETTERS.format(name=topics)))
    Path("orders.jsonl").write_text('{"eur":0}\n{"eur":2}\n')
    produce(f"{topics}-bad", [BEFORE], data=tmp_path / ".samza-dsl")
    if place == "spark":
        request.getfixturevalue("session")
    reads, writes = COMMANDS[command]
    how = [command.split()[0], "app.py", reads, f"{topics}-orders=orders.jsonl", writes, f"{topics}-spent=spent.jsonl"]
    how += ["--on", "spark"] if place == "spark" else ["--until-now"] if command == "run" else []
    another = f"{topics}-again"
    if command != "run" or place == "spark":
        result = CliRunner().invoke(commands, how)
        (advised,) = re.findall(rf"\(({topics}-bad=stream:\S+)\)", result.stderr)
        assert (result.exit_code, "to a file" in result.stderr) == (1, False)
        another = advised.partition(":")[2]
    to_a_file = CliRunner().invoke(commands, [*how, writes, f"{topics}-bad=bad.jsonl"])
    assert f"dead letters are bound to another stream alone: write {topics}-bad=stream:" in to_a_file.stderr
    result = CliRunner().invoke(commands, [*how, writes, f"{topics}-bad=stream:{another}"])
    assert result.exit_code == 0, result.stderr
    with closing(LogEnvironment(tmp_path / ".samza-dsl")) as environment:
        assert environment.offsets(f"{topics}-bad", 0).end == 1
        assert environment.read(another, 0, 0).batch.values == [b'{"eur":0}']
    assert Path("spent.jsonl").read_text() == "3\n"
