"""An async flat map gives what the plain one gives, whatever the order in which its calls end."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.async_flat_map import AsyncFlatMap
from samza_dsl import App, testing

TURNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20)


def results(messages, order, max_in_flight):
    async def slowly(message):
        number, turns = message
        for _ in range(turns):
            await asyncio.sleep(0)
        return [number] * (number % 3)

    app = App("laws")
    messages_in = app.input("messages", value=tuple[int, int], key=lambda message: message[0])
    called = messages_in.async_flat_map(slowly, order=order, max_in_flight=max_in_flight)
    called.send_to(app.output("out", value=int))
    return testing.run(app, {"messages": messages})["out"]


@pytest.mark.parametrize("order", ["partition", "key", "none"])
@given(TURNS, st.integers(1, 5))
def test_the_messages_are_those_of_the_plain_flat_map(order, messages, max_in_flight):
    expected = [number for number, _ in messages for _ in range(number % 3)]
    assert sorted(results(messages, order, max_in_flight)) == sorted(expected)


@given(TURNS, st.integers(1, 5))
def test_in_partition_order_they_come_in_input_order(messages, max_in_flight):
    expected = [number for number, _ in messages for _ in range(number % 3)]
    assert results(messages, "partition", max_in_flight) == expected


def test_it_tells_how_it_calls():
    async def nothing(value):
        return ()

    spec = AsyncFlatMap(function=nothing, max_in_flight=5, timeout_ms=2_000)
    assert spec.asynchronous and spec.describe() == "≤ 5 in flight, order by key, 2,000 ms"
