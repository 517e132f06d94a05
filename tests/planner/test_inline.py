"""Inlined expressions do what the functions do: the same results, the same exceptions, in the same order."""

import ast
import functools
import linecache
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.codegen.inlining import UNKNOWN, expression, inlined, why_called, written_out
from samza_dsl import App, Options

files = (f"<inlining {number}>" for number in count())


def defined(source, name="f", **names):
    """Run source as a file of its own would, where these `names` are known, and return what it calls `name`."""
    file = next(files)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {**names}
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


class Witness:
    """A value that notes everything that is done to it, and at some point refuses."""

    def __init__(self, name, log, refuses_at):
        self.name, self.log, self.refuses_at = name, log, refuses_at

    def __repr__(self):
        return self.name

    def noted(self, what):
        self.log.append(what)
        if len(self.log) >= self.refuses_at:
            raise ArithmeticError(what)
        return Witness(f"({what})", self.log, self.refuses_at)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.noted(f"{self}.{name}")

    def __bool__(self):
        self.noted(f"bool({self})")
        return len(self.name) % 2 == 0

    def __hash__(self):
        self.noted(f"hash({self})")
        return 7

    def __contains__(self, other):
        self.noted(f"{other} in {self}")
        return len(self.name) % 3 == 0

    def __getitem__(self, index):
        return self.noted(f"{self}[{index}]")


def _operation(name):
    def call(self, *others):
        return self.noted(f"{name}{(self, *others)}")

    return call


BINARY_METHODS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
METHODS = f"{BINARY_METHODS} r{BINARY_METHODS.replace(' ', ' r')} neg pos invert lt le gt ge eq ne"
for operation in METHODS.split():
    setattr(Witness, f"__{operation}__", _operation(operation))

LITERALS = ["0", "1", "1.0", "True", "None", "-1", "'x'", "b'y'", "1e400", "2j", "...", "(1, 2)", "'a' 'b'", "'\\n{}'"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>"]
COMPARED = ["<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in"]


def grown(part):
    """Make larger expressions of smaller ones."""
    several = st.lists(part, max_size=3)
    return st.one_of(
        st.tuples(part, st.sampled_from(BINARY), part).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(part, st.sampled_from(COMPARED), part, st.sampled_from(COMPARED), part).map(
            lambda p: f"({' '.join(p)})"
        ),
        st.tuples(part, st.sampled_from(["and", "or"]), part, st.sampled_from(["and", "or"]), part).map(
            lambda p: f"({' '.join(p)})"
        ),
        st.tuples(st.sampled_from(["-", "+", "~", "not "]), part).map(lambda p: f"({p[0]}{p[1]})"),
        st.tuples(part, part, part).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(part, st.sampled_from(["real", "missing", "a"])).map(lambda p: f"({p[0]}).{p[1]}"),
        st.tuples(part, part).map(lambda p: f"({p[0]})[{p[1]}]"),
        st.tuples(part, part, part).map(lambda p: f"({p[0]})[{p[1]}:{p[2]}, ::2]"),
        several.map(lambda parts: f"[{', '.join(parts)}]"),
        several.map(lambda parts: f"({''.join(part + ', ' for part in parts)})"),
        st.lists(part, min_size=1, max_size=3).map(lambda parts: f"{{{', '.join(parts)}}}"),
        st.lists(st.tuples(part, part).map(": ".join), max_size=2).map(lambda pairs: f"{{{', '.join(pairs)}}}"),
    )


expressions = st.recursive(st.sampled_from(["a", "b", *LITERALS]), grown, max_leaves=12)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


def outcome(function, *arguments):
    """Return what a call comes to: the result, or the exception."""
    try:
        return repr(function(*arguments))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(
    expressions,
    values,
    values,
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from(["a, b", "a, /, b", "a, b=a", "a=1, b=2"]),
)
def test_an_inlined_expression_does_what_the_function_does(source, one, other, refuses_at, as_lambda, parameters):
    text = f"f = lambda {parameters}: {source}\n"
    if not as_lambda:
        text = f"def f({parameters}):\n    'It is.'\n    return {source}\n"
    text = f"a = 3\n{text}"
    function = defined(text)
    found = expression(function)
    assert found is not None and not why_called(function)
    written = defined(f"def written(v1, value): return {found.of(['v1', 'value'])}\n", "written")
    assert outcome(written, one, other) == outcome(function, one, other)
    logs = [], []
    for call, log in zip((function, written), logs, strict=True):
        log.append(outcome(call, Witness("w", log, refuses_at), Witness("xy", log, refuses_at)))
    assert logs[0] == logs[1]


class Pair(msgspec.Struct):
    one: Any
    other: Any = None


MADE = [
    "({})",
    "({}, {})",
    "({0}, other={1})",
    "(other={}, one={})",
    "()",
    "({}, {}, {})",
    "({0}, one={1})",
    "(none={})",
]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(st.sampled_from(MADE), st.lists(expressions, min_size=3, max_size=3), values, values, st.integers(1, 12))
def test_a_struct_is_made_as_the_function_makes_it(made, parts, one, other, refuses_at):
    function = defined(f"f = lambda a, b: Pair{made.format(*parts)}\n", Pair=Pair)
    found = written_out(function, "Made")
    assert found is not None
    written = defined(f"def written(v1, value): return {found.of(['v1', 'value'])}\n", "written", Made=Pair)
    assert outcome(written, one, other) == outcome(function, one, other)
    logs = [], []
    for call, log in zip((function, written), logs, strict=True):
        log.append(outcome(call, Witness("w", log, refuses_at), Witness("xy", log, refuses_at)))
    assert logs[0] == logs[1]


NOT_MADE = {
    "code of its own": "class C(Struct):\n    a: int\n    def __post_init__(self): self.a += 1\nf = lambda n: C(n)",
    "a constructor of its own": "class C(Struct):\n    a: int\nC.__init__ = print\nf = lambda n: C(n)",
    "a metaclass of its own": "class M(type(Struct)): ...\nclass C(Struct, metaclass=M): ...\nf = lambda: C()",
    "no Struct": "class C:\n    def __init__(self, a): self.b = a\nf = lambda n: C(n)",
    "a function": "def C(a): return a\nf = lambda n: C(n)",
    "a builtin": "f = lambda n: dict(n=n)",
    "a name of nothing": "f = lambda n: C(n)",
    "one in the other": "class C(Struct):\n    a: int\nf = lambda n: C(C(n))",
    "what is unpacked": "class C(Struct):\n    a: int\nf = lambda n: C(*n)",
    "a method": "class C(Struct):\n    a: int\nf = lambda n: C(n).a",
}


@pytest.mark.parametrize("source", NOT_MADE.values(), ids=NOT_MADE)
def test_nothing_else_is_made(source):
    assert written_out(defined(source + "\n", Struct=msgspec.Struct, __name__="a"), "Made") is None


CALLED = {
    "a call": "f = lambda n: abs(n)",
    "a method": "f = lambda n: n.strip()",
    "a global": "k = 1\nf = lambda n: n + k",
    "a closure": "f = (lambda k: lambda n: n + k)(1)",
    "a keyword": "def f(n, *, k=1): return n + k",
    "any arguments": "f = lambda *n: n",
    "any keywords": "f = lambda n, **k: n",
    "an assignment": "f = lambda n: (m := n)",
    "a comprehension": "f = lambda n: [m for m in n]",
    "an inner lambda": "f = lambda n: lambda m: n",
    "an f-string": "f = lambda n: f'{n}'",
    "unpacking": "f = lambda n: [*n]",
    "unpacking a dict": "f = lambda n: {**n}",
    "two statements": "def f(n):\n    n\n    return n",
    "no return": "def f(n): n",
    "an empty return": "def f(n): return",
    "a coroutine": "async def f(n): return n",
    "a generator": "def f(n): return (yield n)",
    "a decorator": "import functools\n@functools.cache\ndef f(n): return n",
    "a decorator of its own": "def same(f): return f\n@same\ndef f(n): return n",
    "a private attribute": "class C:\n    f = lambda n: n.__secret\nf = C.f",
    "a builtin": "f = abs",
    "a class": "f = int",
    "a bound method": "class C:\n    def f(self, n): return n\nf = C().f",
    "a partial": "import functools\nf = functools.partial(lambda n, m: n, 1)",
}


@pytest.mark.parametrize("source", CALLED.values(), ids=CALLED)
def test_all_else_is_called(source):
    function = defined(source + "\n")
    assert expression(function) is None
    assert why_called(function)


WHYS = {
    "f = lambda n: n.strip().lower()": "it calls n.strip().lower",
    "k = 1\nf = lambda n: n + k": "it reads k, which is no parameter of it",
    "f = (lambda k: lambda n: n + k)(1)": "it reads k of the function around it",
    "f = lambda n: [m for m in n]": "it has [m for m in n]",
    "def f(n):\n    n\n    return n": "it does more than return an expression",
    "def f(n, *, k=1): return n + k": "it has parameters that are not plain",
    "f = int": "int is no function with a source in Python",
    "f = lambda n: n + 1": "",
}


@pytest.mark.parametrize("source", WHYS)
def test_it_is_said_why_a_function_is_called(source):
    assert why_called(defined(source + "\n")) == WHYS[source]


def test_a_function_is_called_when_its_source_is_not_at_hand_or_another():
    function = defined("f = lambda n: n + 1\n")
    file = function.__code__.co_filename
    for body in ("n: n + 1.0", "n: n + True", "m: m + 1", "n: ("):
        text = f"f = lambda {body}\n"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        assert expression(function) is None
        assert why_called(function) == UNKNOWN
    del linecache.cache[file]
    assert expression(function) is None


def test_a_miscount_of_the_parser_is_no_answer(monkeypatch):
    tries, parse = iter([SystemError("AST constructor recursion depth mismatch")]), ast.parse

    def miscounting(source):
        for error in tries:
            raise error
        return parse(source)

    monkeypatch.setattr(ast, "parse", miscounting)
    found = expression(defined("f = lambda n: n + 41"))
    assert found is not None and found.of(["x"]) == "x + 41"


def test_lambdas_on_one_line_are_told_apart():
    both = defined("f = [lambda n: n + 1, lambda n: n + 1.0, lambda n: (n, True)]\n")
    assert [expression(one).of(["v"]) for one in both] == ["v + 1", "v + 1.0", "(v, True)"]


def test_only_whole_calls_with_as_many_arguments_are_written_out():
    found = {"map__a": expression(lambda n: n + 1), "map__b": expression(lambda n, m: n[m])}
    assert inlined("v1 = map__a(value)", found) == "v1 = value + 1"
    assert inlined("v1 = map__b(value, row_x)", found) == "v1 = value[row_x]"
    assert inlined("v1 = map__a_b(value)", found) == "v1 = map__a_b(value)"
    assert inlined("v1 = map__b(value)", found) == "v1 = map__b(value)"


def test_a_default_is_there_where_an_argument_is_not():
    app = App("defaults")
    app.input("numbers", value=int).map(lambda n, m=2: n * m, op_id="plus").send_to(app.output("out"))
    assert "v1 = map__plus(value)" in source_of(app)
    (segment,) = app.plan().stages[0].segments
    assert not segment.inlined and segment.calls
    app = App("defaults")
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.scan(lambda found, n, m=2: found + n * m, init=int, op_id="adding").send_to(app.output("out"))
    assert "step__adding(" in source_of(app)
    app = App("defaults")
    numbers = app.input("numbers", value=int, key=lambda n: n)
    numbers.scan(lambda found, n=2: found + n, init=int, op_id="adding").send_to(app.output("out"))
    assert "= state_adding + value" in source_of(app)


def plus_one(n):
    return n + 1


class Doubled(msgspec.Struct):
    number: int


def doubled(number: int) -> Doubled:
    return Doubled(number * 2)


def source_of(app):
    return app.plan().source("stage-1")


def chained(options=None):
    app = App("inlined", options)
    app.input("numbers", value=int).map(plus_one, op_id="plus").filter(lambda n: n > 1).send_to(app.output("out"))
    return app


def test_it_can_be_switched_off_and_wrapped_functions_are_called():
    assert "v1 = value + 1" in source_of(chained())
    assert "v1 = map__plus(value)" in source_of(chained(Options(inline=False)))
    app = chained()
    app.wrap(lambda function, operator: functools.wraps(function)(lambda *arguments: function(*arguments)))
    assert "v1 = map__plus(value)" in source_of(app)


def test_a_struct_is_made_in_the_loop_by_its_class(tmp_path):
    app = App("inlined")
    out = app.output("out", value=Doubled)
    app.input("numbers", value=int).map(doubled, op_id="doubled").filter(lambda one: one.number > 1).send_to(out)
    assert "v1 = Made_by_map__doubled(value * 2)" in source_of(app)
    app.run(tmp_path / "data", bind={"numbers": [1, 0, 3], "out": tmp_path / "out.jsonl"})
    assert (tmp_path / "out.jsonl").read_text() == '{"number":2}\n{"number":6}\n'
