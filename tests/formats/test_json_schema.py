"""JSON Schema: what a type writes fits the schema that follows from it, as an independent validator sees it."""

import json
import math
from contextlib import nullcontext
from decimal import Decimal

import jsonschema
import msgspec
import pydantic
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.model.errors import SerdeError
from samza_dsl import App
from samza_dsl.formats import JsonSchema, SchemaRegistry
from tests.formats.typed_values import Model, is_same, typed
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
VALUE = SerializationContext("orders", MessageField.VALUE)


def is_finite(value):
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_finite, value))
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    return all(is_finite(getattr(value, name)) for name in fields)


@given(st.data())
@settings(max_examples=examples(300, 10_000), suppress_health_check=SLOW)
def test_what_is_written_fits_its_schema_and_comes_back(data):
    kind, values = data.draw(typed())
    put = data.draw(values)
    try:
        serde = JsonSchema(kind)
    except PlanError as error:
        if "within itself" in str(error) or "two" in str(error) or "Two or more" in str(error):
            return
        raise
    if not is_finite(put):
        with pytest.raises(SerdeError):
            serde.encode(put)
        return
    stored = serde.encode(put)
    jsonschema.Draft202012Validator(json.loads(serde._own.schema)).validate(json.loads(stored))
    assert is_same(put, serde.decode(stored))


class Order(msgspec.Struct):
    id: int
    note: str | None = None


def test_confluents_clients_read_ours_and_ours_reads_theirs(registry):
    ours = JsonSchema(Order, registry=SchemaRegistry(registry.url)).placed(SubjectPlace("orders"))
    stored = ours.encode(Order(3, "x"))
    text = ours._own.schema
    client = SchemaRegistryClient({"url": registry.url})
    conf = {"subject.name.strategy": topic_subject_name_strategy}
    found = JSONDeserializer(text)(stored, VALUE)
    assert found == {"id": 3, "note": "x"}
    assert ours.decode(JSONSerializer(text, client, conf=conf)(found, VALUE)) == Order(3, "x")
    assert registry.versions == {"orders-value": [1]}
    assert registry.schemas[0]["schemaType"] == "JSON"


def test_a_given_schema_is_checked_both_ways():
    schema = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}, "required": ["id"]}
    for serde in (JsonSchema(schema=schema), JsonSchema(dict[str, int], schema=json.dumps(schema))):
        assert serde.decode(serde.encode({"id": 1})) == {"id": 1}
        with pytest.raises(SerdeError, match=r"at \$.id: 0 is less than"):
            serde.encode({"id": 0})
        with pytest.raises(SerdeError, match="'id' is a required property"):
            serde.decode(b"{}")
        for hostile in (b"", b"\xff", b"[" * 9999):
            with pytest.raises(SerdeError):
                serde.decode(hostile)


def test_what_has_no_schema_is_told_when_it_is_planned():
    with pytest.raises(PlanError, match="neither"):
        JsonSchema()
    with pytest.raises(PlanError, match="the schema is none"):
        JsonSchema(schema={"type": "recrd"})
    with pytest.raises(PlanError, match=r"is unsupported|is not supported|no Struct"):
        JsonSchema(print)


def test_a_value_that_is_not_of_its_type_is_refused():
    with pytest.raises(SerdeError, match="id"):
        JsonSchema(Order).encode(Order("seven"))


class Paid(pydantic.BaseModel):
    id: int
    cents: int = pydantic.Field(gt=0)


def test_a_model_of_pydantic_is_a_value_with_and_without_a_schema():
    from samza_dsl.testing import run

    for value in (Paid, JsonSchema(Paid)):
        app = App("models")
        app.input("in", value=value).map(lambda paid: Paid(id=paid.id, cents=paid.cents + 1)).send_to(
            app.output("out", value=value)
        )
        assert run(app, {"in": [Paid(id=1, cents=5)]})["out"] == [Paid(id=1, cents=6)]
    with pytest.raises(SerdeError, match="greater than 0"):
        JsonSchema(Paid).decode(b'{"id": 1, "cents": 0}')
    assert JsonSchema(Model)._name == "Model"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"$ref": "https://example.com/order.json"},
        {"$ref": "#/$defs/Order"},
        {"$ref": "http://json-schema.org/draft-07/schema#/definitions/none"},
        {"properties": {"default": {"$ref": "#/$defs/Order"}}},
        {"properties": {"enum": {"items": {"$ref": "#/$defs/Order"}}}, "const": {"$id": "https://example.com"}},
        {"$defs": {"const": {"not": {"$ref": "other.json"}}}},
    ],
)
def test_a_schema_that_says_nothing_or_lacks_what_it_refers_to_is_told_when_it_is_planned(schema):
    with pytest.raises(PlanError, match=r"says nothing of values|which it has not, and nobody fetches"):
        JsonSchema(schema=schema)


def test_a_schema_refers_to_parts_of_its_own():
    names = {"a/b": {"type": "integer"}, "c": {"anyOf": [{"type": "integer"}]}}
    for ref in ("#/$defs/a~1b", "#/$defs/c/anyOf/0"):
        serde = JsonSchema(schema={"$defs": names, "type": "array", "items": {"$ref": ref}})
        assert serde.decode(serde.encode([1])) == [1]
        with pytest.raises(SerdeError, match="is not of type 'integer'"):
            serde.encode(["1"])


@pytest.mark.parametrize(
    "ref",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2020-12/meta/validation",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema#/definitions/schemaArray/items",
    ],
)
def test_a_schema_refers_to_the_schemas_of_schemas(ref):
    serde = JsonSchema(schema={"properties": {"schema": {"$ref": ref}}})
    assert serde.decode(serde.encode({"schema": {"minLength": 1}})) == {"schema": {"minLength": 1}}
    with pytest.raises(SerdeError, match="does not fit its schema"):
        serde.encode({"schema": {"minLength": "one"}})


@pytest.mark.parametrize("word", ["const", "enum", "default", "examples"])
def test_a_reference_among_data_is_text(word):
    data = {"$ref": "order.json"}
    schema = {"properties": {"of": {word: data if word in ("const", "default") else [data]}}}
    serde = JsonSchema(schema=schema)
    assert serde.decode(serde.encode({"of": data})) == {"of": data}


def test_properties_may_have_the_names_of_words():
    names = ("$ref", "$id", "const", "enum", "default", "examples", "properties")
    serde = JsonSchema(
        schema={"properties": {name: {"$ref": "#/$defs/n"} for name in names}, "$defs": {"n": {"type": "integer"}}}
    )
    assert serde.decode(serde.encode({"$ref": 1, "enum": 2})) == {"$ref": 1, "enum": 2}
    with pytest.raises(SerdeError, match="is not of type 'integer'"):
        serde.encode({"default": "x"})


def test_a_schema_of_draft_4_refers_to_names_of_its_own():
    draft, name = "http://json-schema.org/draft-04/schema#", "http://example.com/order"
    number = {"n": {"type": "integer"}}
    schema = {"$schema": draft, "id": name, "definitions": number, "items": {"$ref": f"{name}#/definitions/n"}}
    serde = JsonSchema(schema=schema)
    assert serde.decode(serde.encode([1])) == [1]
    with pytest.raises(SerdeError, match="is not of type 'integer'"):
        serde.encode(["1"])


@given(st.integers(-(10**9), 10**9), st.integers(0, 4), st.integers(0, 4))
def test_multiples_are_those_of_the_numbers_as_they_are_written(number, places, digits):
    """A price of 0.07 is a multiple of 0.01, which a division of floats denies."""
    of = JsonSchema(schema={"type": "number", "multipleOf": float(f"1e-{places}")})
    data = f"{Decimal(number).scaleb(-digits):f}".encode()
    if number % 10 ** max(0, digits - places) == 0:
        assert of.decode(data) == float(data)
    else:
        with pytest.raises(SerdeError, match="is not a multiple of"):
            of.decode(data)


@pytest.mark.parametrize("data", [b"true", b'"x"'])
def test_what_is_no_number_is_no_matter_of_multiples(data):
    assert JsonSchema(schema={"multipleOf": 0.01}).decode(data) == msgspec.json.decode(data)


def is_equal(one, other):
    if isinstance(one, bool) or isinstance(other, bool) or type(one) is not type(other):
        return one is other or ({type(one), type(other)} == {int, float} and one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    return len(one) == len(other) and all(map(is_equal, one, other)) if isinstance(one, list) else one == other


ITEMS = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, 0.5, "", "1", "true"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(ITEMS, max_size=5))
@settings(max_examples=examples(300, 20_000))
def test_items_are_unique_as_json_has_it(items):
    unique = not any(is_equal(one, other) for n, one in enumerate(items) for other in items[:n])
    with nullcontext() if unique else pytest.raises(SerdeError, match="has an item twice"):
        JsonSchema(schema={"uniqueItems": True}).decode(json.dumps(items).encode())


def test_many_records_are_not_held_against_each_other():
    rows = [{"n": n} for n in range(50_000)]
    assert JsonSchema(schema={"uniqueItems": True}).decode(json.dumps(rows).encode()) == rows


def test_a_text_that_is_no_json_is_no_schema():
    with pytest.raises(PlanError, match="the schema is no JSON"):
        JsonSchema(schema="{type: integer}")


def test_what_is_nested_too_deep_is_told_as_that():
    def deep(size):
        found: dict[str, object] = {}
        for _ in range(size):
            found = {"items": found}
        return found

    for size in (300, 5_000):
        with pytest.raises(PlanError, match=r"nested too deep|no JSON"):
            JsonSchema(schema=deep(size))
    with pytest.raises(PlanError, match="no JSON"):
        JsonSchema(schema='{"items":' * 5_000)
    tree = JsonSchema(schema={"properties": {"next": {"$ref": "#"}}, "additionalProperties": False})
    assert tree.decode(b'{"next":{"next":{}}}') == {"next": {"next": {}}}
    for size in (900, 90_000):
        with pytest.raises(SerdeError, match="nested too deep"):
            tree.decode(b'{"next":' * size + b"{}" + b"}" * size)


@pytest.mark.parametrize("endless", [{"$ref": "#"}, {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}])
def test_a_schema_that_refers_to_itself_without_an_end_is_told(endless):
    with pytest.raises(PlanError, match="refers to itself with nothing between"):
        JsonSchema(schema=endless)


def test_a_value_whose_schema_ends_for_others_alone_is_an_error_of_the_record():
    serde = JsonSchema(schema={"anyOf": [{"type": "string"}, {"$ref": "#"}]})
    assert serde.decode(b'"a"') == "a"
    with pytest.raises(SerdeError, match="refers to itself without an end"):
        serde.decode(b"1")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"$dynamicRef": "#node"}, "which it has not"),
        ({"items": {"$dynamicRef": "https://example.com/tree#node"}}, "which it has not"),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "a.json"}, "which it has not"),
        ({"parts": {"a": {"$ref": "#/parts/b"}}, "$ref": "#/parts/a"}, "#/parts/b', which it has not"),
        ({"allOf": [{}], "$ref": "#/allOf/first"}, "which it has not"),
        ({"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a/type/x"}, "which it has not"),
        ({"title": "orders", "$ref": "#/title"}, "which is no schema"),
        ({"properties": {"type": {"type": "integer"}}, "items": {"$ref": "#/properties"}}, "which is no schema"),
        ({"$schema": 3}, "no text"),
    ],
)
def test_what_a_schema_leads_to_is_looked_at_as_it_is_planned(schema, told):
    with pytest.raises(PlanError, match=told):
        JsonSchema(schema=schema)


def test_references_of_every_kind_are_followed():
    number = {"$anchor": "n", "$dynamicAnchor": "d", "type": "integer"}
    refs = [{"$ref": "#/$defs/n"}, {"$ref": "#n"}, {"$dynamicRef": "#d"}, {"$ref": "#/parts/n"}]
    for ref in refs:
        serde = JsonSchema(schema={"$defs": {"n": number}, "parts": {"n": {"$ref": "#n"}}, "items": ref})
        assert serde.decode(b"[1]") == [1]
        with pytest.raises(SerdeError, match="not of type 'integer'"):
            serde.decode(b'["a"]')
