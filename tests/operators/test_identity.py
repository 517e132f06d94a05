"""Values are the same where a store would keep the same bytes."""

import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregations.identity import identity
from runtime.encoding.serdes import Tagged

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
values = st.recursive(scalars, lambda inside: st.tuples(inside, inside) | st.dictionaries(st.text(), inside))


class Point(msgspec.Struct):
    x: int
    y: float


@given(values, values)
def test_values_are_the_same_where_their_bytes_in_a_store_are(a, b):
    assert identity(a) == identity(a)
    if sorted_by_name(a) != sorted_by_name(b):
        assert identity(a) != identity(b)


def sorted_by_name(value):
    """Return the bytes that a store would keep, whatever the order in which a dict was filled."""
    return Tagged().encode(in_order(value))


def in_order(value):
    if isinstance(value, dict):
        return {name: in_order(value[name]) for name in sorted(value)}
    return tuple(map(in_order, value)) if isinstance(value, tuple) else value


def test_what_python_confuses_is_told_apart():
    confused = [
        1,
        1.0,
        True,
        (1,),
        (1.0,),
        (True,),
        "1",
        b"1",
        Point(1, 1),
        Point(1, 1.0),
        2**70,
        str(2**70),
        (2**70, 1),
        (2**70, 1.0),
    ]
    assert len({*map(identity, confused)}) == len(confused)


def test_the_order_in_a_set_or_a_dict_does_not_matter():
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
    program = "from operators.aggregations.identity import identity; print(identity({'a', 'b', 'c', 'd'}))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in "123"
    }
    assert printed == {f"{identity(set('abcd'))}\n".encode()}
    assert identity({2**70, 1}) == identity({1, 2**70})


@pytest.mark.parametrize("value", [object(), (1, object()), {1, "a"}], ids=["object", "within", "set of unlikes"])
def test_what_has_no_bytes_is_refused(value):
    with pytest.raises(
        TypeError, match=r"a (object|tuple|set) can't be told from another one .*; return a plain value"
    ):
        identity(value)
