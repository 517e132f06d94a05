"""A stream that was deleted and made anew: what had read the old one says so, and goes on where it is told to."""

import asyncio
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from operators.core.base import Batch
from runtime.job.pipeline import Pipeline
from runtime.model.clock import LoopClock
from runtime.model.errors import Damaged
from runtime.ports.commits import Commit
from runtime.ports.streams import Append, StreamConfig
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App
from samza_dsl.data.positions import begin_anew, move_keeping
from tests.simulation.crash import NOW_MS, rows_of, run_once
from tests.simulation.kafka import opened, simulated
from tests.simulation.kafka_brokers import Cluster
from tests.simulation.loop import simulate

MADE_ANEW = (
    r"'numbers', partition 0, was made anew since it was read up to offset [23]: .*checkpoint set.*samza-dsl reset"
)


@pytest.fixture(params=["log", "memory", "kafka"])
def environment(request, tmp_path):
    with simulated(Cluster()) if request.param == "kafka" else nullcontext():
        makes = {"log": LogEnvironment, "memory": lambda directory: MemoryEnvironment(), "kafka": opened}
        environment = makes[request.param](tmp_path)
        yield environment
        environment.close()


def copying():
    app = App("copying")
    app.input("numbers", value=int).send_to(app.output("copy", value=int))
    return app


def write(environment, *values):
    environment.create_stream("numbers", StreamConfig())
    environment.append([Append("numbers", 0, Batch([b"%d" % value for value in values]))])


def made_anew(environment, *values):
    environment.delete_stream("numbers")
    write(environment, *values)


def copied(environment):
    return [int(value) for _, value, _ in rows_of(environment, "copy")[0]]


@pytest.fixture
def ran(environment):
    """The application has read two records, and a run of it that had nothing to read came after that."""
    write(environment, 1, 2)
    run_once(copying(), environment, until_now=True)
    run_once(copying(), environment, until_now=True)


def test_a_stream_that_has_grown_past_the_position_in_another_one_is_noticed(environment, ran):
    made_anew(environment, 3, 4, 5)
    for _ in range(2):
        with pytest.raises(Damaged, match=MADE_ANEW):
            run_once(copying(), environment, until_now=True)
    assert copied(environment) == [1, 2]


@pytest.mark.parametrize("until_now", [True, False])
@pytest.mark.parametrize("values", [(), (3,), (3, 4)])
def test_so_is_one_that_has_not_grown_so_far(environment, ran, values, until_now):
    made_anew(environment, *values)
    with pytest.raises(Damaged, match=rf"{MADE_ANEW}|has no offset [23]: .* was made anew.*samza-dsl reset"):
        run_once(copying(), environment, until_now=until_now)
    assert copied(environment) == [1, 2]


@pytest.mark.parametrize("environment", ["log", "memory"], indirect=True)  # on Kafka: tests/kafka/test_bound.py
def test_it_is_noticed_by_a_run_that_goes_on(environment, ran):
    async def main():
        run = Run(Pipeline(copying().graph(), copying().options), environment, RunSettings(clock=LoopClock(NOW_MS)))
        driving = asyncio.create_task(run.drive())
        await run.settled()
        made_anew(environment, 3, 4, 5)
        await driving

    with pytest.raises(Damaged, match=MADE_ANEW):
        simulate(main)
    assert copied(environment) == [1, 2]


@pytest.mark.parametrize(
    ("go_on", "read"),
    [
        (lambda environment: begin_anew(environment, "copying"), [3, 4, 5]),
        (lambda environment: move_keeping(environment, "copying", {("numbers", 0): 1}), [4, 5]),
    ],
    ids=["reset", "checkpoint set"],
)
def test_it_is_read_from_where_it_is_said(environment, ran, go_on, read):
    made_anew(environment, 3, 4, 5)
    go_on(environment)
    for _ in range(2):
        run_once(copying(), environment, until_now=True)
    assert copied(environment) == [1, 2, *read]
    made_anew(environment, 6, 7, 8, 9)
    with pytest.raises(Damaged, match="was made anew"):
        run_once(copying(), environment, until_now=True)


def test_it_is_read_from_its_start_where_that_is_said(environment, ran):
    made_anew(environment, 3, 4, 5)
    run_once(copying(), environment, until_now=True, from_start=True, state="keep")
    assert copied(environment) == [1, 2, 3, 4, 5]


def test_a_position_that_does_not_say_of_which_stream_it_is_is_of_any(environment, ran):
    before = environment.checkpoints("copying")["0"]
    positions = tuple(replace(position, stream_id=0) for position in before.positions)
    generation = environment.own("copying")
    older = {"0": replace(before, generation=generation, positions=positions)}
    environment.commit(Commit("copying", generation, [], [], older))
    made_anew(environment, 3, 4, 5)
    run_once(copying(), environment, until_now=True)
    (position,) = positions
    assert copied(environment) == [1, 2, *[3, 4, 5][position.offset :]]
