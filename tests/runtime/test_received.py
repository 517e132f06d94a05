"""What an output has received, read back: values, missing ones, bound ones, and those that are something else."""

import pytest

from operators.core.base import Batch
from runtime.model.errors import SamzaError, SerdeError
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink
from samza_dsl import App


@pytest.fixture
def app():
    app = App("writing")
    app.input("numbers", value=int).send_to(app.output("out", value=int))
    return app


def environment_with(*values):
    environment = MemoryEnvironment()
    environment.create_stream("out", StreamConfig())
    environment.append([Append("out", 0, Batch(list(values)))])
    return environment


def test_a_record_without_a_value_is_none(app):
    assert app.run(environment_with(None), bind={"numbers": [1]}).received("out") == [None, 1]


def test_an_output_in_a_list(app):
    assert app.run(MemoryEnvironment(), bind={"numbers": [1, 2], "out": ListSink()}).received("out") == [1, 2]


def test_an_output_in_a_file(app, tmp_path):
    run = app.run(MemoryEnvironment(), bind={"numbers": [1], "out": tmp_path / "out.jsonl"})
    with pytest.raises(SamzaError, match=r"received\('out'\): the output is bound to /.*out.jsonl; read it there"):
        run.received("out")


def test_a_record_of_another_type(app):
    run = app.run(environment_with(b"1", b'"two"'), bind={"numbers": [3]})
    with pytest.raises(
        SerdeError, match=r"out/0 at 1 is not what .*int.* reads: .*; it was written with another value="
    ):
        run.received("out")


def test_a_stream_that_is_none(app):
    run = app.run(MemoryEnvironment(), bind={"numbers": [1]})
    with pytest.raises(SamzaError, match="there is no stream 'others' in the environment: it has out"):
        run.received("others")
