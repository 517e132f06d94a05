"""The bytes of dead letters as an input reads them: written anew where an operator's bytes are others, and checked."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any, ForwardRef, Literal, Union

import msgspec

from operators.core.base import Serde
from operators.core.wording import named
from planner.model.stored_forms import StoredForm, TypeForm
from runtime.encoding.serdes import (
    ENUM,
    FIELDS,
    LAST_TAG,
    MAPPING,
    OTHER,
    RECORD,
    REFUSALS,
    SEQUENCES,
    SUBTYPE,
    WHOLE,
    Bytes,
    Json,
    MessagePack,
    String,
    Tagged,
)
from runtime.encoding.value_types import value_type_named
from runtime.model.errors import SamzaError

_SERDES: dict[str, Callable[[Any], Serde]] = {
    f"{kind.__module__}.{kind.__qualname__}": make
    for kind, make in (
        (Json, Json),
        (MessagePack, MessagePack),
        (String, lambda _: String()),
        (Bytes, lambda _: Bytes()),
    )
}
_OF_PLACES = ("ListType", "TupleType", "SetType")
_RECORDS = ("StructType", "DataclassType", "TypedDictType", "NamedTupleType")
_KINDS: dict[str, Any] = {
    "NoneType": None,
    "BoolType": bool,
    "IntType": int,
    "FloatType": float,
    "StrType": str,
    "BytesType": bytes,
    "ByteArrayType": bytes,
    "MemoryViewType": bytes,
    "DateTimeType": dt.datetime,
    "DateType": dt.date,
    "TimeType": dt.time,
    "TimeDeltaType": dt.timedelta,
    "UUIDType": uuid.UUID,
    "DecimalType": Decimal,
}


def serde_of_form(form: StoredForm) -> Serde | None:
    """Return a serde that reads what the program's own reads; None where only the program has one.

    What its program alone reads, as a model of pydantic within, may be any JSON.
    """
    make = _SERDES.get(form.encoding)
    return None if make is None else make(Any if form.type is None else type_of(form.type))


def written_for(form: StoredForm, data: bytes) -> bytes:
    """Return bytes that an operator wrote as an input reads their value; raises SamzaError where it can't be kept."""
    # Most letters have the bytes of an input: no serde is made for these.
    if not data or data[:1] > LAST_TAG or (serde := serde_of_form(form)) is None:
        return data
    try:
        value = _called(form.type, plain_value(data), _records_in(form.type))
        again = serde.encode(value)
        lost = _lost(value, msgspec.to_builtins(serde.decode(again), str_keys=True, enc_hook=str))
    except Exception as error:
        raise SamzaError(f"it is an operator's value, which this input can't be given: {named(error)}") from None
    if lost:
        raise SamzaError(f"it is an operator's value, of which this input does not read {lost!r}")
    return again


def check_readable(form: StoredForm, data: bytes, part: str, stream: str, *, was_there: bool) -> None:
    """Raise SamzaError for the value or key of a record that an input would not read.

    What only the program can check passes where it `was_there` once, as it is.
    """
    serde = serde_of_form(form)
    if serde is None:
        if was_there:
            return
        raise SamzaError(
            f"each {part} of {stream!r} is {form.encoding.rpartition('.')[2]}, which only the program can check: write "
            "it there by samza_dsl.produce()"
        )
    try:
        serde.decode(data)
    except (*REFUSALS, ValueError) as error:
        raise SamzaError(f"{stream!r} can't read this {part}, and nothing was sent: {named(error)}") from None


class _Fields(dict[str, object]):
    """The fields of a record, as its class calls them; the class of the program is not loaded here."""

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        super().__init__(fields)
        self.name = name.partition("#")[0].rpartition(":")[2]


def plain_value(data: bytes) -> object:
    """Return the value of an operator's bytes; records are dicts."""
    tag = data[:1]
    if tag in SEQUENCES:
        return [plain_value(part) for part in msgspec.msgpack.decode(data[1:])]
    if tag == MAPPING:
        parts = map(plain_value, msgspec.msgpack.decode(data[1:]))
        return dict(zip(parts, parts, strict=True))
    if tag not in (WHOLE, ENUM, FIELDS, RECORD, OTHER, SUBTYPE):
        return Tagged().decode(data)
    name, payload = msgspec.msgpack.decode(data[1:])
    if tag == WHOLE:
        return _Fields(name, payload) if isinstance(payload, dict) else payload
    if tag == RECORD:
        return _Fields(name, {field: plain_value(part) for field, part in payload.items()})
    if tag == FIELDS:
        return [plain_value(part) for part in payload]
    return value_type_named(name).make(plain_value(payload)) if tag == OTHER else plain_value(payload)


_Records = Mapping[str, TypeForm]
"""The records that a form tells of, by name."""


def _records_in(form: TypeForm | None) -> _Records:
    """Return the records that a form tells of, each of which it has once."""
    found: dict[str, TypeForm] = {}
    left = [] if form is None else [form]
    while left:
        one = left.pop()
        if one.fields and not one.is_within:
            found[one.name] = one
        left += [*one.parts, *(field.type for field in one.fields)]
    return found


def _called(form: TypeForm | None, value: object, records: _Records) -> object:
    """Return a value whose records have the names that bytes of a form call their fields by."""
    if form is None:
        return value
    if form.is_within:
        form = records[form.name]
    if isinstance(value, dict) and form.fields:
        fields = {one.name: one for one in form.fields}
        found = {
            fields[name].called if name in fields else name: _called(
                fields[name].type if name in fields else None, one, records
            )
            for name, one in value.items()
        }
        if form.is_array:
            return [found.get(one.called) for one in form.fields]
        return found if form.tag is None else {form.tag[0]: form.tag[1], **found}
    if form.msgspec_type == "UnionType":
        ofs = [one for one in form.parts if _class_in(one) == value.name] if isinstance(value, _Fields) else []
        kinds = ofs or [one for one in form.parts if isinstance(value, list) and one.msgspec_type.endswith(_OF_PLACES)]
        return _called(kinds[0], value, records) if kinds else value
    if isinstance(value, dict) and form.msgspec_type == "DictType":
        return {name: _called(form.parts[1], one, records) for name, one in value.items()}
    if isinstance(value, list) and form.msgspec_type == "TupleType":
        if len(value) != len(form.parts):
            return value
        return [_called(part, one, records) for part, one in zip(form.parts, value, strict=True)]
    if isinstance(value, list) and form.parts:
        return [_called(form.parts[0], one, records) for one in value]
    return value


def _class_in(form: TypeForm) -> str:
    """Return the name of a record's class in its module."""
    return form.name.rpartition(":")[2].partition(" ")[0]


def _lost(value: object, again: object) -> str:
    """Return the first field of a value that is not in what was read of it again; none where all are."""
    if isinstance(value, dict) and isinstance(again, dict):
        for name, part in value.items():
            if str(name) not in again:
                return str(name)
            if found := _lost(part, again[str(name)]):
                return f"{name}.{found}"
    if isinstance(value, list) and isinstance(again, list | tuple):
        return next(filter(None, map(_lost, value, again)), "")
    return ""


def type_of(form: TypeForm) -> Any:
    """Return a type of which msgspec refuses what it refuses of the one that a form tells of."""
    made: list[tuple[str, type]] = []
    found = _type_of(form, made)
    # msgspec looks names up in the class that has them, when a decoder is made.
    for _, record in made:
        for name, one in made:
            setattr(record, _spelled(name), one)
    return found


def _spelled(name: str) -> str:
    return f"record_{name.encode().hex()}"


def _type_of(form: TypeForm, made: list[tuple[str, type]]) -> Any:
    if form.is_within:
        # One that is not made yet is around this part, and is looked up when all are.
        return next((one for name, one in made if name == form.name), ForwardRef(_spelled(form.name)))
    parts = [_type_of(one, made) for one in form.parts]
    kind: Any = _KINDS.get(form.msgspec_type, Any)
    if form.msgspec_type == "UnionType":
        kind = Union[tuple(parts)] if Any not in parts else Any  # noqa: UP007
    elif form.values:
        kind = Literal[form.values]
    elif form.msgspec_type == "TupleType":
        kind = tuple[tuple(parts)]  # type: ignore[misc]
    elif form.msgspec_type == "DictType":
        kind = dict[tuple(parts)]  # type: ignore[misc]
    elif form.msgspec_type in _RECORDS:
        kind = _record_of(form, made)
        made.append((form.name, kind))
    elif parts:
        kind = list[parts[0]]  # type: ignore[valid-type]
    return Annotated[kind, msgspec.Meta(**form.bounds)] if form.bounds and kind is not Any else kind  # type: ignore[call-overload]


def _record_of(form: TypeForm, made: list[tuple[str, type]]) -> type:
    fields: list[Any] = []
    for number, one in enumerate(form.fields):
        # What bytes call a field may be no name in Python.
        kind = _type_of(one.type, made)
        fields.append((f"f{number}", kind) if one.required else (f"f{number}", kind, None))
    return msgspec.defstruct(
        "Record",
        fields,
        kw_only=True,
        rename={f"f{number}": one.called for number, one in enumerate(form.fields)},
        array_like=form.is_array,
        forbid_unknown_fields=form.is_closed,
        **({} if form.tag is None else {"tag_field": form.tag[0], "tag": form.tag[1]}),  # type: ignore[arg-type]
    )
