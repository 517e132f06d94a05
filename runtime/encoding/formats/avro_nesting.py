"""The depth of data whose schema names itself: fastavro follows any depth in C, and has no stack for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runtime.encoding.formats.avro_shapes import Schema
from runtime.model.errors import SerdeError

DEEPEST = 250
"""So deep may values be nested whose schema names itself."""
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def depth_check(schema: Schema, skipped: int = 0) -> Callable[[bytes], None]:
    """Return what raises SerdeError for data, behind so many bytes, that lie deeper than `DEEPEST`.

    >>> node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    >>> depth_check(node)(bytes(1))
    """
    named = {one["name"]: one for one in _parts(schema) if isinstance(one, dict) and "name" in one and "type" in one}
    if not _names_itself(_within(named, _parts)):
        return _whatever
    walk = _Walk(named)
    # Each union, array and map takes a byte at least; records between two of them take none, and one that is within
    # itself with nothing between has no end.
    directly = _within(named, _directly_in)
    safe = -1 if _names_itself(directly) else DEEPEST // (_longest(directly) + 1)

    def check(data: bytes) -> None:
        if len(data) - skipped > safe:
            walk.past(schema, data, skipped, 0)

    return check


class _Walk:
    """Walks over data, and makes nothing of them."""

    def __init__(self, named: dict[str, Schema]) -> None:
        self._named = named

    def past(self, schema: Schema, data: bytes, at: int, depth: int) -> int:
        """Return the place behind a datum; raises SerdeError, and IndexError where data end before."""
        while True:
            schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
            if not isinstance(schema, list):
                break
            branch, at = long_in(data, at)
            schema = schema[branch]
        base = schema if isinstance(schema, str) else schema["type"]
        if isinstance(base, dict | list):
            return self.past(base, data, at, depth)
        if base in _SIZES:
            return at + _SIZES[base]
        if base in ("int", "long", "enum"):
            return long_in(data, at)[1]
        if base in ("bytes", "string"):
            length, at = long_in(data, at)
            return at + length
        if base == "fixed":
            return at + int(schema["size"])
        if depth >= DEEPEST:
            raise SerdeError(f"a value is nested deeper than {DEEPEST} levels, which is more than a schema is read to")
        if base in ("record", "error"):
            for one in schema["fields"]:
                at = self.past(one["type"], data, at, depth + 1)
            return at
        return self._items(schema, data, at, depth + 1)

    def _items(self, schema: Schema, data: bytes, at: int, depth: int) -> int:
        """Return the place behind an array or a map, which lie in blocks."""
        while True:
            count, at = long_in(data, at)
            if not count:
                return at
            if count < 0:
                _, at = long_in(data, at)
            for _ in range(min(abs(count), len(data))):
                if "values" in schema:
                    length, at = long_in(data, at)
                    at += length
                at = self.past(schema.get("items", schema.get("values")), data, at, depth)


def long_in(data: bytes, at: int) -> tuple[int, int]:
    r"""Return the number at a place, and the place behind it; raises IndexError where data end within it.

    >>> long_in(b"\x80\x01", 0)
    (64, 2)
    """
    found, shift = 0, 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (found >> 1) ^ -(found & 1), at


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


def nests(schema: Schema) -> bool:
    """Whether a schema names itself, so that its data may lie at any depth."""
    return depth_check(schema) is not _whatever


def _whatever(data: bytes) -> None:
    """Let all data pass."""
