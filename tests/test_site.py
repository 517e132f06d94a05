"""The site's own pages: programs run, the quickstart prints what it shows, and the reference has every public name."""

import importlib
import inspect
import os
import re
import runpy
import shlex
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing

import pytest
from typer.testing import CliRunner

import samza_dsl
from samza_dsl import App, SamzaError, connectors, formats, laws, testing
from samza_dsl.cli.main import commands
from tests.databases import redis_server
from tests.source import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LAWS = [
    "LawBroken",
    *(name for name, one in inspect.getmembers(laws, inspect.isfunction) if one.__module__ == laws.__name__),
]
COMPARISONS = sorted(page for page in (DOCS / "coming-from").glob("*.md") if page.name != "index.md")


def fences(page, *languages):
    """Return the (title, text) of each block of a page in one of `languages`."""
    return [(title, text) for language, title, text in FENCE.findall(page.read_text()) if language in languages]


@pytest.mark.parametrize("page", [DOCS / "index.md", *COMPARISONS], ids=lambda page: page.stem)
def test_a_program_of_ours_runs_and_gives_what_the_page_says(page, tmp_path):
    program = tmp_path / "ours.py"
    [(_, text)] = fences(page, "python")
    program.write_text(text)
    assert re.search(r"^assert ", text, re.MULTILINE), "the program says what comes out"
    assert isinstance(runpy.run_path(str(program), run_name="ours")["app"], samza_dsl.App)


@pytest.mark.parametrize("page", COMPARISONS, ids=lambda page: page.stem)
def test_a_comparison_has_a_table_and_a_program_of_either_side(page):
    assert len(fences(page, "text")) == len(fences(page, "python")) == 1
    rows = re.findall(r"^\| .* \|$", page.read_text(), re.MULTILINE)
    assert len(rows) > 10
    assert f"]({page.name})" in (page.parent / "index.md").read_text()


def test_there_is_a_page_for_each_library():
    assert {page.stem for page in COMPARISONS} == {"faust", "bytewax", "quix-streams", "samza", "pyflink", "pyspark"}


def test_the_quickstart_shows_what_its_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(tmp_path)
    for title, text in fences(DOCS / "quickstart.md", "python", "json"):
        (tmp_path / title).write_text(text)
    runpy.run_path("test_visits.py")["test_visits_are_counted_per_minute"]()
    told = [step for _, text in fences(DOCS / "quickstart.md", "console") for step in text.split("$ ")[1:]]
    assert len(told) > 5
    for step in told:
        command, _, shown = step.partition("\n")
        program, *arguments = shlex.split(command)
        if program == "cat":
            output = "".join((tmp_path / name).read_text() for name in arguments)
        else:
            assert program == "samza-dsl"
            result = CliRunner().invoke(commands, arguments)
            assert result.exit_code == 0, f"{command}: {result.output}"
            output = result.stdout
        if shown:
            assert [line.rstrip() for line in output.splitlines()] == shown.splitlines(), command


def test_the_connectors_of_the_tutorial_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for title, text in fences(DOCS / "connectors.md", "python"):
        (tmp_path / title).write_text(text)
    assert len((tmp_path / "folder.py").read_text().splitlines()) <= 50
    for name, test in runpy.run_path("test_folder.py").items():
        if name.startswith("test_"):
            (tmp_path / name).mkdir()
            test(tmp_path / name)
    keyless = App("keyless")
    keyless.input("numbers", value=int).send_to(keyless.output("numbers-kept"))
    kept = runpy.run_path("folder.py")["folder_sink"]("folder://kept")
    with pytest.raises(SamzaError, match=r"test_site.py:\d+(.|\n)*without a key"):
        keyless.run("keyless", bind={"numbers": [1], "numbers-kept": kept})
    assert not (tmp_path / "kept").exists()
    (tmp_path / "orders.jsonl").write_text('{"id": 1, "cents": 5}\n{"id": 2, "cents": 0}\n{"id": 1, "cents": 7}\n')
    runpy.run_path("orders.py", run_name="__main__")
    with closing(sqlite3.connect("shop.db")) as database:
        assert database.execute("SELECT * FROM paid").fetchall() == [(1, 7)]
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        database.execute("INSERT INTO items VALUES (1, 'apple'), (2, 'pear')")
        database.commit()
    (tmp_path / "sales.jsonl").write_text("2\n1\n2\n")
    runpy.run_path("stock.py", run_name="__main__")
    sold = runpy.run_path("stock.py")["app"].run(bind={"sales": "sales.jsonl"}, until_now=True).received("sold")
    assert sold == ["pear", "apple", "pear"]
    lookup = runpy.run_path("lookup.py")["app"]
    assert sorted(lookup.run(bind={"sales": [1, 2, 1]}).received("names")) == ["apple", "apple", "pear"]
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1.jsonl").write_text('{"id": 1, "cents": 5}\n')
    for _ in range(2):
        runpy.run_path("incoming.py", run_name="__main__")
    assert [one.records for one in samza_dsl.list_streams() if one.name == "incoming-orders"] == [1]
    testing.check_source(lambda: runpy.run_path("ticker.py")["TICKS"], times=3)
    runpy.run_path("streams.py", run_name="__main__")
    assert [one.records for one in samza_dsl.list_streams() if one.name == "all-trades"] == [100]
    bound = runpy.run_path("posted.py")
    run = bound["app"].run(bind={**bound["BIND"], "large-orders": "large.jsonl"}, until_now=True)
    assert run.plan.app == "posted"
    # Imported: its records go to another stage, which finds their class by the module's name.
    basket = vars(importlib.import_module("basket"))
    (tmp_path / "clicks.jsonl").write_text('{"shop": "books", "price": 12.5}\n' * 2)
    basket["app"].run(bind={"clicks": "clicks.jsonl", "spent": "spent.jsonl"})
    assert (tmp_path / "spent.jsonl").read_text().splitlines()[-1] == "25.0"
    arguments = shlex.split("plan incoming.py --bind incoming-orders=growing:incoming")
    assert "appended to a stream first" in CliRunner().invoke(commands, arguments).stdout
    arguments = shlex.split("plan orders.py --bind 'paid=sqlite:///shop.db?table=paid&key=id'")
    shown = CliRunner().invoke(commands, arguments).stdout
    assert "exactly once: its positions are in the transaction of the rows" in shown


PLACES = {
    "a folder that grows, here or in an object store": ["rolling:out", "rolling:s3://lake/out"],
    "JSON lines, CSV, Parquet, Avro and Arrow files": [
        f"out.{name}" for name in ["jsonl", "csv", "parquet", "avro", "arrow"]
    ],
    "SQLite, Postgres": ["sqlite:///out.db?table=t", "postgres://here/db?table=t&key=id"],
    "DuckDB": ["duckdb:///out.duckdb?table=t"],
    "Redis": ["redis://here?hash=t", "redis://here?stream=t"],
    "HTTP": ["webhook+https://here/t", "webhook+http://here/t"],
    "a Kafka topic elsewhere": ["kafka://here:9092/t"],
    "`TransactionalSink`": [connectors.TransactionalSink],
    "`PositionedSink`": [connectors.PositionedSink],
    "`IdempotentSink`": [connectors.IdempotentSink],
    "`AtLeastOnceSink`": [connectors.AtLeastOnceSink],
}
"""What is bound to an output, by the rows of the table of all places that say what is promised."""
NOT_BOUND = {"the embedded log, a Kafka environment", "frames of pandas, polars and Arrow"}


def test_a_plan_shows_of_each_place_what_the_table_of_places_promises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'from samza_dsl import App\napp = App("a")\napp.input("i", value=int).send_to(app.output("o", value=int))\n'
    (tmp_path / "promising.py").write_text(text)
    page = (DOCS / "connectors.md").read_text()
    table = page[page.index("| place |") : page.index("All of them work in one process")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:] if line]
    promised = {place: promise for place, _, _, promise in rows if promise}
    assert promised.keys() == PLACES.keys() | NOT_BOUND
    for place, bound in PLACES.items():
        said = re.split("[:;]", promised[place])[0]
        for one in bound:
            if isinstance(one, type):
                shown = one.promise
            else:
                done = CliRunner().invoke(commands, ["plan", "promising.py", "--bind", f"o={one}"])
                assert done.exit_code == 0, done.output
                shown = re.search(r"writes +o .*\((.*)\)$", done.stdout, re.MULTILINE)[1]
            assert shown.startswith(said), (place, one, shown)


@pytest.mark.ci
def test_the_commands_of_the_tutorial_on_redis_work(tmp_path, monkeypatch):
    """As they stand there, but for where the server is, in processes of their own."""
    monkeypatch.chdir(tmp_path)
    (text,) = (text for title, text in fences(DOCS / "connectors.md", "python") if title == "basket.py")
    (lines,) = (text for _, text in fences(DOCS / "connectors.md", "text") if "samza-dsl run basket.py" in text)
    with redis_server.running() as url:
        (tmp_path / "basket.py").write_text(text)
        for spent in (12.5, 25.0):
            add, run, get = (shlex.split(line.replace("redis://localhost:6379/0", url)) for line in lines.splitlines())
            client = ["redis-cli", "-u", url]
            subprocess.run([*client, *add[1:]], check=True, capture_output=True)
            cli = [sys.executable, "-m", "samza_dsl", *run[1:], "--until-now"]
            subprocess.run(cli, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
            found = subprocess.run([*client, *get[1:]], check=True, capture_output=True, text=True)
            assert found.stdout.split() == ["value", str(spent)]


@pytest.mark.ci
def test_the_service_of_the_tutorial_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # Of its client for tests, which goes by what is installed.
        warnings.simplefilter("ignore")
        from fastapi.testclient import TestClient
    (text,) = (text for title, text in fences(DOCS / "connectors.md", "python") if title == "service.py")
    (tmp_path / "service.py").write_text(text)
    for total in (5, 10):
        service = runpy.run_path("service.py")["service"]
        with TestClient(service) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/orders", json={"customer": "Ada", "cents": "x"}).status_code == 422
            assert client.post("/orders", json={"customer": "Ada", "cents": 5}).status_code == 202
            client.portal.call(service.state.run.settled)
            assert client.get("/totals/Ada").json() == total
            assert client.get("/totals/Bob").status_code == 404
    assert len(samza_dsl.list_streams()) == 2


def test_the_programs_of_the_page_on_formats_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for title, text in fences(DOCS / "formats.md", "python"):
        (tmp_path / title).write_text(text)
        runpy.run_path(title, run_name="__main__")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("samza_dsl", samza_dsl.__all__),
        ("samza_dsl.testing", testing.__all__),
        ("samza_dsl.connectors", connectors.__all__),
        ("samza_dsl.formats", formats.__all__),
        ("samza_dsl.laws", LAWS),
    ],
)
def test_the_reference_has_every_public_name_once(module, names):
    entries = re.findall(
        r"^::: (samza_dsl(?:\.testing|\.laws|\.connectors|\.formats)?)((?:\.\w+)+)$",
        "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md"))),
        re.MULTILINE,
    )
    found = sorted(path.rpartition(".")[2] for where, path in entries if where == module)
    public = sorted(name for name in names if not name.startswith("_"))
    assert found == public, f"write ::: {module}.<name> on a page of docs/reference/"
