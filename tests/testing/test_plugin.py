"""The pytest plugin: fixtures, the story of a failed test, and that it costs nothing where it is not used."""

import subprocess
import sys
import textwrap
import tomllib

import pytest

from tests.source import ROOT

PLUGIN = "pytest_samza_dsl"
APP = """
from samza_dsl import App, testing

app = App("doubling")
app.input("numbers", value=int).map(lambda n: n * 2).send_to(app.output("doubles", value=int))
"""

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester):
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = ['-p', 'no:asyncio', '-p', 'no:cacheprovider']")
    return lambda tests, *how: (
        pytester.makepyfile(APP + textwrap.dedent(tests)),
        pytester.runpytest_subprocess("-p", PLUGIN, *how),
    )[1]


@pytest.mark.ci
def test_an_application_runs_and_is_ended(project):
    result = project(
        """
        def test_doubling(running):
            run, other = running(app, partitions={"numbers": 2}), running(app)
            run.send("numbers", 1, partition=1)
            assert run.read("doubles") == [2]
            assert other.read("doubles") == []
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.ci
def test_a_failed_test_shows_what_has_happened(project):
    result = project(
        """
        def test_doubling(running):
            run = running(app)
            run.send("numbers", 1)
            assert run.read("doubles") == [1]
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*what happened in doubling*", "*0 ms  sent 1 to numbers", "*0 ms  committed"])


@pytest.mark.ci
def test_a_crash_that_never_came_is_an_error(project):
    result = project(
        """
        def test_doubling(running):
            running(app).crash("before_commit")
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*AssertionError: CrashPoint(when='before_commit', number=1) was not reached*"])


@pytest.mark.ci
@pytest.mark.parametrize(("how", "number"), [((), 10), (("--samza-dsl-schedules=3",), 3)])
def test_a_test_runs_under_several_schedules(project, how, number):
    result = project(
        """
        def test_doubling(schedule):
            assert isinstance(schedule, testing.Schedule)
            assert testing.run(app, {"numbers": [1, 2]}, schedule) == {"doubles": [2, 4]}
        """,
        "-v",
        *how,
    )
    result.assert_outcomes(passed=number)
    result.stdout.fnmatch_lines([f"*test_doubling?schedule-{number - 1}?*"])


@pytest.mark.ci
def test_a_project_may_have_fixtures_of_these_names(project):
    result = project(
        """
        import pytest

        @pytest.fixture
        def schedule():
            return "every day"

        @pytest.fixture
        def running():
            return "up the hill"

        def test_its_own(schedule, running):
            assert (schedule, running) == ("every day", "up the hill")
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.ci
def test_the_fixtures_are_documented(project):
    result = project("", "--fixtures")
    result.stdout.fnmatch_lines(
        ["running*pytest_samza_dsl.py*", "*Start applications as `samza_dsl.testing.running` does*"]
    )
    result.stdout.fnmatch_lines(["schedule*pytest_samza_dsl.py*", "*Give a `samza_dsl.testing.Schedule`*"])


def test_pytest_loads_nothing_for_it(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_without():
            ours = {"samza_dsl", "runtime", "planner", "operators", "msgspec", "networkx", "lmdb"}
            assert "pytest_samza_dsl" in sys.modules
            assert not ours & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:hypothesispytest", "-p", "no:asyncio")
    result.assert_outcomes(passed=1)


@pytest.mark.ci
def test_the_kit_needs_no_hypothesis_and_no_pytest():
    program = f"""
import sys
import textwrap
sys.modules["hypothesis"] = sys.modules["pytest"] = None
{APP}
assert testing.run(app, {{"numbers": [1]}}) == {{"doubles": [2]}}
try:
    from samza_dsl import laws
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "samza_dsl.laws needs Hypothesis: install samza-dsl[laws]" in done.stdout


def test_it_is_registered_and_shipped():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert f"{PLUGIN}.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
