"""Tuples of tuples of scalars as bytes: they come back as they are, and hostile bytes are errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.encoding.nested_tuples import NESTED, start_of, start_of_all
from runtime.encoding.serdes import Evolving, Tagged, decoded, encoded
from runtime.model.errors import SerdeError

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
)
TUPLES = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=4).map(tuple), max_leaves=20)
VALUES = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=3) | st.lists(parts, max_size=3).map(tuple))


@given(TUPLES | VALUES)
def test_they_come_back_as_they_are(value):
    data = Evolving().encode(value)
    assert repr(Evolving().decode(data)) == repr(value)
    assert Evolving().encode(Evolving().decode(data)) == data


@given(st.lists(TUPLES | VALUES, max_size=6))
def test_so_do_columns(values):
    data = encoded(Evolving(), values)
    assert data == [Evolving().encode(value) for value in values]
    assert repr(decoded(Evolving(), data)) == repr(values)


ROWS = st.integers(0, 3).flatmap(lambda length: st.lists(st.tuples(*[SCALARS] * length), min_size=1, max_size=6))


@given(ROWS, st.lists(TUPLES | VALUES, max_size=1))
def test_so_do_columns_of_tuples_that_begin_alike_beside_others(rows, others):
    assert {start_of_all(rows)} == {*map(start_of, rows)}
    assert encoded(Evolving(), rows + others) == [Evolving().encode(value) for value in rows + others]


@given(st.lists(TUPLES.filter(lambda value: type(value) is tuple), max_size=4))
def test_tuples_begin_alike_only_if_each_does_by_itself(values):
    assert start_of_all(values) is None or {start_of_all(values)} == {*map(start_of, values)}


@given(TUPLES)
def test_what_was_stored_part_by_part_is_read_on(value):
    assert repr(Evolving().decode(Tagged().encode(value))) == repr(value)


def test_values_of_one_structure_begin_alike_and_others_do_not():
    assert start_of((1, ("a", None))) == start_of((2.5, (b"", True))) != start_of((1, ("a",)))
    assert start_of((1, [2])) is start_of(((1, (2, {})),)) is None


@given(st.binary(max_size=20))
def test_hostile_bytes_are_an_error(data):
    try:
        value = Evolving().decode(NESTED + data)
    except SerdeError:
        return
    assert isinstance(value, tuple)


@pytest.mark.parametrize("structure", [b"", b"(", b")(", b"(()", b"().", b"(..x)"])
def test_so_is_what_has_no_structure(structure):
    with pytest.raises(SerdeError):
        Evolving().decode(NESTED + bytes([len(structure)]) + structure + b"\x90")
