"""Early panes by the clock: when they are due, what they have, and that what comes at last is the same without them."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch
from operators.windows.processing_time_triggers import ClockedTriggerOperator
from operators.windows.triggers import AfterClockDelay, AfterCount, AfterDelay, Once, Several
from operators.windows.window import Window
from operators.windows.window_types import session, tumbling
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.scale import examples

SIZE_MS = 20
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("value"), st.integers(0, 30)),
        st.tuples(st.just("value"), st.integers(0, 30)),
        st.tuples(st.just("clock"), st.integers(1, 30)),
        st.tuples(st.just("watermark"), st.integers(1, 15)),
        st.tuples(st.sampled_from(["write back", "restart"]), st.just(0)),
    ),
    max_size=30,
)
single = st.one_of(
    st.builds(AfterClockDelay, st.integers(1, 40)),
    st.builds(AfterClockDelay, st.integers(1, 40)),
    st.builds(AfterCount, st.integers(1, 4)),
    st.builds(AfterDelay, st.integers(1, 15)),
)
TRIGGERS = st.recursive(
    single,
    lambda inner: st.one_of(
        st.builds(Once, inner), st.builds(Several, st.tuples(inner, inner), needs_all=st.booleans())
    ),
    max_leaves=3,
)


class Driven:
    """Windows of one key to whom values come while the clock and event time go on."""

    def __init__(self, windows, early, panes):
        self.spec = Window(windows=windows, aggregation=collect(), early=early, panes=panes)
        self.store, self.now, self.watermark = MemoryStore(), 1_000, MIN_TIMESTAMP
        self.values, self.panes = [], []
        self.begin(None)

    def begin(self, lowest):
        how = self.spec, self.store, KeySerde(String()), Tagged(), None, 0, lowest
        self.operator = ClockedTriggerOperator(*how)

    def step(self, how, number):
        self.before = self.watermark
        if how == "clock":
            self.now += number
        elif how == "watermark":
            self.watermark = max(self.watermark, 0) + number
        elif how in ("write back", "restart"):
            self.operator.write_back()
        if how == "restart":
            self.begin(self.operator.lowest_stamp())
        while how != "value" and self.operator.is_unread:
            self.operator.read_on()
        self.operator.heed(self.now, self.watermark)
        if how == "value":
            at = max(self.watermark, 0) + number
            self.values.append((at, self.now))
            self.take(self.operator.process(Batch([at], ["k"], [at], [self.watermark])))
        self.fire()

    def fire(self):
        while self.operator.next_due() <= self.watermark:
            self.take(self.operator.on_watermark(self.watermark, 1))
        self.operator.heed(self.now, self.watermark)
        while self.operator.next_alarm() <= self.now:
            self.take(self.operator.on_clock(self.now, 1))

    def end(self):
        self.before, self.watermark = self.watermark, MAX_TIMESTAMP
        while self.operator.next_due() <= MAX_TIMESTAMP:
            self.take(self.operator.on_watermark(MAX_TIMESTAMP))
        while self.operator.next_alarm() <= MAX_TIMESTAMP:
            assert self.operator.on_clock(MAX_TIMESTAMP) is None, "all is over"
        self.operator.write_back()
        assert list(self.store.range()) == []

    def take(self, emitted):
        for pane, stamp in zip(emitted.values, emitted.stamps, strict=True) if emitted else ():
            assert stamp < pane.end, "nothing is late below"
            assert pane.timing != "on_time" or self.before < pane.end <= self.watermark, "it comes when it is due"
            self.panes.append((pane, self.now))


def expected(steps, delay_ms, panes):
    """Go through the steps with nothing but lists, window by window."""
    now, watermark, found = 1_000, MIN_TIMESTAMP, []
    windows = defaultdict(lambda: {"all": [], "since": [], "first": None, "index": 0})

    def show(start, timing):
        window = windows[start]
        values = window["all"] if panes == "accumulating" else window["since"]
        if values:
            found.append((start, timing, window["index"], sorted(values), now))
            window["index"] += 1
        window["since"], window["first"] = [], None

    def catch_up():
        for start in sorted(windows):
            if start + SIZE_MS <= watermark:
                show(start, "on_time")
                del windows[start]
            elif windows[start]["since"] and now >= windows[start]["first"] + delay_ms:
                show(start, "early")

    for how, number in steps:
        now += number if how == "clock" else 0
        watermark = max(watermark, 0) + number if how == "watermark" else watermark
        if how == "value":
            at = max(watermark, 0) + number
            window = windows[at // SIZE_MS * SIZE_MS]
            window["all"].append(at)
            window["since"] = [*window["since"], at]
            window["first"] = now if window["first"] is None else window["first"]
        catch_up()
    watermark = MAX_TIMESTAMP
    catch_up()
    return found


@settings(max_examples=examples(400, 10_000))
@given(STEPS, st.integers(1, 40), st.sampled_from(["accumulating", "discarding"]))
def test_a_pane_is_due_so_long_after_the_first_value_that_is_in_none(steps, delay_ms, panes):
    driven = Driven(tumbling(milliseconds=SIZE_MS), AfterClockDelay(delay_ms), panes)
    for step in steps:
        driven.step(*step)
    driven.end()
    told = [(pane.start, pane.timing, pane.index, sorted(pane.value), now) for pane, now in driven.panes]
    assert sorted(told) == sorted(expected(steps, delay_ms, panes))


@settings(max_examples=examples(400, 10_000))
@given(STEPS, TRIGGERS, st.sampled_from([tumbling(milliseconds=SIZE_MS), session(milliseconds=9)]))
def test_what_comes_at_last_does_not_depend_on_the_clock(steps, early, windows):
    final = []
    for trigger in (early, AfterCount(1_000)):
        driven = Driven(windows, trigger, "accumulating")
        for step in steps:
            driven.step(*step)
        driven.end()
        on_time = [pane for pane, _ in driven.panes if pane.timing == "on_time"]
        final.append([(pane.start, pane.end, sorted(pane.value)) for pane in on_time])
        for pane, _ in driven.panes:
            (last,) = [one for one in on_time if one.start <= pane.start and pane.end <= one.end]
            assert set(pane.value) <= set(last.value) and pane.index <= last.index
    assert final[0] == final[1]


def test_all_of_two_waits_for_both_the_clock_and_event_time():
    both = Several((AfterClockDelay(10), AfterDelay(5)), needs_all=True)
    driven = Driven(tumbling(milliseconds=SIZE_MS), both, "accumulating")
    driven.step("value", 1)
    driven.step("clock", 10)
    assert driven.panes == [], "event time has not come so far"
    driven.step("watermark", 6)
    assert [pane.timing for pane, _ in driven.panes] == ["early"]
    driven.step("value", 1)
    driven.step("watermark", 6)
    assert len(driven.panes) == 1, "nor has the clock"
    driven.step("clock", 10)
    assert [pane.timing for pane, _ in driven.panes] == ["early", "early"]


def test_a_pane_that_is_due_by_the_clock_is_dropped_alone():
    driven = Driven(session(milliseconds=9), AfterClockDelay(10), "discarding")
    driven.step("value", 0)
    driven.step("value", 30)
    driven.operator.heed(2_000, MIN_TIMESTAMP)
    assert driven.operator.drop_alarm().values == [(0, 9, (0,))]
    assert [pane.value for pane in driven.operator.on_clock(2_000).values] == [[30]]
