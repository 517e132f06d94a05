"""Protobuf: messages and values of types with their fields, as Confluent's clients write and read them."""

import datetime as dt
import enum
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, field_mask_pb2, message_factory, struct_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.model.errors import SerdeError
from samza_dsl.formats import Protobuf, SchemaRegistry
from tests.formats.messages import BeforeMessage, F, LineMessage, OrderMessage, field
from tests.formats.typed_values import INT64, TEXT, is_same
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
VALUE = SerializationContext("orders", MessageField.VALUE)
INT32 = st.integers(-(2**31), 2**31 - 1)
INSTANTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))


class Colour(enum.Enum):
    NONE = "NONE"
    RED = "RED"
    BLUE = "BLUE"


class Line(msgspec.Struct, frozen=True):
    sku: str


@dataclass(frozen=True)
class Money:
    cents: int


class Order(msgspec.Struct, frozen=True):
    flag: bool
    small: int
    number: int
    natural: int
    real: float
    text: str
    raw: bytes
    lines: list[Line]
    numbers: tuple[int, ...]
    counts: dict[str, int]
    at: dt.datetime | None
    took: dt.timedelta | None
    rating: int | None
    colour: Colour
    price: Money | None
    by_post: str | None = None
    by_hand: int | None = None
    note: str | None = None
    parent: "Order | None" = None


def orders(depth=1):
    ways = st.fixed_dictionaries({}, optional={"by_post": TEXT}) | st.fixed_dictionaries({"by_hand": INT32})
    above = st.none() if not depth else st.none() | orders(depth - 1)
    return st.builds(
        lambda way, **held: Order(**way, **held),
        ways,
        flag=st.booleans(),
        small=INT32,
        number=INT64,
        natural=st.integers(0, 2**64 - 1),
        real=st.floats(),
        text=TEXT,
        raw=st.binary(max_size=9),
        lines=st.lists(st.builds(Line, TEXT), max_size=2),
        numbers=st.lists(INT32, max_size=3).map(tuple),
        counts=st.dictionaries(TEXT, INT64, max_size=2),
        at=st.none() | INSTANTS,
        took=st.none() | st.timedeltas(-dt.timedelta(9**5), dt.timedelta(9**5)),
        rating=st.none() | INT64,
        colour=st.sampled_from(Colour),
        price=st.none() | st.builds(Money, INT64),
        note=st.none() | TEXT,
        parent=above,
    )


@given(orders())
@settings(max_examples=examples(90, 5_000), suppress_health_check=SLOW)
def test_values_come_back_and_confluents_clients_agree(served, order):
    registry = SchemaRegistry(served.url)
    typed = Protobuf(OrderMessage, Order, registry=registry).placed(SubjectPlace("orders"))
    plain = Protobuf(OrderMessage, registry=registry).placed(SubjectPlace("orders"))
    stored = typed.encode(order)
    assert is_same(order, typed.decode(stored))
    client = SchemaRegistryClient({"url": served.url})
    message = ProtobufDeserializer(OrderMessage, {"use.deprecated.format": False})(stored, VALUE)
    assert is_same(order, typed.decode(plain.encode(message)))
    conf = {"use.deprecated.format": False, "subject.name.strategy": topic_subject_name_strategy}
    theirs = ProtobufSerializer(OrderMessage, client, conf)(message, VALUE)
    assert is_same(order, typed.decode(theirs))
    assert theirs[:7] == stored[:7]


class Sparse(msgspec.Struct, omit_defaults=True, frozen=True):
    flag: bool = True
    small: int = 7
    real: float = 0.5
    text: str = "none"
    raw: bytes = b"raw"
    numbers: tuple[int, ...] = ()
    lines: list[Line] = msgspec.field(default_factory=list)
    at: dt.datetime | None = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rating: int | None = 5
    colour: Colour = Colour.BLUE
    by_post: str | None = "post"
    by_hand: int | None = None
    note: str | None = None
    parent: "Sparse | None" = None


SPARSE = st.builds(
    Sparse,
    flag=st.booleans(),
    small=st.sampled_from([0, 7]),
    real=st.sampled_from([0.0, 0.5]),
    text=st.sampled_from(["", "none"]),
    raw=st.sampled_from([b"", b"raw"]),
    numbers=st.sampled_from([(), (0,)]),
    lines=st.sampled_from([[], [Line("")]]),
    at=st.sampled_from([None, Sparse().at]),
    rating=st.sampled_from([None, 0, 5]),
    colour=st.sampled_from(Colour),
    by_post=st.sampled_from([None, "", "post"]),
    note=st.sampled_from([None, ""]),
)


@given(SPARSE, SPARSE)
@settings(max_examples=examples(90, 2_000), suppress_health_check=SLOW)
def test_a_field_that_is_left_out_for_its_default_is_in_the_message(order, parent):
    order = msgspec.structs.replace(order, parent=parent)
    kind = Protobuf(OrderMessage, Sparse)
    message = OrderMessage.FromString(kind.encode(order))
    assert (message.small, message.text, message.parent.text) == (order.small, order.text, parent.text)
    assert is_same(order, kind.decode(kind.encode(order)))


def test_of_a_oneof_a_default_that_is_left_out_is_set_as_well():
    with pytest.raises(SerdeError, match="by_post and by_hand are set, of which way can have one"):
        Protobuf(OrderMessage, Sparse).encode(Sparse(by_hand=1))


@given(st.binary(max_size=60), st.integers(0, 80))
@settings(max_examples=examples(150, 20_000))
def test_hostile_bytes_make_a_value_or_an_error_of_ours(noise, at):
    good = OrderMessage(text="x", number=-1, counts={"a": 1}, lines=[LineMessage(sku="s")]).SerializeToString()
    for serde in (Protobuf(OrderMessage), Protobuf(OrderMessage, Order), registered(OrderMessage)):
        for hostile in (noise, good[:at] + noise + good[at:], b"\0\0\0\0\1" + noise):
            with suppress(SerdeError):
                serde.decode(hostile)


def registered(message, kind=None):
    return Protobuf(message, kind, registry=SchemaRegistry("memory://protobuf"), subject=message.DESCRIPTOR.full_name)


@pytest.mark.parametrize(
    "message", [OrderMessage, LineMessage, BeforeMessage], ids=lambda one: one.DESCRIPTOR.full_name
)
def test_the_place_of_a_message_in_its_file_comes_back(message):
    serde = registered(message)
    assert serde.decode(serde.encode(message())) == message()


def test_another_message_is_not_taken_for_this_one():
    with pytest.raises(SerdeError, match=r"a tests.Before was written, and tests.Order is read"):
        registered(OrderMessage).decode(registered(BeforeMessage).encode(BeforeMessage()))


def test_what_imports_others_registers_these_first(registry):
    serde = Protobuf(OrderMessage, registry=SchemaRegistry(registry.url), subject="orders-value")
    serde.encode(OrderMessage())
    assert registry.versions == {"tests/money.proto": [1], "orders-value": [2]}
    assert registry.schemas[1]["references"] == [
        {"name": "tests/money.proto", "subject": "tests/money.proto", "version": 1}
    ]


class Extra(msgspec.Struct):
    text: str
    more: int


class Null(msgspec.Struct):
    text: str | None


class Wrong(msgspec.Struct):
    text: int


class Green(msgspec.Struct):
    colour: Literal["GREEN"]


class Loose(msgspec.Struct):
    lines: list[Any]


class Lacking(TypedDict):
    text: NotRequired[str]


class Unset(msgspec.Struct):
    text: str | msgspec.UnsetType = msgspec.UNSET


class Naive(msgspec.Struct):
    at: dt.datetime


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Extra, "Extra.more is no field of tests.Order"),
        (Null, "Null.text may be None, and the field has a value always"),
        (Lacking, "Lacking.text may be absent, and the field has a value always"),
        (Unset, "Unset.text may be absent, and the field has a value always"),
        (Wrong, "Wrong.text is a Int, and the field is text"),
        (Green, "Green.colour may be 'GREEN', which is none of Colour"),
        (Loose, r"Loose.lines\[\] is a Any"),
        (int, "int is a Int, and the message has named fields"),
    ],
)
def test_what_a_message_cannot_hold_is_told_when_it_is_planned(kind, told):
    with pytest.raises(PlanError, match=told):
        Protobuf(OrderMessage, kind)


@pytest.mark.parametrize("name", ["Struct", "Value", "ListValue", "Any", "FieldMask"])
@pytest.mark.parametrize("kind", [dict[str, Any], Any, list[Any], str])
def test_a_field_of_values_of_any_kind_is_told_as_that(name, kind):
    message = loose(name)
    wrong = rf"Loosely\.held is a .*, and the field is a google\.protobuf\.{name}, which holds values of any kind"
    with pytest.raises(PlanError, match=f"{wrong}(?s:.*)Protobuf\\(Message\\)"):
        Protobuf(message, msgspec.defstruct("Loosely", [("held", kind)]))
    assert Protobuf(message).decode(b"") == message()
    assert Protobuf(message, msgspec.defstruct("Tight", [("id", int)])).decode(b"\x10\x07").id == 7


def test_the_fields_of_a_message_of_any_kind_are_those_of_a_type_that_has_them():
    kind = msgspec.defstruct("Packed", [("type_url", str), ("value", bytes)])
    serde = Protobuf(loose("Any"), msgspec.defstruct("Tight", [("held", kind)]))
    value = serde.type(kind("type.example/x", b"7"))
    assert serde.decode(serde.encode(value)) == value


def loose(name):
    """Return a message with a field of one of Protobuf's own messages that hold values of any kind."""
    module = {"Any": any_pb2, "FieldMask": field_mask_pb2}.get(name, struct_pb2)
    file = descriptor_pb2.FileDescriptorProto(name=f"tests/loose_{name}.proto", package="tests", syntax="proto3")
    file.dependency.append(module.DESCRIPTOR.name)
    message = file.message_type.add(name=f"Loose{name}")
    field(message, "held", F.TYPE_MESSAGE, 1, type_name=f".google.protobuf.{name}")
    field(message, "id", F.TYPE_INT64, 2)
    pool = descriptor_pool.Default()
    try:
        found = pool.FindMessageTypeByName(f"tests.Loose{name}")
    except KeyError:
        pool.Add(file)
        found = pool.FindMessageTypeByName(f"tests.Loose{name}")
    return message_factory.GetMessageClass(found)


def test_what_would_be_written_as_another_value_is_refused():
    order = msgspec.convert(dict.fromkeys(("at", "took", "rating", "price")) | filled(), Order)
    both = msgspec.structs.replace(order, by_post="x", by_hand=1)
    for wrong, told in (
        (both, "by_post and by_hand are set"),
        (msgspec.structs.replace(order, small=2**31), "no place"),
        (msgspec.structs.replace(order, text=3), "Expected `str`"),
        (OrderMessage(), "is no Order"),
    ):
        with pytest.raises(SerdeError, match=told):
            Protobuf(OrderMessage, Order).encode(wrong)
    with pytest.raises(SerdeError, match="without a time zone"):
        Protobuf(OrderMessage, Naive).encode(Naive(dt.datetime(2026, 1, 1)))
    with pytest.raises(PlanError, match="no message"):
        Protobuf(Order)


def filled():
    held = {"flag": True, "small": 1, "number": 1, "natural": 1, "real": 1.0, "text": "", "raw": b"", "colour": "RED"}
    return held | {"lines": [], "numbers": [], "counts": {}}


class Shares(msgspec.Struct):
    share: float = 0.0
    shares: list[float] = []
    took: dt.timedelta | None = None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Shares(1e300), "a float of 32 bits"),
        (Shares(-3.5e38), "a float of 32 bits"),
        (Shares(shares=[0.5, 1e39]), "a float of 32 bits"),
        (Shares(took=dt.timedelta(days=3_652_501)), "10,000 years"),
        (Shares(took=-dt.timedelta(days=3_652_501)), "10,000 years"),
    ],
)
def test_a_number_beyond_its_field_is_refused_and_not_made_another(value, told):
    with pytest.raises(SerdeError, match=told):
        Protobuf(OrderMessage, Shares).encode(value)


@given(
    st.builds(
        Shares,
        st.floats(width=32),
        st.lists(st.floats(width=32)),
        st.none() | st.timedeltas(-dt.timedelta(3_652_500), dt.timedelta(3_652_500)),
    )
)
def test_what_fits_its_field_comes_back(value):
    serde = Protobuf(OrderMessage, Shares)
    assert is_same(value, serde.decode(serde.encode(value)))
    if value.took is not None:
        assert OrderMessage.FromString(serde.encode(value)).took.ToTimedelta() == value.took


class Chain(msgspec.Struct):
    parent: "Chain | None" = None


def test_what_is_nested_deeper_than_clients_read_is_not_written():
    def chain(depth):
        found = Chain()
        for _ in range(depth):
            found = Chain(found)
        return found

    serde, depths = Protobuf(OrderMessage, Chain), [90, 101, 130, 900]
    assert serde.decode(serde.encode(chain(depths[0]))) == chain(depths[0])
    for depth in depths[1:]:
        with pytest.raises(SerdeError, match=r"can't be written.*MaxDepth"):
            serde.encode(chain(depth))


def older_message():
    """Return a message of the second syntax, whose fields have defaults of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="tests/older.proto", package="tests.older", syntax="proto2")
    one = file.message_type.add(name="Older")
    field(one, "number", F.TYPE_INT32, 1, default_value="5")
    field(one, "text", F.TYPE_STRING, 2, default_value="hi")
    field(one, "bare", F.TYPE_STRING, 3)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.older.Older"))


@given(st.none() | st.integers(0, 9), st.none() | st.text(max_size=2))
@settings(max_examples=examples(20, 500))
def test_a_field_that_is_not_set_has_the_default_that_its_message_says(number, text):
    class Older(msgspec.Struct):
        number: int = 0
        text: str = ""
        bare: str = "of the type"

    class Told(msgspec.Struct):
        number: int | None = 0
        text: str | None = ""

    message = OLDER(**{name: one for name, one in {"number": number, "text": text}.items() if one is not None})
    data = message.SerializeToString()
    assert Protobuf(OLDER, Older).decode(data) == Older(message.number, message.text)
    assert Protobuf(OLDER, Told).decode(data) == Told(number, text), "a type that tells what was not set has None"


OLDER = older_message()
