"""The tables in semantics/: what windows make of their input at every edge, each decided in docs/semantics.md."""

import tomllib
from pathlib import Path

import pytest

import samza_dsl
from runtime.serdes import Tagged
from samza_dsl import App, SamzaError, collect, dead_letter
from samza_dsl.testing import Record, running

TABLES = sorted((Path(__file__).parent / "semantics").glob("*.toml"))


def cases():
    for path in TABLES:
        table = tomllib.loads(path.read_text())
        shared = {name: value for name, value in table.items() if name != "case"}
        for case in table["case"]:
            yield pytest.param({**shared, **case}, id=f"{path.stem}: {case['name']}")


class Reader:
    """Reads and writes the notation of a case."""

    def __init__(self, case):
        self.unit, self.epoch = case.get("unit_ms", 1), case.get("epoch_ms", 0)

    def ms(self, text):
        return self.epoch + int(text) * self.unit

    def told(self, at_ms):
        number, rest = divmod(at_ms - self.epoch, self.unit)
        return str(number) if not rest else f"{(at_ms - self.epoch) / self.unit}"

    def pane(self, pane):
        values = " ".join(map(self.told, pane.value))
        late = f" late {pane.index}" if pane.timing == "late" else ""
        return f"{pane.key} {self.told(pane.start)}-{self.told(pane.end)}: {values}{late}"


def app_of(case):
    app = App("semantics")
    how = {"partitions": case.get("partitions", 1), "max_disorder_ms": case.get("disorder", 0)}
    records = app.input("in", value=int, key=str, **how)
    windows = eval(case["window"], {name: getattr(samza_dsl, name) for name in samza_dsl.__all__})
    how = {"allowed_lateness_ms": case.get("lateness", 0), "panes": case.get("accumulates", "accumulating")}
    panes = records.window(windows, collect(), late=dead_letter("late"), **how)
    panes.send_to(app.output("out", value=samza_dsl.Pane[str, list[int]]))
    return app


def outcome(case):
    """Return the panes and what was late, as the notation of the case has them."""
    reader, late = Reader(case), []
    with running(app_of(case)) as run:
        for step in case["input"]:
            if step.startswith("w "):
                run.advance_watermark("in", reader.ms(step[2:]))
                continue
            key, _, rest = step.partition("@")
            at, _, partition = rest.partition("/")
            run.send("in", Record(reader.ms(at), None if key == "-" else key, reader.ms(at), int(partition or 0)))
        run.end()
        panes = list(map(reader.pane, run.read("out")))
        letters = run.dead_letters("late")
        late = [f"{letter.key.decode()}@{reader.told(Tagged().decode(letter.value))}" for letter in letters]
    return panes, late


@pytest.mark.parametrize("case", [*cases()])
def test_what_windows_make_of_it(case):
    if "error" in case:
        with pytest.raises(SamzaError, match=case["error"]):
            outcome(case)
        return
    panes, late = outcome(case)
    in_order = case.get("order", case.get("partitions", 1) == 1)
    assert panes == case["panes"] if in_order else sorted(panes) == sorted(case["panes"])
    assert late == case.get("late", [])


def test_there_are_many():
    assert len([*cases()]) >= 60
