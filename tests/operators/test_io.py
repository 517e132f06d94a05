"""What inputs, tables and outputs say of themselves."""

import pytest

from operators.core.base import Output
from operators.io import Input, SendTo, SinkCall, TableInput
from runtime.encoding.serdes import Json
from samza_dsl import App, testing


@pytest.mark.parametrize(("stream", "is_pattern"), [("orders", False), ("orders-*", True), ("order?", True)])
def test_a_pattern_is_known_by_its_signs(stream, is_pattern):
    assert Input(stream=stream, value=Json()).is_pattern is is_pattern


def test_an_input_names_the_functions_that_it_has():
    spec = Input(stream="s", value=Json(), key_of=len)
    assert spec.functions() == {"key": len} and spec.source and not spec.terminal


def test_a_table_is_a_source_with_state():
    assert TableInput.source and TableInput.stateful and TableInput(stream="t", value=Json(), broadcast=True).broadcast


def test_writing_is_terminal():
    assert SendTo.terminal and SinkCall.terminal
    assert SendTo(output=Output("out", Json())).describe() == "out"


def test_a_sink_sees_every_message_in_order():
    app, seen = App("laws"), []
    app.input("numbers", value=int).sink(seen.append)
    testing.run(app, {"numbers": [3, 1, 2]})
    assert seen == [3, 1, 2]


def test_an_async_sink_sees_every_message():
    app, seen = App("laws"), []

    async def keep(number):
        seen.append(number)

    app.input("numbers", value=int).sink(keep)
    testing.run(app, {"numbers": [3, 1, 2]})
    assert sorted(seen) == [1, 2, 3]
