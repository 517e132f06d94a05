"""Which of the tests on a real broker are quick: the others run in CI."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.brokers import Brokers, free_ports
from tests.kafka.rights import Guarded, guarded

HERE = Path(__file__).parent
QUICK = (
    "test_a_batch_holds_what_is_given_record_by_record",
    "test_a_broker_runs_in_a_directory_once",
    "test_a_commit_shows_everything_together",
    "test_a_pipeline_reads_a_topic_and_writes_another",
    "test_a_pipeline_with_state_goes_on_where_it_was_left",
    "test_an_earlier_owner_is_fenced_wherever_it_runs",
    "test_an_offset_that_retention_has_removed_stops_the_run",
    "test_java_trusts_what_python_does",
    "test_no_broker_runs_where_none_was_started",
    "test_what_is_not_installed_is_told_with_its_extra",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to CI what is not quick."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.originalname not in QUICK:  # type: ignore[attr-defined]
            item.add_marker("ci")


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Let what a test leaves that ends as a killed process would, clients that nobody closes, be gone with it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run a cluster that guards what it has."""
    brokers = Brokers(tmp_path_factory.mktemp("guarded") / "broker")
    found = guarded(brokers, dict(zip(("PASSWORD", "TOKEN"), free_ports(2), strict=True)))
    try:
        brokers.start()
        yield found
    finally:
        brokers.stop()
