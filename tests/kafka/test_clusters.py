"""Several clusters at once: what is read of another one counts once, and what is written to it may be doubled."""

from collections import Counter

import pytest

from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, KafkaCluster, Options, String
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.kafka.sharing import shared_broker
from tests.kafka.test_runners import driven
from tests.kafka.topics import consume, create, produce
from tests.simulation.crash import Watched

WORDS = [f"w{number}".encode() for number in range(200)]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second cluster."""
    with shared_broker(tmp_path_factory.mktemp("other")) as broker:
        yield broker


@pytest.mark.parametrize("name", ["words", "out"])
def test_a_topic_of_another_cluster_is_read_exactly_once_and_written_at_least_once(
    name, broker, other, topics, tmp_path, caplog
):
    def app():
        app = App(topics, Options(commit_interval_ms=1, batch_records=20))
        words = app.input(f"{topics}-words", value=String())
        words.send_to(app.output(f"{topics}-out", value=String()))
        return app

    clusters = {"words": broker, "out": broker, name: other}
    create(clusters["words"], f"{topics}-words")
    produce(clusters["words"], f"{topics}-words", *((0, None, word) for word in WORDS))
    bind = {f"{topics}-{name}": f"kafka://{other.bootstrap}/{topics}-{name}"}
    environment = KafkaEnvironment(KafkaCluster(f"kafka://{broker.bootstrap}"), tmp_path)
    try:
        for crash in ("before_commit", "after_commit"):
            with pytest.raises(Crash):
                driven(app(), Watched(environment, CrashPoint(crash, 2)), bind, until_now=True)
        driven(app(), environment, bind, until_now=True)
    finally:
        environment.close()
    found = Counter(record.value for part in consume(clusters["out"], f"{topics}-out").values() for record in part)
    assert found.keys() == {*WORDS}
    assert (found == Counter(WORDS)) is (name == "words"), (
        "what died before its commit had written to the other cluster"
    )
    assert (f"/{topics}-out is written at least once" in caplog.text) is (name == "out")
