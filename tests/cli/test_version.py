"""The command line's own version."""

import tomllib
from importlib.metadata import PackageNotFoundError

import pytest

from samza_dsl.cli import main
from tests.source import ROOT


def test_the_version_is_that_of_the_package(call):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    told = call("--version")
    assert (told.exit_code, told.output) == (0, f"samza-dsl {declared}\n")


def test_without_a_package_there_is_no_version(call, monkeypatch):
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(main, "version", not_found)
    told = call("--version")
    assert told.exit_code == 2 and "pip install samza-dsl" in told.stderr


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_shows_the_option_and_the_commands(call, arguments):
    shown = call(*arguments).output
    assert all(word in shown for word in ("--version", "Run and plan stream pipelines", "reprocess", "kafka"))
