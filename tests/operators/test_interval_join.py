"""An interval join against its definition, a nested loop over all that has come in time, and its edges by example."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from operators.joins.interval_join import IntervalJoin, IntervalJoinOperator
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.joining import KEYS, STEPS, JoinStory, durable, pair, results, rows
from tests.scale import examples

LEFT, RIGHT = 0, 1
HOW = ("inner", "left", "right", "outer")
OUTER = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "outer": (LEFT, RIGHT)}


def operator(store, how="inner", keep="all", within=(0, 0), most_held=100, join=pair):
    low, high = within
    spec = IntervalJoin(with_=join, low_ms=low, high_ms=high, how=how, keep=keep)
    return IntervalJoinOperator(spec, join, store, KeySerde(Tagged()), most_held)


class Story(JoinStory):
    """Knows by a loop over all records before what an interval join must have emitted."""

    def __init__(self, how, keep, within, disorder_ms, most_held, store):
        self.how, self.keep, self.within = how, keep, within
        self.on_time, self.expected = [], Counter()
        self.met, self.emitted_alone = set(), set()
        undone = ((LEFT, -1, "a", 5), (RIGHT, -2, "a", 5), (LEFT, -3, "b", 50))
        super().__init__(lambda: operator(store, how, keep, within, most_held), disorder_ms, store, undone)

    def note(self, number, side, key, at, stamp):
        low, high = self.within
        partners = [
            other
            for other in self.on_time
            if other[1] != side and other[2] == key and low <= (other[3] - at) * (1 if side == LEFT else -1) <= high
        ]
        if self.keep == "latest" and partners:
            newest = max(other[3] for other in partners)
            partners = [[other for other in partners if other[3] == newest][-1]]
        for other in partners:
            both = (number, other[0]) if side == LEFT else (other[0], number)
            self.expected[both, key, max(at, other[3]), max(stamp, other[4])] += 1
            self.met |= {number, other[0]}
        self.on_time.append((number, side, key, at, stamp))

    def alone(self, watermark):
        """Yield the records that no later one can meet any more, and none has."""
        low, high = self.within
        for record in self.on_time:
            number, side, _, at, _ = record
            if side in OUTER[self.how] and number not in self.met:
                last = at + high if side == LEFT else at - low
                if last < watermark:
                    yield record

    def fire(self, watermark, most=None):
        fired = results(self.operator.on_watermark(watermark, most))
        assert most is None or len(fired) <= most
        assert most is not None or [stamp for *_, stamp in fired] == sorted(stamp for *_, stamp in fired)
        self.emitted.update(fired)
        if most is None:
            assert self.operator.next_due() > watermark
            for number, side, key, at, stamp in self.alone(watermark):
                if number not in self.emitted_alone:
                    self.emitted_alone.add(number)
                    self.expected[(number, None) if side == LEFT else (None, number), key, at, stamp] += 1
            waiting = [one[4] for one in self.alone(2 * MAX_TIMESTAMP) if one[0] not in self.emitted_alone]
            assert self.operator.lowest_stamp() == min(waiting, default=MAX_TIMESTAMP + 1)
            assert self.emitted == self.expected


@st.composite
def stories(draw, how, keep):
    """Draw a join, records of both sides and what happens in between, and play it."""
    unit = draw(st.sampled_from((1, 400, 5_000)))
    at = st.builds(lambda whole, rest: whole * unit + rest, st.integers(-10, 30), st.integers(-1, 1))
    within = tuple(sorted((draw(at) - 10 * unit, draw(at) - 10 * unit)))
    store = draw(st.sampled_from((MemoryStore, durable)))()
    disorder, most_held = draw(st.integers(0, 10)) * unit, draw(st.sampled_from((0, 2, 100)))
    record = st.tuples(st.sampled_from((LEFT, RIGHT)), st.sampled_from(KEYS), at)
    events = draw(st.lists(record | st.sampled_from(STEPS), max_size=40))
    return Story(how, keep, within, disorder, most_held, store), events


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("keep", ["all", "latest"])
@given(data=st.data())
@settings(max_examples=examples(60, 2_000))
def test_it_is_a_nested_loop_over_all_that_is_in_time(how, keep, data):
    story, events = data.draw(stories(how, keep))
    numbers = count()
    story.play(event if isinstance(event, str) else (next(numbers), *event) for event in events)
    assert list(story.store.range()) == []
    assert story.operator.next_due() > MAX_TIMESTAMP and story.operator.lowest_stamp() > MAX_TIMESTAMP


@pytest.mark.parametrize("within", [(-5, 10), (3, 7), (-7, -3), (0, 0), (-2_000, 5_000)])
@pytest.mark.parametrize("first", [LEFT, RIGHT])
def test_both_bounds_are_included_and_a_millisecond_more_is_not(within, first):
    low, high = within
    lefts = [(LEFT, "L", "k", 10_000)]
    rights = [(RIGHT, offset, "k", 10_000 + offset) for offset in (low - 1, low, high, high + 1)]
    join = operator(MemoryStore(), within=within)
    found = [join.process(rows(*side)) for side in ((lefts, rights) if first == LEFT else (rights, lefts))]
    assert {value for batch in found for value, *_ in results(batch)} == {("L", low), ("L", high)}


@pytest.mark.parametrize(("side", "value", "last"), [(LEFT, ("L", None), 110), (RIGHT, (None, "L"), 105)])
def test_a_row_without_a_match_comes_at_the_watermark_that_proves_it(side, value, last):
    join = operator(MemoryStore(), how="outer", within=(-5, 10))
    join.process(rows((side, "L", "k", 100, 42)))
    assert join.lowest_stamp() == 42
    assert join.on_watermark(last) is None and join.next_due() == last + 1
    assert results(join.on_watermark(last + 1)) == [(value, "k", 100, 42)]
    assert join.lowest_stamp() > MAX_TIMESTAMP
    assert join.on_watermark(MAX_TIMESTAMP) is None


def test_a_match_may_come_at_the_last_watermark_at_which_it_can():
    join = operator(MemoryStore(), how="left", within=(-5, 10))
    join.process(rows((LEFT, "L", "k", 100)))
    join.on_watermark(110)
    assert results(join.process(rows((RIGHT, "R", "k", 110, 110)))) == [(("L", "R"), "k", 110, 110)]
    assert join.on_watermark(MAX_TIMESTAMP) is None


def test_a_result_has_the_larger_time_and_the_larger_stamp():
    join = operator(MemoryStore(), within=(-50, 50))
    join.process(rows((LEFT, "L", "k", 100, 90)))
    assert results(join.process(rows((RIGHT, "R", "k", 80, 20)))) == [(("L", "R"), "k", 100, 90)]
    assert results(join.process(rows((RIGHT, "S", "k", 120, 95)))) == [(("L", "S"), "k", 120, 95)]


def test_the_newest_has_the_largest_time_and_came_last():
    join = operator(MemoryStore(), keep="latest", within=(-10, 10))
    join.process(rows(*((LEFT, name, "k", at) for name, at in (("a", 5), ("b", 8), ("c", 8), ("d", 2), ("e", 30)))))
    assert results(join.process(rows((RIGHT, "R", "k", 10)))) == [(("c", "R"), "k", 10, MIN_TIMESTAMP)]


def test_of_equal_times_the_newest_is_the_last_to_come_however_late_that_is():
    join = operator(MemoryStore(), keep="latest", within=(0, 0))
    join.process(rows(*((LEFT, name, "k", at) for name, at in (("a", 8), ("b", 9), ("c", 8)))))
    assert results(join.process(rows((RIGHT, "R", "k", 8)))) == [(("c", "R"), "k", 8, MIN_TIMESTAMP)]


def test_what_fires_at_once_comes_in_pieces():
    join = operator(durable(), how="left", within=(0, 0))
    join.process(rows(*((LEFT, n, n, 100 - n) for n in range(10))))
    join.write_back()
    pieces = []
    while join.next_due() <= 1_000:
        pieces.append([value for value, *_ in results(join.on_watermark(1_000, 4))])
    assert [len(piece) for piece in pieces if piece] == [4, 4, 2]
    assert sorted(n for piece in pieces for n, _ in piece) == list(range(10))


def test_a_row_that_was_emitted_is_not_again_after_a_restart_while_its_bucket_is_dropped():
    store = durable()
    join = operator(store, how="left", within=(0, 0))
    join.process(rows(*((LEFT, n, n, 1) for n in range(4)), (LEFT, 4, 4, 2)))
    join.write_back()
    join.process(rows((RIGHT, "R", 4, 2)))
    assert len(results(join.on_watermark(10_000, 6))) == 4
    for _ in range(10):
        join.write_back()
        restarted = operator(store, how="left", within=(0, 0))
        assert restarted.lowest_stamp() > MAX_TIMESTAMP
        join.on_watermark(10_000, 1)
    assert list(store.range()) == []


def test_a_row_that_can_not_be_emitted_is_dropped_alone():
    def join(left, right):
        if left == 1:
            raise ValueError(left)
        return left

    failing = operator(MemoryStore(), how="left", join=join)
    failing.process(rows((LEFT, 1, "a", 10), (LEFT, 2, "b", 20)))
    failing.write_back()
    with pytest.raises(ValueError, match="1"):
        failing.on_watermark(100)
    failing.forget()
    dropped = failing.drop_due()
    assert (dropped.values, dropped.keys) == ([1], ["a"])
    assert results(failing.on_watermark(100)) == [(2, "b", 20, MIN_TIMESTAMP)]


def test_state_is_bounded_by_time_though_keys_never_come_again():
    store = durable()
    join = operator(store, how="outer", within=(-5_000, 5_000), most_held=10)
    most = 0
    for at in range(0, 1_000_000, 1_000):
        join.process(rows((LEFT, at, at, at), (RIGHT, at, -at - 1, at)))
        join.write_back()
        join.on_watermark(at)
        most = max(most, len(list(store.range())))
    assert most < 60


def test_a_record_without_a_key_is_refused():
    with pytest.raises(ValueError, match="a record has no key, and a join of streams needs one"):
        operator(MemoryStore()).process(rows((LEFT, 1, None, 10)))


def test_only_the_newest_depends_on_what_came_when():
    def join(keep):
        return IntervalJoin(with_=pair, low_ms=0, high_ms=0, keep=keep)

    assert join("latest").order_sensitive and not join("all").order_sensitive


@pytest.mark.parametrize("how", HOW)
@given(st.lists(st.tuples(st.sampled_from((LEFT, RIGHT)), st.sampled_from("ab"), st.integers(0, 30))), st.randoms())
def test_of_all_the_order_in_which_they_come_makes_no_difference(how, told, chance):
    def drive(numbered):
        join = operator(MemoryStore(), how=how, within=(-5, 10))
        found = results(join.process(rows(*numbered))) if numbered else []
        return Counter(found + results(join.on_watermark(MAX_TIMESTAMP)))

    numbered = [(side, number, key, at) for number, (side, key, at) in enumerate(told)]
    shuffled = list(numbered)
    chance.shuffle(shuffled)
    assert drive(numbered) == drive(shuffled)
