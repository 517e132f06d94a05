"""What the documents say is so: their programs run, their links lead somewhere, their outputs are today's."""

import json
import re
import subprocess
import sys
from itertools import product

import nbformat
import pytest
from nbclient import NotebookClient

from tests.scale import SCALE
from tests.source import ROOT, files

README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)|(?:src|href)=\"([^\"#]+)")
LINE = re.compile(r"(\b\w+\.py):\d+")
EXAMPLE = re.compile(r"(?<= has )\[.*?\](?= where nothing disturbs the run)|(?<=with the inputs ).*?(?=\\n)")
"""The example that `check_laws` found: Hypothesis draws by the constants in our code, so it may become another."""
ELSEWHERE = ("http:", "https:", "mailto:")
PAGES = [file for file in files() if file.suffix == ".md"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SLOW = ("02_see_the_plan", "03_test_a_pipeline", "04_reprocess_on_spark", "05_check_the_laws", "06_split", "07_change")
"""They take up to a minute each, and run in CI."""
SHORTER = {
    "04_reprocess_on_spark": {'load(Path("year"))': 'load(Path("year"), most=80_000)'},
    "06_split_a_run_that_lags": {"now > 6": "now > 2", "end = now + 6": "end = now + 1"},
}
"""The changes to cells with which CI runs a notebook: a quarter of the year, and hardly any time without a change."""
OF_ALL = "len(year.received(name))"
"""What a cell that tells of the whole year has in it; `tests/examples/test_flights.py` computes it in each tier."""
VARIES = "varies"
"""The tag of a cell whose output is not the same from run to run."""


def blocks(*languages):
    """Return the README's code in one of `languages`, block by block."""
    return [code for language, code in FENCE.findall(README.read_text()) if language in languages]


def shown(outputs):
    """Return what a reader sees of a cell's outputs, wherever the kernel cut the text.

    Lines of code and examples that Hypothesis found are left out: they change with our own code.
    """
    text = {}
    for output in outputs:
        if output.output_type == "stream":
            text[output.name] = text.get(output.name, "") + output.text
    rich = [dict(output.data) for output in outputs if "data" in output]
    return EXAMPLE.sub("…", LINE.sub(r"\1", json.dumps([text, rich], sort_keys=True)))


def test_the_programs_of_the_readme_run(tmp_path):
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks("python")))
    run = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, f"the README's Python, from top to bottom, fails:\n{run.stderr}"


def test_the_readme_sets_up_with_two_commands():
    shell = "\n".join(blocks("sh", "bash", "shell", "console"))
    assert sorted(set(re.findall(r"scripts/\w+", shell))) == ["scripts/demo", "scripts/test"]
    assert not re.search(r"\b(pip|uv|venv|make|mvn)\b", shell), "the two commands set up all by themselves"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page):
    links = ["".join(link) for link in LINK.findall(page.read_text())]
    broken = [link for link in links if not link.startswith(ELSEWHERE) and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize(
    "notebook",
    [one for one in NOTEBOOKS if SCALE != "quick" or not one.stem.startswith(SLOW)],
    ids=lambda notebook: notebook.stem,
)
def test_a_notebook_runs_and_shows_what_it_showed(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    stored = nbformat.read(notebook, as_version=4)
    fresh = nbformat.read(notebook, as_version=4)
    changes = SHORTER.get(notebook.stem, {}) if SCALE != "long" else {}
    for (old, new), cell in product(changes.items(), fresh.cells):
        cell.source = cell.source.replace(old, new)
    assert all(any(new in cell.source for cell in fresh.cells) for new in changes.values())
    NotebookClient(fresh, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    for then, now in zip(stored.cells, fresh.cells, strict=True):
        is_told = VARIES not in now.metadata.get("tags", ()) and not (changes and OF_ALL in now.source)
        if now.cell_type == "code" and is_told:
            assert shown(now.outputs) == shown(then.outputs), f"python scripts/notebooks.py {notebook.stem}"


def test_there_are_notebooks():
    assert NOTEBOOKS, "without one, the test above checks nothing"
