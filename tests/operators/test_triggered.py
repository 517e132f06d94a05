"""Early and late panes against the definition, whichever windows, trigger, lateness and accumulation are drawn."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.aggregation import collect, fold
from operators.core.base import MAX_TIMESTAMP, Batch
from operators.windows.custom_window import AssignedOperator, MergingOperator
from operators.windows.session import SessionOperator
from operators.windows.triggered import TriggeredWindowOperator
from operators.windows.triggers import NEVER, NOW, AfterCount, AfterDelay, Once, Several, Trigger
from operators.windows.window import Window, WindowOperator
from operators.windows.window_types import ByRow, hopping, session, tumbling
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.operators import test_window
from tests.operators.test_window import DISORDER_MS
from tests.scale import examples

GAP_MS = 9
LOWEST = -(2**62)


@dataclass(frozen=True)
class Apart:
    """Windows that begin alike, for some values one that lies ahead of them, and for some none."""

    def assign(self, key, timestamp, value):
        first = timestamp - timestamp % 10
        ahead = [(timestamp + 4, timestamp + 9)] if timestamp % 3 == 0 else []
        return [(first, first + 25), (first, first + 10), *ahead] if timestamp % 11 else []


@dataclass(frozen=True)
class Lasting:
    """As long as a value's time and key say, for some values with one that lies ahead, and for some none."""

    merges = True

    def assign(self, key, timestamp, value):
        length = 2 + timestamp % 9 + 3 * (key == "b")
        ahead = [(timestamp + 6, timestamp + 8)] if timestamp % 5 == 0 else []
        return [*ahead, (timestamp, timestamp + length)] if timestamp % 7 else []


def row_of(key, timestamp):
    """Return the row of a table that changes all the time."""
    return None if key == "b" else 10 + timestamp % 2


WINDOWS = {
    "tumbling": tumbling(milliseconds=20),
    "hopping": hopping(milliseconds=20, every_ms=8),
    "session": session(milliseconds=GAP_MS),
    "own": Apart(),
    "merging": Lasting(),
}
BY_ROW = ByRow("lengths", lambda row: tumbling(milliseconds=20 if row is None else row))
KINDS = {**WINDOWS, "by row": BY_ROW}
MERGING = ("session", "merging")


def windows_at(kind, key, at):
    """Return the windows of a value, those that end first before the others."""
    if kind == "session":
        return [(at, at + GAP_MS)]
    if kind in ("own", "merging"):
        return sorted(WINDOWS[kind].assign(key, at, None), key=lambda window: window[::-1])
    return (BY_ROW.choose(row_of(key, at)) if kind == "by row" else WINDOWS[kind]).cell(at).windows


RECORDS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from(["a", "a", "b"]), st.integers(0, 80)), max_size=40
)
CUTS = st.lists(st.sampled_from(["batch", "fire", "fire one", "fire two", "write back", "restart"]), max_size=40)
single = st.one_of(st.builds(AfterCount, st.integers(1, 4)), st.builds(AfterDelay, st.integers(1, 25)))
TRIGGERS = st.recursive(
    single,
    lambda inner: st.one_of(
        st.builds(Once, inner), st.builds(Several, st.tuples(inner, inner), needs_all=st.booleans())
    ),
    max_leaves=3,
)


class Case(NamedTuple):
    """Windows, and what comes to them."""

    windows: str
    records: list[tuple[int, str, int]]
    cuts: list[str]
    early: Trigger | None
    lateness: int
    panes: str
    emit: str = "all"
    again: Trigger | None = None

    def operator(self, store, aggregation, lowest=None):
        how = {"allowed_lateness_ms": self.lateness, "panes": self.panes, "early": self.early, "emit": self.emit}
        how["late_trigger"] = self.again
        spec = Window(windows=KINDS[self.windows], aggregation=aggregation, **how)
        keys = KeySerde(String())
        if self.emit == "all":
            return TriggeredWindowOperator(spec, store, keys, Tagged(), lowest=lowest)
        if self.windows == "merging":
            return MergingOperator(spec, store, keys, spec.functions(), noted=lowest is not None)
        if "assign" in spec.functions():
            return AssignedOperator(spec, store, keys, Tagged(), spec.functions())
        if self.windows == "session":
            return SessionOperator(spec, store, keys, noted=lowest is not None)
        return WindowOperator(spec, store, keys, Tagged())


LATENESS = st.sampled_from([0, 0, 1, 5, 20, 60])
PANES = st.sampled_from(["accumulating", "discarding", "retracting"])


def cases_of(kinds):
    """Draw windows of these kinds with triggers, lateness and panes."""
    how = (LATENESS, PANES, st.just("all"), st.none() | TRIGGERS)
    return st.builds(Case, st.sampled_from([*kinds]), RECORDS, CUTS, st.none() | TRIGGERS, *how)


def final_of(kinds):
    """Draw windows of these kinds that have one pane each."""
    how = (LATENESS, st.just("accumulating"), st.just("final"), st.none())
    return st.builds(Case, st.sampled_from([*kinds]), RECORDS, CUTS, st.none(), *how)


CASES, FINAL = cases_of(WINDOWS), final_of(WINDOWS)


class Driven(test_window.Driven):
    """An operator that is fed from two sources, and emits panes also as values come."""

    def begun(self, lowest=None):
        return self.case.operator(self.store, self.aggregation, lowest)

    def feed(self):
        if self.held:
            source = self.sources[self.held[0][0]]
            keys, timestamps = [key for _, key, _ in self.held], [at for *_, at in self.held]
            *stamps, source.value = source.stamp(timestamps)
            values = list(timestamps)
            if self.case.windows == "by row":
                values = [(at, row_of(key, at)) for _, key, at in self.held]
            emitted = self.windows.process(self.batch(values, keys, timestamps, stamps))
            self.late += len(self.windows.late) if self.windows.late else 0
            self.take(emitted)
            self.held.clear()

    def batch(self, *columns):
        return Batch(*columns)

    def fire(self, watermark, most=None):
        while self.windows.next_due() <= watermark:
            fired = self.windows.on_watermark(watermark, most)
            if fired is not None:
                assert most is None or len(fired) <= most or self.case.panes == "retracting"
                assert fired.stamps == sorted(fired.stamps) and fired.stamps[-1] < watermark
                self.take(fired)
            if most is not None:
                return
        waits_ms = self.case.lateness if self.case.emit == "final" else 0
        self.reached = min(watermark - waits_ms, self.windows.lowest_stamp())

    def take(self, emitted):
        if emitted is None:
            return
        assert emitted.timestamps == [pane.end - 1 for pane in emitted.values]
        assert emitted.keys == [pane.key for pane in emitted.values]
        assert min(emitted.stamps) >= self.reached, "nothing is emitted below what was forwarded"
        signs = emitted.signs or [1] * len(emitted)
        self.panes += zip(emitted.values, emitted.stamps, signs, strict=True)


def stamped(records):
    """Yield each record's key, time and stamp."""
    watermarks = [LOWEST] * 2
    for source, key, at in records:
        yield key, at, watermarks[source]
        watermarks[source] = max(watermarks[source], at - DISORDER_MS)


def due(trigger, since, has_fired):
    """Say when a trigger wants a pane, given the times of what is in no pane yet."""
    if isinstance(trigger, Once):
        return NEVER if has_fired else due(trigger.trigger, since, has_fired)
    if isinstance(trigger, Several):
        dues = [due(one, since, has_fired) for one in trigger.triggers]
        return max(dues) if trigger.needs_all else min(dues)
    if isinstance(trigger, AfterCount):
        return NOW if len(since) >= trigger.number else NEVER
    return min(since) + trigger.delay_ms if since and trigger is not None else NEVER


def delays_of(trigger):
    """Return the delays of a trigger, each in a tuple."""
    if isinstance(trigger, Once):
        return delays_of(trigger.trigger)
    if isinstance(trigger, Several):
        return [delay for one in trigger.triggers for delay in delays_of(one)]
    return [(trigger.delay_ms,)] if isinstance(trigger, AfterDelay) else []


class Row(NamedTuple):
    """A value in one of its windows, and the number of its record."""

    start: int
    end: int
    at: int
    stamp: int
    number: int


class History:
    """All that comes to windows that may become one, or to one that does not, and the panes that are made of it."""

    def __init__(self, case, in_time, late):
        self.case, self.in_time, self.late = case, in_time, late
        self.panes = []
        """Each with its rows, and a stamp."""
        self.withdrawn = []
        self.told = []
        """The panes, and what was withdrawn, with the stamp of what came instead."""

    def parts(self, rows):
        """Return the windows of some rows: their bounds, and which rows they have."""
        parts = []
        for row in sorted(rows):
            if parts and row.start < parts[-1][1]:
                start, end, inside = parts.pop()
                parts.append((start, max(end, row.end), [*inside, row]))
            else:
                parts.append((row.start, row.end, [row]))
        return parts

    def inside(self, part):
        return [pane for pane in self.panes if part[0] <= pane["start"] and pane["end"] <= part[1]]

    def since(self, part):
        return [row for row in part[2] if not any(row in pane["new"] for pane in self.panes)]

    def due(self, part):
        return due(self.case.early, [row.at for row in self.since(part)], bool(self.inside(part)))

    def pane(self, part, timing, stamp):
        start, end, rows = part
        new = self.since(part)
        shown = new if self.case.panes == "discarding" else rows
        if shown:
            if self.case.panes == "retracting":
                for pane in self.inside(part):
                    if pane not in self.withdrawn:
                        self.withdrawn.append(pane)
                        self.told.append({**pane, "stamp": stamp, "sign": -1})
            index = max((pane["index"] + 1 for pane in self.inside(part)), default=0)
            values = sorted(row.at for row in shown)
            pane = {"start": start, "end": end, "values": values, "index": index, "timing": timing, "stamp": stamp}
            self.panes.append({**pane, "new": new, "sign": 1})
            self.told.append(self.panes[-1])

    def run(self):
        if self.case.emit == "final":
            for part in self.parts([*self.in_time, *self.late]):
                self.pane(part, "final", part[1] - 1)
            return self
        if self.case.early is not None:
            self.run_early()
        for part in self.parts(self.in_time):
            self.pane(part, "on_time", part[1] - 1)
        if self.case.lateness:
            self.run_late()
        return self

    def run_early(self):
        so_far = []
        for row in self.in_time:
            joined = next(part for part in self.parts([*so_far, row]) if row in part[2])
            for part in self.parts(so_far):
                if joined[0] <= part[0] and part[1] <= joined[1] and self.due(part) <= row.stamp:
                    self.pane(part, "early", self.due(part) - 1)
            so_far.append(row)
            if self.due(joined) <= row.stamp:
                self.pane(joined, "early", row.stamp)
        for part in self.parts(so_far):
            if self.due(part) < part[1]:
                self.pane(part, "early", self.due(part) - 1)

    def run_late(self):
        ends = {row.end for row in (*self.in_time, *self.late)}
        stamps = {row.stamp for row in self.late}
        delays = delays_of(self.case.again)
        stamps |= {stamp + sum(some) - 1 for stamp in stamps for some in delays} if delays else set()
        for stamp in sorted(stamps | {end - 1 for end in ends} | {end + self.case.lateness - 1 for end in ends}):
            known = [row for row in (*self.in_time, *self.late) if row.stamp <= stamp]
            for part in self.parts(known):
                is_new = [row for row in self.since(part) if row in self.late]
                if is_new and part[1] <= stamp + 1 and self.again_due(part, is_new) <= stamp + 1:
                    self.pane(part, "late", stamp)

    def again_due(self, part, is_new):
        """Say from which watermark on late values make a pane."""
        if self.case.again is None:
            return NOW
        has_fired = any(pane["timing"] == "late" for pane in self.inside(part))
        return min(due(self.case.again, [row.stamp for row in is_new], has_fired), part[1] + self.case.lateness)


def histories(case, records):
    """Return what comes to each key of a task, by key and window, or by key alone, and how many records are too late.

    Records are of a task and a key, in this, a time, and a stamp.
    """
    in_time, late, dropped = defaultdict(list), defaultdict(list), 0
    for number, (key, at, stamp) in enumerate(records):
        windows, taken = windows_at(case.windows, key[-1], at), 0
        for window in windows:
            merges = case.windows in MERGING
            awaited, place = at + 1 if merges else window[1], (key, None if merges else window)
            if stamp < awaited + case.lateness:
                (in_time if stamp < awaited else late)[place].append(Row(*window, at, stamp, number))
                taken += 1
        dropped += bool(windows) and not taken
    return {place: History(case, in_time[place], late[place]) for place in {**in_time, **late}}, dropped


def expected(case):
    """Return the panes that the whole history says, with their stamps, and how many records were too late."""
    panes = Counter()
    found, dropped = histories(case, (((key,), at, stamp) for key, at, stamp in stamped(case.records)))
    for ((key,), _), history in found.items():
        for pane in history.run().told:
            told = (pane[name] for name in ("start", "end", "index", "timing", "stamp", "sign"))
            panes[key, *told, tuple(pane["values"])] += 1
    return panes, dropped


def comparable(panes):
    return Counter(
        (pane.key, pane.start, pane.end, pane.index, pane.timing, stamp, sign, tuple(sorted(pane.value)))
        for pane, stamp, sign in panes
    )


@settings(max_examples=examples(240, 20_000))
@given(cases_of(KINDS) | final_of(KINDS))
def test_panes_are_those_of_the_whole_history(case):
    driven = Driven(case, collect()).run()
    panes, dropped = expected(case)
    assert comparable(driven.panes) == panes
    assert driven.late == dropped


@settings(max_examples=examples(240, 20_000))
@given(cases_of(KINDS), single)
def test_panes_of_each_trigger_are_those_of_the_whole_history(case, early):
    """Few of the cases above have an early trigger: here all do."""
    driven = Driven(case._replace(early=early), collect()).run()
    assert comparable(driven.panes) == expected(driven.case)[0]


class RowByRow(Driven):
    """The same operator, fed the same, which finds state for each message: as for any of which one may be withdrawn."""

    def __init__(self, case, aggregation, one_by_one=False):
        super().__init__(case, aggregation)
        self.one_by_one = one_by_one
        self.is_signed = not one_by_one
        self.kept = []

    def batch(self, *columns):
        return Batch(*columns, signs=[1] * len(columns[0]) if self.is_signed else None)

    def cut(self, how):
        super().cut("batch" if self.one_by_one and not how else how)
        if how == "write back":
            self.kept.append(list(self.store.range()))


class InGroups(RowByRow):
    """As `RowByRow`, but that batches are grouped."""

    def __init__(self, case, aggregation):
        super().__init__(case, aggregation)
        self.is_signed = False


MANY = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40)), min_size=8, max_size=40)


@settings(max_examples=examples(300, 20_000))
@given(cases_of(KINDS), MANY, st.none() | single, st.booleans())
def test_batches_have_the_panes_of_their_messages_one_by_one_and_keep_the_same(case, many, early, one_by_one):
    """The panes come in the same order, and the store has the same bytes: what one wrote the other can go on with."""
    # Many in a row are of one source, so that batches are long, with few cuts between them.
    records = [(number // 16 % 2, key, at) for number, (key, at) in enumerate(many)]
    case = case._replace(early=early or case.early, records=records, cuts=case.cuts[:3])
    grouped, by_row = InGroups(case, collect()).run(), RowByRow(case, collect(), one_by_one).run()
    assert grouped.panes == by_row.panes
    assert [[*map(repr, kept)] for kept in grouped.kept] == [[*map(repr, kept)] for kept in by_row.kept]
    assert grouped.late == by_row.late


class OfChanges(Case):
    """The same windows, to which values may come that are withdrawn."""

    def operator(self, store, aggregation, lowest=None):
        how = {"allowed_lateness_ms": self.lateness, "emit": "final"}
        spec = Window(windows=KINDS[self.windows], aggregation=aggregation, **how)
        return TriggeredWindowOperator(spec, store, KeySerde(String()), Tagged(), lowest=lowest)


@given(final_of(KINDS))
def test_final_panes_are_the_same_where_values_may_be_withdrawn(case):
    driven = Driven(OfChanges(*case), collect()).run()
    panes, dropped = expected(case)
    assert comparable(driven.panes) == panes
    assert driven.late == dropped


@given(cases_of(KINDS))
def test_every_aggregation_sees_the_same_values(case):
    """One changes its accumulator in place, which panes must not share, and where no windows merge it can't either."""
    merge = (lambda a, b: [*a, *b]) if case.windows in MERGING else None
    changed = fold(list, lambda kept, value: kept.append(value) or kept, merge=merge)
    assert comparable(Driven(case, changed).run().panes) == comparable(Driven(case, collect()).run().panes)


@given(CASES, RECORDS, RECORDS, st.booleans())
def test_what_is_forgotten_was_never_there(case, kept, forgotten, fires):
    store, low = MemoryStore(), -(2**62)
    windows = case._replace(early=None).operator(store, collect())
    for records in (kept, forgotten):
        if records:
            timestamps = [at for *_, at in records]
            windows.process(Batch(timestamps, [key for _, key, _ in records], timestamps, [low] * len(records)))
        if records is kept:
            windows.write_back()
    store.savepoint()
    if fires:
        windows.on_watermark(MAX_TIMESTAMP)
    store.rollback()
    windows.forget()
    expected = case._replace(early=None).operator(MemoryStore(), collect())
    if kept:
        timestamps = [at for *_, at in kept]
        expected.process(Batch(timestamps, [key for _, key, _ in kept], timestamps, [low] * len(kept)))
    assert windows.on_watermark(MAX_TIMESTAMP) == expected.on_watermark(MAX_TIMESTAMP)


def test_little_is_held_beside_a_store_that_is_durable():
    class Durable(MemoryStore):
        durable = True

    how = {"windows": tumbling(milliseconds=10), "early": AfterCount(9)}
    windows = TriggeredWindowOperator(
        Window(aggregation=collect(), **how), Durable(), KeySerde(String()), Tagged(), most_held=2
    )
    for number in range(9):
        windows.process(Batch([1], [f"k{number}"], [number * 10], [LOWEST]))
        assert windows.unwritten <= 2
    assert len(windows.on_watermark(MAX_TIMESTAMP)) == 9
