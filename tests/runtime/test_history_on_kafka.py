"""Recomputing, handing over and merging on a simulated Kafka come to what they come to on the embedded log."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.reprocessing.recomputation import take_over
from tests.building import build
from tests.runtime.test_handover import drawn_cuts, recompute
from tests.runtime.test_laws import crash_points, worlds
from tests.runtime.test_laws_on_kafka import check, filled
from tests.runtime.test_merging import crashes, merge_while_live_results_come, results
from tests.scale import examples
from tests.simulation.crash import CrashPoint, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster


@given(worlds(), st.data(), st.lists(crash_points, max_size=2))
@settings(max_examples=examples(16, 5_000))
def test_history_that_is_handed_over_and_the_rest_come_to_what_the_records_say(world, data, crashes):
    with tempfile.TemporaryDirectory() as name, simulated(Cluster(world.seed)):
        folder = Path(name)
        filled(world, folder)
        world.environment = world.outcome.environment = opened(folder / "here")
        recompute(world, drawn_cuts(data, world), crashes, folder / "handover")
        app = build(world.pipeline, world.options, world.seed)
        take_over(app.pipeline(), world.environment, folder / "handover")
        seen = world.outcome.sunk

        def see(place, event):
            seen[place, event] += 1

        run_once(build(world.pipeline, world.options, world.seed, on_sink=see), world.environment, world.seed)
        world.environment.close()
        check(world, folder / "anew")


@example([(b"b", 0, None)], [[], [(b"b", 0, 0)]], False, [CrashPoint("before_commit", 2)], 1)
@given(results, st.lists(results, max_size=4), st.booleans(), crashes, st.integers(1, 2))
@settings(max_examples=examples(30, 5_000))
def test_a_live_result_holds_whenever_it_comes(recomputed, live, is_windowed, crashes, partitions):
    with tempfile.TemporaryDirectory() as folder, simulated(Cluster()):
        environment = opened(Path(folder))
        merge_while_live_results_come(environment, recomputed, live, is_windowed, crashes, partitions)
        environment.close()
