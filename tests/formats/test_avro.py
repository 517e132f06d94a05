"""Avro: every type that can be declared comes back, by our own schema, by fastavro alone, and from an earlier one."""

import datetime as dt
import io
import json
import pickle
import struct
import uuid
from contextlib import nullcontext, suppress
from decimal import Context, Decimal
from typing import Annotated, Any

import fastavro
import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats import avro_bounds
from runtime.encoding.formats.avro_container import long_of
from runtime.encoding.formats.registry import HEAD, RegisteredSchema
from runtime.model.errors import SerdeError
from samza_dsl.formats import Avro, SchemaRegistry, digits
from tests.formats.typed_values import INT64, is_same, records, typed
from tests.scale import examples

NOTHING = '{"type": "fixed", "name": "None", "size": 0}'
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


class Order(msgspec.Struct):
    id: int
    note: str | None = None


@given(st.data())
@settings(max_examples=examples(360, 20_000), suppress_health_check=SLOW)
def test_a_value_of_any_type_comes_back(data):
    kind, values = data.draw(typed())
    put = data.draw(st.lists(values, min_size=1, max_size=3))
    try:
        avro = Avro(kind)
    except PlanError as error:
        if "union with two of" in str(error) or "second type with the name" in str(error):
            return
        raise
    stored = list(map(avro.encode, put))
    back = list(map(avro.decode, stored))
    assert all(map(is_same, put, back)), (put, back)
    if None not in put:
        assert avro.encode_all(put) == stored
    assert all(map(is_same, back, avro.decode_all(stored)))
    assert pickle.loads(pickle.dumps(Avro(int))) == Avro(int)


@given(st.data())
@settings(max_examples=examples(120, 5_000), suppress_health_check=SLOW)
def test_fastavro_reads_what_was_written_and_writes_the_same(data):
    kind, values = data.draw(records())
    put = data.draw(values)
    try:
        avro = Avro(kind)
    except PlanError:
        return
    schema = fastavro.parse_schema(avro._codec.schema)
    stored = avro.encode(put)
    datum = fastavro.schemaless_reader(io.BytesIO(stored), schema, return_record_name=True)
    again = io.BytesIO()
    fastavro.schemaless_writer(again, schema, datum)
    assert again.getvalue() == stored


@given(st.binary(max_size=200), st.data())
@settings(max_examples=examples(180, 20_000), suppress_health_check=SLOW)
def test_hostile_bytes_make_a_value_or_an_error_of_ours(noise, data):
    kind, values = data.draw(typed())
    try:
        avro = Avro(kind)
    except PlanError:
        return
    stored = avro.encode(data.draw(values))
    at = data.draw(st.integers(0, len(stored)))
    for hostile in (noise, stored[:at], stored[:at] + noise + stored[at:]):
        with suppress(SerdeError):
            avro.decode(hostile)


WITHIN = {
    "alone": (lambda kind: kind, lambda kind: kind, lambda value: value),
    "optional": (lambda kind: ["null", kind], lambda kind: kind | None, lambda value: value),
    "list": (lambda kind: {"type": "array", "items": kind}, lambda kind: list[kind], lambda value: [value, value]),
    "dict": (
        lambda kind: {"type": "map", "values": ["null", kind]},
        lambda kind: dict[str, kind | None],
        lambda v: {"a": v},
    ),
    "record": (
        lambda kind: {"type": "record", "name": "In", "fields": [{"name": "it", "type": ["null", kind]}]},
        lambda kind: msgspec.defstruct("In", [("it", kind)]),
        lambda value: {"it": value},
    ),
}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([*WITHIN]), st.booleans(), st.booleans())
@settings(max_examples=examples(100, 5_000))
def test_text_and_bytes_are_read_as_each_other(text, within, was_text, is_java):
    in_avro, in_python, held = WITHIN[within]
    kind = "string" if was_text else "bytes"
    kind = {"type": kind, "avro.java.string": "String"} if is_java else kind
    written = {"type": "record", "name": "Row", "fields": [{"name": "it", "type": in_avro(kind)}]}
    file = io.BytesIO()
    put, back = (text, text.encode()) if was_text else (text.encode(), text)
    fastavro.schemaless_writer(file, fastavro.parse_schema(written), {"it": held(put)})
    row = msgspec.defstruct("Row", [("it", in_python(type(back)))])
    assert msgspec.to_builtins(Avro(row, written_with=written).decode(file.getvalue()), builtin_types=[bytes]) == {
        "it": held(back)
    }


def test_bytes_that_are_no_text_are_no_text():
    row = msgspec.defstruct("Row", [("it", str)])
    written = {"type": "record", "name": "Row", "fields": [{"name": "it", "type": "bytes"}]}
    with pytest.raises(SerdeError, match="utf-8"):
        Avro(row, written_with=written).decode(b"\x02\xff")


class Narrow(msgspec.Struct, frozen=True):
    id: int
    gone: str
    kept: str = "k"


class Wide(msgspec.Struct, frozen=True):
    id: float
    kept: str | None
    added: list[int] = []


@given(INT64, st.text(st.characters(exclude_categories=["Cs"])))
def test_a_later_class_reads_what_an_earlier_one_wrote(number, text):
    stored = Avro(Narrow).encode(Narrow(number, "x", text))
    earlier = Avro(Narrow)._codec.text
    assert Avro(Wide, written_with=earlier).decode(stored) == Wide(float(number), text)


def test_a_field_that_was_not_written_and_has_no_default_is_named():
    class More(msgspec.Struct):
        id: int
        needed: str

    stored = Avro(Order).encode(Order(1))
    with pytest.raises(SerdeError, match="needed"):
        Avro(More, written_with=Avro(Order)._codec.text).decode(stored)


def test_a_reader_schema_is_resolved_as_avro_says():
    reader = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "number", "aliases": ["id"], "type": "double"},
            {"name": "since", "type": "string", "default": "2026"},
        ],
    }
    stored = Avro(Order).encode(Order(4))
    avro = Avro(schema=reader, written_with=Avro(Order)._codec.text)
    assert avro.decode(stored) == {"number": 4.0, "since": "2026"}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}


class Priced(msgspec.Struct):
    price: Decimal
    at: dt.datetime


def priced(at):
    fields = [{"name": "price", "type": DECIMAL}, {"name": "at", "type": {"type": "long", "logicalType": at}}]
    return Avro(Priced, schema={"type": "record", "name": "Priced", "fields": fields})


def test_a_schema_says_what_a_type_does_not():
    put = Priced(Decimal("12.50"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    avro = priced("timestamp-millis")
    assert avro.decode(avro.encode(put)) == put
    with pytest.raises(SerdeError, match="Scale"):
        avro.encode(Priced(Decimal("1.234"), put.at))
    with pytest.raises(SerdeError, match="milliseconds"):
        avro.encode(Priced(Decimal(1), put.at + dt.timedelta(microseconds=1)))


class Holder(msgspec.Struct):
    inner: Any


class Money(msgspec.Struct):
    lines: list[Decimal]


class Unset(msgspec.Struct):
    n: int | msgspec.UnsetType = msgspec.UNSET


class Dashed(msgspec.Struct, rename="kebab"):
    long_name: int


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Holder, "Holder.inner may hold anything"),
        (Money, r"Money.lines\[\] is a Decimal"),
        (Unset, "Unset.n may be UNSET"),
        (Dashed, "Dashed.long-name is 'long-name' in the data"),
        (dict[str, object], "may hold anything"),
        (list[complex | None], "write instead"),
        (int | dt.timedelta, "union with two of long"),
        (print, "write instead"),
    ],
)
def test_what_avro_cannot_hold_is_told_when_it_is_planned(kind, where):
    if kind == list[complex | None]:  # complex is text, as in JSON
        assert Avro(kind).decode(Avro(kind).encode([1j, None])) == [1j, None]
        return
    with pytest.raises(PlanError, match=where) as refused:
        Avro(kind)
    assert "test_avro.py" in str(refused.value)


def test_a_field_that_the_schema_has_not_is_told_when_it_is_planned():
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    with pytest.raises(PlanError, match="no field note"):
        Avro(Order, schema=schema)
    with pytest.raises(PlanError, match="none of Avro"):
        Avro(schema={"type": "recrd"})
    with pytest.raises(PlanError, match="neither"):
        Avro()


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (int, 1.5, "Expected `int`, got `float`"),
        (int, 2**63, "has no bytes"),
        (bool, "x", "Expected `bool`"),
        (Order, Order("seven"), "got `str` - at `$.id`"),
        (int | float, 2**70, "more than 64 bits"),
        (dt.datetime, dt.datetime(2026, 1, 1), "without a time zone"),
        (dt.time, dt.time(1, tzinfo=dt.UTC), "time with a time zone"),
        (Annotated[Decimal, digits(4, 2)], Decimal("1.234"), "4 digits, 2 of them"),
        (Annotated[Decimal, digits(4, 2)], Decimal("123.4"), "4 digits, 2 of them"),
        (Annotated[Decimal, digits(4, 2)], Decimal("NaN"), "4 digits, 2 of them"),
        (str, "\ud800", "has no bytes"),
    ],
)
def test_what_would_be_written_as_another_value_is_refused(kind, value, told):
    with pytest.raises(SerdeError) as refused:
        Avro(kind).encode(value)
    assert told in str(refused.value)


class Node(msgspec.Struct):
    next: "Node | None" = None


@pytest.mark.parametrize(
    "value", [{"a": 1, "z": 2}, {"a": 1, "b": {"c": 1, "z": 2}}, {"a": 1, "l": [{"c": 1, "z": 2}]}]
)
def test_an_entry_that_a_given_schema_does_not_name_is_not_left_out(value):
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "c", "type": "int"}]}
    fields = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", inner], "default": None},
        {"name": "l", "type": {"type": "array", "items": "Inner"}, "default": []},
    ]
    serde = Avro(schema={"type": "record", "name": "Outer", "fields": fields})
    assert serde.decode(serde.encode({"a": 1})) == {"a": 1, "b": None, "l": []}
    with pytest.raises(SerdeError, match="z"):
        serde.encode(value)


def test_data_too_deep_for_the_stack_are_refused_and_do_not_end_the_process():
    chain = None
    for _ in range(200):
        chain = Node(chain)
    deeper = chain
    for _ in range(60):
        deeper = Node(deeper)
    for avro in (Avro(Node), Avro(Node, registry=SchemaRegistry("memory://nodes"), subject="nodes")):
        data = avro.encode(chain)
        assert avro.decode(data) == chain
        for depth in (300, 100_000):
            with pytest.raises(SerdeError, match="nested deeper"):
                avro.decode(data[:-200] + b"\x02" * depth + b"\x00")
        with pytest.raises(SerdeError, match="nested deeper"):
            avro.encode(deeper)
        for _ in range(500):
            deeper = Node(deeper)
        for write in (avro.encode, lambda value, avro=avro: avro.encode_all([Node(None), value])):
            with pytest.raises(SerdeError, match=r"nested deeper|recursion"):
                write(deeper)


class Branch(msgspec.Struct):
    mark: int | str | bool | None
    name: str
    numbers: list[float]
    within: "list[Branch]"


MARKS = st.none() | st.integers(-99, 99) | st.text(max_size=99)
BRANCHES = st.recursive(
    st.builds(Branch, MARKS, st.text(max_size=9), st.lists(st.floats(allow_nan=False)), st.just([])),
    lambda inner: st.builds(
        Branch, MARKS, st.text(max_size=200), st.lists(st.floats(allow_nan=False)), st.lists(inner, max_size=4)
    ),
    max_leaves=9,
)


@given(BRANCHES)
@settings(max_examples=examples(60, 2_000))
def test_a_value_of_any_size_that_nests_comes_back_with_a_registry_as_well(value):
    serde = Avro(Branch, registry=SchemaRegistry("memory://branches"), subject="branches")
    assert serde.decode(serde.encode(value)) == value
    assert serde.decode_all(serde.encode_all([value] * 3)) == [value] * 3


def test_a_record_within_itself_with_nothing_between_has_no_end_and_does_not_end_the_process():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "outer", "type": "Outer"}]}
    for field in ("Outer", inner):
        outer = {"type": "record", "name": "Outer", "fields": [{"name": "field", "type": field}]}
        for data in (b"", b"\x02"):
            with pytest.raises(SerdeError, match="nested deeper"):
                Avro(schema=outer).decode(data)


class Tick(msgspec.Struct):
    """A record that takes no byte."""


class Ticks(msgspec.Struct):
    rows: list[list[Tick]]
    nulls: list[None] = []


def test_counts_of_what_takes_no_byte_are_refused_where_they_are_too_many(monkeypatch):
    monkeypatch.setattr(avro_bounds, "MOST_OF_NO_BYTES", 1_000)
    avro = Avro(Ticks)
    whole = Ticks([[Tick()] * 600, [], [Tick()] * 300], [None] * 100)
    assert avro.decode(avro.encode(whole)) == whole
    with pytest.raises(SerdeError, match="1,000 items that take no byte"):
        avro.encode(Ticks(whole.rows, [None] * 101))
    many, half = long_of(1 << 62), long_of(501)
    inner, nulls = (many, long_of(-(1 << 62)) + bytes(1), half + half), bytes(1)
    within = [long_of(1) + data + bytes(3) for data in (*inner, half + bytes(1) + long_of(1) + half)]
    for data in (*within, *(nulls + data + bytes(1) for data in inner)):
        with pytest.raises(SerdeError, match="1,000 items that take no byte"):
            avro.decode(data)


_SCHEMAS = st.recursive(
    st.sampled_from(["null", "int", "string", "bytes", "double", "Node", {"type": "fixed", "name": "None", "size": 0}]),
    lambda inner: (
        st.builds(lambda one: {"type": "array", "items": one}, inner)
        | st.builds(lambda one: {"type": "map", "values": one}, inner)
        | inner.filter(lambda one: not isinstance(one, list)).map(lambda one: ["null", one] if one != "null" else one)
    ),
    max_leaves=3,
)
_NUMBERS = (st.integers(-4, 4) | st.sampled_from([1 << 62, -(1 << 62), 1 << 31])).map(long_of)


@given(st.lists(_SCHEMAS, max_size=3), st.lists(_NUMBERS | st.binary(max_size=3), max_size=12).map(b"".join))
@settings(max_examples=examples(300, 50_000), suppress_health_check=SLOW)
def test_no_bytes_keep_a_reader_for_ever(kinds, data):
    fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
    text = json.dumps({"type": "record", "name": "Node", "fields": fields})
    # A type with a name is said once.
    text = text.replace(NOTHING, '"None"').replace('"None"', NOTHING, 1)
    with suppress(SerdeError):
        Avro(schema=json.loads(text)).decode(data)


@pytest.mark.parametrize("fixed", [True, False])
def test_a_decimal_of_more_digits_than_its_schema_says_is_refused_and_not_rounded(fixed):
    for number, is_held in (
        (999_999, True),
        (-999_999, True),
        (1_000_000, False),
        (-(1 << 31), False),
        (7**999_999, False),
    ):
        data = number.to_bytes(max(4, number.bit_length() // 8 + 1), "big", signed=True)
        schema = {"type": "fixed", "name": "F", "size": len(data)} if fixed else {"type": "bytes"}
        avro = Avro(schema={**schema, "logicalType": "decimal", "precision": 6, "scale": 2})
        with nullcontext() if is_held else pytest.raises(SerdeError, match="more than the 6 digits"):
            assert avro.decode(data if fixed else long_of(len(data)) + data) == Decimal(number) / 100


@pytest.mark.parametrize("data", [b"\x02\x05" + bytes(200), b"\x02" + b"\xff" * 500_000])
def test_lengths_that_lead_back_and_numbers_without_an_end_are_refused(data):
    node = {"type": "map", "values": ["null", "Node"]}
    with pytest.raises(SerdeError):
        Avro(schema={"type": "record", "name": "Node", "fields": [{"name": "m", "type": node}]}).decode(data)


def test_a_schema_too_deep_is_told():
    deep = '{"type": "array", "items": ' * 3_000 + '"int"' + "}" * 3_000
    with pytest.raises(PlanError, match="too deep"):
        Avro(schema=deep)
    registry = SchemaRegistry("memory://deep")
    id = registry.id_of("deep", RegisteredSchema(deep))
    with pytest.raises(SerdeError, match="nested deeper than a schema is read"):
        Avro(int, registry=registry).decode(HEAD.pack(0, id))
    with pytest.raises(PlanError, match="too deep"):
        Avro(schema=registry.newest("deep"), registry=registry)


@pytest.mark.parametrize(("kind", "value"), [(dt.timedelta, dt.timedelta(microseconds=7)), (int, 7)])
def test_a_number_without_a_logical_type_is_read_as_what_the_type_says(kind, value):
    assert Avro(kind, written_with="long").decode(Avro(int).encode(7)) == value
    for odd in (dt.datetime, dt.time, dt.date):
        with pytest.raises(SerdeError, match="got `int`"):
            Avro(odd, written_with="long").decode(Avro(int).encode(7))


def test_bytes_left_over_are_another_schema():
    with pytest.raises(SerdeError, match="1 bytes are left"):
        Avro(int).decode(Avro(int).encode(3) + b"\0")


def test_a_namespace_names_records():
    assert Avro(Order, namespace="org.shop")._codec.name == "org.shop.Order"


def test_many_values_lie_in_a_stream_and_in_state(tmp_path):
    from samza_dsl import App, produce

    app, found = App("counting"), []
    orders = app.input("orders", value=Avro(Order), key=lambda order: order.id % 3)
    orders.partition_by(lambda order: order.id % 2, value=Avro(Order), op_id="by-two").sink(found.append)
    produce("orders", [Order(n) for n in range(50)], value=Avro(Order), data=tmp_path, end=True)
    app.run(tmp_path)
    assert sorted(order.id for order in found) == list(range(50))


def test_an_earlier_type_says_what_has_written():
    earlier = msgspec.defstruct("Earlier", [("number", int), ("text", str)])
    later = msgspec.defstruct("Later", [("number", float), ("more", int, 5)])
    data = Avro(earlier).encode(earlier(1, "x"))
    assert Avro(later, written_with=earlier).decode(data) == later(1.0, 5)


def record(*fields, name="Order"):
    return {"type": "record", "name": name, "fields": [*fields]}


ID = {"name": "id", "type": "long"}
DEFAULTS = [
    ("bytes", "abcd", b"abcd"),
    ({"type": "fixed", "name": "Two", "size": 2}, "\u00ffd", b"\xffd"),
    ({"type": "int", "logicalType": "date"}, 5, dt.date(1970, 1, 6)),
    ([{"type": "int", "logicalType": "date"}, "null"], 5, dt.date(1970, 1, 6)),
    (["null", "long"], None, None),
    ({"type": "long", "logicalType": "timestamp-millis"}, 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5000, dt.UTC)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0013", Decimal("0.19")),
    ("double", 5, 5.0),
    ({"type": "array", "items": "bytes"}, ["ab"], [b"ab"]),
    ({"type": "map", "values": ["bytes", "null"]}, {"a": "ab"}, {"a": b"ab"}),
    (record({"name": "raw", "type": "bytes"}, name="Part"), {"raw": "ab"}, {"raw": b"ab"}),
    (record({"name": "raw", "type": "bytes", "default": "z"}, name="Part"), {}, {"raw": b"z"}),
]


@pytest.mark.parametrize(("of", "said", "value"), DEFAULTS, ids=[str(n) for n in range(len(DEFAULTS))])
def test_a_default_of_a_given_schema_is_the_value_that_it_says(of, said, value):
    schema = record(ID, {"name": "x", "type": of, "default": said})
    serde = Avro(schema=schema, written_with=record(ID))
    file = io.BytesIO()
    fastavro.schemaless_writer(file, record(ID), {"id": 1})
    for _ in range(2):
        [found] = serde.decode_all([file.getvalue()])
        assert found == serde.decode(file.getvalue()) == {"id": 1, "x": value} and type(found["x"]) is type(value)
        if isinstance(value, list | dict):
            found["x"].clear()  # which is no other value's
    own = Avro(schema=schema)
    assert own.decode(own.encode({"id": 1})) == {"id": 1, "x": value}


def test_a_default_of_bytes_is_no_text_to_a_type():
    kind = msgspec.defstruct("Raw", [("id", int), ("raw", bytes)])
    file = io.BytesIO()
    fastavro.schemaless_writer(file, record(ID), {"id": 1})
    serde = Avro(kind, schema=record(ID, {"name": "raw", "type": "bytes", "default": "abcd"}), written_with=record(ID))
    assert serde.decode(file.getvalue()) == kind(1, b"abcd")
    # A record that is named again has the defaults of the first.
    before, after = (
        record({"name": "a", "type": record(*fields, name="Part")}, {"name": "b", "type": "Part"})
        for fields in ([], [{"name": "raw", "type": "bytes", "default": "abcd"}])
    )
    assert Avro(schema=after, written_with=before).decode(b"") == {"a": {"raw": b"abcd"}, "b": {"raw": b"abcd"}}


def test_a_decimal_of_many_digits_is_a_default_with_all_of_them():
    price = Decimal("12345678901234567890123456789012345678901234567890.0123456789")
    kind = msgspec.defstruct("Wide", [("id", int), ("price", Annotated[Decimal, digits(60, 10)], price)])
    [_, field] = json.loads(Avro(kind).text)["fields"]
    assert int.from_bytes(field["default"].encode("latin-1"), "big", signed=True) == int(price.scaleb(10, Context(70)))


ZONES = st.none() | st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5))])
TIMES = st.builds(
    lambda at, micros, zone: at.replace(microsecond=micros, tzinfo=zone),
    st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)),
    st.sampled_from([0, 5_000, 999_000, 1, 999_999]),
    ZONES,
)
CLOCKS = TIMES.map(dt.datetime.timetz)
STAMPED = {"type": "record", "name": "Stamped", "fields": [{"name": "at", "type": "?"}]}
PLACES = [
    ("?", lambda at: at),
    (["null", "string", "?"], lambda at: at),
    ({"type": "array", "items": "?"}, lambda at: [at]),
    ({"type": "map", "values": ["null", "?"]}, lambda at: {"a": None, "b": at}),
    ([STAMPED, {**STAMPED, "name": "Other"}], lambda at: {"at": at}),
    (
        {
            "type": "record",
            "name": "Two",
            "fields": [{"name": "a", "type": ["null", STAMPED]}, {"name": "b", "type": "Stamped"}],
        },
        lambda at: {"a": None, "b": {"at": at}},
    ),
]
"""Schemas that have a time somewhere, and data of them."""


def with_time(schema, kind):
    if isinstance(schema, list):
        return [with_time(one, kind) for one in schema]
    if isinstance(schema, dict):
        return {name: with_time(one, kind) for name, one in schema.items()}
    return kind if schema == "?" else schema


@pytest.mark.parametrize("place", range(len(PLACES)))
@given(st.data())
def test_of_a_time_nothing_is_lost_by_a_given_schema(place, data):
    """Neither microseconds nor a zone, nor is a time taken for one of the machine's zone."""
    base, name, times = data.draw(
        st.sampled_from(
            [
                *(("long", f"timestamp-{parts}", TIMES) for parts in ("millis", "micros")),
                *(("long", f"local-timestamp-{parts}", TIMES) for parts in ("millis", "micros")),
                ("int", "time-millis", CLOCKS),
                ("long", "time-micros", CLOCKS),
            ]
        )
    )
    schema, made = PLACES[place]
    at = data.draw(times)
    put = made(at)
    avro = Avro(schema=with_time(schema, {"type": base, "logicalType": name}))
    has_zone, wants_zone = at.tzinfo is not None, name.startswith("timestamp")
    if has_zone != wants_zone or (name.endswith("millis") and at.microsecond % 1000):
        with pytest.raises(SerdeError, match=r"convert it first|round it first"):
            avro.encode(put)
    else:
        assert avro.decode(avro.encode(put)) == put


class Disc(msgspec.Struct, tag="disc", frozen=True):
    radius: int


class Tile(msgspec.Struct, tag="tile", frozen=True):
    side: int


class Drawn(msgspec.Struct, frozen=True):
    n: int
    shapes: list[Disc | Tile]
    shape: Disc | Tile | None = None


@pytest.mark.parametrize("space", ["", "shop."])
@pytest.mark.parametrize("at", [0, 1])
def test_a_default_of_a_given_schema_is_a_record_of_a_union(space, at):
    """It is the first one of the union, whichever that is, within lists as well."""
    records = [
        {
            "type": "record",
            "name": f"{space}{kind.__name__}",
            "fields": [{"name": kind.__struct_fields__[0], "type": "long"}],
        }
        for kind in ((Disc, Tile) if at == 0 else (Tile, Disc))
    ]
    said = {records[0]["fields"][0]["name"]: 5}
    names = [one["name"] for one in records]
    fields = [
        {"name": "n", "type": "long"},
        {"name": "shapes", "type": {"type": "array", "items": records}, "default": [said, said]},
        {"name": "shape", "type": [names[0], "null", names[1]], "default": said},
    ]
    wanted = {"type": "record", "name": "Drawn", "fields": fields}
    earlier = {**wanted, "fields": fields[:1]}
    data = Avro(schema=earlier).encode({"n": 1})
    first = (Disc, Tile)[at](5)
    typed_one = Avro(Drawn, schema=wanted, written_with=earlier)
    assert typed_one.decode(data) == Drawn(1, [first, first], first)
    assert Avro(schema=wanted, written_with=earlier).decode(data) == {"n": 1, "shapes": [said, said], "shape": said}
    for one in (Drawn(2, [Disc(1), Tile(2)], Tile(3)), Drawn(3, [], None)):
        assert Avro(Drawn, schema=wanted).decode(typed_one.encode(one)) == one


BRANCHES: dict[str, tuple[object, st.SearchStrategy[Any]]] = {
    **{name: (name, st.integers(-(2**bits), 2**bits - 1)) for name, bits in (("int", 31), ("long", 63))},
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "string": ("string", st.text()),
    "bytes": ("bytes", st.binary(max_size=4)),
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "timestamp": ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(timezones=st.just(dt.UTC))),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    "decimal": (
        {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2},
        st.decimals(-1000, 1000, places=2),
    ),
}


@given(st.data())
@settings(max_examples=examples(300, 20_000))
def test_a_value_of_a_union_that_is_given_is_read_as_the_one_that_was_written(data):
    """Fastavro takes the first type into which a value goes in some way: a large int into a double, say."""
    names = data.draw(st.lists(st.sampled_from([*BRANCHES]), min_size=1, max_size=4, unique=True))
    put = data.draw(st.one_of(*(BRANCHES[name][1] for name in BRANCHES)))
    union = [BRANCHES[name][0] for name in names]
    avro = Avro(schema={"type": "record", "name": "Row", "fields": [{"name": "v", "type": ["null", *union]}]})
    # What lies as a plain value does, as a date, takes such a one where no other branch does.
    plain = {int: {"int", "long", "float", "double"}, str: {"string"}, bytes: {"bytes"}}.get(type(put))
    assume(plain is None or plain & {*names})
    try:
        stored = avro.encode({"v": put})
    except SerdeError:
        # What has a branch of its own is written, but for what is refused of a time.
        assert not any(is_of(name, put) for name in names), (names, put)
        return
    back = avro.decode(stored)["v"]
    as_float = type(put) is int and type(back) is float and back == put and not {*names} & {"long"}
    rounded = (
        type(put) is type(back) is float
        and "double" not in names
        and back == struct.unpack("f", struct.pack("f", put))[0]
    )
    assert is_same(put, back) or as_float or rounded, (names, put, back)


def is_of(name: str, value: object) -> bool:
    """Return whether a branch of a union is that of a value."""
    if type(value) is int:
        return abs(value) <= {"int": 2**31 - 1, "long": 2**63 - 1, "float": 2**24, "double": 2**53}.get(name, -1)
    types = {"double": float, "string": str, "bytes": bytes, "date": dt.date, "timestamp": dt.datetime}
    return type(value) is {**types, "uuid": uuid.UUID, "decimal": Decimal}.get(name)


@pytest.mark.parametrize("value", [1e300, -3.5e38])
def test_a_number_beyond_32_bits_is_no_float(value):
    avro = Avro(schema={"type": "record", "name": "Row", "fields": [{"name": "v", "type": "float"}]})
    assert avro.decode(avro.encode({"v": 0.1}))["v"] == pytest.approx(0.1)
    with pytest.raises(SerdeError, match="v is"):
        avro.encode({"v": value})


def test_a_moment_is_no_date_a_large_number_no_double_and_text_no_uuid():
    fields = [{"name": "n", "type": "double"}] + [
        {"name": name, "type": {"type": base, "logicalType": logical}}
        for name, base, logical in (("day", "int", "date"), ("id", "string", "uuid"))
    ]
    avro = Avro(schema={"type": "record", "name": "Row", "fields": fields})
    good = {"day": dt.date(2026, 1, 2), "n": 2, "id": uuid.UUID(int=7)}
    assert avro.decode(avro.encode(good)) == good
    for name, wrong in (("day", dt.datetime(2026, 1, 2, 3)), ("n", 2**60 + 1), ("id", "seven")):
        with pytest.raises(SerdeError, match=f"Row.{name} is"):
            avro.encode({**good, name: wrong})
