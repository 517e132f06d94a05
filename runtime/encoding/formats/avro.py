"""Avro as bytes of values: by a schema that is derived or given, with a registry or without."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from io import BytesIO
from itertools import repeat
from typing import Any
from uuid import UUID

import msgspec

from operators.core.sites import here
from operators.core.wording import shown
from planner.model.errors import refuse
from runtime.encoding.formats.avro_bounds import DEEPEST, bounds_check
from runtime.encoding.formats.avro_shapes import (
    AvroShape,
    Change,
    Datum,
    NotHeld,
    Schema,
    columns_in,
    name_of,
    shape_of,
)
from runtime.encoding.formats.extras import needs_extra
from runtime.encoding.formats.plain_values import REFUSALS, PlainValues
from runtime.encoding.formats.registry import (
    HEAD,
    RegisteredSchema,
    SchemaRegistry,
    head_of,
    referred_by,
    split_head,
)
from runtime.encoding.formats.rows import wrong_names
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.encoding.json_text import to_json
from runtime.model.errors import SerdeError

AT_ONCE = 100
"""The values whose data are in memory beside them: of more, Python would look for garbage among all of them."""

RecordClass = type
"""A type, under a name that no field has."""


@dataclass(frozen=True)
class Avro:
    r"""Avro of `type`, by the schema that follows from it, or by another `schema`, a text or a dict.

    A type is a Struct, a dataclass, a model of pydantic or attrs, or a plain type; without one, values are dicts and
    need a `schema`. With a `registry` values lie as Confluent's serialisers write them: each is read by the schema that
    it was written with, and the own schema is registered under the `subject`, which follows from the stream if it is
    not said. Without one there is no number in front, and what an earlier schema, or type, has written is read by
    `written_with`. A `schema` may be one that the registry has, `registry.newest("orders-value")`, with those of other
    subjects to which it refers, and is not registered anew then. Records that are derived lie in a `namespace`.

    Of a type the names of fields count, and not that of the record: a field that was not written takes its default, and
    a field of more is left out. A `schema` is resolved as Avro says, with aliases. Raises PlanError for a part of the
    type that Avro, or the schema, can't hold. It needs `pip install 'samza-dsl[avro]'`.

    >>> from msgspec import Struct
    >>> class Order(Struct):
    ...     id: int
    ...     note: str | None = None
    >>> Avro(Order).decode(Avro(Order).encode(Order(7)))
    Order(id=7, note=None)
    >>> orders = Avro(Order, registry=SchemaRegistry("memory://shop"), subject="orders-value")
    >>> orders.encode(Order(7))[:5], orders.decode(orders.encode(Order(7, "by post")))
    (b'\x00\x00\x00\x00\x01', Order(id=7, note='by post'))
    """

    type: object = Any
    schema: str | Mapping[str, object] | Sequence[object] | RegisteredSchema | None = None
    registry: SchemaRegistry | None = None
    subject: str | None = None
    namespace: str | None = None
    written_with: RecordClass | str | Mapping[str, object] | Sequence[object] | None = None
    place: SubjectPlace | None = field(default=None, repr=False, compare=False)
    """The stream that it writes, which a run fills in."""
    _codec: AvroCodec = field(init=False, repr=False, compare=False)
    _readers: dict[bytes, DatumReader] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The reader of each schema, by what lies in front of its data."""
    _head: list[bytes] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        text = self._text("schema")
        if not isinstance(self.schema, RegisteredSchema):
            object.__setattr__(self, "schema", text)
        object.__setattr__(self, "written_with", self._text("written_with"))
        if self.registry is not None and self.written_with is not None:
            raise refuse(here(), f"{self!r}: written_with= is for bytes without a registry", "registry= alone")
        object.__setattr__(self, "_codec", AvroCodec(self.type, text, self.namespace))
        if self.registry is None:
            earlier = self._text("written_with")
            written = self._codec.schema if earlier is None else parsed(_of_text(earlier))
            self._readers[b""] = self._codec.reading(written, 0)

    def __repr__(self) -> str:
        # By this an application knows what its keys lie as: the place of a registry is no part of it.
        said = {"schema": self.schema, "subject": self.subject, "namespace": self.namespace}
        told = "".join(f", {name}={what!r}" for name, what in said.items() if what is not None)
        return f"Avro({name_of(self.type)}{told}{', registry=...' if self.registry is not None else ''})"

    def _text(self, name: str) -> str | None:
        """Return a schema as JSON, so that equal ones are equal, whoever has said them."""
        said = vars(self)[name]
        if isinstance(said, type) and name == "written_with":
            said = AvroCodec(said, None, self.namespace).text
        try:
            if isinstance(said, RegisteredSchema):
                others = referred_by(said, "AVRO", self.registry, f"Avro({name_of(self.type)})")
                said = _whole(_of_text(said.schema), others)
            return None if said is None else to_json(_of_text(said)).decode()
        except RecursionError:
            wrong = f"Avro({name_of(self.type)}, {name}=...): the schema is nested too deep"
            raise refuse(here(), wrong, "types with names, by which others call them") from None

    def __reduce__(self) -> tuple[object, ...]:
        said = self.type, self.schema, self.registry, self.subject, self.namespace, self.written_with, self.place
        return type(self), said

    @property
    def text(self) -> str:
        """The schema, as JSON."""
        return self._codec.text

    def placed(self, place: SubjectPlace) -> Avro:
        """Return it as it writes to a stream."""
        return self if self.registry is None or self.place == place else replace(self, place=place)

    def encode(self, value: object) -> bytes:
        """Return the bytes of `value`; raises SerdeError for what is not of the type."""
        return self._codec.write_one(value, self._start())

    def encode_all(self, values: list[object]) -> list[bytes]:
        """Return the bytes of each of many values."""
        return self._codec.write(values, self._start())

    def decode(self, data: bytes) -> Datum:
        """Return the value of `data`; raises SerdeError for what does not fit its schema, or the type."""
        return self._codec.made_one(self._reader(data).one(data))

    def plain(self, data: bytes, change: Change) -> Datum:
        """Return the plain value of `data`, of whose datum a function makes another one first; raises SerdeError."""
        return self._codec.plain(change(self._reader(data).one(data)))

    def decode_all(self, column: Sequence[bytes]) -> list[Datum]:
        """Return the value of each of many bytes."""
        start = column[0][: HEAD.size] if self.registry is not None and column else b""
        # Nearly always one schema has written all of a column.
        if all(map(bytes.startswith, column, repeat(start))):
            return self._codec.values(column, self._reader(column[0])) if column else []
        return list(map(self.decode, column))

    def _reader(self, data: bytes) -> DatumReader:
        """Return what reads the schema that bytes begin with."""
        head = b"" if self.registry is None else data[: HEAD.size]
        found = self._readers.get(head)
        if found is None:
            assert self.registry is not None, "without one the reader is there from the beginning"
            schema = self._registered(self.registry, split_head(data))
            found = self._readers[head] = self._codec.reading(schema, HEAD.size)
        return found

    def _registered(self, registry: SchemaRegistry, id: int) -> Schema:
        found = registry.schema(id)
        if found.written_in != "AVRO":
            raise SerdeError(f"schema {id} of {registry!r} is {found.written_in}, and this stream is read as Avro")
        others = registry.referred(found)
        try:
            return parsed(_with_times(_whole(_of_text(found.schema), others)))
        except RecursionError:
            raise SerdeError(f"schema {id} of {registry!r} is nested deeper than a schema is read") from None

    def _start(self) -> bytes:
        """Return what lies in front of each value; the first time, with the schema registered."""
        if self.registry is None:
            return b""
        if not self._head:
            names = self.place, self._codec.name, self.subject
            own = self.schema if isinstance(self.schema, RegisteredSchema) else RegisteredSchema(self._codec.text)
            self._head.append(head_of(self.registry, own, names, self))
        return self._head[0]


class AvroCodec:
    """Turns values of a type into data of Avro by one schema, and what any schema has written into values.

    Where it does not resolve, the schema is only one of those that have written. Raises PlanError for a type that the
    schema does not hold, and for a schema that is none.
    """

    def __init__(self, kind: object, schema: str | None, namespace: str | None = None, resolves: bool = True) -> None:
        with needs_extra("Avro", "fastavro", "avro"):
            import fastavro
            import fastavro.read
            import fastavro.validation
            import fastavro.write
        fastavro.read.LOGICAL_READERS.update(_NAMED)
        fastavro.write.LOGICAL_WRITERS.update(_kept_whole(fastavro.write.LOGICAL_WRITERS))
        what = f"Avro({name_of(kind)})"
        shape: AvroShape | None = None
        given = None
        if schema is not None and resolves:
            given = {name.rpartition(".")[2]: name for _, name, _ in _types_in(_of_text(schema))}
        if kind is not Any:
            try:
                shape = shape_of(kind, namespace, given)
            except NotHeld as not_held:
                # A schema may say what a type does not, as how many digits a Decimal has.
                if schema is None:
                    raise refuse(here(), f"{what}: {not_held.where} {not_held.wrong}", not_held.instead) from None
            except (TypeError, NameError) as error:
                raise refuse(here(), f"{what}: {error}", "a Struct, a dataclass, or a plain type") from None
        elif schema is None:
            raise refuse(
                here(), "Avro() says neither the type of values nor their schema", "Avro(Order), or Avro(schema=...)"
            )
        said = shape.schema if schema is None and shape is not None else _of_text(schema or "")
        if schema is not None and shape is not None and resolves:
            _check_all_held(what, shape.schema, said)
        try:
            self.schema: Schema = fastavro.parse_schema(said)
            self._filled: Schema = self.schema
            self._copies = False
            if schema is not None:
                self._filled, self._copies = _with_data(self.schema, shape is not None)
        except Exception as error:
            raise refuse(
                here(), f"{what}: the schema is none of Avro: {error}", "a schema as Avro specifies it"
            ) from None
        self.text = to_json(said).decode()
        self.name = _name_in(self.schema)
        self._given = schema is not None and resolves
        self._plain = PlainValues(kind)
        self._derived: Schema = None if shape is None else shape.schema
        self._change: Change | None = None if shape is None else shape.write
        self._back: Change | None = None if shape is None else shape.read
        self._write = fastavro.schemaless_writer
        self._read: Callable[..., Datum] = fastavro.schemaless_reader
        self._validate = fastavro.validation.validate
        self._check_bounds = bounds_check(self.schema)
        if self._change is not None and self._check_bounds is not None:
            self._change = partial(_within_stack, self._change, what)
        self._what = what

    def write_one(self, value: object, start: bytes = b"") -> bytes:
        """Return the bytes of a value, behind a start; raises SerdeError for what the schema does not hold."""
        plain = self._plain.taken_one(value)
        datum = plain if self._change is None else self._change(plain)
        if not self._given and self._check_bounds is None:
            file = BytesIO()
            file.write(start)
            try:
                self._write(file, self.schema, datum)
            except Exception:
                return self._written([datum], start)[0]  # which says what is wrong
            return file.getvalue()
        return self._written([datum], start)[0]

    def write(self, values: list[object], start: bytes = b"") -> list[bytes]:
        """Return the bytes of values, each behind a start; raises SerdeError for what the schema does not hold."""
        found: list[bytes] = []
        for first in range(0, len(values), AT_ONCE):
            data = self._plain.taken(values[first : first + AT_ONCE])
            found += self._written(data if self._change is None else map(self._change, data), start)
        return found

    def _written(self, data: Iterable[Datum], start: bytes) -> list[bytes]:
        write, schema, given, found = self._write, self._filled, self._given, list[bytes]()
        if given:
            # Else fastavro leaves out the entries of a dict that the schema does not name.
            write = partial(write, strict_allow_default=True)
        datum = None
        try:
            for datum in data:
                if given:
                    # fastavro alone cuts off what an int has behind its point, and more; types were looked at already.
                    self._validate(datum, schema)
                file = BytesIO()
                file.write(start)
                write(file, schema, datum)
                found.append(file.getvalue())
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"{self._what} has no bytes for {shown(datum)}: {error}") from error
        if self._check_bounds is not None:
            for one in found:
                self._check_bounds(one[len(start) :])
        return found

    def made_one(self, datum: Datum) -> Datum:
        """Return the value of a datum that was read; raises SerdeError where it is none of the type."""
        return self._plain.made_one(self.plain(datum))

    def plain(self, datum: Datum) -> Datum:
        """Return the plain value of a datum that was read; raises SerdeError where a part of it is of another shape."""
        if self._back is None:
            return datum
        try:
            return self._back(datum)
        except REFUSALS as error:
            raise SerdeError(f"what was read is no {self._what}: {error or type(error).__name__}") from error

    def made(self, data: list[Datum]) -> list[Datum]:
        """Return the values of data that were read; raises SerdeError where they are none of the type."""
        return self._plain.made(data if self._back is None else list(map(self.plain, data)))

    def values(self, column: Sequence[bytes], read: DatumReader) -> list[Datum]:
        """Return the values of many bytes, a few at a time: their data are many objects, which soon go again."""
        parts = (column[first : first + AT_ONCE] for first in range(0, len(column), AT_ONCE))
        return [value for part in parts for value in self.made(read(part))]

    def reading(self, written: Schema, skipped: int) -> DatumReader:
        """Return what reads data that a schema has written, each behind so many bytes."""
        wanted = self._filled if self._given and written != self.schema else None
        # A schema of one's own may have other names for what was written.
        if wanted is None and written != self.schema and (wrong := wrong_names(self._plain.type, columns_in(written))):
            raise SerdeError(f"{self._what}: the schema of what was written {wrong}")
        if wanted is None and self._derived is not None and written != self._derived:
            written = _texts_as(written, self._derived)
        # Of a union of records the name tells which one it is; of others the types do.
        named = self._back is not None
        read = self._read
        if wanted is not None or named:
            told = {"return_record_name": named, "return_record_name_override": named}
            read = partial(read, reader_schema=wanted, **told)
        read = read if wanted is None or not self._copies else partial(_copied, read)
        return DatumReader(read, _read_whole(written), skipped)


def _within_stack(change: Change, what: str, plain: Datum) -> Datum:
    """Return what a change makes of a plain value; raises SerdeError for one that lies deeper than the stack goes."""
    try:
        return change(plain)
    except RecursionError:
        raise SerdeError(f"{what} has no bytes for a value that is nested deeper than {DEEPEST} levels") from None


class DatumReader:
    """Reads data that one schema has written, each behind so many bytes."""

    def __init__(self, read: Callable[..., Datum], written: Schema, skipped: int) -> None:
        self._read, self._written, self._skipped = read, written, skipped
        self._check_bounds = bounds_check(written, skipped)

    def __call__(self, column: Iterable[bytes]) -> list[Datum]:
        """Return the data of many bytes; raises SerdeError for what the schema has not written."""
        read, written, skipped, check, found = self._read, self._written, self._skipped, self._check_bounds, []
        try:
            for data in column:
                if check is not None:
                    check(data)
                file = BytesIO(data)
                file.seek(skipped)
                found.append(read(file, written))
                if file.tell() != len(data):
                    raise SerdeError(f"{len(data) - file.tell()} bytes are left behind a value: it is another schema")
        except SerdeError:
            raise
        except Exception as error:
            wrong = f"bytes are not what {_name_in(written)} writes: {error or type(error).__name__}"
            raise SerdeError(wrong) from error
        return found

    def one(self, data: bytes) -> Datum:
        """Return the datum of bytes, sooner than of many; raises SerdeError for what the schema has not written."""
        if self._check_bounds is None:
            file = BytesIO(data)
            file.seek(self._skipped)
            try:
                found = self._read(file, self._written)
            except Exception:
                return self([data])[0]  # which says what is wrong
            if file.tell() == len(data):
                return found
        return self([data])[0]


def parsed(schema: Schema) -> Schema:
    """Return a schema as fastavro takes it; raises SerdeError for what is none."""
    with needs_extra("Avro", "fastavro", "avro"):
        import fastavro
    try:
        return fastavro.parse_schema(schema)
    except Exception as error:
        raise SerdeError(f"a schema is none of Avro: {error}") from error


PARTS = ("type", "items", "values", "fields")
"""What of a schema may hold others."""
CONNECT = "connect.name"
_TIMES = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
}
"""Types of Debezium that Avro has as well, under another name."""
EPOCH = dt.datetime(1970, 1, 1)


def clock_of(unit: str, value: int) -> dt.time | str:
    """Return the time of a day; one beyond a day, as MySQL's TIME may be, as text: no time of a day is that.

    >>> clock_of("milliseconds", 1_500), clock_of("milliseconds", -1_500)
    (datetime.time(0, 0, 1, 500000), '-PT1.5S')
    """
    passed = dt.timedelta(**{unit: value})
    if dt.timedelta() <= passed < dt.timedelta(days=1):
        return (EPOCH + passed).time()
    found: str = msgspec.to_builtins(passed)
    return found


WHOLE = "-whole"
"""What is behind the name of a logical type of which nothing may be lost as it is written, or as it is read."""


def _decimal(unscaled: bytes, schema: Schema, *_: object) -> Decimal:
    """Return a decimal that has been read; raises SerdeError for more digits than its schema says, which are rounded.

    So are they by fastavro, and where there are a million it takes its time for it.
    """
    precision, scale = schema["precision"], schema.get("scale", 0)
    # Each digit is a little less than 3.33 bits.
    if int.from_bytes(unscaled, "big", signed=True).bit_length() <= precision * 3.33 + 1:
        found = decimal_of(unscaled, scale)
        if found.adjusted() + scale < precision:
            return found
    raise SerdeError(f"a decimal of {len(unscaled)} bytes has more than the {precision} digits that its schema says")


def _read_whole(schema: Schema) -> Schema:
    """Return a schema that has written, by which decimals are read as they are."""
    schema = deepcopy(schema)
    parts = [schema]
    for part in parts:  # which grows meanwhile
        if isinstance(part, dict) and part.get("logicalType") == "decimal":
            part["logicalType"] += WHOLE
        parts += _within(part)
    return schema


_NAMED: dict[str, Callable[..., object]] = {
    **dict.fromkeys((f"{base}-decimal{WHOLE}" for base in ("bytes", "fixed")), _decimal),
    "long-io.debezium.time.NanoTimestamp": lambda value, *_: EPOCH + dt.timedelta(microseconds=value // 1000),
    "int-io.debezium.time.Time": lambda value, *_: clock_of("milliseconds", value),
    "long-io.debezium.time.MicroTime": lambda value, *_: clock_of("microseconds", value),
    "long-io.debezium.time.NanoTime": lambda value, *_: clock_of("microseconds", value // 1000),
    "record-io.debezium.data.VariableScaleDecimal": lambda held, *_: decimal_of(held["value"], held["scale"]),
    # Text of days and clocks that are in no zone, and have the letter of UTC behind them all the same.
    **dict.fromkeys(
        (f"string-io.debezium.time.Iso{kind}" for kind in ("Date", "Time", "Timestamp")),
        lambda text, *_: text.removesuffix("Z"),
    ),
}
"""What reads types of Debezium that Avro has not, as fastavro finds it: by the type below and the name."""


def decimal_of(unscaled: bytes, scale: int) -> Decimal:
    r"""Return a decimal of all digits that an unscaled number has, whatever a context of decimals keeps.

    >>> decimal_of(b"\x83", 2)
    Decimal('-1.25')
    """
    return Decimal(f"{int.from_bytes(unscaled, 'big', signed=True)}E{-scale}")


def _with_times(schema: Schema) -> Schema:
    """Return a schema in which the times of Debezium are told as Avro tells them."""
    if isinstance(schema, list):
        return list(map(_with_times, schema))
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_times(one) if name in PARTS else one for name, one in schema.items()}
    name = str(schema.get(CONNECT))
    time = name if f"{schema.get('type')}-{name}" in _NAMED else _TIMES.get(name)
    return found if time is None or "logicalType" in schema else {**found, "logicalType": time}


def _whole(schema: Schema, others: Sequence[tuple[str, RegisteredSchema]]) -> Schema:
    """Return a schema in which the first mention of each type of others, which it names, is what that is.

    One of others that names further ones has these within; and one that lies within another may be met before that.
    """
    found = _types_in(*(_of_text(other.schema) for _, other in others))
    named = {name: {**part, "name": name, "namespace": space} for space, name, part in found}
    met: set[str] = set()

    def made(part: Schema, space: str) -> Schema:
        if isinstance(part, str):
            name = part if "." in part or not space else f"{space}.{part}"
            return made(named[name], space) if name in named and name not in met else part
        if isinstance(part, list):
            return [made(one, space) for one in part]
        if part["type"] in _WITH_NAMES:
            space, name = _full_name(part, space)
            if name in met and name in named:
                return name
            met.add(name)
        found = {key: made(one, space) if key in ("type", "items", "values") else one for key, one in part.items()}
        if "fields" in part:
            found["fields"] = [{**one, "type": made(one["type"], space)} for one in part["fields"]]
        return found

    return made(schema, "") if named else schema


_WITH_NAMES = ("record", "error", "enum", "fixed")


def _full_name(part: dict[str, Any], space: str) -> tuple[str, str]:
    """Return the namespace of a type that has a name, and the whole name."""
    name = part["name"]
    space = name.rpartition(".")[0] if "." in name else part.get("namespace", space)
    return space, name if "." in name or not space else f"{space}.{name}"


def _types_in(*schemas: Schema) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the types of schemas that have names: the namespace of each, its full name, and itself."""
    parts = [(one, "") for one in schemas]
    for part, space in parts:  # which grows meanwhile
        if isinstance(part, dict) and part.get("type") in _WITH_NAMES and "name" in part:
            space, name = _full_name(part, space)
            yield space, name, part
        parts += [(one, space) for one in _within(part)]


def _within(part: Schema) -> list[Schema]:
    """Return the schemas that lie within one, one level below."""
    if isinstance(part, list):
        return part
    if not isinstance(part, dict):
        return []
    fields = (one["type"] for one in part.get("fields", ()))
    return [*fields, *(part[name] for name in ("type", "items", "values") if name in part)]


def _copied(read: Callable[..., Datum], file: BytesIO, schema: Schema) -> Datum:
    """Return a datum of its own, where a default that it was given is one object for all."""
    return deepcopy(read(file, schema))


class _Lost(msgspec.Struct):
    """Words for a datum that a type would keep as another, in its place: no type takes them for one."""

    words: str

    def __repr__(self) -> str:
        return self.words


BESIDE = "beside"
"""The entry of a type in a union that has the names of the plain ones there."""
_TAKEN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "string": (str,),
    "bytes": (bytes,),
}
"""The data that are of a plain type, and of others only where a union has no such type."""
_WHOLE_BITS = {"int": 31, "long": 63}


def _kept_whole(writers: Mapping[str, Callable[..., object]]) -> dict[str, Callable[..., object]]:
    """Return what prepares data as fastavro does, but for those of which it would lose something without a word.

    It cuts microseconds off, drops zones, takes a time without one for a time of the machine's, and a moment for its
    day. Of a union it takes the first type into which a datum goes in any way: a number into a date, and text as well.
    """

    def whole(name: str, prepare: Callable[..., object]) -> Callable[..., object]:
        is_instant, has_millis = name.startswith("long-timestamp-"), name.endswith("-millis")
        is_time = name.endswith(("-millis", "-micros"))

        def prepared(datum: object, schema: Schema) -> object:
            if any(type(datum) in _TAKEN[one] for one in schema.get(BESIDE, ())):
                return _Lost(f"{datum!r}, for which the union has another type")
            if name == "string-uuid" and type(datum) is str and not _is_uuid(datum):
                return _Lost(f"{datum!r}, which is no UUID")
            if not isinstance(datum, dt.datetime | dt.time):
                return prepare(datum, schema)
            if name == "int-date":
                return _Lost(f"{datum}, which has a time, where the schema has a date: take its date() first")
            if not is_time:
                return prepare(datum, schema)
            if (datum.tzinfo is not None) != is_instant:
                has, wants = ("no time zone", "instants") if is_instant else ("a time zone", "none")
                return _Lost(f"{datum}, which has {has}, where the schema has {wants}: convert it first")
            if has_millis and datum.microsecond % 1000:
                return _Lost(f"{datum}, which has more than milliseconds, where the schema has no more: round it first")
            return prepare(datum, schema)

        return prepared

    numbers = dict.fromkeys((f"{base}-{WHOLE}" for base in ("float", "double")), _number)
    logical = {name: made for name, made in writers.items() if not name.endswith(WHOLE)}
    return {**numbers, **{f"{name}{WHOLE}": whole(name, made) for name, made in logical.items()}}


def _is_uuid(text: str) -> bool:
    with suppress(ValueError):
        return bool(UUID(text))
    return False


def _number(datum: object, schema: Schema) -> object:
    """Return a number that a float or double keeps; one that has a better type in the union is not written as that."""
    is_double = schema["type"] == "double"
    if type(datum) is float:
        kept = datum if is_double or datum != datum else _single(datum)
        if kept == datum or kept is datum:
            return datum
        is_beyond = kept is None
        if not is_beyond and "double" not in schema[BESIDE]:
            return datum  # rounded, as every float of 32 bits is
        return _Lost(f"{datum}, which is beyond 32 bits" if is_beyond else f"{datum}, for which the union has a double")
    if type(datum) is not int:
        return datum
    if datum.bit_length() <= max((_WHOLE_BITS.get(one, -1) for one in schema[BESIDE]), default=-1):
        return _Lost(f"{datum}, for which the union has another type")
    with suppress(OverflowError):
        if (float(datum) if is_double else _single(datum)) == datum:
            return datum
    return _Lost(f"{datum}, of which a {schema['type']} keeps another number")


def _single(number: float) -> float | None:
    """Return a number as 32 bits keep it; None for one that is beyond them."""
    try:
        kept: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return None
    return kept


def _kept_apart(part: Schema, union: Sequence[Schema] = ()) -> Schema:
    """Return a part of a schema, changed where it is, that takes for its types only what they keep."""
    if isinstance(part, list):
        return [_kept_apart(one, part) for one in part]
    if part == "float" or part == "double":
        part = {"type": part}
    if not isinstance(part, dict):
        return part
    for one in part.get("fields", ()):
        one["type"] = _kept_apart(one["type"])
    for name in ("items", "values"):
        if name in part:
            part[name] = _kept_apart(part[name])
    base, logical = part["type"], part.get("logicalType", "")
    if base in ("float", "double") or logical:
        part["logicalType"] = f"{logical}{WHOLE}"
        part[BESIDE] = [one for one in union if isinstance(one, str) and one in _TAKEN]
    return part


def _with_data(schema: Schema, tells_records: bool) -> tuple[Schema, bool]:
    """Return a schema whose defaults are data, which fastavro takes as JSON has them, and whether some hold others.

    Nothing of them is kept as another datum without a word where it is written.
    """
    schema = deepcopy(schema)
    parts, fields, named = [schema], list[dict[str, Any]](), dict[str, Schema]()
    for part in parts:  # which grows meanwhile
        if isinstance(part, dict):
            if part["type"] in _WITH_NAMES:
                named[part["name"]] = part
            fields += (one for one in part.get("fields", ()) if "default" in one)
        parts += _within(part)
    data = [_of_default(one["type"], one["default"], named, tells_records) for one in fields]
    for one, datum in zip(fields, data, strict=True):
        one["default"] = datum
    return _kept_apart(schema), any(isinstance(datum, list | dict) for datum in data)


def _of_default(schema: Schema, said: Datum, named: Mapping[str, Schema], tells_records: bool) -> Datum:
    """Return the datum that a default of JSON says: of a union it is of the first type that may be.

    Where it `tells_records`, that of a union of several has its name beside it, as whatever reads such a union has it.
    """
    from fastavro.read import LOGICAL_READERS

    def whole_of(one: Schema) -> dict[str, Any]:
        found: dict[str, Any] = named.get(one, {"type": one}) if isinstance(one, str) else one
        return found

    if isinstance(schema, list):
        chosen = next((one for one in schema if (one == "null") == (said is None)), "null")
        datum = _of_default(chosen, said, named, tells_records)
        records = [whole["name"] for whole in map(whole_of, schema) if whole["type"] == "record"]
        return (
            (whole_of(chosen)["name"], datum)
            if tells_records and len(records) > 1 and isinstance(said, dict)
            else datum
        )
    schema = whole_of(schema)
    base = schema["type"]
    if isinstance(base, dict | list):
        return _of_default(base, said, named, tells_records)
    if base == "record":
        return {
            one["name"]: _of_default(one["type"], said.get(one["name"], one.get("default")), named, tells_records)
            for one in schema["fields"]
        }
    if base == "array":
        return [_of_default(schema["items"], one, named, tells_records) for one in said]
    if base == "map":
        return {name: _of_default(schema["values"], one, named, tells_records) for name, one in said.items()}
    found = (
        said.encode("latin-1") if base in ("bytes", "fixed") else float(said) if base in ("float", "double") else said
    )
    read = LOGICAL_READERS.get(f"{base}-{schema.get('logicalType')}")
    return found if read is None else read(found, schema, None)


def _texts_as(written: Schema, derived: Schema) -> Schema:
    """Return a schema that has written, with text where a type says text, and bytes where it says bytes.

    Both lie alike, and Avro reads each as the other; a field of bytes would take text for base64.
    """
    named = {name: part for _, name, part in _types_in(derived)}

    def made(part: Schema, ours: Schema) -> Schema:
        own = [
            named.get(one, one) if isinstance(one, str) else one for one in (ours if isinstance(ours, list) else [ours])
        ]
        if isinstance(part, list):
            found = [made(one, own) for one in part]
            return part if "string" in part and "bytes" in part else found
        base = part["type"] if isinstance(part, dict) else part
        if base in _SWAPPED and (isinstance(part, str) or "logicalType" not in part):
            return _SWAPPED[base] if _SWAPPED[base] in own and base not in own else part
        if isinstance(part, str):
            return part
        alike = [one for one in own if isinstance(one, dict) and one["type"] == base]
        if base == "record" and len(alike) > 1:
            alike = [one for one in alike if one["name"].rpartition(".")[2] == part["name"].rpartition(".")[2]]
        if len(alike) != 1:
            return part
        inner = {name: made(part[name], alike[0][name]) for name in ("items", "values") if name in part}
        if base == "record":
            types = {one["name"]: one["type"] for one in alike[0]["fields"]}
            inner["fields"] = [
                {**one, "type": made(one["type"], types[one["name"]])} if one["name"] in types else one
                for one in part["fields"]
            ]
        return {name: one for name, one in {**part, **inner}.items() if not name.startswith("__")}

    return parsed(made(written, derived))


_SWAPPED = {"string": "bytes", "bytes": "string"}


def _of_text(schema: Schema) -> Schema:
    """Return a schema that may be text as JSON has it; a name, as "long", is itself."""
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError:
        return schema


def _name_in(schema: Schema) -> str:
    """Return the full name of a record, or of another type what it is."""
    if isinstance(schema, dict):
        return str(schema.get("name") or schema["type"])
    return schema if isinstance(schema, str) else "union"


def _check_all_held(what: str, derived: Schema, said: Schema) -> None:
    """Raise PlanError where a record of a type has a field that the schema has not: it would be written nowhere."""
    for where, fields, others in _records_beside(derived, said, ""):
        for name in fields:
            if name not in others:
                wrong = f"{what}: the schema has no field {where}{name}, which the type has"
                raise refuse(here(), wrong, f"such a field in the schema; it has {', '.join(others) or 'none'}")


def _records_beside(derived: Schema, said: Schema, where: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the fields of records that lie in the same place of two schemas."""
    ours, theirs = (one if isinstance(one, list) else [one] for one in (derived, said))
    ours, theirs = ([one for one in each if isinstance(one, dict)] for each in (ours, theirs))
    if len(ours) != 1 or len(theirs) != 1:
        return
    one, other = ours[0], theirs[0]
    if one["type"] == other["type"] == "record":
        fields = {field["name"]: field["type"] for field in other["fields"]}
        yield where, [field["name"] for field in one["fields"]], [*fields]
        for field in one["fields"]:
            if field["name"] in fields:
                yield from _records_beside(field["type"], fields[field["name"]], f"{where}{field['name']}.")
    for name in ("items", "values"):
        if name in one and name in other:
            yield from _records_beside(one[name], other[name], f"{where}[].")
