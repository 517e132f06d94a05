"""Connectors of other packages: what is installed beside is behind URLs, by the entry point that its package names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runtime.systems.connectors import schemes
from samza_dsl.cli.main import commands

MODULE = '''
"""A package's connectors: lines of a file of its own kind."""

from pathlib import Path

from samza_dsl.connectors import AtLeastOnceSink, ConnectedSource, Offsets, PushedRecord, PushedSource, Scheme
from samza_dsl.connectors import SourceRecord


def source(url):
    lines = Path(url.partition("://")[2]).read_text().splitlines()
    return ConnectedSource(
        url,
        lambda: ["all"],
        lambda name: Offsets(0, len(lines), True),
        lambda name, offset, most: [
            SourceRecord(n, line.encode()) for n, line in enumerate(lines[offset : offset + most], offset)
        ],
    )


def pushed(url):
    def push(intake):
        if not intake.noted:
            intake.push([PushedRecord(7)], {"all": b""})

    return PushedSource(url, push)


def sink(url):
    def write(rows):
        with Path(url.partition("://")[2]).open("a") as file:
            file.writelines(f"{row.value}\\n" for row in rows)

    return AtLeastOnceSink(url, write)


LINES, PUSHED, NONE = Scheme(source, sink), Scheme(pushed), "no scheme"
BOTH = Scheme(sink=sink)
'''
APP = """
from samza_dsl import App

app = App("copying")
app.input("numbers", value=int).send_to(app.output("copies", value=int))
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package into a folder of its own, as pip leaves it there, and work beside that."""
    info = tmp_path / "site" / "lines_connector-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "lines_connector.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-connector\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[samza_dsl.connectors]\nlines = lines_connector:LINES\npushed = lines_connector:PUSHED\n"
        "none = lines_connector:NONE\ngone = absent_module:GONE\nsqlite = lines_connector:BOTH\n"
    )
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    schemes.installed.cache_clear()
    yield tmp_path
    schemes.installed.cache_clear()
    sys.modules.pop("lines_connector", None)


def test_a_package_that_is_installed_beside_is_behind_urls(site: Path) -> None:
    (site / "numbers.txt").write_text("1\n2\n")
    bound = ("--bind", f"numbers=lines://{site}/numbers.txt", "--bind", f"copies=lines://{site}/copies.txt")
    shown = CliRunner().invoke(commands, ["plan", "app.py", *bound])
    assert shown.exit_code == 0 and "at least once: some rows are there twice" in shown.output
    run = CliRunner().invoke(commands, ["run", "app.py", *bound])
    assert run.exit_code == 0, run.output
    assert (site / "copies.txt").read_text() == "1\n2\n"
    # What pushes, and in the place of one of ours: the package that is installed is meant.
    bound = ("--bind", "numbers=pushed://x", "--bind", f"copies=sqlite://{site}/copies.txt", "--data", "other")
    for _ in range(2):
        run = CliRunner().invoke(commands, ["run", "app.py", *bound, "--until-now"])
        assert run.exit_code == 0, run.output
    assert (site / "copies.txt").read_text() == "1\n2\n7\n"


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        ("numbers=none://x", "the entry point 'none' of samza_dsl.connectors is a str"),
        ("numbers=gone://x", "the entry point 'gone' of samza_dsl.connectors can't be loaded: No module named"),
        ("numbers=sqlite://x", "a connector for sqlite:// is there, and it reads nothing"),
        ("copies=pushed://x", "a connector for pushed:// is there, and it writes nothing"),
    ],
)
def test_a_package_that_is_mistaken_is_told_in_a_sentence(site: Path, bound: str, error: str) -> None:
    run = CliRunner().invoke(commands, ["run", "app.py", "--bind", bound])
    assert run.exit_code == 2
    assert error in " ".join(run.output.split())
