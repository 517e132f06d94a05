"""Registries: the requests, subjects and secrets that they are sent, and a run to which nobody answers."""

import pickle
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.model.errors import PlanError
from runtime.encoding.formats.registry import HEAD, RegisteredSchema, SchemaReference
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.model.errors import Refused, SamzaError, SerdeError, Unreachable
from samza_dsl import App, dead_letter, produce, skip
from samza_dsl.formats import Avro, JsonSchema, Protobuf, SchemaRegistry
from samza_dsl.testing import run as run_in_memory
from tests.formats.registry_server import basic
from tests.formats.typed_values import is_same, records
from tests.scale import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
VALUE = SerializationContext("orders", MessageField.VALUE)


class Order(msgspec.Struct):
    id: int
    note: str | None = None


class Later(msgspec.Struct, frozen=True):
    id: float
    cents: int = 7


def avro(kind, registry, **options):
    return Avro(kind, registry=SchemaRegistry(registry.url, **options)).placed(SubjectPlace("orders"))


def named_by_topic(context, name):
    return topic_subject_name_strategy(context, name)


@given(data=st.data())
@settings(max_examples=examples(48, 2_000), suppress_health_check=SLOW)
def test_confluents_clients_read_ours_and_ours_reads_theirs(served, data):
    kind, values = data.draw(records(depth=2))
    put = data.draw(values)
    try:
        ours = avro(kind, served)
    except PlanError:
        return
    client = SchemaRegistryClient({"url": served.url})
    stored = ours.encode(put)
    conf = {"auto.register.schemas": True, "subject.name.strategy": topic_subject_name_strategy}
    datum = AvroDeserializer(client, return_record_name=True)(stored, VALUE)
    theirs = AvroSerializer(client, ours._codec.text, conf=conf)(datum, VALUE)
    assert is_same(put, ours.decode(theirs))
    assert theirs == stored


@pytest.mark.parametrize(
    ("naming", "subject"), [("topic", "orders-value"), ("record", "Order"), ("topic_record", "orders-Order")]
)
def test_a_schema_is_registered_once_under_its_subject(registry, naming, subject):
    ours = avro(Order, registry, naming=naming)
    stored = [ours.encode(Order(n)) for n in range(5)]
    assert registry.versions == {subject: [1]}
    assert [ours.decode(one) for one in stored] == [Order(n) for n in range(5)]
    assert (
        len(registry.asked) == len(set(registry.asked)) <= 4
    )  # the schema, once each: looked up, tried, registered, read


def test_what_another_schema_has_written_is_read_by_that(registry):
    stored = avro(Order, registry).encode(Order(3, "x"))
    assert avro(Later, registry).decode(stored) == Later(3.0, 7)


def test_an_incompatible_schema_is_refused_with_the_registrys_words(registry):
    avro(Order, registry).encode(Order(1))
    registry.incompatible = lambda old, new: ["READER_FIELD_MISSING_DEFAULT_VALUE: id"]
    with pytest.raises(Refused, match=r"orders-value.*READER_FIELD_MISSING_DEFAULT_VALUE"):
        avro(Later, registry).encode(Later(1.0))
    assert registry.versions == {"orders-value": [1]}


def test_without_registering_only_what_is_there_is_written(registry):
    with pytest.raises(Refused, match="register=True"):
        avro(Order, registry, register=False).encode(Order(1))
    stored = avro(Order, registry).encode(Order(1))
    assert avro(Order, registry, register=False).encode(Order(1)) == stored


@pytest.mark.parametrize("secret", [{"username": "me", "password": "p:ss"}, {"token": "abc"}, {"token": lambda: "abc"}])
def test_secrets_are_sent_and_never_shown(registry, secret):
    registry.authorization = basic("me", "p:ss") if "username" in secret else "Bearer abc"
    ours = avro(Order, registry, **secret)
    assert ours.decode(ours.encode(Order(1))) == Order(1)
    assert not any(word in repr(ours) + repr(ours.registry) for word in ("p:ss", "abc"))
    with pytest.raises(Refused, match="Check the username") as refused:
        avro(Order, registry, username="me", password="wrong-one").encode(Order(1))
    assert "wrong-one" not in str(refused.value)


def test_secrets_in_the_url_are_sent_and_never_shown(registry):
    registry.authorization = basic("me", "p:ss")
    url = registry.url.replace("://", "://me:p%3Ass@")
    shown = SchemaRegistry(f"http://127.0.0.1:1,{url}", naming="record")
    ours = Avro(Order, registry=shown)
    assert ours.decode(ours.encode(Order(1))) == Order(1)
    assert "p%3Ass" not in repr(shown) and pickle.loads(pickle.dumps(ours)) == ours


def test_a_number_that_is_not_there_is_an_error_of_the_record(registry):
    with pytest.raises(SerdeError, match="has no schema 9"):
        avro(Order, registry).decode(b"\0\0\0\0\x09\x02")
    for hostile in (b"", b"\0", b"\x01\0\0\0\1\2", b"\0\0\0\0"):
        with pytest.raises(SerdeError, match="name no schema"):
            avro(Order, registry).decode(hostile)


def pipeline(registry, policy):
    app = App("through")
    orders = app.input("in", value=Avro(Order, registry=registry), on_error=policy)
    orders.map(lambda order: Order(order.id + 1)).send_to(app.output("out", value=Avro(Order, registry=registry)))
    return app


def test_a_run_registers_the_schemas_of_its_streams(registry, tmp_path):
    schemas = SchemaRegistry(registry.url)
    app = pipeline(schemas, skip)
    produce("in", [Order(n) for n in range(9)], value=Avro(Order, registry=schemas), data=tmp_path, end=True)
    app.run(tmp_path)
    assert registry.versions == {"in-value": [1], "out-value": [1]}


@pytest.mark.parametrize("policy", [skip, dead_letter("letters")])
def test_no_record_is_skipped_because_nobody_answers(registry, tmp_path, policy, monkeypatch):
    monkeypatch.setattr("runtime.run.driver.PAUSE_MS", 1)
    schemas = SchemaRegistry(registry.url)
    produce("in", [Order(n) for n in range(9)], value=Avro(Order, registry=schemas), data=tmp_path, end=True)
    found = []

    def reading():
        app = App("reading")
        app.input("in", value=Avro(Order, registry=SchemaRegistry(registry.url)), on_error=policy).sink(found.append)
        return app

    registry.down = True
    with pytest.raises(Unreachable, match="503"):
        reading().run(tmp_path)
    registry.down = False
    reading().run(tmp_path)
    assert found == [Order(n) for n in range(9)]


def test_a_test_in_memory_needs_no_registry():
    app = pipeline(SchemaRegistry("memory://tests"), skip)
    assert run_in_memory(app, {"in": [Order(1)]})["out"] == [Order(2)]


def test_an_url_that_is_none_is_refused():
    with pytest.raises(SamzaError, match="write the URL"):
        SchemaRegistry("schemas:8081")
    with pytest.raises(SamzaError, match="topic_record"):
        SchemaRegistry("http://schemas:8081", naming="name")


def test_an_output_that_is_bound_to_another_stream_has_the_subject_of_that(registry, tmp_path):
    schemas = SchemaRegistry(registry.url)
    produce("in", [Order(1)], value=Avro(Order, registry=schemas), data=tmp_path, end=True)
    pipeline(schemas, skip).run(tmp_path, bind={"out": "stream:other"})
    assert registry.versions == {"in-value": [1], "other-value": [1]}


def test_keys_have_subjects_of_their_own(registry, tmp_path):
    schemas = SchemaRegistry(registry.url)
    produce("in", [Order(1)], data=tmp_path, end=True)
    app = App("keyed")
    orders = app.input("in", value=Order, key=lambda order: order.id)
    orders.send_to(app.output("out", value=Order, key=Avro(int, registry=schemas)))
    app.run(tmp_path)
    assert registry.versions == {"out-key": [1]}


@pytest.mark.parametrize(
    ("library", "extra", "make"),
    [
        ("fastavro", "avro", lambda: Avro(Order)),
        ("google", "protobuf", lambda: Protobuf(Order)),
        ("jsonschema", "jsonschema", lambda: JsonSchema(schema={})),
    ],
)
def test_a_library_that_is_absent_is_named_with_its_extra(library, extra, make, monkeypatch):
    # Other tests may have imported parts of it.
    for name in [library, *(one for one in sys.modules if one.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SamzaError, match=rf"pip install 'samza-dsl\[{extra}\]'"):
        make()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>default backend</html>"),
        (404, b'{"error_code":404,"message":"HTTP 404 Not Found"}'),
        (404, b'{"error_code":null,"message":null}'),
        (400, b"[1]"),
        (301, b""),
        (200, b"[]"),
        (200, b'{"schema":5}'),
        (200, b'{"schema":null}'),
        (200, b'{"schema":"\\"long\\"","references":5}'),
        (200, b'{"id":"x"}'),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (500, None),
        (404, b"[" * 100_000),
    ],
)
def test_no_record_is_skipped_where_something_else_than_a_registry_answers(status, body, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.run.driver.PAUSE_MS", 1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Location", "https://me:secret@elsewhere" + self.path)
            # An answer of None ends in its middle.
            self.send_header("Content-Length", "100" if body is None else str(len(body)))
            self.end_headers()
            self.wfile.write(body or b"{")

        def log_message(self, *words):
            pass

    produce("orders", [HEAD.pack(0, 7) + b"\x02"], value=bytes, data=tmp_path, end=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        registry = SchemaRegistry(f"http://127.0.0.1:{server.server_port}")
        app, found = App("reading"), []
        app.input("orders", value=Avro(Order, registry=registry), on_error=skip).sink(found.append)
        with pytest.raises(SamzaError, match="registry") as failed:
            app.run(tmp_path)
        server.shutdown()
    assert ("write where it is, 'https://elsewhere'" in str(failed.value)) == (status == 301)
    assert found == []


def naming(*others):
    """Return a schema that names versions of others, by names of their own."""
    references = [{"name": f"{name}{version}", "subject": name, "version": version} for name, version in others]
    return {"schema": '"long"', "references": references}


class Asked(SchemaRegistry):
    """A registry that answers from a function of subject and version, and counts how often it is asked."""

    def __init__(self, answer):
        super().__init__("memory://asked")
        self.times = []

        def ask(method, path, body=None):
            _, _, subject, _, version = path.split("/")
            self.times.append(path)
            return answer(subject, int(version))

        object.__setattr__(self, "_ask", ask)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), max_size=10))
@settings(max_examples=examples(50, 2_000))
def test_references_of_any_shape_are_each_asked_for_once_and_a_circle_is_told(names):
    registry = Asked(lambda subject, n: naming(*(("s", one) for one in names.get(n, ()))))

    def reached(n, within):
        if n in within:
            raise ZeroDivisionError
        return {n}.union(*(reached(one, {*within, n}) for one in names.get(n, ())))

    start = RegisteredSchema('"long"', references=(SchemaReference("s0", "s", 0),))
    try:
        wanted = reached(0, set())
    except ZeroDivisionError:
        with pytest.raises(SerdeError, match="names itself"):
            registry.referred(start)
        return
    found = [name for name, _ in registry.referred(start)]
    assert sorted(found) == sorted(f"s{n}" for n in wanted) and len(registry.times) == len(wanted)
    place = found.index
    assert all(place(f"s{one}") < place(f"s{n}") for n in wanted for one in names.get(n, ()))


def test_what_refers_to_ever_more_is_told():
    for width in (1, 3):
        registry = Asked(
            lambda subject, n, width=width: naming(*(("s", width * n + one) for one in range(1, width + 1)))
        )
        with pytest.raises(SerdeError, match="more than 200"):
            registry.referred(RegisteredSchema('"long"', references=(SchemaReference("s0", "s", 0),)))
