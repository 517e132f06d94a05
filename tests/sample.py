"""The sample of a test's cases that the quick tier takes."""

from collections.abc import Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], every: int = 4) -> list[Any]:
    """Return the cases as a test's parameters, of which the quick tier takes one in so many, and CI all."""
    return [case if at % every == 0 else pytest.param(case, marks=pytest.mark.ci) for at, case in enumerate(cases)]
