"""The keys in batches: an int or a str is held as itself, any other key as its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import countOf
from typing import Any, TypeGuard, TypeVar, cast

from msgspec import inspect

from operators.core.base import Key, Serde
from operators.core.declared_types import has_types
from operators.core.wording import shown
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import fields_of, hints_of, is_pydantic
from runtime.encoding.serdes import Json, MessagePack, String, Tagged, encode_all
from runtime.model.errors import SerdeError

In = TypeVar("In")
Out = TypeVar("Out")
REMEMBERED_KEYS = 100_000
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
        self.serde = serde
        self.kind: type | None = None
        """The one type that all keys of the newest column have, if such keys are held as themselves."""
        self._plain = plain_types(serde)
        self._undeclared = undeclared_in(serde)
        self._load: Callable[[Any], Key] = remembering(self._loaded)
        self._decode = remembering(serde.decode)

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

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        """Return held keys in the order of their bytes.

        >>> KeySerde(Tagged()).in_order([300, -1, 7, "a"])
        [7, 'a', 300, -1]
        """
        # Large windows bring a million keys in order when they fire. MessagePack writes natural numbers, and texts of
        # one length, in their own order, and UTF-8 all texts, so most columns are sorted in C, without the bytes of any
        # key.
        found: list[Any] = list(keys)
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
        if self.are_held(type(key), [key]):
            plain: Key = key
            return plain
        try:
            held: Key = self._load(data)
        except Exception as error:
            # Written on, it would end each run behind, whatever the policy says here.
            raise SerdeError(f"{shown(key)} can be written as a key and not be read again: {error}") from error
        if self._undeclared is not None:
            _check_undeclared(self._undeclared, key, self.serde.decode(data))
        return held

    def _loaded(self, data: bytes) -> Key:
        key = self.serde.decode(data)
        is_plain = self.are_held(type(key), [key]) and self.serde.encode(key) == data
        return key if is_plain else data


def plain_types(serde: Serde) -> frozenset[type]:
    """Return the types whose keys the serde gives back as they were, so that they are held as themselves."""
    if isinstance(serde, Tagged):
        return frozenset({int, str} if serde.type is Any else {int, str} & {serde.type})
    if type(serde) is String:
        return frozenset({str})
    if isinstance(serde, Json | MessagePack):
        return frozenset({int, str} if serde.type is Any else {int, str} & {serde.type})
    return frozenset()


def undeclared_in(serde: Serde) -> inspect.Type | None:
    """Return the type of a serde whose bytes do not tell all of a key: one with parts of which no type is declared.

    >>> undeclared_in(Json(tuple)) is None, undeclared_in(Json(tuple[int, str])) is None
    (False, True)
    """
    if isinstance(serde, Json | MessagePack) and has_types(serde.type, (inspect.AnyType, inspect.CustomType)):
        return inspect.type_info(serde.type)
    return None


def _check_undeclared(info: inspect.Type, key: object, back: object) -> None:
    """Raise SerdeError for a key that comes back as another where no type is declared; a declared one has its say."""
    for part, other in _undeclared_parts(info, key, back):
        if not _is_same(part, other):
            at = "" if part is key else f"in {shown(key)} "
            raise SerdeError(
                f"{at}{shown(part)} would come back as {shown(other)}: its declared type does not say what it is. "
                "Leave the type out, and keys of any kind come back as they are; or declare all of it, as "
                "tuple[str, datetime]"
            )


def _undeclared_parts(info: inspect.Type, put: Any, back: Any) -> Iterator[tuple[object, object]]:
    """Yield the parts for which no type is declared: each as it was put, and as it comes back."""
    if isinstance(info, inspect.UnionType):
        # Which one is meant its bytes have told.
        for one in info.types:
            if _may_be(one, back):
                yield from _undeclared_parts(one, put, back)
                return
    if isinstance(info, inspect.Metadata):
        yield from _undeclared_parts(info.type, put, back)
    elif isinstance(info, inspect.DictType):
        if not isinstance(put, Mapping) or len(put) != len(back):
            yield put, back
            return
        for (key, value), (other_key, other) in zip(put.items(), back.items(), strict=True):
            yield from _undeclared_parts(info.key_type, key, other_key)
            yield from _undeclared_parts(info.value_type, value, other)
    elif isinstance(info, inspect.SetType | inspect.FrozenSetType):
        if has_types(info.item_type, (inspect.AnyType, inspect.CustomType)):
            yield type(back)(put), back
    elif isinstance(info, inspect.CollectionType):
        for part, other in zip(put, back, strict=True):
            yield from _undeclared_parts(info.item_type, part, other)
    elif isinstance(info, inspect.TupleType):
        for one, part, other in zip(info.item_types, put, back, strict=True):
            yield from _undeclared_parts(one, part, other)
    elif (fields := _fields_in(info)) is not None:
        for place, (name, called, kind) in enumerate(fields):
            part = _field(put, place, name, called)
            if part is not _GONE:  # else it has its default
                yield from _undeclared_parts(kind, part, _field(back, place, name, called))
    elif isinstance(info, inspect.AnyType | inspect.CustomType):
        yield put, back


def _fields_in(info: inspect.Type) -> list[tuple[str, str, inspect.Type]] | None:
    """Return the name, the name in bytes and the type of each field of a record; None for what is no record."""
    if isinstance(info, inspect.CustomType) and is_pydantic(info.cls):
        hints = hints_of(info.cls)
        return [(one.name, one.name, inspect.type_info(hints[one.name])) for one in fields_of(info.cls)]
    found: Iterable[Any] | None = getattr(info, "fields", None)
    return None if found is None else [(one.name, one.encode_name, one.type) for one in found]


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
