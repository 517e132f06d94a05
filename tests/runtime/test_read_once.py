"""Values whose classes change what they are given: what is kept or written comes back as it was, or is refused."""

from dataclasses import dataclass

import attrs
import msgspec
import pydantic
import pytest

from runtime.model.errors import OperatorFailure
from samza_dsl import App, Json, MessagePack, dead_letter, testing


@dataclass
class Doubled:
    """A dataclass that doubles what it is given."""

    eur: float

    def __post_init__(self):
        self.eur *= 2


class DoubledStruct(msgspec.Struct):
    """A Struct that doubles what it is given."""

    eur: float

    def __post_init__(self):
        self.eur *= 2


@attrs.define
class DoubledAttrs:
    """A class of attrs that doubles what it is given."""

    eur: float

    def __attrs_post_init__(self):
        self.eur *= 2


class DoubledModel(pydantic.BaseModel):
    """A model that doubles what it is given."""

    eur: float

    @pydantic.field_validator("eur")
    @classmethod
    def double(cls, eur: float) -> float:
        return eur * 2


@attrs.define
class Hidden:
    """A class of attrs with a field that msgspec does not write."""

    eur: float
    _seen: int = 7


class Trimmed(pydantic.BaseModel):
    """A model that leaves alone what it has made, with what JSON has not, or has otherwise."""

    name: str
    tags: set[str] = {"a", "b"}
    held: object = (1, 2)
    secret: str = pydantic.Field("none", exclude=True)
    _seen: int = pydantic.PrivateAttr(3)

    @pydantic.field_validator("name")
    @classmethod
    def trim(cls, name: str) -> str:
        return name.strip()


@dataclass
class Summed:
    """A record that computes a field of the others."""

    a: int
    b: int
    total: int = 0

    def __post_init__(self):
        self.total = self.a + self.b


KINDS = [Doubled, DoubledStruct, DoubledAttrs, DoubledModel]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow", "avro"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_refuses_what_would_be_read_as_another_value(tmp_path, kind, suffix):
    app = App("writes")
    app.input("in").map(lambda _: kind(eur=1.0)).send_to(app.output("out", value=kind))
    with pytest.raises(OperatorFailure, match=r"eur 2\.0 comes back as 4\.0, as the validators or the __post_init__"):
        app.run(data=tmp_path / "data", bind={"in": [1], "out": tmp_path / f"out.{suffix}"})


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_the_value_where_no_type_is_declared_and_is_read_once(tmp_path, kind, suffix):
    app, found = App("writes"), list[object]()
    app.input("in").map(lambda _: kind(eur=1.0)).send_to(app.output("out"))
    app.run(data=tmp_path / "data", bind={"in": [1], "out": tmp_path / f"out.{suffix}"})
    for declared in (None, kind):
        reads = App("reads")
        reads.input("out", value=declared).filter(found.append).send_to(reads.output("none"))
        reads.run(data=tmp_path / f"read-{declared}", bind={"out": tmp_path / f"out.{suffix}"})
    plain, typed = found
    assert isinstance(plain, dict) and float(plain["eur"]) == 2.0
    assert typed == kind(eur=2.0)  # made of 2.0, once


@pytest.mark.parametrize("serde", [MessagePack, Json, None])
@pytest.mark.parametrize("kind", [*KINDS, Hidden])
def test_state_comes_back_or_is_refused_where_it_is_made(tmp_path, kind, serde):
    first = Hidden(1.0, 2) if kind is Hidden else kind(eur=1.0)
    app, found = App("keeps"), list[object]()
    stream = app.input("in").partition_by(lambda _: 1)
    kept = stream.scan(lambda held, _: held or first, state=kind if serde is None else serde(kind))
    kept.filter(found.append).send_to(app.output("none"))
    if serde is not None:
        with pytest.raises(OperatorFailure, match="comes back as"):
            app.run(data=tmp_path, bind={"in": [1]})
        return
    for last in (1, 2, 3):
        app.run(data=tmp_path, bind={"in": [*range(last)]})
    assert found == [first] * 3


@pytest.mark.parametrize("kind", [*KINDS, Hidden])
def test_a_stream_between_stages_refuses_what_a_serde_would_bring_back_otherwise(kind):
    first = Hidden(1.0, 2) if kind is Hidden else kind(eur=1.0)
    app = App("hands-on")
    stream = app.input("in").map(lambda _: first)
    stream.partition_by(lambda _: 1, value=MessagePack(kind), on_error=dead_letter("bad")).send_to(app.output("out"))
    found = testing.run(app, {"in": [1]})
    assert found["out"] == [] and len(found["bad"]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_dict_that_is_given_as_such_a_record_is_refused(kind):
    app = App("writes")
    app.input("in").map(lambda _: {"eur": 1.0}).send_to(app.output("out", value=kind))
    with pytest.raises(OperatorFailure, match=r"eur': 1\.0} comes back as"):
        testing.run(app, {"in": [1]})


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize(
    "value", [Trimmed(name=" A ", secret="x"), Summed(1, 2)], ids=lambda value: type(value).__name__
)
def test_classes_that_leave_alone_what_they_have_made_are_written(tmp_path, value, suffix):
    app, found = App("writes"), list[object]()
    app.input("in").map(lambda _: value).send_to(app.output("out", value=type(value)))
    app.run(data=tmp_path / "data", bind={"in": [1], "out": tmp_path / f"out.{suffix}"})
    reads = App("reads")
    reads.input("out", value=type(value)).filter(found.append).send_to(reads.output("none"))
    reads.run(data=tmp_path / "read", bind={"out": tmp_path / f"out.{suffix}"})
    assert [getattr(one, "name", None) or one for one in found] == [getattr(value, "name", None) or value]
