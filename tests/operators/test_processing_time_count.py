"""Windows by count that show what they have by the clock: when they do, with what, and that nothing else changes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from operators.windows.processing_time_triggers import ClockedCountedOperator
from operators.windows.triggers import AfterClockDelay, AfterCount, AfterDelay, Several
from operators.windows.window import Window
from operators.windows.window_types import counted, whole
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.test_processing_time_triggers import STEPS, TRIGGERS
from tests.operators.test_triggered import PANES
from tests.scale import examples

WINDOWS = st.sampled_from([whole(), counted(3), counted(4, every=2), counted(3, every=1)])


class Driven:
    """Windows by count of one key to whom values come while the clock and event time go on."""

    def __init__(self, windows, early, panes):
        self.spec = Window(windows=windows, aggregation=collect(), early=early, panes=panes)
        self.store, self.now, self.watermark = MemoryStore(), 1_000, MIN_TIMESTAMP
        self.panes, self.number = [], 0
        self.begin(None)

    def begin(self, lowest):
        how = self.spec, self.store, KeySerde(String()), Tagged(), None, 0, lowest
        self.operator = ClockedCountedOperator(*how)

    def run(self, steps):
        for step in steps:
            self.step(*step)
        self.watermark = MAX_TIMESTAMP
        assert self.operator.on_clock(MAX_TIMESTAMP) is None, "nothing is early any more"
        assert self.operator.next_alarm() > MAX_TIMESTAMP
        self.take(self.operator.on_watermark(MAX_TIMESTAMP))
        self.operator.write_back()
        assert list(self.store.range()) == []
        return self

    def step(self, how, number):
        self.now += number if how == "clock" else 0
        self.watermark = max(self.watermark, 0) + number if how == "watermark" else self.watermark
        if how in ("write back", "restart"):
            self.operator.write_back()
        if how == "restart":
            self.begin(self.operator.lowest_stamp())
        while how != "value" and self.operator.is_unread:
            self.operator.read_on()
        self.heed(self.watermark)
        if how == "value":
            at = max(self.watermark, 0) + number
            self.take(self.operator.process(Batch([self.number], ["k"], [at], [self.watermark])))
            self.number += 1
        while self.operator.next_due() <= self.watermark:
            self.take(self.operator.on_watermark(self.watermark, 1))
        self.heed(self.watermark)
        while self.operator.next_alarm() <= self.now:
            self.take(self.operator.on_clock(self.now, 1))

    def heed(self, watermark):
        self.told = min(watermark, self.operator.lowest_stamp())
        self.operator.heed(self.now, watermark)

    def take(self, emitted):
        for pane, stamp in zip(emitted.values, emitted.stamps, strict=True) if emitted else ():
            assert stamp >= self.told, "nothing is late below for having waited"
            self.panes.append((pane, self.now))


def expected(steps, windows, delay_ms, panes):
    """Go through the steps with nothing but lists, window by window."""
    now, number, found, open = 1_000, 0, [], []

    def show(window, timing):
        values = window["since"] if panes == "discarding" else window["all"]
        if values:
            found.append((timing, window["index"], [*values], now))
            window["index"] += 1
        window["since"], window["first"] = [], None

    for how, step in steps:
        now += step if how == "clock" else 0
        if how == "value":
            if number % (windows.every or 10**9) == 0:
                open.append({"all": [], "since": [], "first": None, "index": 0})
            for window in open:
                window["all"].append(number)
                window["since"].append(number)
                window["first"] = now if window["first"] is None else window["first"]
            number += 1
        for window in [*open]:
            if len(window["all"]) == windows.number:
                show(window, "on_time")
                open.remove(window)
            elif window["since"] and now >= window["first"] + delay_ms:
                show(window, "early")
    for window in open:
        show(window, "on_time")
    return found


def told(driven):
    return [(pane.timing, pane.index, pane.value, now) for pane, now in driven.panes]


@settings(max_examples=examples(400, 10_000))
@given(STEPS, WINDOWS, st.integers(1, 40), st.sampled_from(["accumulating", "discarding"]))
def test_a_pane_is_due_so_long_after_the_first_value_that_is_in_none(steps, windows, delay_ms, panes):
    driven = Driven(windows, AfterClockDelay(delay_ms), panes).run(steps)
    assert sorted(told(driven)) == sorted(expected(steps, windows, delay_ms, panes))


@settings(max_examples=examples(400, 10_000))
@given(STEPS, WINDOWS, TRIGGERS, PANES)
def test_what_is_complete_does_not_depend_on_the_clock(steps, windows, early, panes):
    found = []
    for trigger in (early, AfterCount(1_000)):
        shown = [pane for pane, _ in Driven(windows, trigger, panes).run(steps).panes]
        if panes == "discarding" and windows == whole():
            found.append([value for pane in shown for value in pane.value])
        elif panes != "discarding":
            found.append([pane.value for pane in shown if pane.timing == "on_time"])
    assert found == [] or found[0] == found[1]


def test_all_of_two_waits_for_both_the_clock_and_event_time():
    both = Several((AfterClockDelay(10), AfterDelay(5)), needs_all=True)
    driven = Driven(whole(), both, "accumulating")
    driven.step("value", 1)
    driven.step("clock", 10)
    assert driven.panes == [], "event time has not come so far"
    driven.step("restart", 0)
    driven.step("watermark", 6)
    assert told(driven) == [("early", 0, [0], 1_010)]
    driven.step("value", 1)
    driven.step("watermark", 6)
    assert len(driven.panes) == 1, "nor has the clock"
    driven.step("clock", 10)
    assert told(driven)[1:] == [("early", 1, [0, 1], 1_020)]


def test_a_pane_that_is_due_by_the_clock_is_dropped_alone_and_what_is_forgotten_was_not_shown():
    driven = Driven(whole(), AfterClockDelay(10), "discarding")
    for key in "ab":
        driven.operator.process(Batch([key], [key], [3], [MIN_TIMESTAMP]))
    driven.operator.write_back()
    driven.store.savepoint()
    driven.operator.heed(2_000, MIN_TIMESTAMP)
    assert [pane.value for pane in driven.operator.on_clock(2_000).values] == [["a"], ["b"]]
    driven.store.rollback()
    driven.operator.forget()
    assert driven.operator.drop_alarm().values == [(3, 4, ("a",))]
    assert [pane.value for pane in driven.operator.on_clock(2_000).values] == [["b"]]
