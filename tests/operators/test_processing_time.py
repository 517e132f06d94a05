"""Windows by the clock against the definition: values by when they came, in windows and sessions of that time."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect, count
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.windows.processing_time import ClockedWindowOperator
from operators.windows.session import SessionOperator
from operators.windows.sliding import SlidingOperator
from operators.windows.triggered import TriggeredWindowOperator
from operators.windows.triggers import AfterClockDelay, AfterCount, AfterDelay, Once, Several
from operators.windows.window import Window, WindowOperator
from operators.windows.window_types import session, sliding, tumbling
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.scale import examples

SIZE_MS = 10
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("value"), st.sampled_from("abc"), st.integers(-100, 100)),
        st.tuples(st.just("clock"), st.just(""), st.integers(-5, 30)),
        st.tuples(st.sampled_from(("fire one", "write back", "restart")), st.just(""), st.just(0)),
    ),
    max_size=60,
)


TRIGGERS = st.recursive(
    st.one_of(
        st.builds(AfterCount, st.integers(1, 4)),
        st.builds(AfterDelay, st.integers(1, 15)),
        st.builds(AfterClockDelay, st.integers(1, 15)),
    ),
    lambda inner: st.one_of(
        st.builds(Once, inner), st.builds(Several, st.tuples(inner, inner), needs_all=st.booleans())
    ),
    max_leaves=3,
)


def operator(store, merges, aggregation, early=None, panes="accumulating"):
    keys = KeySerde(String())
    if early is not None:
        windows = session(milliseconds=SIZE_MS) if merges else tumbling(milliseconds=SIZE_MS)
        how = {"windows": windows, "early": early.in_clock_time(), "panes": panes}
        return ClockedWindowOperator(
            TriggeredWindowOperator(Window(aggregation=aggregation, **how), store, keys, Tagged())
        )
    if merges == "sliding":
        spec = Window(windows=sliding(milliseconds=SIZE_MS), aggregation=aggregation)
        return ClockedWindowOperator(SlidingOperator(spec, store, keys, Tagged()))
    if merges:
        spec = Window(windows=session(milliseconds=SIZE_MS), aggregation=aggregation)
        return ClockedWindowOperator(SessionOperator(spec, store, keys))
    spec = Window(windows=tumbling(milliseconds=SIZE_MS), aggregation=aggregation)
    return ClockedWindowOperator(WindowOperator(spec, store, keys, Tagged()))


def expected(came, merges):
    """Cut what came at each time into windows, or where nothing came for the gap."""
    found = Counter()
    for key in "abc":
        times = sorted((now, value) for name, now, value in came if name == key)
        if merges == "sliding":
            for at in {now for now, _ in times}:
                held = [value for now, value in times if at - SIZE_MS < now <= at]
                found[key, at - SIZE_MS + 1, at + 1, tuple(sorted(held))] += 1
            continue
        held = []
        for now, value in times:
            ends = held and (now - held[-1][0] >= SIZE_MS if merges else now // SIZE_MS > held[-1][0] // SIZE_MS)
            if ends:
                found[pane_of(key, held, merges)] += 1
                held = []
            held.append((now, value))
        if held:
            found[pane_of(key, held, merges)] += 1
    return found


def pane_of(key, held, merges):
    first, last = held[0][0], held[-1][0]
    bounds = (first, last + SIZE_MS) if merges else (first - first % SIZE_MS, first - first % SIZE_MS + SIZE_MS)
    return key, *bounds, tuple(sorted(value for _, value in held))


@settings(max_examples=examples(400, 20_000))
@given(STEPS, st.sampled_from((False, True, "sliding")))
def test_values_are_in_the_windows_of_when_they_came(steps, merges):
    store = MemoryStore()
    windows, now, told, came, panes = operator(store, merges, collect()), 0, -(2**62), [], []

    def fire(at, most=None):
        windows.heed(now, told)
        while windows.next_alarm() <= at:
            fired = windows.on_clock(at, most)
            if fired is not None:
                assert most is None or len(fired) <= most
                assert fired.timestamps == fired.stamps == [max(pane.end - 1, told) for pane in fired.values]
                panes.extend(fired.values)
            if most is not None:
                return

    for what, key, number in steps:
        windows.heed(now, told)
        if what == "value":
            windows.process(Batch([number], [key], [number], [number]))
            came.append((key, now, number))
            assert windows.next_due() > MAX_TIMESTAMP and windows.on_watermark(MAX_TIMESTAMP) is None
        elif what == "clock":
            now, told = max(now, now + number), max(told, number * 10)
            windows.heed(now - 3, told)
            windows.heed(now, told)
            fire(now)
        elif what == "fire one":
            fire(now, 1)
        else:
            windows.write_back()
            if what == "restart":
                windows = operator(store, merges, collect())
    fire(MAX_TIMESTAMP)
    windows.write_back()
    assert Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in panes) == expected(came, merges)
    assert windows.next_alarm() > MAX_TIMESTAMP and [*store.range()] == []


def driven(steps, merges, early, panes):
    """Return the panes that windows with early ones have, each with the clock, the batch, and its place there."""
    store = MemoryStore()
    windows, now, told, found = operator(store, merges, collect(), early, panes), 0, -(2**62), []

    def take(batch):
        if batch is not None:
            assert min(batch.stamps) >= told or batch.signs, "nothing is late below"
            signs = batch.signs or [1] * len(batch)
            found.extend((now, *one) for one in zip(batch.values, batch.timestamps, batch.stamps, signs, strict=True))

    for what, key, number in steps:
        windows.heed(now, told)
        if what == "value":
            take(windows.process(Batch([number], [key], [number], [number])))
        elif what == "clock":
            now, told = max(now, now + number), max(told, number * 10)
        else:
            windows.write_back()
        if what == "restart":
            windows = operator(store, merges, collect(), early, panes)
        windows.heed(now, told)
        while windows.next_alarm() <= now:
            take(windows.on_clock(now, 1))
    take(windows.on_clock(MAX_TIMESTAMP))
    windows.write_back()
    assert windows.next_alarm() > MAX_TIMESTAMP and [*store.range()] == []
    return found


def shown(steps, number, delay_ms, panes):
    """Go through the steps with nothing but lists: panes of tumbling windows after so many values, or so long."""
    now, found, windows = 0, [], {}

    def show(place, timing):
        window = windows[place]
        values = window["since"] if panes == "discarding" else window["all"]
        if values and (timing == "on_time" or window["since"]):
            found.append((now, *place, window["index"], timing, tuple(values)))
            window["index"] += 1
        window["since"], window["first"] = [], None

    for what, key, value in steps:
        now = max(now, now + value) if what == "clock" else now
        if what == "value":
            place = key, now - now % SIZE_MS
            window = windows.setdefault(place, {"all": [], "since": [], "first": None, "index": 0})
            window["all"].append(value)
            window["since"] = [*window["since"], value]
            window["first"] = now if window["first"] is None else window["first"]
        for place in [*windows]:
            key, start = place
            first = windows[place]["first"]
            is_over = first is not None and first + delay_ms <= now and first + delay_ms < start + SIZE_MS
            if is_over or len(windows[place]["since"]) >= number:
                show(place, "early")
            if start + SIZE_MS <= now:
                show(place, "on_time")
                del windows[place]
    for place in windows:
        show(place, "on_time")
    return Counter(found)


@settings(max_examples=examples(400, 20_000))
@given(STEPS, st.integers(1, 4), st.integers(1, 15), st.booleans(), st.sampled_from(["accumulating", "discarding"]))
def test_windows_of_the_clock_are_shown_early_by_count_and_by_the_clock(steps, number, delay_ms, by_clock, panes):
    delay = (AfterClockDelay if by_clock else AfterDelay)(delay_ms)
    found = driven(steps, False, Several((AfterCount(number), delay), needs_all=False), panes)
    told = Counter((now, p.key, p.start, p.index, p.timing, tuple(p.value)) for now, p, *_ in found)
    assert told == shown(steps, number, delay_ms, panes)


@settings(max_examples=examples(400, 20_000))
@given(STEPS, st.booleans(), TRIGGERS)
def test_what_is_withdrawn_was_there_at_that_time_and_what_is_left_are_the_last_panes(steps, merges, early):
    net, came = Counter(), {}
    for _, pane, at, stamp, sign in driven(steps, merges, early, "retracting"):
        one = (pane.key, pane.start, pane.end, pane.index, pane.timing, tuple(pane.value), at)
        net[one] += sign
        assert net[one] in (0, 1) and stamp >= came.setdefault(one, stamp)
    last = Counter(
        (p.key, p.start, p.end, tuple(p.value)) for _, p, *_ in driven(steps, merges, AfterCount(99), "accumulating")
    )
    assert Counter((*one[:3], one[5]) for one in +net) == last


def test_a_clock_that_is_set_back_stands_still():
    windows = operator(MemoryStore(), False, count())
    for now in (25, 12):
        windows.heed(now, 0)
        windows.process(Batch(["x"], ["a"], [0], [0]))
    assert [(pane.start, pane.value) for pane in windows.on_clock(30).values] == [(20, 2)]


def test_a_clock_that_was_set_back_before_a_restart_loses_nothing():
    store = MemoryStore()
    windows, panes = operator(store, "sliding", collect()), []
    for value, now in enumerate((25, 12, 3)):
        windows.heed(now, 0)
        windows.process(Batch([value], ["a"], [0], [0]))
        fired = windows.on_clock(26)
        panes += fired.values if fired else []
        windows.write_back()
        windows = operator(store, "sliding", collect())
    panes += windows.on_clock(MAX_TIMESTAMP).values
    assert [pane.value for pane in panes] == [[0], [0, 1, 2]]


def test_what_fails_is_dropped_and_event_time_is_held_back_for_nothing():
    windows = operator(MemoryStore(), False, count())
    windows.heed(25, 0)
    windows.process(Batch(["x"], ["a"], [0], [0]))
    assert windows.lowest_stamp() > MAX_TIMESTAMP
    assert windows.drop_due().values == []
    assert windows.drop_alarm().values == [(20, 30, 1)]
    assert windows.next_alarm() > MAX_TIMESTAMP
