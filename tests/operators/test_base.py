"""Batches of columns against lists of tuples."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import COLUMNS, Batch

columns_present = st.sets(st.sampled_from(COLUMNS))


@st.composite
def batches(draw, present=None):
    present = draw(columns_present) if present is None else present
    rows = draw(st.integers(0, 6))
    numbers = st.lists(st.integers(0, 99), min_size=rows, max_size=rows)
    return Batch(draw(numbers), **{name: draw(numbers) for name in present})


def rows_of(batch):
    """The rows as tuples; a column that is not carried is None in all of them."""
    none = [None] * len(batch)
    return list(zip(batch.values, *(getattr(batch, name) or none for name in COLUMNS), strict=True))


def carried(batch):
    return {name for name in COLUMNS if getattr(batch, name) is not None}


@given(batches(), st.integers(0, 7), st.integers(0, 7))
def test_a_slice_is_the_slice_of_the_rows(batch, start, stop):
    assert rows_of(batch.slice(start, stop)) == rows_of(batch)[start:stop]
    assert carried(batch.slice(start, stop)) == carried(batch)
    for row in range(len(batch)):
        assert rows_of(batch.row(row)) == [rows_of(batch)[row]]


@given(batches(), st.data())
def test_taking_and_leaving_rows_come_to_what_lists_come_to(batch, data):
    places = data.draw(st.lists(st.sampled_from(range(len(batch))), max_size=8)) if len(batch) else []
    assert rows_of(batch.take(places)) == [rows_of(batch)[place] for place in places]
    left = sorted(set(places))
    assert rows_of(batch.without(left)) == [row for place, row in enumerate(rows_of(batch)) if place not in left]
    assert carried(batch.without(left)) == carried(batch)


@given(st.lists(batches(), max_size=4), st.data())
def test_gathering_brings_rows_together_in_their_order(parts, data):
    chosen = []
    for part in data.draw(st.lists(st.sampled_from(parts), max_size=10)) if parts else []:
        start = data.draw(st.integers(0, len(part)))
        stop = data.draw(st.integers(start, len(part)))
        chosen += [(part, start, stop), (part, stop, data.draw(st.integers(stop, len(part))))]
    gathered = Batch.gather(chosen)
    assert rows_of(gathered) == [row for part, start, stop in chosen for row in rows_of(part)[start:stop]]
    assert carried(gathered) == set().union(*(carried(part) for part, _, _ in chosen))


@given(batches(), batches())
def test_extending_appends_and_fills_what_one_does_not_carry(batch, other):
    expected = rows_of(batch) + rows_of(other)
    before = rows_of(other)
    extended = copy.deepcopy(batch)
    extended.extend(other)
    assert rows_of(extended) == expected and rows_of(other) == before
    assert carried(extended) == carried(batch) | carried(other)


@given(batches(), st.integers(0, 7))
def test_truncating_drops_the_end(batch, length):
    expected = rows_of(batch)[:length]
    batch.truncate(length)
    assert rows_of(batch) == expected


@given(batches(), batches())
def test_a_copy_shares_nothing(batch, other):
    before = rows_of(batch)
    copied = batch.copy()
    copied.extend(other)
    copied.truncate(1)
    assert rows_of(batch) == before


def test_offsets_may_be_a_range():
    batch = Batch([1, 2, 3], offsets=range(5, 8))
    batch.extend(Batch([4], offsets=range(9, 10)))
    assert list(batch.slice(1, 4).offsets) == [6, 7, 9]
