"""A driver that dies while files, streams of the log and topics become visible: none is lost, and none comes twice."""

from collections import Counter
from contextlib import closing, contextmanager, suppress
from functools import partial

import pytest

from runtime.ports.stream_values import values_of
from runtime.systems.kafka.streams import publication as kafka_published
from runtime.systems.kafka.streams.publication import KafkaPublisher
from runtime.systems.log import staging as log_staging
from runtime.systems.log.environment import LogEnvironment, verify
from runtime.units.driver import application
from runtime.units.publication.intent import Intent
from runtime.units.publication.staged_topics import StagedRows, StagedTopics
from samza_dsl import App, SamzaError, dead_letter
from tests.kafka.topics import consume
from tests.spark.deaths import death
from tests.spark.shuffling import run_here
from tests.spark.test_kafka_in_micro_batches import DyingInTransactions
from tests.spark.test_streaming import dying

pytestmark = pytest.mark.ci

NUMBERS, REFUSED = range(20), range(0, 20, 7)
TAKEN = Counter(set(NUMBERS) - set(REFUSED))


def checked(number):
    if number in REFUSED:
        raise ValueError(number)
    return number


def app():
    app = App("writing")
    numbers = app.input("numbers", value=int).map(checked, on_error=dead_letter("refused"))
    for name in ("filed", "logged", "sent"):
        numbers.send_to(app.output(name, value=int))
    return app


def check(data, bind, broker, topic):
    """See that each output has each number once; of one that is refused nothing is left but a dead letter."""
    with closing(LogEnvironment(data)) as log:
        found = {name: Counter(map(int, values_of(log, name, None))) for name in log.streams()}
    if "filed" in bind:
        found["filed"] = Counter(map(int, bind["filed"].read_text().splitlines()))
    found["sent"] = Counter(int(one.value) for part in consume(broker, topic).values() for one in part)
    assert found == {"filed": TAKEN, "logged": TAKEN, "sent": TAKEN, "refused": Counter(REFUSED)}
    assert verify(data) == []
    left = [path.name for path in (data / "spark").rglob("*") if path.is_file()]
    assert left == ["lock"], "nothing is left to be done"


STEPS = [
    (application, "note", 1),
    (StagedTopics, "note", 1),
    (StagedRows, "remove", 2),  # the first one is of what others have left
    (LogEnvironment, "publish", 1),
    (Intent, "rename", 1),
    (Intent, "sweep", 1),
    (application, "forget", 1),
    (StagedTopics, "go_on", 1),
    (KafkaPublisher, "forget", 1),
]


def deaths(is_before):
    """Yield what names a death, and what has a driver die so."""
    for where, step, number in STEPS:
        yield f"{where.__name__}.{step}", partial(dying, where, step, is_before, number)
    for number in (1, 2, 3):
        yield f"transaction {number}", DyingInTransactions(is_before, number).patched


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("has_file", "is_before"),
    [(True, True), (False, False), *(pytest.param(one, not one, marks=pytest.mark.long) for one in (True, False))],
)
def test_files_streams_and_topics_are_there_once_whenever_a_driver_dies(
    broker, topics, tmp_path, monkeypatch, has_file, is_before
):
    monkeypatch.setattr(log_staging, "STAGED_BYTES", 1)
    monkeypatch.setattr(kafka_published, "ROWS", 7)
    for number, (name, dies) in enumerate(deaths(is_before)):
        directory = tmp_path / str(number)
        directory.mkdir()
        data, topic = directory / "data", f"{topics}-{number}"
        bind = {"numbers": list(NUMBERS), "sent": f"kafka://{broker.bootstrap}/{topic}"}
        bind |= {"filed": directory / "filed.jsonl"} if has_file else {}
        with death(), dies():
            run_here(app(), data, bind)
        with suppress(SamzaError):  # where all was done already
            assert run_here(app(), data, bind).metrics().received("numbers") == len(NUMBERS), name
        with telling(name):
            check(data, bind, broker, topic)
        with pytest.raises(SamzaError, match=r"holds records already|has something in it already"):
            run_here(app(), data, bind)


@contextmanager
def telling(name):
    """Say of a failed check how the driver had died."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"the driver had died at {name}")
        raise
