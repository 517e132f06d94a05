"""The tables in semantics/: what windows make of their input at every edge, each decided in docs/semantics.md."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import samza_dsl
from runtime.encoding.serdes import Tagged
from samza_dsl import App, Pane, PlanError, Revision, SamzaError, collect, dead_letter
from samza_dsl.testing import Record, running

TABLES = sorted((Path(__file__).parent / "semantics").glob("*.toml"))


def cases():
    for path in TABLES:
        table = tomllib.loads(path.read_text())
        shared = {name: value for name, value in table.items() if name != "case"}
        for case in table["case"]:
            yield pytest.param({**shared, **case}, id=f"{path.stem}: {case['name']}")


@dataclass(frozen=True)
class FromEach:
    """From each value on a window of each of these lengths."""

    lengths: tuple[int, ...]

    def assign(self, key, timestamp, value):
        return [(timestamp, timestamp + length) for length in self.lengths]


class FromEachMerging(FromEach):
    """The same, and what overlaps becomes one."""

    merges = True


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
        if isinstance(pane, Revision):
            return f"{'- ' if pane.withdrawn else ''}{self.pane(pane.value)}"
        values = " ".join(map(self.told, pane.value))
        timing = {"on_time": "", "final": " final"}.get(pane.timing, f" {pane.timing} {pane.index}")
        return f"{pane.key} {self.told(pane.start)}-{self.told(pane.end)}: {values}{timing}"


def app_of(case):
    app = App("semantics")
    how = {"partitions": case.get("partitions", 1), "max_disorder_ms": case.get("disorder", 0)}
    records = app.input("in", value=int, key=str, **how)
    names = {name: getattr(samza_dsl, name) for name in samza_dsl.__all__}
    names |= {"FromEach": FromEach, "FromEachMerging": FromEachMerging}
    windows, early = eval(case["window"], names), eval(case.get("early", "None"), names)
    how = {"allowed_lateness_ms": case.get("lateness", 0), "panes": case.get("accumulates", "accumulating")}
    how |= {"early": early, "emit": case.get("emit", "all")}
    how |= {"late_trigger": eval(case["late_trigger"], names)} if "late_trigger" in case else {}
    panes = records.window(windows, collect(), late=dead_letter("late"), **how)
    if "below" in case:
        panes = panes.map(lambda pane: len(pane.value)).window(eval(case["below"], names), collect(), **how)
    if how["panes"] == "retracting":
        panes.revisions().send_to(app.output("out", value=Revision[Pane[str, list[int]]]))
    else:
        panes.send_to(app.output("out", value=Pane[str, list[int]]))
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
        with pytest.raises((SamzaError, PlanError), match=case["error"]):
            outcome(case)
        return
    panes, late = outcome(case)
    in_order = case.get("order", case.get("partitions", 1) == 1)
    assert panes == case["panes"] if in_order else sorted(panes) == sorted(case["panes"])
    assert late == case.get("late", [])


def test_there_are_many():
    assert len([*cases()]) >= 60
