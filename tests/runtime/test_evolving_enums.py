"""An Enum's member is read as itself, or refused, when the members have got other values since it was stored."""

import enum
import sys
import types
from dataclasses import make_dataclass
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.encoding.serdes import Evolving, Tagged
from runtime.model.errors import SerdeError
from tests.scale import examples

MODULE = sys.modules.setdefault("evolving_enums", types.ModuleType("evolving_enums"))
Thing = make_dataclass("Thing", [("held", Any)], namespace={"__module__": "evolving_enums"})
MODULE.Thing = Thing


def new_enum(base, members):
    """Define an Enum in the place of the one before."""
    MODULE.Rank = base("Rank", members, module=MODULE.__name__, qualname="Rank")
    return MODULE.Rank


numbered = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=4)
"""The names of members whose values are given out in their order, as `auto()` does it."""


@given(st.sampled_from([enum.Enum, enum.IntEnum, enum.Flag, enum.IntFlag, enum.StrEnum]), numbered, numbered, st.data())
@settings(max_examples=examples(300, 10_000))
def test_a_member_of_an_enum_is_never_read_as_another_one(base, before, after, data):
    members = [*new_enum(base, before)]
    chosen = data.draw(st.sampled_from(members))
    if issubclass(base, enum.Flag):
        chosen |= data.draw(st.sampled_from(members))
    place = data.draw(st.sampled_from(["alone", "in a list", "as a field"]))
    value = {"alone": chosen, "in a list": [chosen], "as a field": Thing(held=chosen)}[place]
    stored = Evolving().encode(value)
    now = new_enum(base, after)
    try:
        read = Evolving().decode(stored)
    except SerdeError:
        # Where every name has the value that it had, there is nothing to refuse.
        assert any(
            name not in now.__members__ or now[name].value != base("Rank", before)[name].value for name in before
        )
        return
    found = {"alone": lambda: read, "in a list": lambda: read[0], "as a field": lambda: read.held}[place]()
    assert type(found) is now and found.value == chosen.value
    # Another name is a new name for the same member only where the old name is nobody's.
    for name in chosen.name.split("|"):
        assert name not in now.__members__ or now[name] is found or (now[name].value & found.value)


def test_an_enum_as_earlier_versions_wrote_it_is_read_by_its_value():
    new_enum(enum.Enum, ["a", "b"])
    older = b"\x06" + msgspec.msgpack.encode(("evolving_enums:Rank", Tagged().encode(2)))
    assert Evolving().decode(older) is MODULE.Rank.b
