"""The pytest plugin of samza-dsl: fixtures for its testing kit, which is loaded when a test asks for one."""

# A module of its own at the top: pytest loads it at every start, and must not load samza_dsl for that.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from samza_dsl import App
    from samza_dsl.testing import Schedule, TestRun

    Running = Callable[..., TestRun]

SCHEDULES = 10
_STORIES = pytest.StashKey[list["TestRun"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's one option."""
    group = parser.getgroup("samza-dsl")
    group.addoption(
        "--samza-dsl-schedules",
        type=int,
        default=SCHEDULES,
        metavar="N",
        help=f"under how many schedules a test with the fixture `schedule` runs (default: {SCHEDULES})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Define the fixture whose number of values is an option."""
    config.pluginmanager.register(_schedules(config.getoption("--samza-dsl-schedules")), "samza-dsl-schedules")


def _schedules(number: int) -> object:
    class Schedules:
        @pytest.fixture(params=range(number), ids=[f"schedule-{seed}" for seed in range(number)])
        def schedule(self, request: pytest.FixtureRequest) -> Schedule:
            """Give a `samza_dsl.testing.Schedule`, with crashes; the test runs under several, the same every time."""
            from samza_dsl import testing

            return testing.schedule(request.param)

    return Schedules()


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Start applications as `samza_dsl.testing.running` does, and end them with the test.

    When the test fails, the report tells what has happened in them.
    """
    from samza_dsl import testing

    started = request.node.stash.setdefault(_STORIES, [])
    with ExitStack() as stack:

        def start(app: App, inputs: Mapping[str, Sequence[Any]] | None = None, **how: Any) -> TestRun:
            run = stack.enter_context(testing.running(app, inputs, **how))
            started.append(run)
            return run

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test what has happened in its applications."""
    report = yield
    if report.when == "call" and report.failed:
        for run in item.stash.get(_STORIES, []):
            report.sections.append((f"what happened in {run.name}", run.story))
    return report
