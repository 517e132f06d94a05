"""Outputs that are bound to where another output lies, an input is read, or stages hand on: refused, nothing lost."""

import json
from contextlib import closing, nullcontext
from inspect import getsource
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from runtime.assembly.distinct_places import check_distinct
from runtime.systems.files.csv_files import CsvFiles
from runtime.systems.files.places.locations import MAGIC, found_files
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App, PlanError, SamzaError, SparkTable, dead_letter, produce
from samza_dsl.cli.main import commands
from samza_dsl.connectors import AtLeastOnceSink, TransactionalSink, growing_folder, rolling_files
from tests.scale import examples

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
    ({"orders": "in/*.jsonl", "shares": "in/out.jsonl"}, "it would feed itself"),
    ({"orders": "{in,new}", "shares": "in/out.jsonl"}, "it would feed itself"),
    ({"orders": "*.parquet", "shares": "out.parquet"}, "it would feed itself"),
    ({"orders": "lake/day=*", "shares": "lake/?partition_by=day"}, "it would feed itself"),
    ({"shares": "out/?partition_by=day", "euros": "out/euros.parquet"}, "would both lie in out/euros.parquet"),
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
    for place in (Path("in/a.jsonl"), Path("lake/day=1/a.parquet"), Path("a.parquet"), Path("out/a.csv")):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    produce("orders", [{"who": "a", "eur": 1}], data=".samza-dsl")
    how = [*COMMANDS[command], *(word for name, what in bound.items() for word in ("--bind", f"{name}={what}"))]
    result = CliRunner().invoke(commands, how)
    assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
    assert not any(path.stat().st_size for path in Path().glob("**/out*") if path.is_file())
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
        {"orders": "in/*.jsonl", "shares": "in/out.parquet", "euros": "in/_euros.jsonl"},
        {"orders": "lake/new", "shares": "lake/?partition_by=day"},
        {"shares": "out/?partition_by=day", "euros": "out/euros.jsonl"},
        {"orders": "growing:lake/*.jsonl", "shares": "rolling:lake"},
        {"orders": "growing:lake/new", "shares": "rolling:lake?partition_by=day"},
        {"orders": "growing:s3://lake/new", "shares": "rolling:s3://pond/new"},
        {"shares": "rolling:lake", "euros": "rolling:lake"},
        {"orders": "sqlite:///shop.db?table=orders&by=id", "shares": "sqlite:///shop.db?table=orders&key=id"},
        {"orders": "sqlite:///shop.db?table=orders", "shares": "sqlite:///shop.db?table=shares&key=id"},
        {"orders": "growing:lake", "shares": "stream:others"},
        {"orders": "redis://host?stream=orders", "shares": "redis://host?stream=shares"},
    ],
)
def test_what_several_outputs_may_be_added_to_is_not_refused(bind):
    check_distinct(shop().graph(), bind)


@pytest.mark.parametrize(
    "bind",
    [
        {"orders": "days", "shares": "days/shares.jsonl"},
        {"orders": Path("days"), "shares": "days"},
        {"orders": CsvFiles("days/*.csv", ";"), "shares": CsvFiles("days/out.csv", ";")},
        {"orders": "linked/*.jsonl", "shares": "days/shares.jsonl"},
        {"orders": SparkTable("days/*.parquet"), "shares": "days/shares.parquet"},
        {"orders": SparkTable("table:lake.days"), "shares": "table:lake.days?mode=append"},
        {"orders": "delta:days", "shares": "delta:./days?mode=append"},
        {"orders": "growing:days", "shares": "rolling:days"},
        {"orders": "growing:days/*.jsonl", "shares": "rolling:days?kind=jsonl"},
        {"orders": "growing:days/day=1/*", "shares": "rolling:days?partition_by=day"},
        {"orders": "growing:s3a://lake/days", "shares": "rolling:s3://lake/days/new"},
        {"orders": "s3://lake/days/part-*.parquet", "shares": "rolling:s3://key:secret@lake/days"},
        {"orders": "growing:days", "shares": "days/shares.jsonl"},
        {"orders": "days", "shares": "rolling:days"},
        {"orders": "growing:days", "shares": "stream:orders"},
        {"orders": "listen://:8080/orders", "shares": "stream:orders"},
        {"orders": "sqlite:///shop.db?table=orders", "shares": "sqlite:///./shop.db?table=orders&key=id"},
        {"orders": "redis://host/0?stream=orders", "shares": "redis://host/0?stream=orders&max_entries=10"},
        {"orders": "kafka://b:9092/t", "shares": "kafka://b:9092/t?compression=zstd"},
        {"orders": "kafka://a:9092,b:9092/t", "shares": "kafka://B/t"},
    ],
)
def test_an_output_where_an_input_is_read_would_feed_itself(bind):
    Path("days").mkdir()
    Path("linked").symlink_to("days")
    with pytest.raises(SamzaError, match="it would feed itself"):
        check_distinct(shop().graph(), bind)


def test_connectors_are_told_by_their_places_as_their_urls_are():
    Path("days").mkdir()
    Path("linked").symlink_to("days")
    with pytest.raises(SamzaError, match="it would feed itself"):
        check_distinct(shop().graph(), {"orders": growing_folder("days"), "shares": rolling_files("linked")})
    check_distinct(shop().graph(), {"orders": growing_folder("days/*.jsonl"), "shares": rolling_files("linked")})


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ({"orders": "kafka://b:9092/shares"}, "it would feed itself"),
        ({"shares": "kafka://b/orders"}, "it would feed itself"),
        ({"orders": "growing:in", "shares": "kafka://b/orders"}, "it would feed itself"),
        ({"bad": "stream:x", "shares": "kafka://b:9092/x"}, "letters would pass for results"),
        ({"shares": "kafka://b:9092/shop-who"}, "stages would read there"),
        ({"orders": "kafka://c:9092/shares"}, ""),
        ({"shares": "kafka://b:9092/euros"}, ""),
    ],
)
def test_a_bound_topic_is_a_stream_of_the_cluster_that_is_the_environment(bind, said):
    check_distinct(shop().graph(), bind)
    with pytest.raises(SamzaError, match=said) if said else nullcontext():
        check_distinct(shop().graph(), bind, "kafka://a:9092,b:9092/")


def test_a_sink_that_is_cut_back_has_the_rows_of_one_output_alone():
    rows = []
    sink = TransactionalSink("rows", lambda at: rows.__delitem__(slice(at, None)), rows.extend, lambda: len(rows))
    with pytest.raises(SamzaError, match="each would cut it back to its own"):
        check_distinct(shop().graph(), {"shares": sink, "euros": sink})
    kept = AtLeastOnceSink("kept", rows.extend)
    check_distinct(shop().graph(), {"shares": kept, "euros": kept})


def is_jsonl(name):
    return name.endswith(".jsonl")


NAMES = st.sampled_from(
    ["a", "b.jsonl", "_c.jsonl", "x=1", "a[1]", "*", "**", "?", "[ab].jsonl", "{a,b}.jsonl", "*.jsonl"]
)


@settings(max_examples=examples(600, 10_000))
@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, max_size=2), NAMES.filter(is_jsonl))
@example(["a[1]"], ["a[1]"], "b.jsonl")
@example(["**", "*.jsonl"], ["a", "a"], "b.jsonl")
@example(["b.jsonl", "*"], [], "b.jsonl")
def test_an_output_is_refused_just_where_it_would_be_among_the_files_of_the_input(pattern, folders, name):
    with TemporaryDirectory() as folder:
        path = Path(folder, *folders, name)
        bind = {"orders": f"{folder}/{'/'.join(pattern)}", "shares": path}
        try:
            check_distinct(shop().graph(), bind)
            is_refused = False
        except SamzaError as error:
            is_refused = "it would feed itself" in str(error)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        is_read = path in [one.file.path for one in found_files(bind["orders"])]
        assert is_refused or not is_read
        # Names with signs of a glob may be told by their ends alone, and `**` at the end stands for no folder as well.
        assert is_read or not is_refused or MAGIC.search("".join([*folders, name])) or pattern[-1] == "**"


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
