"""The stories of docs/testing.md are true."""

import doctest
import inspect
import re

import pytest

from samza_dsl import laws, testing
from tests.source import ROOT

PAGE = ROOT / "docs" / "testing.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"`(testing|run|call|laws)\.(\w+)")

NO_DEADLINE = """
from hypothesis import settings
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
"""

pytest_plugins = ["pytester"]


@pytest.mark.ci
def test_every_story_of_the_page_passes(pytester):
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nfilterwarnings = ['error']")
    pytester.makeconftest(NO_DEADLINE)
    pytester.makepyfile(test_page="\n\n".join(FENCE.findall(PAGE.read_text())))
    result = pytester.runpytest_subprocess("-p", "pytest_samza_dsl", "-p", "no:asyncio", "-p", "no:cacheprovider")
    stories = len(re.findall("^def test_", PAGE.read_text(), re.MULTILINE))
    assert stories > 5
    result.assert_outcomes(passed=stories + 1 + 1 + 9)  # one has two moments, one is told twice, one has ten schedules


def test_the_page_names_all_that_there_is():
    kinds = {"testing": testing, "run": testing.TestRun, "call": testing.Call, "laws": laws}
    named = set(NAMES.findall(PAGE.read_text()))
    assert [(kind, name) for kind, name in named if not hasattr(kinds[kind], name)] == []
    table = PAGE.read_text().partition("## All of it")[2]
    steps = {name for name in vars(testing.TestRun) if not name.startswith("_")}
    assert steps - set(re.findall(r"`run\.(\w+)", table)) == set()


@pytest.mark.parametrize("name", testing.__all__)
def test_a_part_of_the_kit_has_a_docstring_with_an_example_that_runs(name):
    assert doctest.DocTestParser().get_examples(inspect.getdoc(getattr(testing, name)) or "")


def test_a_strategy_or_law_has_a_docstring_with_an_example_that_runs():
    functions = {name: one for name, one in vars(laws).items() if inspect.isfunction(one) and name[0] != "_"}
    ours = [one for one in functions.values() if one.__module__ == laws.__name__]
    assert len(ours) == 9
    assert all(doctest.DocTestParser().get_examples(inspect.getdoc(one) or "") for one in ours)


def test_the_readme_leads_here():
    assert "(docs/testing.md)" in (ROOT / "README.md").read_text()
