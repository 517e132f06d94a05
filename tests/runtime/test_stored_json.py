"""Stored values as JSON: each comes back byte for byte, from the text of JSON, and without its class."""

import msgspec
import pytest
from hypothesis import given, settings

from runtime.encoding.json_text import to_json
from runtime.encoding.serdes import Evolving, Tagged
from runtime.encoding.stored_json import bytes_of, plain_of
from runtime.model.errors import SerdeError
from tests.runtime.test_evolving import values as evolving_values
from tests.runtime.test_serdes import values as tagged_values
from tests.scale import examples


def through_json(data, serde):
    return bytes_of(msgspec.json.decode(to_json(plain_of(data))), serde)


@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
@given(value=tagged_values | evolving_values)
@settings(max_examples=examples(300, 6000), deadline=None)
def test_each_value_comes_back_byte_for_byte(serde, value):
    data = serde.encode(value)
    assert through_json(data, serde) == data


@pytest.mark.parametrize(
    "value",
    [-0.0, float("nan"), float("-inf"), 2**63, 2**64, -(2**64), {"$": 1}, {1: "a", "a": {"$": []}}, (), [], {}, [()]],
)
@pytest.mark.parametrize("serde", [Tagged(), Evolving()])
def test_what_json_has_no_form_for_comes_back(serde, value):
    data = serde.encode(value)
    assert through_json(data, serde) == data


@pytest.mark.parametrize("data", [b"", b"\xff", b"{}", b"\x01\xc1", b"\x04\x91\x01", b"\x0d\x05("])
def test_bytes_of_others_are_refused(data):
    with pytest.raises(SerdeError):
        plain_of(data)


@pytest.mark.parametrize(
    "plain", [{"$": "tuple"}, {"$": "bytes", "of": "?"}, {"$": "record", "of": {}}, {"$": 1, "of": 2}]
)
def test_what_was_edited_into_no_value_is_refused(plain):
    with pytest.raises(SerdeError):
        bytes_of(plain, Evolving())
