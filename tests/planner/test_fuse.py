"""The generated functions do what a message-by-message interpreter does, whatever the shape, and compile when deep."""

import json
import subprocess
import sys
from collections import Counter
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.codegen.counters import teller
from planner.codegen.fusion import compile_segment
from planner.model.plan import Plan
from samza_dsl import App, collect, tumbling
from tests.shapes import app_of, interpreted, shapes
from tests.source import ROOT


def compiled(app, plain=False):
    """Return the plan of an app's only segment, and its function."""
    (segment,) = app.plan().stages[0].segments
    functions = {id: spec.functions() for id, spec in app.graph().specs.items()}
    return segment, compile_segment(segment, functions, plain=plain)[0]


def test_a_long_chain_of_maps():
    app = App("deep")
    stream = app.input("numbers", value=int)
    for _ in range(200):
        stream = stream.map(lambda n: n + 1)
    stream.send_to(app.output("out"))
    _, run = compiled(app)
    assert run([0, 1])[0][0] == [200, 201]


@pytest.mark.parametrize("plain", [False, True])
def test_nested_flat_maps(plain):
    app = App("deep")
    stream = app.input("numbers", value=int)
    for depth in range(40):
        stream = stream.flat_map(lambda n, depth=depth: [n, n + 1] if depth < 3 else [n])
    stream.send_to(app.output("out"))
    _, run = compiled(app, plain)
    values, rows = run([0, 10])[0]
    assert values == [0, 1, 1, 2, 1, 2, 2, 3, 10, 11, 11, 12, 11, 12, 12, 13]
    assert rows == (None if plain else [0] * 8 + [1] * 8)


def test_nested_filters():
    app = App("deep")
    stream = app.input("numbers", value=int)
    for depth in range(150):
        stream = stream.filter(lambda n, depth=depth: n != depth)
    stream.send_to(app.output("out"))
    _, run = compiled(app)
    assert run([*range(160)])[0] == ([*range(150, 160)], [*range(150, 160)])


def test_wide_branches():
    app = App("wide")
    names = [f"arm-{n}" for n in range(60)]
    arms = app.input("numbers", value=int).branch(lambda n: [names[n], names[0]], into=names)
    for name, arm in arms.items():
        arm.map(lambda n: n + 1).send_to(app.output(f"out-{name}"))
    segment, run = compiled(app)
    found = dict(zip([exit.id for exit in segment.exits], run([3, 5]), strict=False))
    assert found["send_to-out-arm-0"] == ([4, 6], [0, 1])
    assert found["send_to-out-arm-3"] == ([4], [0])
    assert found["send_to-out-arm-4"] == ([], [])


def test_branches_may_be_named_by_an_iterator():
    app = App("once")
    arms = app.input("numbers", value=int).branch(lambda n: iter(["a", "b"]), into=("a", "b"))
    for name, arm in arms.items():
        arm.send_to(app.output(name))
    assert compiled(app)[1]([7])[:2] == (([7], [0]), ([7], [0]))


def test_a_ladder_of_diamonds_is_not_written_out():
    app = App("diamonds")
    stream = app.input("numbers", value=int)
    for _ in range(30):
        arms = stream.branch(lambda n: "odd" if n % 2 else "even", into=("odd", "even"))
        stream = arms["odd"].map(lambda n: n + 1).merge(arms["even"])
    stream.send_to(app.output("out"))
    segment, run = compiled(app)
    assert len(segment.source.splitlines()) < 1_000
    assert run([1, 2])[0] == ([2, 2], [0, 1])


# Laws.


@given(shapes(), st.lists(st.integers(0, 1_000), max_size=12))
def test_the_fused_function_equals_the_interpreter(shape, values):
    nodes, outputs = shape
    app = app_of(nodes, outputs)
    segment, run = compiled(app)
    *results, counts = run(values)
    expected, emitted = interpreted(nodes, outputs, values)
    for exit, (found, rows) in zip(segment.exits, results, strict=True):
        numbered = enumerate(found) if rows is None else zip(rows, found, strict=True)
        assert Counter(numbered) == expected[exit.id]
        assert rows is None or rows == sorted(rows)
        assert exit.whole == (rows is None)
    graph = app.graph()
    places = {id: place for place, id in enumerate(graph.specs)}
    for id, number in zip(segment.counted, counts, strict=True):
        if teller(graph, id) is None:
            assert number == emitted[places[id]]
        else:
            assert number == sum(emitted[places[parent]] for parent in graph.streams_into(id)) - emitted[places[id]]


@given(shapes(), st.lists(st.integers(0, 1_000), max_size=12))
def test_the_plain_variant_gives_the_same_values_and_counts(shape, values):
    app = app_of(*shape)
    *full, counts = compiled(app)[1](values)
    *plain, plain_counts = compiled(app, plain=True)[1](values)
    assert [found for found, _ in full] == [found for found, _ in plain]
    assert counts == plain_counts
    assert all(rows is None for _, rows in plain)


@given(shapes(), st.lists(st.integers(0, 1_000), max_size=12), st.integers(0, 12))
def test_batches_make_no_difference(shape, values, cut):
    app = app_of(*shape)
    _, run = compiled(app)
    *whole, counts = run(values)
    *first, first_counts = run(values[:cut])
    *second, second_counts = run(values[cut:])
    assert [found for found, _ in whole] == [a + b for (a, _), (b, _) in zip(first, second, strict=True)]
    assert counts == tuple(map(sum, zip(first_counts, second_counts, strict=True)))


@given(shapes())
def test_every_line_names_the_operator_that_it_came_from(shape):
    app = app_of(*shape)
    (segment,) = app.plan().stages[0].segments
    assert len(segment.lines) == len(segment.source.splitlines())
    assert len(segment.plain_lines) == len(segment.plain.splitlines())
    assert len(segment.folding_lines) == len(segment.folding.splitlines())
    specs = app.graph().specs
    for line, owner in zip(segment.source.splitlines(), segment.lines, strict=True):
        if "__" in line.partition("(")[0] and " def " not in line and "n__" not in line and "at__" not in line:
            assert owner in specs


@given(shapes())
def test_a_plan_comes_back_from_json(shape):
    plan = app_of(*shape).plan()
    assert Plan.from_json(plan.to_json()) == plan


PROGRAM = """
from samza_dsl import App, count, tumbling
app = App("same")
numbers = app.input("numbers", value=int, timestamp=lambda n: n)
arms = numbers.branch(lambda n: {"a", "b"}, into=("a", "b"))
joined = arms["a"].map(abs).merge(arms["b"].filter(bool))
joined.partition_by(str, partitions=3).window(tumbling(hours=1), count()).send_to(app.output("out"))
print(app.plan().to_json())
"""


def test_plans_are_the_same_in_every_process():
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert json.loads(found.pop())["app"] == "same"


def test_the_source_of_a_plan():
    app = App("golden")
    rows = app.table("rows", value=int, key=int, broadcast=True)
    positive = app.input("numbers", value=int).filter(lambda n: n > 0, op_id="positive")
    arms = positive.branch(lambda n: "odd" if n % 2 else "even", into=("odd", "even"), op_id="parity")
    arms["odd"].flat_map(range, op_id="below").sink(print, op_id="print")
    both = arms["even"].map(abs, op_id="abs").merge(arms["odd"], op_id="both")
    both.join(rows, lambda n, row: (n, row), on=abs, op_id="rows-of").send_to(app.output("out"), op_id="send")
    assert app.plan().source("stage-1") == dedent(SOURCE).strip()


SOURCE = """
    def segment(values, keys=None):
        x0 = []
        x0_rows = []
        x1 = []
        x1_rows = []
        n__positive = n__branch_arm_numbers = n__branch_arm_numbers_2 = 0
        def at__both(value, row):
            nonlocal n__positive, n__branch_arm_numbers, n__branch_arm_numbers_2
            on_rows_of = on__rows_of(value)
            row_rows_of = in_use__rows_of(on_rows_of) if type(on_rows_of) in held_kinds__rows_of else None
            if row_rows_of is None: row_rows_of = lookup__rows_of(on_rows_of)
            if row_rows_of is not None:
                v3 = (value, row_rows_of)
                x1.append(None if v3 is None else encode__send(v3))
                x1_rows.append(row)
        for row, value in enumerate(values):
            if value > 0:
                n__positive += 1
                choice_parity = 'odd' if value % 2 else 'even'
                choice_parity = (choice_parity,) if type(choice_parity) is str else tuple(choice_parity)
                if not names__parity.issuperset(choice_parity): raise ValueError(refusal__parity.format(choice_parity))
                if name__branch_arm_numbers in choice_parity:
                    n__branch_arm_numbers += 1
                    for v1 in flat_map__below(value):
                        x0.append(v1)
                        x0_rows.append(row)
                    at__both(value, row)
                if name__branch_arm_numbers_2 in choice_parity:
                    n__branch_arm_numbers_2 += 1
                    v2 = map__abs(value)
                    at__both(v2, row)
        return ((x0, x0_rows), (x1, x1_rows), (n__positive, n__branch_arm_numbers, n__branch_arm_numbers_2, ), )
"""


def test_what_passes_everything_costs_no_counting():
    app = App("counting")
    kept = app.input("numbers", value=int).filter(bool, op_id="some").map(abs, op_id="abs").filter(bool, op_id="more")
    kept.send_to(app.output("out"))
    assert app.plan().source("stage-1") == dedent(COUNTING).strip()


COUNTING = """
    def segment(values, keys=None):
        x0 = []
        x0_rows = []
        n__more = 0
        for row, value in enumerate(values):
            if filter__some(value):
                v1 = map__abs(value)
                if filter__more(v1):
                    x0.append(None if v1 is None else encode__send_to_out(v1))
                    x0_rows.append(row)
                else:
                    n__more += 1
        return ((x0, x0_rows), (n__more, ), )
"""


def test_exits_are_shared_by_what_goes_to_one_output():
    app = App("shared")
    numbers, out = app.input("numbers", value=int), app.output("out")
    numbers.send_to(out, op_id="one")
    numbers.map(abs).send_to(out, op_id="other")
    segment, run = compiled(app)
    assert [(exit.id, exit.operators) for exit in segment.exits] == [("send_to-out", ("one", "other"))]
    assert run([-1])[0] == ([-1, 1], [0, 0])
    assert {spec.exit for spec in app.graph().specs.values() if spec.terminal} == {"send_to-out"}


def test_keys_are_read_only_where_something_asks_for_them():
    app = App("keyed")
    rows = app.table("rows", value=int, key=int)
    app.input("numbers", value=int, key=int).join(rows, lambda n, row: n).send_to(app.output("out"))
    (segment,) = app.plan().stages[0].segments
    assert segment.reads == ("keys",)
    assert "zip(keys, values)" in segment.source


def test_the_loop_that_reads_runs_and_groups():
    app = App("golden")
    trips = app.input("trips", value=dict, key=lambda t: t["id"], timestamp=lambda t: t["at"], max_disorder_ms=7)
    far = trips.filter(lambda t: t["km"] > 9, op_id="far")
    far.window(tumbling(hours=1), collect(), op_id="hourly").send_to(app.output("out"))
    assert app.plan().source("stage-1").partition("\n\n")[0] == dedent(FOLDING).strip()


def test_there_is_no_such_loop_where_rows_also_go_elsewhere():
    app = App("elsewhere")
    trips = app.input("trips", value=dict, key=lambda t: t["id"], timestamp=lambda t: t["at"])
    trips.window(tumbling(hours=1), collect(), op_id="hourly").send_to(app.output("out"))
    trips.send_to(app.output("all"))
    assert [segment.folding for segment in app.plan().stages[0].segments] == ["", ""]


FOLDING = """
    def segment(values, keys, kinds, highest, place0):
        kind, = kinds
        low0 = high0 = low_before0 = high_before0 = 0
        group0, limit0, late0 = None, 253402300799999, []
        rest = iter(values)
        for value in rest:
            key = value['id']
            timestamp = value['at']
            if type(key) is not kind or type(timestamp) is not int:
                raise TypeError("not as most keys and timestamps are")
            if value['km'] > 9:
                if low0 <= timestamp < high0:
                    group0[key].append(value)
                elif low_before0 <= timestamp < high_before0:
                    before0[key].append(value)
                else:
                    begins, ends, group = place0(timestamp, highest - 7)
                    if begins < ends:
                        low_before0, high_before0, before0 = low0, high0, group0
                        low0, high0, group0 = begins, ends, group
                        first = high_before0 if low_before0 < high_before0 < ends else ends
                        limit0 = first + 7
                    if group is None:
                        late0.append((value, key, timestamp, highest - 7, ~rest.__length_hint__()))
                    else:
                        group[key].append(value)
            if timestamp > highest:
                highest = timestamp
                if timestamp >= limit0:
                    low0 = high0 = low_before0 = high_before0 = 0
                    limit0 = 253402300799999
            elif timestamp < -62135596800000:
                raise ValueError("too early a timestamp")
        return highest, (late0, ), ()
"""


def test_outputs_are_encoded_where_something_encodes_them():
    app = App("encoding")
    app.input("numbers", value=int).filter(lambda n: n != 1).send_to(app.output("out"), op_id="send")
    (segment,) = app.plan().stages[0].segments
    functions = {id: spec.functions() for id, spec in app.graph().specs.items()}
    run, _ = compile_segment(segment, {**functions, "send": {"encode": str}})
    assert run([0, 1, None, 2])[0] == (["0", None, "2"], [0, 2, 3])
    run, _ = compile_segment(segment, functions)
    assert run([0, 1, None, 2])[0] == ([0, None, 2], [0, 2, 3])
