"""Windows of one's own against the definition: those that a function gives each value, merged where they overlap."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect, count
from operators.core.base import Batch
from operators.windows.custom_window import AssignedOperator, MergingOperator
from operators.windows.window import Window
from operators.windows.window_types import ByRow, tumbling
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.test_window import CUTS, DISORDER_MS, LATENESS, RECORDS, Driven, comparable
from tests.operators.test_window import expected as expected_of_windows
from tests.scale import examples

NEVER = -(2**62)


@dataclass(frozen=True)
class Aligned:
    """The windows of one length from each step, as hopping windows are; nothing of those that leave a value out."""

    size: int
    every: int
    leaves_out: int = 0

    def assign(self, key, timestamp, value):
        if self.leaves_out and timestamp % self.leaves_out == 0:
            return []
        first = timestamp - timestamp % self.every
        starts = range(first, timestamp - self.size, -self.every)
        return [(start, start + self.size) for start in starts]


@dataclass(frozen=True)
class Lasting:
    """A window from each value on that is as long as its key and its time say."""

    merges = True

    def assign(self, key, timestamp, value):
        length = 3 * (ord(key) - ord("a") + 1) + timestamp % 7
        return [(timestamp, timestamp + length)]


class Case(NamedTuple):
    """Windows that are given, and what comes to them."""

    records: list[tuple[int, str, int]]
    cuts: list[str]
    size: int = 10
    every: int = 10
    lateness: int = 0
    panes: str = "accumulating"
    windows: object = None

    def operator(self, store, aggregation):
        windows = self.windows or Aligned(self.size, self.every)
        how = {"allowed_lateness_ms": self.lateness, "panes": self.panes}
        spec = Window(windows=windows, aggregation=aggregation, **how)
        functions = {"aggregation": aggregation, "assign": windows.assign}
        if getattr(windows, "merges", False):
            return MergingOperator(spec, store, KeySerde(String()), functions)
        return AssignedOperator(spec, store, KeySerde(String()), Tagged(), functions)


SHAPES = st.sampled_from([(10, 10), (12, 4), (12, 5), (9, 1)])
PANES = st.sampled_from(["accumulating", "discarding"])
CASES = st.builds(
    lambda records, cuts, shape, *how: Case(records, cuts, *shape, *how), RECORDS, CUTS, SHAPES, LATENESS, PANES
)


@settings(max_examples=examples(400, 20_000))
@given(CASES)
def test_windows_that_are_given_are_like_those_that_are_known(case):
    driven = Driven(case, collect()).run()
    panes, late = expected_of_windows(case)
    assert comparable(driven.panes) == comparable(panes)
    assert driven.late == late


@given(RECORDS, CUTS)
def test_a_value_that_is_in_no_window_is_not_late(records, cuts):
    whole = Driven(Case(records, cuts, windows=Aligned(10, 10)), collect()).run()
    left = Driven(Case(records, cuts, windows=Aligned(10, 10, leaves_out=5)), collect()).run()
    values = Counter(at for pane in left.panes for at in pane.value)
    assert values == Counter(at for pane in whole.panes for at in pane.value if at % 5)


def joined(case):
    """Join the windows of what is in time, where they overlap; return how many were late as well."""
    spans, watermarks, late = defaultdict(list), [NEVER] * 2, 0
    for source, key, at in case.records:
        if at < watermarks[source]:
            late += 1
        else:
            ((start, end),) = Lasting().assign(key, at, at)
            spans[key].append((start, end, at))
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)
    found = Counter()
    for key, of_key in spans.items():
        start = end = None
        values = []
        for low, high, at in sorted(of_key):
            if end is not None and low >= end:
                found[key, start, end, tuple(values)] += 1
                start, values = None, []
            start, end = (low, high) if start is None else (start, max(end, high))
            values.append(at)
        found[key, start, end, tuple(values)] += 1
    return found, late


@settings(max_examples=examples(400, 20_000))
@given(RECORDS, CUTS)
def test_windows_that_merge_are_those_of_the_sorted_history(records, cuts):
    case = Case(records, cuts, windows=Lasting())
    driven = Driven(case, collect()).run()
    windows, late = joined(case)
    assert Counter((p.key, p.start, p.end, tuple(sorted(p.value))) for p in driven.panes) == windows
    assert driven.late == late


def test_two_windows_that_begin_alike_are_late_apart():
    class Two:
        def assign(self, key, timestamp, value):
            return [(0, 10), (0, 20), (0, 10)]

    windows = Case([], [], lateness=100, windows=Two()).operator(MemoryStore(), collect())
    windows.process(Batch([1, 2], ["k"] * 2, [1, 2], [NEVER, 30]))
    windows.write_back()
    windows.forget()
    panes = windows.on_watermark(31).values
    assert [(pane.end, pane.value, pane.timing) for pane in panes] == [
        (10, [1], "on_time"),
        (20, [1], "on_time"),
        (10, [1, 2], "late"),
        (20, [1, 2], "late"),
    ]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"assign\(...\) returned None; return a list"),
        ([(3, 3)], r"returned \(3, 3\) among the windows, which is no start and later end in whole ms"),
        ([(3.0, 4)], r"returned \(3.0, 4\) among the windows"),
        ([7], r"returned 7 among the windows"),
        ([(0, 2**61)], r"no start and later end"),
    ],
)
def test_what_is_no_window_is_an_error_of_the_record(found, message):
    class Wrong:
        def assign(self, key, timestamp, value):
            return found

    windows = Case([], [], windows=Wrong()).operator(MemoryStore(), count())
    with pytest.raises(ValueError, match=message):
        windows.process(Batch([1], ["k"], [1], [NEVER]))


def test_a_window_that_merges_can_not_begin_before_its_value():
    class Early:
        merges = True

        def assign(self, key, timestamp, value):
            return [(timestamp - 1, timestamp + 1)]

    windows = Case([], [], windows=Early()).operator(MemoryStore(), count())
    with pytest.raises(ValueError, match=r"windows that merge begin with it.*return \[\(timestamp, ...\)\]"):
        windows.process(Batch([1], ["k"], [1], [NEVER]))


def test_the_windows_of_a_row_leave_the_row_behind():
    spec = Window(windows=ByRow("lengths", lambda row: tumbling(milliseconds=row or 5)), aggregation=collect())
    functions = {"aggregation": collect(), "assign": spec.windows.choose}
    windows = AssignedOperator(spec, MemoryStore(), KeySerde(String()), Tagged(), functions)
    values = [("a", 10), ("b", None), ("c", 10), ("d", None)]
    windows.process(Batch(values, ["k"] * 4, [1, 2, 3, 4], [NEVER, NEVER, NEVER, 5]))
    assert windows.late.values == ["d"]
    panes = windows.on_watermark(10).values
    assert [(pane.start, pane.end, pane.value) for pane in panes] == [(0, 5, ["b"]), (0, 10, ["a", "c"])]


def test_what_is_chosen_for_a_row_has_to_be_a_kind_of_window():
    spec = Window(windows=ByRow("lengths", lambda row: row), aggregation=count())
    functions = {"aggregation": count(), "assign": spec.windows.choose}
    windows = AssignedOperator(spec, MemoryStore(), KeySerde(String()), Tagged(), functions)
    with pytest.raises(ValueError, match=r"got 4 from its function, .*; return tumbling\(hours=1\)"):
        windows.process(Batch([("a", 4)], ["k"], [1], [NEVER]))
