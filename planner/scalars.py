"""Scalar replacement: what a loop makes, and reads only part by part, is not made; its parts are variables."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, NamedTuple

import msgspec

MAKING = re.compile(r" *(v\d+) = (?:[\[{(]|(\w+)\()")
Key = str | int
"""What a part is read by: the key of a dict, the place in a tuple or list, the field of a Struct."""


class _Made(NamedTuple):
    """The parts of what an expression makes, in the order of their evaluation."""

    parts: dict[Key, ast.expr]
    has_fields: bool = False
    """Whether parts are read as attributes, and not by subscripts."""

    def read_by(self, node: ast.AST, variable: str) -> Key | None:
        """Return which part a node reads of the variable that has what is made; None where it reads none."""
        key: object = None
        match node:
            case ast.Subscript(ast.Name(name), place, ast.Load()) if name == variable and not self.has_fields:
                key = _constant(place)
                key = key + len(self.parts) if type(key) is int and key < 0 else key
            case ast.Attribute(ast.Name(name), field, ast.Load()) if name == variable and self.has_fields:
                key = field
        return key if isinstance(key, str | int) and type(key) is not bool and key in self.parts else None


def taken_apart(lines: Sequence[str], kinds: Mapping[str, type[Any]]) -> list[str]:
    """Return source, line for line, that makes no dict, tuple, list or Struct which only its parts are read of.

    `kinds` has the classes of Structs by the names that are called. All parts are evaluated as before, in their order.
    Source of the idea: scalar replacement behind an escape analysis (Choi et al., OOPSLA 1999).

    >>> for line in taken_apart(["v1 = {'km': m / 1000, 'at': t}", "if v1['km'] > 1:", "    go(v1['at'])"], {}):
    ...     print(line)
    v1_km = m / 1000; v1_at = t
    if v1_km > 1:
        go(v1_at)
    """
    found = [*lines]
    for number, line in enumerate(lines):
        makes = MAKING.match(line)
        if makes is not None and makes[2] in (None, *kinds) and _seems_read_by_parts(makes[1], found):
            found = _without(makes[1], number, found, kinds) or found
    return found


def _seems_read_by_parts(variable: str, lines: Sequence[str]) -> bool:
    """Whether something of a part follows a variable wherever it is read: a look that costs less than to parse it."""
    following = re.findall(rf"\b{variable}\b(.?)", "\n".join(lines))
    return all(one and one in "[." for one in following[1:])


def _without(variable: str, number: int, lines: Sequence[str], kinds: Mapping[str, type[Any]]) -> list[str] | None:
    """Return the lines without a variable that one of them sets; None where they can't do without."""
    nodes: list[Any] = [*ast.walk(ast.parse("\n".join(lines)))]
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == variable]
    (setting,) = (node for node in nodes if isinstance(node, ast.Assign) and node.targets[0] in uses)
    made = _made_by(setting.value, kinds)
    if made is None:
        return None
    reads = [(node, key) for node in nodes if (key := made.read_by(node, variable)) is not None]
    if len(reads) < len(uses) - 1:
        return None
    names = {key: f"{variable}_{_word(key, place)}" for place, key in enumerate(made.parts)}
    found = [*lines]
    for node, key in sorted(reads, key=lambda read: -read[0].col_offset):  # from the right, so that places stay
        found[node.lineno - 1] = _replaced(found[node.lineno - 1], node, names[key])
    read = {key for _, key in reads}
    needed = (key for key, part in made.parts.items() if key in read or not isinstance(part, ast.Constant | ast.Name))
    evaluated = "; ".join(f"{names[key]} = {ast.unparse(made.parts[key])}" for key in needed)
    found[number] = " " * setting.col_offset + (evaluated or "pass")
    return found


def _made_by(expression: ast.expr, kinds: Mapping[str, type[Any]]) -> _Made | None:
    """Return what an expression makes; None where it is none of what can be taken apart."""
    match expression:
        case ast.Dict(keys, values):
            names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return _Made(dict(zip(names, values, strict=True))) if len({*names}) == len(keys) else None
        case ast.Tuple(parts) | ast.List(parts):
            return _Made(dict(enumerate(parts)))
        case ast.Call(ast.Name(name)) if name in kinds:
            return _struct_made_by(expression, kinds[name])
    return None


def _struct_made_by(call: ast.Call, kind: type[Any]) -> _Made | None:
    """Return what a call of a Struct's class makes; None where it fails, or where to read a field may be more."""
    named = {one.arg: one.value for one in call.keywords if one.arg is not None}
    try:
        fields = {id(node): name for name, node in inspect.signature(kind).bind(*call.args, **named).arguments.items()}
    except TypeError:
        return None
    are_slots = all(isinstance(inspect.getattr_static(kind, name), MemberDescriptorType) for name in fields.values())
    usual: object = msgspec.Struct.__getattribute__
    if not are_slots or kind.__getattribute__ is not usual or hasattr(kind, "__del__"):
        return None
    return _Made({fields[id(node)]: node for node in (*call.args, *named.values())}, has_fields=True)


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _word(key: Key, place: int) -> str:
    """Return a part's name as one in Python; Python takes some letters for others."""
    return key if isinstance(key, str) and key.isascii() and key.isidentifier() else str(place)


def _replaced(line: str, node: Any, name: str) -> str:
    """Return a line with a name in the place of a node, whose columns count bytes."""
    whole = line.encode()
    return (whole[: node.col_offset] + name.encode() + whole[node.end_col_offset :]).decode()
