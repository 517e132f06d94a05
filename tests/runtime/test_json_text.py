"""JSON and columns of values of which they would have others: times between minutes, and keys that are one text."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.encoding import json_text
from runtime.encoding.json_text import all_json, to_json, to_json_lines, to_key_json
from runtime.encoding.serdes import Json
from runtime.encoding.storable import ReadBack
from runtime.model.errors import OperatorFailure, SamzaError, SerdeError
from runtime.systems.files.jsonl import JsonlSink
from samza_dsl import App

AMSTERDAM = dt.datetime(1900, 1, 1, 12, tzinfo=ZoneInfo("Europe/Amsterdam"))


class Level(Enum):
    """Members whose values are one text in JSON."""

    NUMBER = 1
    TEXT = "1"


class At(msgspec.Struct, rename="camel"):
    """A record with a time in it."""

    at_all: list[dict[str, dt.datetime]]
    raw: msgspec.Raw = msgspec.Raw(b'{"a": 1}')


class Tagged(NamedTuple):
    """A record that JSON has as an array."""

    held: object


@dataclass
class Held:
    """A record of anything."""

    held: Any


class Model(pydantic.BaseModel):
    """A model whose dict has keys of two types."""

    held: dict[int | str, int]


class Root(pydantic.RootModel[dict[int | str, int]]):
    """A model that is a dict."""


TWICE: dict[int | str, int] = {1: 2, "1": 3}
KEYS = st.one_of(
    st.integers(-3, 3),
    st.integers(-3, 3).map(str),
    st.sampled_from([1.0, "1.0", Decimal("1.5"), "1.5", 1.5, UUID(int=1), str(UUID(int=1)), b"a", "YQ=="]),
    st.sampled_from([dt.date(2020, 1, 1), "2020-01-01", dt.timedelta(1), "P1D", *Level]),
)
# Those within 30 seconds of none, or of a whole day, msgspec takes for UTC.
SECONDS = st.integers(-86_369, 86_369).filter(lambda seconds: abs(seconds) > 30)
OFFSETS = SECONDS.map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
TIMES = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=OFFSETS)
SHAPES = st.sampled_from(
    [
        lambda one: one,
        lambda one: [one],
        lambda one: {"a": {"b": (1, one)}},
        lambda one: Held([one, "T12:00:00"]),
        lambda one: {"a": Tagged(one)},
        lambda one: Tagged(one),
    ]
)


def written(value):
    """Return what each way to write JSON makes of a value; None where that refuses it."""
    ways = [to_json, to_key_json, lambda one: to_json_lines([one])[:-1], lambda one: all_json([one])[0]]
    found = []
    for way in ways:
        try:
            found.append(way(value))
        except SerdeError:
            found.append(None)
    return found


@given(st.dictionaries(KEYS, st.integers(), max_size=5), SHAPES)
def test_a_dict_has_as_many_entries_in_json_or_is_refused(entries, shape):
    names = [next(iter(msgspec.json.decode(msgspec.json.encode({key: None})))) for key in entries]
    found = {*written(shape(entries))}
    if len({*names}) < len(names):
        assert found == {None}
    else:
        assert found == {msgspec.json.encode(shape(entries))}


@given(TIMES, SHAPES)
def test_a_time_in_json_is_the_same_moment_whatever_its_offset(at, shape):
    for value in (at, {at: at}):
        (found,) = {*written(shape(value))}
        texts = [one for one in str(found).split('"') if one[:1].isdigit() and "T" in one]
        assert texts and all(dt.datetime.fromisoformat(one) == at for one in texts)


@pytest.mark.parametrize("value", [TWICE, Model(held=TWICE), Root(TWICE), Held(TWICE), Tagged(TWICE)], ids=repr)
def test_keys_that_are_one_text_are_refused_in_each_kind_of_record(value):
    assert written(value) == [None] * 4
    assert written([value]) == [None] * 4
    with pytest.raises(SerdeError, match="several entries that JSON has under one name, '1'"):
        to_json_lines([{"a": 1}, value])


def test_of_a_record_with_such_a_time_all_else_stays():
    assert msgspec.json.decode(Json(At).encode(At([{"a": AMSTERDAM}]))) == {
        "atAll": [{"a": "1900-01-01T11:59:28+00:19"}],
        "raw": {"a": 1},
    }


def run(tmp_path: Path, value: object, suffix: str, kind: object = None) -> Path:
    """Write one value to a file."""
    app = App("writes")
    app.input("in").map(lambda _: value).send_to(app.output("out", value=kind))
    path = tmp_path / f"out.{suffix}"
    app.run(data=tmp_path / "data", bind={"in": [1], "out": path})
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("value", [TWICE, {"a": TWICE}, Held([TWICE])], ids=repr)
def test_files_refuse_keys_that_are_one_text(tmp_path, value, suffix):
    with pytest.raises(OperatorFailure, match="several entries that JSON has under one name"):
        run(tmp_path, value, suffix)


class Opens(msgspec.Struct):
    """A time of day, as it lies and within others."""

    at: dt.time
    all: list[dict[str, dt.time]] = []


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "value",
    [
        Opens(dt.time(12, tzinfo=dt.UTC)),
        Opens(dt.time(12), [{"a": dt.time(12, tzinfo=dt.UTC)}]),
    ],
    ids=repr,
)
def test_columns_refuse_a_time_of_day_with_a_zone_which_they_would_leave_out(tmp_path, value, suffix):
    with pytest.raises(SamzaError, match="a time with a time zone, which columns have not"):
        run(tmp_path, value, suffix, Opens)


def test_columns_have_times_of_day_without_a_zone(tmp_path):
    app, found = App("reads"), list[object]()
    app.input("in", value=Opens).filter(found.append).send_to(app.output("none"))
    app.run(data=tmp_path / "again", bind={"in": run(tmp_path, Opens(dt.time(12)), "parquet", Opens)})
    assert found == [Opens(dt.time(12))]


NESTED = st.recursive(
    st.none() | st.integers(0, 9) | st.text(max_size=2),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=2), parts, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=2), NESTED, max_size=3), min_size=1, max_size=5))
def test_dicts_within_dicts_are_encoded_once_for_a_file_and_walked_through_alone_by_none(values):
    serde = ReadBack(Json(dict), dict)
    lines = JsonlSink(Path("unused.jsonl")).together(serde)
    with (
        patch.object(json_text, "_to_json", side_effect=AssertionError("one by one")),
        patch.object(json_text, "_to_json_lines", wraps=json_text._to_json_lines) as encoding,
    ):
        (found,) = lines(values)
    assert encoding.call_count == 1
    assert [msgspec.json.decode(line) for line in bytes(found).split(b"\n")] == values
    with patch.object(json_text, "_levels", side_effect=AssertionError("by its classes")):
        for value in values:
            if b"null" not in msgspec.json.encode(value):
                assert msgspec.json.decode(json_text.to_json(value)) == value
