"""The check that values can be kept: each part of one has a stored form, and comes back as it was put."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from operators.core.base import Copies, Form, Keys, Serde
from operators.core.wording import named, shown, type_named
from operators.state.keyed_state import Encoded
from runtime.encoding.classes import is_again
from runtime.encoding.conformity import conforming, is_checked_within, names_apart
from runtime.encoding.evolution import fitted
from runtime.encoding.keys import KeySerde
from runtime.encoding.nested_tuples import SCALARS
from runtime.encoding.record_types import fields_of, is_record
from runtime.encoding.serdes import (
    Declared,
    Evolving,
    Json,
    MessagePack,
    NoKey,
    Tagged,
    Unread,
    copying,
    decoded,
    encode_all,
    encoded,
)
from runtime.model.errors import SerdeError, UnreadState

SURE = frozenset({int, float, bool, bytes, type(None)})
"""The types of which every value has bytes when no type is declared; text may have lone surrogates, and is not one."""
NOTHING_SURE = frozenset[type]({type(None)})
LONGEST = 60
"""Characters of a value that an error shows."""
GONE = type("Gone", (), {"__repr__": lambda _: "nothing, as it is no field"})()
"""Stands for an attribute of a record that did not come back."""


class Difference(NamedTuple):
    """A part of a value that did not come back as it was put: its path, and both values."""

    at: tuple[str, ...]
    put: object
    back: object

    def __str__(self) -> str:
        told = f"{_short(self.put)} comes back as {_short(self.back)}"
        if self.back is not GONE and type(self.put) is not type(self.back):
            told += f", a {type(self.put).__qualname__} as a {type(self.back).__qualname__}"
        return f"its {_path(self.at)} {told}" if self.at else told


def check_kept(serde: Serde, values: list[object], exactly: bool = False) -> None:
    """Raise SerdeError for a value that has no bytes; `exactly` also for one that comes back as another.

    >>> check_kept(Tagged(), [1, {"a": print}])
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: its ['a'], <built-in function print>, can't be kept: ...
    """
    sure = SURE if _is_exact(serde) else NOTHING_SURE
    # This runs after each piece of work under a lenient policy, so values that always have bytes are passed over.
    doubtful = [value for value in values if type(value) not in sure]
    if not doubtful:
        return
    try:
        data = encoded(serde, doubtful)
    except Exception:
        # Encoded together for speed; one by one only now, to find the value and the part of it that the error names.
        for value in doubtful:
            _check_encodable(serde, value)
        raise
    if exactly and not isinstance(serde, NoKey | Unread):  # which bring back nothing, and are ours
        for value, stored in zip(doubtful, data, strict=True):
            _check_comes_back(serde, value, stored)


@dataclass(frozen=True)
class StoredFormats:
    """The stored forms of what operators keep; `exactly` also compares what comes back with what was put."""

    exactly: bool = False

    def serde(self, declared: Serde | None) -> Serde:
        """Return what turns values into bytes and back."""
        return declared or Tagged()

    def keys(self, declared: Serde | None) -> Keys:
        """Return what turns keys into bytes and back."""
        return KeySerde(self.serde(declared))

    def copies(self, declared: Serde | None) -> Copies:
        """Return what makes copies of states."""
        return copying(declared or Evolving())

    def form(self, declared: Serde | None) -> Form | None:
        """Return how states are stored; None where nothing is declared."""
        return form_of(declared, self.exactly)


def form_of(declared: Serde | None, exactly: bool = False) -> Form | None:
    """Return the stored form of states of a declared type or serde; None if none is declared.

    Of a type they are stored as ever, and must be of it; a serde has the say, and what was stored before it was
    declared is read as it is. Dumping raises SerdeError for what is not of the type, or has no bytes.
    """
    if declared is None:
        return None
    kind, decode = declared.type if isinstance(declared, Declared) else None, declared.decode
    encode = read_back(declared).encode

    def fit(state: object) -> object:
        return state if type(state) is kind else fitted(state, kind, "a state")

    def dump(state: object) -> Encoded:
        if exactly:
            check_kept(declared, [state], exactly=True)
        try:
            return Encoded(bytes(encode(state)))
        except Exception as error:
            raise SerdeError(f"{_short(state)} can't be kept: {_said(error)}") from error

    def load(stored: object) -> object:
        try:
            if kind is not None:
                return fit(stored)
            return decode(stored.data) if type(stored) is Encoded else stored
        except Exception as error:
            raise UnreadState(f"its state can't be read: {_said(error)}") from error

    return Form(dump, load) if kind is None else Form(fit, load, fits=True)


@dataclass(frozen=True)
class ReadBack:
    """The serde of what is written as a declared type: a value that could not be read again is refused.

    Else it would be committed, and no reader of the stream, nor a delivery to a sink, would ever come past it.

    >>> ReadBack(Json(float), float).encode_all([1.5, 2])
    [b'1.5', b'2']
    >>> ReadBack(Json(int), int).encode(7.0)
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: 7.0 is not of the declared type, int: ...
    """

    declared: Serde
    type: object
    """The type of the values; None where only their bytes tell whether they can be read."""

    @cached_property
    def _checks(self) -> tuple[Callable[[Any], bool], Callable[[Collection[Any]], bool]]:
        """The checks whether one value, and whether all of some need not be read again, as most are of the type."""
        return conforming(object if self.type is None else self.type)

    @cached_property
    def _names_apart(self) -> list[str]:
        """The fields of models that may be read as others than were written."""
        return names_apart(self.type)

    @cached_property
    def _is_checked(self) -> bool:
        """Whether what is read is changed or refused by what its class says."""
        return is_checked_within(self.type)

    def encode(self, value: object) -> bytes:
        """Return the bytes of a value; raises SerdeError where they could not be read."""
        data, (conforms, _) = self.declared.encode(value), self._checks
        if not conforms(value):
            self._read(value, data)
        return data

    def encode_all(self, values: list[Any]) -> list[bytes | None]:
        """Return the bytes of each of many values; None is one of them."""
        found = encode_all(self.declared, values)
        self.check(values, lambda: found)
        return found

    def check(self, values: list[Any], encoded: Callable[[], Sequence[bytes | None]]) -> None:
        """Raise SerdeError for a value whose bytes, which `encoded` returns, could not be read; None has no value."""
        conforms, all_conform = self._checks
        if not all_conform(values):
            for value, data in zip(values, encoded(), strict=True):
                if value is not None and data is not None and not conforms(value):
                    self._read(value, data)

    def decode(self, data: bytes) -> Any:
        """Return the value of `data`."""
        return self.declared.decode(data)

    def decode_all(self, column: Sequence[bytes]) -> list[object]:
        """Return the value of each of many bytes."""
        return decoded(self.declared, column)

    def _read(self, value: object, data: bytes) -> None:
        try:
            back = self.declared.decode(data)
        except Exception as error:
            said = "" if self.type is None else f", {type_named(self.type)}"
            raise SerdeError(
                f"{_short(value)} is not of the declared type{said}: {error}; write what is declared, or declare what "
                "is written"
            ) from error
        # A field that is read by another name than it has takes its default, and nothing fails.
        if self._names_apart and (found := difference(value, back)) is not None:
            raise SerdeError(
                f"{found}, as the name that {', '.join(self._names_apart)} would be written by is not the one that is "
                "read, or another field's, or begins with an underscore: give a field that name alone, as by alias=, "
                "or let it be among those of validation_alias=AliasChoices(…); in a class of attrs, without underscore"
            )
        if self._is_checked and self._is_changed(value, back, data):
            told = difference(value, back) or f"{_short(value)} comes back as {_short(back)}"
            raise SerdeError(
                f"{told}, as the validators or the __post_init__ of its class change what is written once more as it "
                "is read: let them leave alone what they have made, or declare no type of an output, no serde of state"
            )

    def _is_changed(self, value: object, back: object, data: bytes) -> bool:
        """Whether a class has made another value of what was written, beyond what the format does."""
        # A dict that is given as a record is one only as it is read, and has to stay that.
        if isinstance(value, dict) and not isinstance(back, dict):
            value, data = back, self.declared.encode(back)
            back = self.declared.decode(data)
        with suppress(Exception):  # whatever == says of a value
            if value == back:
                return False
        return self.declared.encode(back) != data and not _is_alike(value, back)


def read_back(serde: Serde) -> Serde:
    """Return the serde by which values of a declared type are written: it refuses what that could not be read from."""
    if isinstance(serde, Tagged):  # which brings back what it was given
        return serde
    kind = getattr(serde, "type", Any)  # a serde of the user's has no such attribute
    # Formats that say more than a type refuse by themselves what they can't write, but not what is read as a default.
    checks = isinstance(serde, Json | MessagePack) or bool(names_apart(kind)) or is_checked_within(kind)
    return ReadBack(serde, kind) if checks and kind is not Any else serde


def difference(put: Any, back: Any, at: tuple[str, ...] = ()) -> Difference | None:
    """Return the first part that came back as another value or type than was put; None if both are the same.

    >>> str(difference({"a": (1, 2)}, {"a": [1, 2]}))
    "its ['a'] (1, 2) comes back as [1, 2], a tuple as a list"
    >>> difference(float("nan"), float("nan"))
    """
    kind = type(put)
    if not is_again(type(back), kind):
        # Where a float is declared, an int is stored as one: that is what the declaration asks for.
        widened = kind is int and type(back) is float and put == back
        return None if widened else Difference(at, put, back)
    if kind in (list, tuple) or isinstance(put, dict):
        if len(put) != len(back) or (isinstance(put, dict) and [*map(repr, put)] != [*map(repr, back)]):
            return Difference(at, put, back)
        # Most hold plain values alone, as counts by key do: where each lies is found only of what differs.
        if _are_the_same_plain(*(one.values() if isinstance(one, dict) else one for one in (put, back))):
            return None
    elif isinstance(put, set | frozenset):
        # By repr(), since members need have no order, and 1 and True are equal.
        alike = sorted(map(repr, put)) == sorted(map(repr, back))
        return None if alike else Difference(at, put, back)
    parts = [*_parts(put)]
    if not parts:
        return None if _is_same(put, back) else Difference(at, put, back)
    others = [*_parts(back)]
    if [name for name, _ in parts] != [name for name, _ in others]:
        back_again = {name for name, _ in others}
        gone = next((part for part in parts if part[0] not in back_again), None)
        return Difference(at, put, back) if gone is None else Difference((*at, gone[0]), gone[1], GONE)
    pairs = zip(parts, others, strict=True)
    found = (difference(part, other, (*at, name)) for (name, part), (_, other) in pairs)
    return next((one for one in found if one is not None), None)


def _check_encodable(serde: Serde, value: object) -> None:
    try:
        serde.encode(value)
    except Exception as error:
        at, part, inner = _fault(serde, value, error)
        what = f"its {_path(at)}, {_short(part)}," if at else _short(part)
        raise SerdeError(f"{what} can't be kept: {_said(inner)}") from error


def _check_comes_back(serde: Serde, value: object, data: bytes) -> None:
    try:
        back = serde.decode(data)
    except Exception as error:
        raise SerdeError(f"{_short(value)} can be written and not be read again: {_said(error)}") from error
    found = difference(value, back)
    if found is None or (not _is_exact(serde) and _is_alike(value, back)):
        return
    raise SerdeError(
        f"{found}, so it would go on as another value than was put: put what comes back, or declare a "
        "serde that brings it back"
    )


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it holds itself, or is nested too deeply"
    return str(error) if isinstance(error, SerdeError) else named(error)


def _fault(serde: Serde, value: object, error: Exception) -> tuple[tuple[str, ...], object, Exception]:
    """Return where the innermost part of a value is that has no bytes, that part, and why."""
    at: tuple[str, ...] = ()
    while isinstance(serde, Tagged | Json | MessagePack) and not isinstance(error, RecursionError):
        for name, part in _parts(value):
            try:
                serde.encode(part)
            except Exception as inner:
                at, value, error = (*at, name), part, inner
                break
        else:
            break
    return at, value, error


def _is_exact(serde: Serde) -> bool:
    """Whether a serde has to bring back exactly what it is given, because no type was declared."""
    return isinstance(serde, Tagged) and serde.type is Any


def _is_alike(put: object, back: object) -> bool:
    """Whether a value came back as another one of a declared type that says the same."""
    try:
        return bool(put == back) or _is_within(*(msgspec.json.decode(msgspec.json.encode(one)) for one in (put, back)))
    except Exception:
        return False


def _is_within(put: object, back: object) -> bool:
    """Whether plain values are the same, but for fields of records that took their defaults."""
    if isinstance(put, dict) and isinstance(back, dict):
        return all(key in back and _is_within(put[key], back[key]) for key in put)
    return bool(put == back)


def _is_same(put: object, back: Any) -> bool:
    if put is back or isinstance(put, Enum):
        return put is back or _is_same_enum(put, back)
    if isinstance(put, dt.datetime | dt.time):
        return bool(put == back) and put.utcoffset() == back.utcoffset() and put.fold == back.fold
    try:
        same = put == back
        alike = bool(same) if isinstance(same, bool) else bool(same.all())
    except Exception:
        alike = False
    if isinstance(put, float | Decimal) or not alike:
        return repr(put) == repr(back)  # NaN, -0.0, Decimal("1.0") beside Decimal("1.00"), and what has no ==
    return True


def _are_the_same_plain(put: Iterable[Any], back: Iterable[Any]) -> bool:
    """Whether as many values are plain, and the same; zeros and NaN of floats are looked at by themselves."""
    return all(
        type(one) is type(other) and type(one) in SCALARS and one == other and (one != 0 or type(one) is not float)
        for one, other in zip(put, back, strict=True)
    )


def _is_same_enum(put: object, back: object) -> bool:
    return isinstance(put, Enum) and isinstance(back, Enum) and (put.name, put.value) == (back.name, back.value)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, and where they are in it as an expression says it."""
    kind: type = type(value)
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{_short(key)}]", part
    elif isinstance(value, set | frozenset):
        yield from (("[member]", part) for part in value)
    elif is_record(kind):
        for field in fields_of(kind):
            if hasattr(value, field.name):
                yield f"{kind.__qualname__}.{field.name}", getattr(value, field.name)
        # What a function has set beside the fields comes back only if the constructor sets it again.
        fields = {field.name for field in fields_of(kind)}
        for name, part in getattr(value, "__dict__", {}).items():
            if name not in fields and not isinstance(getattr(kind, name, None), cached_property):
                yield f"{kind.__qualname__}.{name}", part
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield f"[{place}]", part


def _path(at: tuple[str, ...]) -> str:
    """Return where a part is, from the outermost record on: what is around it is of our own making.

    >>> _path(("[1]", "Order.lines", "[0]", "Line.price")), _path(("['a']", "[0]"))
    ('Order.lines[0].price', "['a'][0]")
    """
    first = next((place for place, one in enumerate(at) if one[0] != "["), 0)
    outer, *inner = at[first:]
    return outer + "".join(one if one[0] == "[" else f".{one.rpartition('.')[2]}" for one in inner)


def _short(value: object) -> str:
    text = shown(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
