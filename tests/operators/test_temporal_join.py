"""A temporal join against its definition, a look through all versions that came in time, and its edges by example."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from operators.io import Input, VersionedTable
from operators.joins.temporal_join import TemporalJoin, TemporalJoinOperator
from operators.joins.waiting_rows import LEFT, RIGHT
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.memory import MemoryStore
from tests.operators.joining import KEYS, STEPS, WaitingStory, durable, pair, results, rows
from tests.scale import examples

HOW = ("inner", "left")


def operator(store, how="inner", retention_ms=0, most_held=100, join=pair):
    stream = Input(stream="s", value=Tagged())
    table = VersionedTable(stream="t", value=Tagged(), key=Tagged(), retention_ms=retention_ms)
    spec = TemporalJoin(parents=(stream, table), with_=join, how=how)
    return TemporalJoinOperator(spec, join, store, KeySerde(Tagged()), most_held)


def as_of(versions, key, at):
    """Return the value of the last version of a key up to a time: of equal times, the last that came."""
    found = [
        (its, place, value) for place, (value, its_key, its) in enumerate(versions) if its_key == key and its <= at
    ]
    return max(found)[2] if found else None


class Story(WaitingStory):
    """Knows by its own simple means what a temporal join must have emitted."""

    def __init__(self, how, retention_ms, disorder_ms, most_held, store):
        self.how, self.retention_ms, self.versions = how, retention_ms, []
        undone = ((LEFT, -1, "a", 5), (RIGHT, -2, "a", 5), (RIGHT, None, "b", 50_000))
        super().__init__(lambda: operator(store, how, retention_ms, most_held), disorder_ms, store, undone)

    def is_late(self, side, at, stamp):
        return at < stamp - (self.retention_ms if side == LEFT else 0)

    def note(self, value, side, key, at, stamp):
        if side == LEFT:
            self.waiting.append((value, key, at, stamp))
        else:
            self.versions.append((value, key, at))

    def expected(self, watermark):
        found = Counter()
        for value, key, at, stamp in self.waiting:
            row = as_of(self.versions, key, at)
            if at < watermark and (row is not None or self.how == "left"):
                found[(value, row), key, at, stamp] += 1
        return found


@st.composite
def stories(draw, how):
    """Draw a join, messages and versions, and what happens in between."""
    unit = draw(st.sampled_from((1, 5_000, 40_000)))
    at = st.builds(lambda whole, rest: whole * unit + rest, st.integers(-3, 12), st.sampled_from((0, 0, -1, 1)))
    store = draw(st.sampled_from((MemoryStore, durable)))()
    disorder, retention = draw(st.sampled_from((0, 0, 2, 10))) * unit, draw(st.sampled_from((0, 1, 3, 10))) * unit
    number = count(1)
    message = st.builds(lambda key, at: (next(number), LEFT, key, at), st.sampled_from(KEYS), at)
    version = st.builds(lambda key, at: (next(number), RIGHT, key, at), st.sampled_from(KEYS), at)
    removal = st.builds(lambda key, at: (None, RIGHT, key, at), st.sampled_from(KEYS), at)
    events = draw(st.lists(message | version | version | removal | st.sampled_from(STEPS), max_size=40))
    return Story(how, retention, disorder, draw(st.sampled_from((0, 2, 100))), store), events


@pytest.mark.parametrize("how", HOW)
@given(data=st.data())
@settings(max_examples=examples(80, 2_000))
def test_it_is_a_look_through_all_versions_that_came_in_time(how, data):
    story, events = data.draw(stories(how))
    story.play(events)
    rest = {key: as_of(story.versions, key, MAX_TIMESTAMP) for key in KEYS}
    kept = {b"b" + Tagged().encode(key): row for key, row in rest.items() if row is not None}
    assert dict(story.store.range()) == kept


def test_a_version_holds_from_its_own_time_on():
    join = operator(MemoryStore(), "left")
    join.process(rows((RIGHT, "old", "k", 10), (RIGHT, "new", "k", 20)))
    join.process(rows(*((LEFT, at, "k", at) for at in (9, 10, 19, 20, 1_000_000))))
    found = results(join.on_watermark(MAX_TIMESTAMP))
    assert [value for value, *_ in found] == [
        (9, None), (10, "old"), (19, "old"), (20, "new"), (1_000_000, "new"),
    ]  # fmt: skip


def test_a_message_waits_until_the_watermark_is_past_its_time():
    join = operator(MemoryStore(), "left")
    join.process(rows((LEFT, "m", "k", 100, 42)))
    assert join.lowest_stamp() == 42
    assert join.on_watermark(100) is None and join.next_due() == 101
    join.process(rows((RIGHT, "v", "k", 100, 100)))
    assert results(join.on_watermark(101)) == [(("m", "v"), "k", 100, 42)]
    assert join.lowest_stamp() > MAX_TIMESTAMP


def test_a_removed_row_is_gone_from_then_on_and_leaves_nothing():
    store = MemoryStore()
    join = operator(store, "inner")
    join.process(rows((RIGHT, "v", "k", 10), (RIGHT, None, "k", 20), (LEFT, 1, "k", 19), (LEFT, 2, "k", 20)))
    assert [value for value, *_ in results(join.on_watermark(MAX_TIMESTAMP))] == [(1, "v")]
    assert list(store.range()) == []


@pytest.mark.parametrize("retention_ms", [0, 7, 100_000])
def test_what_lies_exactly_the_retention_before_its_stamp_still_has_its_version(retention_ms):
    join = operator(durable(), "left", retention_ms)
    at = 1_000_000
    join.process(rows((RIGHT, "old", "k", at), (RIGHT, "new", "k", at + 1)))
    join.on_watermark(at + retention_ms)
    join.process(rows((LEFT, 1, "k", at, at + retention_ms), (LEFT, 2, "k", at - 1, at + retention_ms)))
    assert join.late.values == [2]
    assert [value for value, *_ in results(join.on_watermark(MAX_TIMESTAMP))] == [(1, "old")]


def test_what_fires_at_once_comes_in_pieces():
    join = operator(durable(), "left")
    join.process(rows(*((LEFT, n, n, 100 - n) for n in range(10))))
    join.write_back()
    pieces = []
    while join.next_due() <= 1_000_000:
        pieces.append([value for value, *_ in results(join.on_watermark(1_000_000, 4))])
    assert [len(piece) for piece in pieces if piece] == [4, 4, 2]
    assert [n for piece in pieces for n, _ in piece] == list(reversed(range(10)))


def test_a_message_that_can_not_be_joined_is_dropped_alone():
    def join(value, row):
        if value == 1:
            raise ValueError(value)
        return value

    failing = operator(MemoryStore(), "left", join=join)
    failing.process(rows((LEFT, 1, "a", 10), (LEFT, 2, "b", 20)))
    failing.write_back()
    with pytest.raises(ValueError, match="1"):
        failing.on_watermark(100)
    failing.forget()
    dropped = failing.drop_due()
    assert (dropped.values, dropped.keys) == ([1], ["a"])
    assert results(failing.on_watermark(100)) == [(2, "b", 20, MIN_TIMESTAMP)]
    assert len(failing.drop_due()) == 0


def test_versions_are_kept_for_their_retention_and_no_longer():
    store = durable()
    join = operator(store, "left", retention_ms=120_000, most_held=10)
    most = 0
    for at in range(0, 10_000_000, 10_000):
        join.process(rows((LEFT, at, at % 3, at), (RIGHT, at, at % 3, at)))
        join.write_back()
        join.on_watermark(at)
        most = max(most, len(list(store.range())))
    assert most < 20


def test_a_table_that_is_far_ahead_costs_a_lookup_no_more():
    """Versions are folded up to each message's time, however far the watermark jumps at once."""
    store = MemoryStore()
    join = operator(store, "left")
    hours = range(0, 3_600_000 * 24 * 30, 3_600_000)
    join.process(rows((RIGHT, "base", "k", -1), *((RIGHT, at, "other", at) for at in hours)))
    join.process(rows(*((LEFT, at, "k", at) for at in hours)))
    looked = Counter()
    rows_of = join.rights._rows.rows_of

    def counted(number, key):
        looked[number] += 1
        return rows_of(number, key)

    join.rights._rows.rows_of = counted
    assert {row for (_, row), *_ in results(join.on_watermark(MAX_TIMESTAMP))} == {"base"}
    assert looked.total() <= 2 * len(hours)


def test_a_record_without_a_key_is_refused():
    with pytest.raises(ValueError, match="a record has no key, and a join with a table"):
        operator(MemoryStore()).process(rows((LEFT, 1, None, 10)))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 30)), min_size=1), st.randoms())
def test_how_stream_and_table_are_interleaved_makes_no_difference(told, chance):
    def drive(numbered):
        join = operator(MemoryStore(), "left")
        join.process(rows(*numbered))
        return Counter(results(join.on_watermark(MAX_TIMESTAMP)))

    numbered = [(LEFT if message else RIGHT, n, key, at) for n, (message, key, at) in enumerate(told)]
    messages = [one for one in numbered if one[0] == LEFT]
    versions = [one for one in numbered if one[0] == RIGHT]
    shuffled = []
    while messages or versions:
        side = messages if not versions or (messages and chance.random() < 0.5) else versions
        shuffled.append(side.pop(0))
    assert drive(numbered) == drive(shuffled)
