"""An as-of join against its definition, a look through all that has come in time, against pandas, and its edges."""

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregations.identity import identity
from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from operators.joins.asof_join import AsofJoin, AsofJoinOperator
from operators.joins.waiting_rows import LEFT, RIGHT
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.joining import KEYS, STEPS, WaitingStory, durable, pair, results, rows
from tests.scale import examples

HOW = ("inner", "left")
DIRECTIONS = ("backward", "forward", "nearest")


def operator(store, direction="backward", tolerance=None, how="left", most_held=100, join=pair):
    spec = AsofJoin(with_=join, direction=direction, tolerance_ms=tolerance, how=how)
    return AsofJoinOperator(spec, join, store, KeySerde(Tagged()), most_held)


def nearest(rights, key, at, direction, tolerance):
    """Return the (value,) that a left record meets among (value, key, time, stamp); () where there is none."""
    signs = {"backward": (-1,), "forward": (1,), "nearest": (-1, 1)}[direction]
    near = [
        right
        for right in rights
        if right[1] == key and (tolerance is None or abs(right[2] - at) <= tolerance)
        if any((right[2] - at) * sign >= 0 for sign in signs)
    ]
    near.sort(key=lambda right: (-abs(right[2] - at), -right[2], right[3], identity(right[0])))
    return (near[-1][0],) if near else ()


class Story(WaitingStory):
    """Knows by its own simple means what an as-of join must have emitted."""

    def __init__(self, how, direction, tolerance, disorder_ms, most_held, store):
        self.how, self.direction, self.tolerance, self.rights = how, direction, tolerance, []
        undone = ((LEFT, -1, "a", 5), (RIGHT, -2, "a", 5), (RIGHT, -3, "b", 50_000))
        super().__init__(lambda: operator(store, direction, tolerance, how, most_held), disorder_ms, store, undone)

    @property
    def wait(self):
        return 0 if self.direction == "backward" else self.tolerance

    def note(self, value, side, key, at, stamp):
        (self.waiting if side == LEFT else self.rights).append((value, key, at, stamp))

    def expected(self, watermark):
        found = Counter()
        for value, key, at, stamp in self.waiting:
            met = nearest(self.rights, key, at, self.direction, self.tolerance)
            if at + self.wait < watermark and (met or self.how == "left"):
                found[(value, *(met or (None,))), key, at, stamp] += 1
        return found


@st.composite
def stories(draw, how, direction):
    """Draw a join, records of both sides, and what happens in between."""
    unit = draw(st.sampled_from((1, 400, 5_000, 40_000)))
    store = draw(st.sampled_from((MemoryStore, durable)))()
    disorder = draw(st.sampled_from((0, 0, 2, 10))) * unit
    tolerance = st.sampled_from((0, 1, 3, 10, 1_000)).map(lambda units: units * unit)
    # Few values, so that some come twice; None is a value like any other.
    values, keys = st.sampled_from((1, 2, 200, None, "x")), st.sampled_from("aaaaaaaaab") | st.sampled_from(KEYS)
    moves = st.tuples(st.sampled_from((LEFT, RIGHT, RIGHT)), values, keys, st.integers(0, 3), st.integers(0, 2))
    events, now = [], draw(st.integers(-3, 3)) * unit
    for number, move in enumerate(
        draw(st.lists(moves | moves | st.sampled_from(STEPS), min_size=draw(st.integers(0, 40)), max_size=50))
    ):
        if not isinstance(move, str):
            side, value, key, step, back = move
            now += step * unit
            move = (number if side == LEFT else value, side, key, now - back * unit + draw(st.sampled_from((0, 0, 1))))
        events.append(move)
    bound = draw(tolerance | st.none() if direction == "backward" else tolerance)
    return Story(how, direction, bound, disorder, draw(st.sampled_from((0, 2, 100))), store), events


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("direction", DIRECTIONS)
@given(data=st.data())
@settings(max_examples=examples(200, 5_000))
def test_it_is_a_look_through_all_that_came_in_time(how, direction, data):
    story, events = data.draw(stories(how, direction))
    story.play(events)
    kept = {}
    if story.tolerance is None:
        lasts = {key: nearest(story.rights, key, MAX_TIMESTAMP, "backward", None) for key in KEYS}
        kept = {b"b" + Tagged().encode(key): last for key, (last,) in ((k, v) for k, v in lasts.items() if v)}
    assert dict(story.store.range()) == kept


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(
    lefts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), max_size=20),
    rights=st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), max_size=20),
    tolerance=st.none() | st.integers(0, 15),
)
def test_it_is_merge_asof_of_pandas(direction, lefts, rights, tolerance):
    if direction != "backward" and tolerance is None:
        tolerance = 100
    join = operator(MemoryStore(), direction, tolerance)
    told = [(LEFT, n, key, at) for n, (key, at) in enumerate(lefts)]
    told += [(RIGHT, n, key, at) for n, (key, at) in enumerate(rights)]
    found = []
    if told:
        join.process(rows(*told))
        found = [value for value, *_ in results(join.on_watermark(MAX_TIMESTAMP))]

    def frame(side, name):
        told = pd.DataFrame(side, columns=["key", "at"]).astype({"key": str, "at": "int64"})
        return told.assign(**{name: pd.Series(range(len(told)), dtype="Int64")}).sort_values("at", kind="stable")

    merged = pd.merge_asof(
        frame(lefts, "left"), frame(list(rights), "right"), on="at", by="key", direction=direction, tolerance=tolerance
    )
    theirs = [(left, None if pd.isna(right) else right) for left, right in zip(merged.left, merged.right, strict=True)]
    assert Counter(found) == Counter(theirs)


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(
    told=st.lists(
        st.tuples(st.sampled_from((LEFT, RIGHT)), st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 3)),
        max_size=30,
    ),
    chance=st.randoms(),
    steps=st.lists(st.integers(0, 12), max_size=3),
)
def test_the_order_in_which_they_come_makes_no_difference(direction, told, chance, steps):
    """Records of a time come in any order, in one batch or several, and the watermark goes on by any steps."""
    numbered = [(side, n, key, at, at - behind) for n, (side, key, at, behind) in enumerate(told)]

    def drive(order, watermarks):
        join, found, watermarks = operator(MemoryStore(), direction, 5), [], sorted(watermarks)
        for one in sorted(order, key=lambda one: one[4]):
            while watermarks and watermarks[0] <= one[4]:
                found += results(join.on_watermark(watermarks.pop(0)))
            join.process(rows(one))
        return Counter(found + results(join.on_watermark(MAX_TIMESTAMP)))

    shuffled = list(numbered)
    chance.shuffle(shuffled)
    assert drive(numbered, []) == drive(shuffled, steps)


@pytest.mark.parametrize(("direction", "expected"), [("backward", 95), ("forward", 104), ("nearest", 104)])
def test_the_nearest_in_the_direction_is_met(direction, expected):
    join = operator(MemoryStore(), direction, 10)
    join.process(rows((LEFT, "L", "k", 100), *((RIGHT, at, "k", at) for at in (90, 95, 104, 110))))
    assert [value for value, *_ in results(join.on_watermark(1_000))] == [("L", expected)]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("tolerance", [0, 7, 100_000])
def test_the_tolerance_is_included_and_a_millisecond_more_is_not(direction, tolerance):
    for away, met in ((tolerance, "R"), (tolerance + 1, None)):
        join = operator(MemoryStore(), direction, tolerance)
        sign = 1 if direction == "forward" else -1
        join.process(rows((LEFT, "L", "k", 500_000), (RIGHT, "R", "k", 500_000 + sign * away)))
        assert [value for value, *_ in results(join.on_watermark(MAX_TIMESTAMP))] == [("L", met)]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_of_the_same_time_is_the_nearest(direction):
    join = operator(MemoryStore(), direction, 10)
    join.process(rows((LEFT, "L", "k", 100), *((RIGHT, at, "k", at) for at in (99, 100, 101))))
    assert [value for value, *_ in results(join.on_watermark(1_000))] == [("L", 100)]


def test_of_two_as_near_the_earlier_one_is_met():
    join = operator(MemoryStore(), "nearest", 10)
    join.process(rows((RIGHT, "after", "k", 105), (RIGHT, "before", "k", 95), (LEFT, "L", "k", 100)))
    assert [value for value, *_ in results(join.on_watermark(1_000))] == [("L", "before")]


@pytest.mark.parametrize("tolerance", [None, 5])
def test_of_one_time_the_larger_stamp_counts_and_then_the_larger_bytes(tolerance):
    for told in ((("x", 7), ("a", 9)), (("a", 9), ("x", 7)), (("a", 9), ("Z", 9)), (("Z", 9), ("a", 9))):
        join = operator(MemoryStore(), tolerance=tolerance)
        join.process(rows(*((RIGHT, value, "k", 10, stamp) for value, stamp in told), (LEFT, "L", "k", 10)))
        assert [value for value, *_ in results(join.on_watermark(11))] == [("L", "a")]


@pytest.mark.parametrize(("direction", "due"), [("backward", 101), ("forward", 111), ("nearest", 111)])
def test_a_left_row_waits_until_nothing_nearer_can_come(direction, due):
    join = operator(MemoryStore(), direction, 10)
    join.process(rows((LEFT, "L", "k", 100, 42)))
    assert join.lowest_stamp() == 42
    assert join.on_watermark(due - 1) is None and join.next_due() == due
    join.process(rows((RIGHT, "R", "k", due - 1, due - 1)))
    assert results(join.on_watermark(due)) == [(("L", "R"), "k", 100, 42)]
    assert join.lowest_stamp() > MAX_TIMESTAMP


def test_without_a_tolerance_it_is_met_however_long_ago_and_after_a_restart():
    store = durable()
    operator(store).process(rows((RIGHT, "never", "k", -1_000_000_000_000)))
    join = operator(store)
    join.process(rows((RIGHT, "R", "k", -1_000_000_000), (RIGHT, None, "j", 0)))
    join.on_watermark(1_000_000_000)
    join.write_back()
    again = operator(store)
    again.process(rows((LEFT, 1, "k", 2_000_000_000), (LEFT, 2, "j", 2_000_000_000), (LEFT, 3, "l", 2_000_000_000)))
    assert [value for value, *_ in results(again.on_watermark(MAX_TIMESTAMP))] == [(1, "R"), (2, None), (3, None)]
    assert (again.meetings.met, again.meetings.missed) == (2, 1)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_fires_at_once_comes_in_pieces(direction):
    join = operator(durable(), direction, 5)
    join.process(rows(*((LEFT, n, n, 100 - n) for n in range(10)), *((RIGHT, n, n, 100 - n) for n in range(10))))
    join.write_back()
    pieces = []
    while join.next_due() <= 100_000:
        pieces.append([value for value, *_ in results(join.on_watermark(100_000, 4))])
    assert all(len(piece) <= 4 for piece in pieces)
    assert [pair for piece in pieces for pair in piece] == [(n, n) for n in range(9, -1, -1)]
    assert list(join.store.range()) == []


def test_a_row_that_can_not_be_joined_is_dropped_alone():
    def join(left, right):
        if left == 1:
            raise ValueError(left)
        return left

    failing = operator(MemoryStore(), join=join)
    failing.process(rows((LEFT, 1, "a", 10), (LEFT, 2, "b", 20)))
    failing.write_back()
    with pytest.raises(ValueError, match="1"):
        failing.on_watermark(100)
    failing.forget()
    dropped = failing.drop_due()
    assert (dropped.values, dropped.keys) == ([1], ["a"])
    assert results(failing.on_watermark(100)) == [(2, "b", 20, MIN_TIMESTAMP)]
    assert failing.drop_due().values == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_state_is_bounded_by_time_though_keys_never_come_again(direction):
    store = durable()
    join = operator(store, direction, 5_000, most_held=10)
    most = 0
    for at in range(0, 1_000_000, 1_000):
        join.process(rows((LEFT, at, at, at), (RIGHT, at, -at - 1, at)))
        join.write_back()
        join.on_watermark(at)
        most = max(most, len(list(store.range())))
    assert most < 110


@pytest.mark.parametrize("tolerance", [None, 86_400_000])
def test_backward_few_rows_of_a_key_stay_however_long_the_tolerance_is(tolerance):
    store = durable()
    join = operator(store, tolerance=tolerance)
    for at in range(0, 50_000, 10):
        join.process(rows((RIGHT, at, "k", at)))
        join.on_watermark(at)
    join.write_back()
    assert sum(len(entry) for _, entry in store.range()) < 10
    join.process(rows((LEFT, "L", "k", 49_999)))
    assert results(join.on_watermark(50_000))[0][0] == ("L", 49_990)


@pytest.mark.parametrize("tolerance", [None, 100])
def test_what_rows_that_are_due_may_still_meet_stays(tolerance):
    join = operator(MemoryStore(), tolerance=tolerance)
    join.process(rows((LEFT, 1, "k", 4), (LEFT, 2, "k", 5), (RIGHT, "R", "k", 3), (RIGHT, "S", "k", 15)))
    assert [value for value, *_ in results(join.on_watermark(20, 1))] == [(1, "R")]
    join.process(rows((RIGHT, "T", "k", 20, 20)))
    assert [value for value, *_ in results(join.on_watermark(20))] == [(2, "R")]


def test_a_record_without_a_key_is_refused():
    with pytest.raises(ValueError, match="a record has no key, and a join of streams needs one"):
        operator(MemoryStore()).process(rows((LEFT, 1, None, 10)))
