"""State that is brought back from changelogs is told while it comes, by store and task, on a simulated Kafka."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.checkpoint import Checkpoint, Position
from runtime.model.metrics import ContainerMetrics, RestoreMetrics, RunMetrics
from runtime.model.restores import coming_back
from runtime.ports.commits import Commit
from runtime.ports.state import StateWrites
from runtime.ports.streams import StreamConfig
from runtime.systems.kafka.state import changelog
from runtime.watching.exposition import prometheus_text
from runtime.watching.server import Request
from runtime.watching.watcher import Watcher
from samza_dsl.room.look import _container
from tests.scale import examples
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import MARKERS_S, Cluster
from tests.strategies import APP

entries = st.dictionaries(
    st.tuples(st.sampled_from(("count", "total")), st.integers(0, 2)), st.integers(1, 30), min_size=1
)


def answer(watcher, path):
    """Return a page, for which nothing is waited before a run has begun; an event loop turns here already."""
    try:
        watcher.pages[path].answer(Request()).send(None)
    except StopIteration as found:
        return found.value.text


@given(held=entries, seed=st.integers(0, 100))
@settings(max_examples=examples(10, 200), deadline=None)
def test_each_store_and_task_is_told_from_nothing_to_all_and_then_no_more(held, seed):
    cluster, seen, watcher, told = Cluster(seed), [], Watcher(app=APP), []

    def look(rows, store, one, begun):
        found = entries_in(rows, store, one, begun)
        seen.append({(each.store, each.task): (each.restored, each.records) for each in coming_back(APP)})
        told[:] = told or [answer(watcher, path) for path in ("/readyz", "/metrics")]
        return found

    entries_in, changelog.entries_in = changelog.entries_in, look
    try:
        with tempfile.TemporaryDirectory() as name, simulated(cluster) as thread:
            first = opened(Path(name) / "first")
            first.create_stream("words", StreamConfig(partitions=3))
            run = first.own(APP)
            written = [
                StateWrites(store, task, [(b"%03d" % key, b"1") for key in range(number)])
                for (store, task), number in held.items()
            ]
            said = {str(task): Checkpoint(run, (Position("log", "words", task, 1),)) for _, task in held}
            first.commit(Commit(APP, run, [], written, said))
            first.close()
            thread.catch_up(cluster.loop.time() + MARKERS_S)
            second = opened(Path(name) / "second")
            second.own(APP)
            assert second.restored(APP) == sum(held.values())
            second.close()
    finally:
        changelog.entries_in = entries_in
    assert {*seen[0]} == {(store, str(task)) for store, task in held}, "those that wait are told, too"
    for place, number in held.items():
        came = [one[place[0], str(place[1])] for one in seen]
        assert came == sorted(came) and came[0][0] == 0 and all(number <= of for _, of in came)
    assert coming_back(APP) == ()
    ready, metrics = told
    assert "brings the state of" in ready and "has not begun" in ready
    assert "samza_state_restoring{" in metrics


def test_a_container_that_brings_state_back_says_so_on_all_pages():
    one = RestoreMetrics(store="total", task="3", restored=450, records=1_000)
    container = ContainerMetrics(container="1", settled=False, restoring=(one,))
    told = "brings the state of 'total' in task 3 back: 450 of 1,000 records, 45 %"
    text = prometheus_text("app", RunMetrics(containers=(container,)), 0)
    assert 'samza_state_restoring{app="app",container="1",operator="total",task="3"} 550.0' in text
    assert told in _container(container, {}).words
