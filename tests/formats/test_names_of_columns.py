"""Columns and fields whose names are almost those of a type: an error, or a word, and never defaults in silence."""

import dataclasses
import json
import logging
import re
import sqlite3
import string
from typing import TypedDict

import fastavro
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from pydantic.alias_generators import to_camel

from runtime.encoding.formats.rows import misnamed, wrong_names
from runtime.model.errors import SamzaError
from samza_dsl import App, Json, remote_table
from samza_dsl.connectors import table_rows

FIELDS = {"order_id": 7, "cents": 5, "note": "x"}


class Struct(msgspec.Struct):
    order_id: int = 0
    cents: int = 0
    note: str = ""


@dataclasses.dataclass
class Data:
    order_id: int = 0
    cents: int = 0
    note: str = ""


class Model(pydantic.BaseModel):
    order_id: int = 0
    cents: int = 0
    note: str = ""


class Partial(TypedDict, total=False):
    order_id: int
    cents: int
    note: str


KINDS = (Struct, Data, Model, Partial)


def csv_of(row, path):
    (path / "in.csv").write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n", encoding="utf-8")
    return path / "in.csv"


def parquet_of(row, path):
    pq.write_table(pa.Table.from_pylist([row]), path / "in.parquet")
    return path / "in.parquet"


def arrow_of(row, path):
    table = pa.Table.from_pylist([row])
    with pa.ipc.new_file(path / "in.arrow", table.schema) as file:
        file.write_table(table)
    return path / "in.arrow"


def avro_of(row, path):
    fields = [{"name": name, "type": "long" if isinstance(value, int) else "string"} for name, value in row.items()]
    with (path / "in.avro").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, [row])
    return path / "in.avro"


def frame_of(row, path):
    return pa.Table.from_pylist([row])


def pandas_of(row, path):
    return pd.DataFrame([row])


def polars_of(row, path):
    return pl.DataFrame([row])


def lines_of(row, path):
    (path / "in.jsonl").write_text(json.dumps(row) + "\n")
    return path / "in.jsonl"


COLUMNS = (csv_of, parquet_of, arrow_of, avro_of, frame_of, pandas_of, polars_of)
OTHERS = [
    ("order_id", "OrderId"),
    ("order_id", "orderid"),
    ("cents", "Cents"),
    ("note", "NOTE"),
]
SIGNS = [("order_id", "order-id"), ("order_id", "Order ID"), ("cents", "cents "), ("cents", "\ufeffcents")]


def renamed(old, new):
    return {new if name == old else name: value for name, value in FIELDS.items()}


def read(kind, place, data):
    app, found = App("reading"), []
    app.input("in", value=kind).sink(found.append)
    app.run(data, bind={"in": place})
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("write", "field", "column"),
    [(write, *names) for write in COLUMNS for names in (OTHERS if write is avro_of else OTHERS + SIGNS)],
)
def test_a_column_that_is_named_almost_as_a_field_is_an_error(kind, write, field, column, tmp_path):
    place = write(renamed(field, column), tmp_path)
    with pytest.raises(SamzaError, match=f"{re.escape(repr(column))}.*{field}"):
        read(kind, place, tmp_path / "data")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", COLUMNS)
def test_columns_that_are_all_others_are_an_error(kind, write, tmp_path):
    place = write({"price": 7, "carrier": "AA"}, tmp_path)
    with pytest.raises(SamzaError, match=r"has price, carrier, and nothing of cents, note, order_id"):
        read(kind, place, tmp_path / "data")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [*COLUMNS, lines_of])
@pytest.mark.parametrize("row", [FIELDS, {"cents": 5}, {"cents": 5, "carrier": "AA"}, {**FIELDS, "Cents": 9}])
def test_fields_that_are_not_there_have_their_defaults(kind, write, row, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "samza_dsl")
    (found,) = read(kind, write(row, tmp_path), tmp_path / "data")
    assert (found["cents"] if kind is Partial else found.cents) == 5
    assert "is read" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("field", "column"), [*OTHERS, *SIGNS])
@pytest.mark.parametrize("write", [lines_of, lambda row, path: [row]], ids=["lines", "list"])
def test_records_of_other_names_are_told_once(kind, field, column, write, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "samza_dsl")
    row = renamed(field, column)
    read(Json(kind), write(row, tmp_path), tmp_path / "data")
    told = [one.getMessage() for one in caplog.records if "is read" in one.getMessage()]
    assert [f"has {column!r} where {field!r} is read" in one for one in told] == [True]


class Line(msgspec.Struct):
    cents: int = 0


class Order(msgspec.Struct):
    id: int = 0
    lines: list[Line] = []
    first: Line | None = None
    shops: dict[str, list[Line]] = {}


@pytest.mark.parametrize("write", [parquet_of, arrow_of, frame_of])
@pytest.mark.parametrize(
    "row",
    [{"id": 1, "lines": [{"Cents": 1}]}, {"id": 1, "first": {"CENTS": 1}}, {"id": 1, "shops": {"a": [{"Cents": 1}]}}],
)
def test_nested_names_count_as_well(write, row, tmp_path):
    with pytest.raises(SamzaError, match=r"'(Cents|CENTS)' where '(lines\[\]|first|shops.a\[\])\.cents' is read"):
        read(Order, write(row, tmp_path), tmp_path / "data")


def test_names_within_maps_count_as_well(tmp_path):
    kind = pa.map_(pa.string(), pa.list_(pa.struct([("Cents", pa.int64())])))
    pq.write_table(pa.table({"shops": pa.array([[("a", [{"Cents": 1}])]], kind)}), tmp_path / "orders.parquet")
    with pytest.raises(SamzaError, match=r"'Cents' where 'shops\.{}\[\]\.cents' is read"):
        read(Order, tmp_path / "orders.parquet", tmp_path / "data")


class ByAlias(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    order_id: int = pydantic.Field(0, alias="orderId")
    cents: int = pydantic.Field(0, validation_alias=pydantic.AliasChoices("amount", "Cents"))


class Lowering(pydantic.BaseModel):
    cents: int = 0

    @pydantic.model_validator(mode="before")
    @classmethod
    def lower(cls, row):
        return {name.lower(): value for name, value in row.items()}


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (ByAlias, {"order_id": 7, "amount": 5}),
        (ByAlias, {"orderId": 7, "Cents": 5}),
        (ByAlias, {"orderId": 7, "cents": 5}),
        (Lowering, {"CENTS": 5}),
    ],
)
def test_all_names_by_which_a_model_reads_a_field_do(kind, row, tmp_path):
    (found,) = read(kind, csv_of(row, tmp_path), tmp_path / "data")
    assert found.cents == 5


def test_a_model_that_reads_by_its_alias_alone_is_told(tmp_path):
    kind = pydantic.create_model("Strict", order_id=(int, pydantic.Field(0, alias="orderId")), cents=(int, 0))
    with pytest.raises(SamzaError, match="'order_id' where 'orderId' is read"):
        read(kind, csv_of({"order_id": 7, "cents": 5}, tmp_path), tmp_path / "data")


NAMES = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)


@given(st.lists(NAMES, min_size=1, max_size=5, unique_by=str.lower), st.data())
def test_a_law_of_names(names, data):
    columns = {}
    for name in names:
        way = data.draw(st.sampled_from(["same", "case", "sign", "gone"]))
        written = {
            "same": name,
            "case": name.swapcase(),
            "sign": data.draw(st.sampled_from(" -_.\ufeff")).join(name) + data.draw(st.sampled_from(["", " ", "_"])),
            "gone": "",
        }[way]
        columns[name] = written
    kind = msgspec.defstruct(
        "Kind",
        [(f"f{place}", int, 0) for place in range(len(names))],
        rename={f"f{place}": name for place, name in enumerate(names)},
    )
    there = {written: {} for written in columns.values() if written}
    expected = {(name, written) for name, written in columns.items() if written and written != name}
    assert {(one.field, one.column) for one in misnamed(inspect.type_info(kind), there)} == expected
    if expected:
        assert wrong_names(kind, there)
    elif there:
        assert wrong_names(kind, there) == ""


@pytest.fixture
def shop(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute('CREATE TABLE orders (order_id INTEGER PRIMARY KEY, "Cents" INTEGER, note TEXT)')
        database.execute("INSERT INTO orders VALUES (7, 5, 'x')")
    return f"sqlite:///{tmp_path}/shop.db?table=orders"


def test_the_columns_of_rows_that_are_looked_up_count_as_well(shop, tmp_path):
    orders = remote_table(table_rows(f"{shop}&key=order_id", Struct))
    app = App("looking")
    asked = app.input("in", value=int).join(orders, lambda n, order: order.cents, on=lambda n: n)
    asked.send_to(app.output("out", value=int))
    with pytest.raises(SamzaError, match="table orders, has 'Cents' where 'cents' is read"):
        app.run(tmp_path / "data", bind={"in": [7]})


def test_the_columns_of_a_table_that_is_read_are_told(shop, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "samza_dsl")
    app = App("reading")
    app.input("in", value=Struct).send_to(app.output("out"))
    app.run(tmp_path / "data", bind={"in": f"{shop}&by=order_id"}, until_now=True)
    assert "the first record of 'in' has 'Cents' where 'cents' is read" in caplog.text


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel)
    order_id: int = 0


def test_a_generator_of_aliases_says_the_names(tmp_path):
    (found,) = read(Camel, csv_of({"orderId": 7}, tmp_path), tmp_path / "data")
    assert found.order_id == 7
    with pytest.raises(SamzaError, match="'order_id' where 'orderId' is read"):
        read(Camel, csv_of({"order_id": 7}, tmp_path), tmp_path / "other")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"Order_ID": pa.int64(), "cents": pa.int64()}, "has 'Order_ID' where 'order_id' is read"),
        ({"price": pa.int64(), "_offset": pa.int64()}, "has price, and nothing of cents"),
        ({"cents": pa.int64(), "price": pa.int64()}, None),
    ],
)
def test_the_columns_of_a_frame_of_spark_count_as_well(kind, columns, told):
    pytest.importorskip("pyspark")
    from runtime.spark.columns import FrameColumns

    stream = App("reading").input("in", value=kind)
    frame = FrameColumns("in", columns, [stream.spec], ())
    if told is None:
        frame.check()
    else:
        with pytest.raises(SamzaError, match=told):
            frame.check()
