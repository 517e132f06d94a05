"""Schemas that name schemas of other subjects, as Confluent's references: read, and written under their number."""

import json
import pickle
from dataclasses import replace

import msgspec
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats import registry as schema_registries
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.model.errors import Refused, SerdeError, Unreachable
from samza_dsl.formats import Avro, JsonSchema, SchemaRegistry
from tests.formats.typed_values import is_same, records
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
VALUE = SerializationContext("orders", MessageField.VALUE)
NAMED = ("record", "enum", "fixed")


def register(client, subject, schema, kind, references):
    """Register a schema, and return the reference to it by which others name it."""
    found = Schema(json.dumps(schema), kind, [SchemaReference(*one) for one in references])
    client.register_schema(subject, found)
    return client.lookup_schema(subject, found).version


def record_of(name, field, kind):
    """Return the schema of a record of Avro with one field."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind}]}


def apart(client, schema, namespace, first):
    """Register each named type within a schema under a subject of its own, and return the schema by their names.

    `first` has the references that were registered already, by full name, which others may name as well.
    """
    used = {}

    def within(part, space):
        if isinstance(part, str):
            full = part if "." in part or not space else f"{space}.{part}"
            for name in (full, part):
                if name in first:
                    used[name] = first[name]
                    return name
            return part
        if isinstance(part, list):
            return [within(one, space) for one in part]
        if part["type"] not in NAMED:
            return {**part, **{name: within(part[name], space) for name in ("type", "items", "values") if name in part}}
        space, _, short = (
            part["name"].rpartition(".") if "." in part["name"] else (part.get("namespace", space), "", part["name"])
        )
        full = f"{space}.{short}" if space else short
        if has_itself(part, full, short):
            return part
        whole, others = apart(client, part, space, first) if part is not schema else (None, None)
        if whole is None:
            return {**part, "fields": [{**one, "type": within(one["type"], space)} for one in part.get("fields", ())]}
        if "namespace" not in whole and space:
            whole = {**whole, "namespace": space}
        version = register(client, f"{full}-value", whole, "AVRO", others.values())
        first[full] = used[full] = (full, f"{full}-value", version)
        return full

    return within(schema, namespace), used


def has_itself(part, *names):
    """Whether a type has its own name within it, or a type that has: these stay where they are."""
    said = json.dumps(part.get("fields", ()))
    return any(f'"{name}"' in said for name in names)


def test_a_type_within_one_of_another_subject_may_be_met_before_that(registry):
    client = SchemaRegistryClient({"url": registry.url})
    unit = {"type": "enum", "name": "Unit", "symbols": ["KG", "M"]}
    item = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "unit", "type": unit}]}
    item_at = ("shop.Item", "item-value", register(client, "item-value", item, "AVRO", []))
    fields = [{"name": "unit", "type": "shop.Unit"}, {"name": "item", "type": "shop.Item"}]
    register(client, "orders-value", {"type": "record", "name": "Order", "fields": fields}, "AVRO", [item_at])
    ours = SchemaRegistry(registry.url, register=False)
    order, serde = {"unit": "M", "item": {"unit": "KG"}}, Avro(schema=ours.newest("orders-value"), registry=ours)
    stored = replace(serde, subject="orders-value").encode(order)
    assert serde.decode(stored) == order  # which Confluent's own client does not read


@given(data=st.data())
@settings(max_examples=examples(24, 400), suppress_health_check=SLOW)
def test_avro_of_several_subjects_is_read_and_written_as_confluents_clients_do(served, data):
    served.__init__()
    kind, values = data.draw(records(depth=2))
    put = data.draw(values)
    try:
        whole = Avro(kind, namespace=data.draw(st.sampled_from([None, "shop.orders"])))
    except PlanError:
        return
    said = json.loads(whole.text)
    if not isinstance(said, dict) or said["type"] != "record":
        return
    client = SchemaRegistryClient({"url": served.url})
    told, used = apart(client, said, "", {})
    references = [SchemaReference(*one) for one in used.values()]
    text = Schema(json.dumps(told), "AVRO", references)
    client.register_schema("orders-value", text)
    registry = SchemaRegistry(served.url, register=False)
    ours = Avro(kind, schema=registry.newest("orders-value"), registry=registry).placed(SubjectPlace("orders"))
    stored = ours.encode(put)
    assert is_same(put, ours.decode(stored))
    assert stored[5:] == whole.encode(put)
    client = SchemaRegistryClient({"url": served.url})
    conf = {"auto.register.schemas": False, "subject.name.strategy": topic_subject_name_strategy}
    datum = AvroDeserializer(client, return_record_name=True)(stored, VALUE)
    theirs = AvroSerializer(client, text, conf=conf)(datum, VALUE)
    assert theirs == stored
    assert is_same(put, Avro(kind, registry=registry).decode(theirs))
    untyped = Avro(schema=registry.newest("orders-value"), registry=registry)
    assert is_same(untyped.decode(theirs), pickle.loads(pickle.dumps(untyped)).decode(stored))


class Money(msgspec.Struct):
    cents: int


class Line(msgspec.Struct):
    sku: str
    price: Money


class Order(msgspec.Struct):
    lines: list[Line]
    total: Money


MONEY = {"type": "object", "properties": {"cents": {"$ref": "#/$defs/whole"}}, "$defs": {"whole": {"type": "integer"}}}
LINE = {"type": "object", "properties": {"sku": {"type": "string"}, "price": {"$ref": "money.json"}}}
ORDER = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"$ref": "line.json"}}, "total": {"$ref": "money.json"}},
}
"""Two ways lead to money, as in a diamond."""
ORDERS = st.builds(
    Order,
    st.lists(st.builds(Line, st.text(max_size=3), st.builds(Money, st.integers(-9, 9))), max_size=3),
    st.builds(Money, st.integers(-9, 9)),
)


def in_json(client):
    money = ("money.json", "money-value", register(client, "money-value", MONEY, "JSON", []))
    line = ("line.json", "line-value", register(client, "line-value", LINE, "JSON", [money]))
    references = [SchemaReference(*one) for one in (line, money)]
    found = Schema(json.dumps(ORDER), "JSON", references)
    client.register_schema("orders-value", found)
    return found


@given(order=ORDERS)
@settings(max_examples=examples(30, 500), suppress_health_check=SLOW)
def test_json_of_several_subjects_is_read_and_written_as_confluents_clients_do(served, order):
    served.__init__()
    client = SchemaRegistryClient({"url": served.url})
    schema = in_json(client)
    registry = SchemaRegistry(served.url, register=False)
    ours = JsonSchema(Order, schema=registry.newest("orders-value"), registry=registry).placed(SubjectPlace("orders"))
    stored = ours.encode(order)
    found = JSONDeserializer(schema, schema_registry_client=client)(stored, VALUE)
    assert msgspec.convert(found, Order) == order == ours.decode(stored)
    conf = {"auto.register.schemas": False, "subject.name.strategy": topic_subject_name_strategy}
    theirs = JSONSerializer(schema, client, conf=conf)(found, VALUE)
    assert theirs[:5] == stored[:5]
    assert ours.decode(theirs) == pickle.loads(pickle.dumps(ours)).decode(theirs) == order
    untyped = JsonSchema(schema=registry.newest("orders-value"), registry=registry, subject="orders-value")
    with pytest.raises(SerdeError, match=r"does not fit its schema at \$.lines\[0\].price.cents"):
        untyped.encode({"lines": [{"sku": "a", "price": {"cents": "1"}}]})


@pytest.mark.parametrize("format", [Avro, JsonSchema])
def test_a_schema_of_a_registry_is_what_was_meant(registry, format):
    client = SchemaRegistryClient({"url": registry.url})
    in_json(client)
    register(client, "cents-value", record_of("Money", "cents", "long"), "AVRO", [])
    ours = SchemaRegistry(registry.url)
    other = ours.newest("orders-value" if format is Avro else "cents-value")
    with pytest.raises(PlanError, match=r"is written in (JSON|AVRO)"):
        format(schema=other, registry=ours)
    with pytest.raises(PlanError, match="registry="):
        format(schema=ours.newest("cents-value" if format is Avro else "orders-value"))


def test_a_schema_that_lacks_what_it_names_is_told_when_it_is_planned(registry):
    client = SchemaRegistryClient({"url": registry.url})
    register(client, "orders-value", ORDER, "JSON", [])
    register(client, "line-value", record_of("Line", "price", "shop.Money"), "AVRO", [])
    ours = SchemaRegistry(registry.url)
    with pytest.raises(PlanError, match=r"refers to 'line.json', which it has not"):
        JsonSchema(schema=ours.newest("orders-value"), registry=ours)
    with pytest.raises(PlanError, match=r"shop.Money"):
        Avro(schema=ours.newest("line-value"), registry=ours)


def test_a_schema_of_another_place_than_the_newest_is_not_registered_anew(registry):
    client = SchemaRegistryClient({"url": registry.url})
    in_json(client)
    ours = SchemaRegistry(registry.url, register=False)
    serde = JsonSchema(Order, schema=ours.newest("orders-value"), registry=ours, subject="others-value")
    with pytest.raises(Refused, match="not to register"):
        serde.encode(Order([], Money(1)))


@pytest.mark.parametrize("base", ["https://example.com/order.json", "https://example.com/of/order.json"])
def test_a_reference_is_by_its_name_or_from_where_the_schema_says_that_it_is(registry, base):
    client = SchemaRegistryClient({"url": registry.url})
    money = ("money.json", "money-value", register(client, "money-value", MONEY, "JSON", []))
    register(client, "orders-value", {"$id": base, **ORDER["properties"]["total"]}, "JSON", [money])
    ours = SchemaRegistry(registry.url)
    serde = JsonSchema(schema=ours.newest("orders-value"), registry=ours, subject="orders-value")
    assert serde.decode(serde.encode({"cents": 1})) == {"cents": 1}
    with pytest.raises(SerdeError, match="does not fit"):
        serde.encode({"cents": "1"})


def test_schemas_that_are_told_slowly_are_asked_for_no_longer_than_a_minute_all_in_all(monkeypatch):
    registry, at, asked = SchemaRegistry("memory://slow"), 0, 0

    def answer(method, path, body=None):
        nonlocal at, asked
        at, asked = at + 9_000, asked + 1
        return {"schema": '"int"', "references": [{"name": f"N{asked}", "subject": f"S{asked}", "version": 1}]}

    object.__setattr__(registry, "_ask", answer)
    monkeypatch.setattr(schema_registries, "monotonic_ms", lambda: at)
    with pytest.raises(Unreachable, match="within 60 seconds all schemas that one names: 7 were there, and S8 1"):
        Avro(int, registry=registry).decode(bytes(5))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"$ref": "#/$defs/none"}, "which it has not"),
        ({"properties": {"sku": {"type": 3}}}, "which is no schema"),
        ({"$schema": 3}, "which is no schema"),
        ({"$ref": "line.json"}, "itself with nothing between"),
    ],
)
def test_schemas_of_other_subjects_are_looked_at_as_it_is_planned(registry, line, told):
    client = SchemaRegistryClient({"url": registry.url})
    named = ("line.json", "line-value", register(client, "line-value", line, "JSON", []))
    order = {"properties": {"lines": {"items": {"$ref": "line.json"}}}}
    register(client, "orders-value", order, "JSON", [named])
    ours = SchemaRegistry(registry.url)
    with pytest.raises(PlanError, match=told):
        JsonSchema(schema=ours.newest("orders-value"), registry=ours)
