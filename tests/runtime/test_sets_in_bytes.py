"""Sets in values and in keys: values are written as msgspec has them, and keys alike in each process."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import BaseModel

from operators.state.key_collections import EntryKeys, MapState
from runtime.encoding.classes import name_of
from runtime.encoding.copies import with_sets_in_order
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import (
    PAIR,
    TUPLE,
    WHOLE,
    Json,
    MessagePack,
    Natural,
    Tagged,
    encode_all,
    of_keys,
    to_json,
)
from runtime.stores.memory import MemoryStore
from samza_dsl import App, testing


class Color(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Point(Struct, frozen=True, order=False):
    x: int
    of: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spot:
    of: frozenset[Color]
    more: tuple[frozenset[str], ...] = ()


class Pair(NamedTuple):
    of: frozenset[str]
    n: int


class Model(BaseModel, frozen=True):
    of: frozenset[str]


class Deep(Struct, frozen=True):
    of: frozenset[frozenset[str]]


class Loud(Struct, frozen=True):
    of: frozenset[str]

    def __post_init__(self) -> None:
        assert type(self.of) is frozenset


class Loose(Struct, frozen=True):
    of: Any


class Held(Struct):
    of: set[Color]


names = st.text("abcdefg", max_size=3)
texts = st.frozensets(names, max_size=6)
MEMBERS: list[tuple[Any, Any]] = [
    (Color, st.sampled_from(Color)),
    (Point, st.builds(Point, st.integers(-300, 300), texts)),
    (str | int | None, names | st.integers(-300, 300) | st.none()),
    (tuple[str, int | None], st.tuples(names, st.integers(0, 3) | st.none())),
    (frozenset[str], texts),
    (frozenset[Point], st.frozensets(st.builds(Point, st.integers(0, 3), texts), max_size=3)),
    (Spot, st.builds(Spot, st.frozensets(st.sampled_from(Color)), st.tuples(texts))),
    (Pair, st.builds(Pair, texts, st.integers(0, 3))),
    (Loud, st.builds(Loud, texts)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
]
KINDS = [(frozenset[member], st.frozensets(drawn, max_size=4)) for member, drawn in MEMBERS]


@pytest.mark.parametrize("packed", [Json, MessagePack])
@pytest.mark.parametrize(("kind", "drawn"), KINDS, ids=lambda one: getattr(one, "__name__", None) and str(one))
def test_values_with_sets_are_written_and_read_whatever_their_members_are(packed, kind, drawn):
    serde = packed(kind)

    @given(drawn)
    def law(value):
        assert serde.decode(serde.encode(value)) == value
        assert serde.decode(of_keys(serde).encode(value)) == value
        assert encode_all(serde, [value, None]) == [serde.encode(value), None]

    law()


def test_values_keep_the_order_of_their_parts():
    kind = dict[str, set[int]]
    value = {"z": {1}, "a": {2}}
    for serde in (Json(kind), MessagePack(kind)):
        assert [*serde.decode(serde.encode(value))] == ["z", "a"]
        assert [*of_keys(serde).decode(of_keys(serde).encode(value))] == ["z", "a"]
    assert Json(kind).encode is to_json  # by which whole columns are written at once


def test_an_output_of_sets_of_enums():
    app = App("sets")
    names = app.input("in", value=str, timestamp=lambda _: 0)
    names.map(lambda name: Held({Color(name), Color.RED})).send_to(app.output("out", value=Held))
    assert testing.run(app, {"in": ["blue"]})["out"] == [Held({Color.BLUE, Color.RED})]


def keys_and_bytes():
    deep = frozenset([frozenset("abc"), frozenset("bcd"), frozenset(["x", "yy", "z"]), frozenset("ad")])
    points = frozenset(Point(n % 3, frozenset(str(one) for one in range(n))) for n in range(7))
    spot = Spot(frozenset(Color), (frozenset("abc"), frozenset("defg")))
    pair, model, loud = Pair(frozenset("abcde"), 1), Model(of=frozenset("abcdef")), Loud(frozenset("abcde"))
    mixed = frozenset([1, "a", None, "bc", (1, "a"), ("a", frozenset("xyz"))])
    in_a_tuple = (1, Point(2, frozenset("abc")))
    declared = [
        *((frozenset[frozenset[str]], deep), (frozenset[Point], points), (Spot, spot), (Model, model), (Loud, loud)),
        (tuple[int, dict[str, Pair]], (1, {"b": pair})),
    ]
    others = [deep, points, spot, pair, model, loud, mixed, in_a_tuple, Point(1, frozenset("abcdef"))]
    for serde, key in [
        *((packed(kind), key) for packed in (Json, MessagePack) for kind, key in declared),
        *((serde, key) for serde in (Natural(), Tagged()) for key in others),
        *((Natural(), key) for key in (Loose(frozenset("abcdef")), {"a": deep})),
    ]:
        keys = KeySerde(serde)
        yield serde, keys.serde.encode(key), keys.encode_all([key, None])


def test_equal_keys_have_equal_bytes_in_each_process():
    code = f"from {__name__} import keys_and_bytes as found\nprint(*found(), sep='\\n')"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert runs[0].count("\n") == len([*keys_and_bytes()])
    assert runs == [runs[0]] * 3


def test_a_serde_of_keys_is_what_it_was_and_stays_one_on_its_way_to_a_worker():
    for serde in (Json(frozenset[str]), MessagePack(frozenset[str])):
        assert of_keys(serde) == serde == of_keys(of_keys(serde))
        assert repr(of_keys(serde)) == repr(serde)
        assert pickle.loads(pickle.dumps(of_keys(serde))).encode == of_keys(serde).encode != serde.encode
        assert pickle.loads(pickle.dumps(serde)).encode != of_keys(serde).encode
    assert all(of_keys(serde) is serde for serde in (Json(), Json(str), MessagePack(list[int]), Tagged()))


class Counting(Tagged):
    calls: ClassVar[list[str]] = []

    def encode(self, value):
        self.calls.append("encode")
        return super().encode(value)

    def decode(self, data):
        self.calls.append("decode")
        return super().decode(data)


def entry_keys(serde):
    return EntryKeys(serde, KeySerde(serde), lambda key: None)


def test_keys_of_entries_are_encoded_once_and_looked_at_only_where_they_may_be_others():
    keys = entry_keys(Counting())
    for key, put, compared in [
        ("a", ["encode"], 0),
        ((1, "a", None), ["encode"], 0),
        (Loud(frozenset("ab")), ["encode", "decode"], 1),
    ]:
        Counting.calls.clear()
        data = keys.encode(key)
        assert put == Counting.calls
        Counting.calls.clear()
        assert keys.decode(data) == key
        assert Counting.calls.count("encode") == compared


def in_other_order(packed, kind, value):
    """Return what a former version wrote, which had sets in the order of their hashes."""
    turned = packed(with_sets_in_order(value, lambda part: bytes(255 - byte for byte in packed(part))))
    assert turned != packed(with_sets_in_order(value, packed))
    return WHOLE + PAIR + packed(name_of(type(value))) + turned if kind is None else turned


@pytest.mark.parametrize("value", [Point(1, frozenset("abc")), Deep(frozenset([frozenset("ab"), frozenset("c")]))])
@pytest.mark.parametrize(
    ("serde", "packed", "kind"),
    [
        (lambda kind: Tagged(), msgspec.msgpack.encode, None),
        (Json, msgspec.json.encode, Json),
        (MessagePack, msgspec.msgpack.encode, MessagePack),
    ],
    ids=["Tagged", "Json", "MessagePack"],
)
def test_an_entry_under_a_set_in_the_order_of_hashes_is_read(value, serde, packed, kind):
    keys = entry_keys(serde(type(value)))
    former = in_other_order(packed, kind, value)
    assert keys.decode(keys.encode(value)) == keys.decode(former) == value
    assert keys.encode(value) != former
    if kind is None:
        in_a_tuple = TUPLE + msgspec.msgpack.encode([Tagged().encode(1), former])
        assert keys.decode(in_a_tuple) == (1, value)


def context_of(store):
    """Return what a map is asked of."""
    return SimpleNamespace(_operator=SimpleNamespace(store=store))


@pytest.mark.parametrize("is_assigned_since", [False, True])
@pytest.mark.parametrize("make", [lambda names: Point(1, names), lambda names: (1, Spot(names, (names,)))])
def test_entries_of_maps_under_a_former_order_come_to_where_they_are_looked_for(make, is_assigned_since):
    crew = make(frozenset("abcdefgh"))
    keys, store = KeySerde(Tagged()), MemoryStore()
    seen = MapState(context_of(store), b"here", EntryKeys(Tagged(), keys, lambda key: None))
    seen["other"] = 0
    former = unsorted(crew)
    assert keys.encode(keys.hold_one(crew)) != former and keys.lies_under(crew, former)
    store.put(b"here" + former, ("then",))
    if is_assigned_since:
        seen[crew] = "now"
    value = "now" if is_assigned_since else "then"
    assert sorted(seen.items(), key=str) == sorted([("other", 0), (crew, value)], key=str)
    assert {*seen.values()} == {0, value} and len(seen) == 2
    assert [seen[key] for key in seen] == [*seen.values()]
    assert dict(seen) == {"other": 0, crew: value} and seen.pop(crew) == value
    assert {**seen} == {"other": 0}


class Real(Struct, frozen=True):
    of: float


@pytest.mark.parametrize("key", [Real(7), (1, Real(7)), Real(2**40)])
def test_a_walk_over_a_map_leaves_entries_where_the_functions_own_keys_find_them(key):
    seen = MapState(context_of(MemoryStore()), b"here", EntryKeys(Tagged(), KeySerde(Tagged()), lambda key: None))
    seen[key] = 1
    assert [*seen.items()] == [(key, 1)] and [*seen] == [key]
    assert seen[key] == 1 and seen.pop(key) == 1 and not len(seen)


def unsorted(key):
    """Return the bytes of a key as a former version wrote it: with its sets in another order."""
    data = Tagged().encode(key)
    members = [bytes(Tagged().encode(name)[1:]) for name in "abcdefgh"]
    assert all(data.count(member) in (1, 2) for member in members), "each is text in a set"
    return data.replace(members[0], b"\xa1-").replace(members[7], members[0]).replace(b"\xa1-", members[7])
