"""A window operator against the definition: each value is in the panes that its time and its stamp say."""

from collections import Counter, defaultdict
from copy import deepcopy
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import (
    Aggregation,
    aggregate,
    collect,
    count,
    fold,
    maximum,
    mean,
    over,
    total,
)
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.windows.partials import Partials
from operators.windows.window import Pane, Window, WindowOperator
from operators.windows.window_groups import Groups, Slot
from operators.windows.window_types import daily, hopping, tumbling
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.reading.watermarks import SourceWatermark
from runtime.stores.memory import MemoryStore
from tests.scale import examples

DISORDER_MS = 7
FAR = st.tuples(st.sampled_from([0, 1]), st.sampled_from(["a", "b", "c"]), st.integers(-30, 90))
CLOSE = st.tuples(st.just(0), st.just("a"), st.integers(0, 12))
"""What goes to and fro between the stretches of time that a window has."""
RECORDS = st.lists(FAR, max_size=60) | st.lists(CLOSE, max_size=20)
CUTS = st.lists(
    st.sampled_from(["batch", "fire", "fire one", "fire two", "write back", "restart", "restart unnoted"]), max_size=60
)
SHAPES = st.sampled_from([(10, 10), (12, 4), (12, 5), (10, 7), (9, 1)])
LATENESS = st.sampled_from([0, 0, 1, 5, 40])
PANES = st.sampled_from(["accumulating", "discarding"])


class Case(NamedTuple):
    """A window, and what comes to it."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    size: int = 10
    every: int = 10
    lateness: int = 0
    panes: str = "accumulating"

    def operator(self, store, aggregation):
        size, every = self.size, self.every
        windows = tumbling(milliseconds=size) if size == every else hopping(milliseconds=size, every_ms=every)
        spec = Window(windows=windows, aggregation=aggregation, allowed_lateness_ms=self.lateness, panes=self.panes)
        return WindowOperator(spec, store, KeySerde(String()), Tagged())


CASES = st.builds(
    lambda records, cuts, shape, *how: Case(records, cuts, *shape, *how), RECORDS, CUTS, SHAPES, LATENESS, PANES
)


class Driven:
    """An operator that is fed from two sources in batches that end where the cuts say."""

    def __init__(self, case, aggregation):
        self.case, self.aggregation, self.store = case, aggregation, MemoryStore()
        self.sources = [SourceWatermark(DISORDER_MS), SourceWatermark(DISORDER_MS)]
        self.windows = self.begun()
        self.panes, self.late, self.held, self.reached = [], 0, [], -(2**62)

    def run(self):
        for row, (source, key, at) in enumerate(self.case.records):
            if self.held and self.held[0][0] != source:
                self.feed()
            self.held.append((source, key, at))
            self.cut(self.case.cuts[row] if row < len(self.case.cuts) else "")
        self.feed()
        self.fire(MAX_TIMESTAMP)
        self.windows.write_back()
        assert self.windows.next_due() > MAX_TIMESTAMP and list(self.store.range()) == []
        return self

    def cut(self, how):
        if how:
            self.feed()
        if how.startswith("fire"):
            most = {"fire": None, "fire one": 1, "fire two": 2}[how]
            self.fire(min(source.value for source in self.sources), most)
        if how in ("write back", "restart", "restart unnoted"):
            self.windows.write_back()
        if how.startswith("restart"):
            # Versions before noted no lowest stamp.
            self.windows = self.begun(self.windows.lowest_stamp() if how == "restart" else None)

    def begun(self, lowest=None):
        return self.case.operator(self.store, self.aggregation)

    def feed(self):
        if self.held:
            source = self.sources[self.held[0][0]]
            keys, timestamps = [key for _, key, _ in self.held], [at for *_, at in self.held]
            *stamps, source.value = source.stamp(timestamps)
            self.windows.process(Batch(list(timestamps), keys, timestamps, stamps))
            self.late += len(self.windows.late) if self.windows.late else 0
            self.held.clear()

    def fire(self, watermark, most=None):
        while self.windows.next_due() <= watermark:
            panes = self.windows.on_watermark(watermark, most)
            if panes is not None:
                assert most is None or len(panes) <= most
                assert panes.timestamps == [pane.end - 1 for pane in panes.values]
                assert panes.keys == [pane.key for pane in panes.values]
                assert panes.stamps == sorted(panes.stamps) and panes.stamps[-1] < watermark
                assert panes.stamps[0] >= self.reached, "nothing is emitted below what was forwarded"
                for pane, stamp in zip(panes.values, panes.stamps, strict=True):
                    assert stamp >= pane.end if pane.timing == "late" else stamp == pane.end - 1
                self.panes += panes.values
            if most is not None:
                return
        self.reached = min(watermark, self.windows.next_due() - 1)


def expected(case):
    """Decide record by record and window by window; return the panes, and how many were late for all."""
    on_time, late, dropped = defaultdict(list), defaultdict(lambda: defaultdict(list)), 0
    watermarks = [-(2**62)] * 2
    for source, key, at in case.records:
        stamp = watermarks[source]
        watermarks[source] = max(stamp, at - DISORDER_MS)
        taken = 0
        for start in range(-200, 200):
            if start % case.every or not start <= at < start + case.size:
                continue
            end = start + case.size
            if stamp < end:
                on_time[key, start].append(at)
            elif stamp < end + case.lateness:
                late[key, start][stamp].append(at)
            taken += stamp < end + case.lateness
        dropped += not taken
    panes = []
    for key, start in {**on_time, **late}:
        end, so_far = start + case.size, []
        groups = [("on_time", on_time[key, start])] if (key, start) in on_time else []
        groups += [("late", late[key, start][stamp]) for stamp in sorted(late[key, start])]
        for index, (timing, values) in enumerate(groups):
            so_far = [*so_far, *values] if case.panes == "accumulating" else values
            panes.append(Pane(key, start, end, so_far, index, timing))
    return panes, dropped


def comparable(panes):
    """Return panes that come in any order, but for the values in each."""
    return Counter((pane.key, pane.start, pane.end, tuple(pane.value), pane.index, pane.timing) for pane in panes)


@settings(max_examples=examples(400, 20_000))
@given(CASES)
def test_panes_hold_what_they_should_however_it_was_batched_fired_and_restarted(case):
    driven = Driven(case, collect()).run()
    panes, late = expected(case)
    assert comparable(driven.panes) == comparable(panes)
    assert driven.late == late


@settings(max_examples=examples(200, 10_000))
@given(CASES)
def test_every_aggregation_sees_the_same_values(case):
    longest = fold(list, lambda kept, value: [*kept, value], finish=len)
    several = aggregate(dict, number=count(), most=maximum(lambda at: at), mean=mean(lambda at: at), folded=longest)
    found = {(p.key, p.start, p.index): p.value for p in Driven(case, several).run().panes}
    assert found == {
        (p.key, p.start, p.index): {
            "number": len(p.value),
            "most": max(p.value),
            "mean": sum(p.value) / len(p.value),
            "folded": len(p.value),
        }
        for p in expected(case)[0]
    }


@given(CASES)
def test_a_count_needs_no_values(case):
    found = {(pane.key, pane.start, pane.index): pane.value for pane in Driven(case, count()).run().panes}
    assert found == {(pane.key, pane.start, pane.index): len(pane.value) for pane in expected(case)[0]}


@given(CASES)
def test_the_panes_of_a_key_come_by_window_and_index(case):
    driven = Driven(case, count()).run()
    for key in "abc":
        panes = [pane for pane in driven.panes if pane.key == key]
        on_time = [pane.end for pane in panes if pane.timing == "on_time"]
        assert on_time == sorted(set(on_time))
        by_window = defaultdict(list)
        for pane in panes:
            by_window[pane.start].append(pane.index)
        assert all(indexes == [*range(len(indexes))] for indexes in by_window.values())


def test_what_a_pane_holds_is_its_own():
    changed = fold(list, lambda kept, value: kept.append(value) or kept)
    case = Case(
        [(0, "a", 1), (1, "a", 1), (0, "a", 50), (0, "a", 2), (1, "a", 60)], ["", "", "", "", "fire"], lateness=90
    )
    driven = Driven(case, changed)
    for row, (source, key, at) in enumerate(case.records):
        driven.held.append((source, key, at))
        driven.feed()
        if row == 1:
            driven.windows.write_back()
    driven.fire(MAX_TIMESTAMP)
    assert [pane.value for pane in driven.panes if pane.start == 0] == [[1, 1], [1, 1, 2]]


@pytest.mark.parametrize("aggregation", [count(), collect()])
@given(RECORDS, RECORDS)
def test_what_is_forgotten_was_never_there(aggregation, kept, forgotten):
    store = MemoryStore()
    windows = Case([], [], lateness=20).operator(store, aggregation)
    for records in (kept, forgotten):
        if records:
            timestamps = [at for *_, at in records]
            low = [-(2**62)] * len(records)
            windows.process(Batch(timestamps, [key for _, key, _ in records], timestamps, low))
        if records is kept:
            windows.write_back()
    windows.forget()
    panes = windows.on_watermark(MAX_TIMESTAMP)
    values = [pane.value for pane in panes.values] if panes else []
    number = sum(value if type(value) is int else len(value) for value in values)
    assert number == (len(kept) + len(forgotten) if kept is forgotten else len(kept))


@given(st.lists(st.integers(0, 2_000_000_000_000), min_size=1, max_size=20))
def test_many_windows_in_one_batch_are_told_apart(timestamps):
    spec = Window(windows=daily("America/New_York"), aggregation=collect())
    windows = WindowOperator(spec, MemoryStore(), KeySerde(String()), Tagged())
    low = [-(2**62)] * len(timestamps)
    windows.process(Batch(list(timestamps), ["k"] * len(timestamps), timestamps, low))
    panes = windows.on_watermark(MAX_TIMESTAMP).values
    assert sorted(at for pane in panes for at in pane.value) == sorted(timestamps)
    assert all(pane.start <= at < pane.end for pane in panes for at in pane.value)


def test_edges():
    groups = Groups(tumbling(milliseconds=10), lateness_ms=5)
    late = [stamp for stamp in range(30) if groups.place(3, stamp)[2] is None]
    assert late[0] == 15, "exactly at the allowed lateness is too late"
    found = [(slot.due, slot.due > slot.end) for (slot,) in groups.by_slots]
    assert found == [(10, False), *((due, True) for due in range(11, 16))], "in time until the watermark is at the end"


def test_windows_of_few_keys_come_to_the_store_and_go_all_at_once():
    store, asked = MemoryStore(), []
    update, delete_all = store.update, store.delete_all
    store.update = lambda entries: asked.append("update") or update(entries)
    store.delete_all = lambda keys: asked.append("delete_all") or delete_all(keys)
    spec = Window(windows=tumbling(milliseconds=10), aggregation=count())
    windows = WindowOperator(spec, store, KeySerde(String()), Tagged())
    times = [*range(0, 200, 10)]
    windows.process(Batch([1] * 20, ["a", "b"] * 10, times, [-(2**62)] * 20))
    windows.write_back()
    assert asked == ["update"] and len([*store.range()]) == 20
    fired = windows.on_watermark(150)
    assert fired.keys == [*["a", "b"] * 7, "a"] and len([*store.range()]) == 5
    assert asked[:2] == ["update", "delete_all"] and len(asked) <= 3


def test_a_large_window_fires_in_parts_at_the_cost_of_each():
    keys = Ordering(String())
    spec = Window(windows=tumbling(milliseconds=10), aggregation=count())
    windows = WindowOperator(spec, MemoryStore(), keys, Tagged())
    names = [f"{number:03}" for number in range(100)]
    windows.process(Batch(names, names[::-1], [0] * 100, [-(2**62)] * 100))
    fired = [windows.on_watermark(10, 7) for _ in range(14)]
    windows.process(Batch(["late here"], ["000"], [0], [-(2**62)]))
    fired += [windows.on_watermark(10, 7)]
    assert [key for batch in fired for key in batch.keys] == [*names[:98], "000", *names[98:]]
    assert keys.asked == [100, 3]


class Ordering(KeySerde):
    """Keys that note how many they were asked to bring in order."""

    def __init__(self, serde):
        super().__init__(serde)
        self.asked = []

    def in_order(self, keys):
        found = super().in_order(keys)
        self.asked.append(len(found))
        return found


def _took_in(held, more):
    held.extend(more)
    return held


LISTED = Aggregation("listed", list, _took_in, _took_in, sorted, combines=True, keeps="the user's")
PARTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
        st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1),
        st.sampled_from(["", "write back", "restart"]),
    ),
    max_size=12,
)


@given(PARTS, st.sampled_from([LISTED, count(), total(lambda value: value), maximum(lambda value: value)]))
@settings(max_examples=examples(150, 10_000))
def test_what_was_folded_elsewhere_comes_to_what_its_values_come_to_and_stays_as_it_was(parts, aggregation):
    store = MemoryStore()
    begun = lambda: Case([], [], 20, 10).operator(store, aggregation)  # noqa: E731
    operator, whole = begun(), defaultdict(list)
    for places, values, then in parts:
        slots = [Slot(at * 10 + 20, at * 10, at * 10 + 20) for at in places]
        accumulators = [aggregation.add(aggregation.init(), one) for one in values.values()]
        partials = Partials(slots, [*values], accumulators, sum(map(len, values.values())))
        before = deepcopy(partials)
        operator.merge(partials, 0)
        for slot in slots:
            for key, more in values.items():
                whole[slot.start, key] += more
        assert partials == before
        if then:
            operator.write_back()
            operator = begun() if then == "restart" else operator
    fired = operator.on_watermark(MAX_TIMESTAMP)
    panes = {} if fired is None else {(pane.start, pane.key): pane.value for pane in fired.values}
    assert panes == {place: over(aggregation, more) for place, more in whole.items()}
