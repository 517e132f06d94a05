"""Sessions against the definition: values of a key that are less than the gap apart, however they came."""

from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import aggregate, collect, count, fold
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.state.noted_dues import NOTED
from operators.windows.session import SessionOperator
from operators.windows.window import Window
from operators.windows.window_types import session
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Evolving, String
from runtime.stores.memory import MemoryStore
from tests.operators.test_window import CUTS, DISORDER_MS, RECORDS, Driven
from tests.scale import examples


class Case(NamedTuple):
    """Sessions, and what comes to them."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    gap: int

    most_held: int = 100_000

    def operator(self, store, aggregation, noted=True):
        spec = Window(windows=session(milliseconds=self.gap), aggregation=aggregation)
        return SessionOperator(spec, store, KeySerde(String()), most_held=self.most_held, noted=noted)


CASES = st.builds(Case, RECORDS, CUTS, st.sampled_from([1, 2, 5, 9, 30]))


def expected(case):
    """Sort what is in time by key, and cut it wherever nothing came for the gap; return how many were late as well."""
    in_time, watermarks, late = defaultdict(list), [-(2**62)] * 2, 0
    for source, key, at in case.records:
        if at < watermarks[source]:
            late += 1
        else:
            in_time[key].append(at)
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)
    sessions = []
    for key, times in in_time.items():
        values = []
        for at in sorted(times):
            if values and at - values[-1] >= case.gap:
                sessions.append((key, values))
                values = []
            values.append(at)
        sessions.append((key, values))
    return Counter((key, v[0], v[-1] + case.gap, tuple(v)) for key, v in sessions), late


@settings(max_examples=examples(400, 20_000))
@given(CASES)
def test_sessions_are_those_of_the_sorted_history(case):
    driven = Resumed(case, collect()).run()
    sessions, late = expected(case)
    assert Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in driven.panes) == sessions
    assert driven.late == late


class Durable(MemoryStore):
    """Has operators write back what is too much to hold."""

    durable = True


class Resumed(Driven):
    """One that begins again with what the store has noted, or not."""

    def begun(self, lowest=None):
        return self.case.operator(self.store, self.aggregation, noted=lowest is not None)


class Attempted(Resumed):
    """One that does every piece of work twice: first it is taken back, with all that was never there."""

    def __init__(self, case, aggregation, noise):
        super().__init__(case, aggregation)
        self.store = Durable()
        self.windows = case.operator(self.store, aggregation)
        self.noise = noise

    def feed(self):
        if self.held:
            times = [at for *_, at in self.held] + self.noise
            keys = [key for _, key, _ in self.held] + ["a"] * len(self.noise)
            self.attempt(lambda: self.windows.process(Batch([*times], keys, times, [-(2**62)] * len(times))))
        super().feed()

    def fire(self, watermark, most=None):
        self.attempt(lambda: self.windows.on_watermark(watermark, most))
        super().fire(watermark, most)

    def attempt(self, work):
        self.windows.write_back()
        self.store.savepoint()
        work()
        self.store.rollback()
        self.windows.forget()


def changed_in_place():
    def add(held, value):
        held.append(value)
        return held

    return fold(list, add, merge=lambda a, b: a.extend(b) or a, finish=tuple)


AGGREGATIONS = st.sampled_from([collect, changed_in_place, lambda: aggregate(lambda all: all, all=collect())])
MOST_HELD = st.sampled_from([0, 1, 2, 100_000])


@settings(max_examples=examples(200, 10_000))
@given(CASES, AGGREGATIONS, MOST_HELD, st.lists(st.integers(-30, 90), max_size=5))
def test_what_was_taken_back_leaves_no_trace_however_little_is_held(case, made, most_held, noise):
    driven = Attempted(case._replace(most_held=most_held), made(), noise).run()
    sessions, late = expected(case)
    assert Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in driven.panes) == sessions
    assert driven.late == late


@given(RECORDS, MOST_HELD)
def test_a_durable_store_bounds_what_is_held(records, most_held):
    sessions = Case([], [], 3, most_held).operator(Durable(), collect())
    for number, (source, key, at) in enumerate(records):
        key = f"{key}{source}{number % 3}"
        sessions.process(Batch([at], [key], [at], [-(2**62)]))
        assert sessions.unwritten <= most_held


@settings(max_examples=examples(50, 2_000))
@given(CASES)
def test_what_is_committed_is_read_as_it_was(case):
    times = [at for *_, at in case.records]
    batch = Batch(times, [key for _, key, _ in case.records], times, [-(2**62)] * len(times))
    held, read = case.operator(MemoryStore(), collect()), MemoryStore()
    before = MemoryStore()
    for sessions in (held, case.operator(before, collect())):
        if times:
            sessions.process(batch.copy())
        sessions.write_back()
    for place, stored in [*before.range()]:
        read.put(place, Evolving().decode(Evolving().encode(stored)))
        if place.startswith(NOTED):
            before.delete(place)  # earlier versions noted none
        else:
            before.put(place, [[start, end, held] for start, end, held in stored])  # the form of earlier versions
    found = held, case.operator(read, collect()), case.operator(before, collect(), noted=False)
    panes = [one.on_watermark(MAX_TIMESTAMP) for one in found]
    assert panes[0] == panes[1] == panes[2]


@given(CASES)
def test_sessions_that_become_one_merge_what_they_have(case):
    joined = fold(tuple, lambda held, value: (*held, value), merge=lambda a, b: a + b, finish=len)
    found = {(p.key, p.start): p.value for p in Driven(case, joined).run().panes}
    assert found == {(key, start): len(values) for key, start, _, values in expected(case)[0]}
    assert found == {(p.key, p.start): p.value for p in Driven(case, count()).run().panes}


@given(CASES)
def test_panes_come_by_their_end(case):
    panes = Driven(case, count()).run().panes
    assert [pane.end for pane in panes if pane.key == "a"] == sorted({pane.end for pane in panes if pane.key == "a"})


@given(RECORDS, RECORDS, st.booleans())
def test_what_is_forgotten_was_never_there(kept, forgotten, fires):
    store = MemoryStore()
    sessions = Case([], [], 5).operator(store, count())
    for records in (kept, forgotten):
        if records:
            timestamps = [at for *_, at in records]
            low = [-(2**62)] * len(records)
            sessions.process(Batch(timestamps, [key for _, key, _ in records], timestamps, low))
        if records is kept:
            sessions.write_back()
    if fires:
        sessions.on_watermark(MAX_TIMESTAMP)
    sessions.forget()
    panes = sessions.on_watermark(MAX_TIMESTAMP)
    number = sum(pane.value for pane in panes.values) if panes else 0
    assert number == (len(kept) + len(forgotten) if kept is forgotten else len(kept))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 9], [(0, 19)]),
        ([0, 10], [(0, 10), (10, 20)]),
        ([0, 18, 9], [(0, 28)]),
        ([0, 20, 10], [(0, 10), (10, 20), (20, 30)]),
        ([5, 5], [(5, 15)]),
        ([-3, 4], [(-3, 14)]),
    ],
    ids=["less than the gap", "exactly the gap", "bridged", "not quite bridged", "equal times", "before the epoch"],
)
def test_edges(times, expected):
    sessions = Case([], [], 10).operator(MemoryStore(), count())
    sessions.process(Batch(times, ["k"] * len(times), times, [-(2**62)] * len(times)))
    panes = sessions.on_watermark(MAX_TIMESTAMP)
    assert [(pane.start, pane.end) for pane in panes.values] == expected


def test_a_value_at_the_watermark_is_in_time_and_one_before_it_is_late():
    sessions = Case([], [], 10).operator(MemoryStore(), count())
    sessions.process(Batch([50, 49], ["k"] * 2, [50, 49], [50, 50]))
    assert sessions.late.timestamps == [49]


@pytest.mark.parametrize("how", [{}, {"hours": 0}, {"seconds": -1}])
def test_sessions_without_a_gap_are_refused(how):
    with pytest.raises(Exception, match="no windows"):
        session(**how)
