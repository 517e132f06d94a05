"""Keys are their bytes: holding some of them as themselves changes nothing that can be seen."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import BaseModel

from operators.state.key_collections import EntryKeys
from runtime.encoding.keys import KeySerde, remembering
from runtime.encoding.serdes import Bytes, Json, MessagePack, NoKey, String, Tagged, encode_all
from runtime.encoding.storable import difference
from runtime.model.errors import SerdeError


class Measured(Struct, frozen=True):
    x: float
    inside: "tuple[Measured, ...]" = ()


@dataclass(frozen=True)
class Noted:
    what: Any

    def __post_init__(self) -> None:
        assert self.what is not None


class Pair(NamedTuple):
    x: float
    of: Any


class Model(BaseModel, frozen=True):
    of: float


ALIKE = st.sampled_from([1, True, 1.0, 0, False, 0.0, -0.0, "1", None, "", "é", b"1", b""])
INTS = st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64])
TEXTS = st.text(max_size=3) | st.sampled_from(["\ud800", "\udc00\ud800"])
KEYS = st.lists(ALIKE | INTS | TEXTS | st.tuples(st.integers(), st.text(max_size=2)), max_size=8)
TYPES: Any = st.sampled_from([Any, int, str, float, list[int]])
SERDES = (
    st.sampled_from([Tagged(), String(), Bytes(), NoKey()]) | st.builds(Json, TYPES) | st.builds(MessagePack, TYPES)
)


class Folded:
    """Text without its case: two texts may have the same bytes."""

    type = str

    def encode(self, value: str) -> bytes:
        return value.lower().encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


def bytes_of(serde, key):
    """Return the bytes of a key, or the type of the error that tells that it has none, or none that can be read."""
    try:
        data = serde.encode(key)
    except Exception as error:
        return type(error)
    return data if is_readable(serde, key, data) else SerdeError


def is_readable(serde, key, data):
    try:
        back = serde.decode(data)
    except Exception:
        return False
    if isinstance(key, int) and isinstance(back, float) and key != back:
        return False  # a float that was rounded
    # Where no type is declared, nothing says that another value is meant.
    return serde.type is not Any or type(serde) is Tagged or exactly(back) == exactly(key)


def exactly(key):
    return type(key), repr(key)


@given(st.lists(INTS, max_size=8) | KEYS, SERDES)
def test_held_keys_are_in_the_order_of_their_bytes(column, serde):
    keys = KeySerde(serde)
    try:
        held = [key for key in keys.hold(column) if key is not None]
    except Exception:
        return
    assert list(map(exactly, keys.in_order(held))) == list(map(exactly, sorted(held, key=keys.encode)))


@given(KEYS)
def test_a_key_alone_is_held_as_in_a_column(column):
    for key in column:
        try:
            expected = KeySerde(Tagged()).hold([key, None])[:1]
        except Exception as error:
            with pytest.raises(type(error)):
                KeySerde(Tagged()).hold_one(key)
        else:
            assert exactly(KeySerde(Tagged()).hold_one(key)) == exactly(*expected)


@given(st.lists(KEYS, max_size=3), SERDES | st.just(Folded()))
def test_what_is_held_are_the_bytes_of_the_key(columns, serde):
    keys = KeySerde(serde)
    for column in columns:
        expected = [None if key is None else bytes_of(serde, key) for key in column]
        refused = next((one for one in expected if isinstance(one, type)), None)
        if refused is not None:
            with pytest.raises(refused):
                keys.hold(column)
            continue
        held = keys.hold(column)
        assert keys.encode_all(held) == expected
        for key, data in zip(held, expected, strict=True):
            assert exactly(keys.decode(key)) == exactly(None if data is None else serde.decode(data))


@given(KEYS, SERDES | st.just(Folded()))
def test_two_are_held_alike_when_their_bytes_are(column, serde):
    found = [key for key in column if key is not None and not isinstance(bytes_of(serde, key), type)]
    keys = KeySerde(serde)
    for one, held in zip(found, keys.hold(found), strict=True):
        for other, beside in zip(found, keys.hold(found), strict=True):
            assert (held == beside) == (serde.encode(one) == serde.encode(other))
            assert {held: 1}.get(beside) == (1 if held == beside else None)


@given(KEYS, SERDES)
def test_a_key_is_held_alike_whether_it_was_stored_or_not(column, serde):
    found = [key for key in column if not isinstance(bytes_of(serde, key), type)]
    keys = KeySerde(serde)
    stored = encode_all(serde, found)
    assert list(map(exactly, keys.load(stored))) == list(map(exactly, keys.hold(found)))


@pytest.mark.parametrize("data", [b'"\\u0041"', b' "A"', b"1e0", b"1.0"])
def test_other_bytes_for_the_same_key_are_another_key(data):
    keys = KeySerde(Json())
    held = keys.hold(["A", 1])
    try:
        loaded = keys.load([data])[0]
    except Exception:
        return
    assert loaded not in held
    assert keys.encode(loaded) == data


@given(st.lists(ALIKE | st.integers(), max_size=12))
def test_what_is_remembered_is_what_was_decoded(keys):
    decode = remembering(Tagged().decode)
    for _ in range(2):
        for key in keys:
            decoded = decode(None if key is None else Tagged().encode(key))
            assert (type(decoded), decoded) == (type(key), key)


def test_a_list_that_was_decoded_is_nobody_elses():
    decode = remembering(Tagged().decode)
    first, second = decode(Tagged().encode([1])), decode(Tagged().encode([1]))
    first.append(2)
    assert second == [1]


@given(st.lists(st.text(max_size=4) | st.none(), max_size=6))
def test_text_keys_are_their_utf_8(keys):
    assert encode_all(String(), keys) == [None if key is None else key.encode() for key in keys]


@pytest.mark.parametrize(
    ("serde", "around"),
    [
        (Tagged(), lambda nan: nan),
        (Tagged(), lambda nan: (nan, 1)),
        (Tagged(), lambda nan: ["a", {"b": (nan,)}]),
        (Tagged(), lambda nan: Measured(nan)),
        (Tagged(), lambda nan: (1, Measured(1.5, (Measured(nan),)))),
        (Tagged(), lambda nan: frozenset([Measured(nan), Noted(nan)])),
        (Tagged(), lambda nan: Noted(Measured(1, (Measured(nan),)))),
        (Tagged(), lambda nan: Pair(nan, Model(of=nan))),
        (MessagePack(Measured), lambda nan: Measured(nan)),
        (MessagePack(float), lambda nan: nan),
        (MessagePack(list[float]), lambda nan: [1.0, nan]),
    ],
)
def test_nan_is_one_key_whatever_its_sign(serde, around):
    keys = KeySerde(serde)
    given = [*map(around, (math.nan, math.inf - math.inf, math.inf))]
    one, other, number = map(keys.hold_one, given)
    assert one == other != number
    of_entries = EntryKeys(serde, keys, lambda key: None)
    assert [*map(of_entries.encode, given)] == [one, other, number]
    assert difference(of_entries.decode(number), keys.decode(number)) is None
    assert of_entries.decode(number) == given[2]
