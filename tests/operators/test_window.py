"""A window operator against the definition: what is not late is in the pane of its key and window, once."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from operators.aggregations import collect, count
from operators.base import MAX_TIMESTAMP, Batch
from operators.window import Window, WindowOperator
from operators.window_types import daily, tumbling
from runtime.control import SourceWatermark
from runtime.keys import KeySerde
from runtime.serdes import String
from runtime.stores.memory import MemoryStore

SIZE_MS = 10
DISORDER_MS = 7
RECORDS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-30, 90)), max_size=60)
CUTS = st.lists(st.sampled_from(["batch", "fire", "fire one", "fire two", "write back", "restart"]), max_size=60)


def operator(store, aggregation):
    spec = Window(windows=tumbling(milliseconds=SIZE_MS), aggregation=aggregation)
    return WindowOperator(spec, store, KeySerde(String()))


def drive(records, cuts, aggregation):
    """Feed records in batches that end where `cuts` say; return the panes, and how many records were late."""
    store, source = MemoryStore(), SourceWatermark(DISORDER_MS)
    windows, panes, late, held = operator(store, aggregation), [], 0, []

    def feed():
        nonlocal late
        if held:
            keys, timestamps = [key for key, _ in held], [at for _, at in held]
            *stamps, source.value = source.stamp(timestamps)
            windows.process(Batch(list(timestamps), keys, timestamps, stamps))
            late += len(windows.late) if windows.late else 0
            held.clear()

    for row, record in enumerate(records):
        held.append(record)
        match cuts[row] if row < len(cuts) else "":
            case "batch":
                feed()
            case "fire":
                feed()
                panes += fired(windows, source.value)
            case "fire one":
                feed()
                panes += fired(windows, source.value, most=1)
            case "fire two":
                feed()
                panes += fired(windows, source.value, most=2)
            case "write back":
                feed()
                windows.write_back()
            case "restart":
                feed()
                windows.write_back()
                windows = operator(store, aggregation)
    feed()
    panes += fired(windows, MAX_TIMESTAMP)
    assert windows.next_due() > MAX_TIMESTAMP and list(store.range()) == []
    return panes, late


def fired(windows, watermark, most=None):
    panes = windows.on_watermark(watermark, most)
    if panes is None:
        return []
    assert most is None or len(panes) <= most
    assert panes.timestamps == panes.stamps == [pane.end - 1 for pane in panes.values]
    assert panes.keys == [pane.key for pane in panes.values]
    assert all(pane.end <= watermark for pane in panes.values)
    return panes.values


def expected(records):
    """Decide record by record, as the definition has it."""
    windows, watermark, late = defaultdict(list), -(2**62), 0
    for key, at in records:
        start = at - at % SIZE_MS
        if start + SIZE_MS <= watermark:
            late += 1
        else:
            windows[start, key].append(at)
        watermark = max(watermark, at - DISORDER_MS)
    return dict(windows), late


@given(RECORDS, CUTS)
def test_panes_hold_what_is_not_late_however_it_was_batched_fired_and_restarted(records, cuts):
    panes, late = drive(records, cuts, collect())
    windows, late_expected = expected(records)
    assert {(pane.start, pane.key): pane.value for pane in panes} == windows
    assert len(panes) == len(windows) and late == late_expected


@given(RECORDS, CUTS)
def test_a_count_needs_no_values(records, cuts):
    panes, _ = drive(records, cuts, count())
    assert {(pane.start, pane.key): pane.value for pane in panes} == {
        place: len(values) for place, values in expected(records)[0].items()
    }


@given(RECORDS, CUTS)
def test_the_panes_of_a_key_come_in_the_order_of_their_windows(records, cuts):
    panes, _ = drive(records, cuts, count())
    for key in "abc":
        ends = [pane.end for pane in panes if pane.key == key]
        assert ends == sorted(set(ends))


@given(RECORDS, RECORDS)
def test_what_is_forgotten_was_never_there(kept, forgotten):
    store = MemoryStore()
    windows = operator(store, count())
    for records in (kept, forgotten):
        if records:
            timestamps = [at for _, at in records]
            windows.process(Batch(timestamps, [key for key, _ in records], timestamps, [-(2**62)] * len(records)))
        if records is kept:
            windows.write_back()
    windows.forget()
    panes = fired(windows, MAX_TIMESTAMP)
    assert sum(pane.value for pane in panes) == (len(kept) + len(forgotten) if kept is forgotten else len(kept))


@given(st.lists(st.integers(0, 2_000_000_000_000), min_size=1, max_size=20))
def test_many_windows_in_one_batch_are_told_apart(timestamps):
    spec = Window(windows=daily("America/New_York"), aggregation=collect())
    windows = WindowOperator(spec, MemoryStore(), KeySerde(String()))
    low = [-(2**62)] * len(timestamps)
    windows.process(Batch(list(timestamps), ["k"] * len(timestamps), timestamps, low))
    panes = fired(windows, MAX_TIMESTAMP)
    assert sorted(at for pane in panes for at in pane.value) == sorted(timestamps)
    assert all(pane.start <= at < pane.end for pane in panes for at in pane.value)
