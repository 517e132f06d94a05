"""The pipelines that every runner runs, live on a real broker: what they come to is the same, whenever they die."""

import asyncio
from contextlib import suppress
from unittest.mock import patch

import pytest

from runtime.model.clock import SystemClock
from runtime.ports.stream_values import values_of
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.kafka.environment import KafkaEnvironment
from samza_dsl import KafkaCluster, Options
from samza_dsl.testing import unordered
from samza_dsl.testing.environment import Crash, CrashPoint
from tests.conformance import pipelines
from tests.conformance.pipelines import PIPELINES, app_of
from tests.conformance.test_runners import counts, lived
from tests.kafka.sharing import shared_broker
from tests.sample import sample
from tests.simulation.crash import NOW_MS, Watched

OFTEN = Options(commit_interval_ms=1, batch_records=16)


class Noon(SystemClock):
    """A wall clock that stands still, so that no window by the clock ends meanwhile."""

    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A broker that has the streams that the pipelines read."""
    directory = tmp_path_factory.mktemp("kafka")
    with shared_broker(directory) as broker:
        cluster = KafkaCluster(f"kafka://{broker.bootstrap}")
        with patch.object(pipelines, "memory", lambda: KafkaEnvironment(cluster, directory / "filled")):
            pipelines.filled().close()
        yield cluster


@pytest.mark.parametrize("name", sample(PIPELINES, every=3, ci=3))
def test_a_pipeline_comes_on_a_broker_to_what_it_comes_to_elsewhere(name, cluster, tmp_path):
    environment = KafkaEnvironment(cluster, tmp_path)
    try:
        app = app_of(name, OFTEN)
        written = [stream.name for stream in app.plan(counts(environment)).results]
        bind = {stream: f"stream:{app.name}-{stream}" for stream in written}
        with pytest.raises(Crash):
            driven(app_of(name, OFTEN), Watched(environment, CrashPoint("before_commit", 2)), bind)
        with suppress(Crash):  # where it takes so many commits
            driven(app_of(name, OFTEN), Watched(environment, CrashPoint("after_commit", 2)), bind)
        driven(app_of(name, OFTEN), environment, bind)
        found = {stream: values_of(environment, bind[stream].removeprefix("stream:"), None) for stream in written}
    finally:
        environment.close()
    assert unordered(found) == lived(name)


def driven(app, environment, bind, **how):
    """Run an application to its end, or to a crash."""

    async def main():
        await Run(app.pipeline(), environment, RunSettings(clock=Noon(), bind=bind, **how)).drive()

    asyncio.run(main())
