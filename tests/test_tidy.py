"""The house rules that a program can check."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.source import PACKAGES, files, is_one_sentence, nodes, place, python_files, tree

OURS = python_files(*PACKAGES)
ALL = python_files(*PACKAGES, "tests", "benchmarks", "examples")

LONGEST_FUNCTION = 60
LONGEST_FILE = 600
FACADE = "samza_dsl/fluent/stream.py"
"""The one file that may be longer: the fluent class is one thing to its users, and most of it is docstrings."""
CLOCK = "runtime/model/clock.py"
CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "sleep"},
    "asyncio": {"sleep"},
    "datetime": {"now", "utcnow", "today"},
}
NAMED_BY_THE_DESIGN = ("operators/io.py",)
EMPTY_NAMES = ("manager", "helper", "util")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NEEDS_NO_TEXT = re.compile(r"\boverload\b|\.setter\b")
ANSWERS = ("bool", "TypeIs[", "TypeGuard[")
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home)/(?!me/)[\w.]")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|registry\.npmjs|maven\.org|proxy\.golang|[\w-]+\.(jfrog|nexus)\.\w"
)


def code_lines(file: Path, node: ast.AST) -> int:
    """Count the lines of `node` that are not blank and not docstring."""
    lines = file.read_text().splitlines()
    first, last = (1, len(lines)) if isinstance(node, ast.Module) else (node.lineno, node.end_lineno)
    prose = {
        line
        for text in (nodes(node) if isinstance(node, ast.Module) else ast.walk(node))
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        for line in range(text.lineno, text.end_lineno + 1)
    }
    return sum(1 for line in range(first, last + 1) if line not in prose and lines[line - 1].strip())


def defined_names(file: Path):
    yield file.stem, 1
    for node in nodes(tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno


def looks_at_a_clock(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in CLOCKS.get(ast.unparse(node.value).rpartition(".")[2], ())
    return isinstance(node, ast.ImportFrom) and any(name.name in CLOCKS.get(node.module, ()) for name in node.names)


def moments(module: ast.Module) -> set[ast.AST]:
    """Return what is called as `asyncio.sleep(0)`, which lets others run and takes no time."""
    calls = (node for node in nodes(module) if isinstance(node, ast.Call))
    return {call.func for call in calls if ast.unparse(call) == "asyncio.sleep(0)"}


def test_a_function_fits_a_screen():
    long = [
        f"{place(file, node)} {node.name} has {lines}"
        for file in ALL
        for node in nodes(tree(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION  # few are, and to count is slow
        and (lines := code_lines(file, node)) > LONGEST_FUNCTION
    ]
    assert not long, f"a function has at most {LONGEST_FUNCTION} lines of code: {long}"


def test_a_file_holds_one_concept():
    long = [
        f"{place(file)} has {lines}"
        for file in ALL
        if not place(file).startswith(FACADE) and (lines := code_lines(file, tree(file))) > LONGEST_FILE
    ]
    assert not long, f"a file has at most {LONGEST_FILE} lines of code: {long}"


def test_a_module_says_in_one_sentence_what_lives_in_it():
    wrong = []
    for file in python_files(*PACKAGES, "tests", "benchmarks"):
        sentence, _, drawing = (ast.get_docstring(tree(file), clean=False) or "").partition("\n\n")
        if file.read_text() and not (is_one_sentence(sentence) and (not drawing or "──" in drawing)):
            wrong.append(place(file))
    assert not wrong, f"a module's docstring is one sentence, and at most a drawing under it: {wrong}"


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the product by name, which each has to itself."""
    return {node.name: node for file in OURS for node in tree(file).body if isinstance(node, ast.ClassDef)}


def documented_above(node: ast.ClassDef) -> dict[str, str]:
    """Return what the bases of a class that are ours say of their methods."""
    above: dict[str, str] = {}
    for base in reversed(node.bases):
        found = classes().get(ast.unparse(base).partition("[")[0])
        if found is not None:
            own = {one.name: ast.get_docstring(one) for one in found.body if isinstance(one, FUNCTIONS)}
            above |= documented_above(found) | {name: text for name, text in own.items() if text}
    return above


def test_a_method_is_described_once_where_its_port_is():
    silent, repeated = [], []
    for file in OURS:
        for node in tree(file).body:
            if not isinstance(node, ast.ClassDef):
                continue
            above = documented_above(node)
            for one in node.body:
                if isinstance(one, FUNCTIONS):
                    text, decorated = ast.get_docstring(one), " ".join(map(ast.unparse, one.decorator_list))
                    is_public = not node.name.startswith("_") and not one.name.startswith("_")
                    if text is None and is_public and one.name not in above and not NEEDS_NO_TEXT.search(decorated):
                        silent.append(f"{place(file, one)} {node.name}.{one.name}")
                    if text is not None and text == above.get(one.name):
                        repeated.append(f"{place(file, one)} {node.name}.{one.name}")
    assert not silent, f"say what it does, or derive the class from the port that says it: {silent}"
    assert not repeated, f"the class above says it already: {repeated}"


def test_what_is_named_as_a_question_answers_yes_or_no():
    wrong = [
        f"{place(file, node)} {node.name} returns {returned}"
        for file in OURS
        for node in nodes(tree(file))
        if isinstance(node, FUNCTIONS) and node.name.lstrip("_").startswith(("is_", "has_"))
        if not (returned := ast.unparse(node.returns or ast.Constant(None))).startswith(ANSWERS)
    ]
    assert not wrong, f"what makes an error is a noun, as gone_error is: {wrong}"


def test_a_port_is_of_a_size_that_can_be_learned():
    large = [
        f"{place(file, node)} {node.name} has {number}"
        for file in python_files("runtime")
        if place(file).startswith("runtime/ports/")
        for node in tree(file).body
        if isinstance(node, ast.ClassDef) and (number := sum(isinstance(one, FUNCTIONS) for one in node.body)) > 8
    ]
    assert not large, f"a protocol has at most eight methods; compose a larger one of several: {large}"


def test_only_the_clock_knows_the_time():
    looks = [
        place(file, node)
        for file in OURS
        if not place(file).startswith(CLOCK)
        for node in nodes(tree(file))
        if looks_at_a_clock(node) and node not in moments(tree(file))
    ]
    assert not looks, f"take the time from {CLOCK}: {looks}"


def test_no_quick_test_sleeps():
    sleeps = [
        place(file, node)
        for file in python_files("tests")
        if not place(file).startswith(("tests/simulation/", "tests/faults/", "tests/chaos/"))
        for node in nodes(tree(file))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
        if node.func not in moments(tree(file))
    ]
    assert not sleeps, f"wait for what is awaited, or use the virtual clock: {sleeps}"


def test_every_asyncio_task_is_kept():
    dropped = [
        place(file, node)
        for file in ALL
        for node in nodes(tree(file))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        if node.value.func.attr in ("create_task", "ensure_future")
        if not ast.unparse(node.value.func.value).endswith("group")
    ]
    assert not dropped, f"a task that nobody holds may be collected while it runs, and its error is lost: {dropped}"


def test_a_run_awaits_its_threads_to_their_end():
    left_alone = [
        place(file, node)
        for folder in ("runtime/containers", "runtime/run")
        for file in python_files(folder)
        for function in nodes(tree(file))
        if isinstance(function, ast.AsyncFunctionDef) and function.name != "in_thread"
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.to_thread"
    ]
    assert not left_alone, f"write in_thread: who is cancelled closes what a thread still uses: {left_alone}"


@pytest.mark.parametrize(
    ("rule", "banned"),
    [
        ("finish it, or open an issue", UNFINISHED),
        ("no path of one machine", MACHINE_PATH),
        ("no host of a registry", REGISTRY_HOST),
    ],
)
def test_no_text_has(rule, banned):
    found = []
    for file in files():
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{place(file, number)} {hit[0]}" for number, line in enumerate(lines, 1) if (hit := banned.search(line))
        ]
    assert not found, f"{rule}: {found}"


def test_names_say_what_a_thing_is():
    empty = [
        f"{place(file, line)} {name}"
        for file in ALL
        for name, line in defined_names(file)
        if any(word in name.lower() for word in EMPTY_NAMES)
    ]
    assert not empty, f"a name says what the thing does: {empty}"


def test_no_module_shadows_the_standard_library():
    shadows = [
        place(file)
        for file in OURS
        if file.stem in sys.stdlib_module_names and not place(file).startswith(NAMED_BY_THE_DESIGN)
    ]
    assert not shadows, f"choose a name that the standard library has not: {shadows}"
