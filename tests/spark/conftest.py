"""One Spark session for all tests that need one: it takes as long to begin as many tests do."""

import pytest

from samza_dsl import Spark
from tests.scale import SCALE

ON_SPARK = ["test_on_spark.py", "test_laws_on_spark.py", "test_cluster.py", "test_streaming_on_spark.py"]
collect_ignore = ON_SPARK if SCALE == "quick" else []


@pytest.fixture(scope="session")
def session():
    """Return a session on two cores of this machine."""
    quiet = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    found = Spark(master="local[2]", options=quiet).opened()
    yield found
    found.stop()
