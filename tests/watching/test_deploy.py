"""What is deployed beside a run: the dashboard and the alerts ask for metrics and labels that there are."""

import json
import re

import pytest

from runtime.watching.exposition import DURATIONS, INSTRUMENTS, series
from tests.source import ROOT
from tests.watching.test_exposition import whole_run

DASHBOARD = json.loads((ROOT / "deploy/grafana/samza-dsl.json").read_text())
ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PARTS = {"histogram": ("_bucket", "_sum", "_count")}
KNOWN = {one.exposed_as + part for one in INSTRUMENTS for part in PARTS.get(one.type, ("",))}
"""The names under which samples are told."""
LABELS = {name for one in series(whole_run(), 0) for name, _ in one.labels} | {"app", "le", "instance"}


def expressions():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']!r}", target["expr"]
    for rule in re.split(r"\n\s*- alert: ", ALERTS)[1:]:
        name, expression = re.match(
            r"(\w+)\n(?:\s*#[^\n]*\n)*\s*expr: (?:>-)?(.*?)\n\s*(?:for|labels):", rule, re.S
        ).groups()
        yield f"alert {name}", expression


@pytest.mark.parametrize(("whose", "expression"), [*expressions()])
def test_an_expression_asks_for_what_is_told(whose, expression):
    names = set(re.findall(r"\bsamza_\w+", expression))
    assert names and names <= KNOWN, f"{whose} asks for {sorted(names - KNOWN)}, which no run tells"
    by = {name.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for name in group.split(",")}
    assert by <= LABELS, f"{whose} groups by {sorted(by - LABELS)}"
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize(("whose", "expression"), [*expressions()])
def test_a_counter_is_asked_for_by_its_rate_and_a_histogram_by_its_buckets(whose, expression):
    if whose.startswith("alert"):
        counters = re.findall(r"(?:(\w+)\()?(samza_\w+(?:_total|_bucket))", expression)
        assert all(function in ("rate", "increase") for function, _ in counters)


def test_a_legend_names_labels_that_there_are():
    legends = [target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    assert {name for legend in legends for name in re.findall(r"{{(\w+)}}", legend)} <= LABELS
    assert set(re.findall(r"\$labels\.(\w+)", ALERTS)) <= LABELS


def test_each_alert_has_a_line_of_what_to_do():
    assert re.findall(r"- alert: (\w+)", ALERTS) == re.findall(r"^\| `(Samza\w+)` \|", OPERATIONS, re.M)


def test_each_metric_is_described():
    described = set()
    for line in re.findall(r"^\| (`.*?) \|", OPERATIONS, re.M):
        first = ""
        for name in re.findall(r"`([\w…]+)`", line):
            # "…_emitted_total" goes on from the name before: it has its first two words.
            first = name if not name.startswith("…") else "_".join(first.split("_")[:2]) + name.removeprefix("…")
            described.add(first)
    missing = {one.exposed_as for one in INSTRUMENTS} - described
    assert not missing, f"docs/operations.md does not tell of {sorted(missing)}"


def test_panels_lie_beside_each_other():
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in DASHBOARD["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)) and all(x + w <= 24 for x, _, w, _ in places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_everything_is_told_of_a_whole_run():
    told = {one.instrument for one in series(whole_run(), 10_000)}
    assert told == set(INSTRUMENTS), "what is never told is no metric"
    assert len(DURATIONS) == sum(one.type == "histogram" for one in INSTRUMENTS)
