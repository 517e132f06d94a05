"""The project's own text, for the tests of the house rules: its files, their syntax trees, and what is a sentence."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("samza_dsl", "runtime", "planner", "operators")
SENTENCE_ENDS_INSIDE = re.compile(r"[.!?]\s+[A-Z]")


@cache
def files() -> tuple[Path, ...]:
    """Return every file that belongs to the project, without what tools and runs leave behind."""
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name for name in subfolders if name == ".ci" or not name.startswith((".", "__pycache__", "build", "dist"))
        ]
        if Path(folder) == ROOT and "site" in subfolders:  # what scripts/docs has built
            subfolders.remove("site")
        found += [Path(folder, name) for name in names if name != ".git"]  # a file in a worktree
    return tuple(sorted(found))


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files in `folders` of the project."""
    return tuple(file for file in files() if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in folders)


@cache
def tree(file: Path) -> ast.Module:
    """Return the syntax tree of `file`."""
    return ast.parse(file.read_text(), str(file))


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree: to walk it takes longer than any of the many looks at them."""
    return tuple(ast.walk(tree))


def place(file: Path, node: ast.AST | int = 1) -> str:
    """Return where `node` is, as editors and terminals link it."""
    return f"{file.relative_to(ROOT)}:{node if isinstance(node, int) else node.lineno}"  # type: ignore[attr-defined]


def imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each import in `tree` with the dotted name of the module."""
    for node in nodes(tree) if isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def is_one_sentence(text: str) -> bool:
    """Whether `text` ends as a sentence does, and only once."""
    return text.endswith((".", "!", "?")) and not SENTENCE_ENDS_INSIDE.search(text)
