"""Inlining: the expression that a user's function returns, written where the function would have been called."""

from __future__ import annotations

import ast
import copy
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeGuard

import msgspec

PLAIN = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.Dict,
    ast.IfExp,
    ast.List,
    ast.Name,
    ast.Set,
    ast.Slice,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)
"""The parts of an expression that may be inlined: it calls nothing, binds nothing, and reads no name but parameters."""

ONE_VALUE = (ast.Dict, ast.Constant, ast.JoinedStr)
"""The expressions that are one value, and never a list of several."""
LONGEST_TEXT = 40
"""The characters of a part of a function that are shown where it is why the function is called."""
UNKNOWN = "its source is not at hand, or not what was compiled"
MAKING = {name: getattr(msgspec.Struct, name) for name in ("__init__", "__new__")}
Definition = ast.Lambda | ast.FunctionDef


class Expression(NamedTuple):
    """The expression that a function returns, with the function's parameters."""

    parameters: tuple[str, ...]
    body: ast.expr

    def of(self, arguments: list[str]) -> str:
        """Return the source of the expression with variables in the parameters' places."""
        return _text_of(self, tuple(arguments))


# Each task of a stage writes the same: what was written once is remembered.
@lru_cache(maxsize=1024)
def _text_of(one: Expression, arguments: tuple[str, ...]) -> str:
    names = dict(zip(one.parameters, arguments, strict=True))
    return ast.unparse(_Renamed(names).visit(copy.deepcopy(one.body)))


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def expression(function: object) -> Expression | None:
    """Return the expression that a function consists of; None where it can only be called.

    It must be a lambda, or a def of nothing but a return, whose source is at hand and still is what was compiled; with
    plain parameters, and of parameters, literals, operators, attributes and subscripts only. Then evaluating it
    differs in nothing from calling the function with all its arguments, but for the frame in a traceback.

    >>> found = expression(lambda n: n["km"] / 2)
    >>> found and found.of(["v1"])
    "v1['km'] / 2"
    """
    return _returned_by(function, lambda body, parameters: all(_is_plain(part, parameters) for part in ast.walk(body)))


class Construction(NamedTuple):
    """A call of a global name, whose arguments, by place and by name, are plain expressions of parameters."""

    parameters: tuple[str, ...]
    name: str
    places: tuple[ast.expr, ...]
    named: dict[str, ast.expr]


def construction(function: object) -> Construction | None:
    """Return the one call that a function consists of, where all else is as in an `expression`; or None.

    >>> found = construction(lambda n: dict(km=n["m"] / 1000))
    >>> found and (found.name, [*found.named])
    ('dict', ['km'])
    """
    found = _returned_by(function, _is_construction)
    if found is None:
        return None
    call = found.body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    return Construction(
        found.parameters, call.func.id, (*call.args,), {one.arg: one.value for one in call.keywords if one.arg}
    )


def made_by(function: object) -> Any:
    """Return what the global name stands for that a construction calls."""
    assert isinstance(function, FunctionType), "nothing else is a construction"
    return function.__globals__.get(function.__code__.co_names[0])


def is_plain_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    """Whether to make one of a class is msgspec's work alone: nobody's code is called."""
    if type(kind) is not type(msgspec.Struct) or hasattr(kind, "__post_init__"):
        return False
    return all(getattr(kind, name) is made for name, made in MAKING.items())


def given_to(
    kind: type[msgspec.Struct], places: Sequence[ast.expr], named: Mapping[str, ast.expr]
) -> dict[str, ast.expr] | None:
    """Return the arguments of a call by the fields of a Struct; None where one fits no field, or two fit one."""
    given = {**dict(zip(kind.__match_args__, places, strict=False)), **named}
    fits = len(given) == len(places) + len(named) and given.keys() <= {*kind.__struct_fields__}
    return given if fits else None


def written_out(function: object, variable: str) -> Expression | None:
    """Return the expression to write in the place of a function's call, making a Struct by `variable`; or None.

    Such a function is an `expression`, or makes a Struct of such.
    """
    found = expression(function)
    if found is not None:
        return found
    # A plain constructor calls nobody's code, and a call of Python's less is 35 ns.
    made = construction(function)
    if made is None or not is_plain_struct(made_by(function)):
        return None
    keywords = [ast.keyword(name, value) for name, value in made.named.items()]
    return Expression(made.parameters, ast.Call(ast.Name(variable, ast.Load()), [*made.places], keywords))


def why_called(function: object) -> str:
    """Return in words why a function is called, and not written in the place of its calls; "" where it is written.

    >>> why_called(lambda flight: flight.delay > 60), why_called(lambda word: word.lower())
    ('', 'it calls word.lower')
    """
    if written_out(function, "made") is not None:
        return ""
    if type(function) is not FunctionType:
        return (
            f"{getattr(function, '__qualname__', type(function).__qualname__)} is no function with a source in Python"
        )
    if function.__closure__:
        return f"it reads {function.__code__.co_freevars[0]} of the function around it"
    source = "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))
    found = _definitions(source).get(function.__code__.co_firstlineno, []) if source else []
    if len(found) > 1:
        found = [node for node in found if _fingerprint(_compiled(node)) == _fingerprint(function.__code__)]
    if not found:
        return UNKNOWN
    body, args = _returned(found[0]), found[0].args
    if body is None:
        return "it does more than return an expression"
    if not _has_plain_parameters(args):
        return "it has parameters that are not plain"
    parameters = tuple(one.arg for one in (*args.posonlyargs, *args.args))
    # A call says more than the names in it, and is found before these.
    return next((_words_for(part) for part in ast.walk(body) if not _is_plain(part, parameters)), UNKNOWN)


def _words_for(part: ast.AST) -> str:
    match part:
        case ast.Call(function):
            return f"it calls {ast.unparse(function)}"
        case ast.Name(name):
            return f"it reads {name}, which is no parameter of it"
        case ast.expr():
            text = ast.unparse(part)
            return f"it has {text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + '…'}"
    return f"it has a {type(part).__name__.lower()}"


def _is_construction(body: ast.expr, parameters: tuple[str, ...]) -> bool:
    match body:
        case ast.Call(ast.Name(name), places, named) if name not in parameters and all(one.arg for one in named):
            parts = [*places, *(one.value for one in named)]
            return all(_is_plain(part, parameters) for each in parts for part in ast.walk(each))
    return False


def _returned_by(function: object, is_fit: Callable[[ast.expr, tuple[str, ...]], bool]) -> Expression | None:
    # The generated loop has no cells of a closure, and anything but a plain function may do more when called.
    if type(function) is not FunctionType or function.__kwdefaults__ or function.__closure__:
        return None
    code = function.__code__
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    for node in _definitions(source).get(code.co_firstlineno, ()) if source else ():
        body = _returned(node)
        if body is None or not _has_plain_parameters(node.args):
            continue
        parameters = tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args))
        # The file may have changed since it was imported, and several lambdas may begin on one line: the same byte code
        # is the same function.
        if is_fit(body, parameters) and _fingerprint(_compiled(node)) == _fingerprint(code):
            return Expression(parameters, body)
    return None


def inlined(line: str, expressions: Mapping[str, Expression]) -> str:
    """Return a line of source with the calls of functions, by the names that they have there, written out."""
    for name, one in expressions.items():
        arguments = called(line, name)
        # A call that leaves a default out is not written out: the default is an object of the function.
        if arguments is not None and len(arguments) == len(one.parameters):
            line = line.replace(f"{name}({', '.join(arguments)})", one.of(arguments))
    return line


def called(line: str, name: str) -> list[str] | None:
    """Return the variables with which a line calls a function; None where it does not.

    >>> called("v1 = join__rows(value, row)", "join__rows")
    ['value', 'row']
    """
    found = re.search(rf"\b{name}\(([\w, ]*)\)", line)
    return None if found is None else found[1].split(", ")


def parsed(source: str) -> ast.Module:
    """Return the tree of a file's source, as `ast.parse` does."""
    try:
        return ast.parse(source)
    except SystemError:
        # CPython 3.11 miscounts its depth where the collector of cycles comes in between: a second try succeeds.
        return ast.parse(source)


@lru_cache(maxsize=256)
def _definitions(source: str) -> dict[int, list[Definition]]:
    """Return all lambdas and functions of a file by the line on which they begin."""
    found: dict[int, list[Definition]] = {}
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.FunctionDef) and not node.decorator_list):
            found.setdefault(node.lineno, []).append(node)
    return found


def _returned(node: Definition) -> ast.expr | None:
    """Return the expression that a function returns, when that is all it does."""
    if isinstance(node, ast.Lambda):
        return node.body
    statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    last = statements[0] if len(statements) == 1 else None
    return last.value if isinstance(last, ast.Return) else None


def _has_plain_parameters(args: ast.arguments) -> bool:
    return not (args.vararg or args.kwarg or args.kwonlyargs)


def _is_plain(node: ast.AST, parameters: tuple[str, ...]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in parameters
    if isinstance(node, ast.Dict):
        # In `{**x}` the mapping's own methods are called.
        return None not in node.keys
    return isinstance(node, PLAIN)


@lru_cache(maxsize=1024)
def _compiled(node: Definition) -> CodeType:
    """Compile a definition by itself."""
    if isinstance(node, ast.Lambda):
        module = compile(ast.Expression(node), "", "eval", dont_inherit=True)
    else:
        bare = ast.FunctionDef(name=node.name, args=node.args, body=node.body, decorator_list=[], returns=None)
        module = compile(ast.Module([ast.copy_location(bare, node)], []), "", "exec", dont_inherit=True)
    return next(one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == _name_of(node))


def _fingerprint(code: CodeType) -> tuple[object, ...]:
    """Return what two compilations of the same source have in common; 1, 1.0 and True differ."""
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(code.co_consts)


def _name_of(node: Definition) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name
