"""Terms over columns for expressions over the fields of a record, where both are the same to the last value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from planner.codegen.inlining import construction, expression, given_to, is_plain_struct, made_by
from planner.model.function_names import label_of

LARGEST_EXACT = 2**53
"""The bound up to which every int is exactly a float."""
LARGEST = 2**63 - 1
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply"}
BY_CONSTANT: dict[type[ast.operator], str] = {ast.Mod: "modulo", ast.FloorDiv: "floor"}
TYPES: dict[type[inspect.Type], str] = {
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BoolType: "bool",
}


class Term(NamedTuple):
    """A column, a constant, or an operation on other terms; of one type, or also None where it is `optional`.

    A null that is not `optional` stands where Python raises.
    """

    op: str
    parts: tuple[Any, ...]
    type: str
    optional: bool = False


def names_in(term: Term) -> set[str]:
    """Return the names of the columns that a term reads."""
    if term.op == "column":
        return {term.parts[0]}
    return {name for part in term.parts if isinstance(part, Term) for name in names_in(part)}


class NotColumnar(Exception):
    """Raised for an expression that columns can't compute; its text is the reason, in one sentence."""


def columns_of(kind: object) -> dict[str, Term]:
    """Return the columns that hold the fields of a Struct, by field; raises NotColumnar where they may not tell all."""
    found = inspect.type_info(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None
    if not isinstance(found, inspect.StructType):
        raise NotColumnar("the input's value is no msgspec Struct, whose fields would say what columns hold")
    name = found.cls.__name__
    if found.tag is not None or found.forbid_unknown_fields or hasattr(kind, "__post_init__") or found.array_like:
        raise NotColumnar(f"{name} is checked as a whole when it is read (tag, __post_init__, unknown fields)")
    return {field.name: _column(name, field) for field in found.fields}


def _column(name: str, field: inspect.Field) -> Term:
    kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    plain = [kind for kind in kinds if not isinstance(kind, inspect.NoneType)]
    kind = TYPES.get(type(plain[0])) if len(plain) == 1 else None
    if kind is None or plain[0] != type(plain[0])():
        raise NotColumnar(f"{name}.{field.name} is no plain int, float, str or bool")
    return Term("column", (field.encode_name,), kind, len(plain) < len(kinds))


def term_of(function: Callable[..., object], columns: Mapping[str, Term], kinds: tuple[str, ...]) -> Term:
    """Return the result of a function, of one of these types and never None, as a term; raises NotColumnar."""
    translator = _Translator(function, columns)
    found = translator.value(translator.body)
    if found.type not in kinds or found.op == "constant":
        raise NotColumnar(f"{label_of(function)} returns no {' or '.join(kinds)} of a column")
    return found


def condition_of(function: Callable[..., object], columns: Mapping[str, Term]) -> Term:
    """Return the truth of a function's result, as a term; raises NotColumnar."""
    translator = _Translator(function, columns)
    return translator.truth(translator.body)


def record_of(
    function: Callable[..., object], columns: Mapping[str, Term]
) -> tuple[type[msgspec.Struct], dict[str, Term]]:
    """Return the class of the Struct that a function makes, and what goes into its columns; raises NotColumnar.

    Each field has a value of just its type: the constructor of a Struct checks nothing, but who reads it does.
    """
    found, label = construction(function), label_of(function)
    if found is None or len(found.parameters) != 1:
        raise NotColumnar(f"{label} does not just make a Struct of one record, as lambda r: Name(r.field, ...) does")
    kind = made_by(function)
    fields = columns_of(kind)
    if not is_plain_struct(kind):
        raise NotColumnar(f"{found.name} has a constructor of its own")
    given = given_to(kind, found.places, found.named)
    if given is None or given.keys() != fields.keys():
        raise NotColumnar(f"{label} does not give each field of {found.name} once")
    translator = _Translator(function, columns, found.parameters)
    made = {}
    for name, field in fields.items():
        term = translator.value(given[name])
        if term.type != field.type or (term.optional and not field.optional):
            raise NotColumnar(f"{label}: {found.name}.{name} is given something else than its type says")
        made[str(field.parts[0])] = term
    return kind, made


class _Translator:
    """Makes terms of one function of one parameter; it has a `body` where the function is an expression."""

    body: ast.expr

    def __init__(
        self, function: Callable[..., object], columns: Mapping[str, Term], parameters: tuple[str, ...] = ()
    ) -> None:
        self._label = label_of(function)
        if not parameters:
            found = expression(function)
            if found is None or len(found.parameters) != 1:
                raise NotColumnar(f"{self._label} is no expression of one record, which a lambda can be")
            parameters, self.body = found.parameters, found.body
        (self._parameter,) = parameters
        self._columns = columns

    def truth(self, node: ast.expr) -> Term:
        """Return the truth of a value, as a term."""
        # No rules for errors are needed: where Python raises there is null, and a batch with one is read row by row.
        if isinstance(node, ast.BoolOp):
            op = "and" if isinstance(node.op, ast.And) else "or"
            return Term(op, tuple(map(self.truth, node.values)), "bool")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Term("not", (self.truth(node.operand),), "bool")
        value = self.value(node)
        empty = {"int": 0, "float": 0.0, "str": ""}
        is_true = value
        if value.type != "bool":
            is_true = Term("not_equal", (value, Term("constant", (empty[value.type],), value.type)), "bool")
        return Term("where_known", (value, is_true), "bool") if value.optional else is_true

    def value(self, node: ast.expr) -> Term:
        """Return a value, as a term; raises NotColumnar for what is not known to be the same of columns."""
        match node:
            case ast.Attribute(ast.Name(name), field) if name == self._parameter and field in self._columns:
                return self._columns[field]
            case ast.Constant(bool() | float() | str() as value):
                return Term("constant", (value,), type(value).__name__)
            case ast.Constant(int() as value) if abs(value) <= LARGEST:
                return Term("constant", (value,), "int")
            case ast.UnaryOp(ast.USub(), operand):
                return self._negated(self.value(operand))
            case ast.UnaryOp(ast.Not()):
                return self.truth(node)
            case ast.BinOp(left, op, right):
                return self._calculated(type(op), self.value(left), self.value(right))
            case ast.Compare(left, [op], [ast.Constant(None)]) if isinstance(
                op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq
            ):
                return self._none_test(self.value(left), isinstance(op, ast.Is | ast.Eq))
            case ast.Compare(left, ops, others):
                sides = [self.value(one) for one in (left, *others)]
                found = [self._compared(type(op), *pair) for op, pair in zip(ops, pairwise(sides), strict=True)]
                return found[0] if len(found) == 1 else Term("and", tuple(found), "bool")
        raise self._refusal(ast.unparse(node))

    def _refusal(self, what: str) -> NotColumnar:
        return NotColumnar(f"{self._label}: {what} is not known to be the same of columns")

    def _negated(self, value: Term) -> Term:
        if value.type not in ("int", "float"):
            raise self._refusal(f"- of a {value.type}")
        if value.op == "constant":
            return value._replace(parts=(-value.parts[0],))
        return Term("negate", (value,), value.type)

    def _none_test(self, value: Term, wanted: bool) -> Term:
        if value.op != "column":
            raise self._refusal("a comparison with None of what is calculated")
        return Term("is_null" if wanted else "is_valid", (value,), "bool")

    def _calculated(self, op: type[ast.operator], left: Term, right: Term) -> Term:
        if op in BY_CONSTANT and left.type == "int" and right.op == "constant" and right.type == "int":
            # Arrow divides towards zero; a worker brings that to what Python has for a positive divisor alone.
            if right.parts[0] > 0:
                return Term(BY_CONSTANT[op], (left, right), "int")
        elif op in ARITHMETIC and left.type in ("int", "float"):
            left, right = self._alike(left, right)
            return Term(ARITHMETIC[op], (left, right), left.type)
        raise self._refusal(f"{op.__name__} of {left.type} and {right.type}")

    def _compared(self, op: type[ast.cmpop], left: Term, right: Term) -> Term:
        if op not in COMPARISONS:
            raise self._refusal(f"a comparison by {op.__name__}")
        left, right = self._alike(left, right)
        found = Term(COMPARISONS[op], (left, right), "bool")
        if op not in (ast.Eq, ast.NotEq) or not (left.optional or right.optional):
            # In Python an order of None raises, and here it is null; only == and != answer.
            return found
        if "constant" not in (left.op, right.op):
            raise self._refusal("a comparison of two that may be None")
        known = left if left.optional else right
        return Term("where_known", (known, found, op is ast.NotEq), "bool")

    def _alike(self, left: Term, right: Term) -> tuple[Term, Term]:
        """Return two of one type: an int that is written beside a float is the float."""
        left, right = self._as_float(left, right), self._as_float(right, left)
        if left.type != right.type:
            raise self._refusal(f"{left.type} beside {right.type}")
        return left, right

    def _as_float(self, value: Term, other: Term) -> Term:
        is_beside = value.op == "constant" and value.type == "int" and other.type == "float"
        # Beyond that Python compares an int with a float exactly, and the float of the int is another number.
        if is_beside and abs(value.parts[0]) <= LARGEST_EXACT:
            return Term("constant", (float(value.parts[0]),), "float")
        return value
