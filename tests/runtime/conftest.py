"""An app, and the data directory on which it runs."""

import pytest

from samza_dsl import App
from tests.runtime.written_log import Log
from tests.simulation.kafka import simulated
from tests.simulation.kafka_brokers import Cluster


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "data")


@pytest.fixture
def app():
    return App("runs")


@pytest.fixture
def cluster():
    """Simulated brokers, which all that asks for Kafka meets."""
    cluster = Cluster()
    with simulated(cluster):
        yield cluster
