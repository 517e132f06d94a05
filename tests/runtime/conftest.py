"""An app, and the data directory on which it runs."""

import pytest

from samza_dsl import App
from tests.runtime.written_log import Log


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "data")


@pytest.fixture
def app():
    return App("runs")
