"""Sliding windows against the definition: at each time of a value, all that its key had in the size before."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple
from unittest.mock import patch
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import aggregate, collect, count, fold, maximum, mean
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.core.entry_keys import number_at
from operators.state.keyed_state import STATE
from operators.windows.late_sliding import LateSlidingOperator
from operators.windows.sliding import KEY_START, LAST, MARK, ROW, SlidingOperator
from operators.windows.window import Window
from operators.windows.window_types import sliding
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.reading.watermarks import SourceWatermark
from runtime.stores.memory import MemoryStore
from tests.operators.test_triggered import Driven as TwoSources
from tests.operators.test_window import CUTS, DISORDER_MS, RECORDS, Driven
from tests.scale import examples

NEVER = -(2**62)


class Case(NamedTuple):
    """Sliding windows, and what comes to them."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    size: int = 10
    lateness: int = 0
    panes: str = "accumulating"
    emit: str = "all"
    windows: str = "sliding"

    def operator(self, store, aggregation, lowest=None):
        how = {"allowed_lateness_ms": self.lateness, "panes": self.panes, "emit": self.emit}
        spec = Window(windows=sliding(milliseconds=self.size), aggregation=aggregation, **how)
        if self.lateness and self.emit == "all":
            return LateSlidingOperator(spec, store, KeySerde(String()))
        return SlidingOperator(spec, store, KeySerde(String()), Tagged(), lowest=lowest)


SIZES = st.sampled_from([1, 2, 9, 30, 500])
LATENESS = st.sampled_from([1, 5, 20, 60])
PANES = st.sampled_from(["accumulating", "discarding", "retracting"])
CASES = st.builds(lambda *drawn: Case(*drawn), RECORDS, CUTS, SIZES)
LATE = st.builds(lambda *drawn: Case(*drawn), RECORDS, CUTS, SIZES, LATENESS, PANES)
FINAL = st.builds(lambda *drawn: Case(*drawn, "accumulating", "final"), RECORDS, CUTS, SIZES, LATENESS)


def expected(case):
    """Look back from each time of what is in time over the whole history; return the panes, and how many were late."""
    in_time, watermarks, late = defaultdict(list), [NEVER] * 2, 0
    for source, key, at in case.records:
        if at < watermarks[source]:
            late += 1
        else:
            in_time[key].append(at)
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)
    panes = Counter()
    for key, times in in_time.items():
        for at in set(times):
            values = sorted(one for one in times if at - case.size < one <= at)
            panes[key, at - case.size + 1, at + 1, tuple(values)] += 1
    return panes, late


def expected_again(case):
    """Look back from each time of a value that counts, each time that one in its window does."""
    values, watermarks, dropped = defaultdict(list), [NEVER] * 2, 0
    for source, key, at in case.records:
        stamp = watermarks[source]
        if at < stamp - case.lateness:
            dropped += 1
        else:
            values[key].append((at, max(at, stamp)))
        watermarks[source] = max(stamp, at - DISORDER_MS)
    panes = Counter()
    for key, known in values.items():
        for end in {at for at, _ in known}:
            inside = [(at, counts) for at, counts in known if end - case.size < at <= end]
            begins = min(counts for at, counts in inside if at == end)
            before, number = [], 0
            for now in sorted({max(counts, begins) for _, counts in inside}):
                held = sorted(at for at, counts in inside if counts <= now)
                if case.panes == "retracting" and number:
                    panes[key, end + 1, tuple(before), number - 1, now, -1] += 1
                new = [*held]
                for at in before if case.panes == "discarding" else ():
                    new.remove(at)
                panes[key, end + 1, tuple(new), number, now, 1] += 1
                before, number = held, number + 1
    return panes, dropped


@settings(max_examples=examples(400, 20_000))
@given(LATE)
def test_late_values_change_the_windows_they_are_in_and_no_others(case):
    driven = TwoSources(case, collect()).run()
    panes, dropped = expected_again(case)
    assert driven.late == dropped
    assert panes == Counter(
        (pane.key, pane.end, tuple(sorted(pane.value)), pane.index, stamp, sign) for pane, stamp, sign in driven.panes
    )
    for pane, stamp, sign in driven.panes:
        assert pane.start == pane.end - case.size
        assert sign == -1 or pane.timing == ("on_time" if stamp == pane.end - 1 else "late")


@settings(max_examples=examples(200, 10_000))
@given(LATE)
def test_what_is_withdrawn_is_what_was_told(case):
    told = Counter()
    for pane, _, sign in TwoSources(case._replace(panes="retracting"), collect()).run().panes:
        told[pane.key, pane.end, tuple(pane.value), pane.index, pane.timing] += sign
        assert min(told.values()) >= 0
    final = {(key, end): (values, index) for key, end, values, index, _ in +told}
    assert len(final) == (+told).total()
    whole = TwoSources(case._replace(emit="final", panes="accumulating"), collect()).run()
    assert {place: values for place, (values, _) in final.items()} == {
        (pane.key, pane.end): tuple(pane.value) for pane, *_ in whole.panes
    }


@settings(max_examples=examples(200, 10_000))
@given(FINAL)
def test_a_final_pane_waits_for_what_is_late(case):
    driven = TwoSources(case, collect()).run()
    last = {}
    panes, dropped = expected_again(case)
    for key, end, values, index, *_ in panes:
        if index >= last.get((key, end), (0,))[0]:
            last[key, end] = index, values
    assert driven.late == dropped
    assert Counter((p.key, p.end, tuple(sorted(p.value)), p.timing) for p, *_ in driven.panes) == Counter(
        (*place, values, "final") for place, (_, values) in last.items()
    )


def found(panes):
    return Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in panes)


@settings(max_examples=examples(400, 20_000))
@given(CASES, st.booleans())
def test_windows_look_back_from_each_time_over_the_history(case, can_remove):
    values = collect() if can_remove else replace(collect(), remove=None)
    driven = Driven(case, values).run()
    panes, late = expected(case)
    assert found(driven.panes) == panes
    assert driven.late == late


@settings(max_examples=examples(200, 10_000))
@given(CASES)
def test_every_aggregation_sees_the_same_values(case):
    kept = fold(list, lambda held, value: [*held, value], finish=sorted, remove=without)
    several = aggregate(dict, number=count(), mean=mean(lambda at: at), kept=kept)
    panes = {(p.key, p.end): p.value for p in Driven(case, several).run().panes}
    most = {(p.key, p.end): p.value for p in Driven(case, maximum(lambda at: at)).run().panes}
    assert panes == {
        (key, end): {"number": len(values), "mean": sum(values) / len(values), "kept": sorted(values)}
        for key, _, end, values in expected(case)[0]
    }
    assert most == {(key, end): max(values) for key, _, end, values in expected(case)[0]}


def without(held, value):
    held.remove(value)
    return held


@given(CASES)
def test_panes_come_by_time_then_by_key_and_their_values_by_time(case):
    panes = Driven(case, collect()).run().panes
    for key in "abc":
        ends = [pane.end for pane in panes if pane.key == key]
        assert ends == sorted(set(ends))
    assert all(pane.value == sorted(pane.value) for pane in panes)


@given(CASES)
def test_what_a_pane_holds_is_its_own(case):
    changed = fold(list, lambda held, value: held.append(value) or held, remove=without)
    panes = Driven(case, changed).run().panes
    assert found(panes) == expected(case)[0]


@given(RECORDS, SIZES, st.integers(1, 700))
def test_it_is_due_when_a_window_fires_or_has_one_value_less(records, size, further):
    driven = Driven(Case(records, [], size), count())
    for _, _, at in records:
        driven.windows.process(Batch([at], ["a"], [at], [NEVER]))
    times = sorted({at for *_, at in records})
    watermark = min(times, default=0)
    while watermark <= max(times, default=0) + further:
        driven.windows.on_watermark(watermark)
        # A window of a time fires when event time is past it, and the value leaves when it is past what has it last.
        expected = [at + 1 for at in times if at >= watermark] + [at + size for at in times if at + size > watermark]
        assert driven.windows.next_due() == min(expected, default=driven.windows.next_due())
        watermark = driven.windows.next_due()


@given(RECORDS, RECORDS, st.booleans(), st.integers(-30, 120))
def test_what_is_forgotten_was_never_there(kept, forgotten, fires, watermark):
    store = MemoryStore()
    case = Case([], [], 15)
    windows = case.operator(store, count())
    feed(windows, kept)
    windows.write_back()
    before = [*store.range()]
    store.savepoint()
    feed(windows, forgotten)
    if fires:
        windows.on_watermark(watermark)
    store.rollback()
    windows.forget()
    windows.write_back()
    assert [*store.range()] == before
    panes = windows.on_watermark(MAX_TIMESTAMP)
    again = Case([(0, key, at) for _, key, at in sorted(kept, key=lambda record: record[2])], [], 15)
    assert Counter((p.key, p.end, p.value) for p in (panes.values if panes else ())) == Counter(
        (key, end, len(values)) for key, _, end, values in expected(again)[0]
    )


class Parts:
    """The operators of a task, or of the parts by key into which it is split and merged again, where they begin anew.

    They read what is there bit by bit. What they begin with is as a version before kept it, now and then.
    """

    def __init__(self, case, aggregation, chance):
        self.case, self.aggregation, self.chance = case, aggregation, chance
        self.panes, self.late = [], 0
        self.begin({}, None)

    def begin(self, entries, lowest):
        self.factor = self.chance.choice([1, 1, 2, 4])
        self.stores = [MemoryStore() for _ in range(self.factor)]
        for place, value in entries.items():
            key = None if place == MARK else place[1 if place[:1] == STATE else KEY_START :]
            # What is of no key each part keeps.
            for part in range(self.factor) if key is None else [self.part(key)]:
                self.stores[part].put(place, value)
        self.windows = [self.case.operator(store, self.aggregation, lowest) for store in self.stores]

    def begin_anew(self, is_noted, is_before):
        for one in self.windows:
            one.write_back()
        entries = {place: value for store in self.stores for place, value in store.range()}
        lowest = min(one.lowest_stamp() for one in self.windows)
        self.begin(as_before(entries) if is_before else entries, lowest if is_noted and not is_before else None)

    def part(self, key):
        return crc32(key) % self.factor

    def feed(self, key, at, stamp):
        windows = self.windows[self.part(key.encode())]
        windows.process(Batch([at], [key], [at], [stamp]))
        self.late += len(windows.late) if windows.late else 0

    def fire(self, watermark, most):
        for one in self.windows:
            while one.is_unread:
                one.read_on()
            while one.next_due() <= watermark:
                panes = one.on_watermark(watermark, most)
                self.panes += [] if panes is None else panes.values
                if most is not None:
                    break

    def fail(self, records, watermark):
        """Have a part of the work be rolled back, some of which was written back meanwhile as there was too much."""
        for store, one in zip(self.stores, self.windows, strict=True):
            if one.unwritten:
                one.write_back()
            store.savepoint()
            feed(
                one, [(source, key, at) for source, key, at in records if self.stores[self.part(key.encode())] is store]
            )
            if not one.is_unread:
                one.on_watermark(watermark)
            if self.chance.random() < 0.5:
                one.store = Durable(store)
                one.most_held = 0
                one.relieve()
                one.store, one.most_held = store, 100
            if not one.is_unread:
                one.on_watermark(watermark + 5)
            store.rollback()
            one.forget()


class Durable:
    """A store that says that it outlives the process."""

    durable = True

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)


def as_before(entries):
    """Return entries as a version kept them that had one mark of all keys in the place of times in their states."""
    states = {place: state for place, state in entries.items() if place[:1] == STATE}
    if not states:
        return entries
    rows = sorted(place for place in entries if place[:1] == ROW)
    last = {place[1:]: state[LAST] for place, state in states.items()}
    fired = [place for place in rows if number_at(place, 1) <= last.get(place[KEY_START:], NEVER)]
    mark = fired[-1], len(fired), number_at(fired[0], 1)
    return entries | {place: tuple(state[:LAST]) for place, state in states.items()} | {MARK: mark}


STEPS = st.tuples(st.sampled_from([0, 1]), st.sampled_from(["a", "b", "c"]), st.integers(0, 6), st.integers(0, 12))
"""The source of a record, its key, how far the clock goes on to it, and how far behind that it lies."""
HOW = ["", "", "fire", "fire one", "fire two", "noted", "unnoted", "before", "fail", "read on"]


@settings(max_examples=examples(400, 20_000))
@given(st.lists(STEPS, min_size=10, max_size=50), SIZES, st.booleans(), st.integers(0, 2**32))
def test_parts_and_versions_before_go_on_from_what_is_kept(steps, size, can_remove, seed):
    now = accumulate(step for *_, step, _ in steps)
    records = [(source, key, at - back) for at, (source, key, _, back) in zip(now, steps, strict=True)]
    case, chance = Case(records, [], size), random.Random(seed)
    with patch("operators.state.unread_entries.MOST_READ", 2), patch("operators.windows.sliding.MOST_AHEAD", 3):
        sources = [SourceWatermark(DISORDER_MS), SourceWatermark(DISORDER_MS)]
        parts = Parts(case, collect() if can_remove else replace(collect(), remove=None), chance)
        for row, (source, key, at) in enumerate(case.records):
            stamp, sources[source].value = sources[source].stamp([at])
            parts.feed(key, at, stamp)
            how = chance.choice(HOW)
            reached = min(one.value for one in sources)
            if how.startswith("fire"):
                parts.fire(reached, {"fire": None, "fire one": 1, "fire two": 2}[how])
            elif how == "fail":
                parts.fail(case.records[row : row + 5], reached)
            elif how == "read on":
                for one in parts.windows:
                    if one.is_unread:
                        one.read_on()
            elif how:
                parts.begin_anew(how == "noted", how == "before")
        parts.fire(MAX_TIMESTAMP, None)
        for one in parts.windows:
            one.write_back()
        assert [[*store.range()] for store in parts.stores] == [[]] * parts.factor
    panes, late = expected(case)
    assert found(parts.panes) == panes
    assert parts.late == late


def feed(windows, records):
    if records:
        timestamps = [at for *_, at in records]
        windows.process(Batch([*timestamps], [key for _, key, _ in records], timestamps, [NEVER] * len(records)))


@pytest.mark.parametrize("number", [100, 1_000])
def test_what_a_record_costs_does_not_grow_with_the_window(number):
    calls = Counter()

    def counted(name):
        def change(held, value):
            calls[name] += 1
            return held

        return change

    windows = Case([], [], number // 2).operator(MemoryStore(), fold(int, counted("added"), remove=counted("removed")))
    feed(windows, [(0, "a", at) for at in range(number)])
    for watermark in range(number + 1):
        windows.on_watermark(watermark)
    assert calls == {"added": number, "removed": number // 2 + 1}


def test_what_can_not_be_taken_out_is_dropped_and_the_window_folded_anew():
    def remove(total, value):
        if value == 2:
            raise ValueError("two stays")
        return total - value

    store = MemoryStore()
    windows = Case([], [], 10).operator(store, fold(int, lambda total, value: total + value, remove=remove))
    feed(windows, [(0, key, at) for key, at in (("a", 2), ("b", 3), ("a", 5), ("a", 12), ("a", 14))])
    assert [pane.value for pane in windows.on_watermark(11).values] == [2, 3, 7]
    with pytest.raises(ValueError, match="two stays"):
        windows.on_watermark(12)
    assert windows.drop_due().values == [(-7, 3, [2])]
    assert [pane.value for pane in windows.on_watermark(14).values] == [17]
    dropped = windows.drop_due()
    assert (dropped.values, dropped.keys) == ([(5, 15, [14])], ["a"])
    assert windows.on_watermark(MAX_TIMESTAMP) is None
    windows.write_back()
    assert [*store.range()] == [] and windows.next_due() > MAX_TIMESTAMP


def test_a_value_at_the_watermark_is_in_time_and_one_before_it_is_late():
    windows = Case([], [], 10).operator(MemoryStore(), count())
    windows.process(Batch([50, 49], ["k"] * 2, [50, 49], [50, 50]))
    assert windows.late.timestamps == [49]


def test_a_value_is_late_where_its_time_has_fired_already():
    windows = Case([], [], 10).operator(MemoryStore(), count())
    feed(windows, [(0, "k", 50)])
    windows.on_watermark(51)
    feed(windows, [(0, "k", 50), (0, "k", 51)])
    assert windows.late.timestamps == [50]


@pytest.mark.parametrize("how", [{}, {"hours": 0}, {"seconds": -1}])
def test_windows_without_a_size_are_refused(how):
    with pytest.raises(ValueError, match=r"no windows; write instead: sliding\(minutes=30\)"):
        sliding(**how)


def test_events_are_looked_up_no_further_ahead_than_they_are_needed(monkeypatch):
    monkeypatch.setattr("operators.windows.sliding.MOST_AHEAD", 3)
    case = Case([(0, key, at) for at in range(0, 60, 2) for key in "abc"], ["fire two"] * 90, 7)
    driven = Driven(case, collect()).run()
    assert found(driven.panes) == expected(case)[0]
    windows = case.operator(MemoryStore(), count())
    feed(windows, [(0, "a", at) for at in (1, 2, 3, 4)])
    windows.on_watermark(4, 1)
    feed(windows, [(0, "a", 3), (0, "a", 4)])
    assert windows.late is None, "looked up is not fired"
    assert [pane.value for pane in windows.on_watermark(MAX_TIMESTAMP).values] == [2, 4, 6]
