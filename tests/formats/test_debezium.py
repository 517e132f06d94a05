"""Debezium: envelopes as its connectors write them become changes of rows, and changes become envelopes."""

import dataclasses
import datetime as dt
import io
import json
import math
from base64 import b64encode
from decimal import Decimal
from typing import Annotated, Any

import fastavro
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats.registry import HEAD, RegisteredSchema
from runtime.encoding.value_types import json_told
from runtime.model.errors import SerdeError
from samza_dsl import App, Change, produce
from samza_dsl.formats import Debezium, SchemaRegistry, digits
from tests.formats.test_json_schema import is_finite
from tests.formats.typed_values import is_same, records
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


class Order(msgspec.Struct, frozen=True):
    id: int
    cents: int = 0


class Paid(msgspec.Struct, frozen=True):
    id: int
    day: dt.date
    at: dt.datetime
    price: Annotated[Decimal, digits(9, 2)]
    seen: dt.datetime | None


@given(st.data(), st.booleans())
@settings(max_examples=examples(200, 4_000), suppress_health_check=SLOW)
def test_a_change_of_any_row_comes_back(data, in_avro):
    kind, values = data.draw(records(depth=2))
    old, new = data.draw(st.tuples(st.none() | values, st.none() | values).filter(lambda pair: pair != (None, None)))
    registry = SchemaRegistry("memory://debezium") if in_avro else None
    try:
        serde = Debezium(kind, key=lambda row: 7, registry=registry, subject=kind.__name__)
    except PlanError:
        return
    if not in_avro and not is_finite([old, new]):
        with pytest.raises(SerdeError):
            serde.encode(Change(7, old, new))
        return
    back = serde.decode(serde.encode(Change(7, old, new)))
    assert back.key == 7 and is_same(old, back.old) and is_same(new, back.new)
    assert is_same(new, Debezium(kind, registry=registry, changes=False).decode(serde.encode(Change(7, old, new))))


ROW = [
    {"type": "int64", "field": "id"},
    {"type": "int32", "name": "io.debezium.time.Date", "field": "day"},
    {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "at"},
    {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}, "field": "price"},
    {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "field": "seen", "optional": True},
]
EXPECTED = Paid(7, dt.date(2026, 1, 2), dt.datetime(1970, 1, 1, 0, 0, 1, 5), Decimal("-1.25"), None)
RAW = {"id": 7, "day": 20455, "at": 1_000_005, "price": b64encode(b"\x83").decode(), "seen": None}


def test_times_and_decimals_are_told_by_the_schema_beside_them():
    schema = {
        "type": "struct",
        "fields": [
            {"type": "struct", "fields": ROW, "field": "before", "optional": True},
            {"type": "struct", "fields": ROW, "field": "after", "optional": True},
            {"type": "string", "field": "op"},
        ],
    }
    payload = {"before": None, "after": RAW, "source": {"db": "shop"}, "op": "r", "ts_ms": 3, "transaction": None}
    serde = Debezium(Paid, key=("id", "day"))
    wrapped = json.dumps({"schema": schema, "payload": payload}).encode()
    assert serde.decode(wrapped) == serde.decode(wrapped) == Change((7, EXPECTED.day), None, EXPECTED)
    with pytest.raises(SerdeError, match=r"schemas\.enable=true"):
        serde.decode(json.dumps(payload).encode())


def test_times_are_told_by_the_schemas_of_avro():
    row = {
        "type": "record",
        "name": "Value",
        "namespace": "shop.public.paid",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "seen", "type": ["null", {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}]},
        ],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.paid",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {
                "name": "source",
                "type": {"type": "record", "name": "Source", "fields": [{"name": "db", "type": "string"}]},
            },
            {"name": "op", "type": "string"},
        ],
    }
    registry = SchemaRegistry("memory://debezium-avro")
    id = registry.id_of("paid-value", RegisteredSchema(json.dumps(envelope)))
    file = io.BytesIO()
    after = {"id": 7, "day": 20455, "at": 1_000_005, "price": Decimal("-1.25"), "seen": "2026-01-01T00:00:00Z"}
    fastavro.schemaless_writer(file, envelope, {"before": after, "after": None, "source": {"db": "x"}, "op": "d"})
    found = Debezium(Paid, key="id", registry=registry).decode(HEAD.pack(0, id) + file.getvalue())
    seen = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert found == Change(7, msgspec.structs.replace(EXPECTED, seen=seen), None)


def test_the_rows_of_a_table_are_what_a_connector_has_written(tmp_path):
    changes = [Change(1, None, Order(1, 5)), Change(2, None, Order(2, 6)), Change(2, Order(2, 6), None)]
    serde = Debezium(Order, key="id")
    produce("orders", changes, value=serde, key=lambda change: change.key, data=tmp_path, end=True)
    produce("payments", [1, 2], value=int, key=lambda id: id, data=tmp_path, end=True)
    app, found = App("following"), []
    orders = app.table("orders", key=int, value=Debezium(Order, changes=False))
    payments = app.input("payments", key=int, value=int)
    payments.join(orders, lambda id, order: order, op_id="joined").sink(found.append)
    app.run(tmp_path)
    assert found == [Order(1, 5)]


def test_a_run_reads_and_writes_envelopes(tmp_path):
    found = []
    app = App("changing")
    orders = app.input("in", value=Debezium(Order, key="id"))
    orders.filter(lambda change: change is not None).sink(found.append)
    put = [Change(1, None, Order(1, 5)), Change(1, Order(1, 5), None)]
    produce("in", put, value=Debezium(Order, key="id"), data=tmp_path, end=True)
    app.run(tmp_path)
    assert found == put


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"op": "t"}', "op 't' is no change"),
        (b'{"op": "c"}', "no row after"),
        (b'{"op": "d"}', "REPLICA IDENTITY"),
        (b"{}", "op None"),
        (b"[1]", "no envelope"),
        (b"\xff", "no envelope"),
        (b'{"schema": {"type": "struct", "fields": [1]}, "payload": {"op": "c"}}', "no envelope"),
        (b'{"payload": 7}', "no envelope"),
    ],
)
def test_what_is_no_change_of_a_row_is_an_error_of_the_record(data, told):
    with pytest.raises(SerdeError, match=told):
        Debezium(Order, key="id").decode(data)


class Note(msgspec.Struct):
    id: int
    text: str | None = None
    data: bytes | None = None
    words: list[str] | None = None


NO_VALUE = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("field", "value"),
    [("text", NO_VALUE), ("data", b64encode(NO_VALUE.encode()).decode()), ("words", [NO_VALUE])],
)
@pytest.mark.parametrize("row", [Note, dict])
@pytest.mark.parametrize("changes", [True, False])
def test_what_stands_for_a_value_is_not_taken_for_it(field, value, row, changes):
    envelope = {"before": None, "after": {"id": 1, field: value}, "op": "u"}
    serde = Debezium(row, key="id", changes=changes)
    for data in (envelope, {"schema": {"type": "struct", "fields": []}, "payload": envelope}):
        with pytest.raises(SerdeError, match=f"does not tell '{field}'.*REPLICA IDENTITY FULL"):
            serde.decode(msgspec.json.encode(data))
    inside = {"before": None, "after": {"id": 1, "text": f"of {NO_VALUE}"}, "op": "u"}
    assert serde.decode(msgspec.json.encode(inside)) is not None


AS_MAP = {NO_VALUE: NO_VALUE}
AS_JSON = json.dumps(AS_MAP, separators=(",", ":"))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, str], AS_MAP),
        (str, AS_JSON),
        (dict[str, str], AS_JSON),
        (Order | None, AS_JSON),
        (list[int], list(NO_VALUE.encode())),
        (str, NO_VALUE.encode().hex()),
    ],
)
def test_what_stands_for_a_value_of_any_type_of_column_is_not_taken_for_it(kind, value):
    row = msgspec.defstruct("Row", [("id", int), ("column", kind)])
    data = json.dumps({"before": None, "after": {"id": 1, "column": value}, "op": "u"}, separators=(",", ":")).encode()
    avro = {dict: {"type": "map", "values": "string"}, str: "string", list: {"type": "array", "items": "int"}}
    serde, [packed] = avro_of(
        row, [{"name": "column", "type": avro[type(value)]}], [(None, {"id": 1, "column": value})], str(kind)[:3]
    )
    for one, envelope in ((Debezium(row, key="id"), data), (serde, packed)):
        with pytest.raises(SerdeError, match=r"does not tell 'column'.*REPLICA IDENTITY FULL"):
            one.decode(envelope)


@given(st.integers(-(2**40), 2**40) | st.integers(0, 86_399_999_999), st.booleans())
@settings(max_examples=examples(100, 2_000))
def test_a_time_beyond_a_day_is_no_time_of_a_day(micros, in_avro):
    """A law on each unit: the time that a database has is read as it is, or refused, and never as that of a day."""
    row, told = msgspec.defstruct("Row", [("id", int), ("clock", dt.time)]), msgspec.defstruct("Row", [("clock", Any)])
    of_a_day = 0 <= micros < 86_400_000_000
    for unit, each in (("", 1_000), ("Micro", 1), ("Nano", 0)):
        number = micros * 1_000 + 999 if unit == "Nano" else micros // each
        exact = micros if unit == "Nano" else number * each
        name, number_kind = f"io.debezium.time.{unit}Time", "int32" if not unit else "int64"
        if in_avro:
            kind = {"type": "long" if unit else "int", "connect.name": name}
            if not unit and number not in range(-(2**31), 2**31):
                continue
            serde, [data] = avro_of(row, [{"name": "clock", "type": kind}], [(None, {"id": 1, "clock": number})], "day")
        else:
            fields = [{"type": number_kind, "field": "clock", "name": name}]
            schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
            payload = {"op": "c", "after": {"id": 1, "clock": number}}
            data, serde = json.dumps({"schema": schema, "payload": payload}).encode(), Debezium(row, key="id")
            found = Debezium(told).decode(data).new.clock
            length = msgspec.convert(found, dt.timedelta) if not of_a_day else dt.timedelta(microseconds=exact)
            assert length == dt.timedelta(microseconds=exact)
        if of_a_day:
            clock = serde.decode(data).new.clock
            assert dt.datetime.combine(dt.date(1970, 1, 1), clock) - dt.datetime(1970, 1, 1) == dt.timedelta(
                microseconds=exact
            )
        else:
            with pytest.raises(SerdeError, match=r"clock|\$"):
                serde.decode(data)


@pytest.mark.parametrize("rest", [{}, {"text": None}, {"text": ""}])
def test_a_deleted_row_of_which_the_key_alone_came_is_told_once(rest, caplog):
    serde = Debezium(Note, key="id")
    for n in range(3):
        envelope = {"before": {"id": n, **rest}, "after": None, "op": "d"}
        assert serde.decode(json.dumps(envelope).encode()) == Change(n, Note(n, **rest), None)
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["Debezium(Note, key='id')"]
    assert "REPLICA IDENTITY FULL" in caplog.text
    whole = json.dumps({"before": {"id": 1, "text": "a"}, "after": None, "op": "d"}).encode()
    for other, data in (
        (Debezium(Note, key="id"), whole),
        (Debezium(Note, key=("id", "text", "data", "words")), data_of()),
    ):
        caplog.clear()
        other.decode(data)
        assert not caplog.records


def data_of():
    return json.dumps({"before": {"id": 1}, "after": None, "op": "d"}).encode()


class Held(msgspec.Struct):
    id: int
    told: list[int] | None = None
    text: str | None = None
    price: Decimal | None = None


class Inner(msgspec.Struct):
    price: Decimal


class Priced(msgspec.Struct):
    id: int
    inner: Inner


@pytest.mark.parametrize("schema", [None, "io.debezium.data.Json", "io.debezium.data.Xml"])
def test_a_column_of_json_is_text_that_a_nested_field_reads(schema):
    payload = {"before": {"id": 1, "told": "[]", "text": "[1]"}, "after": {"id": 1, "told": "[1,2]"}, "op": "u"}
    fields = [{"field": "told", "type": "string", "name": schema}, {"field": "text", "type": "string", "name": schema}]
    told = {"schema": {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}}
    data = msgspec.json.encode({**told, "payload": payload} if schema else payload)
    assert Debezium(Held, key="id").decode(data) == Change(1, Held(1, [], "[1]"), Held(1, [1, 2]))
    fields = [("id", int), ("told", list[int] | None, None), ("text", str | None, None)]
    model = pydantic.create_model(
        "Model", **{name: (kind, default[0] if default else ...) for name, kind, *default in fields}
    )
    for kind in (dataclasses.make_dataclass("Data", fields), model):
        assert Debezium(kind, key="id").decode(data) == Change(
            1, kind(id=1, told=[], text="[1]"), kind(id=1, told=[1, 2])
        )
    as_dict = Debezium(dict, key="id").decode(data)
    assert as_dict.new == {"id": 1, "told": "[1,2]"}, "nobody says that it is no text"


class Split(pydantic.BaseModel):
    """A model whose own validators read text, and whose unions msgspec does not know."""

    id: int
    tags: list[str] = []
    ones: pydantic.Json[list[int]] | None = None
    either: list[int] | set[str] | None = None
    more: dict[str, int] = pydantic.Field({}, validation_alias="More")

    @pydantic.field_validator("tags", mode="before")
    @classmethod
    def split(cls, value):
        return value.split("|") if isinstance(value, str) else value


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_text_that_a_model_reads_itself_is_left_to_it(is_wrapped):
    old = {"id": 1, "tags": "[a|b", "either": "[1]"}
    row = {"id": 1, "tags": "a|b", "ones": "[1]", "either": "[2]", "More": '{"n": 1}'}
    payload = {"before": old, "after": row, "op": "u"}
    data = msgspec.json.encode({"schema": {"type": "struct"}, "payload": payload} if is_wrapped else payload)
    found = Debezium(Split, key="id").decode(data)
    assert found.new == Split(id=1, tags=["a", "b"], ones="[1]", either=[2], More={"n": 1})
    assert found.old == Split(id=1, tags=["[a", "b"], either=[1])
    for wrong in ({"either": "[1"}, {"either": "7"}, {"id": "[1]"}, {"id": "{"}):
        with pytest.raises(SerdeError, match="no envelope of a Split"):
            Debezium(Split).decode(msgspec.json.encode({"after": {**row, **wrong}, "op": "c"}))


def test_a_column_of_json_may_have_keys_that_are_no_text():
    kind = msgspec.defstruct("Keyed", [("id", int), ("by_day", dict[int, str])])
    data = b'{"after": {"id": 1, "by_day": "{\\"7\\": \\"a\\"}"}, "op": "c"}'
    assert Debezium(kind).decode(data).new == kind(1, {7: "a"})
    assert Debezium(dict[str, list[int]], changes=False).decode(b'{"after": {"a": "[1]", "b": []}, "op": "c"}') == {
        "a": [1],
        "b": [],
    }


def test_a_number_in_a_column_of_json_keeps_its_digits():
    price = "0.123456789012345678901234567890"
    data = msgspec.json.encode({"after": {"id": 1, "inner": f'{{"price": {price}}}'}, "op": "c"})
    assert Debezium(Priced).decode(data).new.inner.price == Decimal(price)


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,18})\.[0-9]{1,20}([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@example("1.0e400")
@example("0.30000000000000004")
def test_a_number_is_told_with_all_digits(text):
    found = json_told(text)
    assert Decimal(repr(found) if isinstance(found, float) else found) == Decimal(text)
    assert isinstance(found, float) == (Decimal(repr(float(text))) == Decimal(text))


@pytest.mark.parametrize("text", ["[1", "", '"x"', "{}", NO_VALUE])
def test_text_that_is_no_such_json_is_an_error_of_the_record(text):
    with pytest.raises(SerdeError):
        Debezium(Held).decode(msgspec.json.encode({"after": {"id": 1, "told": text}, "op": "c"}))


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_column_of_json_that_was_not_logged_is_told_as_that(is_wrapped):
    payload = {"before": {"id": 1, "told": NO_VALUE}, "after": {"id": 1, "told": "[1]"}, "op": "u"}
    data = msgspec.json.encode({"schema": {"type": "struct"}, "payload": payload} if is_wrapped else payload)
    with pytest.raises(SerdeError, match=r"does not tell 'told', a long value.*REPLICA IDENTITY FULL"):
        Debezium(Held).decode(data)
    assert Debezium(Held, changes=False).decode(data) == Held(1, [1]), "nobody asks for the row before"


def avro_of(kind, fields, rows, name):
    """Return the serde of a row, and envelopes of rows as a connector writes them with a registry."""
    row = {"type": "record", "name": "Value", "namespace": name, "fields": [{"name": "id", "type": "long"}, *fields]}
    sides = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": name,
        "fields": [*sides, {"name": "op", "type": "string"}],
    }
    registry = SchemaRegistry(f"memory://{name}")
    id = registry.id_of(name, RegisteredSchema(json.dumps(envelope)))
    found = []
    for before, after in rows:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, envelope, {"before": before, "after": after, "op": "u" if after else "d"})
        found.append(HEAD.pack(0, id) + file.getvalue())
    return Debezium(kind, key="id", registry=registry), found


def test_a_column_of_json_is_text_that_a_nested_field_reads_in_avro_as_well():
    as_json = {"type": "string", "connect.name": "io.debezium.data.Json"}
    names = ("told", "text", "lengths", "by_day")
    columns = [{"name": name, "type": ["null", as_json]} for name in names]
    rows = [({"id": 1, "told": "[]"}, {"id": 1, "told": "[1,2]", "text": "[1]", "lengths": '{"a": "PT1S"}'})]
    fields = [
        ("id", int),
        ("told", list[int] | None, None),
        ("text", str | None, None),
        ("lengths", dict[str, dt.timedelta] | None, None),
        ("by_day", dict[int, str] | None, None),
    ]
    rows[0][0]["by_day"] = '{"7": "a"}'
    second = {"lengths": {"a": dt.timedelta(seconds=1)}, "text": "[1]"}
    for kind in (msgspec.defstruct("Struct", fields), dataclasses.make_dataclass("Data", fields)):
        serde, [data] = avro_of(kind, columns, rows, kind.__name__)
        assert serde.decode(data) == Change(1, kind(1, [], by_day={7: "a"}), kind(1, [1, 2], **second))
    model = pydantic.create_model("Model", id=(int, ...), told=(list[int] | None, None), text=(str | None, None))
    serde, [data] = avro_of(model, columns, rows, "Model")
    assert serde.decode(data) == Change(1, model(id=1, told=[]), model(id=1, told=[1, 2], text="[1]"))
    for text in ("[1", "7", '{"a": 1}'):
        serde, [data] = avro_of(
            Note, [{**columns[0], "name": "words"}], [(None, {"id": 1, "words": text})], f"wrong{len(text)}"
        )
        with pytest.raises(SerdeError):
            serde.decode(data)
    serde, [data] = avro_of(Note, columns[1:2], [({"id": 1, "text": NO_VALUE}, {"id": 1, "text": "a"})], "Untold")
    assert dataclasses.replace(serde, changes=False).decode(data) == Note(1, "a"), "nobody asks for the row before"
    with pytest.raises(SerdeError, match="REPLICA IDENTITY FULL"):
        serde.decode(data)


class Finest(msgspec.Struct):
    id: int
    at: dt.datetime
    clock: dt.time
    iso_day: dt.date
    iso_clock: dt.time
    iso_at: dt.datetime
    any_scale: Annotated[Decimal, digits(60, 20)]
    wide: Annotated[Decimal, digits(60, 20)]


UNSCALED, WIDE = 10**45 + 7, -(10**50) - 3


@pytest.mark.parametrize("in_avro", [False, True])
def test_times_and_decimals_of_any_name_and_width_are_told(in_avro):
    noon_ns, day_ns = 43_200_000_005_000, 86_400_000_000_000
    row = {
        "at": ("long", "time.NanoTimestamp", day_ns + noon_ns + 999),
        "clock": ("long", "time.NanoTime", noon_ns + 999),
        "iso_day": ("string", "time.IsoDate", "2026-01-02Z"),
        "iso_clock": ("string", "time.IsoTime", "12:00:00.000005Z"),
        "iso_at": ("string", "time.IsoTimestamp", "2026-01-02T12:00:00Z"),
    }
    scaled = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
    raw, wide = ((n).to_bytes(24, "big", signed=True) for n in (UNSCALED, WIDE))
    after = {"id": 1, **{name: value for name, (_, _, value) in row.items()}, "any_scale": {"scale": 20, "value": raw}}
    if in_avro:
        named = "io.debezium.data.VariableScaleDecimal"
        fields = [
            {"name": name, "type": {"type": kind, "connect.name": f"io.debezium.{of}"}}
            for name, (kind, of, _) in row.items()
        ]
        any_scale = {"type": "record", "name": named, "fields": scaled, "connect.name": named}
        logical = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 20}
        fields += [{"name": "any_scale", "type": any_scale}, {"name": "wide", "type": logical}]
        serde, [data] = avro_of(Finest, fields, [(None, {**after, "wide": Decimal(f"{WIDE}E-20")})], "finest")
    else:
        fields = [{"field": name, "name": f"io.debezium.{of}"} for name, (_, of, _) in row.items()]
        fields.append({"field": "any_scale", "name": "io.debezium.data.VariableScaleDecimal"})
        decimal = "org.apache.kafka.connect.data.Decimal"
        fields.append({"field": "wide", "name": decimal, "parameters": {"scale": "20"}})
        after |= {"any_scale": {"scale": 20, "value": b64encode(raw).decode()}, "wide": b64encode(wide).decode()}
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        serde = Debezium(Finest, key="id")
        data = json.dumps({"schema": schema, "payload": {"after": after, "op": "c"}}).encode()
    clock = dt.time(12, 0, 0, 5)
    at, iso_at = dt.datetime(1970, 1, 2, 12, 0, 0, 5), dt.datetime(2026, 1, 2, 12)
    decimals = Decimal(f"{UNSCALED}E-20"), Decimal(f"{WIDE}E-20")
    assert serde.decode(data).new == Finest(1, at, clock, iso_at.date(), clock, iso_at, *decimals)


class Document(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    count: int
    at: dt.datetime
    price: Decimal
    ratio: float = 0.0
    raw: bytes = b""
    parts: list[dict[str, int]] = []


MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
MILLIS = int(MOMENT.timestamp() * 1000)


@pytest.mark.parametrize(
    "at", [{"$date": MILLIS}, {"$date": {"$numberLong": str(MILLIS)}}, {"$date": "2026-01-02T03:04:05Z"}]
)
@pytest.mark.parametrize("raw", [{"$binary": "AP8=", "$type": "00"}, {"$binary": {"base64": "AP8=", "subType": "00"}}])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_document_of_mongodb_is_text_that_is_read_as_a_row(at, raw, wrapped):
    document = {
        "_id": {"$oid": "596e275826f08b2730779e1f"},
        "count": {"$numberLong": "9007199254740993"},
        "at": at,
        "price": {"$numberDecimal": "1.10"},
        "ratio": {"$numberDouble": "Infinity"},
        "raw": raw,
        "parts": [{"n": {"$numberInt": "3"}}],
    }
    payload = {"before": None, "after": json.dumps(document), "updateDescription": None, "op": "u", "ts_ms": 3}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "string", "name": "io.debezium.data.Json"}]}
    data = json.dumps({"schema": schema, "payload": payload} if wrapped else payload).encode()
    found = Document(
        "596e275826f08b2730779e1f", 2**53 + 1, MOMENT, Decimal("1.10"), float("inf"), b"\0\xff", [{"n": 3}]
    )
    assert Debezium(Document, key="id").decode(data) == Change(found.id, None, found)
    assert Debezium(dict, key="_id").decode(data).new["count"] == 2**53 + 1
    assert Debezium(Document, changes=False).decode(data) == found


def test_an_update_of_which_mongodb_tells_no_document_says_how_it_would():
    with pytest.raises(SerdeError, match=r"no row after it; MongoDB tells it with capture\.mode"):
        Debezium(Document).decode(b'{"after": null, "updateDescription": {"updatedFields": "{}"}, "op": "u"}')


def test_what_is_no_change_is_not_written():
    for wrong in (Order(1), None, Change(1, None, None)):
        with pytest.raises(SerdeError, match="write a Change"):
            Debezium(Order, key="id").encode(wrong)
    with pytest.raises(PlanError, match="no field number"):
        Debezium(Order, key="number")


def test_a_change_of_another_key_than_its_row_s_is_not_written():
    """An envelope has the row alone: read again, the change would be of another key."""
    serde = Debezium(Order, key="id")
    for good in (Change(1, None, Order(1)), Change(1, Order(1), None), Change(2, Order(1), Order(2))):
        assert serde.decode(serde.encode(good)) == good
    for wrong in (Change(2, None, Order(1)), Change("1", Order(1), None), Change(1, Order(1), Order(2))):
        with pytest.raises(SerdeError, match=r"key .*, and its row has .*: write Change\("):
            serde.encode(wrong)
    assert Debezium(Order, key="id", changes=False).decode(serde.encode(Change(1, None, Order(1)))) == Order(1)
    by_two = Debezium(Order, key=("id", "cents"))
    assert by_two.decode(by_two.encode(Change([1, 2], None, Order(1, 2)))).key == (1, 2)


@pytest.mark.parametrize(
    ("name", "told", "kind", "value"),
    [
        ("io.debezium.time.IsoDate", "2026-01-02Z", dt.date, dt.date(2026, 1, 2)),
        ("io.debezium.time.IsoTime", "01:02:03Z", dt.time, dt.time(1, 2, 3)),
        ("io.debezium.time.IsoTimestamp", "2026-01-02T03:04:05Z", dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5)),
        ("io.debezium.data.VariableScaleDecimal", {"scale": 2, "value": "AN4="}, Decimal, Decimal("2.22")),
    ],
)
def test_text_without_a_zone_and_decimals_of_any_scale_are_told_by_their_names(name, told, kind, value):
    """As connectors write them by time.precision.mode=isostring, and numeric of Postgres and NUMBER of Oracle."""
    row = {"field": "after", "type": "struct", "fields": [{"field": "it", "type": "any", "name": name}]}
    payload = {"before": None, "after": {"it": told}, "op": "c"}
    data = msgspec.json.encode({"schema": {"type": "struct", "fields": [row]}, "payload": payload})
    held = msgspec.defstruct("Held", [("it", kind)])
    assert Debezium(held).decode(data).new == held(value)


BYTES = {"type": "bytes", "optional": True}


def told_beside(schema, value, kind):
    """Return what a column of a row is read as, whose schema lies beside it."""
    row = {"field": "after", "type": "struct", "fields": [{"field": "it", **schema}]}
    payload = {"before": None, "after": {"it": value}, "op": "c"}
    data = json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": payload}).encode()
    return Debezium(msgspec.defstruct("Held", [("it", kind)])).decode(data).new.it


@given(st.binary())
@settings(max_examples=examples(60, 2_000))
def test_a_column_of_bytes_is_no_text_whatever_asks_for_it(held):
    text = b64encode(held).decode()
    for schema in (BYTES, {**BYTES, "name": "io.debezium.data.Bits", "parameters": {"length": "16"}}):
        for kind in (bytes, bytes | None, Any):
            assert told_beside(schema, text, kind) == held
        assert told_beside(schema, None, bytes | None) is None
        for kind in (str, str | None, list[str]):
            with pytest.raises(SerdeError, match="Expected"):
                told_beside(schema, text, kind)
    assert told_beside({"type": "array", "items": BYTES}, [text, None], list[bytes | None]) == [held, None]
    with pytest.raises(SerdeError, match="no envelope"):
        told_beside(BYTES, "=" + text, bytes)


@given(st.floats(), st.sampled_from(["float", "double"]))
@settings(max_examples=examples(60, 2_000))
def test_numbers_that_json_has_not_are_told_as_text(number, kind):
    told = number if math.isfinite(number) else json.dumps(number)
    schema = {"type": kind, "optional": True}
    assert is_same(number, told_beside(schema, told, float))
    assert is_same([number], told_beside({"type": "array", "items": schema}, [told], list[float]))
    with pytest.raises(SerdeError, match="no envelope"):
        told_beside(schema, "many", float)
