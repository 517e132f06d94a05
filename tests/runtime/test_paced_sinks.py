"""Sinks that are given rows at a pace: how many at a time, in which order, and what goes on meanwhile."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from runtime.model.errors import Unavailable
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.connectors import outbox
from runtime.systems.connectors.outbox import Outbox
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import App, SamzaError, connectors
from samza_dsl.connectors import AtLeastOnceSink, SinkRow
from tests.connectors.test_http import hooked
from tests.scale import examples


class Time:
    """A clock of an outbox that goes on where it waits, and else when it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.waited = list[float]()
        time = self

        class Waits(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                time.waited.append(timeout or 0.0)
                time.now_ms += (timeout or 0.0) * 1_000
                return self.is_set()

        patch.setattr(outbox, "monotonic_ms", lambda: self.now_ms)
        patch.setattr(outbox, "threading", SimpleNamespace(Event=Waits))


class Row(msgspec.Struct):
    n: int


def copying(*outputs: str) -> App:
    app = App("copying")
    rows = app.input("numbers", value=int).map(Row)
    for name in outputs:
        rows.send_to(app.output(name, value=Row))
    return app


@given(
    arrivals=st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=8),
    rate=st.sampled_from([0.3, 1.0, 2.5, 7.0, 1_000.0]),
    batch_rows=st.integers(1, 9),
    failures=st.sets(st.integers(0, 30), max_size=6),
)
@settings(deadline=None, max_examples=examples(60, 600))
def test_a_sink_is_never_given_more_than_its_pace_and_nobody_waits_before_the_end(
    arrivals: list[list[int]], rate: float, batch_rows: int, failures: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        time, given_, there = Time(patch), list[tuple[float, int]](), list[int]()

        def write(rows: Sequence[SinkRow]) -> None:
            given_.append((time.now_ms, len(rows)))
            if len(given_) in failures and len(given_) - 1 not in failures:
                raise Unavailable("away for a moment")
            there.extend(row.value for row in rows)

        app, environment = App("pace"), MemoryEnvironment()
        app.input("in", value=int).send_to(app.output("rows", value=int))
        output = next(one for spec in app.graph().specs.values() for one in spec.outputs)
        sink = AtLeastOnceSink("place", write, batch_rows=batch_rows, rows_per_second=rate)
        box, number, sent = Outbox(environment, "pace", output, sink), 0, dict[int, list[int]]()
        environment.create_stream(box.stream, StreamConfig(partitions=3))
        box.open(1, 1, {})
        for of_partitions in arrivals:
            for partition in of_partitions:
                environment.append([Append(box.stream, partition, Batch([b"%d" % number]))])
                sent.setdefault(partition, []).append(number)
                number += 1
            before = len(time.waited), len(given_)
            box.deliver()
            # But behind a failure, which has its pauses, nobody is held up by those that wait for their turn.
            assert len(time.waited) - before[0] <= sum(one in failures for one in range(before[1], len(given_) + 1))
            time.now_ms += 700
        box.deliver(whole=True)
    assert sorted(there) == [*range(number)]
    assert all([n for n in there if n in found] == found for found in sent.values())
    assert all(rows <= min(batch_rows, max(rate, 1)) for _, rows in given_)
    for start in range(len(given_)):
        for end in range(start + 1, len(given_)):
            passed_ms = given_[end][0] - given_[start][0]
            assert sum(rows for _, rows in given_[start:end]) <= rate * passed_ms / 1_000 + 1e-6


def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    time, there = Time(monkeypatch), list[int]()
    app, environment = App("pace"), MemoryEnvironment()
    app.input("in", value=int).send_to(app.output("rows", value=int))
    output = next(one for spec in app.graph().specs.values() for one in spec.outputs)
    sink = AtLeastOnceSink("place", lambda rows: there.extend(row.value for row in rows), rows_per_second=1)
    box = Outbox(environment, "pace", output, sink)
    environment.create_stream(box.stream, StreamConfig(partitions=3))
    environment.append([Append(box.stream, place, Batch([b"%d" % place] * 9)) for place in range(3)])
    box.open(1, 1, {})
    for _ in range(8):
        time.now_ms += 1_000
        box.deliver()
    assert Counter(there) == {0: 3, 1: 3, 2: 3}


def test_the_rest_of_a_run_is_given_at_the_pace_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time, there = Time(monkeypatch), list[int]()
    sink = AtLeastOnceSink("place", lambda rows: there.append(len(rows)), batch_rows=4, rows_per_second=2)
    copying("rows").run(tmp_path, bind={"numbers": [*range(7)], "rows": sink})
    assert there == [2, 2, 2, 1] and [one for one in time.waited if one > 0.5] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("key", [(), "n"])
def test_a_table_is_given_its_rows_at_a_pace(
    key: str | tuple[()], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, table = Time(monkeypatch), tmp_path / "a.db"
    sink = replace(connectors.sqlite(table, "rows", key), rows_per_second=5, batch_rows=3)
    copying("rows").run(tmp_path / "data", bind={"numbers": [*range(20)], "rows": sink})
    with closing(sqlite3.connect(table)) as found:
        assert [n for (n,) in found.execute("SELECT n FROM rows ORDER BY n")] == [*range(20)]
    assert sum(time.waited) == pytest.approx(18 / 5)


def test_posts_come_at_a_pace_also_where_they_are_asked_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, app = Time(monkeypatch), App("posting")
    app.input("numbers", value=int).map(lambda n: {"id": n}).send_to(app.output("rows", value=dict[str, int]))
    with hooked(204, 429, 204, 503) as (url, kind):
        hook = replace(connectors.webhook(url, at_once=1), rows_per_second=4, batch_rows=2)
        app.run(tmp_path, bind={"numbers": [*range(10)], "rows": hook})
    assert [row["id"] for _, row in kind.rows] == [*range(10)]
    # Two calls were made again, of two rows each, and the last one is waited for by nobody.
    assert time.now_ms == pytest.approx(1_000 * (10 + 4 - 2) / 4)


def test_a_sink_at_a_pace_holds_up_no_other_output(tmp_path: Path) -> None:
    paced, others, has_all = list[SinkRow](), list[SinkRow](), threading.Event()

    def take(rows: Sequence[SinkRow]) -> None:
        others.extend(rows)
        if len(others) == 30:
            has_all.set()

    async def main() -> None:
        slow = AtLeastOnceSink("slow", paced.extend, rows_per_second=0.001)
        bind = {"paced": slow, "others": AtLeastOnceSink("others", take)}
        app = copying("paced", "others")
        async with app.running(tmp_path, bind=bind) as run:
            for number in range(30):
                await run.send("numbers", number)
            assert await asyncio.to_thread(has_all.wait, 60)
            run.stop()
            await run.ended()

    asyncio.run(main())
    assert [row.value.n for row in paced] == [0]
    copying("paced", "others").run(
        tmp_path,
        bind={"paced": AtLeastOnceSink("slow", paced.extend), "others": AtLeastOnceSink("others", take)},
        until_now=True,
    )
    assert {row.value.n for row in paced} == {*range(30)} and len(others) <= 60


@pytest.mark.parametrize("said", [{"batch_rows": 0}, {"batch_rows": True}, {"rows_per_second": 0}])
def test_a_pace_that_can_not_be_is_told(said: dict[str, Any]) -> None:
    with pytest.raises(SamzaError, match="write a"):
        AtLeastOnceSink("place", print, **said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///a.db?table=rows&rows_per_second=fast", "rows_per_second=fast is no number"),
        ("sqlite:///a.db?table=rows&rows_per_second=0", "write a number above 0"),
        ("sqlite:///a.db?table=rows&batch_rows=1.5", "batch_rows=1.5 is no number"),
        ("rolling:folder?rows_per_second=5", "no rows at a pace"),
    ],
)
def test_a_pace_in_a_url_that_can_not_be_is_told(url: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SamzaError, match=words):
        copying("rows").run(tmp_path, bind={"numbers": [1], "rows": url})
