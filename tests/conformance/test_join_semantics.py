"""The tables in semantics/joins/: what joins make of their input at every edge, each decided in docs/semantics.md."""

import tomllib
from pathlib import Path

import pytest

import samza_dsl
from runtime.encoding.serdes import Tagged
from samza_dsl import App, SamzaError, dead_letter
from samza_dsl.testing import Record, running

TABLES = sorted((Path(__file__).parent / "semantics" / "joins").glob("*.toml"))


def cases():
    for path in TABLES:
        table = tomllib.loads(path.read_text())
        shared = {name: value for name, value in table.items() if name != "case"}
        for case in table["case"]:
            yield pytest.param({**shared, **case}, id=f"{path.stem}: {case['name']}")


def together(*values):
    return list(values)


def app_of(case):
    app = App("semantics")
    names = {name: getattr(samza_dsl, name) for name in samza_dsl.__all__} | {
        "app": app,
        "together": together,
        "late": dead_letter("late"),
    }
    for source in ("left", "right"):
        names[source] = eval(case[source], names)
    eval(case["join"], names).send_to(app.output("out", value=list, key=str))
    return app


def outcome(case):
    """Return the results, each as `key@time: values`, and what was late."""
    with running(app_of(case)) as run:
        for step in case["input"]:
            source, told = step.split(" ", 1)
            if told.startswith("w "):
                run.advance_watermark(source, int(told[2:]))
                continue
            place, _, gone = told.partition(" ")
            key, _, at = place.partition("@")
            run.send(source, Record(None if gone else int(at), None if key == "-" else key, int(at)))
        before = [told_of(one) for one in run.records("out")]
        run.end()
        found = [told_of(one) for one in run.records("out")]
        letters = run.dead_letters("late") if "late" in case["join"] else []
        late = [f"{letter.stream} {letter.key.decode()}@{Tagged().decode(letter.value)}" for letter in letters]
    return before, found, late


def told_of(record):
    return (
        f"{record.key}@{record.timestamp}: {' '.join('-' if value is None else str(value) for value in record.value)}"
    )


@pytest.mark.parametrize("case", [*cases()])
def test_what_joins_make_of_it(case):
    if "error" in case:
        with pytest.raises(SamzaError, match=case["error"]):
            outcome(case)
        return
    before, found, late = outcome(case)
    assert found == case["results"]
    if "before_the_end" in case:
        assert before == case["before_the_end"]
    assert late == case.get("late", [])


def test_there_are_many():
    assert len([*cases()]) >= 20
