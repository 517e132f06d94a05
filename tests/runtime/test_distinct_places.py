"""Outputs that are bound to where another output lies, an input is read, or stages hand on: refused, nothing lost."""

import json
from contextlib import closing
from inspect import getsource
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from runtime.assembly.distinct_places import check_distinct
from runtime.systems.files.csv_files import CsvFiles
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, PlanError, SamzaError, dead_letter, produce
from samza_dsl.cli.main import commands

FILES = (
    "out.jsonl",
    "./out.jsonl",
    Path("out.jsonl"),
    "out.parquet",
    "out.avro",
    "out.jsonl.gz",
    "out/?partition_by=day",
)
COMMANDS = {
    "run": ("run", "app.py", "--until-now"),
    "reprocess": ("reprocess", "app.py"),
    "run on spark": ("run", "app.py", "--on", "spark"),
    "reprocess on spark": ("reprocess", "app.py", "--on", "spark"),
}


REFUSED = [
    ({"shares": "out.jsonl", "euros": "out.jsonl"}, "would both lie in out.jsonl"),
    ({"shares": "out.jsonl", "euros": "./out.jsonl"}, "would both lie in"),
    ({"shares": "out.parquet", "euros": "out.parquet"}, "would both lie in out.parquet"),
    ({"shares": "stream:orders"}, "it would feed itself"),
    ({"bad": "stream:shares"}, "the stream of dead letters 'bad'"),
    ({"bad": "stream:shop-who"}, "bind 'bad' to another place"),
    ({"shares": "stream:shop-who"}, "bind 'shares' to another place"),
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(f"from samza_dsl import App, dead_letter\n\n\n{getsource(shop)}\n\napp = shop()\n")
    Path("orders.jsonl").write_text("".join(json.dumps({"who": who, "eur": 1}) + "\n" for who in "abc"))


def shop():
    app = App("shop")
    orders = app.input("orders", value=dict)
    by_customer = orders.partition_by(lambda order: order["who"], partitions=2, op_id="who")
    shares = by_customer.map(lambda order: 6 // order["eur"], on_error=dead_letter("bad"))
    shares.send_to(app.output("shares", value=int))
    orders.map(lambda order: order["eur"]).send_to(app.output("euros", value=int))
    return app


@pytest.mark.parametrize(
    ("command", "bound", "said"),
    [
        pytest.param(command, bound, said, marks=[pytest.mark.ci] if "spark" in command else [])
        for command, (bound, said) in product(COMMANDS, REFUSED)
        # A reprocessing has streams of other names between its stages.
        if not (command.startswith("reprocess") and "stream:shop-who" in bound.values())
    ],
)
def test_each_command_refuses_what_would_lie_at_one_place_before_anything_is_written(command, bound, said):
    produce("orders", [{"who": "a", "eur": 1}], data=".samza-dsl")
    how = [*COMMANDS[command], *(word for name, what in bound.items() for word in ("--bind", f"{name}={what}"))]
    result = CliRunner().invoke(commands, how)
    assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
    assert not any(path.stat().st_size for path in Path().glob("out*") if path.is_file())
    with closing(LogEnvironment(".samza-dsl")) as log:
        assert {name: log.offsets(name, 0).end for name in log.streams()} == {"orders": 1}


@given(places=st.lists(st.sampled_from([*FILES, ListSink, CsvFiles]), min_size=2, max_size=2))
def test_two_outputs_are_refused_just_where_they_have_one_file(places):
    made = [CsvFiles("out.csv", ";") if one is CsvFiles else one() if one is ListSink else one for one in places]
    paths = [
        one.path
        if isinstance(one, CsvFiles)
        else one
        if isinstance(one, ListSink)
        else str(Path(str(one).partition("?")[0]))
        for one in made
    ]
    bind = dict(zip(("shares", "euros"), made, strict=True))
    if paths[0] != paths[1]:
        check_distinct(shop().graph(), bind)
        return
    with pytest.raises(SamzaError, match="would both lie in"):
        check_distinct(shop().graph(), bind)


@pytest.mark.parametrize(
    "bind",
    [
        {"shares": "stream:euros"},
        {"shares": "stream:all", "euros": "stream:all"},
        {"shares": "sqlite:///shop.db?table=all", "euros": "sqlite:///shop.db?table=all"},
        {"orders": "orders.jsonl", "shares": "stream:orders"},
        {"shares": "stream:shares", "euros": "euros.jsonl"},
        {"orders": "in", "shares": "out/in"},
    ],
)
def test_what_several_outputs_may_be_added_to_is_not_refused(bind):
    check_distinct(shop().graph(), bind)


def test_an_output_in_the_folder_of_an_input_would_feed_itself():
    Path("days").mkdir()
    for bind in ({"orders": "days", "shares": "days/shares.jsonl"}, {"orders": Path("days"), "shares": "days"}):
        with pytest.raises(SamzaError, match="it would feed itself"):
            check_distinct(shop().graph(), bind)
    with pytest.raises(SamzaError, match="it would feed itself"):
        check_distinct(shop().graph(), {"orders": "kafka://b:9092/t", "shares": "kafka://b:9092/t?compression=zstd"})


def test_a_pattern_does_not_read_what_an_output_of_the_same_application_is_bound_to():
    app = App("all")
    app.input("day-*", value=int).map(lambda n: n + 1).send_to(app.output("next", value=int))
    produce("day-1", [1], data="data")
    for _ in range(3):
        app.run("data", bind={"next": "stream:day-2"}, until_now=True)
    with closing(LogEnvironment("data")) as log:
        assert log.offsets("day-2", 0).end == 1


@pytest.mark.parametrize("bind", [{}, {"copy": "stream:shop-who"}])
def test_no_application_writes_into_a_stream_between_the_stages_of_another(bind):
    produce("orders", [{"who": "a", "eur": 1}], data="data")
    shop().run("data", until_now=True)
    app = App("other")
    orders = app.input("orders", value=dict)
    orders.send_to(app.output("copy" if bind else "shop-who", value=dict))
    with pytest.raises(PlanError, match=r"'.+' at .*test_distinct_places.py:\d+: .*between the stages of an app"):
        app.run("data", bind=bind, until_now=True)
    produce("orders", [{"who": "b", "eur": 2}], data="data")
    shop().run("data", until_now=True)
    with closing(LogEnvironment("data")) as log:
        assert sum(log.offsets("shares", number).end for number in range(2)) == 2


def test_no_dead_letters_go_into_a_stream_between_the_stages_of_another():
    produce("orders", [{"who": "a", "eur": 0}], data="data")
    shop().run("data", until_now=True)
    app = App("other")
    orders = app.input("orders", value=dict)
    orders.map(lambda order: 1 // order["eur"], on_error=dead_letter("shop-who")).send_to(app.output("n", value=int))
    with pytest.raises(PlanError, match=r"map 'map-orders' at .*:\d+: 'shop-who' lies between the stages of an app"):
        app.run("data", until_now=True)
