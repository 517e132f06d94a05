"""Reading, running and grouping in one loop comes to what the ordinary way comes to, and to the same complaints."""

import asyncio
from collections import Counter
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.core.base import EARLIEST_MS
from operators.windows.window_groups import Groups
from planner import passes
from runtime.encoding.serdes import serde_of
from runtime.job.pipeline import Pipeline
from runtime.model.errors import SamzaError
from runtime.reading.folding import FoldingSegment
from runtime.reading.reader import Reader
from runtime.run.run import Run
from runtime.run.settings import RunSettings
from runtime.systems.memory.environment import MemoryEnvironment
from runtime.systems.memory.lists import ListSink, ListSource
from samza_dsl import App, Options, collect, count, daily, dead_letter, fail, skip, tumbling


class Name(StrEnum):
    """Keys that equal plain strings and are not written as these are."""

    A = "a"


USUAL = st.tuples(st.sampled_from((1, 2, 3)), st.integers(-100, 100), st.integers(0, 9))
ODD_KEYS = (None, True, 1.0, "a", Name.A, b"1", (1, 2), 2**70)
ODD_TIMES = (None, True, 5.0, 10**30, -(10**30), 253_402_300_799_999, EARLIEST_MS, EARLIEST_MS - 1, "noon")
ODD = st.tuples(st.sampled_from((1, *ODD_KEYS)), st.sampled_from((0, *ODD_TIMES)), st.integers(0, 9))
RECORDS = st.lists(st.one_of(*[USUAL] * 6, ODD), max_size=30)
SHAPES = st.lists(st.sampled_from(("filter", "map", "flat_map", "raise")), max_size=3)
WINDOWS = st.lists(
    st.sampled_from((("5 ms", "count"), ("5 ms", "list"), ("7 ms", "count"), ("50 ms", "list"), ("day", "count"))),
    max_size=3,
)


def over_ten(record):
    return 10 // (record[2] % 9) > 1


def app_of(shape, windows, disorder_ms, batch_records, policy, key=lambda r: r[0]):
    app = App("folding", options=Options(batch_records=batch_records))
    stream = app.input("in", key=key, timestamp=lambda r: r[1], max_disorder_ms=disorder_ms, on_error=policy)
    for kind in shape:
        if kind == "filter":
            stream = stream.filter(lambda r: r[2] != 3)
        elif kind == "map":
            stream = stream.map(lambda r: (r[0], r[1], r[2] + 1))
        elif kind == "flat_map":
            stream = stream.flat_map(lambda r: [r] * (r[2] % 3))
        else:
            stream = stream.filter(over_ten, on_error=policy)
    for number, (length, what) in enumerate(windows):
        kind = daily(tz="America/New_York") if length == "day" else tumbling(milliseconds=int(length.split()[0]))
        found = stream.window(
            kind, count() if what == "count" else collect(), late=dead_letter("late"), op_id=f"w{number}"
        )
        found.send_to(app.output(f"out{number}"))
    return app


def outcome(app, records, keys=None):
    """Return all that a run leaves: outputs, letters, metrics and positions, or the error that ended it.

    Letters of different operators may come in any order: it depends on how long the loop took for a batch before.
    """
    sinks = {f"out{n}": ListSink() for n in range(3)}
    environment = MemoryEnvironment()
    graph = app.graph()
    used = {name: sink for name, sink in sinks.items() if name in {stream.name for stream in app.plan().streams}}
    run = Run(
        Pipeline(graph, app.options, app.around),
        environment,
        RunSettings(bind={"in": ListSource(records, None, keys), **used}),
    )
    try:
        asyncio.run(run.drive())
    except SamzaError as failure:
        return str(failure)
    names = [one.name for one in run.plan.streams if one.role == "dead_letter"]
    letters = {
        name: sorted(zip(run.received(name), map(repr, headers(environment, name)), strict=True)) for name in names
    }
    counted = run.metrics().operators
    positions = [checkpoint.positions for checkpoint in environment.checkpoints("folding").values()]
    return {name: sink.values for name, sink in used.items()}, letters, counted, positions


def headers(environment, stream):
    found, offset = [], 0
    while (read := environment.read(stream, 0, offset)) is not None:
        found, offset = found + read.batch.headers, read.next_offset
    return found


def ordinarily(*arguments):
    """Do the same without the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one is not passes.fold_windows))
        return outcome(*arguments)


@given(
    RECORDS,
    SHAPES,
    WINDOWS.filter(bool),
    st.sampled_from((0, 3, 40)),
    st.sampled_from((1, 4, 1_000)),
    st.sampled_from((fail, skip, dead_letter("bad"))),
)
def test_the_loop_comes_to_what_the_ordinary_way_comes_to(records, shape, windows, disorder_ms, batch_records, policy):
    arguments = shape, windows, disorder_ms, batch_records, policy
    assert outcome(app_of(*arguments), records) == ordinarily(app_of(*arguments), records)


MAKES_KEY = {int: int, str: str, tuple[int, int]: lambda number: (number, number)}
AMISS = {None: None, "a": b"not JSON", 1.5: b"1.5"}


@example([(1, 0, 0), (2, 1, 0), (1, 90, 0), (2, 3, 0)], [], [("5 ms", "list")], 0, 1_000, skip, tuple[int, int])
@given(
    st.lists(st.one_of(*[USUAL] * 9, st.tuples(st.sampled_from([*AMISS]), st.just(3), st.just(0))), max_size=30),
    SHAPES,
    WINDOWS.filter(bool),
    st.sampled_from((0, 3, 40)),
    st.sampled_from((1, 4, 1_000)),
    st.sampled_from((fail, skip, dead_letter("bad"))),
    st.sampled_from([*MAKES_KEY]),
)
def test_so_it_does_with_keys_that_records_carry(records, shape, windows, disorder_ms, batch_records, policy, kind):
    arguments = shape, windows, disorder_ms, batch_records, policy, kind
    encode, make = serde_of(kind).encode, MAKES_KEY[kind]
    keys = [encode(make(key)) if isinstance(key, int) else AMISS[key] for key, _, _ in records]
    assert outcome(app_of(*arguments), records, keys) == ordinarily(app_of(*arguments), records, keys)


@pytest.mark.parametrize("begins", [-10, -5, 0])
def test_a_value_is_late_for_the_window_before_the_one_at_hand_when_that_has_ended(begins):
    # Of windows of 5 ms, with 3 ms of disorder: the value at 1 is in time for the first window, that at 3 is not.
    at = [begins + ms for ms in (-90, -90, -90, -90, 2, 1, 7, 8, 3, 20)]
    arguments = [], [("5 ms", "list")], 3, 5, skip
    records = [(1, one, 0) for one in at]
    found = outcome(app_of(*arguments), records)
    assert found == ordinarily(app_of(*arguments), records)
    assert len(found[1]["late"]) == 1


def test_a_short_window_that_ends_leaves_the_bounds_of_longer_ones_beside_it(monkeypatch):
    asked = Counter()
    place = Groups.place

    def counted(self, timestamp, stamp):
        asked[str(self._windows)] += 1
        return place(self, timestamp, stamp)

    monkeypatch.setattr(Groups, "place", counted)
    records = [(1, at, 0) for at in range(1_000)]
    arguments = [], [("5 ms", "list"), ("50 ms", "list"), ("day", "count")], 3, 1_000, skip
    assert len(outcome(app_of(*arguments), records)[0]["out0"]) == 200
    short, long, day = asked.values()
    # Each window is looked up as it begins, and once more as the one before it has ended; and in each of two batches.
    assert short <= 2 * 200 and long <= 2 * 20 + 2 and day <= 1 + 2, asked


def folded_batches(monkeypatch, records, keys=None, **how):
    """Return, of each batch but the first, whether the loop took it."""
    taken = []
    run = FoldingSegment.run

    def noted(self, *arguments):
        found = run(self, *arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(FoldingSegment, "run", noted)
    outcome(app_of([], [("5 ms", "count")], 0, 2, skip, **how), records, keys)
    return taken[1:]


def test_usual_records_are_taken_by_the_loop(monkeypatch):
    assert folded_batches(monkeypatch, [("a", n) for n in range(8)]) == [True] * 3


def test_records_that_carry_their_keys_are_taken_by_the_loop(monkeypatch):
    records, keys = [(None, n, 0) for n in range(8)], [b"1", b"2"] * 4
    assert folded_batches(monkeypatch, records, keys, key=int) == [True] * 3
    assert folded_batches(monkeypatch, records, [b"1", b"2", b"1", b"x", *keys[4:]], key=int) == [False, True, True]


def test_late_records_are_taken_by_the_loop(monkeypatch):
    assert folded_batches(monkeypatch, [("a", n) for n in (0, 1, 90, 2, 3, 91)]) == [True] * 2


def test_times_of_1970_that_later_look_like_another_unit_are_taken_by_the_loop(monkeypatch):
    looks, is_usual = [], Reader._is_usual
    monkeypatch.setattr(Reader, "_is_usual", lambda self, *found: looks.append(is_usual(self, *found)) or looks[-1])
    # From 277,778 on they are hours of our time as well, and the first ones are not.
    records = [(None, 5_000 * place, 0) for place in range(100)]
    outcome(app_of([], [("5 ms", "count")], 0, 50, skip, key=int), records, [b"1", b"2"] * 50)
    assert looks == [True] * 3


@pytest.mark.parametrize("odd", [("b", True), (Name.A, 5), ("a", 5.0), (7, 5)])
def test_a_batch_with_an_unusual_record_goes_the_ordinary_way(monkeypatch, odd):
    assert folded_batches(monkeypatch, [("a", 1), ("a", 2), ("a", 3), odd]) == [False]


@pytest.mark.parametrize("shape", [[], ["filter"]])
def test_no_window_takes_a_time_before_all_times(shape):
    records = [(1, 0, 0), *[(1, EARLIEST_MS + at, 0) for at in (0, 1, 2, -1, 3)]]
    arguments = shape, [("7 ms", "count")], 2**60, 3, skip
    assert outcome(app_of(*arguments), records) == ordinarily(app_of(*arguments), records)
