"""A model whose fields are read by other names than they are written by comes back as it was, or is refused."""

from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from runtime.encoding.formats.avro import Avro
from runtime.encoding.serdes import Json, MessagePack
from runtime.encoding.storable import read_back
from runtime.model.errors import OperatorFailure, SerdeError
from samza_dsl import App, produce
from tests.scale import examples

NAMES = ("a", "b", "c", "d")
names = st.sampled_from(NAMES)
read_by = st.none() | names | st.lists(names, min_size=1, max_size=2).map(lambda all: pydantic.AliasChoices(*all))
paths = st.builds(pydantic.AliasPath, names) | st.builds(pydantic.AliasPath, names, st.just(0))
configs = st.sampled_from([{}, {"populate_by_name": True}, {"validate_by_name": True, "validate_by_alias": False}])


@st.composite
def models(draw):
    """Draw a class of models of one or two fields, with and without defaults and names of their own."""
    fields: dict[str, Any] = {}
    for name in NAMES[: draw(st.integers(1, 2))]:
        said = {"validation_alias": draw(read_by | paths), "serialization_alias": draw(st.none() | names)}
        default = draw(st.sampled_from([..., 7]))
        fields[name] = (int, pydantic.Field(default, **{key: one for key, one in said.items() if one is not None}))
    return pydantic.create_model("Drawn", __config__=pydantic.ConfigDict(**draw(configs)), **fields)


def wrapped(kind, how, value):
    """Return a type with the model within, and a value of it."""
    if how == "list":
        return list[kind], [value]
    if how == "struct":
        record = type("Record", (Struct,), {"__annotations__": {"one": kind}})
        return record, record(value)
    if how == "model":
        outer = pydantic.create_model("Outer", one=(kind, ...))
        return outer, outer.model_construct(one=value)
    return kind, value


@pytest.mark.parametrize("of", [Json, MessagePack, Avro])
@settings(max_examples=examples(200, 5_000))
@given(models(), st.sampled_from(["", "list", "struct", "model"]), st.integers(1, 9))
def test_a_model_is_read_as_it_was_written_or_refused(of, model, how, number):
    value = model.model_construct()
    value.__dict__.update({name: number + place for place, name in enumerate(model.model_fields)})
    kind, value = wrapped(model, how, value)
    with suppress(SerdeError):  # as where two fields are written by one name
        serde = of(kind)
        data = read_back(serde).encode(value)
        # Each field as it was, whichever of them were given to the constructor.
        assert plainly(serde.decode(data)) == plainly(value)


def plainly(value):
    one = value[0] if isinstance(value, list) else getattr(value, "one", value)
    return dict(one.__dict__)


class Renamed(pydantic.BaseModel):
    n: int = pydantic.Field(7, validation_alias="num")


class Both(pydantic.BaseModel):
    n: int = pydantic.Field(7, validation_alias=pydantic.AliasChoices("num", "n"))


PLACES = ["", "out.jsonl", "out.csv", "out.parquet", "out.avro", "out.arrow"]


@pytest.mark.parametrize("place", PLACES)
def test_no_output_holds_a_default_in_the_place_of_a_value(place, tmp_path):
    assert written(tmp_path / "both", place, Both) == [3, 4]
    with pytest.raises(
        OperatorFailure, match=r"Renamed\.n 3 comes back as 7, as .*Renamed\.n would .*validation_alias=AliasChoices"
    ):
        written(tmp_path / "renamed", place, Renamed)


def written(data: Path, place, make, kind=None):
    """Return what an application reads that another one has written."""
    kind = kind or make
    data.mkdir()
    app = App("writes")
    rows = app.input("numbers", value=int).map(lambda n: make(num=n))
    rows.send_to(app.output("rows", value=kind))
    produce("numbers", [3, 4], data=data)
    bind = {"rows": data / place} if place else {}
    app.run(data, until_now=True, bind=bind)
    app = App("reads")
    app.input("rows", value=kind).map(lambda row: row.n).send_to(app.output("found", value=int))
    return app.run(data, until_now=True, bind=bind).received("found")


def test_what_is_produced_is_refused_too():
    with TemporaryDirectory() as data, pytest.raises(Exception, match="comes back as 7"):
        produce("rows", [Renamed(num=3)], value=Renamed, data=data)


def test_between_stages_and_in_state_fields_go_by_their_own_names(tmp_path):
    app = App("keeps")
    rows = app.input("numbers", value=int).map(lambda n: Renamed(num=n))
    kept = rows.partition_by(lambda row: row.n, key_type=int, value=Renamed).scan(lambda _, row: row, op_id="last")
    kept.map(lambda row: row.n).send_to(app.output("found", value=int))
    produce("numbers", [3, 4], data=tmp_path)
    assert sorted(app.run(tmp_path, until_now=True).received("found")) == [3, 4]


@st.composite
def attrs_values(draw):
    """Draw a value of a class of attrs of which some fields begin with an underscore."""
    hidden = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    fields = {f"{'_' * one}f{place}": attrs.field(default=7, type=int) for place, one in enumerate(hidden)}
    kind = attrs.make_class("Drawn", fields, frozen=draw(st.booleans()), slots=draw(st.booleans()))
    return kind, kind(*draw(st.lists(st.sampled_from([3, 7]), min_size=len(hidden), max_size=len(hidden))))


@settings(max_examples=examples(200, 5_000))
@given(drawn=attrs_values(), is_in_list=st.booleans(), serde=st.sampled_from([Json, MessagePack]))
def test_no_field_of_a_class_of_attrs_is_lost_in_silence(drawn, is_in_list, serde):
    kind, value = drawn
    declared, value = (list[kind], [value]) if is_in_list else (kind, value)
    is_lost = any(field.name.startswith("_") and getattr(drawn[1], field.name) != 7 for field in attrs.fields(kind))
    by = read_back(serde(declared))
    if is_lost:
        with pytest.raises(SerdeError, match=r"_f\d 3 comes back as 7"):
            by.encode(value)
    else:
        assert by.decode(by.encode(value)) == value


@attrs.define
class Hidden:
    n: int
    _of: int = 7


@pytest.mark.parametrize("place", PLACES)
def test_no_output_leaves_out_a_field_with_an_underscore_in_silence(place, tmp_path):
    # A row of CSV has all fields; msgspec, by which the others are written, leaves such a field out.
    lost = pytest.raises(OperatorFailure, match=r"Hidden\._of 3 comes back as 7, as .*begins with an underscore")
    with nullcontext() if place == "out.csv" else lost:
        assert written(tmp_path / "hidden", place, lambda num: Hidden(num, num), Hidden) == [3, 4]
    assert written(tmp_path / "default", place, lambda num: Hidden(num, 7), Hidden) == [3, 4]
