"""Files that come, through an application that is killed again and again, into files that roll: each row once."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from samza_dsl import connectors
from tests.connectors.test_growing_folder import Leg
from tests.connectors.test_growing_folder import write as write_legs
from tests.connectors.test_rolling_files import rows_in
from tests.scale import scale
from tests.source import ROOT

PROGRAM = """
import sys
import msgspec
from samza_dsl import App, Options, connectors

class Leg(msgspec.Struct):
    n: int
    carrier: str

app = App("copying", Options(commit_interval_ms=20))
app.input("legs", value=Leg).send_to(app.output("copies", value=Leg))
source = connectors.growing_folder("incoming", poll_ms=5, settled_ms=0)
sink = connectors.rolling_files("out", sys.argv[1], rows=37, every_ms=50)
print("begins", flush=True)
app.run("data", bind={"legs": source, "copies": sink}, until_now=len(sys.argv) > 2)
"""


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["parquet", pytest.param("jsonl", marks=pytest.mark.long)])
def test_each_row_is_there_once_however_often_it_is_killed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "incoming").mkdir()
    chance, legs = random.Random(kind), list[Leg]()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "program.py", kind]
    for _ in range(scale(1, 3, 250)):
        with subprocess.Popen(line, cwd=tmp_path, env=environ, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None and running.stdout.readline()
            for _ in range(8):
                rows = [Leg(len(legs) + n, "AA") for n in range(chance.randint(1, 60))]
                legs += rows
                write_legs(str(tmp_path / "incoming"), f"{len(legs)}.{chance.choice(('jsonl', 'csv'))}", rows)
            # At any moment, and nothing depends on which.
            try:
                running.wait(chance.random() * 0.7)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGKILL)
    done = subprocess.run([*line, "end"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    files = connectors.committed_files(tmp_path / "out")
    assert Counter(leg.n for leg in rows_in(files)) == Counter(leg.n for leg in legs)
    lying = [str(file) for file in (tmp_path / "out").rglob("part-*") if "_samza_dsl" not in file.parts]
    assert sorted(lying) == files
