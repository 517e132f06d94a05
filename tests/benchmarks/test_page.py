"""The page of figures is made of its text and what was measured, and is the one that is committed."""

import json
import re
import sys

import msgspec
import pytest

from benchmarks import WORKLOADS, page
from benchmarks.__main__ import main
from benchmarks.figures import Chart, Curve, PeerFigure, load
from benchmarks.peers import PEERS
from benchmarks.shapes import SHAPES
from tests.benchmarks.test_figures import peer, point, program
from tests.source import ROOT

COMMITTED = ROOT / "docs" / "performance.md"


def curve(name, chart=None):
    return Curve(
        workload=name, title=f"what {name} is", ratio=0.5, bar=1.0, passed=True, curve={"µs": 1.5}, chart=chart
    )


def test_the_committed_page_is_made_of_the_committed_figures(tmp_path):
    written = tmp_path / COMMITTED.name
    page.write(written, load(COMMITTED.with_suffix(".json")))
    assert written.read_text() == COMMITTED.read_text(), "python -m benchmarks --only '' --write docs/performance.md"
    drawn, kept = (
        {file.name: file.read_text() for file in at.with_suffix("").glob("*.svg")} for at in (written, COMMITTED)
    )
    assert drawn == kept


def test_every_place_of_the_template_is_filled():
    text = page.Page([], "performance").text(page.TEMPLATE.read_text())
    assert "<!--" not in text
    assert page.NOTHING in text


def test_the_text_around_the_figures_is_the_templates():
    made = page.Page([point("B1")], "charts")
    assert made.text("before\n\n<!-- commits -->\n\nafter") == f"before\n\n{page.NOTHING}\n\nafter"
    assert "charts/workloads.svg" in made.text("<!-- workloads -->")
    assert made.pictures.keys() == {"workloads.svg"}


def test_each_figure_has_its_row():
    figures = [point("B1"), point("B6", 1_000, 3.0), point("B6", 10_000, 2.0), peer("bytewax", "B1", "batch 1", 20.0)]
    made = page.Page([*figures, PeerFigure(peer="pyspark", workload="", title="", missing="not installed: no")], "p")
    workloads = made.text("<!-- workloads -->")
    assert "**2.00**" in workloads and "**3.00**" not in workloads
    assert "3.00 (3.00 to 3.00)" in made.text("<!-- commits -->")
    assert "| bytewax | 20 |" in made.text("<!-- peers -->")
    assert "not installed: no" in made.text("<!-- notes -->")


def test_a_program_has_a_row_for_each_mode_with_what_more_partitions_cost():
    found = [program(ratio, "words", number) for number, ratio in ((64, 3.0), (1, 1.4))]
    made = page.Page([*found, msgspec.structs.replace(program(2.0, "words"), mode="log")], "p")
    text = made.text("<!-- programs -->")
    assert "**1.40** |" in text and "64: 2.14" in text and "**2.00**, missed |" in text and "3.00" not in text
    assert made.pictures.keys() == {"programs.svg"}


def test_a_shape_without_a_place_of_its_own_comes_last():
    made = page.Page([curve("P9"), curve("M1", Chart("x", "y", {"ours": [(1.0, 2.0)]}))], "p")
    text = made.text("<!-- shape M1 -->\n\n<!-- shapes -->")
    assert text.index("what M1 is") < text.index("what P9 is")
    assert text.count("what M1 is") == 1
    assert made.pictures.keys() == {"M1.svg"}


def test_the_template_names_what_there_is():
    for name in re.findall(r"<!-- shape (\S+) -->", page.TEMPLATE.read_text()):
        assert name in SHAPES
    assert {page.order(known, name)[0] for known in (WORKLOADS, SHAPES, PEERS) for name in [next(iter(known))]} == {0}


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command, and return its exit status and what it tells of errors."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().err

    return command


@pytest.mark.ci
def test_the_command_writes_the_page_and_keeps_what_it_does_not_measure(command, tmp_path):
    written = tmp_path / "speed.md"
    (tmp_path / "speed.json").write_text(
        json.dumps([{"kind": "shape", **figure_of("M1")}, {"kind": "shape", **figure_of("C1")}])
    )
    status, told = command("--only", "B1,C1", "--scale", "0.001", "--pairs", "1", "--write", str(written))
    assert status in (0, 1), told
    kept = {one["workload"]: one for one in json.loads((tmp_path / "speed.json").read_text())}
    assert list(kept) == ["M1", "C1", "B1"]
    assert kept["M1"]["title"] == "of old" and kept["C1"]["title"] != "of old"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", kept["B1"]["measured"]) and "Python" in kept["B1"]["machine"]
    assert "of old" in written.read_text() and (tmp_path / "speed" / "workloads.svg").exists()


def figure_of(name):
    return {"workload": name, "title": "of old", "ratio": None, "bar": None, "passed": True, "curve": {"MiB": 1.0}}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--quick", "--write", "page.md"], "--quick measures nothing that a page could show"),
        (["--peers", "bytewax,nobody"], "no nobody; there are bytewax"),
        (["--commit-every", "0"], "are positive"),
        (["--only", "B1,B99"], "no B99; there are B1"),
    ],
)
def test_what_makes_no_sense_is_refused(command, arguments, told):
    status, said = command(*arguments)
    assert status == 2
    assert told in said


def test_nothing_at_all_can_be_measured(command):
    assert command("--only", "") == (0, "")
