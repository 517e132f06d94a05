"""Claims of Avro's data, looked at before fastavro believes them: depths that no stack has, and counts of nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

from runtime.encoding.formats.avro_shapes import Schema
from runtime.model.errors import SerdeError

DEEPEST = 250
"""So deep may values be nested whose schema names itself."""
DEEPEST_OF_ALL = 100_000
"""So deep a value is gone past, to come to what lies behind it."""
MOST_OF_NO_BYTES = 1_000_000
"""So many items that take no byte, as null, may the arrays of a value have: a few bytes can tell of more."""
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def bounds_check(schema: Schema, skipped: int = 0) -> Callable[[bytes], None] | None:
    """Return what raises SerdeError for data, behind so many bytes, that lie too deep or have too many of nothing.

    Of most schemas there are none such: None.

    >>> node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    >>> bounds_check(node)(bytes(1)), bounds_check({"type": "array", "items": "int"})
    (None, None)
    """
    named = named_in(schema)
    arrays = (one for one in _parts(schema) if isinstance(one, dict) and "items" in one)
    has_counts = any(takes_none(one["items"], named) for one in arrays)
    if not has_counts and not _names_itself(_within(named, _parts)):
        return None
    # Each union, array and map takes a byte at least; records between two of them take none, and one that is within
    # itself with nothing between has no end.
    directly = _within(named, _directly_in)
    safe = -1 if has_counts or _names_itself(directly) else DEEPEST // (_longest(directly) + 1)

    def check(data: bytes) -> None:
        if len(data) - skipped > safe:
            _Walk(named, data, skipped, DEEPEST, MOST_OF_NO_BYTES).past(schema)

    return check


def takes_none(schema: Schema, named: Mapping[str, Schema], within: tuple[str, ...] = ()) -> bool:
    """Whether a datum of a schema takes no byte, whatever it is.

    >>> takes_none("null", {}), takes_none(["null"], {}), takes_none({"type": "fixed", "name": "Id", "size": 0}, {})
    (True, False, True)
    """
    part = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(part, dict):
        return bool(part == "null")
    base, name = part["type"], part.get("name", "")
    if base in ("record", "error"):
        # One that is within itself with nothing between has no end.
        inner = (*within, name)
        return name not in within and all(takes_none(one["type"], named, inner) for one in part["fields"])
    return int(part["size"]) == 0 if base == "fixed" else takes_none(base, named, within)


def end_of(schema: Schema) -> Callable[[bytes, int], int] | None:
    """Return what returns the place behind a datum at another, however deep that lies; raises as `bounds_check`.

    Only where there may be data that `bounds_check` refuses, else None.
    """
    if bounds_check(schema) is None:
        return None
    named = named_in(schema)
    return lambda data, at: _Walk(named, data, at, DEEPEST_OF_ALL, sys.maxsize).past(schema)


class _Walk:
    """Walks over data from a place on, and makes nothing of them; its stack is a list, which has room for any depth."""

    def __init__(self, named: Mapping[str, Schema], data: bytes, at: int, deepest: int, most_of_no_bytes: int) -> None:
        self._named, self._data, self._at = named, data, at
        self._deepest, self._left = deepest, most_of_no_bytes

    def past(self, schema: Schema) -> int:
        """Return the place behind a datum; raises SerdeError, and IndexError or EOFError where data end before."""
        stack: list[Iterator[Schema]] = [iter((schema,))]
        while stack:
            for one in stack[-1]:
                if (within := self._begun(one)) is not None:
                    if len(stack) > self._deepest:
                        raise SerdeError(
                            f"a value is nested deeper than {self._deepest} levels, which is more than a schema is "
                            "read to"
                        )
                    stack.append(within)
                    break
            else:
                stack.pop()
        return self._at

    def _begun(self, schema: Schema) -> Iterator[Schema] | None:
        """Go past a datum; of one that has others within go to the first, and return the schemas of all of these."""
        while True:
            schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
            if isinstance(schema, list):
                schema = schema[self._long()]
            elif isinstance(schema, dict) and (
                isinstance(schema["type"], dict | list) or schema["type"] in self._named
            ):
                schema = schema["type"]
            else:
                break
        base = schema if isinstance(schema, str) else schema["type"]
        if base in ("record", "error"):
            return (one["type"] for one in schema["fields"])
        if base in ("array", "map"):
            return self._items(schema)
        if base in ("int", "long", "enum"):
            self._long()
        elif base in ("bytes", "string"):
            self._skip(self._long())
        else:
            self._skip(int(schema["size"]) if base == "fixed" else _SIZES[base])
        return None

    def _items(self, schema: Schema) -> Iterator[Schema]:
        """Yield the schema of each item of an array or a map, which lie in blocks, as its place is come to."""
        is_map = "values" in schema
        one = schema["values"] if is_map else schema["items"]
        is_nothing = not is_map and takes_none(one, self._named)
        while count := self._long():
            if count < 0:
                self._long()
            if is_nothing:
                self._left -= abs(count)
                if self._left < 0:
                    raise SerdeError(
                        f"a value has more than {MOST_OF_NO_BYTES:,} items that take no byte, as those of an array of "
                        "null, which is more than is read"
                    )
                continue
            for _ in range(abs(count)):  # each of which takes a byte at least, or data end
                if is_map:
                    self._skip(self._long())
                yield one

    def _long(self) -> int:
        found, self._at = long_in(self._data, self._at)
        return found

    def _skip(self, length: int) -> None:
        """Go past so many bytes; raises EOFError for what leads elsewhere than on within the data."""
        if not 0 <= length <= len(self._data) - self._at:
            raise EOFError(f"{length} bytes are told at byte {self._at} of {len(self._data)}")
        self._at += length


def long_in(data: bytes, at: int) -> tuple[int, int]:
    r"""Return the number at a place, and the place behind it; raises IndexError where data end within it.

    One of more bytes than 64 bits take is none: it raises SerdeError.

    >>> long_in(b"\x80\x01", 0)
    (64, 2)
    """
    found = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return (found >> 1) ^ -(found & 1), at
    raise SerdeError(f"a number at byte {at - 10} has more than 64 bits")


def named_in(schema: Schema) -> dict[str, Schema]:
    """Return the types of a schema that have names, by these."""
    return {one["name"]: one for one in _parts(schema) if isinstance(one, dict) and "name" in one and "type" in one}


def _parts(schema: Schema) -> Iterator[Schema]:
    """Yield a schema and all that is in it."""
    yield schema
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    elif isinstance(schema, dict):
        for name in ("type", "items", "values"):
            if isinstance(schema.get(name), dict | list | str):
                yield from _parts(schema[name])
        for one in schema.get("fields", ()):
            yield from _parts(one["type"])


def _directly_in(schema: Schema) -> Iterator[Schema]:
    """Yield a schema, and what lies within it without a union, an array or a map between."""
    yield schema
    if isinstance(schema, dict) and isinstance(schema["type"], dict | str):
        yield from _directly_in(schema["type"])


def _within(named: dict[str, Schema], parts_in: Callable[[Schema], Iterator[Schema]]) -> dict[str, set[str]]:
    """Return the types with names that lie in the parts of the fields of each."""
    found: dict[str, set[str]] = {}
    for name, one in named.items():
        parts = [part for each in one.get("fields", ()) for part in parts_in(each["type"])]
        found[name] = {part for part in parts if isinstance(part, str) and part in named}
        found[name] |= {part["name"] for part in parts if isinstance(part, dict) and "name" in part}
    return found


def _longest(within: dict[str, set[str]]) -> int:
    """Return how many types lie one within the other at most, where none is within itself."""
    longest, left = 0, {*within}
    while left:
        left = {one for name in left for one in within[name]}
        longest += 1
    return longest


def _names_itself(within: dict[str, set[str]]) -> bool:
    """Whether a type is within itself, directly or by way of others."""
    for name in within:
        met, left = set[str](), [name]
        while left:
            for one in within.get(left.pop(), ()):
                if one == name:
                    return True
                if one not in met:
                    met.add(one)
                    left.append(one)
    return False
