"""How a test says that a pipeline is refused: where, for what, and with which way out."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planner.model.errors import PlanError
from samza_dsl import App, MessageStream

MARK = "# here"


@contextmanager
def refused(wrong: str, instead: str, app: App | None = None) -> Iterator[None]:
    """Demand that the block, or planning `app` after it, is refused at the block's line that ends in `# here`.

    A block of one line needs no mark.
    """
    frame = sys._getframe(2)
    site = f"{frame.f_code.co_filename}:{_marked(Path(frame.f_code.co_filename), frame.f_lineno)}"
    with pytest.raises((PlanError, ValueError)) as caught:  # noqa: PT012
        yield
        assert app is not None, "nothing was refused while building, and there is nothing to plan"
        app.plan()
    where, _, told = str(caught.value).partition(": ")
    found, _, way_out = told.rpartition("; write instead: ")
    assert where.rpartition(" at ")[2] == site
    assert wrong in found
    assert instead in way_out


def _marked(file: Path, line: int) -> int:
    """Return the line of the mistake in the `with` block at `line`."""
    lines = file.read_text().splitlines()
    blocks = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.With))
    block = next(node for node in blocks if node.lineno <= line <= node.body[0].lineno)
    numbers = range(block.body[0].lineno, (block.end_lineno or 0) + 1)
    marked = [number for number in numbers if lines[number - 1].endswith(MARK)] or [*numbers]
    assert len(marked) == 1, f"mark one line of the block with {MARK}"
    return marked[0]


def numbers_of(app: App, **said) -> MessageStream:
    return app.input("numbers", value=int, **said)
