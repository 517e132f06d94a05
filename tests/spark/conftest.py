"""One Spark session for all tests that need one: it takes as long to begin as many tests do."""

import pytest

from samza_dsl import Spark
from tests.scale import SCALE

NEED_SPARK = [
    f"test_{name}.py"
    for name in (
        "on_spark",
        "declared_on_spark",
        "equal_keys_on_spark",
        "laws_on_spark",
        "cluster",
        "reprocess_on_spark",
        "streaming_on_spark",
        "kafka_on_spark",
        "failures_on_spark",
        "inputs_on_spark",
        "jobs_by_hand",
        "input_types_on_spark",
        "outputs_on_spark",
        "output_types_on_spark",
        "landing_on_spark",
        "ways_on_spark",
    )
]
collect_ignore = NEED_SPARK if SCALE == "quick" else []


@pytest.fixture(autouse=True)
def real_time(request, monkeypatch):
    """Give the calls of drawn pipelines longer on Spark, where time is not virtual."""
    if "session" in request.fixturenames:
        monkeypatch.setattr("tests.building.TIMEOUT_MS", 600)


@pytest.fixture(scope="session")
def session():
    """Return a session on two cores of this machine."""
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    found = Spark(master="local[2]", options=quiet).opened()
    yield found
    found.stop()


@pytest.fixture
def table(session, request):
    """Return the name of a table that is not there."""
    name = f"outputs_{abs(hash(request.node.name)):x}"
    session.sql(f"DROP TABLE IF EXISTS {name}")
    yield name
    session.sql(f"DROP TABLE IF EXISTS {name}")
