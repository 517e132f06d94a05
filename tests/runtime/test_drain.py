"""A commit never waits longer than `max_drain_ms` for calls, however many of them a message makes."""

import asyncio
import random
from collections import Counter
from itertools import pairwise
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from samza_dsl import App, Options, dead_letter
from tests.scale import examples
from tests.simulation.crash import Watched, fill, memory, rows_of, run_once
from tests.simulation.loop import rest

TIMEOUT_MS = 1_000
INTERVAL_MS = 100
SLACK_MS = 50
"""What reading, applying and writing take in virtual time."""


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.sampled_from(("key", "partition", "none")),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from((None, 1, 3)),
    st.booleans(),
    st.booleans(),
    st.sampled_from((1, 2, 1_000)),
)
@settings(max_examples=examples(120, 10_000))
def test_what_is_let_in_can_end_in_time(copies, order, width, rounds, keys, also_sent, fans_out, outstanding):
    copies = copies if fans_out else [1] * len(copies)

    async def slowly(item):
        await rest(TIMEOUT_MS - 1)
        return [item]

    def app():
        bounds = {"max_drain_ms": rounds * TIMEOUT_MS, "max_in_flight": outstanding}
        app = App("drain", Options(commit_interval_ms=INTERVAL_MS, **bounds))
        key = None if keys is None else lambda item: item[0] % keys
        stream = app.input("in", value=tuple[int, int], key=key)
        many = stream.flat_map(lambda item: [item] * item[1]) if fans_out else stream
        if also_sent:
            stream.filter(lambda item: item[0] % 2).send_to(app.output("seen", value=tuple[int, int]))
        many.async_flat_map(
            slowly, max_in_flight=width, timeout_ms=TIMEOUT_MS, order=order, on_error=dead_letter("too-many")
        ).send_to(app.output("out", value=tuple[int, int], partitions=1))
        return app

    commits = [0.0]
    environment = memory()
    rows = [(None, b"[%d,%d]" % (place, number), 0) for place, number in enumerate(copies)]
    fill(environment, "in", [rows])
    watched = Watched(environment, None, lambda commit: commits.append(asyncio.get_running_loop().time() * 1_000))
    with mock.patch(
        "runtime.commit.schedule.DRAINS", 0
    ):  # what lies between commits is then their wait, and little else
        run_once(app(), watched)
    assert max(after - before for before, after in pairwise(commits)) <= rounds * TIMEOUT_MS + INTERVAL_MS + SLACK_MS

    def stored(stream):
        return Counter(value for part in rows_of(environment, stream) for _, value, _ in part)

    most = rounds if keys is not None and order == "key" else rounds * width
    assert stored("out") == {value: n for (_, value, _), n in zip(rows, copies, strict=True) if 0 < n <= most}
    assert stored("too-many") == {value: 1 for (_, value, _), n in zip(rows, copies, strict=True) if n > most}


@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=examples(16, 1_000))
def test_commits_do_not_starve_slow_calls_of_messages(width, seed):
    pace, messages = random.Random(seed), 400
    waits = [pace.randint(TIMEOUT_MS // 2, TIMEOUT_MS - 1) for _ in range(messages)]

    async def slowly(place):
        await rest(waits[place])
        return [place]

    app = App("slow", Options(commit_interval_ms=INTERVAL_MS))
    called = app.input("in", value=int).async_flat_map(slowly, max_in_flight=width, timeout_ms=TIMEOUT_MS, order="none")
    called.send_to(app.output("out", value=int))
    commits = []
    environment = memory()
    fill(environment, "in", [[(None, b"%d" % place, 0) for place in range(messages)]])
    run_once(app, Watched(environment, None, lambda commit: commits.append(asyncio.get_running_loop().time() * 1_000)))
    assert len(commits) > 4
    assert commits[-1] <= 1.1 * sum(waits) / width + 2 * TIMEOUT_MS
