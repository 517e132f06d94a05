"""History on Spark itself: recomputed from archives and from the log, and handed over to the live run."""

import random
from collections import Counter
from contextlib import closing
from functools import partial

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runtime.assembly.history import beside
from runtime.model.history import HistorySpan
from runtime.reprocessing.ahead import Ahead
from runtime.reprocessing.backfill import backfill_of, over_history
from runtime.reprocessing.recomputation import take_over
from runtime.spark.batch import SparkEngine
from runtime.spark.recomputation import backfill_on_spark, staged_handover
from runtime.systems.files.archive import archive_stream
from runtime.systems.log.environment import LogEnvironment
from runtime.units.driver.application import Application
from runtime.units.driver.engine import run_together
from samza_dsl import App, Spark, count, produce, tumbling
from tests.building import build
from tests.runtime.test_backfill import check_evolved
from tests.runtime.test_laws import World
from tests.scale import examples
from tests.spark.test_on_spark import Tick
from tests.strategies import any_pipeline, any_records

NOT_SHRUNK = (Phase.explicit, Phase.generate)
"""Each example is a job."""
FIXTURES = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


def counting(seconds=1):
    app = App("counting")
    ticks = app.input("ticks", value=Tick, timestamp=lambda tick: tick.at, max_disorder_ms=100)
    panes = ticks.partition_by(lambda tick: tick.key, partitions=3).window(
        tumbling(seconds=seconds), count(), op_id="counts"
    )
    panes.map(lambda pane: {"key": pane.key, "start": pane.start, "n": pane.value}).send_to(app.output("counted"))
    return app


def ticks(seed, rows=400):
    """Return ticks in disorder, some of which are late."""
    chance = random.Random(seed)
    return [Tick(f"k{chance.randint(0, 6)}", max(row * 10 - chance.choice((0, 0, 500)), 0)) for row in range(rows)]


def counted(run):
    return Counter(tuple(sorted(one.items())) for one in run.received("counted"))


def test_an_archive_is_recomputed_handed_over_and_gone_on_with(session, tmp_path):
    app, data = counting(), tmp_path / "data"
    produce("ticks", ticks(1), data=data, key=lambda tick: tick.key, partitions=3)
    with closing(LogEnvironment(data)) as environment:
        archive_stream(environment, "ticks", tmp_path / "ticks", "parquet")
    produce("ticks", ticks(2), data=data, key=lambda tick: tick.key, end=True)
    how = {"bind": {"ticks": tmp_path / "ticks"}, "handover": tmp_path / "handover", "per_second": 5_000}
    history = counted(app.reprocess(data, on=Spark(session), **how))
    app.take_over(tmp_path / "handover", data)
    whole = counted(app.run(data))
    assert history and history < whole
    with closing(LogEnvironment(data)) as environment:
        environment.reset("counting")
        environment.delete_stream("counted")
    assert counted(app.run(data)) == whole


def test_the_log_is_recomputed_from_a_point_into_another_stream(session, tmp_path):
    app, data = counting(), tmp_path / "data"
    produce("ticks", ticks(1), data=data, key=lambda tick: tick.key, partitions=3)
    app.run(data, until_now=True)
    how = {"bind": {"counted": "stream:counted-again"}, "start": 20, "until": {"ticks:1": 30}}
    on_spark = counted(app.reprocess(data, on=Spark(session), **how))
    how["bind"] = {"counted": "stream:counted-locally"}
    assert on_spark == counted(app.reprocess(data, **how))
    assert sum(dict(one)["n"] * number for one, number in on_spark.items()) > 0


def test_drawn_pipelines_hand_over_on_spark_what_their_records_say(session, tmp_path):
    worlds, applications = [], []
    for seed in range(examples(24, 1_000)):
        chance = random.Random(1_000 + seed)
        pipeline = any_pipeline(chance)
        parts = any_records(chance, pipeline.partitions, nulls=pipeline.nulls)
        world = World(pipeline, parts, seed, build(pipeline).options)
        app = build(pipeline, pace=seed)
        cuts = {f"{place[0]}:{place[1]}": chance.randint(0, end) for place, end in world.outcome.ends().items()}
        staged = staged_handover(app.graph(), tmp_path / str(seed))
        own, span = beside(app.graph(), "recomputing"), HistorySpan(until=cuts, hands_over=True)
        applications.append(Application(app.pipeline().of(own), world.environment, {}, span, staged))
        worlds.append(world)
    run_together(SparkEngine(session, most_tasks=4), applications)
    for seed, world in enumerate(worlds):
        app = build(world.pipeline, world.options, world.seed)
        take_over(app.pipeline(), world.environment, tmp_path / str(seed))
        world.run()
        try:
            world.outcome.check_results()
        except AssertionError as error:
            error.add_note(f"seed {seed}: {world.pipeline}")
            raise


@given(chance=st.randoms(use_true_random=False), rounds=st.integers(0, 1))
@settings(max_examples=examples(4, 400), deadline=None, phases=NOT_SHRUNK, suppress_health_check=FIXTURES)
def test_what_was_computed_on_spark_goes_on_as_if_the_program_had_always_run_so(session, chance, rounds):
    def first_on(environment):
        return partial(backfill_on_spark, environment, on=Spark(session))

    check_evolved(chance, rounds=rounds, first_on=first_on)


def test_a_changed_window_is_computed_on_spark_and_goes_on_live(session, tmp_path):
    first, rest = ticks(5), [Tick(f"k{number % 7}", 4_000 + number * 10) for number in range(400)]
    for name in ("live", "always"):
        produce("ticks", first, data=tmp_path / name)
    before = counted(counting().run(tmp_path / "live", until_now=True))
    until = counted(counting(3).run(tmp_path / "always", until_now=True))
    pipeline, on = counting(3).pipeline(), Spark(session)
    with closing(LogEnvironment(tmp_path / "live")) as log:
        log.own("counting")
        ahead = Ahead(log, pipeline, partial(over_history, log), partial(backfill_on_spark, log, on=on))
        ahead.join(backfill_of(log, pipeline, ["counts"]))
        assert [*log.streams()] == ["counted", "counting-partition_by-ticks", "ticks"]
    for name in ("live", "always"):
        produce("ticks", rest, data=tmp_path / name)
    found, wanted = (counted(counting(3).run(tmp_path / name, until_now=True)) for name in ("live", "always"))
    assert found - before == wanted - until != Counter()
