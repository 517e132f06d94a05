"""A join by foreign key against its definition, a join of two dicts before and after each change, and its edges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.core.base import Batch
from operators.joins.changes import Change
from operators.joins.foreign_key_join import ForeignKeyJoin, ForeignKeyJoinOperator
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import String, Tagged
from runtime.stores.memory import MemoryStore
from tests.scale import examples

HOW = ("inner", "left")
NAMES = ("x", "xy", "", None)


def pair(row, other):
    return (row, other)


def operator(how="inner", foreign_key=None, on=lambda row: row[1]):
    functions = {"on": on, "join": pair}
    spec = ForeignKeyJoin(on=on, with_=pair, foreign_key=foreign_key, how=how)
    return ForeignKeyJoinOperator(spec, functions, MemoryStore(), KeySerde(Tagged()), KeySerde(foreign_key or Tagged()))


def rows(*told):
    """Return a batch of (side, row, key, time), with the time as the stamp, too."""
    sides, values, keys, times = map(list, zip(*told, strict=True))
    return Batch(list(zip(sides, values, strict=True)), KeySerde(Tagged()).hold(keys), times, times)


def results(batch):
    return [] if batch is None else list(zip(batch.values, batch.timestamps, strict=True))


def joined(how, own, others):
    """Return what every key of the first table comes to: a comprehension over two dicts."""
    found = {key: ((row, others.get(row[1], (None,))[0]), at) for key, (row, at) in own.items()}
    return {key: one for key, one in found.items() if how == "left" or one[0][1] is not None}


own = st.tuples(
    st.just(0), st.none() | st.tuples(st.integers(0, 9), st.sampled_from(NAMES)), st.integers(0, 4), st.integers(0, 9)
)
other = st.tuples(st.just(1), st.none() | st.integers(1, 9), st.sampled_from(NAMES[:3]), st.integers(0, 9))


@pytest.mark.parametrize("how", HOW)
@given(batches=st.lists(st.lists(own | other, min_size=1, max_size=5), max_size=8))
@settings(max_examples=examples(80, 2_000))
def test_it_is_a_join_of_two_dicts_before_and_after_each_change(how, batches):
    join, tables, expected, found = operator(how), ({}, {}), [], []
    for batch in batches:
        found += results(join.process(rows(*batch)))
        for side, row, key, at in batch:
            before = joined(how, *tables)
            tables[side].pop(key, None)
            if row is not None:
                tables[side][key] = (row, at)
            after = joined(how, *tables)
            touched = [key] if side == 0 else [one for one in tables[0] if tables[0][one][0][1] == key]
            for one in sorted(touched):
                old, new = (table.get(one, (None, 0))[0] for table in (before, after))
                if old is not None or new is not None:
                    name = row[1] if side == 0 and row is not None else None
                    times = [
                        at,
                        *([tables[0][one][1]] if side else []),
                        *(tables[1][name][1:] if name in tables[1] else ()),
                    ]
                    expected.append((Change(one, old, new), max(times)))
    assert found == expected
    named = sum(row[1] is not None for row, _ in tables[0].values())
    assert len(list(join.store.range())) == sum(map(len, tables)) + named


def test_keys_are_those_of_the_other_table():
    join = operator(foreign_key=String())
    join.process(Batch([(1, "row")], ["x"], [0], [0]))
    assert results(join.process(rows((0, (1, "x"), 7, 1)))) == [(Change(7, None, ((1, "x"), "row")), 1)]


def test_a_record_without_a_key_is_refused():
    with pytest.raises(ValueError, match="a record of a table has no key"):
        operator().process(rows((0, (1, "x"), None, 10)))
