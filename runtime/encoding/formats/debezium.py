"""Debezium's envelopes of changes, in JSON and Avro, as changes of rows."""

from __future__ import annotations

import datetime as dt
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from operators.core.base import Serde
from operators.core.sites import here
from operators.joins.changes import Change
from planner.model.errors import refuse
from runtime.encoding.formats.avro import EPOCH, Avro, clock_of, decimal_of
from runtime.encoding.formats.avro_shapes import name_of
from runtime.encoding.formats.registry import SchemaRegistry
from runtime.encoding.formats.rows import VALUE, converted, fields_wanted, nested_in
from runtime.encoding.formats.subjects import SubjectPlace
from runtime.encoding.json_text import to_json
from runtime.encoding.serdes import REFUSALS, Json
from runtime.encoding.value_types import as_plain, json_told
from runtime.model.errors import SerdeError

_log = logging.getLogger("samza_dsl")
R = TypeVar("R")
Told: TypeAlias = Any
"""What JSON holds, or what becomes of it by its schema."""
SIDES = ("before", "after")
DELETE, MADE, CHANGED = "d", ("c", "r"), "u"
UNTOLD = "__debezium_unavailable_value"
"""Stands for a long value that an update has left alone, and that the database has not logged."""
UNTOLD_BYTES, UNTOLD_64 = UNTOLD.encode(), b64encode(UNTOLD.encode())
_UNTOLD_FORMS = (
    *(UNTOLD, UNTOLD_BYTES, UNTOLD_64.decode(), UNTOLD_BYTES.hex()),
    *({UNTOLD: UNTOLD}, f'{{"{UNTOLD}":"{UNTOLD}"}}', [*UNTOLD_BYTES]),
)
"""The stand-in as each type of column has it: text, bytes in each mode, a map, as JSON too, and an array of numbers."""
_UNTOLD_MARKS = (
    *(UNTOLD_BYTES, UNTOLD_64, UNTOLD_BYTES.hex().encode(), b",".join(b"%d" % one for one in UNTOLD_BYTES)),
    # As numbers lie in Avro: seven bits at a time, the lowest first, and the sign as the lowest of all.
    b"".join(bytes([one * 2 & 127 | 128, 1] if one > 63 else [one * 2]) for one in UNTOLD_BYTES),
)
"""The bytes of which each record has some that tells a stand-in."""


class ChangeEnvelope(msgspec.Struct, Generic[R]):
    """The change that Debezium tells of: the row before and after, and whether it was made, read, changed, deleted."""

    before: R | None = None
    after: R | None = None
    op: str | None = None
    ts_ms: int | None = None


class _Wrapped(msgspec.Struct):
    """JSON with its schema beside it, as Kafka Connect writes it where schemas are enabled."""

    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True)
class Debezium:
    """Envelopes of Debezium around rows of `type`: each value is the `Change` of a row.

    The change's `key` is a field of the row, several in a tuple, or what a function makes of a row. With
    `changes=False` a value is the row as it is now, and None where it was deleted, as `app.table` reads it. Envelopes
    are JSON, with a schema beside them or without; with a `registry` they are Avro. What the connector says beside
    rows, as their source, is left out, and not written.

    A record without a value, as Debezium writes behind a delete, is None. Raises PlanError for a key that no field is.

    >>> from msgspec import Struct
    >>> class Order(Struct):
    ...     id: int
    ...     cents: int
    >>> orders = Debezium(Order, key="id")
    >>> orders.decode(b'{"before": null, "after": {"id": 7, "cents": 5}, "op": "c", "source": {}}')
    Change(key=7, old=None, new=Order(id=7, cents=5))
    >>> orders.encode(Change(7, Order(7, 5), None))
    b'{"before":{"id":7,"cents":5},"after":null,"op":"d","ts_ms":null}'
    """

    row: type
    key: str | tuple[str, ...] | Callable[[Any], object] | None = None
    registry: SchemaRegistry | None = None
    subject: str | None = None
    changes: bool = True
    place: SubjectPlace | None = field(default=None, repr=False, compare=False)
    """The stream that it writes, which a run fills in."""
    _inner: Serde = field(init=False, repr=False, compare=False)
    _key_of: Callable[[Any], object] = field(init=False, repr=False, compare=False)
    _nested: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    """The fields that are read of text of JSON; None where all are."""
    _told_of_keys: list[bool] = field(init=False, repr=False, compare=False, default_factory=list)
    _last: dict[bytes, Callable[[Told], Told]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        envelope: Any = ChangeEnvelope[self.row]  # type: ignore[name-defined]  # a type that is known as the program runs
        inner: Serde = Json(envelope)
        if self.registry is not None:
            inner = Avro(envelope, registry=self.registry, subject=self.subject, place=self.place)
        fields = {one.name for one in msgspec.structs.fields(self.row)} if _is_struct(self.row) else None
        odd = [name for name in self._names if fields is not None and name not in fields]
        if odd:
            wrong = f"Debezium({name_of(self.row)}, key={self.key!r}): there is no field {odd[0]}"
            raise refuse(here(), wrong, f"one of {', '.join(fields or ())}")
        wanted = fields_wanted(self.row)
        nested = nested_in(self.row, [VALUE] if wanted is None else wanted)
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_nested", None if wanted is None and nested else nested)
        object.__setattr__(self, "_key_of", self.key if callable(self.key) else partial(_key, self._names))

    @property
    def type(self) -> object:
        """The type of values."""
        return Change | None if self.changes else self.row | None

    def __repr__(self) -> str:
        return f"Debezium({name_of(self.row)}, key={self.key!r}{', registry=...' if self.registry is not None else ''})"

    def __reduce__(self) -> tuple[object, ...]:
        return Debezium, (self.row, self.key, self.registry, self.subject, self.changes, self.place)

    def placed(self, place: SubjectPlace) -> Debezium:
        """Return it as it writes to a stream."""
        return self if self.registry is None or self.place == place else replace(self, place=place)

    def encode(self, value: object) -> bytes:
        """Return the envelope of a Change; of a row, as one that was read. Raises SerdeError for what is none."""
        if not self.changes and isinstance(value, self.row):
            return self._inner.encode(ChangeEnvelope(None, value, MADE[1]))
        if not isinstance(value, Change) or (value.old is None and value.new is None):
            raise SerdeError(f"{self!r} got {value!r}: write a Change, of which the row before or after is there")
        op = MADE[0] if value.old is None else DELETE if value.new is None else CHANGED
        data = self._inner.encode(ChangeEnvelope(value.old, value.new, op))
        own = value.key if self.key is None else self._key_of(value.old if value.new is None else value.new)
        # A key of any type that was kept is as JSON has it, a list for a tuple.
        if own is not value.key and own != value.key and to_json(own) != to_json(value.key):
            raise SerdeError(
                f"{self!r} got a Change of the key {value.key!r}, and its row has {own!r}: write Change({own!r}, …): "
                "an envelope has the row alone"
            )
        return data

    def decode(self, data: bytes) -> Any:
        """Return the change in an envelope; raises SerdeError for what is none, or no change of a row."""
        found = self._of_avro(self._inner, data) if isinstance(self._inner, Avro) else self._of_json(data)
        if found.op not in (*MADE, CHANGED, DELETE):
            raise SerdeError(f"an envelope with the op {found.op!r} is no change of a row, as c, r, u and d are")
        new = None if found.op == DELETE else found.after
        if new is None and found.op != DELETE:
            raise SerdeError(
                f"an envelope with the op {found.op!r} has no row after it; MongoDB tells it with "
                "capture.mode=change_streams_update_full"
            )
        if any(mark in data for mark in _UNTOLD_MARKS):
            _check_told(new, found.before if self.changes else None)
        if not self.changes:
            return new
        row = found.before if new is None else new
        if row is None:
            raise SerdeError(
                "an envelope of a delete does not have the row before: the database has to log it (in Postgres: ALTER "
                "TABLE … REPLICA IDENTITY FULL; in MongoDB by pre-images, and capture.mode="
                "change_streams_update_full_with_pre_image), or read the rows alone, by changes=False"
            )
        if new is None and (names := self._names):
            self._warn_of_keys_alone(row, names)
        return Change(self._key_of(row), found.before, new)

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of the key's fields; none where a function makes it."""
        return (self.key,) if isinstance(self.key, str) else self.key if isinstance(self.key, tuple) else ()

    def _warn_of_keys_alone(self, row: object, names: tuple[str, ...]) -> None:
        """Tell once of a row that was deleted, of which nothing but the key came: others may not have been logged."""
        plain = {} if self._told_of_keys else msgspec.to_builtins(row, builtin_types=(bytes,), enc_hook=as_plain)
        # A column that is never NULL has a zero or an empty text for what was not logged.
        others = [value for name, value in plain.items() if name not in names]
        if others and not any(others):
            self._told_of_keys.append(True)
            _log.warning(
                "%r: of a row that was deleted the envelope tells %s alone. Where the database logs no more of it, the "
                "other fields are empty and were not: in Postgres ALTER TABLE … REPLICA IDENTITY FULL",
                self,
                ", ".join(names),
            )

    def _of_avro(self, inner: Avro, data: bytes) -> ChangeEnvelope[Any]:
        try:
            return self._envelope_of(inner.plain(data, self._sides_told))
        except SerdeError:
            raise
        except REFUSALS as error:
            raise SerdeError(f"what was read is no envelope of a {name_of(self.row)}: {error}") from error

    def _of_json(self, data: bytes) -> ChangeEnvelope[Any]:
        try:
            wrapped = _WRAPPED(data)
            if not wrapped.payload:
                with suppress(*REFUSALS):
                    found: ChangeEnvelope[Any] = self._inner.decode(data)
                    return found
                payload = json_told(data)
            else:
                schema = bytes(wrapped.schema)
                if schema not in self._last:
                    # A connector writes the same schema beside each change.
                    self._last.clear()
                    self._last[schema] = _by_schema(msgspec.json.decode(schema) if schema else None)
                payload = self._last[schema](msgspec.json.decode(wrapped.payload))
            return self._envelope_of(self._sides_told(payload))
        except SerdeError:
            raise
        except REFUSALS as error:
            raise SerdeError(
                f"bytes are no envelope of a {name_of(self.row)}: {error}. Times and decimals are told by the schema "
                "beside them: value.converter.schemas.enable=true"
            ) from error

    def _sides_told(self, payload: Told) -> Told:
        if not isinstance(payload, dict):
            return payload
        sides = SIDES if self.changes else SIDES[1:]
        # What nobody asks for need not be readable, as a value that the database has not logged.
        told = {side: self._row_told(payload.get(side)) for side in sides}
        return {**payload, **dict.fromkeys(SIDES), **told}

    def _envelope_of(self, payload: Told) -> ChangeEnvelope[Any]:
        rows = [*map(payload.get, SIDES)] if isinstance(payload, dict) else []
        found: ChangeEnvelope[Any] = converted(payload, ChangeEnvelope[self.row], rows)  # type: ignore[name-defined]
        return found

    def _row_told(self, row: Told) -> Told:
        """Return a row in which what is told as JSON within text is what that says.

        That are whole documents of MongoDB, and columns of JSON, whose fields are no text.
        """
        if isinstance(row, str):
            row = _of_document(json_told(row))
        if isinstance(row, dict):
            for name in [*row] if self._nested is None else self._nested:
                if isinstance(row.get(name), str | dict) and _is_untold(row[name]):
                    _check_told({name: UNTOLD})
                elif isinstance(row.get(name), str):
                    row[name] = json_told(row[name])
        return row


_WRAPPED = msgspec.json.Decoder(_Wrapped).decode


def _check_told(*rows: object) -> None:
    """Raise SerdeError where a row has what stands for a value in its place: nobody is to take that for the value."""
    for row in rows:
        plain = msgspec.to_builtins(row, builtin_types=(bytes,), enc_hook=as_plain)
        fields = plain.items() if isinstance(plain, dict) else ()
        if untold := [name for name, value in fields if _is_untold(value)]:
            raise SerdeError(
                f"an envelope does not tell {untold[0]!r}, a long value that was left alone, as the database has not "
                "logged it: in Postgres ALTER TABLE … REPLICA IDENTITY FULL"
            )


def _is_untold(value: object) -> bool:
    return value in _UNTOLD_FORMS or (isinstance(value, list) and any(map(_is_untold, value)))


def _is_struct(kind: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _key(names: tuple[str, ...], row: object) -> object:
    if not names:
        return None
    values = [row[name] if isinstance(row, Mapping) else _field(row, name) for name in names]
    return values[0] if len(values) == 1 else tuple(values)


def _field(row: object, name: str) -> object:
    """Return a field of a record."""
    return getattr(row, name)


def _days(value: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=value)


def _since(unit: str, value: int) -> dt.datetime:
    return EPOCH + dt.timedelta(**{unit: value})


def _instant(value: int) -> dt.datetime:
    return _since("milliseconds", value).replace(tzinfo=dt.UTC)


_NAMED: dict[str, Callable[[Any], object]] = {
    "io.debezium.time.Date": _days,
    "io.debezium.time.Timestamp": partial(_since, "milliseconds"),
    "io.debezium.time.MicroTimestamp": partial(_since, "microseconds"),
    "io.debezium.time.NanoTimestamp": lambda value: _since("microseconds", value // 1000),
    "io.debezium.time.Time": partial(clock_of, "milliseconds"),
    "io.debezium.time.MicroTime": partial(clock_of, "microseconds"),
    "io.debezium.time.NanoTime": lambda value: clock_of("microseconds", value // 1000),
    "io.debezium.time.MicroDuration": lambda value: dt.timedelta(microseconds=value),
    # Text of days and clocks that are in no zone, and have the letter of UTC behind them all the same.
    **dict.fromkeys(
        ("io.debezium.time.IsoDate", "io.debezium.time.IsoTime", "io.debezium.time.IsoTimestamp"),
        lambda text: text.removesuffix("Z"),
    ),
    "io.debezium.data.VariableScaleDecimal": lambda value: _decimal(value["scale"], value["value"]),
    "org.apache.kafka.connect.data.Date": _days,
    "org.apache.kafka.connect.data.Time": partial(clock_of, "milliseconds"),
    "org.apache.kafka.connect.data.Timestamp": _instant,
}
"""What numbers and texts of Kafka Connect stand for, by the name of their type."""
_OF_TEXT: dict[str, Callable[[Any], object]] = {
    "bytes": partial(b64decode, validate=True),
    # NaN and infinities, which JSON has not, are text.
    **dict.fromkeys(("float", "double"), lambda told: float(told) if isinstance(told, str) else told),
}
"""What text stands for where a type of Kafka Connect has no name, or one of which nothing is known."""


def _of_document(value: Told) -> Told:
    """Return what a document of MongoDB says, whose JSON has values of its own types in objects of one or two names."""
    if isinstance(value, list):
        return list(map(_of_document, value))
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if name in _EXTENDED and len(value) <= (2 if name == "$binary" else 1):
        return _EXTENDED[name](value[name])
    return {field: _of_document(one) for field, one in value.items()}


def _date_of(told: Told) -> dt.datetime:
    told = _of_document(told)
    return dt.datetime.fromisoformat(told) if isinstance(told, str) else _instant(told)


def _decimal_said(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no decimal") from None


def _same_text(told: Told) -> Told:
    """Return text of bytes, whose kind may stand beside it or in front of it."""
    return told["base64"] if isinstance(told, dict) else told


_EXTENDED: dict[str, Callable[[Any], object]] = {
    "$oid": str,
    "$symbol": str,
    "$uuid": str,
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
    "$numberDecimal": _decimal_said,
    "$date": _date_of,
    "$binary": _same_text,
    "$undefined": lambda told: None,
}
"""What MongoDB's types stand for, by their names in its JSON, in its former form and in that of now."""


def _by_schema(schema: Told) -> Callable[[Told], Told]:
    """Return what makes of numbers and texts the times, decimals, bytes and NaN that a schema of Connect tells."""
    if not isinstance(schema, dict):
        return _same
    name = schema.get("name")
    change = _NAMED.get(str(name))
    if name == "org.apache.kafka.connect.data.Decimal":
        change = partial(_decimal, int(schema["parameters"]["scale"]))
    if change is None and schema.get("type") == "struct":
        parts = {one["field"]: _by_schema(one) for one in schema.get("fields", ())}
        changes = {field: part for field, part in parts.items() if part is not _same}
        change = partial(_fields, changes) if changes else None
    elif change is None and schema.get("type") == "array":
        item = _by_schema(schema.get("items"))
        change = None if item is _same else partial(_items, item)
    elif change is None:
        change = _OF_TEXT.get(str(schema.get("type")))
    return _same if change is None else partial(_unless_null, change)


def _same(value: Told) -> Told:
    return value


def _unless_null(change: Callable[[Told], Told], value: Told) -> Told:
    return None if value is None else change(value)


def _items(change: Callable[[Told], Told], values: list[Told]) -> list[Told]:
    return list(map(change, values))


def _fields(changes: Mapping[str, Callable[[Told], Told]], held: dict[str, Told]) -> dict[str, Told]:
    for name, change in changes.items():
        if name in held:
            held[name] = change(held[name])
    return held


def _decimal(scale: int, text: str) -> Decimal:
    return decimal_of(b64decode(text), scale)
