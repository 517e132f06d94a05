"""Nothing of a core operator is forgotten: its fluent method and its tests."""

import ast

import pytest

from tests.source import ROOT, nodes, python_files, tree
from tests.specs import specs

FOR_ANOTHER_SPEC: dict[str, str] = {
    "TableChanges": "what a Table is in a graph in which it is joined with tables",
}
"""Specs that no user asks for by name, with the reason."""

DOORS = ("App", "MessageStream", "TableJoins")


def names_in(function: ast.FunctionDef) -> set[str]:
    """Return the names that occur in what a function does."""
    return {name.id for statement in function.body for name in ast.walk(statement) if isinstance(name, ast.Name)}


def names_used_in_the_doors() -> set[str]:
    """Return the names in what the methods of App, MessageStream and tables do, and in the functions they call."""
    bodies = [node for file in python_files("samza_dsl") for node in tree(file).body]
    doors = [node for node in bodies if isinstance(node, ast.ClassDef) and node.name in DOORS]
    methods = [method for door in doors for method in door.body if isinstance(method, ast.FunctionDef)]
    used = set().union(*map(names_in, methods))
    called = [node for node in bodies if isinstance(node, ast.FunctionDef) and node.name in used]
    return used.union(*map(names_in, called))


def names_imported_as(original: str) -> set[str]:
    """Return what samza_dsl calls the class `original`."""
    return {original} | {
        alias.asname
        for file in python_files("samza_dsl")
        for node in nodes(tree(file))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == original and alias.asname
    }


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.__name__)
def test_a_spec_has_a_method_that_makes_it(spec):
    if spec.__name__ not in FOR_ANOTHER_SPEC:
        made = names_imported_as(spec.__name__) & names_used_in_the_doors()
        assert made, f"{spec.__name__}: add a method to MessageStream or App, or a reason to FOR_ANOTHER_SPEC"


@pytest.mark.parametrize("module", sorted({spec.__module__ for spec in specs()}))
def test_an_operator_has_a_test_file(module):
    file = ROOT / "tests" / "operators" / f"test_{module.rpartition('.')[2]}.py"
    assert file.exists(), f"write the laws of {module} in {file.relative_to(ROOT)}"


def test_every_reason_is_about_a_spec():
    assert FOR_ANOTHER_SPEC.keys() - {spec.__name__ for spec in specs()} == set()
