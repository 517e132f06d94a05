"""Tuples of tuples of scalars as bytes: they come back as they are, and hostile bytes are errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.encoding.nested_tuples import NESTED, start_of
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
