"""Copies of states: what their bytes are decoded to, and no part of them that anybody can change is shared."""

import datetime as dt
import math
import operator
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from runtime.encoding.serdes import Declared, Evolving, Json, Tagged, copying
from runtime.encoding.storable import difference
from samza_dsl import App, after_count, counted, fold, session, sliding, testing, tumbling
from samza_dsl.testing.mutations import Mutations


class Total(Struct):
    """A record of plain values."""

    count: int
    eur: float


class Fixed(Struct, frozen=True):
    """A record that nobody can change, but for what it holds."""

    name: str
    parts: Any = None


@dataclass
class Held:
    """A record with what can be changed."""

    name: str
    parts: list[int] = field(default_factory=list)


class Pair(NamedTuple):
    """A tuple with names."""

    one: int
    other: Any


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.sampled_from([None, dt.UTC]))
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.sampled_from([1 + 2j, -0.0, math.nan, Decimal("1.00")])
)
hashed = st.recursive(plain.filter(lambda one: one == one), lambda inner: st.tuples(inner, inner), max_leaves=3)
records = (
    st.builds(Total, st.integers(), st.integers() | st.floats())
    | st.builds(Fixed, st.text())
    | st.builds(Held, st.text(), st.lists(st.integers(), max_size=2))
)
values = st.recursive(
    plain | records | st.sampled_from([bytearray(b"a"), deque([1, [2]]), np.float64(1.5), np.arange(3)]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashed, inner, max_size=3)
        | st.sets(hashed, max_size=3)
        | st.frozensets(hashed, max_size=3)
        | st.builds(Fixed, st.text(), inner)
        | st.builds(Pair, st.integers(), inner)
    ),
    max_leaves=8,
)


def changeable(value):
    """Return the ids of the parts of a value that can be changed."""
    found = set()
    if not isinstance(value, UNCHANGED) and not (isinstance(value, Fixed) or type(value) in (tuple, frozenset, Pair)):
        found.add(id(value))
    if isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, Held):
        parts = [value.name, value.parts]
    else:
        parts = value if isinstance(value, list | tuple | set | frozenset | deque) else ()
    return found.union(*map(changeable, parts))


UNCHANGED = (
    *(type(None), bool, int, float, str, bytes, complex),
    *(dt.date, dt.timedelta, Decimal, Fraction, UUID, np.float64),
)


@given(values)
def test_a_copy_is_what_the_bytes_are_decoded_to_and_shares_nothing_that_can_be_changed(value):
    for serde in (Evolving(), Tagged(), Declared(Any)):
        made, decoded = serde.copy(value), serde.decode(serde.encode(value))
        assert difference(decoded, made) is None
        assert difference(made, decoded) is None
        assert not changeable(value) & changeable(made)


@given(st.lists(st.integers() | st.floats(allow_nan=False)) | st.dictionaries(st.text(), st.integers()) | st.integers())
def test_a_copy_of_a_declared_type_is_of_it(value):
    for kind in (list[float], dict[str, float], float):
        declared = Declared(kind)
        try:
            decoded = declared.decode(declared.encode(value))
        except Exception as error:
            with pytest.raises(type(error)):
                declared.copy(value)
        else:
            assert difference(decoded, declared.copy(value)) is None


LIKE = st.sampled_from([0, False, 0.0, -0.0, 1, True, 1.0, math.nan, "", "1", b"", None])
"""Values that equal others, and are not the same."""


@example([(0.0, -0.0)])
@example([(0, 0), (1, True)])
@given(st.lists(LIKE.map(lambda one: (one, one)) | st.tuples(LIKE, LIKE), max_size=4))
def test_what_comes_back_is_the_same_where_each_part_looks_the_same(pairs):
    def is_same(put, back):
        # Where a float is declared, an int is stored as one.
        is_widened = type(put) is int and type(back) is float and put == back
        return is_widened or (type(put) is type(back) and repr(put) == repr(back))

    put, back = [one for one, _ in pairs], [other for _, other in pairs]
    for made in (list, tuple, lambda parts: dict(enumerate(parts)), lambda parts: [{"parts": parts}]):
        assert (difference(made(put), made(back)) is None) == all(is_same(*pair) for pair in pairs)


def test_a_serde_of_ones_own_makes_copies_by_its_bytes():
    held = [1, [2]]
    made = copying(Json(list)).copy(held)
    assert made == held
    assert made[1] is not held[1]
    assert copying(Json(list)).copy((1, 2)) == [1, 2]


def add_in_place(state, value):
    state.append([value])
    return state


EARLY: Any = {"early": after_count(1), "panes": "accumulating"}
STEPS = {
    "scan": lambda s: s.scan(add_in_place, init=list),
    "window, late": lambda s: s.window(
        tumbling(seconds=1), fold(list, add_in_place, merge=operator.add), allowed_lateness_ms=10_000
    ).map(lambda p: p.value),
    "early": lambda s: s.window(tumbling(seconds=1), fold(list, add_in_place, merge=operator.add), **EARLY).map(
        lambda p: p.value
    ),
    "session, early": lambda s: s.window(session(seconds=1), fold(list, add_in_place, merge=operator.add), **EARLY).map(
        lambda p: p.value
    ),
    "counted, early": lambda s: s.window(counted(10), fold(list, add_in_place, merge=operator.add), **EARLY).map(
        lambda p: p.value
    ),
    "sliding": lambda s: s.window(sliding(seconds=1), fold(list, add_in_place, merge=operator.add)).map(
        lambda p: p.value
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_is_handed_out_and_changed_changes_no_state(step, monkeypatch):
    # The testing kit refuses it, and a run does not look.
    monkeypatch.setattr(Mutations, "around", lambda self, function, operator: function)

    def changed(value):
        found = len(value)
        value.clear()
        return found

    def lengths(then):
        app = App("handed-out")
        stream = app.input("in", value=int, key=lambda n: "k", timestamp=lambda n: n)
        STEPS[step](stream).map(then).send_to(app.output("out", value=int))
        return testing.run(app, {"in": [1, 2, 3, 2_000, 4, 5]})["out"]

    assert lengths(changed) == lengths(len)
    assert max(lengths(len)) > 1
