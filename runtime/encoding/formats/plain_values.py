"""Values of a type taken apart into plain ones and made of these again, each checked against the type."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from operators.core.wording import shown, type_named
from runtime.encoding.value_types import as_plain, made_of_plain
from runtime.model.errors import SerdeError

AS_THEY_ARE = (bytes, bytearray, memoryview, dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, Decimal)
"""The types whose values stay as they are in a plain value."""
PlainValue: TypeAlias = Any
"""What a format holds: a dict, a list or a scalar."""
REFUSALS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError, AttributeError, KeyError)


@dataclass(frozen=True)
class PlainValues:
    """Plain values of a type: dicts, lists and scalars, as formats with a schema hold them.

    A value that is not of its declared type is refused where it is taken apart: a format would write something else.

    >>> PlainValues(dict[str, int]).taken([{"a": 1}])
    [{'a': 1}]
    >>> PlainValues(dict[str, int]).taken([{"a": 1.5}])
    Traceback (most recent call last):
    runtime.model.errors.SerdeError: {'a': 1.5} is no dict[str, int]: Expected `int`, got `float` - at `$[...]`
    """

    type: object
    _many: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_many", list[self.type])  # type: ignore[name-defined]  # known as the program runs

    def taken(self, values: Sequence[object]) -> list[PlainValue]:
        """Return values as plain ones; raises SerdeError for one that is not of the type."""
        try:
            plain: list[PlainValue] = msgspec.to_builtins(list(values), builtin_types=AS_THEY_ARE, enc_hook=as_plain)
            if self.type is not Any:
                msgspec.convert(plain, self._many, dec_hook=made_of_plain)
        except REFUSALS:
            # One by one, so that the error is about one value.
            return list(map(self.taken_one, values))
        return plain

    def taken_one(self, value: object) -> PlainValue:
        """Return a value as a plain one; raises SerdeError for one that is not of the type."""
        # msgspec looks at a type that is a list anew each time: for one value 1.9 µs, against 0.6 by the class alone.
        try:
            plain: PlainValue = msgspec.to_builtins(value, builtin_types=AS_THEY_ARE, enc_hook=as_plain)
            if self.type is not Any:
                msgspec.convert(plain, self.type, dec_hook=made_of_plain)
        except REFUSALS as error:
            raise SerdeError(f"{shown(value)} is no {type_named(self.type)}: {_words_of(error)}") from error
        return plain

    def made(self, plain: list[PlainValue]) -> list[PlainValue]:
        """Return values of the type; raises SerdeError where plain ones don't make such."""
        if self.type is Any:
            return plain
        try:
            found: list[PlainValue] = msgspec.convert(plain, self._many, dec_hook=made_of_plain)
        except REFUSALS:
            return list(map(self.made_one, plain))
        return found

    def made_one(self, plain: PlainValue) -> PlainValue:
        """Return a value of the type; raises SerdeError where a plain one does not make such."""
        if self.type is Any:
            return plain
        try:
            return msgspec.convert(plain, self.type, dec_hook=made_of_plain)
        except REFUSALS as error:
            raise SerdeError(f"what was read is no {type_named(self.type)}: {_words_of(error)}") from error


def plain_default(default: Callable[[], object]) -> PlainValue:
    """Return the default of a field, by what makes it, as it lies in a plain value."""
    return msgspec.to_builtins(default(), builtin_types=AS_THEY_ARE, enc_hook=as_plain)


def _words_of(error: Exception) -> str:
    return str(error) or type(error).__name__
