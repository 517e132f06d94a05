"""Nothing of a core operator is forgotten: its fluent method and its tests."""

import ast
import importlib

import pytest

from operators.base import Spec
from tests.source import ROOT, python_files, tree

FOR_ANOTHER_SPEC: dict[str, str] = {
    "TableChanges": "what a Table is in a graph in which it is joined with tables",
    "Stateless": "what Filter, Map, FlatMap and Branch share; it has no kind of its own",
}
"""Specs that no user asks for by name, with the reason."""

DOORS = ("App", "Tables", "MessageStream", "Joins", "TableJoins", "Keeping", "Windowing", "WindowJoins")


def specs(base: type[Spec] = Spec) -> list[type[Spec]]:
    for file in python_files("operators"):
        importlib.import_module(f"operators.{file.stem}")
    return [spec for child in base.__subclasses__() for spec in (child, *specs(child))]


def names_used_in_the_doors() -> set[str]:
    """Return the names that occur in what the methods of App and MessageStream do."""
    return {
        name.id
        for file in python_files("samza_dsl")
        for door in tree(file).body
        if isinstance(door, ast.ClassDef) and door.name in DOORS
        for method in door.body
        if isinstance(method, ast.FunctionDef)
        for statement in method.body
        for name in ast.walk(statement)
        if isinstance(name, ast.Name)
    }


def names_imported_as(original: str) -> set[str]:
    """Return what samza_dsl calls the class `original`."""
    return {original} | {
        alias.asname
        for file in python_files("samza_dsl")
        for node in ast.walk(tree(file))
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
