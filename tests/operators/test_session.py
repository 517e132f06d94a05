"""Sessions against the definition: values of a key that are less than the gap apart, however they came."""

from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect, count, fold
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.windows.session import SessionOperator
from operators.windows.window import Window
from operators.windows.window_types import session
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String
from runtime.stores.memory import MemoryStore
from tests.operators.test_window import CUTS, DISORDER_MS, RECORDS, Driven
from tests.scale import examples


class Case(NamedTuple):
    """Sessions, and what comes to them."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    gap: int

    def operator(self, store, aggregation):
        spec = Window(windows=session(milliseconds=self.gap), aggregation=aggregation)
        return SessionOperator(spec, store, KeySerde(String()))


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
    driven = Driven(case, collect()).run()
    sessions, late = expected(case)
    assert Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in driven.panes) == sessions
    assert driven.late == late


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
