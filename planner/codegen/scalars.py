"""Scalar replacement: an object that a loop makes and reads only part by part is not made; its parts are variables."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from inspect import getattr_static
from types import MemberDescriptorType
from typing import NamedTuple

import msgspec

from planner.codegen.inlining import given_to, parsed

VARIABLE = re.compile(r"v\d+")
MAKING = re.compile(r" *v\d+ = (?:[\[{(]|(\w+)\()")
EMPTY = (list, dict, set, bytearray, None)
"""The factories of field defaults that call no code of the user's; None where a default is no factory's."""
Key = str | int
"""The name of a part: the key of a dict, the place in a tuple or list, the field of a Struct."""


class _Made(NamedTuple):
    """The parts of an object that an expression makes, in the order of their evaluation."""

    parts: dict[Key, ast.expr]
    has_fields: bool = False
    """Whether parts are read as attributes, and not by subscripts."""

    def read_by(self, node: ast.Subscript | ast.Attribute) -> Key | None:
        """Return the part that is read there; None where it is none, or more is done than to read it."""
        key: object = None
        if isinstance(node.ctx, ast.Load) and isinstance(node, ast.Attribute) == self.has_fields:
            key = node.attr if isinstance(node, ast.Attribute) else _constant(node.slice)
        if type(key) is int and key < 0:
            key += len(self.parts)
        return key if type(key) in (str, int) and key in self.parts else None


def taken_apart(lines: Sequence[str], kinds: Mapping[str, type[msgspec.Struct]]) -> list[str]:
    """Return the source, line for line, without making any dict, tuple, list or Struct of which only parts are read.

    `kinds` has the classes of Structs by the names that are called. All parts are evaluated as before, in their order.
    Source of the idea: scalar replacement behind an escape analysis (Choi et al., OOPSLA 1999).

    >>> for line in taken_apart(["v1 = {'km': m / 1000, 'at': t}", "if v1['km'] > 1:", "    go(v1['at'])"], {}):
    ...     print(line)
    v1_km = m / 1000; v1_at = t
    if v1_km > 1:
        go(v1_at)
    """
    found = [*lines]
    # Most loops make nothing: a look by pattern spares parsing them.
    if not any((makes := MAKING.match(line)) and makes[1] in (None, *kinds) for line in lines):
        return found
    nodes: list[ast.AST] = [*ast.walk(parsed("\n".join(lines)))]
    making = {ast.unparse(node.targets[0]): node for node in nodes if isinstance(node, ast.Assign)}
    made = {
        variable: one
        for variable, node in making.items()
        if VARIABLE.fullmatch(variable) and (one := _made_by(node.value, kinds)) is not None
    }
    reads = _reads(nodes, made)
    names = {
        (variable, key): f"{variable}_{_word(key, place)}"
        for variable in reads
        for place, key in enumerate(made[variable].parts)
    }
    renamed = {id(node): names[variable, key] for variable, read in reads.items() for node, key in read}
    # From the right, so that the columns of what is further to the left stay true.
    for node in sorted((node for read in reads.values() for node, _ in read), key=lambda node: -node.col_offset):
        found[node.lineno - 1] = _replaced(found[node.lineno - 1], node, renamed[id(node)])
    for variable, read in reads.items():
        needed = {key for _, key in read}
        evaluated = [
            f"{names[variable, key]} = {ast.unparse(_Replaced(renamed).visit(part))}"
            for key, part in made[variable].parts.items()
            # A part that nobody reads is evaluated all the same: it may raise.
            if key in needed or not isinstance(part, ast.Constant | ast.Name)
        ]
        line = making[variable]
        found[line.lineno - 1] = " " * line.col_offset + ("; ".join(evaluated) or "pass")
    assert len(found) == len(lines), "SegmentPlan.lines names operators by line"
    return found


def _reads(
    nodes: Sequence[ast.AST], made: Mapping[str, _Made]
) -> dict[str, list[tuple[ast.Subscript | ast.Attribute, Key]]]:
    """Return by variable the places where its parts are read, of variables with which nothing else is done."""
    uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    reads: defaultdict[str, list[tuple[ast.Subscript | ast.Attribute, Key]]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name):
            variable = node.value.id
            if variable in made and (key := made[variable].read_by(node)) is not None:
                reads[variable].append((node, key))
    # One use is the assignment; if any other is no read of a part, the object itself is seen by somebody.
    return {variable: reads[variable] for variable in made if len(reads[variable]) == uses[variable] - 1}


def _made_by(expression: ast.expr, kinds: Mapping[str, type[msgspec.Struct]]) -> _Made | None:
    """Return the parts of the object that an expression makes; None where it can't be taken apart."""
    match expression:
        case ast.Dict(keys, values):
            names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return _Made(dict(zip(names, values, strict=True))) if len({*names}) == len(keys) else None
        case ast.Tuple(parts) | ast.List(parts) if not any(isinstance(part, ast.Starred) for part in parts):
            return _Made(dict(enumerate(parts)))
        case ast.Call(ast.Name(name)) if name in kinds:
            return _struct_made_by(expression, kinds[name])
    return None


def _struct_made_by(call: ast.Call, kind: type[msgspec.Struct]) -> _Made | None:
    """Return the parts of a Struct; None where making one fails, or where that, or a read, calls other code."""
    given = given_to(kind, call.args, {one.arg: one.value for one in call.keywords if one.arg is not None})
    if given is None:
        return None
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    default_of = dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True))
    omitted = [default_of.get(name, msgspec.NODEFAULT) for name in fields if name not in given]
    is_too_little = any(one is msgspec.NODEFAULT for one in omitted)
    makes_more = any(getattr(one, "factory", None) not in EMPTY for one in omitted)
    usual: object = msgspec.Struct.__getattribute__
    reads_more = kind.__getattribute__ is not usual or hasattr(kind, "__del__")
    if is_too_little or makes_more or reads_more:
        return None
    if not all(isinstance(getattr_static(kind, name), MemberDescriptorType) for name in given):
        return None
    return _Made(dict(given.items()), has_fields=True)


class _Replaced(ast.NodeTransformer):
    """Replaces the nodes that read parts by the variables of the parts."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        name = self._names.get(id(node))
        return self.generic_visit(node) if name is None else ast.Name(name, ast.Load())


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _word(key: Key, place: int) -> str:
    """Return the name of a part's variable, behind that of the object: the key, or else its place."""
    # Python normalises letters in names, so two keys could become one variable.
    return key if isinstance(key, str) and key.isascii() and key.isidentifier() else str(place)


def _replaced(line: str, node: ast.expr, name: str) -> str:
    """Return a line with a name in the place of a node, whose columns count bytes."""
    whole = line.encode()
    return (whole[: node.col_offset] + name.encode() + whole[node.end_col_offset :]).decode()
