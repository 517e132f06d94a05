"""The types of the standard library and of NumPy whose values are stored exactly by name, and subclasses of others."""

from __future__ import annotations

import datetime as dt
import ipaddress
import pathlib
import re
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from types import MemberDescriptorType, ModuleType
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

import msgspec

from operators.core.declared_types import types_in
from runtime.encoding.classes import class_of
from runtime.encoding.record_types import is_pydantic
from runtime.model.errors import SerdeError

Zone = str | tuple[int, *tuple[str, ...]] | None
"""A time zone as plain values: None, the key of a ZoneInfo, or an offset in microseconds and its name."""
Moment = tuple[str, int, Zone]
"""A time without its zone in ISO 8601, its fold, and its zone."""


class _NumpyType(Protocol):
    kind: str
    itemsize: int
    type: Callable[[], object]
    str: str


class _NumpyValue(Protocol):
    dtype: _NumpyType
    shape: tuple[int, ...]
    tobytes: Callable[[], bytes]


class ValueType(NamedTuple):
    """A type whose values are stored as plain ones: `take` takes a value apart, and `make` makes it again."""

    name: str
    take: Callable[..., object]
    make: Callable[..., object]


NUMPY_KINDS = "biufcmMSU"
"""The kinds of NumPy's types that are stored as bytes; the bytes of an object are only its address."""
FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple, bytes)}
"""The factories of a defaultdict that can be stored, by name."""


def value_type_of(kind: type) -> ValueType | None:
    """Return the stored form of a type; None for a type that is none of these."""
    found = _BY_TYPE.get(kind)
    if found is None and kind.__module__.partition(".")[0] == "numpy":
        numpy = sys.modules["numpy"]
        return _BY_NAME["numpy"] if issubclass(kind, numpy.generic) else _ARRAY if kind is numpy.ndarray else None
    return found


def value_type_named(name: object) -> ValueType:
    """Return the value type of a stored name; raises SerdeError for an unknown name."""
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise SerdeError(f"stored bytes name the type {name!r}, which this version does not know")
    return found


def _zone(value: dt.datetime | dt.time) -> Zone:
    """Return the time zone of a value as plain values."""
    zone = value.tzinfo
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    if type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return (offset // dt.timedelta(microseconds=1), *name)
    fixed = zone.utcoffset(None)
    if fixed is not None:  # of a library's own class, as pydantic's are
        return (fixed // dt.timedelta(microseconds=1),)
    raise SerdeError(
        f"the time zone {zone!r} of a {type(value).__name__} has no stored form; use zoneinfo.ZoneInfo or "
        "datetime.timezone, e.g. at.astimezone(ZoneInfo('Europe/Oslo'))"
    )


def _tzinfo(stored: Zone) -> dt.tzinfo | None:
    if stored is None:
        return None
    if isinstance(stored, str):
        return ZoneInfo(stored)
    offset, *name = stored
    return dt.timezone(dt.timedelta(microseconds=offset), *name) if offset or name else dt.UTC


def _take_datetime(value: dt.datetime) -> Moment:
    # Without its zone, since isoformat() has the offset alone: Europe/Oslo would come back as +01:00. And `fold`, which
    # it leaves out, tells the two hours apart that a clock shows twice in autumn.
    return value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value)


def _make_datetime(stored: Moment) -> dt.datetime:
    text, fold, zone = stored
    return dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=_tzinfo(zone))


def _take_time(value: dt.time) -> Moment:
    return value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value)


def _make_time(stored: Moment) -> dt.time:
    text, fold, zone = stored
    return dt.time.fromisoformat(text).replace(fold=fold, tzinfo=_tzinfo(zone))


def _take_defaultdict(value: defaultdict[object, object]) -> tuple[str | None, dict[object, object]]:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if factory is not None and FACTORIES.get(name or "") is not factory:
        raise SerdeError(
            f"a defaultdict of {factory!r} has no stored form: a function can't be stored. Use one of "
            f"{', '.join(FACTORIES)}, or a plain dict with setdefault()"
        )
    return name, dict(value)


def _make_defaultdict(stored: tuple[str | None, dict[object, object]]) -> defaultdict[object, object]:
    name, held = stored
    return defaultdict(None if name is None else FACTORIES[name], held)


def _take_view(value: memoryview) -> object:
    # Of bytes in a row the bytes alone say all, and that is how earlier versions stored every view.
    if value.format == "B" and value.ndim == 1:
        return bytes(value)
    shape = tuple(value.shape or ())
    # Neither can be cast to: a format of several letters, and several dimensions of which one has nothing in it.
    if len(value.format.lstrip("@")) != 1 or (0 in shape and value.ndim > 1):
        raise SerdeError(
            f"a memoryview of the format {value.format!r} and shape {shape} has no stored form; use its .tobytes()"
        )
    return value.format, shape, value.tobytes()


def _make_view(stored: bytes | tuple[Any, tuple[int, ...], bytes]) -> memoryview:
    if isinstance(stored, bytes):
        return memoryview(stored)
    form, shape, data = stored
    return memoryview(data).cast(form, shape) if data else memoryview(data).cast(form)


def _numpy_kind(value: _NumpyValue) -> str:
    if value.dtype.kind not in NUMPY_KINDS:
        raise SerdeError(f"a NumPy value of {value.dtype!r} has no stored form; use value.item() or value.tolist()")
    return value.dtype.str


def _numpy() -> ModuleType:
    found = sys.modules.get("numpy")
    if found is None:  # stored bytes make nobody import anything
        raise SerdeError("stored bytes hold a NumPy value, and this program has not loaded NumPy: import numpy in it")
    return found


def _numpy_dtype(text: str) -> _NumpyType:
    found: _NumpyType = _numpy().dtype(text)
    if found.kind not in NUMPY_KINDS:
        raise SerdeError(f"stored bytes hold a NumPy value of {text!r}, which is never stored")
    return found


def _make_numpy(stored: tuple[str, bytes]) -> object:
    kind, data = stored
    found = _numpy_dtype(kind)
    return _numpy().frombuffer(data, found)[0] if found.itemsize else found.type()


def _take_array(value: _NumpyValue) -> tuple[str, tuple[int, ...], bytes]:
    return _numpy_kind(value), tuple(value.shape), value.tobytes()


def _make_array(stored: tuple[str, tuple[int, ...], bytes]) -> object:
    kind, shape, data = stored
    found = _numpy_dtype(kind)
    # frombuffer() gives an array that can't be written to, over bytes that it keeps: what was stored could be changed.
    return _numpy().frombuffer(data, found).reshape(shape).copy() if found.itemsize else _numpy().empty(shape, found)


_ARRAY = ValueType("numpy array", _take_array, _make_array)
_BY_TYPE: dict[type, ValueType] = {
    dt.datetime: ValueType("datetime", _take_datetime, _make_datetime),
    dt.date: ValueType("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ValueType("time", _take_time, _make_time),
    dt.timedelta: ValueType(
        "timedelta", lambda value: (value.days, value.seconds, value.microseconds), lambda stored: dt.timedelta(*stored)
    ),
    dt.timezone: ValueType("timezone", lambda zone: _zone(dt.time(tzinfo=zone)), _tzinfo),
    ZoneInfo: ValueType("zone", lambda zone: _zone(dt.time(tzinfo=zone)), _tzinfo),
    Decimal: ValueType("decimal", str, Decimal),
    Fraction: ValueType(
        "fraction", lambda value: (value.numerator, value.denominator), lambda stored: Fraction(*stored)
    ),
    complex: ValueType("complex", lambda value: (value.real, value.imag), lambda stored: complex(*stored)),
    uuid.UUID: ValueType("uuid", lambda value: value.bytes, lambda stored: uuid.UUID(bytes=stored)),
    bytearray: ValueType("bytearray", bytes, bytearray),
    memoryview: ValueType("memoryview", _take_view, _make_view),
    range: ValueType("range", lambda value: (value.start, value.stop, value.step), lambda stored: range(*stored)),
    slice: ValueType("slice", lambda value: (value.start, value.stop, value.step), lambda stored: slice(*stored)),
    deque: ValueType("deque", lambda value: (value.maxlen, list(value)), lambda stored: deque(stored[1], stored[0])),
    Counter: ValueType("counter", dict, Counter),
    OrderedDict: ValueType("ordered dict", lambda value: list(value.items()), OrderedDict),
    defaultdict: ValueType("defaultdict", _take_defaultdict, _make_defaultdict),
    msgspec.Raw: ValueType("raw", bytes, msgspec.Raw),
    msgspec.msgpack.Ext: ValueType(
        "ext", lambda value: (value.code, bytes(value.data)), lambda stored: msgspec.msgpack.Ext(*stored)
    ),
    type(msgspec.UNSET): ValueType("unset", lambda _: None, lambda _: msgspec.UNSET),
    type(Ellipsis): ValueType("ellipsis", lambda _: None, lambda _: Ellipsis),
    **{
        kind: ValueType(kind.__name__, str, kind)
        for kind in (
            *(pathlib.PurePosixPath, pathlib.PureWindowsPath),
            *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network),
            *(ipaddress.IPv4Interface, ipaddress.IPv6Interface),
        )
    },
    type(pathlib.Path()): ValueType("path", str, pathlib.Path),
}
assert len({one.name for one in _BY_TYPE.values()}) == len(_BY_TYPE), "two types are stored under one name"
_BY_NAME = {
    **{one.name: one for one in (*_BY_TYPE.values(), _ARRAY)},
    "numpy": ValueType("numpy", lambda value: (_numpy_kind(value), value.tobytes()), _make_numpy),
}


SPELLED = (
    *(Fraction, complex, pathlib.PurePath, ipaddress.IPv4Address, ipaddress.IPv6Address),
    *(ipaddress.IPv4Network, ipaddress.IPv6Network, ipaddress.IPv4Interface, ipaddress.IPv6Interface),
)
"""The types that are written as text in JSON, and made of that text again."""


_NEVER_KEYS = frozenset({bool, type(None), tuple, frozenset})
"""The types that are asked for only as keys of dicts: msgspec writes their values itself."""


def as_plain(value: Any) -> object:
    """Return what msgspec encodes in the place of a value that it does not know; raises TypeError for other types."""
    kind = type(value)
    if kind in _NEVER_KEYS:
        raise TypeError(f"{value!r} can't be a key of a JSON object: make it text or a number, or write MessagePack")
    if is_pydantic(kind):
        return value.model_dump(by_alias=True)
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        if type(plain) is not kind:  # as a long double, of which Python has no like: it would be asked again for ever
            return plain
    if isinstance(value, SPELLED):
        return str(value)
    if isinstance(value, deque):
        return list(value)
    if (core := sys.modules.get("pydantic_core")) is not None:  # a field of a model, as addresses and secrets are
        with suppress(core.PydanticSerializationError):
            return core.to_jsonable_python(value)
    raise TypeError(f"Encoding objects of type {kind.__qualname__} is unsupported")


def json_plain(value: Any) -> object:
    """Return what msgspec encodes in JSON in the place of a value, as `as_plain` does for whatever holds bytes."""
    return json_row(value) if is_pydantic(type(value)) else as_plain(value)


def json_row(value: Any) -> dict[str, object]:
    """Return the fields of a model of pydantic by name, with bytes as the text that it reads as these in JSON.

    msgspec would write base64 in their place. Raises SerdeError for bytes that are no such text.
    """
    kind: Any = type(value)
    if not _reads_text_as_bytes(kind):
        plain: dict[str, object] = value.model_dump(by_alias=True)
        return plain
    try:
        told: dict[str, object] = value.model_dump(by_alias=True, mode="json")
        return told
    except ValueError as error:
        raise SerdeError(
            f"a {kind.__qualname__} has no JSON: {error}; let bytes be base64 there, by model_config = "
            "ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        ) from error


def reads_text_as_bytes(kind: Any) -> bool:
    """Whether a type has models of pydantic with fields of bytes, which take these of text as it is in JSON."""
    if is_pydantic(kind):
        return _reads_text_as_bytes(kind)
    inner: list[type] = []
    with suppress(TypeError):  # of one that msgspec does not know nothing is said
        inner = [one.cls for one in types_in(kind) if isinstance(one, msgspec.inspect.CustomType)]
    return any(is_pydantic(one) and _reads_text_as_bytes(one) for one in inner)


@cache
def _reads_text_as_bytes(kind: Any) -> bool:
    return kind.model_config.get("val_json_bytes", "utf8") == "utf8" and _models_hold(
        kind, (msgspec.inspect.BytesType, msgspec.inspect.ByteArrayType), odd=False
    )


def made_of_plain(kind: Any, plain: object) -> object:
    """Return a value of a type that msgspec does not know; raises what pydantic does for what is no such model."""
    if is_pydantic(kind):
        try:
            return kind.model_validate(plain)
        except ValueError:  # as a strict model does, to which text is a date only in JSON
            return kind.model_validate_json(msgspec.json.encode(plain))
    if isinstance(plain, kind):
        return plain
    if (isinstance(plain, str) and issubclass(kind, SPELLED)) or (isinstance(plain, list) and kind is deque):
        return kind(plain)
    raise TypeError(f"Expected `{kind.__qualname__}`, got `{type(plain).__name__}`")


def exact_number(text: str) -> float | Decimal:
    """Return a number of JSON: a float where that has all of its digits, else a Decimal.

    >>> exact_number("0.1"), exact_number("0.12345678901234567890"), exact_number("1e400")
    (0.1, Decimal('0.12345678901234567890'), Decimal('1E+400'))
    """
    found = float(text)
    if repr(found) == text:  # as nearly all are written; to make a Decimal costs ten times as much
        return found
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]} is a number beyond what Decimal holds") from None
    return found if Decimal(repr(found)) == exact else exact


json_told = msgspec.json.Decoder(float_hook=exact_number).decode
"""Returns what JSON says, with all digits of its numbers."""
_LOSSY = re.compile(rb"[0-9.]{16}|[0-9][eE][-+]?[0-9]{3}")
"""Numbers of which a float may not have all digits; others, and texts, are found as well."""


def json_decoder(kind: Any, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return what reads JSON of a type: a Decimal of a model of pydantic has all digits, as any other."""
    hook = exact_number if _holds_exact(kind) else None
    return msgspec.json.Decoder(kind, strict=strict, dec_hook=made_of_plain, float_hook=hook)


def model_reader(kind: Any) -> Callable[[bytes], object]:
    """Return what reads JSON as a model of pydantic, which makes a float of each number before it is a Decimal."""
    read: Callable[[bytes], object] = kind.model_validate_json
    if not _holds_exact(kind) or kind.model_config.get("val_json_bytes", "utf8") != "utf8":
        return read

    def made(data: bytes) -> object:
        if _LOSSY.search(data):
            with suppress(ValueError):  # a strict model may take of JSON alone what these are
                return kind.model_validate(json_told(data))
        return read(data)

    return made


def _holds_exact(kind: Any) -> bool:
    """Whether a type has models of pydantic that have Decimals, or what msgspec does not know."""
    return _models_hold(kind, (msgspec.inspect.DecimalType,), odd=True)


def _models_hold(
    kind: Any, of: tuple[type[msgspec.inspect.Type], ...], odd: bool, within: tuple[object, ...] = ()
) -> bool:
    """Whether a type has models of pydantic that have values of some types; `odd` is said of what nobody knows."""
    is_model, parts = is_pydantic(kind), list[msgspec.inspect.Type]()
    for hint in [one.annotation for one in kind.model_fields.values()] if is_model else [kind]:
        try:
            parts += types_in(hint)
        except Exception:  # whatever a class makes of being asked
            if is_model and odd:
                return True
    if is_model and any(isinstance(one, of) for one in parts):
        return True
    met = (*within, kind)  # looked for one by one: what is declared may be no type, and have no hash
    inner = {one.cls for one in parts if isinstance(one, msgspec.inspect.CustomType) and one.cls not in met}
    return any(_models_hold(one, of, odd, met) for one in inner if is_pydantic(one))


BASES = (str, int, float, bytes, list, dict, set, frozenset)
"""The built-in types whose subclasses can be stored, if these add no attributes."""


def has_attributes(value: object) -> bool:
    """Whether a value of a subclass holds more than one of its built-in type: attributes, or a maker of defaults."""
    factory = value.default_factory if isinstance(value, defaultdict) else None
    kind: type = type(value)
    has_more = bool(getattr(value, "__dict__", None)) or factory is not None
    return has_more or any(_is_set(value, slot) for slot in _slots_of(kind))


@cache
def _slots_of(kind: type) -> tuple[MemberDescriptorType, ...]:
    """Return the slots of a class and its bases, as what reads them: the names of some are not those that were said."""
    own = [one for one in kind.__mro__ if "__slots__" in vars(one)]
    return tuple(slot for one in own for slot in vars(one).values() if isinstance(slot, MemberDescriptorType))


def _is_set(value: object, slot: MemberDescriptorType) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def plain_of_subtype(base: Any, value: Any) -> object:
    """Return the value of a subclass as one of its base; a method of the subclass has no say."""
    if base in (str, int, float, bytes):
        return base.__getnewargs__(value)[0]
    return dict(dict.items(value)) if base is dict else base(base.__iter__(value))


def subtype(name: str, value: Any) -> object:
    """Return a value of a built-in type as one of a subclass, by its name; raises SerdeError for another class."""
    kind = class_of(name)
    base: Any = next((base for base in BASES if issubclass(kind, base)), None)
    if base is None or kind is base or type(value) is not base or kind.__module__ == "builtins":
        raise SerdeError(f"stored bytes name {name} as a kind of {type(value).__name__}, and it is another class now")
    make: Callable[..., object] = base.__new__
    if base in (str, int, float, bytes, frozenset):
        return make(kind, value)
    found = make(kind)
    base.__init__(found, value)
    return found
