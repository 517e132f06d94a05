"""The spans and numbers of real runs, from files of their processes and from their ports, and what their pages do."""

import json
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

TRACED = """
import os

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def line(found):
    return found.to_json(indent=None) + "\\n"


# Each process writes its own: containers load this program, too.
told = ConsoleSpanExporter(out=open(f"spans-{os.getpid()}.jsonl", "w"), formatter=line)
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(told))
trace.set_tracer_provider(provider)
counted = ConsoleMetricExporter(out=open(f"metrics-{os.getpid()}.jsonl", "w"), formatter=line)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(counted, export_interval_millis=500)]))
"""


def spans(folder: Path) -> list[dict]:
    """Return the spans that all processes of a run have told; what one was killed in the midst of is left out."""
    lines = [one for file in folder.glob("spans-*.jsonl") for one in file.read_text().splitlines(keepends=True)]
    return [json.loads(one) for one in lines if one.endswith("\n")]


def points(folder: Path, process: int) -> dict[str, list[dict]]:
    """Return the points that a process has told of each metric, all of its exports together."""
    found: dict[str, list[dict]] = {}
    lines = (folder / f"metrics-{process}.jsonl").read_text().splitlines(keepends=True)
    for told in (json.loads(one) for one in lines if one.endswith("\n")):
        for scope in (scope for resource in told["resource_metrics"] for scope in resource["scope_metrics"]):
            for metric in scope["metrics"]:
                found.setdefault(metric["name"], []).extend(metric["data"]["data_points"])
    return found


def asked_of_page(port: int, run: str, what: str, **how: object) -> str:
    """Do on the page of a run what one of its buttons does, and return what it has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/session") as answer:
        proof = json.load(answer)["proof"]
    body = json.dumps({"run": run, "what": what, **how}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/act", body, {"X-Samza-Dsl": proof})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["done"]


def id_of(span: dict) -> str:
    return span["context"]["span_id"].removeprefix("0x")


def parent_of(span: dict) -> str | None:
    return span["parent_id"] and span["parent_id"].removeprefix("0x")


def links_of(span: dict) -> set[str]:
    return {one["context"]["span_id"].removeprefix("0x") for one in span["links"]}


def numbers(port: int) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Return what `/metrics` tells, by the name of the sample and by labels, but for the application's."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = frozenset(pair for pair in one.labels.items() if pair[0] != "app")
            found.setdefault(one.name, {})[labels] = one.value
    return found


def total(found: dict[str, dict[frozenset[tuple[str, str]], float]], name: str) -> float:
    """Return the sum of the series of a metric."""
    return sum(found.get(name, {}).values())
