"""What OpenTelemetry's own readers and exporters see of a run."""

import asyncio
import subprocess
import sys
from contextlib import closing

import pytest
from opentelemetry import metrics, trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from operators.core.base import Batch
from runtime.functions.calls import AROUND
from runtime.model.metrics import LISTENER, Metrics
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from runtime.systems.memory.lists import ListSource
from runtime.watching.exposition import DURATIONS, INSTRUMENTS
from samza_dsl import App, count, retry, skip, tumbling
from samza_dsl.data.records import records_from

READER, EXPORTER = InMemoryMetricReader(), InMemorySpanExporter()
OWN = trace.get_tracer("the user's own")


@pytest.fixture(scope="module", autouse=True)
def providers():
    """Set the providers of this program, which can be set once."""
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(EXPORTER))
    metrics.set_meter_provider(MeterProvider([READER]))
    trace.set_tracer_provider(spans)


@pytest.fixture
def run(tmp_path):
    """Run an application that makes calls, and return the spans that were made and the metrics by name."""

    async def look_up(n):
        with OWN.start_as_current_span("ask"):
            if n == 3:
                raise ValueError("no such number")
            return [n]

    def go(**how):
        app = App("looking")
        looked = app.input("numbers", value=int, timestamp=lambda n: 1_000 * n)
        looked = looked.async_flat_map(look_up, on_error=skip, op_id="look-up")
        looked.send_to(app.output("out", value=int))
        counted = looked.partition_by(str, op_id="by").window(tumbling(seconds=1), count(), op_id="counted")
        counted.send_to(app.output("panes"))
        EXPORTER.clear()
        app.run(tmp_path, bind={"numbers": ListSource([1, 2, 3])}, **how)
        found = READER.get_metrics_data()
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics] if found else []
        return EXPORTER.get_finished_spans(), {one.name: one for scope in scopes for one in scope.metrics}

    return go


def links_of(span):
    return {format(one.context.span_id, "016x") for one in span.links}


def points(metric, **attributes):
    wanted = {f"samza.{name}": value for name, value in attributes.items()}
    return [point for point in metric.data.data_points if wanted.items() <= dict(point.attributes).items()]


def test_a_reader_sees_the_numbers_of_a_run_under_their_names(run):
    _, told = run(metrics=Metrics(address=None, opentelemetry=True))
    known = {one.name: one for one in INSTRUMENTS}
    assert told.keys() <= known.keys() and all(told[name].unit == known[name].unit for name in told)
    (received,) = points(told["samza.operator.received"], app="looking", operator="look-up")
    (skipped,) = points(told["samza.operator.skipped"], app="looking", operator="look-up")
    assert (received.value, skipped.value) == (3, 1)
    (calls,) = points(told["samza.call.duration"], app="looking", operator="look-up")
    assert calls.count >= 1 and calls.explicit_bounds[0] == 0.000125
    (latency,) = points(told["samza.event_to_output.duration"], stream="out")
    assert latency.count == 2


def test_a_call_has_a_span_that_is_the_parent_of_what_it_does(run):
    spans, _ = run(metrics=Metrics(address=None, opentelemetry=True))
    calls = {one.context.span_id: one for one in spans if one.name == "call look-up"}
    asked = [one for one in spans if one.name == "ask"]
    assert len(calls) == len(asked) == 3
    assert {one.parent.span_id for one in asked} == calls.keys(), "each within a call of its own"
    labels = {"samza.app": "looking", "samza.container": "0", "samza.operator": "look-up"}
    assert all(one.attributes == labels for one in calls.values())
    failed = [one for one in calls.values() if one.status.status_code is trace.StatusCode.ERROR]
    assert len(failed) == 1 and "no such number" in failed[0].status.description


@pytest.mark.parametrize("by_key", [False, True])
def test_the_context_of_a_message_goes_through_its_calls(tmp_path, by_key):
    """A call's span has the producer's for its parent, and what it makes names the call's; retries are no children."""
    tries = {}

    async def look_up(n):
        tries[n] = tries.get(n, 0) + 1
        if n == 2 and tries[n] == 1:
            raise ValueError("not yet")
        return [n, n]

    app = App("carrying")
    read = app.input("numbers", value=int, headers=True)
    if by_key:
        read = read.partition_by(lambda n: n, op_id="by")
    looked = read.async_flat_map(look_up, on_error=retry(2, backoff_ms=0), op_id="first")
    looked = looked.filter(lambda n: n < 5, op_id="some").async_flat_map(look_up, op_id="second")
    looked.send_to(app.output("out", value=int))
    EXPORTER.clear()
    parents = {}
    for n in range(1, 5):
        with OWN.start_as_current_span("produce") as span:
            carrier = {}
            inject(carrier)
            parents[n] = {"traceparent": carrier["traceparent"].encode(), "own": b"%d" % n, "none": None}
        assert span.get_span_context().is_valid
    with closing(LogEnvironment(tmp_path)) as log:
        log.create_stream("numbers", StreamConfig())
        rows = Batch([b"%d" % n for n in parents], headers=[*parents.values()])
        log.append([Append("numbers", 0, rows)])
        app.run(tmp_path, until_now=True, metrics=Metrics(address=None, opentelemetry=True))
        written = [
            (int(row.value), row.headers)
            for one in range(log.streams()["out"].partitions)
            for row in records_from(log, "out", one, 0)
        ]
    spans = EXPORTER.get_finished_spans()
    by_id = {format(one.context.span_id, "016x"): one for one in spans}
    assert len(written) == 16 and {n for n, _ in written} == {*parents}
    for n, headers in written:
        assert headers["own"] == b"%d" % n and headers["none"] is None
        trace_id, second = headers["traceparent"].decode().split("-")[1:3]
        chain = [by_id[second]]
        while chain[-1].parent is not None:
            chain.append(by_id[format(chain[-1].parent.span_id, "016x")])
        assert [one.name for one in chain] == ["call second", "call first", "produce"]
        assert {format(one.context.trace_id, "032x") for one in chain} == {trace_id}
    # By key only the second stage has a step with calls; the first one's is linked to the producer's spans as well.
    produced = {format(one.context.span_id, "016x") for one in spans if one.name == "produce"}
    steps = [links_of(one) for one in spans if one.name == "process"]
    assert set().union(*steps) == produced and all(one <= produced for one in steps)
    commits = [links_of(one) for one in spans if one.name == "commit"]
    outputs = {headers["traceparent"].decode().split("-")[2] for _, headers in written}
    assert set().union(*commits) == outputs | (produced if by_key else set())
    failed = [one for one in spans if one.status.status_code is trace.StatusCode.ERROR]
    assert [one.name for one in failed] == ["call first"] and by_id[
        format(failed[0].parent.span_id, "016x")
    ].name == "produce"


def test_batches_and_commits_have_spans(run):
    spans, _ = run(metrics=Metrics(address=None, opentelemetry=True))
    assert {"process", "fire", "commit"} <= {one.name for one in spans}
    assert all(one.start_time <= one.end_time for one in spans)


def test_a_run_that_was_not_told_to_makes_no_spans(run):
    spans, _ = run()
    assert {one.name for one in spans} == {"ask"}
    assert LISTENER.get() is None and AROUND.get() is None


def test_every_duration_has_an_instrument_that_is_recorded(run):
    _, told = run(metrics=Metrics(address=None, opentelemetry=True))
    # Of rebalances there are none in one process, and what was appended when, only records of a log say.
    elsewhere = {DURATIONS[what][0].name for what in ("rebalance", "append_to_commit")}
    assert {one.name for one, _ in DURATIONS.values()} - elsewhere <= told.keys()


def test_without_opentelemetry_it_is_told_what_to_install():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from runtime.watching.telemetry import telling\n"
        "telling('app')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'samza-dsl[otel]'" in done.stderr


def test_two_runs_at_once_are_told_apart_and_one_that_is_not_traced_is_not(tmp_path):
    async def look_up(n):
        return [n]

    def made(name):
        app = App(name)
        looked = app.input(f"{name}-in", value=int).async_flat_map(look_up, op_id=f"call-{name}")
        looked.send_to(app.output(f"{name}-out", value=int))
        return app

    def started(name, traced=True):
        how = {"metrics": Metrics(address=None, opentelemetry=True)} if traced else {}
        return made(name).running(tmp_path / name, bind={f"{name}-in": ListSource([1, 2])}, **how)

    async def both():
        async with started("one") as one, started("two") as two, started("quiet", traced=False) as quiet:
            for run in (one, two, quiet):
                await run.settled()

    EXPORTER.clear()
    asyncio.run(both())
    told = {
        one.name: one for scope in READER.get_metrics_data().resource_metrics[0].scope_metrics for one in scope.metrics
    }
    for metric in ("samza.operator.received", "samza.call.duration"):
        apps = {(p.attributes["samza.app"], p.attributes["samza.operator"]) for p in told[metric].data.data_points}
        assert {("one", "call-one"), ("two", "call-two")} <= apps
        assert all(operator == f"call-{app}" for app, operator in apps if operator.startswith("call-")), apps
        assert "quiet" not in {app for app, _ in apps}
    spans = [one for one in EXPORTER.get_finished_spans() if one.name.startswith("call ")]
    assert {(one.attributes["samza.app"], one.name) for one in spans} == {
        ("one", "call call-one"),
        ("two", "call call-two"),
    }
    commits = [p for p in told["samza.commit.duration"].data.data_points if p.attributes["samza.app"] in ("one", "two")]
    assert commits and all(point.attributes["samza.container"] == "0" for point in commits)


def test_two_runs_of_one_application_at_once_are_told_apart(tmp_path):
    """The first is as it is alone; the second says that it is that, and a later one alone is the first again."""

    async def look_up(n):
        return [n]

    def started(data, numbers):
        app = App("twice")
        app.input("in", value=int).async_flat_map(look_up, op_id="call").send_to(app.output("out", value=int))
        how = {"metrics": Metrics(address=None, opentelemetry=True)}
        return app.running(tmp_path / data, bind={"in": ListSource(numbers)}, **how)

    async def both():
        async with started("one", [1, 2]) as one, started("two", [3]) as two:
            await one.settled()
            await two.settled()

    async def alone():
        async with started("three", [4, 5, 6, 7]) as three:
            await three.settled()

    def told(name):
        scopes = READER.get_metrics_data().resource_metrics[0].scope_metrics
        metric = next(one for scope in scopes for one in scope.metrics if one.name == name)
        return {point.attributes.get("samza.run"): point for point in points(metric, app="twice", operator="call")}

    asyncio.run(both())
    assert {run: point.value for run, point in told("samza.operator.received").items()} == {None: 2, "2": 1}
    assert told("samza.call.duration").keys() == {None, "2"}
    asyncio.run(alone())
    assert {run: point.value for run, point in told("samza.operator.received").items()} == {None: 4}


def test_the_numbers_of_a_run_that_is_over_are_told_until_the_next_one_begins(tmp_path):
    def ran(name):
        app = App(name)
        app.input(f"{name}-in", value=int).sink(lambda n: None)
        how = {"bind": {f"{name}-in": ListSource([1, 2])}, "metrics": Metrics(address=None, opentelemetry=True)}
        app.run(tmp_path / name, **how)
        scopes = READER.get_metrics_data().resource_metrics[0].scope_metrics
        told = next(one for scope in scopes for one in scope.metrics if one.name == "samza.operator.received")
        return {point.attributes["samza.app"] for point in told.data.data_points}

    assert "former" in ran("former")
    assert ran("latter") == {"latter"}
