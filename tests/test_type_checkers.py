"""Type checkers accept the files in tests/types, and would not if these said something wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

TYPES = ROOT / "tests" / "types"
PROGRAM = """
from samza_dsl import App

app = App("checked")
numbers = app.input("numbers", value=int)
numbers.map(lambda n: n + 1).send_to(app.output("out", value={kind}))
"""


def mypy(*arguments):
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def basedpyright(folder):
    command = [str(Path(sys.executable).with_name("basedpyright")), "--project", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.long  # in CI `scripts/check` does the same
def test_mypy_accepts_what_the_type_tests_say():
    found = mypy(*map(str, sorted(TYPES.glob("test_types*.py"))))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.long  # in CI `scripts/check` does the same
def test_basedpyright_accepts_what_the_type_tests_say():
    found = basedpyright(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(("kind", "accepted"), [("int", True), ("str", False)])
@pytest.mark.ci
def test_mypy_refuses_a_wrong_pipeline(tmp_path, kind, accepted):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(kind=kind))
    found = mypy(str(program))
    assert (found.returncode == 0) is accepted, found.stdout + found.stderr
    assert accepted or 'incompatible type "type[str]"; expected "type[int]"' in found.stdout


@pytest.mark.parametrize(("kind", "accepted"), [("int", True), ("str", False)])
@pytest.mark.ci
def test_basedpyright_refuses_a_wrong_pipeline(tmp_path, kind, accepted):
    (tmp_path / "program.py").write_text(PROGRAM.format(kind=kind))
    settings = f'{{"extraPaths": ["{ROOT}"], "typeCheckingMode": "strict", "venvPath": "{ROOT}", "venv": ".venv"}}'
    (tmp_path / "pyrightconfig.json").write_text(settings)
    found = basedpyright(tmp_path)
    assert (found.returncode == 0) is accepted, found.stdout + found.stderr
    assert accepted or '"OutputStream[str]" is not assignable to "OutputStream[int]"' in found.stdout
