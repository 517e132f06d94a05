"""The kinds of records that users write: Struct, dataclass, named tuple, attrs and pydantic, as fields by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import sys
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property, partial
from hashlib import blake2s
from types import ModuleType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    NotRequired,
    Protocol,
    Required,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from operators.core.declared_types import has_sets, has_types, types_in
from operators.core.wording import named, shown
from runtime.model.errors import SerdeError

T = TypeVar("T")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OF_A_KEY = (Annotated, Required, NotRequired, getattr(typing, "ReadOnly", Required))
"""What is said around the type of a key of a TypedDict; the last is known from Python 3.13 on."""
PLAIN_TYPES = (int, float, str, bytes, bool, type(None))
BUILT_IN = (
    *(dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex),
    *(deque, Decimal, dt.date, dt.time, dt.timedelta),
)
"""The types that a class of records may derive from, whose own content no field has."""
ABOUT = "*"
"""The name under which the state of a pydantic model beside its fields is stored."""


class Field(NamedTuple):
    """A field of a record: the attribute that it is stored by, and whether it must be given."""

    name: str
    required: bool
    init: str | None
    """The name of the constructor's argument; None if the constructor does not take the field."""


class RecordKind(NamedTuple):
    """A kind of record: a test for its classes, the fields of one, and the maker of values."""

    is_one: Callable[[type], bool]
    fields: Callable[..., list[Field]]
    """Takes a class of the kind."""
    make: Callable[..., object]
    """Takes a class of the kind, and values by the names of fields."""


class _PydanticField(Protocol):
    alias: object
    annotation: object
    validation_alias: object
    serialization_alias: str | None
    exclude: bool | None
    is_required: Callable[[], bool]


class _PydanticModel(Protocol):
    """A model of pydantic, which nothing here imports: what of it is read and called."""

    model_fields: ClassVar[Mapping[str, _PydanticField]]
    model_config: ClassVar[Mapping[str, object]]
    model_construct: ClassVar[Callable[..., _PydanticModel]]
    model_validate: ClassVar[Callable[[object], _PydanticModel]]
    model_validate_json: ClassVar[Callable[[bytes], _PydanticModel]]
    model_json_schema: ClassVar[Callable[[], dict[str, Any]]]
    __private_attributes__: ClassVar[Mapping[str, object]]
    model_dump: Callable[..., dict[str, object]]
    model_fields_set: set[str]
    __pydantic_extra__: dict[str, object] | None
    __pydantic_private__: dict[str, object] | None


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


class _AttrsField(Protocol):
    name: str
    validator: Callable[[object, object, object], object] | None
    init: bool
    default: object
    alias: str


class _Attrs(Protocol):
    __attrs_attrs__: ClassVar[Iterable[_AttrsField]]


def _is_record(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and any(one.is_one(kind) for one in _KINDS)


is_record = cast(Callable[[object], TypeGuard[type]], cache(_is_record))
"""Whether values of a class are records, which have named fields; `cache` alone would lose what its answer says."""


@cache
def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the fields of a class of records."""
    return tuple(_kind_of(kind).fields(kind))


def values_of(value: Any) -> dict[str, object]:
    """Return the values of a record's fields by name; what is not set is not there."""
    kind: type = type(value)
    if is_pydantic(kind):
        return _pydantic_values(value)
    fields = fields_of(kind)
    if isinstance(value, tuple):
        return {field.name: part for field, part in zip(fields, value, strict=True)}
    return {field.name: getattr(value, field.name) for field in fields if hasattr(value, field.name)}


@cache
def built_in_base(kind: type) -> type | None:
    """Return the built-in type that records of a class are besides their fields, as a dataclass that is a dict."""
    if _is_named_tuple(kind):
        return None
    return next((base for base in BUILT_IN if issubclass(kind, base)), None)


@cache
def has_room(kind: type) -> bool:
    """Whether a function may set attributes beside the fields of a record, which come back by no constructor of its."""
    if is_pydantic(kind) or kind.__dictoffset__ == 0:
        return False
    if issubclass(kind, tuple):
        return True
    # Of dataclasses and attrs the constructor is generated, as its file's name says; one of the user's may set more.
    written = getattr(kind.__init__, "__code__", None)
    is_users = written is not None and not written.co_filename.startswith("<")
    return not (is_users or hasattr(kind, "__post_init__") or hasattr(kind, "__attrs_post_init__"))


@cache
def is_checked_as_read(kind: type) -> bool:
    """Whether a class of records checks what is read as one, so that one that was changed since it was made may fail.

    >>> class Cut(msgspec.Struct):
    ...     at: int
    >>> is_checked_as_read(Cut), is_checked_as_read(type("Own", (Cut,), {"__post_init__": print}))
    (False, True)
    """
    hooks = ("__post_init__", "__attrs_pre_init__", "__attrs_post_init__")
    return (
        is_pydantic(kind)
        or any(hasattr(kind, name) for name in hooks)
        or any(field.validator is not None or field.name.startswith("_") for field in _attrs_of(kind))
    )


def check_attributes(value: Any) -> None:
    """Raise SerdeError where a record holds more than its fields, which would be lost; a cached property is not more.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Card:
    ...     id: int
    >>> card = Card(1)
    >>> card.seen = True
    >>> check_attributes(card)
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: Card.seen = True is no field, so it does not come back: declare it as a field, ...
    """
    kind: type = type(value)
    if (base := built_in_base(kind)) is not None:
        raise SerdeError(more_than_fields(kind, base))
    if not has_room(kind):
        return
    known = {field.name for field in fields_of(kind)}
    for name, part in value.__dict__.items():
        if name not in known and not isinstance(getattr(kind, name, None), cached_property):
            raise SerdeError(
                f"{kind.__qualname__}.{name} = {shown(part)} is no field, so it does not come back: declare it as a "
                "field, or set it where it is asked for"
            )


def more_than_fields(kind: type, base: type) -> str:
    """Return what is wrong with a record that is a built-in type besides its fields."""
    return (
        f"a {kind.__qualname__} is a {base.__name__} besides its fields, and what it holds as one would not come back: "
        f"make the {base.__name__} a field of it"
    )


def check_declared(declared: object) -> None:
    """Raise SerdeError for a type with records that are built-in types, too: msgspec makes them without their room."""
    with suppress(TypeError, NameError):  # what msgspec does not know it says by itself
        for one in types_in(declared):
            if isinstance(one, msgspec.inspect.DataclassType) and (base := built_in_base(one.cls)) is not None:
                raise SerdeError(more_than_fields(one.cls, base))


def made(kind: type, values: Mapping[str, object]) -> object:
    """Return a record of `values`, by the names of fields; the others take their defaults.

    Raises SerdeError where one is missing that has none. A field holds just what it is given, whatever a constructor
    makes of it.
    """
    fields = fields_of(kind)
    missing = [field.name for field in fields if field.required and field.name not in values]
    if missing:
        raise SerdeError(
            f"a stored {kind.__qualname__} has no {' and no '.join(missing)}, for which the class gives no default: "
            f"write one, e.g. {missing[0]}: ... = <what those stored before are to have>"
        )
    given = {field.name: values[field.name] for field in fields if field.name in values}
    if ABOUT in values and is_pydantic(kind):
        given[ABOUT] = values[ABOUT]
    return _kind_of(kind).make(kind, given)


@cache
def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the declared types of a class's attributes, by name; none where they are not there while it runs.

    Those of a generic base are as its parameters say.

    >>> from typing import Generic
    >>> class Box(msgspec.Struct, Generic[T]):
    ...     of: list[T]
    >>> class Counts(Box[int]): pass
    >>> hints_of(Counts)
    {'of': list[int]}
    """
    with suppress(Exception):
        hints = get_type_hints(kind, include_extras=True)
        if not any(isinstance(hint, TypeVar) or getattr(hint, "__parameters__", ()) for hint in hints.values()):
            return hints
        if is_pydantic(kind):  # which has made classes of its own of the parameters
            return hints | {name: one.annotation for name, one in kind.model_fields.items()}
        means = _meanings(kind, {})
        owner = {name: one for one in reversed(kind.__mro__) for name in vars(one).get("__annotations__", ())}
        return {name: with_parameters(hint, means.get(owner[name], {})) for name, hint in hints.items()}
    return {}


def is_typed_dict(hint: object) -> bool:
    """Whether a type is a TypedDict, also one of typing_extensions, which that of `typing` does not know."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def required_keys(hint: Any) -> frozenset[str]:
    """Return the keys that a TypedDict requires; Python does not see what is said of one where annotations are text.

    >>> from typing import NotRequired, TypedDict
    >>> sorted(required_keys(TypedDict("Card", {"n": int, "note": "NotRequired[str]"})))
    ['n']
    """
    required = set(hint.__required_keys__)
    for name, one in hints_of(hint).items():
        while (origin := get_origin(one)) in _OF_A_KEY:
            if origin is Required:
                required.add(name)
            elif origin is NotRequired:
                required.discard(name)
            one = get_args(one)[0]
    return frozenset(required)


def with_parameters(hint: Any, given: Mapping[object, object]) -> Any:
    """Return a declared type with what is given for its parameters in their places.

    >>> with_parameters(dict[str, T], {T: int}), with_parameters(T, {T: int}), with_parameters(list[T], {})
    (dict[str, int], <class 'int'>, list[~T])
    """
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ()) if not isinstance(hint, type) or get_args(hint) else ()
    return hint[tuple(given.get(one, one) for one in parameters)] if parameters else hint


def _meanings(kind: type, given: Mapping[object, object]) -> dict[type, Mapping[object, object]]:
    """Return what the parameters of a class and of its generic bases mean, by class."""
    found = {kind: given}
    for base in kind.__dict__.get("__orig_bases__", kind.__bases__):
        origin = get_origin(base) or base
        arguments = [with_parameters(one, given) for one in get_args(base)]
        found |= _meanings(origin, dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False)))
    return found


@cache
def description_of(kind: type) -> str:
    """Return a short text that differs where two definitions of a class differ; stored values carry it.

    Values of the same description are made as they were stored; others are checked against the new types.
    """
    return _described(kind, _stable_type)


@cache
def is_described(kind: type, written: str) -> bool:
    """Whether a class is as it was when values with this description were stored, as far as that tells."""
    # Earlier versions left out what types say that have a name, and the bounds: of what they stored nobody knows
    # these, and it is taken as it is.
    return any(written == _described(kind, tell) for tell in (_stable_type, _type_by_name, repr))


def _described(kind: type, tell: Callable[[object], str]) -> str:
    inside: dict[type, None] = {kind: None}
    with suppress(NameError, TypeError):
        _fields_say_all(kind, inside)
    # The records inside count as well: a change of one of them changes what the bytes of this one mean.
    text = ";".join(f"{one.__qualname__}({','.join(_lines_of(one, tell))})" for one in inside)
    # A default that is printed with its address would make another description in each process.
    return blake2s(_ADDRESS.sub("", text).encode("utf-8", "replace"), digest_size=4).hexdigest()


def _lines_of(kind: type, tell: Callable[[object], str]) -> list[str]:
    hints = hints_of(kind)
    annotations = getattr(kind, "__annotations__", {})
    lines = [f"{one.name}:{tell(hints.get(one.name, annotations.get(one.name)))}" for one in fields_of(kind)]
    if tell is repr or not (is_pydantic(kind) or _is_attrs(kind)):
        return lines
    # Said of a field that has none as well: a class without them is told from one of an earlier version.
    validators = {field.name: field.validator for field in _attrs_of(kind)}
    return [
        f"{line}[{', '.join(map(_stable, (*bounds_of(kind, one.name), validators.get(one.name))))}]"
        for line, one in zip(lines, fields_of(kind), strict=True)
    ]


def _stable_type(hint: object) -> str:
    """Return a declared type in words that are the same in each process, with all that named types within it say."""
    named = dict.fromkeys(_named_within(hint))
    return "; ".join([_type_by_name(hint), *map(_named_type, named)])


def _named_within(hint: object, depth: int = 0) -> Iterator[object]:
    """Yield the types within a declared one whose words are their name alone: TypedDicts, NewTypes, `type` aliases."""
    if depth > _DEEPEST:  # such as a TypedDict that holds itself
        return
    if is_typed_dict(hint) or hasattr(hint, "__supertype__") or hasattr(hint, "__value__"):
        yield hint
    for one in (*_said_by(hint), *get_args(hint)):
        yield from _named_within(one, depth + 1)


def _said_by(hint: Any) -> list[object]:
    """Return the types that a type says by its name."""
    if is_typed_dict(hint):
        return [*hints_of(hint).values()]
    return [getattr(hint, name) for name in ("__supertype__", "__value__") if hasattr(hint, name)]


def _named_type(hint: Any) -> str:
    if not is_typed_dict(hint):
        return f"{hint!r}={', '.join(map(_type_by_name, _said_by(hint)))}"
    told = [f"{name}:{_type_by_name(one)}" for name, one in sorted(hints_of(hint).items())]
    return f"{hint!r}={{{', '.join(told)}}} {sorted(required_keys(hint))}"


def _type_by_name(hint: object) -> str:
    """Return a declared type in words that are the same in each process; those of `repr`, where these are."""
    parts = get_args(hint)
    inner, said = (parts[:1], parts[1:]) if get_origin(hint) is Annotated else (parts, ())
    told = [*map(_type_by_name, inner), *map(_stable, said)]
    # Only `Annotated` says what may have a set in it, which `repr` tells in another order in each process.
    says_sets = any("set(" in one for one in told)
    return f"{get_origin(hint)!r}[{', '.join(told)}]" if says_sets else repr(hint)


def _stable(part: Any, depth: int = 0) -> str:
    """Return a bound, a validator or a part of one in words that are the same in each process.

    Functions are told by their names, and objects by their class and fields. Collections are told in one order, as
    validators keep what they were given as a set in a tuple as well.
    """
    if depth > _DEEPEST:
        return "..."
    kind: type = type(part)
    tell = partial(_stable, depth=depth + 1)
    if isinstance(part, Enum):
        return f"{kind.__qualname__}.{part.name}"
    if get_origin(part) is not None:  # a type with parameters, which has the name of the bare one as well
        return repr(part)
    if isinstance(part, re.Pattern):
        return f"{part.pattern!r} {part.flags}"
    if isinstance(part, partial):
        named = [f"{name}={tell(one)}" for name, one in sorted(part.keywords.items())]
        return f"{tell(part.func)}({', '.join([*map(tell, part.args), *named])})"
    if isinstance(name := getattr(part, "__qualname__", None), str):
        owner = getattr(part, "__self__", None)
        return name if owner is None or isinstance(owner, ModuleType) else f"{name} of {tell(owner)}"
    base: Any = next((base for base in _TOLD_BY_REPR if isinstance(part, base)), None)
    if base is not None:
        return f"{kind.__qualname__} {base.__repr__(part)}"
    if isinstance(part, Mapping):
        return f"{{{', '.join(sorted(f'{tell(key)}: {tell(one)}' for key, one in part.items()))}}}"
    if isinstance(part, (set, frozenset, list, tuple, deque)) and not is_record(kind):
        return f"{kind.__qualname__}({', '.join(sorted(map(tell, part)))})"
    if is_record(kind):
        names = [one.name for one in fields_of(kind)]
    else:  # what is private may be a cache, which differs from process to process
        names = [name for name in getattr(part, "__dict__", ()) if not name.startswith("_")]
    told = [f"{name}={tell(getattr(part, name, None))}" for name in sorted(names)]
    return f"{kind.__qualname__}({', '.join(told)})"


_DEEPEST = 8
_TOLD_BY_REPR = (*PLAIN_TYPES, complex, Decimal, dt.date, dt.time, dt.timedelta)
"""The types whose values are told by what `repr` says of them."""


def bounds_of(kind: type, name: str) -> list[object]:
    """Return what pydantic's `Field(...)` says of the values of a field, such as `gt=0`; nothing where it says none."""
    found: Mapping[str, Any] = getattr(kind, "__pydantic_fields__", {})
    return [*found[name].metadata] if name in found else []


def check_validators(record: object) -> None:
    """Raise SerdeError for a record that a validator of attrs refuses, which may be newer than it."""
    kind = type(record)
    for field in _attrs_of(kind):
        if field.validator is not None and hasattr(record, field.name):
            value = getattr(record, field.name)
            try:
                field.validator(record, field, value)
            except Exception as error:
                raise SerdeError(
                    f"{kind.__qualname__}.{field.name} was stored as {shown(value)}, which its validator refuses now: "
                    f"{named(error)}"
                ) from error


def _attrs_of(kind: type) -> Iterable[_AttrsField]:
    return cast(_Attrs, kind).__attrs_attrs__ if _is_attrs(kind) else ()


@cache
def records_inside(kind: type) -> tuple[type, ...] | None:
    """Return the records that the fields of `kind` may hold; None where their declared types do not say all."""
    inside: dict[type, None] = {}
    try:
        says_all = _fields_say_all(kind, inside)
        msgspec.msgpack.Decoder(kind)
    # A type is not there, or nobody can tell the members of a union apart.
    except (NameError, TypeError, AttributeError, KeyError):
        return None
    return tuple(inside) if says_all else None


@cache
def records_within(kind: type) -> tuple[type, ...]:
    """Return a class of records and those that its fields may hold, at any depth, as far as declared types tell."""
    found: dict[type, None] = {kind: None}
    left = [*hints_of(kind).values()]
    while left:
        hint = left.pop()
        left += get_args(hint)
        if is_record(hint) and hint not in found:
            found[hint] = None
            left += hints_of(hint).values()
    return tuple(found)


def tag_of(kind: object) -> tuple[str, str | int] | None:
    """Return the name and the value of the field by which bytes tell a Struct from others; None where it has none."""
    if not isinstance(kind, type) or not is_struct(kind):
        return None
    field, tag = kind.__struct_config__.tag_field, kind.__struct_config__.tag
    return None if field is None or tag is None else (field, tag)


@cache
def tags_inside(kind: type) -> dict[type, str | int]:
    """Return the tags of the records that the fields of `kind` may hold, of those that have one."""
    return {one: tag[1] for one in records_inside(kind) or () if (tag := tag_of(one)) is not None}


@cache
def has_record_keys(kind: type) -> bool:
    """Whether a record may hold a dict whose keys are records, which bytes without types are not read with."""
    inside = records_inside(kind) or ()
    return any(_has_record_keys(hint) for one in (kind, *inside) for hint in hints_of(one).values())


def is_readable_whole(kind: type) -> bool:
    """Whether the types of fields still say all, and msgspec would bring back all that is inside by name."""
    inside = records_inside(kind)
    return inside is not None and all(map(is_by_name, inside))


def is_written_whole(kind: type) -> bool:
    """Whether bytes of msgspec alone can be read by name also once a class has changed."""
    return is_readable_whole(kind) and not has_record_keys(kind)


def _has_record_keys(hint: object) -> bool:
    parts = get_args(hint)
    is_mapping = isinstance(origin := get_origin(hint), type) and issubclass(origin, Mapping)
    return (is_mapping and any(map(is_record, _types_within(parts[0])))) or any(map(_has_record_keys, parts))


def _types_within(hint: object) -> Iterator[object]:
    yield hint
    for one in get_args(hint):
        yield from _types_within(one)


@cache
def has_sets_inside(kind: type) -> bool:
    """Whether the fields of a class of records may have sets."""
    return has_sets(kind) or has_types(kind, msgspec.inspect.AnyType)


def holds_sets(value: Any) -> bool:
    """Whether a key may have a set in it, which Python orders otherwise in each process."""
    kind: type = type(value)
    if kind in (tuple, list):
        return any(map(holds_sets, value))
    if kind is dict:
        return any(map(holds_sets, value)) or any(map(holds_sets, value.values()))
    return kind in (set, frozenset) or (is_record(kind) and has_sets_inside(kind))


def is_by_position(kind: type) -> bool:
    """Whether msgspec would write a record as an array: a named tuple, and a Struct that is `array_like`."""
    return issubclass(kind, tuple) or (issubclass(kind, msgspec.Struct) and kind.__struct_config__.array_like)


@cache
def is_by_name(kind: type) -> bool:
    """Whether msgspec writes a record as all of its fields by their own names, and brings back just what they held.

    It does not where fields are called otherwise outside, are left out while they are as by default, and where
    `__post_init__` has a say, which would be asked each time.
    """
    if is_by_position(kind) or hasattr(kind, "__post_init__"):
        return False
    if not issubclass(kind, msgspec.Struct):
        return True
    return kind.__struct_fields__ == kind.__struct_encode_fields__ and not kind.__struct_config__.omit_defaults


@cache
def stand_in_for(kind: type, by_name: bool) -> type[msgspec.Struct]:
    """Return a Struct of the same fields, which msgspec reads without asking `__post_init__`.

    It is read by the own names of fields, or as msgspec would write the record.
    """
    hints = hints_of(kind)
    fields = [
        (one.name, hints[one.name]) if one.required else (one.name, hints[one.name] | msgspec.UnsetType, msgspec.UNSET)
        for one in fields_of(kind)
    ]
    outside: dict[str, Any] = {}
    if not by_name and is_struct(kind):
        said = kind.__struct_config__
        renamed = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
        outside = {"rename": renamed, "array_like": said.array_like, "tag_field": said.tag_field, "tag": said.tag}
    # By keyword only: a field with a default may so stand before one without, as it may in the record.
    found = msgspec.defstruct(kind.__name__, fields, kw_only=True, **outside)
    assert {*found.__struct_fields__} == {one.name for one in fields_of(kind)}, "a field of the record is missing"
    return found


def _fields_say_all(kind: type, inside: dict[type, None]) -> bool:
    if is_pydantic(kind) or _is_attrs(kind) or built_in_base(kind) is not None:
        return False
    if dataclasses.is_dataclass(kind) and not all(field.init for field in dataclasses.fields(kind)):
        return False
    hints = get_type_hints(kind)
    return all(one.name in hints and _says_all(hints[one.name], inside) for one in fields_of(kind))


def _says_all(hint: object, inside: dict[type, None]) -> bool:
    if hint in PLAIN_TYPES:
        return True
    if hasattr(hint, "__args__"):
        of_record = isinstance(get_origin(hint), type) and is_record(get_origin(hint))
        return not of_record and all(part is ... or _says_all(part, inside) for part in hint.__args__)
    if not is_record(hint) or is_by_position(hint):
        return False
    # Noted before its fields are looked at: a record may hold itself, as a tree does.
    if hint in inside:
        return True
    inside[hint] = None
    return _fields_say_all(hint, inside)


def _kind_of(kind: type) -> RecordKind:
    return next(one for one in _KINDS if one.is_one(kind))


def is_struct(kind: type) -> TypeGuard[type[msgspec.Struct]]:
    """Whether a class is a Struct of msgspec."""
    return issubclass(kind, msgspec.Struct)


def _struct_fields(kind: type[msgspec.Struct]) -> list[Field]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    padded = [*[msgspec.NODEFAULT] * (len(names) - len(defaults)), *defaults]
    return [Field(name, default is msgspec.NODEFAULT, name) for name, default in zip(names, padded, strict=True)]


def _make_struct(kind: type[msgspec.Struct], values: dict[str, object]) -> msgspec.Struct:
    found = kind(**values)
    for name, value in values.items():
        # `__post_init__` had its say when the value was first made; a second one would change what was stored.
        if getattr(found, name) is not value:
            msgspec.structs.force_setattr(found, name, value)
    return found


def _dataclass_fields(kind: type[_Dataclass]) -> list[Field]:
    missing = dataclasses.MISSING
    return [
        Field(
            one.name,
            one.init and one.default is missing and one.default_factory is missing,
            one.name if one.init else None,
        )
        for one in dataclasses.fields(kind)
    ]


def _make_by_constructor(kind: Any, values: dict[str, object]) -> object:
    fields = fields_of(kind)
    given = {field.init: values[field.name] for field in fields if field.init and field.name in values}
    # The constructor comes first, since it may set attributes that are no fields. Where it takes what is no field, or
    # refuses what it once made, all the fields together are the value.
    try:
        found = kind(**given)
    except Exception:
        if len(values) < len(fields):
            raise
        found = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _named_tuple_fields(kind: type[NamedTuple]) -> list[Field]:
    return [Field(name, name not in kind._field_defaults, name) for name in kind._fields]


def _make_named_tuple(kind: type[NamedTuple], values: dict[str, object]) -> object:
    return tuple.__new__(
        kind, [values[name] if name in values else kind._field_defaults[name] for name in kind._fields]
    )


def _is_attrs(kind: type) -> bool:
    return hasattr(kind, "__attrs_attrs__")


def _attrs_fields(kind: type[_Attrs]) -> list[Field]:
    nothing = sys.modules["attr"].NOTHING
    return [
        Field(one.name, one.init and one.default is nothing, one.alias if one.init else None)
        for one in kind.__attrs_attrs__
    ]


def is_pydantic(kind: object) -> TypeGuard[type[_PydanticModel]]:
    """Whether values of a class are models of pydantic, which nothing here imports."""
    return hasattr(kind, "__pydantic_fields__") and hasattr(kind, "model_construct")


def _pydantic_fields(kind: type[_PydanticModel]) -> list[Field]:
    return [Field(name, one.is_required(), name) for name, one in kind.model_fields.items()]


def read_otherwise(kind: type) -> tuple[str, ...]:
    """Return the fields of a class that its names let be read as another one, or as none.

    They are those of models of pydantic with aliases; and of attrs those with an underscore ahead, which msgspec reads
    and never writes.

    >>> read_otherwise(int)
    ()
    """
    if not is_pydantic(kind):
        return tuple(field.name for field in _attrs_of(kind) if field.name.startswith("_"))
    written = {name: one.serialization_alias or name for name, one in kind.model_fields.items() if not one.exclude}
    read = {name: set(_names_read(kind, name)) for name in written}
    return tuple(
        name
        for name in written
        if read[name] & {*written.values()} != {written[name]}
        or written[name] in {one for other, one in written.items() if other != name}
    )


def _names_read(kind: type[_PydanticModel], name: str) -> Iterator[object]:
    """Yield the names that a model's field is read by."""
    config, alias = kind.model_config, kind.model_fields[name].validation_alias
    by_alias = config.get("validate_by_alias", True)
    if alias is None or not by_alias or config.get("populate_by_name") or config.get("validate_by_name"):
        yield name
    if alias is not None and by_alias:
        # Told by what they have, as nothing of pydantic is imported here; what goes on within a name is none.
        for one in getattr(alias, "choices", [alias]):
            path = getattr(one, "path", [one])
            yield path[0] if len(path) == 1 else None


def _pydantic_values(value: _PydanticModel) -> dict[str, object]:
    about = sorted(value.model_fields_set), value.__pydantic_extra__, value.__pydantic_private__
    held = {one.name: value.__dict__[one.name] for one in _pydantic_fields(type(value)) if one.name in value.__dict__}
    return {**held, ABOUT: about}


def _make_pydantic(kind: type[_PydanticModel], values: dict[str, Any]) -> _PydanticModel:
    is_set, extra, private = values.pop(ABOUT, (None, None, None))
    known = kind.model_fields
    keeps = {} if kind.model_config.get("extra") != "allow" or not extra else extra
    by_set = None if is_set is None else {name for name in is_set if name in known or name in keeps}
    found = kind.model_construct(_fields_set=by_set, **{_given(known, name): value for name, value in values.items()})
    found.__dict__.update(values)
    if keeps:
        object.__setattr__(found, "__pydantic_extra__", dict(keeps))
    if private is not None and kind.__private_attributes__:
        held = {name: value for name, value in private.items() if name in kind.__private_attributes__}
        object.__setattr__(found, "__pydantic_private__", {**(found.__pydantic_private__ or {}), **held})
    return found


def _given(known: Mapping[str, _PydanticField], name: str) -> str:
    """Return what `model_construct` takes a field by: its alias, where it has one, and no default takes its place."""
    alias = known[name].alias
    return alias if isinstance(alias, str) else name


_KINDS = (
    RecordKind(is_struct, _struct_fields, _make_struct),
    RecordKind(is_pydantic, _pydantic_fields, _make_pydantic),
    RecordKind(_is_attrs, _attrs_fields, _make_by_constructor),
    RecordKind(dataclasses.is_dataclass, _dataclass_fields, _make_by_constructor),
    RecordKind(_is_named_tuple, _named_tuple_fields, _make_named_tuple),
)
