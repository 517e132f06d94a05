"""What loops make and only read part by part is not made; results, exceptions and their order stay."""

import ast
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.codegen.fusion import compile_segment
from planner.codegen.inlining import Expression
from planner.codegen.scalars import taken_apart
from planner.model.levers import Levers
from planner.passes import plan
from samza_dsl import App
from tests.planner.test_inline import Pair, Witness, defined, expressions, outcome, values

KINDS = {"Made": Pair}


def apart(*lines):
    return taken_apart(lines, KINDS)


@pytest.mark.parametrize(
    ("made", "reads", "becomes", "read"),
    [
        ("{'a': f(m), 'b': m}", "v1['a'] + v1['b']", "v1_a = f(m); v1_b = m", "v1_a + v1_b"),
        ("(m, f(m))", "v1[0] + v1[-1]", "v1_0 = m; v1_1 = f(m)", "v1_0 + v1_1"),
        ("[m, -m]", "v1[1]", "v1_1 = -m", "v1_1"),
        ("Made(f(m), other=m)", "v1.other / v1.one", "v1_one = f(m); v1_other = m", "v1_other / v1_one"),
        ("Made(other=f(m), one=2)", "v1.other", "v1_other = f(m)", "v1_other"),
        ("{'a': f(m), 'b': m[0]}", "v1['b']", "v1_a = f(m); v1_b = m[0]", "v1_b"),
        ("{'é': m, 'a b': (m, 1)}", "'é' + v1['é'], v1['a b']", "v1_0 = m; v1_1 = (m, 1)", "'é' + v1_0, v1_1"),
        ("{'a': {'b': m}}", "v1['a']['b']", "v1_a = {'b': m}", "v1_a['b']"),
        ("{'a': \"v1['a']\"}", "v1['a']", "v1_a = \"v1['a']\"", "v1_a"),
    ],
)
def test_parts_are_variables(made, reads, becomes, read):
    assert apart(f"    v1 = {made}".strip(), f"return_({reads})") == [becomes, f"return_({read})"]


@pytest.mark.parametrize(
    "lines",
    [
        ("v1 = {'a': m}", "use(v1)"),
        ("v1 = {'a': m}", "use(v1['a'], v1)"),
        ("v1 = {'a': m}", "use(v1['b'])"),
        ("v1 = {'a': m, 'a': n}", "use(v1['a'])"),
        ("v1 = {1: m}", "use(v1[1])"),
        ("v1 = {m: 1}", "use(v1['m'])"),
        ("v1 = {'values': m}", "use(v1.values)"),
        ("v1 = {'a': m}", "v1['a'] = 3", "use(v1['a'])"),
        ("v1 = {'a': m}", "use(v1['a':])"),
        ("v1 = (m, n)", "use(v1[2])"),
        ("v1 = (m, n)", "use(v1[-3])"),
        ("v1 = (m, n)", "use(v1[True])"),
        ("v1 = (m, n)", "use(v1[m])"),
        ("v1 = (m, n)", "use(v1[0:])"),
        ("v1 = (m, n)", "use(v1.count)"),
        ("v1 = {m, n}", "use(v1[0])"),
        ("v1 = Made(m, n, 3)", "use(v1.one)"),
        ("v1 = Made(m)", "use(v1.other)"),
        ("v1 = Made(m)", "use(v1.total)"),
        ("v1 = Made(m)", "use(v1[0])"),
        ("v1 = Made(other=m)", "use(v1.other)"),
        ("v1 = Made(m, one=n)", "use(v1.one)"),
        ("v1 = Made(m, total=n)", "use(v1.total)"),
        ("v1 = (*m, n)", "use(v1[0])"),
        ("v1 = unknown(m)", "use(v1.one)"),
        ("v1 = {'a': m} if m else {'a': n}", "use(v1['a'])"),
        ("v1 = m", "use(v1['a'])"),
        ("v1 = m[0]", "use(v1[0])"),
        ("for v1 in m:", "    use(v1['a'])"),
    ],
)
def test_what_is_needed_as_a_whole_is_made(lines):
    assert apart(*lines) == [*lines]


def test_one_after_the_other_is_taken_apart():
    lines = "v1 = {'a': f(m), 'b': 2}", "v2 = (v1['a'], v1['b'])", "v3 = Made(v2[1], v2[0])", "use(v3.one, v3.other)"
    assert apart(*lines) == [
        "v1_a = f(m); v1_b = 2",
        "v2_0 = v1_a; v2_1 = v1_b",
        "v3_one = v2_1; v3_other = v2_0",
        "use(v3_one, v3_other)",
    ]


def test_what_nobody_reads_leaves_a_line_that_does_nothing():
    assert apart("v1 = {'a': m}") == ["pass"]


class Derived(msgspec.Struct):
    one: Any

    def __del__(self):
        raise AssertionError("it was made")


class Guarded(msgspec.Struct):
    one: Any

    def __getattribute__(self, name):
        return 1


class Shadowing(Pair):
    @property
    def one(self):
        return 2


class Counting(msgspec.Struct):
    one: Any
    number: int = msgspec.field(default_factory=lambda: next(numbers))


numbers = itertools.count()


@pytest.mark.parametrize("kind", [Derived, Guarded, Shadowing, Counting])
def test_a_struct_whose_fields_are_more_than_that_is_made(kind):
    lines = ["v1 = Made(m)", "use(v1.one)"]
    assert taken_apart(lines, {"Made": kind}) == lines


class Told(msgspec.Struct):
    one: "Unknown"  # noqa: F821  (as where a type is imported for type checkers alone)
    many: list = []
    other: int = msgspec.field(default=3, name="else")


def test_a_struct_is_known_by_its_fields_alone():
    lines = "v1 = Made(m)", "use(v1.one)"
    assert taken_apart(lines, {"Made": Told}) == ["v1_one = m", "use(v1_one)"]
    named = msgspec.defstruct("Named", ["from", "to"])
    assert taken_apart(("v1 = Made(m, n)", "use(v1.to)"), {"Made": named}) == ["v1_to = n", "use(v1_to)"]


def test_many_are_taken_apart_at_once():
    lines = [f"v{n} = {{'a': v{n - 1}['a'], 'b': {n}}}" for n in range(1, 1_000)]
    assert apart("v0 = {'a': m}", *lines, "use(v999['a'])")[-1] == "use(v999_a)"


MADE = st.sampled_from(
    [
        ("{{'p': {}, 'q': {}}}", "v['p']", "v['q']"),
        ("({}, {})", "v[0]", "v[-1]"),
        ("[{}, {}]", "v[-2]", "v[1]"),
        ("Pair({}, other={})", "v.one", "v.other"),
        ("Pair(other={}, one={})", "v.other", "v.one"),
    ]
)
SMALL = expressions.filter(lambda text: "*" not in text and "<<" not in text)
"""What makes no huge numbers of large ones."""
PARTS = st.tuples(expressions, expressions, SMALL, SMALL)


def of(source, *arguments):
    """Return an expression of `a` and `b` as one of other expressions."""
    return Expression(("a", "b"), ast.parse(source, mode="eval").body).of([*arguments])


def run(build, levers, value):
    """Return what the loop comes to for one value."""
    app = App("app")
    build(app.input("values")).send_to(app.output("out"))
    graph = app.graph()
    (segment,) = plan(graph, levers=levers).stages[0].segments
    functions = {id: spec.functions() for id, spec in graph.specs.items()}
    return outcome(compile_segment(segment, functions, plain=True)[0], [value])


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(MADE, PARTS, values, st.integers(1, 20), st.booleans(), st.booleans())
def test_loops_come_to_the_same(made, parts, value, refuses_at, is_filtered, is_whole):
    text, *read = made
    one, other = (of(part, "a", "a") for part in parts[:2])
    condition, result = (of(part, *read) for part in parts[2:])
    make = defined(f"f = lambda a: {text.format(one, other)}\n", Pair=Pair)
    check = defined(f"f = lambda v: {condition}\n")
    end = defined(f"f = lambda v: ({result}, {'v' if is_whole else '0'})\n")

    def build(values):
        made = values.map(make)
        return (made.filter(check) if is_filtered else made).map(end)

    def outcomes(levers):
        log = []
        log.append(run(build, levers, Witness("w", log, refuses_at)))
        return run(build, levers, value), log

    assert outcomes(Levers()) == outcomes(Levers(scalars=False)) == outcomes(Levers(inlining=False))
