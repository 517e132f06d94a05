"""Runs the notebooks again, all or the named ones, and keeps what they show: `python scripts/notebooks.py 04`."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
VARIES = "varies"
"""The tag of a cell whose output is not the same from run to run: what it printed meanwhile is not kept."""


def run(path: Path) -> None:
    """Run the notebook at `path` in an empty directory and write it back with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if VARIES in cell.metadata.get("tags", ()):
            cell.outputs = [output for output in cell.outputs if output.output_type != "stream"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as settings:
        os.environ["IPYTHONDIR"] = settings
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            if len(sys.argv) == 1 or path.stem.startswith(tuple(sys.argv[1:])):
                print(path.name)
                run(path)
