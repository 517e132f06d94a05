"""Windows by count against the definition: slices of what each key had, in the order in which it came."""

from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect, count, fold
from operators.core.base import MAX_TIMESTAMP, MOST_HELD, Batch
from operators.windows.count_window import CountedOperator
from operators.windows.triggers import Trigger, after_count, after_delay
from operators.windows.window import Window
from operators.windows.window_types import counted, whole
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.test_triggered import PANES, TRIGGERS, due
from tests.operators.test_window import CUTS, DISORDER_MS, RECORDS, Driven
from tests.scale import examples

NEVER = -(2**62)


class Case(NamedTuple):
    """Windows by count, and what comes to them."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    number: int | None = 3
    every: int = 3
    early: Trigger | None = None
    panes: str = "accumulating"

    def operator(self, store, aggregation, most_held=MOST_HELD):
        windows = whole() if self.number is None else counted(self.number, self.every)
        spec = Window(windows=windows, aggregation=aggregation, early=self.early, panes=self.panes)
        return CountedOperator(spec, store, KeySerde(String()), Tagged(), aggregation, most_held)


SHAPES = st.sampled_from([(1, 1), (2, 2), (5, 5), (5, 2), (4, 1), (4, 3), (None, 1)])
CASES = st.builds(lambda records, cuts, shape: Case(records, cuts, *shape), RECORDS, CUTS, SHAPES)


class Counting(Driven):
    """An operator that emits when it is fed, and tells event time below no further than it may still emit."""

    def __init__(self, case, aggregation):
        super().__init__(case, aggregation)
        self.emitted = []

    def feed(self):
        if self.held:
            source = self.sources[self.held[0][0]]
            keys, timestamps = [key for _, key, _ in self.held], [at for *_, at in self.held]
            *stamps, source.value = source.stamp(timestamps)
            self.take(self.windows.process(Batch(list(timestamps), keys, timestamps, stamps)))
            self.held.clear()

    def fire(self, watermark, most=None):
        self.tell(watermark)
        before = len(self.emitted)
        while self.windows.next_due() <= watermark:
            self.take(self.windows.on_watermark(watermark, most))
            self.tell(watermark)
            if most is not None and watermark < MAX_TIMESTAMP:
                break
        stamps = [stamp for pane, stamp, _ in self.emitted[before:] if pane.timing == "on_time"]
        assert stamps == sorted(stamps)

    def tell(self, watermark):
        told = min(watermark, self.windows.lowest_stamp())
        assert told >= self.reached, "event time never goes back"
        self.reached = told

    def take(self, panes):
        if panes is not None:
            assert panes.timestamps == [pane.end - 1 for pane in panes.values]
            assert min(panes.stamps) >= self.reached, "nothing is emitted below what was told"
            signs = panes.signs or [1] * len(panes)
            self.emitted += zip(panes.values, panes.stamps, signs, strict=True)
            self.panes += panes.values


def expected(case):
    """Cut the history of each key; return the values of the windows with their largest stamp."""
    came, watermarks = defaultdict(list), [NEVER] * 2
    for source, key, at in case.records:
        came[key].append((at, watermarks[source]))
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)
    found = []
    for key, records in came.items():
        number = case.number or len(records)
        for start in range(0, len(records), case.every if case.number else number):
            times, stamps = zip(*records[start : start + number], strict=True)
            found.append((key, min(times), max(times) + 1, times, max(stamps)))
    return found


@settings(max_examples=examples(400, 20_000))
@given(CASES)
def test_windows_are_slices_of_what_came(case):
    driven = Counting(case, collect()).run()
    found = [(p.key, p.start, p.end, tuple(p.value), stamp) for p, stamp, _ in driven.emitted]
    assert Counter(found) == Counter(expected(case))


@given(CASES)
def test_the_complete_ones_come_in_order_and_what_is_left_at_the_end(case):
    driven = Counting(case, count()).run()
    in_order = Counting(case._replace(cuts=["batch"] * len(case.records)), count()).run()
    assert driven.panes == in_order.panes


@given(RECORDS, RECORDS, SHAPES, st.sampled_from([0, 2, 1_000]), st.sampled_from([None, 3, 30]))
def test_what_is_forgotten_was_never_there(kept, forgotten, shape, most_held, delay):
    case = Case([], [], *shape) if delay is None else Case([], [], None, 1, after_delay(milliseconds=delay))
    store = MemoryStore()
    store.durable = True
    windows, alone = case.operator(store, collect(), most_held), case.operator(MemoryStore(), collect())
    for operator in (windows, alone):
        feed(operator, kept)
    windows.write_back()
    store.savepoint()
    feed(windows, forgotten)
    windows.lowest_stamp()
    windows.on_watermark(MAX_TIMESTAMP, 2)
    store.rollback()
    windows.forget()
    assert windows.lowest_stamp() == alone.lowest_stamp()
    again = [fired.values if fired else [] for fired in (one.on_watermark(MAX_TIMESTAMP) for one in (windows, alone))]
    assert again[0] == again[1]


def feed(windows, records):
    if records:
        timestamps = [at for *_, at in records]
        stamps = [at - 40 * source for source, _, at in records]
        windows.process(Batch([*timestamps], [key for _, key, _ in records], timestamps, stamps))


def test_an_open_window_holds_event_time_back_to_its_largest_stamp_until_it_is_complete():
    windows = Case([], [], 2, 2).operator(MemoryStore(), count())
    windows.process(Batch(["a", "b", "b"], ["a", "b", "c"], [10, 30, 70], [5, 20, 60]))
    assert windows.lowest_stamp() == 5
    panes = windows.process(Batch(["a"], ["a"], [8], [50]))
    assert (panes.timestamps, panes.stamps) == ([10], [50])
    assert windows.lowest_stamp() == 20
    windows.process(Batch(["b", "a"], ["b", "a"], [80, 90], [70, 15]))
    assert windows.lowest_stamp() == 15
    assert windows.on_watermark(MAX_TIMESTAMP, 1).stamps == [15]
    assert windows.on_watermark(MAX_TIMESTAMP).stamps == [60]
    assert windows.lowest_stamp() > MAX_TIMESTAMP


def test_what_fails_at_the_end_is_dropped():
    def finish(total):
        raise ValueError("never")

    windows = Case([], [], None).operator(MemoryStore(), fold(int, lambda total, value: total + value, finish=finish))
    feed(windows, [(0, "a", 3), (0, "a", 4)])
    with pytest.raises(ValueError, match="never"):
        windows.on_watermark(MAX_TIMESTAMP, 1)
    windows.forget()
    feed(windows, [(0, "a", 3), (0, "a", 4)])
    dropped = windows.drop_due()
    assert (dropped.values, dropped.keys) == ([(3, 5, 7)], ["a"])
    assert windows.next_due() > MAX_TIMESTAMP


@pytest.mark.parametrize(("number", "every"), [(0, None), (-1, None), (1.0, None), (True, None), (3, 0), (3, 4)])
def test_numbers_that_make_no_windows_are_refused(number, every):
    with pytest.raises(ValueError, match=r"write instead: (every=|counted\()"):
        counted(number, every)


@pytest.mark.parametrize("windows", [counted(3), counted(3, every=1), whole()])
def test_which_values_are_counted_together_depends_on_their_order(windows):
    spec = Window(windows=windows, aggregation=count())
    assert spec.order_sensitive == (windows != whole())


def stamped(records):
    """Yield each record's key, time and stamp."""
    watermarks = [NEVER] * 2
    for source, key, at in records:
        yield key, at, watermarks[source]
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)


def shown(case, records):
    """Tell the panes of all that came to each key, record by record, with their stamps and signs."""
    came, panes = defaultdict(list), Counter()
    for key, at, stamp in records:
        came[key].append((at, stamp))
    for key, of_key in came.items():
        windows = []
        for number, (at, stamp) in enumerate(of_key):
            if number % (case.every if case.number else len(of_key)) == 0:
                windows.append(Shown(case, key, panes))
            for window in windows:
                window.take(at, stamp)
        for window in windows:
            window.end()
    return +panes


class Shown:
    """One window: all that it has had, what is in no pane yet, and the last pane."""

    def __init__(self, case, key, panes):
        self.case, self.key, self.panes = case, key, panes
        self.all, self.new, self.last, self.index, self.is_complete = [], [], None, 0, False

    def due(self):
        return due(self.case.early, [at for at, _ in self.new], self.index > 0)

    def take(self, at, stamp):
        if self.is_complete:
            return
        if self.due() <= stamp:
            self.pane("early")
        self.all.append((at, stamp))
        self.new.append((at, stamp))
        self.is_complete = len(self.all) == self.case.number
        if self.is_complete:
            self.pane("on_time")
        elif self.due() <= stamp:
            self.pane("early")

    def end(self):
        if not self.is_complete:
            if self.due() <= MAX_TIMESTAMP:
                self.pane("early")
            if self.shown():
                self.pane("on_time")

    def shown(self):
        return self.new if self.case.panes == "discarding" else self.all

    def pane(self, timing):
        times, stamps = zip(*self.shown(), strict=True)
        pane = (self.key, min(times), max(times) + 1, times, self.index, timing)
        if self.case.panes == "retracting" and self.last is not None:
            self.panes[self.last, max(stamps), -1] += 1
        self.panes[pane, max(stamps), 1] += 1
        self.last, self.new, self.index = pane, [], self.index + 1


@settings(max_examples=examples(300, 20_000))
@given(RECORDS, CUTS, SHAPES, TRIGGERS, PANES)
def test_windows_are_shown_early_when_triggers_say_so_and_in_full_when_they_are_complete(
    records, cuts, shape, early, panes
):
    case = Case(records, cuts, *shape, early, panes)
    emitted = Counting(case, collect()).run().emitted
    signed = [((p.key, p.start, p.end, tuple(p.value), p.index, p.timing), stamp, sign) for p, stamp, sign in emitted]
    assert Counter(signed) == shown(case, stamped(records))


def test_what_was_shown_is_its_own():
    changed = fold(list, lambda kept, value: kept.append(value) or kept)
    case = Case([(0, "a", 1), (0, "a", 2), (0, "a", 3)], [], None, 1, after_count(2))
    assert [pane.value for pane in Counting(case, changed).run().panes] == [[1, 2], [1, 2, 3]]
