"""Values are the same where a store would keep the same bytes."""

import copy
import enum
import ipaddress
import math
import os
import pathlib
import subprocess
import sys
from collections import deque
from fractions import Fraction
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.aggregations.identity import identity
from runtime.encoding.serdes import Tagged
from samza_dsl import App, distinct, produce, tumbling

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


@pytest.mark.parametrize("value", [object(), (1, object())], ids=["object", "within"])
def test_what_has_no_bytes_is_refused(value):
    with pytest.raises(TypeError, match=r"a (object|tuple) can't be told from another one .*; return a plain value"):
        identity(value)


class Model(pydantic.BaseModel):
    id: int
    name: str = "n"


class Shape(enum.Enum):
    LINE = (1, 2)
    POINT = (1,)


KEPT = [
    *(np.datetime64("2024-01-01"), np.datetime64("2024-01-02"), np.timedelta64(1, "s"), np.complex64(1j)),
    *(pathlib.PurePosixPath("/a"), pathlib.PurePosixPath("/b"), ipaddress.ip_address("1.2.3.4")),
    *(ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8"), ZoneInfo("Europe/Oslo"), range(3), range(4)),
    *(Model(id=1), Model(id=2), 1j, 2j, {1, "a"}, {2, "a"}, Shape.LINE, Shape.POINT, deque([1]), np.arange(3)),
    *("/a", "1.2.3.4", "2024-01-01", 3, np.arange(4), frozenset([(1, "a"), "b"]), Fraction(1, 3), ...),
]


def test_all_that_state_keeps_is_told_apart_and_is_the_same_as_itself():
    for around in (lambda one: one, lambda one: (one, 1), lambda one: {"a": [one]}, lambda one: (one, 2**70)):
        found = [identity(around(one)) for one in KEPT]
        assert len({*found}) == len(KEPT)
        assert found == [identity(around(copy.deepcopy(one))) for one in KEPT]


def test_models_are_the_same_whichever_fields_were_given():
    assert identity(Model(id=1)) == identity(Model(id=1, name="n")) != identity(Model(id=1, name="m"))


@given(values)
def test_a_nan_is_the_same_wherever_it_is(value):
    for around in (lambda nan: (nan, value), lambda nan: {"a": [nan, value]}, lambda nan: Point(1, nan)):
        assert identity(around(math.nan)) == identity(around(-math.nan)) != identity(around(math.inf))


def test_distinct_counts_all_that_state_keeps_and_goes_on(tmp_path):
    found = []
    for run in range(2):
        app = App("kinds")
        panes = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n).window(
            tumbling(minutes=1), distinct(lambda n: KEPT[n % len(KEPT)])
        )
        panes.sink(lambda pane: found.append(pane.value))
        produce("in", [*range(len(KEPT)), *([60_000] * run)], data=tmp_path)
        app.run(tmp_path, until_now=True)
    assert found == [len(KEPT)]
