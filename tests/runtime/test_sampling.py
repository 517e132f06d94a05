"""Samples tell for which operator a thread is at work, of any kind, and are taken only while somebody asks."""

import asyncio
import sys
import threading

import pytest

from runtime.functions.at_work import operator_at, tells
from runtime.model.clock import monotonic_ms
from runtime.run import sampling
from runtime.run.sampling import Sampler
from samza_dsl import App, total, tumbling
from tests.faults.processes import wait_until


class Noting:
    """Functions of a user that note for which operator they are called, as a sample would at that moment."""

    def __init__(self):
        self.sampler, self.found = None, {}

    def __call__(self, name, value):
        self.found.setdefault(name, set()).add(self.sampler._operator_at(sys._getframe()))
        return value


def kinds(note):
    """Return an application with operators of all kinds, each of which says its id in its function."""
    app = App("kinds")
    numbers = app.input("numbers", value=int, timestamp=lambda n: n * 1_000)

    async def calling(n):
        note("async", n)
        await asyncio.sleep(0)
        note("async", n)
        return [n]

    def processing(n, context):
        context.state = note("process", n)
        return [n]

    plain = numbers.map(lambda n: note("map", n) + 1, op_id="map").filter(lambda n: note("filter", 1), op_id="filter")
    flat = plain.flat_map(lambda n: [note("flat", n)], op_id="flat").async_flat_map(calling, op_id="async")
    keyed = flat.partition_by(lambda n: note("by", n) % 3, partitions=2, op_id="by")
    kept = keyed.scan(lambda seen, n: note("scan", n), init=int, op_id="scan")
    kept = kept.process(processing, state=int, op_id="process")
    panes = kept.window(tumbling(seconds=2), total(lambda n: note("window", n)), op_id="window")
    panes.map(lambda pane: note("pane", pane.value), op_id="pane").sink(lambda n: note("sink", n), op_id="sink")
    return app


def test_a_sample_tells_the_operator_for_which_a_thread_is_at_work(tmp_path):
    note = Noting()

    async def run():
        async with kinds(note).running(tmp_path) as running:
            note.sampler = Sampler(running._chains)
            for n in range(12):
                await running.send("numbers", n)
            await running.settled()

    asyncio.run(run())
    assert note.found == {
        name: {name} for name in ("map", "filter", "flat", "async", "by", "scan", "process", "window", "pane", "sink")
    }


def test_what_is_no_operators_work_is_told_of_none(tmp_path):
    assert Sampler(lambda: ())._operator_at(sys._getframe()) is None


def test_who_waits_is_told_by_the_log_and_not_by_samples():
    @tells(lambda known: known["operator"], rests=True)
    def waiting(operator):
        return Sampler(lambda: ())._operator_at(sys._getframe()), operator_at(sys._getframe())

    assert waiting("pulled") == (None, "pulled")


@pytest.fixture
def sampler(monkeypatch):
    monkeypatch.setattr(sampling, "EVERY_MS", 1.0)
    taken = Sampler(lambda: ())
    yield taken
    taken.close()
    assert taken._thread is None or not taken._thread.is_alive()


def test_samples_are_taken_from_the_second_question_on(sampler):
    sampler._operator_at = lambda frame: "some" if frame is not None else None
    assert sampler.heed() == {} and sampler._thread is None, "one who scrapes twice a minute wants no samples"
    sampler.heed()
    wait_until(lambda: sampler.heed().get("some", 0) > 0)


def test_nobody_who_asks_any_more_gets_any_more_samples(sampler, monkeypatch):
    sampler.heed()
    sampler.heed()
    thread = sampler._thread
    at_ms = monotonic_ms()
    monkeypatch.setattr(sampling, "monotonic_ms", lambda: at_ms + 60_000)
    wait_until(lambda: not thread.is_alive())
    assert sampler.heed() == {} and sampler._thread is thread, "who comes back begins anew"


def test_none_is_begun_after_the_end():
    before = threading.active_count()
    ended = Sampler(lambda: ())
    ended.close()
    ended.heed()
    ended.heed()
    assert threading.active_count() == before
