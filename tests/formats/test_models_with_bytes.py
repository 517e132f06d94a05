"""Models of pydantic with fields of bytes, which JSON has none of: they come back, or are refused with the way out."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from runtime.model.errors import SerdeError
from samza_dsl import App, Change, Json, MessagePack, SamzaError
from samza_dsl.formats import Avro, Debezium, JsonSchema
from tests.scale import examples


class Inner(BaseModel):
    raw: bytes = b""


class Plain(BaseModel):
    id: int
    raw: bytes = b""
    some: list[bytes] = []
    inner: Inner | None = None


class Spelled(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    id: int
    raw: bytes = b""


class Around(msgspec.Struct, frozen=True):
    id: int
    of: Plain
    raw: bytes = b"\xff"


TEXT = st.text(max_size=5).map(str.encode)
PLAIN = st.builds(
    Plain, id=st.integers(0, 9), raw=TEXT, some=st.lists(TEXT, max_size=2), inner=st.none() | st.builds(Inner, raw=TEXT)
)
VALUES = PLAIN | st.builds(Spelled, id=st.integers(0, 9), raw=st.binary(max_size=5))
ALL = VALUES | st.builds(Around, id=st.integers(0, 9), of=PLAIN, raw=st.binary(max_size=5))


@given(ALL)
@settings(max_examples=examples(100, 3_000), deadline=None)
def test_values_come_back_in_each_format(value: Any) -> None:
    kind = type(value)
    for serde in (Json(kind), MessagePack(kind), JsonSchema(kind), Avro(kind)):
        assert serde.decode(serde.encode(value)) == value, serde
    changes = Debezium(kind, key="id")
    assert changes.decode(changes.encode(Change(value.id, None, value))) == Change(value.id, None, value)


@given(VALUES)
@settings(max_examples=examples(50, 1_000), deadline=None)
def test_json_is_what_pydantic_reads_and_writes(value: Any) -> None:
    kind = type(value)
    assert kind.model_validate_json(Json(kind).encode(value)) == value
    assert Json(kind).decode(value.model_dump_json().encode()) == value


def test_bytes_that_are_no_text_are_refused_with_the_way_out() -> None:
    for serde in (Json(Plain), JsonSchema(Plain)):
        with pytest.raises(SerdeError, match="val_json_bytes='base64'"):
            serde.encode(Plain(id=1, raw=b"\xff"))
    assert MessagePack(Plain).decode(MessagePack(Plain).encode(Plain(id=1, raw=b"\xff"))) == Plain(id=1, raw=b"\xff")


def _through(kind: Any, given: Any, path: Path, **bind: Any) -> list[Any]:
    app = App("models")
    app.input("in", value=kind).partition_by(lambda one: one.id).send_to(app.output("out", value=kind))
    run = app.run(path, bind={"in": given, **bind}, until_now=True)
    return [] if bind else run.received("out")


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv", "avro", "parquet", "arrow"])
@pytest.mark.parametrize(
    "value",
    [
        Plain(id=1, raw=b"abc", some=[b"d"], inner=Inner(raw=b"e")),
        Spelled(id=1, raw=b"\xff\xfe"),
        Around(1, Plain(id=2, raw=b"abc", inner=Inner(raw=b"e"))),
    ],
)
def test_files_have_them_and_are_read(value: Any, suffix: str, tmp_path: Path) -> None:
    kind, file = type(value), str(tmp_path / f"out.{suffix}")
    _through(kind, [value], tmp_path / "one", out=file)
    if suffix in ("parquet", "arrow") and kind is not Spelled:
        # Their bytes are no text, and a model that takes text for bytes would have base64.
        with pytest.raises(SamzaError, match=r"has a column of bytes, and the model .* val_json_bytes='base64'"):
            _through(kind, file, tmp_path / "two")
    else:
        assert _through(kind, file, tmp_path / "two") == [value]


def test_a_frame_is_read_as_its_files_are(tmp_path: Path) -> None:
    frame = pa.table({"id": [1], "raw": [b"\xff"]})
    assert _through(Spelled, frame, tmp_path / "one") == [Spelled(id=1, raw=b"\xff")]
    with pytest.raises(SamzaError, match="val_json_bytes='base64'"):
        _through(Plain, frame, tmp_path / "two")
    text = pa.table({"id": [1], "raw": ["abc"]})
    assert _through(Plain, text, tmp_path / "three") == [Plain(id=1, raw=b"abc")]
    spelled = pa.table({"id": [1], "raw": ["YWJj"]})
    assert _through(Spelled, spelled, tmp_path / "four") == [Spelled(id=1, raw=b"abc")]
