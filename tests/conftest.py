"""What all tests share: how hard Hypothesis looks, and that in CI nothing is skipped."""

import os

import pytest
from hypothesis import settings

from tests.scale import SCALE, scale

settings.register_profile(SCALE, max_examples=scale(40, 200, 2_000), deadline=None, print_blob=True)
settings.load_profile(SCALE)


def refuse_skip(report):
    """Make a skip a failure: what CI does not run, nobody knows."""
    if "CI" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: a test may not be skipped in CI ({reason})"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    return refuse_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return refuse_skip((yield))
