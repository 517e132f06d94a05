"""A join with a remote table gives what a join with a dict gives, however its keys are gathered and kept."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.policies import fail
from operators.joins.remote_join import RemoteJoin, RemoteRows
from samza_dsl import App, remote_table, testing

ROWS = {number: f"row {number}" for number in range(5)}
MESSAGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=20)


def results(messages, how, **said):
    async def fetch_many(keys):
        for _ in range(sum(keys) % 3):
            await asyncio.sleep(0)
        return {key: ROWS[key] for key in keys if key in ROWS}

    app = App("laws")
    messages_in = app.input("messages", value=tuple[int, int], key=lambda message: message[0])
    joined = messages_in.join(remote_table(fetch_many, **said), lambda m, row: (*m, row), on=lambda m: m[1], how=how)
    joined.send_to(app.output("out", value=tuple[int, int, str | None]))
    return testing.run(app, {"messages": messages})["out"]


@pytest.mark.parametrize("order", ["partition", "key", "none"])
@pytest.mark.parametrize("how", ["inner", "left"])
@given(
    messages=MESSAGES,
    said=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 4),
            "batch_wait_ms": st.sampled_from((0, 5)),
            "cache_size": st.integers(0, 3),
            "ttl_ms": st.sampled_from((0, 10)),
            "max_in_flight": st.integers(1, 6),
        }
    ),
)
def test_the_results_are_those_of_a_dict(order, how, messages, said):
    expected = [(*m, ROWS.get(m[1])) for m in messages if how == "left" or m[1] in ROWS]
    found = results(messages, how, order=order, **said)
    assert (found if order == "partition" else sorted(found, key=str)) == (
        expected if order == "partition" else sorted(expected, key=str)
    )


def spec(**said):
    async def fetch_many(keys):
        return {}

    how = {"batch_size": 10, "batch_wait_ms": 5, "timeout_ms": 1_000, "cache_size": 1, "ttl_ms": 1, "absent_ttl_ms": 1}
    rows = RemoteRows(fetch_many, **{**how, "fetches_per_second": None, "max_in_flight": 100, "order": "key"} | said)
    named = {"function": fetch_many, "on": abs, "with_": max, "on_error": fail}
    return RemoteJoin(rows=rows, max_in_flight=rows.max_in_flight, timeout_ms=rows.timeout_ms, **named)


def test_it_tells_how_it_asks():
    assert spec().describe() == "inner join, ≤ 10 keys a call, ≤ 100 in flight"
    assert spec().asynchronous and spec().wall_clock and not spec().stateful


def test_a_message_waits_for_its_batch_its_turn_and_the_answer():
    assert spec().call_timeout_ms(tasks=4) == 1_105
    assert spec(fetches_per_second=100).call_timeout_ms(tasks=4) == 1_105 + 11 * 4 * 10
    assert spec(fetches_per_second=0.5, max_in_flight=1).call_timeout_ms(tasks=1) == 1_105 + 2 * 2_000
