"""One list of pipelines, run by every runner: the live one is what others are compared with."""

import pytest

from runtime.ports.stream_values import values_of
from samza_dsl import App, SamzaError
from samza_dsl.testing import unordered
from tests.conformance.pipelines import PIPELINES, app_of, filled
from tests.conformance.process_pool import process_pool, run_in_pool
from tests.sample import sample
from tests.simulation.crash import run_once
from tests.spark.shuffling import run_here
from tests.spark.streaming import stream_here
from tests.test_complete import specs


def results(app, environment):
    """Return the values of all that an application has written."""
    written = app.plan(counts(environment)).results
    return unordered({stream.name: values_of(environment, stream.name, None) for stream in written})


def counts(environment):
    return {name: config.partitions for name, config in environment.streams().items()}


def lived(name):
    app, environment = app_of(name), filled()
    run_once(app, environment)
    return results(app, environment)


@pytest.mark.parametrize("name", sample(PIPELINES))
def test_units_between_shuffles_come_to_what_the_live_run_comes_to(name):
    app, environment = app_of(name), filled()
    run_here(app, environment)
    expected = lived(name)
    assert results(app, environment) == expected
    assert name == "called" or any(expected.values())


@pytest.fixture(scope="module")
def engine():
    with process_pool() as engine:
        yield engine


@pytest.mark.parametrize("name", sample(PIPELINES))
def test_an_engine_of_a_hundred_lines_comes_to_what_the_live_run_comes_to(name, engine):
    app, environment = app_of(name), filled()
    run_in_pool(engine, app, environment)
    expected = lived(name)
    assert results(app, environment) == expected
    assert name == "called" or any(expected.values())


def test_an_error_in_a_process_of_an_engine_is_the_error_of_its_operator(engine):
    app = App("failing")
    app.input("numbers", value=int).map(lambda number: 1 // number, op_id="divided").send_to(app.output("out"))
    with pytest.raises(SamzaError, match=r"map 'divided' at .*test_runners.py:\d+: ZeroDivisionError"):
        run_in_pool(engine, app, filled(), {"numbers": [1, 0]})


@pytest.mark.parametrize("name", sample(PIPELINES))
def test_micro_batches_come_to_what_the_live_run_comes_to(name, tmp_path):
    environment = filled()
    stream_here(lambda: app_of(name), environment, tmp_path)
    expected = lived(name)
    assert results(app_of(name), environment) == expected
    assert name == "called" or any(expected.values())


def test_the_pipelines_use_every_operator():
    used = {type(spec).__name__ for name in PIPELINES for spec in app_of(name).graph().specs.values()}
    assert {spec.__name__ for spec in specs()} == used
