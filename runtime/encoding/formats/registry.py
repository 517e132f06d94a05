"""Registries of schemas: the client of one over HTTP or in memory, and the bytes in front of what names its schema."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from struct import Struct
from typing import Any, Literal, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from operators.core.sites import here
from planner.model.errors import refuse
from runtime.encoding.formats.subjects import NAMINGS, Naming, SubjectPlace, subject_of
from runtime.encoding.json_text import to_json
from runtime.model.clock import monotonic_ms
from runtime.model.errors import Refused, SamzaError, SerdeError, Unreachable
from runtime.model.urls import shown_url
from runtime.model.whole_answers import MOST_BYTES, WholeAnswersConnection, WholeAnswersTls, whole_body

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
MAGIC = 0
HEAD = Struct(">bI")
"""What Confluent's serialisers write in front: a byte that is always 0, and the number of the schema."""
TIMEOUT_SECONDS = 10
ABSENT = (40401, 40402, 40403)
"""The codes of a registry for a subject, a version and a schema that it has not."""
MOST_REFERRED = 200
"""The schemas that one may name, all in all: of a registry that gives ever more there would be no end."""
MOST_SECONDS = 60
"""For so long the schemas that one names are asked for, all in all: each answer may take its time."""
TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaReference(msgspec.Struct, frozen=True):
    """Another schema that one names: as what, and which version of which subject it is."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as a registry has it: its text, what it is written in, and the schemas that it names."""

    schema: str
    written_in: SchemaKind = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def body(self) -> dict[str, object]:
        """Return what a registry is sent."""
        found: dict[str, object] = {"schema": self.schema}
        if self.written_in != "AVRO":
            found["schemaType"] = self.written_in
        if self.references:
            found["references"] = [msgspec.to_builtins(one) for one in self.references]
        return found


class SchemaVersion(msgspec.Struct, frozen=True):
    """A schema of a subject: its number among all schemas, and its version there."""

    id: int
    version: int


class _SchemaAnswer(msgspec.Struct):
    """The answer that tells a schema."""

    schema: str
    written_in: str | None = msgspec.field(default=None, name="schemaType")
    references: list[SchemaReference] | None = None


class _NumberAnswer(msgspec.Struct):
    """The answer to a schema that was registered."""

    id: int


class _CompatibilityAnswer(msgspec.Struct):
    """The answer to whether a schema is compatible."""

    is_compatible: bool


class _Answers(Protocol):
    """Sends requests of the registry's protocol; raises `_Absent` where what is asked for is not there."""

    def __call__(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Return what was answered."""


class _Absent(Exception):
    """A registry has no such subject, version or schema."""


@dataclass(frozen=True)
class SchemaRegistry:
    """A registry of schemas with Confluent's protocol: `Avro(Order, registry=SchemaRegistry("https://schemas:8081"))`.

    It asks with a `username` and `password`, or with a `token` (a text, or a function that returns one), and trusts the
    certificates in `ca_file`. `naming` says under which subject the schema of a stream is: that of the topic
    ("orders-value"), of the record's name, or of both ("orders-Order"). A schema that is not there is registered before
    the first record is written, if it is compatible with the newest; with `register=False` the run ends instead.

    Schemas never change under their numbers, so each is asked for once. "memory://name" is a registry of this process
    alone, for tests. Several URLs with commas between are tried in turn. Raises SamzaError for what is no such URL.

    >>> SchemaRegistry("https://me:secret@schemas:8081")
    SchemaRegistry('https://schemas:8081', naming='topic', register=True)
    """

    url: str
    username: str | None = None
    password: str | None = None
    token: str | Callable[[], str] | None = None
    naming: Naming = "topic"
    register: bool = True
    ca_file: str | None = None
    _ids: dict[tuple[str, RegisteredSchema], int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _schemas: dict[int, RegisteredSchema] = field(init=False, repr=False, compare=False, default_factory=dict)
    _ask: _Answers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.naming not in NAMINGS:
            raise SamzaError(f"SchemaRegistry(naming={self.naming!r}): there are {', '.join(map(repr, NAMINGS))}")
        urls = [urlsplit(one.strip()) for one in self.url.split(",")]
        if not all(one.netloc and one.scheme in ("http", "https", "memory") for one in urls):
            raise SamzaError(f'SchemaRegistry({shown(self.url)!r}): write the URL of one: "https://schemas:8081"')
        if urls[0].scheme == "memory":
            ask: _Answers = _MEMORIES.setdefault(urls[0].netloc, _Memory())
        else:
            ask = _Http(self)
        object.__setattr__(self, "_ask", ask)

    def __repr__(self) -> str:
        return f"SchemaRegistry({shown(self.url)!r}, naming={self.naming!r}, register={self.register})"

    def __reduce__(self) -> tuple[object, ...]:
        # What was asked for stays here: a worker asks for itself.
        said = (self.url, self.username, self.password, self.token, self.naming, self.register, self.ca_file)
        return type(self), said

    def schema(self, id: int, serialized: bool = False) -> RegisteredSchema:
        """Return the schema with a number; a file of Protobuf as text, or where it is to be `serialized`, in base64.

        Raises SerdeError where there is none, and `Unreachable` where the registry does not answer.
        """
        if id not in self._schemas:
            try:
                found = self._ask("GET", f"/schemas/ids/{id}{'?format=serialized' if serialized else ''}")
            except _Absent as error:
                raise SerdeError(f"the registry {shown(self.url)} has no schema {id}: {error}") from None
            self._schemas[id] = _registered(found)
        return self._schemas[id]

    def id_of(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the number of a subject's schema, and register it where it is new.

        Raises `Refused` where it may not be registered, or is incompatible, and `Unreachable` where nobody answers.
        """
        known = subject, schema
        if known not in self._ids:
            found = self._looked_up(subject, schema)
            self._ids[known] = self._registered(subject, schema) if found is None else found.id
        return self._ids[known]

    def version_of(self, subject: str, schema: RegisteredSchema) -> SchemaVersion:
        """Return the number and version of a subject's schema, and register it where it is new; raises as `id_of`."""
        self.id_of(subject, schema)
        found = self._looked_up(subject, schema)
        if found is None:
            raise Refused(f"{shown(self.url)} has no schema of {subject!r} that was just registered there")
        return found

    def referred(self, schema: RegisteredSchema) -> list[tuple[str, RegisteredSchema]]:
        """Return the schemas that one names, as what, those before others that name them; raises as `schema`.

        What names itself by way of others is an error as well, as is one of more than `MOST_REFERRED`.
        """
        return [*self._referred(schema, {}, (), monotonic_ms() + MOST_SECONDS * 1_000).items()]

    def _referred(
        self,
        schema: RegisteredSchema,
        known: dict[tuple[str, int], tuple[RegisteredSchema, dict[str, RegisteredSchema]]],
        within: tuple[tuple[str, int], ...],
        until_ms: float,
    ) -> dict[str, RegisteredSchema]:
        """Return what a schema names, where it lies within others: `known` has what was asked for, and what that names.

        Many may name one, which is asked for once.
        """
        found: dict[str, RegisteredSchema] = {}
        for one in schema.references:
            place = one.subject, one.version
            if place in within or len(known) + len(within) >= MOST_REFERRED:
                wrong = "names itself" if place in within else f"is one of more than {MOST_REFERRED} that name others"
                raise SerdeError(f"a schema of {shown(self.url)} can't be read: {one.subject} {one.version} {wrong}")
            if place not in known:
                if monotonic_ms() > until_ms:
                    raise Unreachable(
                        f"the registry {shown(self.url)} has not told within {MOST_SECONDS} seconds all schemas that "
                        f"one names: {len(known) + len(within)} were there, and {one.subject} {one.version} was next"
                    )
                try:
                    path = f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}"
                    other = _registered(self._ask("GET", path))
                except _Absent as error:
                    raise SerdeError(
                        f"the registry {shown(self.url)} has no {one.subject} {one.version}: {error}"
                    ) from None
                known[place] = other, self._referred(other, known, (*within, place), until_ms)
            other, named = known[place]
            found |= {**named, one.name: other}
        return found

    def newest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject, to be written by: `Avro(Order, schema=..., registry=registry)`.

        Raises `Refused` where there is none, and `Unreachable` where the registry does not answer.

        >>> registry = SchemaRegistry("memory://named")
        >>> _ = registry.id_of("orders-value", RegisteredSchema('"long"'))
        >>> registry.newest("orders-value").schema
        '"long"'
        """
        try:
            return _registered(self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest"))
        except _Absent as error:
            raise Refused(f"the registry {shown(self.url)} has no subject {subject!r}: {error}") from None

    def _looked_up(self, subject: str, schema: RegisteredSchema) -> SchemaVersion | None:
        try:
            found = self._ask("POST", f"/subjects/{quote(subject, safe='')}", schema.body())
        except _Absent:
            return None
        return SchemaVersion(found["id"], found["version"])

    def _registered(self, subject: str, schema: RegisteredSchema) -> int:
        if not self.register:
            raise Refused(
                f"the registry {shown(self.url)} has no such schema of {subject!r}, and this run is not to register "
                f"one: register it, or write SchemaRegistry(..., register=True). It is {schema.schema}"
            )
        name = quote(subject, safe="")
        try:
            path = f"/compatibility/subjects/{name}/versions/latest?verbose=true"
            found = self._ask("POST", path, schema.body())
        except _Absent:
            found = {"is_compatible": True}
        if not found["is_compatible"]:
            why = "; ".join(map(str, found.get("messages", ()))) or "it does not say why"
            raise Refused(
                f"the schema of {subject!r} is incompatible with the newest one of {shown(self.url)}: {why}. Give new "
                "fields a default, or write to another stream"
            )
        return int(self._ask("POST", f"/subjects/{name}/versions", schema.body())["id"])


def referred_by(
    schema: RegisteredSchema, kind: SchemaKind, registry: SchemaRegistry | None, what: str
) -> list[tuple[str, RegisteredSchema]]:
    """Return the schemas that a given one names, as `SchemaRegistry.referred` does.

    Raises PlanError where it is written in another language, or there is no registry.
    """
    if schema.written_in != kind:
        raise refuse(here(), f"{what}: the schema is written in {schema.written_in}", f"one in {kind}")
    if registry is None:
        raise refuse(here(), f"{what}: the schema is of a registry, whose number lies in front", "registry= as well")
    return registry.referred(schema)


def _registered(found: Mapping[str, Any]) -> RegisteredSchema:
    references = (SchemaReference(one["name"], one["subject"], one["version"]) for one in found.get("references") or ())
    return RegisteredSchema(found["schema"], found.get("schemaType") or "AVRO", tuple(references))


class _Http:
    """Asks a registry over HTTP; the URLs of one are tried in turn."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._shown = shown(registry.url)
        self._registry = registry
        self._bases = [_split(one.strip()) for one in registry.url.split(",")]
        handlers: list[urllib.request.BaseHandler] = [_WholeHttp()]
        if any(url.startswith("https:") for url, _, _ in self._bases):
            handlers.append(_WholeHttps(ssl.create_default_context(cafile=registry.ca_file)))
        # A redirection would carry what we ask with to another host.
        self._open = urllib.request.build_opener(_NoRedirection, *handlers).open

    def __call__(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        failed: Exception | None = None
        needed = _answer_to(path, body is None)
        for url, user, password in self._bases:
            data = None if body is None else to_json(body)
            request = urllib.request.Request(url + path, data, {"Accept": TYPE, "Content-Type": TYPE}, method=method)
            if (said := self._authorization(user, password)) is not None:
                request.add_unredirected_header("Authorization", said)
            try:
                with self._open(request, timeout=TIMEOUT_SECONDS) as answer:
                    found = json.loads(whole_body(answer))
                msgspec.convert(found, needed)
                return found
            except msgspec.ValidationError as error:
                failed = ValueError(f"what answers is no registry: {error}")
            except urllib.error.HTTPError as error:
                with error:
                    failed = self._told(error, path)
                if failed is None:
                    continue
                raise failed from None
            except RecursionError:
                failed = ValueError("what answers is no registry: its answer is nested too deep")
            except (OSError, HTTPException, ValueError) as error:
                failed = error
        # To ask again would show the same certificate.
        is_trusted = not isinstance(getattr(failed, "reason", None), ssl.SSLCertVerificationError)
        kind = Unreachable if is_trusted else Refused
        raise kind(f"the registry {self._shown} can't be asked: {failed}") from failed

    def _authorization(self, user: str | None, password: str | None) -> str | None:
        token = self._registry.token
        if token is not None:
            return f"Bearer {token() if callable(token) else token}"
        user = user if self._registry.username is None else self._registry.username
        password = password if self._registry.password is None else self._registry.password
        if user is None:
            return None
        return f"Basic {b64encode(f'{user}:{password or str()}'.encode()).decode()}"

    def _told(self, error: urllib.error.HTTPError, path: str) -> Exception:
        try:
            said = json.loads(error.read(MOST_BYTES))
            code, words = int(said.get("error_code", error.code)), str(said.get("message", ""))
        except (ValueError, TypeError, AttributeError, OSError, HTTPException, RecursionError):
            code, words = error.code, ""
        if code in ABSENT:
            return _Absent(words or path)
        # Of something that is absent a registry says what: any other 404 is of a URL at which there is none.
        what = f"the registry {self._shown} answered {error.code} to {path.partition('?')[0]}: {words or error.reason}"
        if error.code in (401, 403):
            return Refused(f"{what}. Check the username and password, or the token, of SchemaRegistry(...)")
        if 300 <= error.code < 400:
            to = shown(str(error.headers.get("Location", "")).partition("/subjects/")[0].partition("/schemas/")[0])
            return Refused(f"{what}. Nobody else is told a secret: write where it is, {to!r}, if that is yours")
        return Unreachable(what) if error.code >= 500 or error.code in (408, 429) else Refused(what)


def _answer_to(path: str, asks: bool) -> type[msgspec.Struct]:
    if asks:
        return _SchemaAnswer
    if path.startswith("/compatibility/"):
        return _CompatibilityAnswer
    return _NumberAnswer if path.endswith("/versions") else SchemaVersion


class _WholeHttp(urllib.request.HTTPHandler):
    """Asks for answers that come whole in time."""

    def http_open(self, req: urllib.request.Request) -> Any:
        """Send a request, and return its answer."""
        return self.do_open(WholeAnswersConnection, req)


class _WholeHttps(urllib.request.HTTPSHandler):
    """Asks for answers by TLS that come whole in time."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trusted = context

    def https_open(self, req: urllib.request.Request) -> Any:
        """Send a request, and return its answer."""
        return self.do_open(WholeAnswersTls, req, context=self._trusted)


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, so that nobody else is told a secret."""

    def redirect_request(self, *_: object) -> None:
        return None


def _split(url: str) -> tuple[str, str | None, str | None]:
    """Return a URL without who asks, and who that is."""
    found = urlsplit(url)
    base = f"{found.scheme}://{found.netloc.rpartition('@')[2]}{found.path.rstrip('/')}"
    user = None if found.username is None else unquote(found.username)
    return base, user, None if found.password is None else unquote(found.password)


def shown(url: str) -> str:
    """Return the URLs of a registry without what may be a secret.

    >>> shown("https://me:secret@a:8081/x?key=1,http://b:8081")
    'https://a:8081/x,http://b:8081'
    """
    return ",".join(shown_url(one.strip()) for one in url.split(","))


class _Memory:
    """A registry of this process: every schema is compatible, as with a registry that is told NONE."""

    def __init__(self) -> None:
        self._schemas: list[dict[str, Any]] = []
        self._versions: dict[str, list[int]] = {}

    def __call__(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        _, what, name, *rest = path.partition("?")[0].split("/")
        if what == "schemas":
            id = int(rest[0])
            if not 0 < id <= len(self._schemas):
                raise _Absent(f"there are {len(self._schemas)}")
            return self._schemas[id - 1]
        if what == "compatibility":
            return {"is_compatible": True}
        versions = self._versions.setdefault(unquote(name), [])
        if method == "GET":
            if not versions:
                raise _Absent(name)
            return self._schemas[versions[-1 if rest[-1] == "latest" else int(rest[-1]) - 1] - 1]
        schema = {**(body or {})}
        if rest:
            if schema not in self._schemas:
                self._schemas.append(schema)
            id = self._schemas.index(schema) + 1
            if id not in versions:
                versions.append(id)
            return {"id": id}
        for version, id in enumerate(versions, 1):
            if self._schemas[id - 1] == schema:
                return {"id": id, "version": version}
        raise _Absent(name)


_MEMORIES: dict[str, _Memory] = {}


def head_of(
    registry: SchemaRegistry,
    schema: RegisteredSchema,
    names: tuple[SubjectPlace | None, str, str | None],
    serde: object,
) -> bytes:
    """Return what lies in front of values, with their schema registered; raises as `SchemaRegistry.id_of` does.

    The names are those of the place that is written, of the record, and of the subject where that is said.
    """
    place, record, said = names
    return HEAD.pack(MAGIC, registry.id_of(subject_of(registry.naming, place, record, said, serde), schema))


def split_head(data: bytes) -> int:
    """Return the number of the schema that bytes begin with; raises SerdeError where they begin otherwise."""
    if len(data) < HEAD.size or data[0] != MAGIC:
        raise SerdeError(
            f"bytes that begin with {data[:8]!r} name no schema of a registry, as Confluent's serialisers do: were "
            "they written without one, say no registry="
        )
    found: int = HEAD.unpack_from(data)[1]
    return found
