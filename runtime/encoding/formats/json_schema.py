"""JSON whose schema follows from a type or is given, with a registry or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import urljoin

import msgspec

from operators.core.sites import here
from planner.model.errors import PlanError, refuse
from runtime.encoding.formats.avro_shapes import name_of
from runtime.encoding.formats.extras import needs_extra
from runtime.encoding.formats.registry import HEAD, RegisteredSchema, SchemaRegistry, head_of, referred_by, split_head
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.encoding.json_text import to_json
from runtime.encoding.record_types import is_pydantic
from runtime.encoding.serdes import REFUSALS, Json
from runtime.model.errors import SerdeError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_WITHIN = 'what is referred to in "$defs", or a schema of a registry with its references'


@dataclass(frozen=True)
class JsonSchema:
    r"""JSON of `type`, whose schema follows from it, or which is checked against a given `schema`, a text or a dict.

    With a `registry` values lie as Confluent's serialisers write them, behind the number of the schema, which is
    registered under the `subject`; else they are JSON alone. Data are read as the type says, whatever schema they were
    written with. A `schema` may be one that the registry has, `registry.newest("orders-value")`, with those of other
    subjects to which it refers. It is checked where values are written and read, by
    `pip install 'samza-dsl[jsonschema]'`. Raises PlanError for a type that JSON can't hold, and a schema that is none.

    >>> from msgspec import Struct
    >>> class Order(Struct):
    ...     id: int
    >>> JsonSchema(Order).decode(JsonSchema(Order).encode(Order(7)))
    Order(id=7)
    >>> JsonSchema(Order, registry=SchemaRegistry("memory://json"), subject="orders-value").encode(Order(7))
    b'\x00\x00\x00\x00\x01{"id":7}'
    """

    type: object = Any
    schema: str | Mapping[str, object] | RegisteredSchema | None = None
    registry: SchemaRegistry | None = None
    subject: str | None = None
    place: SubjectPlace | None = field(default=None, repr=False, compare=False)
    """The stream that it writes, which a run fills in."""
    _json: Json = field(init=False, repr=False, compare=False)
    _check: Callable[[bytes], None] = field(init=False, repr=False, compare=False)
    _own: RegisteredSchema = field(init=False, repr=False, compare=False)
    _name: str = field(init=False, repr=False, compare=False)
    _head: list[bytes] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        named, said = f"JsonSchema({name_of(self.type)})", self.schema
        registered = said if isinstance(said, RegisteredSchema) else None
        others = [] if registered is None else referred_by(registered, "JSON", self.registry, named)
        if isinstance(said, RegisteredSchema):
            said = said.schema
        try:
            given = msgspec.json.decode(said) if isinstance(said, str) else said
            if given is not None:
                to_json(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise refuse(here(), f"{named}: the schema is no JSON: {error}", "a text of JSON, or a dict") from None
        if given is not None and not isinstance(given, Mapping):
            raise refuse(here(), f"JsonSchema(schema={given!r}) says nothing of values", 'schema={"type": "object", …}')
        if given is None and self.type is Any:
            raise refuse(here(), "JsonSchema() says neither a type nor a schema", "JsonSchema(Order), or schema=...")
        try:
            schema = _schema_of(self.type) if given is None else given
        except Exception as error:
            raise refuse(here(), f"JsonSchema({name_of(self.type)}): {error}", "a Struct, or a plain type") from None
        check = self._decoded if given is None else _validation(name_of(self.type), given, others)
        own = registered or RegisteredSchema(to_json(schema).decode(), "JSON")
        held = {"_json": Json(self.type), "_own": own, "_check": check}
        held |= {
            "schema": registered or (None if given is None else to_json(given).decode()),
            "_name": str(schema.get("title", "value")),
        }
        for name, value in held.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        said = {"schema": self.schema, "subject": self.subject}
        told = "".join(f", {name}={what!r}" for name, what in said.items() if what is not None)
        return f"JsonSchema({name_of(self.type)}{told}{', registry=...' if self.registry is not None else ''})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type, self.schema, self.registry, self.subject, self.place)

    def placed(self, place: SubjectPlace) -> JsonSchema:
        """Return it as it writes to a stream."""
        return self if self.registry is None or self.place == place else replace(self, place=place)

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError for what does not fit the type, or the schema."""
        data = to_json(value)
        self._check(data)
        if self.registry is None:
            return data
        if not self._head:
            self._head.append(head_of(self.registry, self._own, (self.place, self._name, self.subject), self))
        return self._head[0] + data

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`; raises SerdeError for what is no JSON, or does not fit."""
        if self.registry is not None:
            split_head(data)
            data = data[HEAD.size :]
        if self.schema is not None:
            self._check(data)
        return self._decoded(data)

    def _decoded(self, data: bytes) -> Any:
        try:
            return self._json.decode(data)
        except REFUSALS as error:
            raise SerdeError(f"JSON is no {name_of(self.type)}: {error}") from error


def _schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type; raises what msgspec and pydantic do for what JSON can't hold."""
    if is_pydantic(kind):
        found = kind.model_json_schema()
    else:
        found = msgspec.json.schema(kind, schema_hook=_schema_within)
    return {"$schema": DRAFT, "title": name_of(kind), **found}


def _schema_within(kind: Any) -> dict[str, Any]:
    if is_pydantic(kind):
        return _inlined(kind.model_json_schema())
    raise TypeError(f"{name_of(kind)} is no Struct, dataclass or plain type")


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that may lie within another: what it defines has no other place there."""
    definitions = schema.pop("$defs", {})

    def within(part: Any, met: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [within(one, met) for one in part]
        if not isinstance(part, dict):
            return part
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name in met:
            raise TypeError(f"{name} is within itself, and a model of pydantic: make it a Struct, or the whole value")
        if name:
            return within(definitions[name], (*met, name))
        return {key: within(one, met) for key, one in part.items()}

    found: dict[str, Any] = within(schema, ())
    return found


def _check_references(what: str, kind: Any, draft: Any, whole: Any, resolver: Any) -> None:
    """Raise PlanError for what a schema, and all that this leads to, refer to and nobody has, or is no schema.

    Also for what refers to itself with nothing between: no value would ever fit that.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    def refused(told: str, write: str) -> PlanError:
        return refuse(here(), f"JsonSchema({what}): the schema refers to {told}", write)

    left, said, met = [(whole, resolver)], list[tuple[str, int, Any]](), set[int]()
    leads: dict[int, set[int]] = {}
    while left or said:
        # All that lies within what is known comes first: only what is referred to elsewhere is still to be checked.
        if left:
            part, resolver = left.pop()
            contents = part.contents
            if id(contents) not in met:
                met.add(id(contents))
                left += [(one, resolver.in_subresource(one)) for one in part.subresources()]
                if isinstance(contents, Mapping):
                    known = validator_for(contents, kind).VALIDATORS
                    refs = [contents[name] for name in _REFERENCES if name in contents and name in known]
                    said += [(ref, id(contents), resolver) for ref in refs]
                    if not refs:
                        leads[id(contents)] = {*map(id, contents.get("allOf", ()))}
            continue
        ref, place, resolver = said.pop()
        try:
            found = resolver.lookup(ref)
        except (Unresolvable, LookupError, ValueError, TypeError):
            raise refused(f"{ref!r}, which it has not, and nobody fetches", _WITHIN) from None
        if id(found.contents) not in met:
            try:
                validator_for(found.contents, kind).check_schema(found.contents)
            except (SchemaError, AttributeError, TypeError) as error:
                told = error.message if isinstance(error, SchemaError) else found.contents
                raise refused(f"{ref!r}, which is no schema: {told}", "a schema there") from None
            left.append((type(whole).from_contents(found.contents, draft), found.resolver))
        leads.setdefault(place, set()).add(id(found.contents))
    try:
        TopologicalSorter(leads).prepare()
    except CycleError:
        raise refused("itself with nothing between, which no value fits", 'what it has, as "properties"') from None


def _multiples(validator: Any, of: int | float, value: object, schema: object) -> Iterator[Exception]:
    """Yield the error of a number that is no multiple: as it is written, where floats would say so of 0.07 and 0.01."""
    from jsonschema import ValidationError

    if isinstance(value, int | float) and not isinstance(value, bool) and Fraction(repr(value)) % Fraction(repr(of)):
        yield ValidationError(f"{value!r} is not a multiple of {of}")


def _doubles(validator: object, is_asked: object, value: object, schema: object) -> Iterator[Exception]:
    """Yield the error of a list that has an item twice; records in it would each be held against all others."""
    from jsonschema import ValidationError

    if is_asked and isinstance(value, list) and len({*map(_hashable, value)}) < len(value):
        yield ValidationError(f"a list of {len(value)} has an item twice")


def _hashable(value: object) -> object:
    """Return what is equal for values of JSON that are, where True is no 1, and 1 is 1.0.

    >>> _hashable([1, {"a": None}]) == _hashable([1.0, {"a": None}]), _hashable(True) == _hashable(1)
    (True, False)
    """
    if isinstance(value, dict):
        return frozenset((name, _hashable(one)) for name, one in value.items())
    return (type(value), *map(_hashable, value)) if isinstance(value, list) else (type(value) is bool, value)


def _validation(
    what: str, schema: Mapping[str, Any], others: Sequence[tuple[str, RegisteredSchema]]
) -> Callable[[bytes], None]:
    """Return what raises SerdeError for JSON that does not fit a schema; raises PlanError for one that is none.

    It may refer to others by the names that it gives them.
    """
    with needs_extra("JsonSchema(schema=...)", "jsonschema", "jsonschema"):
        import jsonschema
        from jsonschema_specifications import REGISTRY
        from referencing.jsonschema import DRAFT202012, specification_with
    if not isinstance(schema.get("$schema", DRAFT), str):
        raise refuse(here(), f"JsonSchema({what}): the schema has a $schema that is no text", f'"$schema": "{DRAFT}"')
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise refuse(here(), f"JsonSchema({what}): the schema is none: {error.message}", "a JSON Schema") from None
    except RecursionError:
        raise refuse(
            here(), f"JsonSchema({what}): the schema is nested too deep to be checked", "$defs in it"
        ) from None

    def draft_of(said: Any) -> Any:
        draft = said.get("$schema") if isinstance(said, Mapping) else None
        return specification_with(draft, default=DRAFT202012) if isinstance(draft, str) else DRAFT202012

    def resource(said: Any) -> Any:
        return draft_of(said).create_resource(said)

    whole = resource(schema)
    base = whole.id() or ""
    known: Any = REGISTRY.with_resource(base, whole)
    for name, other in others:
        # As Confluent's clients have it by its name, and as JSON Schema has it by where the schema lies.
        held = resource(msgspec.json.decode(other.schema))
        known = known.with_resources([(name, held), (urljoin(base, name), held)])
    _check_references(what, kind, draft_of(schema), whole, known.resolver(base))
    validator = jsonschema.validators.extend(kind, {"multipleOf": _multiples, "uniqueItems": _doubles})(
        schema, registry=known
    )

    def check(data: bytes) -> None:
        try:
            wrong = next(iter(validator.iter_errors(msgspec.json.decode(data))), None)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise SerdeError(f"bytes are no JSON: {error}") from error
        except RecursionError:
            told = "JSON is nested too deep to be checked against its schema, or that refers to itself without an end"
            raise SerdeError(told) from None
        if wrong is not None:
            raise SerdeError(f"JSON does not fit its schema at {wrong.json_path}: {wrong.message}")

    return check
