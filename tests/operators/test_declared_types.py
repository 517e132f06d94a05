"""A type is told as msgspec tells it, and of a class msgspec is asked once in a process."""

from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from operators.core.declared_types import type_info, types_in
from samza_dsl import App, testing


class Order(msgspec.Struct):
    cents: int
    text: str = ""


class Tree(msgspec.Struct):
    below: list["Tree"] = []


PLAIN = st.sampled_from([int, str, bytes, float, bool, Order, Tree])
TYPES = st.recursive(
    PLAIN,
    lambda within: st.one_of(
        within.map(lambda one: list[one]),
        within.map(lambda one: dict[str, one]),
        st.permutations([int, str, None]).map(lambda some: some[0] | some[1] if some[0] else some[1] | some[0]),
        within.map(lambda one: msgspec.defstruct("Made", [("one", one)])),
    ),
    max_leaves=4,
)


@given(st.lists(TYPES, min_size=1, max_size=6))
def test_what_is_told_is_what_msgspec_tells_however_often_it_is_asked(kinds):
    for kind in [*kinds, *kinds]:
        assert repr(type_info(kind)) == repr(inspect.type_info(kind))
        assert next(types_in(kind)) is not None


def test_a_run_asks_nothing_of_classes_that_a_run_before_has_asked_of():
    app = App("orders")
    app.input("in", value=Order).map(lambda one: one).send_to(app.output("out", value=Order))
    testing.run(app, {"in": [Order(1)]})
    with patch.object(inspect, "type_info", side_effect=AssertionError("it was asked again")):
        assert testing.run(app, {"in": [Order(2)]})["out"] == [Order(2)]
