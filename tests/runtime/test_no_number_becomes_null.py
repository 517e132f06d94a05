"""NaN and infinities, which JSON has not: what is written as JSON refuses them, whatever type is declared or none."""

import csv
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from pyarrow import parquet

from operators.core.policies import dead_letter, fail, skip
from runtime.encoding.json_text import to_json_lines
from runtime.encoding.serdes import Json, Natural
from runtime.model.errors import SamzaError, SerdeError
from runtime.systems.files.parquet import LaxJson
from samza_dsl import App, String, testing
from tests.runtime.written_log import Log

ROOT = Path(__file__).parents[2]
NUMBERS = [1.5, math.nan, 2.5, math.inf, -math.inf, None, 3.5]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")]


class Loose(Struct):
    """A record, a field of which may be anything."""

    at: str
    c: Any


@dataclass
class Nested:
    """A record with numbers inside."""

    at: str
    c: list[float | None]


def shapes():
    """Return each way to say no type of the numbers in a value, and the value that has a number."""
    return {
        "nothing said": (None, lambda c: {"at": "here", "c": c}),
        "a bare number": (None, lambda c: c),
        "dict": (dict, lambda c: {"at": "here", "c": [{"d": c}]}),
        "list": (list, lambda c: ["here", c]),
        "Json()": (Json(), lambda c: ("here", c)),
        "Json(dict)": (Json(dict), lambda c: {"at": c}),
        "a field of Any": (Loose, lambda c: Loose("here", {"deep": [c]})),
        "a Struct, nothing said": (None, lambda c: Loose("here", c)),
        "a dataclass, nothing said": (None, lambda c: Nested("here", [c])),
        "NumPy's": (None, lambda c: {"c": None if c is None else np.float64(c)}),
    }


def written(tmp_path, shape, on_error, bound):
    declared, value = shapes()[shape]
    app = App("writing")
    numbers = app.input("in", value=int).map(lambda row: value(NUMBERS[row]))
    numbers.send_to(app.output("out", value=declared), on_error=on_error)
    bind = {"in": [*range(len(NUMBERS))]} | ({"out": tmp_path / "out.jsonl"} if bound else {})
    app.run(tmp_path / "data", bind=bind)
    if bound:
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    return [json.loads(record.value or b"null") for record in Log(tmp_path / "data").records("out")]


@pytest.mark.parametrize("bound", [False, True], ids=["stream", "file"])
@pytest.mark.parametrize("shape", shapes())
def test_what_has_no_json_is_left_to_the_policy_whatever_is_declared(tmp_path, shape, bound):
    _, value = shapes()[shape]
    finite = [json.loads(Json().encode(value(c))) for c in NUMBERS if c is None or math.isfinite(c)]
    assert written(tmp_path, shape, skip, bound) == finite
    assert len(finite) == 4


@pytest.mark.parametrize("shape", shapes())
def test_what_has_no_json_ends_the_run_where_no_policy_lets_it_pass(tmp_path, shape):
    with pytest.raises(SamzaError, match=r"send_to(?s:.*)test_no_number_becomes_null(?s:.*)nan has no JSON"):
        written(tmp_path, shape, fail, bound=True)


def test_a_dead_letter_has_the_number_as_it_is(tmp_path):
    app = App("writing")
    numbers = app.input("in", value=int).map(lambda row: {"c": NUMBERS[row]})
    numbers.send_to(app.output("out"), on_error=dead_letter("letters"))
    app.run(tmp_path, bind={"in": [0, 1]})
    assert [record.value for record in Log(tmp_path).records("out")] == [b'{"c":1.5}']
    assert [record.value for record in Log(tmp_path).records("letters")] == [b"1"]


def test_a_key_that_has_no_json_is_no_key():
    with pytest.raises(SerdeError, match="has no JSON"):
        Natural().encode(math.nan)
    with pytest.raises(SerdeError, match="has no JSON"):
        Natural().encode((1, math.inf))
    assert Natural().encode((1, None)) == b"[1,null]"


def test_cells_of_csv_that_are_json_have_every_number_or_leave_it_to_the_policy(tmp_path):
    app = App("writing")
    rows = [{"c": NUMBERS[1], "all": [1.0]}, {"c": 1.0, "all": [NUMBERS[1]]}, {"c": None, "all": [None]}]
    app.input("in", value=int).map(rows.__getitem__).send_to(app.output("out"), on_error=skip)
    app.run(tmp_path / "data", bind={"in": [0, 1, 2], "out": tmp_path / "out.csv"})
    with (tmp_path / "out.csv").open() as file:
        assert [*csv.reader(file)] == [["c", "all"], ["nan", "[1.0]"], ["", "[null]"]]


def test_tests_refuse_what_a_run_refuses():
    app = App("writing")
    app.input("in", value=int).map(lambda row: [NUMBERS[row]]).send_to(app.output("out"))
    assert testing.run(app, {"in": [0, 5]})["out"] == [[1.5], [None]]
    with pytest.raises(SamzaError, match="nan has no JSON"):
        testing.run(app, {"in": [1]})


values = st.recursive(
    st.none() | st.integers() | st.text() | st.floats() | st.sampled_from(["null", "nan", *NOT_FINITE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def is_finite(value):
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    return not isinstance(value, float | np.floating) or bool(np.isfinite(value))


@given(st.lists(values, min_size=1, max_size=4))
def test_json_is_of_just_the_values_with_finite_numbers(some):
    for value in some:
        try:
            assert is_finite(value) == (Json().encode(value) is not None)
        except SerdeError:
            assert not is_finite(value)
    try:
        assert to_json_lines(some) == b"".join(Json().encode(value) + b"\n" for value in some)
        assert all(map(is_finite, some))
    except SerdeError:
        assert not all(map(is_finite, some))


def test_no_file_encodes_json_beside_the_one_function_that_looks_for_such_numbers():
    """What is of users goes through `to_json`; what is listed here writes what is ours, or no JSON."""
    ours = {
        *(
            "samza_dsl/application/container.py",
            "samza_dsl/application/replica.py",
            "samza_dsl/cli/job.py",
            "samza_dsl/cli/kafka.py",
            "samza_dsl/settings/logs.py",
            "samza_dsl/view/readable.py",
            "planner/model/plan.py",
        ),
        *(
            "runtime/queries/stored_entries.py",
            "runtime/opening/rescaling.py",
            "runtime/opening/stored_state.py",
            "runtime/job/parameters.py",
            "runtime/job/key_kinds.py",
            "runtime/reprocessing/handover.py",
            "runtime/containers/protocol.py",
            "runtime/opening/opening.py",
            "runtime/job/job_model.py",
        ),
        *(
            "runtime/opening/former_inputs.py",
            "runtime/systems/files/archive.py",
            "runtime/systems/kafka/broker/broker.py",
            "runtime/systems/kafka/state/ledger.py",
            "runtime/systems/redis/sinks.py",
        ),
        *(
            "runtime/units/publication/manifest.py",
            "runtime/reprocessing/fork.py",
            "runtime/units/shipping.py",
            "runtime/systems/files/jsonl_archive.py",
        ),
        "runtime/encoding/storable.py",  # compares
        "runtime/encoding/value_types.py",  # reads
        "runtime/systems/http/websocket.py",  # in an error's words
        "runtime/systems/files/csv_files.py",  # of values that were looked at where they were taken
        "runtime/systems/files/parquet.py",  # reads, with the numbers marked
        "runtime/encoding/json_text.py",
    }
    folders = ["operators", "planner", "runtime", "samza_dsl"]
    encode = re.compile(r"json\.(encode|Encoder|dumps?)\b")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in files if encode.search(path.read_text())} == ours


@pytest.mark.parametrize("declared", [None, dict, dict[str, Any], Loose], ids=repr)
def test_rows_of_parquet_have_their_numbers_whatever_is_declared(tmp_path, declared):
    rows = [
        {"at": "nan", "c": math.nan},
        {"at": "\u0001\\u006ean", "c": 1.0},
        {"at": '"\\u006ean"', "c": -math.inf},
        {"at": "inf", "c": math.inf},
        {"at": "-inf", "c": None},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    back: list[Any] = []
    app = App("reading")
    app.input("in", value=declared).sink(back.append)
    app.run(tmp_path / "data", bind={"in": tmp_path / "in.parquet"})
    expected = [Loose(**row) if declared is Loose else row for row in rows]
    assert repr(back) == repr(expected)


def test_nested_rows_of_parquet_have_their_numbers_and_text_stays_text(tmp_path):
    rows = [{"all": [{"c": math.nan, "t": "nan"}]}, {"all": [{"c": 1.0, "t": "inf"}]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    back: list[Any] = []
    app = App("reading")
    app.input("in").sink(back.append)
    app.run(tmp_path / "one", bind={"in": tmp_path / "in.parquet"})
    assert repr(back) == repr(rows)
    text: list[str] = []
    app = App("reading")
    app.input("in", value=String()).sink(text.append)
    app.run(tmp_path / "two", bind={"in": tmp_path / "in.parquet"})
    assert [json.loads(row)["all"][0]["c"] for row in text] == ["nan", 1.0]  # any reader of JSON takes it for text


@given(values)
def test_lax_json_reads_what_json_wrote(value):
    if is_finite(value):
        assert LaxJson().decode(Json().encode(value)) == Json().decode(Json().encode(value))
