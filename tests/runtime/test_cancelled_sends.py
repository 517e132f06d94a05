"""A handler of a service that is cancelled as it writes to an input: its message takes effect once, or not at all."""

import asyncio
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App
from tests.scale import examples


@given(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12))
@settings(max_examples=examples(10, 200), deadline=None)
def test_what_a_cancelled_handler_sent_takes_effect_at_most_once(turns: list[int | None]) -> None:
    """And all that others send, beside it and behind it, once; None is one who is not cancelled."""
    app = App("totals")
    numbers = app.input("numbers", value=int, key=int)
    totals = numbers.scan(lambda seen, number: [*seen, number], init=list[int], op_id="totals")
    totals.send_to(app.output("all", value=list[int]))

    async def sent() -> tuple[list[bool], list[int]]:
        with tempfile.TemporaryDirectory() as data:
            async with app.running(data) as run:
                sending = [asyncio.create_task(run.send("numbers", n, key=0)) for n in range(len(turns))]
                for turn in range(4):
                    for one, turns_left in zip(sending, turns, strict=True):
                        if turns_left == turn:
                            one.cancel()
                    await asyncio.wait(sending, timeout=0)
                answers = await asyncio.gather(*sending, return_exceptions=True)
                await run.send("numbers", -1, key=0)
                await run.settled()
                return [one is None for one in answers], run.state("totals").get(0)

    is_answered, seen = asyncio.run(sent())
    assert len({*seen}) == len(seen)
    assert {n for n, whether in enumerate(is_answered) if whether} | {-1} <= {*seen}
    assert all(whether or turns[n] is not None for n, whether in enumerate(is_answered))
