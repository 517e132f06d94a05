"""A join of tables against its definition, a join of two dicts before and after each change, and its edges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import MAX_TIMESTAMP, Batch
from operators.joins.changes import Change
from operators.joins.key_join import KeyJoin, KeyJoinOperator
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Tagged
from runtime.stores.memory import MemoryStore
from tests.scale import examples

HOW = ("inner", "left", "right", "outer")
KEYS = ("a", "b", 3, (4, "d"))


def pair(left, right):
    return (left, right)


def operator(how="inner", is_joined=(False, False), join=pair, store=None):
    spec = KeyJoin(with_=join, how=how, is_joined=is_joined)
    return KeyJoinOperator(spec, join, store or MemoryStore(), KeySerde(Tagged()))


def rows(*told, timed=True):
    """Return a batch of (side, row, key, time), with the time as the stamp, too."""
    sides, values, keys, times = map(list, zip(*told, strict=True))
    columns = (times, times) if timed else ()
    return Batch(list(zip(sides, values, strict=True)), KeySerde(Tagged()).hold(keys), *columns)


def results(batch):
    return [] if batch is None else list(zip(batch.values, batch.timestamps, batch.stamps, strict=True))


def joined(how, tables, key):
    """Return the row of a key in the join of two dicts."""
    left, right = (table.get(key, (None,))[0] for table in tables)
    there = {"inner": left and right, "left": left, "right": right, "outer": left or right}[how]
    return (left, right) if there else None


changes = st.tuples(st.sampled_from((0, 1)), st.none() | st.integers(1, 9), st.sampled_from(KEYS), st.integers(-5, 20))


@pytest.mark.parametrize("how", HOW)
@given(batches=st.lists(st.lists(changes, min_size=1, max_size=5), max_size=8))
@settings(max_examples=examples(60, 2_000))
def test_it_is_a_join_of_two_dicts_before_and_after_each_change(how, batches):
    join, tables, expected, found = operator(how), ({}, {}), [], []
    for batch in batches:
        found += results(join.process(rows(*batch)))
        for side, row, key, at in batch:
            old = joined(how, tables, key)
            tables[side].pop(key, None)
            others = [table[key][1] for table in tables if key in table]
            if row is not None:
                tables[side][key] = (row, at)
            new = joined(how, tables, key)
            if old is not None or new is not None:
                latest = max(at, *others, at)
                expected.append((Change(key, old, new), latest, latest))
    assert found == expected
    assert len(list(join.store.range())) == sum(map(len, tables))
    assert join.unwritten == 0 and join.next_due() > MAX_TIMESTAMP and join.lowest_stamp() > MAX_TIMESTAMP


def test_what_is_joined_can_be_joined_further():
    join = operator("left", is_joined=(True, False))
    found = results(join.process(rows((0, Change("k", None, "one"), "k", 1), (1, "two", "k", 2))))
    found += results(join.process(rows((0, Change("k", "one", None), "k", 3))))
    assert [change for change, *_ in found] == [
        Change("k", None, ("one", None)),
        Change("k", ("one", None), ("one", "two")),
        Change("k", ("one", "two"), None),
    ]


def test_where_it_returns_none_there_is_no_row():
    join = operator(join=lambda left, right: left + right if left + right > 5 else None)
    found = results(join.process(rows((0, 1, "k", 1), (1, 2, "k", 2), (1, 7, "k", 3), (1, 1, "k", 4))))
    assert [change for change, *_ in found] == [Change("k", None, 8), Change("k", 8, None)]


def test_tables_need_no_times():
    found = operator().process(rows((0, 1, "k", 0), (1, 2, "k", 0), timed=False))
    assert (found.values, found.timestamps, found.stamps) == ([Change("k", None, (1, 2))], None, None)


def test_a_record_without_a_key_is_refused():
    with pytest.raises(ValueError, match="a record of a table has no key"):
        operator().process(rows((0, 1, None, 10)))
