"""The keys in batches: an int or a str is held as itself, any other key as its bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from itertools import repeat
from operator import countOf
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import msgspec
from msgspec import inspect

from operators.aggregations.identity import may_be_infinite, with_one_nan
from operators.core.base import Key, Serde
from operators.core.declared_types import has_types
from operators.core.wording import shown
from operators.joins.match_counts import kind_of
from runtime.encoding.conformity import EXACT_FLOATS, is_as_declared
from runtime.encoding.copies import with_parts
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import fields_of, hints_of, is_pydantic, is_record, made
from runtime.encoding.serdes import (
    LAST_TAG,
    PAIR,
    REFUSALS,
    WHOLE,
    Json,
    MessagePack,
    String,
    Tagged,
    encode_all,
    of_keys,
)
from runtime.model.errors import SerdeError

In = TypeVar("In")
Out = TypeVar("Out")
REMEMBERED_KEYS = 100_000
_WHOLE, _WHOLE_PAIR = WHOLE[0], WHOLE + PAIR
"""Bytes as numbers: to look for bytes in bytes takes five times as long."""
LEAST, MOST = -(2**63), 2**63 - 1
"""The ints that every serde takes."""


class KeySerde:
    r"""Turns keys into the form that batches hold, and that form into bytes and keys again.

    Two keys are the same when their bytes are. A key is held as itself if its type is exactly int or str and its bytes
    tell just that; else its bytes are held. So two held keys are equal exactly when their bytes are, and keys that stay
    within a stage are never encoded. One thread at a time uses it, the one that is at work in the task.

    >>> keys = KeySerde(Tagged())
    >>> keys.hold(["AA", 7, None, True])
    ['AA', 7, None, b'\x00\xc3']
    >>> keys.decode(b'\x00\xc3')
    True
    """

    def __init__(self, serde: Serde) -> None:
        self.serde = serde = of_keys(serde)
        self.kind: type | None = None
        """The one type that all keys of the newest column have, if such keys are held as themselves."""
        self._plain = plain_types(serde)
        self._declared = declared_in(serde)
        self._is_tagged = isinstance(serde, Tagged)
        self._form: Callable[[Any], Key] = remembering(self._formed)
        kind: object = getattr(serde, "type", Any)
        is_typed = isinstance(serde, Json | MessagePack) and kind is not Any
        self._has_one_form = is_typed
        # Keys that others wrote stay the bytes that their state lies under, but for numbers: 7 is how many write 7.0.
        is_formed = is_typed and has_types(kind, inspect.FloatType)
        self._load: Callable[[Any], Key] = self._form if is_formed else remembering(self._loaded)
        self._decode = remembering(serde.decode)
        self._kind_of = remembering(self._kind_of_bytes)

    def hold(self, keys: list[Any]) -> list[Key | None]:
        """Return a column of keys as it is held; raises for a key that the serde can't encode, or not read again."""
        if self.are_plain(keys):
            return keys
        return [None if key is None else self._held(key) for key in keys]

    def hold_one(self, key: object) -> Key | None:
        """Return one key as it is held."""
        return self.hold([key])[0]

    def are_held(self, kind: type, keys: Iterable[object]) -> bool:
        """Whether keys, all of which have exactly one type, are held as themselves.

        >>> KeySerde(Tagged()).are_held(str, ["AA", "BB"]), KeySerde(Tagged()).are_held(bool, [True])
        (True, False)
        """
        return kind in self._plain and self._are_encodable(kind, keys)

    def load(self, column: list[Any]) -> list[Key | None]:
        """Return keys that were stored as bytes as they are held; raises what the serde does for bytes of others."""
        if type(self.serde) is String and None not in column:
            return list(map(bytes.decode, column))
        return list(map(self._load, column))

    def encode(self, key: Key) -> bytes:
        """Return the bytes of a key that is held."""
        return key if type(key) is bytes else self.serde.encode(key)

    def encode_all(self, keys: list[Any]) -> list[bytes | None]:
        """Return the bytes of a column; None stays None."""
        if bytes not in map(type, keys):
            return encode_all(self.serde, keys)
        encode = self.serde.encode
        return [key if key is None or type(key) is bytes else encode(key) for key in keys]

    def decode(self, key: Key | None) -> object:
        """Return the key."""
        return self._decode(key) if type(key) is bytes else key

    def kind_of(self, key: Key) -> str:
        """Return the type of a key, and of its parts; nothing where its bytes are another serde's.

        >>> keys = KeySerde(Tagged())
        >>> [keys.kind_of(key) for key in keys.hold([7, ("AA", 7)])]
        ['int', '(str, int)']
        """
        return self._kind_of(key) if type(key) is bytes else type(key).__name__

    def lies_under(self, key: object, data: bytes) -> bool:
        """Whether bytes are those of a key, in whatever order a former version wrote the sets in it.

        An int counts as the float that it comes back as, where that is declared.

        >>> keys = KeySerde(Json(frozenset[int]))
        >>> keys.lies_under(frozenset([1, 2]), b"[2,1]"), keys.lies_under(frozenset([1, 2]), b"[2,3]")
        (True, False)
        """
        again = self.serde.encode(key)
        if again == data:
            return True
        said = _said_in_json if isinstance(self.serde, Json) else _said_in
        return repr(said(again)) == repr(said(data))

    def seek(self, key: Key) -> None:
        """Take note of a key that was looked for and not found; one that keeps kinds tells of an equal one."""

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        """Return held keys in the order of their bytes.

        >>> KeySerde(Tagged()).in_order([300, -1, 7, "a"])
        [7, 'a', 300, -1]
        """
        # Large windows bring a million keys in order when they fire. MessagePack writes natural numbers, and texts of
        # one length, in their own order, and UTF-8 all texts, so most columns are sorted in C, without the bytes of any
        # key.
        found: list[Any] = list(keys)
        if len(found) < 2:
            return found
        is_text = type(self.serde) is String
        kinds = set(map(type, found)) if is_text or isinstance(self.serde, Tagged) else set()
        if kinds == {int}:
            found.sort()
            if found[0] >= 0 and found[-1] <= MOST:
                assert self.encode(found[0]) <= self.encode(found[-1]), "ints are not in the order of their bytes"
                return found
        elif kinds == {str} and (is_text or "".join(found).isascii()):
            found.sort()
            # MessagePack has the length of a text ahead of it; sort() is stable, so the second keeps the first.
            if not is_text:
                found.sort(key=len)
            assert self.encode(found[0]) <= self.encode(found[-1]), "texts are not in the order of their bytes"
            return found
        return sorted(found, key=self.encode)

    def are_plain(self, column: list[object]) -> TypeGuard[list[Key | None]]:
        """Return whether all of a column are held as themselves; `kind` is then their one type."""
        self.kind = None
        if column:
            # Exactly one type, counted in C: Python takes 1 and True for equal, and they are two keys.
            kind = type(column[0])
            if countOf(map(type, column), kind) == len(column) and self.are_held(kind, column):
                self.kind = kind
        return self.kind is not None

    def _are_encodable(self, kind: type, keys: Iterable[Any]) -> bool:
        if kind is str:
            text = "".join(keys)
            return text.isascii() or _is_unicode(text)
        return isinstance(self.serde, Tagged) or (min(keys, default=0) >= LEAST and max(keys, default=0) <= MOST)

    def _held(self, key: Any) -> Key:
        data = self.serde.encode(key)
        # NaN is one key, whatever its sign, which that of inf - inf has: few keys have the byte of a float, and a NaN.
        if may_be_infinite(data):
            key = _with_one_nan(key)
            data = self.serde.encode(key)
        if self.are_held(type(key), [key]):
            plain: Key = key
            return plain
        try:
            held: Key = self._form(data) if self._has_one_form else self._load(data)
        except Exception as error:
            # Written on, it would end each run behind, whatever the policy says here.
            raise SerdeError(f"{shown(key)} can be written as a key and not be read again: {error}") from error
        if self._declared is not None:
            self._declared.check(key, self.serde.decode(data))
        # Mostly no record that is encoded as a whole is in a key, which is soon told of its bytes.
        elif _WHOLE in data and data.find(_WHOLE_PAIR) >= 0 and self._is_tagged and not is_as_declared(key):
            back = self.serde.decode(data)
            if not _are_equal(key, back) and shown(key) != shown(back):
                raise SerdeError(
                    f"{shown(key)} would come back as {shown(back)}, as another key than it is: a field of it is not "
                    "of its declared type. Declare the type that it has, or convert it"
                )
        return held

    def _kind_of_bytes(self, data: bytes) -> str:
        try:
            return self._told_kind(self.serde.decode(data))
        except Exception:
            # Of a class that is not loaded, or bytes of somebody else's: a hint is not worth a failure.
            return ""

    def _told_kind(self, key: object) -> str:
        return kind_of(key)

    def _formed(self, data: bytes) -> Key:
        """Return a key of a declared type as it is held, in the one form that equal keys have: 7.0 of 7 is a float."""
        key = self.serde.decode(data)
        if self.are_held(type(key), [key]):
            plain: Key = key
            return plain
        return self.serde.encode(key)

    def _loaded(self, data: bytes) -> Key:
        key = self.serde.decode(data)
        is_plain = self.are_held(type(key), [key]) and self.serde.encode(key) == data
        return key if is_plain else data


def bytes_of_key(serde: Serde, key: object) -> bytes:
    """Return the bytes under which a key lies that somebody asks for: equal keys of a declared type have one form.

    >>> bytes_of_key(Json(float), 7), bytes_of_key(Json(int), "a")
    (b'7.0', b'"a"')
    """
    data = serde.encode(key)
    if may_be_infinite(data):
        data = serde.encode(_with_one_nan(key))
    if isinstance(serde, Json | MessagePack) and serde.type not in (Any, int, str):
        # What is no key of that type lies nowhere, and what comes back as another key is not written as that one.
        with suppress(*REFUSALS, SerdeError):
            back = serde.decode(data)
            if type(back) is not type(key) or back != key:
                _check_declared(serde, key, back)
            return serde.encode(back)
    return data


def _check_declared(serde: Serde, key: object, back: object) -> None:
    """Raise SerdeError for a key that a declared type brings back as another."""
    declared = _declared_in(serde) if isinstance(serde, Hashable) else declared_in(serde)
    if declared is not None:
        declared.check(key, back)


def _with_one_nan(key: object) -> object:
    return with_one_nan(key, _record_with_one_nan)


def _record_with_one_nan(value: object) -> object:
    if not is_record(type(value)) or isinstance(value, Enum):
        return value
    return with_parts(value, _with_one_nan, lambda record, parts: made(type(record), parts))


def _said_in_json(data: bytes) -> object:
    return _without_order(msgspec.json.decode(data))


def _said_in(data: bytes) -> object:
    """Return what MessagePack says, alone or behind the tag of `Tagged`; the bytes where they are none."""
    for start in (1, 0) if data[:1] <= LAST_TAG else (0,):
        with suppress(msgspec.DecodeError, UnicodeError):
            return data[:start], _without_order(msgspec.msgpack.decode(data[start:]))
    return data


def _without_order(value: object) -> object:
    """Return a value with arrays, which sets are written as, in one order, and the fields of records in their own."""
    if isinstance(value, dict):
        return [(name, _without_order(part)) for name, part in value.items()]
    if isinstance(value, list):
        return sorted(map(_without_order, value), key=repr)
    if isinstance(value, bytes):
        return _said_in(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= EXACT_FLOATS:
        return float(value)
    return value


def plain_types(serde: Serde) -> frozenset[type]:
    """Return the types whose keys the serde gives back as they were, so that they are held as themselves."""
    if isinstance(serde, Tagged):
        return frozenset({int, str} if serde.type is Any else {int, str} & {serde.type})
    if type(serde) is String:
        return frozenset({str})
    if isinstance(serde, Json | MessagePack):
        return frozenset({int, str} if serde.type is Any else {int, str} & {serde.type})
    return frozenset()


class DeclaredKeys(NamedTuple):
    """A declared type whose bytes may bring back another key than was put."""

    info: inspect.Type
    says_all: bool
    """Whether a type is declared for each part, so that equal keys are the same."""

    def check(self, key: object, back: object) -> None:
        """Raise SerdeError for a key that comes back as another; where a type is declared, that has its say."""
        if self.says_all and type(key) is type(back) and _are_equal(key, back):
            return
        for part, other in _differences(self.info, key, back):
            at = "" if part is key else f"in {shown(key)} "
            raise SerdeError(
                f"{at}{shown(part)} would come back as {shown(other)}, as another key than it is: its declared type "
                "does not say all of it. Leave the type out, and keys of any kind come back as they are; or declare a "
                "type that says all, as tuple[str, date] does"
            )


def declared_in(serde: Serde) -> DeclaredKeys | None:
    """Return the type of keys of a serde; None where each key that it reads is the one that was put.

    >>> declared_in(Json(tuple[int, str])), declared_in(Json(tuple)).says_all, declared_in(Json(datetime)).says_all
    (None, False, True)
    """
    kind = getattr(serde, "type", None)
    if not isinstance(serde, Json | MessagePack):
        return None
    says_all = not has_types(kind, (inspect.AnyType, inspect.CustomType))
    return None if says_all and not has_types(kind, _DOUBTFUL) else DeclaredKeys(inspect.type_info(kind), says_all)


_declared_in = lru_cache(maxsize=256)(declared_in)
_DOUBTFUL = (
    *(inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType, inspect.SetType),
    *(inspect.FrozenSetType, inspect.DictType, inspect.DateTimeType, inspect.TimeType, inspect.RawType),
    inspect.FloatType,
)
"""The types of which not each value comes back equal: rounded, with more fields, or a zone of seconds."""


def _differences(info: inspect.Type, put: Any, back: Any) -> Iterator[tuple[object, object]]:
    """Yield the parts that come back as others: each as it was put, and as it comes back."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        # Which one is meant its bytes have told.
        info = next((one for one in info.types if _may_be(one, back)), info)
    if isinstance(info, inspect.AnyType | inspect.CustomType) and not _is_model(info):
        if not _is_same(put, back):
            yield put, back
    elif (fields := _fields_in(info)) is not None:
        for place, (name, called, kind) in enumerate(fields):
            part = _field(put, place, name, called)
            if part is not _GONE:  # else it has its default
                yield from _differences(kind, part, _field(back, place, name, called))
        # A subclass that has more fields would be the same key whatever is in them.
        if type(put) is not type(back) and _names_of(put) - {name for name, _, _ in fields}:
            yield put, back
        # What a mapping has beside the fields of a class that is made of it, that class leaves out by its own wish.
        if type(put) is type(back) and _more_than(put, fields) != _more_than(back, fields):
            yield put, back
    elif isinstance(info, inspect.DictType) and isinstance(put, Mapping) and len(put) == len(back):
        for (key, value), (other_key, other) in zip(put.items(), back.items(), strict=True):
            yield from _differences(info.key_type, key, other_key)
            yield from _differences(info.value_type, value, other)
    elif isinstance(info, inspect.SetType | inspect.FrozenSetType):
        is_same = _is_same if has_types(info, (inspect.AnyType, inspect.CustomType)) else _is_meant
        if len(put) != len(back) or not is_same(type(back)(put), back):
            yield put, back
    elif isinstance(info, inspect.CollectionType | inspect.TupleType) and len(put) == len(back):
        kinds = info.item_types if isinstance(info, inspect.TupleType) else repeat(info.item_type)
        for kind, part, other in zip(kinds, put, back, strict=False):
            yield from _differences(kind, part, other)
    elif not _is_meant(put, back):
        yield put, back


def _is_meant(put: Any, back: Any) -> bool:
    """Whether a part of a declared type is what was put: equal to it, or what that type makes of text or a number."""
    if _are_equal(put, back):
        return True
    if type(put) is not type(back) and type(put) in SCALARS:
        return not (isinstance(put, int | float) and isinstance(back, int | float))  # a float that was rounded
    if isinstance(put, datetime) and isinstance(back, datetime) and put.tzinfo is not None and back.tzinfo is not None:
        # One instant in two zones is not equal to Python in the hour that a clock shows twice.
        return put.astimezone(UTC) == back.astimezone(UTC)
    return _is_same(put, back)


def _are_equal(put: object, back: object) -> bool:
    try:
        return bool(put == back)
    except Exception:  # as of signaling NaNs
        return False


def _more_than(value: Any, fields: Collection[tuple[str, str, inspect.Type]]) -> object:
    """Return what a record holds besides its fields."""
    if is_pydantic(type(value)):
        return value.__pydantic_extra__, value.__pydantic_private__
    return {*value} - {called for _, called, _ in fields} if isinstance(value, Mapping) else set()


def _is_model(info: inspect.Type) -> TypeGuard[inspect.CustomType]:
    return isinstance(info, inspect.CustomType) and is_pydantic(info.cls)


def _fields_in(info: inspect.Type) -> list[tuple[str, str, inspect.Type]] | None:
    """Return the name, the name in bytes and the type of each field of a record; None for what is no record."""
    if _is_model(info):
        hints = hints_of(info.cls)
        return [(one.name, one.name, inspect.type_info(hints[one.name])) for one in fields_of(info.cls)]
    found: Iterable[Any] | None = getattr(info, "fields", None)
    return None if found is None else [(one.name, one.encode_name, one.type) for one in found]


def _names_of(value: object) -> set[str]:
    """Return the names of the fields of a record; none of what is none."""
    kind: type = type(value)
    return {one.name for one in fields_of(kind)} if is_record(kind) else set()


def _field(value: Any, place: int, name: str, called: str) -> object:
    """Return a field of a record, or of what is read as one: a mapping by names, or a sequence."""
    if isinstance(value, Mapping):
        return value.get(called, _GONE)
    if isinstance(value, list | tuple) and not hasattr(value, name):
        return value[place] if place < len(value) else _GONE
    return getattr(value, name, _GONE)


_GONE = object()


def _may_be(info: inspect.Type, value: object) -> bool:
    kind = getattr(info, "cls", None) or _CLASSES.get(type(info))
    return kind is not None and isinstance(value, kind)


_CLASSES: dict[type, type] = {
    inspect.DictType: dict,
    inspect.TypedDictType: dict,
    inspect.ListType: list,
    inspect.TupleType: tuple,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}


def _is_same(put: object, back: object) -> bool:
    # Of equal values of equal types the bytes of `Tagged` are equal, at every depth.
    try:
        return _exact.encode(put) == _exact.encode(back)
    except SerdeError:
        return type(put) is type(back) and bool(put == back)


_exact = Tagged()


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which have no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def remembering(function: Callable[[In], Out]) -> Callable[[In], Out]:
    """Return a function that remembers its results, where nobody can change these; None stays None.

    Its arguments are bytes, or ints and strings: never two that Python takes for equal, as it does 1 and True.

    >>> decode = remembering(Tagged().decode)
    >>> decode(Tagged().encode("AA")), decode(None)
    ('AA', None)
    """
    remembered: dict[In, Out | None] = _Remembered(lambda data: None if data is None else function(data))
    # Cast, since types can't say that None alone becomes None.
    return cast(Callable[[In], Out], remembered.__getitem__)


class _Remembered(dict[In, Out]):
    """Remembers the results of a function by their arguments, and forgets all of them when it is full."""

    def __init__(self, function: Callable[[In], Out]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, argument: In) -> Out:
        result = self._function(argument)
        # Scalars alone: anything else could be changed by one caller and then be handed to the next.
        if type(result) in SCALARS:
            # To forget all costs nothing per look-up, as to keep an order of use would.
            if len(self) >= REMEMBERED_KEYS:
                self.clear()
            self[argument] = result
        return result
