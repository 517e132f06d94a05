"""The start: what a program does not use it does not import, neither with the package nor for a command's help."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command

from samza_dsl.cli.main import COMMANDS, commands

LATE = {"networkx", "asyncio", "ssl", "html", "xml", "ctypes", "lmdb", "aiokafka", "pyspark", "pyarrow", "rich"}
"""What only planning, drawing or running takes."""


def imported(program: str) -> set[str]:
    told = f"{program}\nimport json, sys; print(json.dumps([*sys.modules]))"
    shown = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    return set(json.loads(shown.splitlines()[-1]))


def test_the_package_is_imported_without_what_plans_and_runs():
    found = imported("import samza_dsl")
    assert not found & LATE
    assert not found & {"planner.passes", "planner.model.graph", "runtime.run.run", "runtime.loop.loop"}


def test_a_pipeline_is_written_without_what_plans_and_runs():
    found = imported(
        "from samza_dsl import App, count, tumbling\n"
        'app = App("counting")\n'
        'numbers = app.input("numbers", value=int, timestamp=lambda n: n)\n'
        'numbers.partition_by(lambda n: n % 7, partitions=2, op_id="by").window(tumbling(seconds=1), count())'
    )
    assert not found & LATE


def test_help_imports_no_command():
    found = imported(
        "import sys\nfrom samza_dsl.cli.main import main\nsys.argv = ['samza-dsl', '--help']\n"
        "try: main()\nexcept SystemExit: pass"
    )
    assert not found & LATE - {"rich"}  # which typer may look for
    assert not {f"samza_dsl.cli.{command.module}" for command in COMMANDS.values()} & found


def test_a_run_imports_nothing_that_draws(tmp_path):
    (tmp_path / "app.py").write_text(
        "from samza_dsl import App\napp = App('a')\napp.input('in', value=int).send_to(app.output('out', value=int))\n"
    )
    found = imported(
        "import sys, os\nfrom samza_dsl.cli.main import main\n"
        f"os.chdir({str(tmp_path)!r})\nsys.argv = ['samza-dsl', 'run', 'app.py', '--until-now']\n"
        "try: main()\nexcept SystemExit: pass"
    )
    assert "runtime.run.run" in found
    assert not {name for name in found if name.startswith(("planner.picture", "planner.columnar", "samza_dsl.cli.job"))}


def test_what_a_command_has_imported_is_not_looked_through_for_cycles(tmp_path):
    program = "import gc\nfrom samza_dsl import App\nprint(gc.get_freeze_count(), gc.isenabled())\napp = App('a')\n"
    (tmp_path / "app.py").write_text(program + "app.input('in', value=int).send_to(app.output('out', value=int))\n")
    command = [sys.executable, "-m", "samza_dsl", "plan", "app.py"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    frozen, collects = shown.splitlines()[0].split()
    assert int(frozen) > 20_000 and collects == "True"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_where_the_table_says(name):
    group = get_command(commands)
    command = group.commands[name]
    assert command.name == name
    # What `--help` says of all commands is the beginning of what the command says of itself.
    words = COMMANDS[name].summary.rstrip(".").split()
    assert command.help.split()[0] == words[0], "the summary is of another command"


def test_a_command_that_is_misspelt_is_told():
    group = get_command(commands)
    assert group.commands.get("plon") is None
    assert list(group.commands) == group.list_commands(None) == [*COMMANDS]
