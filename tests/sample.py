"""The sample of a test's cases that a tier takes."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def sample(cases: Iterable[Any], every: int = 4, ci: int = 1) -> list[Any]:
    """Return the cases as a test's parameters: the quick tier one in `every`, CI one in `ci`, the long tier all."""

    def tier(at: int) -> Any:
        return pytest.mark.long if at % ci else pytest.mark.ci if at % every else ()

    return [pytest.param(case, marks=tier(at)) for at, case in enumerate(cases)]


def crossed(*axes: Iterable[Any]) -> list[Any]:
    """Return all combinations as a test's parameters, of which CI takes one in as many as the last axis has.

    Each value of each axis is among them; of three axes of one length, each pair of values as well, once.
    """
    tables = [[*axis] for axis in axes]
    places = product(*(range(len(table)) for table in tables))
    return [
        pytest.param(
            *(table[at] for table, at in zip(tables, place, strict=True)),
            marks=pytest.mark.long if sum(place) % len(tables[-1]) else (),
        )
        for place in places
    ]
