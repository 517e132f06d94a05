"""Messages leave nothing to the collector of cycles, which looks seldom, and all lies there until it does."""

import asyncio
import gc

import pytest
from msgspec import Struct

from samza_dsl import (
    App,
    Options,
    aggregate,
    count,
    dead_letter,
    hopping,
    produce,
    retry,
    session,
    skip,
    total,
    tumbling,
)

KEYS, MESSAGES, LOOKS, BEGUN = 20, 2_000, 100, 5
PART = 5
"""A pipeline leaves objects in a cycle for each message, or for none; so many times fewer are something else."""


class Both(Struct, frozen=True):
    many: int
    sum: int


async def doubled(n):
    await asyncio.sleep(0)
    return [n, n]


async def at_times(n):
    if n % 3:
        raise ValueError("at times")
    return [n]


async def summed(n, context):
    context.state = (context.state or 0) + n
    return [context.state]


def by_key(numbers, op_id="by"):
    return numbers.partition_by(lambda n: n % KEYS, key_type=int, value=int, op_id=op_id)


def asked_out_of_order(numbers):
    return numbers.async_flat_map(doubled, order="none")


def asked_with_timeouts_and_retries(numbers):
    return numbers.async_flat_map(doubled, timeout_ms=2_000, on_error=retry(2), order="partition")


def asked_twice_by_key(numbers):
    return by_key(numbers).async_flat_map(doubled).map(lambda n: n + 1).async_flat_map(doubled)


def asked_with_state(numbers):
    return by_key(numbers).async_flat_map(summed, state=int, op_id="sums")


def asked_once(numbers):
    return numbers.async_flat_map(doubled, remember=True, op_id="asks")


def asked_of_what_fails(numbers):
    return numbers.async_flat_map(at_times, on_error=skip)


def fails_into_letters(numbers):
    return numbers.map(lambda n: n // (n % 3), on_error=dead_letter("letters"))


def processed(numbers):
    def check(n, context):
        context.list("seen").append(n)
        context.set_timer(n + 5)
        return [n]

    def clear(at_ms, context):
        context.list("seen").clear()
        return []

    return by_key(numbers).process(check, on_timer=clear, op_id="checks")


def scanned(numbers):
    return by_key(numbers).scan(lambda state, n: (state or 0) + n, op_id="sums")


def windowed(numbers):
    keyed = by_key(numbers)
    counts = keyed.window(tumbling(seconds=0.1), count(), op_id="tumbling")
    both = keyed.window(
        hopping(seconds=0.1, every_ms=50), aggregate(Both, many=count(), sum=total(lambda n: n)), op_id="hopping"
    )
    visits = keyed.window(session(seconds=0.03), count(), op_id="visits")
    return counts.merge(visits).map(lambda pane: pane.value).merge(both.map(lambda pane: pane.value.many))


def joined(numbers):
    return by_key(numbers).join(by_key(numbers, "other"), lambda a, b: a + b, within=(-50, 50), op_id="joins")


PIPELINES = [
    *(asked_out_of_order, asked_with_timeouts_and_retries, asked_twice_by_key, asked_with_state, asked_once),
    *(asked_of_what_fails, fails_into_letters, processed, scanned, windowed, joined),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda one: one.__name__)
def test_no_message_leaves_a_cycle(pipeline, tmp_path):
    found = []

    def looks(n):
        if n % LOOKS == 0:
            found.append(gc.collect())
        return n

    app = App("leaves", Options(max_uncommitted=LOOKS, batch_records=LOOKS))
    pipeline(app.input("numbers", value=int, timestamp=lambda n: n).map(looks)).send_to(app.output("out", value=int))
    produce("numbers", range(MESSAGES), data=tmp_path)
    gc.disable()
    try:
        app.run(tmp_path, until_now=True)
    finally:
        gc.enable()
    # The first looks find what is made once, as the run begins.
    assert len(found) >= MESSAGES // LOOKS
    assert sum(found[BEGUN:]) < (len(found) - BEGUN) * LOOKS / PART, (
        f"objects in cycles every {LOOKS} messages: {found}"
    )
