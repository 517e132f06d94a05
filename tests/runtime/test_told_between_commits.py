"""Event time that later stages hear of between two commits: the same results, and no store sees what has ended."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from planner.model.levers import ALL
from runtime.run.run import run_blocking
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options, after_count, count, testing, tumbling
from samza_dsl.testing import Schedule
from samza_dsl.testing.environment import MortalEnvironment

RECORDS = st.lists(st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), max_size=25), min_size=1, max_size=3)


class Counting(MemoryEnvironment):
    """Counts the entries of state that commits bring."""

    def __init__(self):
        super().__init__()
        self.entries, self.commits = 0, 0

    def commit(self, commit):
        self.entries += sum(len(writes.items) for writes in commit.state)
        self.commits += 1
        super().commit(commit)


def run(parts, batch_records, lateness=0, early=None, levers=ALL):
    """Count by key, and the counts by window, in three stages; nothing is committed before it must be."""
    app = App("told", options=Options(batch_records=batch_records, commit_interval_ms=3_600_000))
    panes = (
        app.input("records", value=tuple[int, str], timestamp=lambda r: r[0], max_disorder_ms=60 if lateness else 0)
        .partition_by(lambda r: r[1], value=tuple[int, str], op_id="by-key")
        .window(tumbling(milliseconds=10), count(), allowed_lateness_ms=lateness, early=early, op_id="first")
    )
    panes.partition_by(lambda pane: pane.start, op_id="by-start").window(
        tumbling(milliseconds=20), count(), op_id="second"
    ).map(lambda pane: (pane.key, pane.start, pane.value)).send_to(app.output("out"))
    sink, environment = ListSink(columns=()), Counting()
    source = ListSource(parts if len(parts) > 1 else parts[0], None, None, len(parts))
    run_blocking(app.pipeline(), environment, RunSettings(bind={"records": source, "out": sink}, levers=levers))
    return sorted(map(repr, sink.values)), environment


@given(RECORDS, st.sampled_from([1, 2, 7, 100]), st.sampled_from([0, 5]), st.sampled_from([None, after_count(2)]))
def test_results_are_those_of_commits_alone(parts, batch_records, lateness, early):
    told, _ = run(parts, batch_records, lateness, early)
    committed, _ = run(parts, batch_records, lateness, early, replace(ALL, relays=False))
    assert told == committed


@given(st.integers(0, 99), st.sampled_from((1, 2, 4)))
def test_tasks_that_commit_at_once_say_once_how_far_event_time_is(seed, factor):
    """None takes for its own what the commit of another one has said, or says again and again what it has said."""
    app = App("told", Options(commit_interval_ms=5, commit_by="task", elasticity=factor))
    numbers = app.input("numbers", value=int, partitions=2).partition_by(lambda n: n, key_type=int)
    numbers.map(lambda n: n).send_to(app.output("out", value=int))
    said: list[tuple[str, int]] = []

    def commit(environment, one):
        controls = {(append.stream, append.partition): append.control for append in one.appends if append.control}
        said.extend((control.producer, place) for place, control in controls.items())
        assert len(said) <= 2 * (2 * factor) ** 2, "each says to each partition once that there is nothing"
        MemoryEnvironment.commit(environment, one)

    with patch.object(MortalEnvironment, "commit", commit):
        assert testing.run(app, {"numbers": [[], []]}, Schedule(seed)) == {"out": []}


def test_windows_that_end_between_two_commits_come_to_no_store():
    many = [(at, "abc"[at % 3]) for at in range(3_000)]
    found, environment = run([many], batch_records=50)
    rows, _ = run([many], batch_records=50, levers=replace(ALL, relays=False))
    assert found == rows
    assert len(found) == 300
    # Those of the last batches alone, of the 1,200 windows of both stages: event time is told each 100 messages.
    assert environment.entries < 240
