"""A run that is held back to a rate reads no more than that, and commits no more often than others."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.clock import LoopClock
from runtime.model.history import HistorySpan
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from samza_dsl import App, Options, count, tumbling
from tests.simulation.crash import NOW_MS, Watched, memory
from tests.simulation.loop import simulate


def took(app, records, per_second, sizes=10_000, partitions=1):
    """Run over so many records, appended in batches of a size; return the seconds it took, and its commits."""
    environment = memory()
    environment.create_stream("numbers", StreamConfig(partitions=partitions))
    for partition in range(partitions):
        for start in range(0, records, sizes):
            rows = [str(number).encode() for number in range(start, min(start + sizes, records))]
            environment.append([Append("numbers", partition, Batch(rows))])
    watched = Watched(environment)

    async def main():
        clock = LoopClock(NOW_MS)
        began = clock.elapsed_ms()
        run = Run(
            app.pipeline(),
            watched,
            RunSettings(clock=clock, span=HistorySpan(per_second=per_second)),
        )
        await run.drive()
        return clock.elapsed_ms() - began

    seconds = simulate(main) / 1_000
    written = sum(
        environment.offsets("out", partition).end for partition in range(environment.streams()["out"].partitions)
    )
    assert written == records * partitions
    return seconds, len(watched.commits)


def passing(**options):
    app = App("passing", Options(**options))
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    return app


@given(st.integers(1, 3_000), st.sampled_from((1, 7, 500, 10_000)), st.integers(1, 3))
def test_no_more_is_read_than_the_rate_allows(records, sizes, partitions):
    seconds, _ = took(passing(), records, 1_000, sizes, partitions)
    wanted = records * partitions / 1_000
    assert wanted - 0.3 <= seconds <= wanted * 1.2 + 0.3


def test_without_a_rate_nothing_is_waited_for():
    seconds, _ = took(passing(), 3_000, None)
    assert seconds < 0.1


def test_a_run_that_waits_for_its_rate_does_not_commit_for_it():
    _, commits = took(passing(commit_interval_ms=5_000), 10_000, 1_000)
    assert commits <= 4  # the first says what the application is run with


def test_stages_behind_the_first_are_not_held_back():
    app = App("counting")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n).partition_by(lambda n: n, partitions=2)
    panes = numbers.window(tumbling(milliseconds=1), count())
    panes.map(lambda pane: pane.value).send_to(app.output("out", value=int))
    seconds, _ = took(app, 1_000, 500)
    assert seconds <= 3
