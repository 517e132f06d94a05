"""The house rules that a program can check."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.source import PACKAGES, files, is_one_sentence, place, python_files, tree

OURS = python_files(*PACKAGES)
ALL = python_files(*PACKAGES, "tests", "benchmarks", "examples")

LONGEST_FUNCTION = 60
LONGEST_FILE = 600
CLOCK = "runtime/clock.py"
CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "sleep"},
    "asyncio": {"sleep"},
    "datetime": {"now", "utcnow", "today"},
}
NAMED_BY_THE_DESIGN = ("operators/io.py",)
EMPTY_NAMES = ("manager", "helper", "util")
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
        for text in ast.walk(node)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        for line in range(text.lineno, text.end_lineno + 1)
    }
    return sum(1 for line in range(first, last + 1) if line not in prose and lines[line - 1].strip())


def defined_names(file: Path):
    yield file.stem, 1
    for node in ast.walk(tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno


def looks_at_a_clock(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in CLOCKS.get(ast.unparse(node.value).rpartition(".")[2], ())
    return isinstance(node, ast.ImportFrom) and any(name.name in CLOCKS.get(node.module, ()) for name in node.names)


def moments(module: ast.Module) -> set[ast.AST]:
    """Return what is called as `asyncio.sleep(0)`, which lets others run and takes no time."""
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    return {call.func for call in calls if ast.unparse(call) == "asyncio.sleep(0)"}


def test_a_function_fits_a_screen():
    long = [
        f"{place(file, node)} {node.name} has {lines}"
        for file in ALL
        for node in ast.walk(tree(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION  # few are, and to count is slow
        and (lines := code_lines(file, node)) > LONGEST_FUNCTION
    ]
    assert not long, f"a function has at most {LONGEST_FUNCTION} lines of code: {long}"


def test_a_file_holds_one_concept():
    long = [f"{place(file)} has {lines}" for file in ALL if (lines := code_lines(file, tree(file))) > LONGEST_FILE]
    assert not long, f"a file has at most {LONGEST_FILE} lines of code: {long}"


def test_a_module_says_in_one_sentence_what_lives_in_it():
    wrong = []
    for file in python_files(*PACKAGES, "tests", "benchmarks"):
        sentence, _, drawing = (ast.get_docstring(tree(file), clean=False) or "").partition("\n\n")
        if file.read_text() and not (is_one_sentence(sentence) and (not drawing or "──" in drawing)):
            wrong.append(place(file))
    assert not wrong, f"a module's docstring is one sentence, and at most a drawing under it: {wrong}"


def test_only_the_clock_knows_the_time():
    looks = [
        place(file, node)
        for file in OURS
        if not place(file).startswith(CLOCK)
        for node in ast.walk(tree(file))
        if looks_at_a_clock(node) and node not in moments(tree(file))
    ]
    assert not looks, f"take the time from {CLOCK}: {looks}"


def test_no_quick_test_sleeps():
    sleeps = [
        place(file, node)
        for file in python_files("tests")
        if not place(file).startswith(("tests/simulation/", "tests/faults/", "tests/chaos/"))
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
        if node.func not in moments(tree(file))
    ]
    assert not sleeps, f"wait for what is awaited, or use the virtual clock: {sleeps}"


def test_every_asyncio_task_is_kept():
    dropped = [
        place(file, node)
        for file in ALL
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        if node.value.func.attr in ("create_task", "ensure_future")
        if not ast.unparse(node.value.func.value).endswith("group")
    ]
    assert not dropped, f"a task that nobody holds may be collected while it runs, and its error is lost: {dropped}"


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
