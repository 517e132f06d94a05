"""A fork on a simulated Kafka goes on as the application does that it was made of, its tasks split or whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.virtual_tasks import is_task
from runtime.model.errors import SamzaError
from runtime.ports.streams import StreamConfig
from runtime.reprocessing.fork import difference, fork_now, forked, is_forked, starts_of
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import App, Json, Options, String
from tests.runtime.test_fork import NAME, run_fork
from tests.runtime.test_laws_on_kafka import troubles
from tests.runtime.test_repartitioning_on_kafka import WORDS, write
from tests.scale import examples
from tests.simulation.crash import run_once
from tests.simulation.kafka import die, opened, simulated
from tests.simulation.kafka_brokers import PROCESS, Cluster, Died, Trouble

OWN, PAIR = f"counting.{NAME}", ("counts", forked(NAME, "counts"))


def counting(factor: int) -> App:
    app = App("counting", Options(commit_interval_ms=5, elasticity=factor))
    words = app.input("words", value=String(), key=str)
    counts = words.partition_by(lambda word: word, partitions=2, op_id="by-word").scan(
        lambda total, word: (total or 0) + 1, emit=lambda word, total: [word, total], op_id="count"
    )
    counts.send_to(app.output("counts", value=Json(list)))
    return app


@contextmanager
def process(cluster: Cluster, directory: Path, troubles: Sequence[Trouble] = ()) -> Iterator[KafkaEnvironment]:
    """Have a process do something, and be gone where a trouble strikes it."""
    environment = opened(directory)
    cluster.changes, cluster.troubles = 0, [*troubles]
    try:
        yield environment
    except (Died, SamzaError):
        assert len(cluster.troubles) < len(troubles), "it was struck"
        die(cluster, environment)
    else:
        environment.close()
    finally:
        cluster.troubles = []


def fork(cluster: Cluster, directory: Path, troubles: Sequence[Trouble]) -> None:
    """Fork the application, where it has committed anything, in a process of its own."""
    token = PROCESS.set("forking")
    try:
        with process(cluster, directory, troubles) as environment:
            if any(map(is_task, environment.checkpoints("counting"))) and not is_forked(environment, OWN):
                fork_now(environment, "counting", OWN, ["counts"])
    finally:
        PROCESS.reset(token)


@given(st.sampled_from([1, 2, 4]), st.integers(0, 999), troubles, troubles)
@settings(max_examples=examples(12, 5_000))
def test_it_goes_on_as_the_application_does_whatever_befalls_both(factor, seed, before, meanwhile):
    cluster, app = Cluster(seed), partial(counting, factor)
    with simulated(cluster), TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        with process(cluster, here) as environment:
            environment.create_stream("words", StreamConfig(partitions=2))
            write(environment, WORDS)
        with process(cluster, here, before) as environment:
            run_once(app(), environment, seed, until_now=True)
            # While it lives: brokers may not have marked yet what it has committed, here or there.
            fork(cluster, there, meanwhile)
        fork(cluster, there, ())
        with process(cluster, here) as environment:
            if not is_forked(environment, OWN):
                return
            write(environment, WORDS)
            environment.end_stream("words")
        with process(cluster, here) as environment:
            run_once(app(), environment, seed)
        with process(cluster, there) as environment:
            run_fork(environment, app(), seed)
        with process(cluster, here) as environment:
            found = difference(environment, PAIR, starts_of(environment, PAIR))
        assert found.only == ({}, {})
        assert found.both >= len(WORDS)
