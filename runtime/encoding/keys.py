"""The keys in batches: an int or a str is held as itself, any other key as its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import countOf
from typing import Any, TypeGuard, TypeVar, cast

from operators.core.base import Key, Serde
from operators.core.wording import shown
from operators.joins.match_counts import kind_of
from runtime.encoding.nested_tuples import SCALARS
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
        self._load: Callable[[Any], Key] = remembering(self._loaded)
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
        return held

    def _kind_of_bytes(self, data: bytes) -> str:
        try:
            return self._told_kind(self.serde.decode(data))
        except Exception:
            # Of a class that is not loaded, or bytes of somebody else's: a hint is not worth a failure.
            return ""

    def _told_kind(self, key: object) -> str:
        return kind_of(key)

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
