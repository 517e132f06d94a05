"""What is deployed beside a run: the dashboard and the alerts ask for metrics and labels that there are."""

import asyncio
import json
import re
import urllib.request
from contextlib import closing

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from operators.core.base import Batch
from runtime.model.metrics import Metrics
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.watching.exposition import DURATIONS, INSTRUMENTS, prometheus_text, series
from samza_dsl import App, Options, count, skip, tumbling
from tests.kafka.brokers import free_ports
from tests.source import ROOT
from tests.watching.promql import labels_of, metrics_in, parsed
from tests.watching.test_exposition import whole_run

DASHBOARD = json.loads((ROOT / "deploy/grafana/samza-dsl.json").read_text())
ALERTS = (ROOT / "deploy/prometheus/alerts.yml").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PARTS = {"histogram": ("_bucket", "_sum", "_count")}
KNOWN = {one.exposed_as + part for one in INSTRUMENTS for part in PARTS.get(one.type, ("",))}
"""The names under which samples are told."""
RULES = yaml.safe_load(ALERTS)["groups"][0]["rules"]
ELSEWHERE = {
    "samza_rebalance_duration_seconds_bucket",  # in containers: tests/cli/test_rebalances.py
    "samza_replica_age_seconds",  # with --replica: there, too
    "samza_state_restoring",  # on Kafka: tests/kafka/test_watched.py
}
"""What a run in one process on the embedded log does not tell, of what is asked for."""


def expressions():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']!r}", target["expr"]
    for rule in RULES:
        yield f"alert {rule['alert']}", rule["expr"]
    (trigger,) = yaml.safe_load((ROOT / "deploy/kubernetes/keda.yaml").read_text())["spec"]["triggers"]
    yield "KEDA", trigger["metadata"]["query"]
    (rule,) = yaml.safe_load((ROOT / "deploy/kubernetes/prometheus-adapter.yaml").read_text())["rules"]["external"]
    yield "the adapter's series", rule["seriesQuery"]
    yield "the adapter", rule["metricsQuery"].replace("<<.LabelMatchers>>", 'app="delays",namespace="default"')


def told_in(text):
    """Return the labels of each sample in an answer of `/metrics`, by its name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found[one.name] = found.get(one.name, frozenset()) | one.labels.keys()
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return what the endpoint of a real run tells: the labels of each sample by its name."""
    folder, (port,) = tmp_path_factory.mktemp("told"), free_ports(1)

    async def look_up(n):
        if n == 3:
            raise ValueError("no such number")
        return [n]

    app = App("spending", Options(commit_interval_ms=5))
    looked = app.input("numbers", value=int, timestamp=lambda n: 1_000 * n)
    looked = looked.async_flat_map(look_up, on_error=skip, op_id="look-up")
    counted = looked.partition_by(str, op_id="by").window(tumbling(seconds=1), count(), op_id="counted")
    counted.send_to(app.output("panes"))
    with closing(LogEnvironment(folder)) as log:
        log.create_stream("numbers", StreamConfig())
        log.append([Append("numbers", 0, Batch([b"%d" % n for n in range(1, 6)]))])

    async def asked():
        async with app.running(folder, metrics=Metrics(address=f"127.0.0.1:{port}")) as run:
            await run.settled()
            reply = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics")
            return reply.read().decode()

    return told_in(asyncio.run(asked()))


@pytest.mark.parametrize(("whose", "expression"), [*expressions()])
def test_an_expression_asks_for_what_is_told(whose, expression, told):
    """Prometheus would take it, each of its metrics is one of a real run, and has the labels that it asks for."""
    found = parsed(expression)
    names = {*metrics_in(found)}
    assert names and names - ELSEWHERE <= told.keys(), f"{whose} asks for {sorted(names - told.keys())}"
    labels_of(found, told_in(prometheus_text("spending", whole_run(), 10_000)) | told)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_is_one_that_prometheus_takes(rule):
    assert rule.keys() | {"for"} == {"alert", "expr", "for", "labels", "annotations"}
    assert promql_parser.parse_duration(rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"].keys() == {"summary"}
    # Braces that are not closed, or another function, would be an error of each firing.
    assert not re.sub(r"{{ \$(labels\.\w+|value) }}", "", rule["annotations"]["summary"]).count("{")


def test_what_a_run_in_one_process_does_not_tell_is_known(told):
    assert not ELSEWHERE & told.keys() and ELSEWHERE <= KNOWN


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("rate(samza_commits_total)", "expected type matrix"),
        ("sum by (app) (rate(samza_commits_total[5m])", "unclosed left parenthesis"),
        ("rates(samza_commits_total[5m])", "unknown function"),
        ("sum(samza_commit_total)", "nobody tells samza_commit_total"),
        ('samza_input_lag{topic="a"}', "has no labels"),
        ("sum by (operator) (samza_input_lag)", "groups by"),
        ("sum by (stream) (samza_input_lag) / count(samza_input_lag)", "never meet"),
        ("samza_input_lag and on (operator) samza_input_lag", "not both have"),
        ("histogram_quantile(0.9, sum by (app) (rate(samza_commit_duration_seconds_bucket[5m])))", "by their bounds"),
    ],
)
def test_a_wrong_expression_is_noticed(expression, wrong, told):
    with pytest.raises((ValueError, AssertionError), match=wrong):
        labels_of(parsed(expression), told)


@pytest.mark.parametrize(("whose", "expression"), [*expressions()])
def test_a_counter_is_asked_for_by_its_rate_and_a_histogram_by_its_buckets(whose, expression):
    if whose.startswith("alert"):
        counters = re.findall(r"(?:(\w+)\()?(samza_\w+(?:_total|_bucket))", expression)
        assert all(function in ("rate", "increase") for function, _ in counters)


def test_a_legend_and_a_summary_name_labels_of_what_is_shown(told):
    known = told_in(prometheus_text("spending", whole_run(), 10_000)) | told
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            named = {*re.findall(r"{{(\w+)}}", target["legendFormat"])}
            assert named <= labels_of(parsed(target["expr"]), known), panel["title"]
    for rule in RULES:
        named = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
        assert named <= labels_of(parsed(rule["expr"]), known), rule["alert"]


def test_what_the_dashboard_chooses_from_is_told(told):
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"]).groups()
            assert label in told[metric]


def test_each_alert_has_a_line_of_what_to_do():
    assert re.findall(r"- alert: (\w+)", ALERTS) == re.findall(r"^\| `(Samza\w+)` \|", OPERATIONS, re.M)


def test_each_metric_is_described():
    described = {name for cell in re.findall(r"^\| (`.*?) \|", OPERATIONS, re.M) for name in described_in(cell)}
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


def test_the_labels_of_each_metric_are_described():
    told = told_in(prometheus_text("spending", whole_run(), 10_000))
    for line in re.findall(r"^\| `samza_.*", OPERATIONS, re.M):
        _, names, labels, *_ = line.split("|")
        wanted = {*re.findall(r"\w+", labels)} - {"and"}
        for name in described_in(names):
            found = told.get(name) or told[f"{name}_count"]
            assert found - {"app"} <= wanted, f"{name} has the labels {sorted(found)}"
            assert wanted - found <= {"container"} and ("container" not in wanted - found or "and" in labels), name


def described_in(cell):
    """Yield the metrics that a cell names; "…_emitted_total" goes on from the first one, with its first two words."""
    first = ""
    for name in re.findall(r"`([\w…]+)`", cell):
        first = name if not name.startswith("…") else "_".join(first.split("_")[:2]) + name.removeprefix("…")
        yield first
