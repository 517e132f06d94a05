"""The text for Prometheus: its own parser reads back what the run has told, whatever names have in them."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from operators.core.base import MAX_TIMESTAMP, MIN_TIMESTAMP
from runtime.containers.protocol import combined
from runtime.model.metrics import (
    BOUNDS_MS,
    ContainerMetrics,
    Durations,
    InputMetrics,
    JobMetrics,
    OperatorMetrics,
    RestoreMetrics,
    RunMetrics,
    StageMetrics,
    StoreMetrics,
    TaskMetrics,
)
from runtime.watching.exposition import DURATIONS, INSTRUMENTS, MOST_COUNTERS, prometheus_text
from tests.scale import examples

NOW_MS = 1_000_000_000
names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 2**53)


def parsed(metrics, app="app"):
    """Return the families by name, and the value of each sample by its name and labels."""
    families = list(text_string_to_metric_families(prometheus_text(app, metrics, NOW_MS)))
    samples = [one for family in families for one in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples), "no series is told twice"
    assert all(one.labels["app"] == app for one in samples)
    return {family.name: family for family in families}, found


def value(found, name, **labels):
    return found.get((name, frozenset({"app": "app", **labels}.items())))


durations = st.lists(st.floats(0, 1e9), max_size=20)


def histogram(what, of, times):
    counted = Durations(what, of)
    for ms in times:
        counted.add(ms)
    return counted.metrics()


@st.composite
def runs(draw):
    operators = draw(st.lists(names, max_size=3, unique=True))
    return RunMetrics(
        operators=tuple(
            OperatorMetrics(
                operator=id,
                task=task,
                received=draw(counts),
                late=draw(counts),
                watermark=draw(st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP, NOW_MS - 5_000])),
                counters=draw(st.dictionaries(names, counts, max_size=2)),
            )
            for id in operators
            for task in draw(st.lists(st.integers(0, 2), max_size=3))
        ),
        tasks=tuple(TaskMetrics(task=task, in_flight=draw(counts)) for task in range(draw(st.integers(0, 3)))),
        inputs=tuple(
            InputMetrics(stream=draw(names), partition=n, task=n, offset=1, end=3, lag=2, watermark=NOW_MS - 1_500)
            for n in range(draw(st.integers(0, 2)))
        ),
        stores=tuple(StoreMetrics(store=id, task=0, entries=3, bytes=40) for id in operators),
        stages=(StageMetrics(stage="stage-1", tasks=4, running=1, done=2),),
        containers=tuple(
            ContainerMetrics(
                container=str(number),
                tasks=(number,),
                histograms=(histogram("commit", "", draw(durations)), histogram("call", draw(names), draw(durations))),
            )
            for number in range(draw(st.integers(0, 2)))
        ),
    )


@settings(max_examples=examples(60, 600))
@given(runs(), names)
def test_whatever_a_run_tells_is_read_back(metrics, app):
    families, found = parsed(metrics, app)
    for id in {one.operator for one in metrics.operators}:
        mine = [one for one in metrics.operators if one.operator == id]
        labels = frozenset({"app": app, "operator": id}.items())
        assert found["samza_operator_received_total", labels] == float(sum(one.received for one in mine))
    known = {one.exposed_as.removesuffix("_total"): one for one in INSTRUMENTS}
    assert families.keys() <= known.keys(), "nothing is told that is not listed"
    assert all(families[name].type == known[name].type and families[name].documentation for name in families)


@settings(max_examples=examples(60, 600))
@given(durations)
def test_a_histogram_has_each_duration_in_every_bucket_that_is_as_long(times):
    metrics = RunMetrics(containers=(ContainerMetrics(container="0", histograms=(histogram("drain", "", times),)),))
    _, found = parsed(metrics)
    for bound in BOUNDS_MS:
        le = repr(bound / 1_000)
        number = sum(ms <= bound for ms in times)
        assert value(found, "samza_drain_duration_seconds_bucket", container="0", le=le) == number
    assert value(found, "samza_drain_duration_seconds_bucket", container="0", le="+Inf") == len(times)
    assert value(found, "samza_drain_duration_seconds_count", container="0") == len(times)
    assert math.isclose(value(found, "samza_drain_duration_seconds_sum", container="0"), sum(times) / 1_000)


@settings(max_examples=examples(60, 600))
@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(times, q):
    true = sorted(times)[max(math.ceil(q * len(times)) - 1, 0)]
    upper = next(bound for bound in BOUNDS_MS if bound >= true)
    lower = max((bound for bound in BOUNDS_MS if bound < upper), default=0.0)
    assert lower <= histogram("step", "", times).quantile(q) <= upper


def test_delays_are_told_only_where_there_is_event_time():
    def at(partition, watermark, ended=False):
        return InputMetrics(
            stream="s", partition=partition, task=0, offset=0, end=0, lag=0, watermark=watermark, ended=ended
        )

    inputs = (at(0, NOW_MS - 2_500), at(1, MIN_TIMESTAMP), at(2, NOW_MS - 9_000, ended=True), at(3, NOW_MS + 50))
    _, found = parsed(RunMetrics(inputs=inputs))
    delays = [value(found, "samza_input_watermark_delay_seconds", stream="s", partition=str(n)) for n in range(4)]
    assert delays == [2.5, None, None, 0.0]


def test_of_a_stream_that_is_read_twice_the_reader_that_is_behind_counts():
    both = [
        InputMetrics(stream="s", partition=0, task=0, offset=10 - lag, end=10, lag=lag, watermark=0) for lag in (7, 2)
    ]
    assert value(parsed(RunMetrics(inputs=tuple(both)))[1], "samza_input_lag", stream="s", partition="0") == 7


def test_a_container_tells_its_own_lag_and_how_long_it_has_not_committed_from_the_start_on():
    inputs = tuple(
        InputMetrics(stream="s", partition=n, task=n, offset=0, end=lag, lag=lag, watermark=0)
        for n, lag in enumerate((7, 2, 0))
    )
    busy = ContainerMetrics(container="0", tasks=(0, 1))
    idle = ContainerMetrics(container="1", tasks=(2,), commits=1, since_commit_ms=900_000.0)
    _, found = parsed(RunMetrics(inputs=inputs, containers=(busy, idle), elapsed_ms=400_000.0))
    told = [
        [value(found, name, container=container) for name in ("samza_commit_age_seconds", "samza_container_lag")]
        for container in ("0", "1")
    ]
    assert told == [[400.0, 9.0], [900.0, 0.0]], "the one hangs from its start, and the other has nothing to do"


def test_an_operator_that_counts_without_end_does_not_make_series_without_end():
    counters = {f"c{number}": 1 for number in range(10 * MOST_COUNTERS)}
    _, found = parsed(RunMetrics(operators=(OperatorMetrics(operator="op", task=0, counters=counters),)))
    assert sum(name == "samza_operator_counted_total" for name, _ in found) == MOST_COUNTERS


@pytest.mark.parametrize("one", INSTRUMENTS, ids=lambda one: one.name)
def test_a_metric_is_named_by_the_conventions_of_opentelemetry(one):
    """Dotted and in small letters, with the unit beside the name, which Prometheus' name has at its end."""
    assert re.fullmatch(r"samza(\.[a-z]+(_[a-z]+)*)+", one.name)
    assert one.unit in ("s", "By", "1") or re.fullmatch(r"{[a-z]+}", one.unit), "a unit of UCUM, or a note"
    assert not re.search(r"[._](total|seconds|bytes|ms|count)$", one.name), "what the unit and the type say"
    assert one.help.endswith(".") and one.help[0].isupper()
    # A counter of seconds is `..._seconds_total`.
    wanted = re.compile(r"(_seconds|_bytes)?(_total)?$").search(one.exposed_as).groups()
    assert wanted == ({"s": "_seconds", "By": "_bytes"}.get(one.unit), "_total" if one.type == "counter" else None)


def test_every_kind_of_duration_has_a_histogram():
    every = tuple(histogram(what, "of", [1.0]) for what in DURATIONS)
    families, _ = parsed(RunMetrics(containers=(ContainerMetrics(container="0", histograms=every),)))
    assert sum(family.type == "histogram" for family in families.values()) == len(DURATIONS)


def whole_run():
    """Return a run of which everything can be told."""
    every = tuple(histogram(what, "of", [1.0]) for what in DURATIONS)
    return RunMetrics(
        operators=(
            OperatorMetrics(operator="op", task=0, watermark=1_000, counters={"mine": 1}, keys={"one": {"int": 1}}),
        ),
        tasks=(TaskMetrics(task=0),),
        job=JobMetrics(tasks=1, model_ms=2.0, checkpoints_ms=3.0),
        inputs=(InputMetrics(stream="s", partition=0, task=0, offset=0, end=0, lag=0, watermark=1_000),),
        stores=(StoreMetrics(store="op", task=0, entries=1, bytes=9),),
        stages=(StageMetrics(stage="stage-1", tasks=4),),
        replica_age_ms=7.0,
        containers=(
            ContainerMetrics(
                container="0",
                tasks=(0,),
                since_commit_ms=5.0,
                histograms=every,
                restoring=(RestoreMetrics(store="op", task="0", restored=1, records=3),),
            ),
        ),
    )


@given(st.lists(st.floats(0, 1e9), min_size=5, max_size=5), st.integers(1, 10_000), st.booleans())
def test_what_elasticity_costs_is_told_in_seconds_under_the_six_names_of_its_design(times, tasks, is_split):
    """Its design: "Elasticity by virtual tasks" of Apache Samza."""
    model_ms, checkpoints_ms, hash_ms, own_ms, read_ms = times
    job = JobMetrics(tasks=tasks, model_ms=model_ms, checkpoints_ms=checkpoints_ms if is_split else None)
    task = TaskMetrics(task=3, hash_ms=hash_ms, own_ms=own_ms, read_ms=read_ms)
    _, found = parsed(RunMetrics(job=job, tasks=(task,)))
    assert value(found, "samza_job_tasks") == tasks
    assert value(found, "samza_job_model_time_seconds") == model_ms / 1_000
    assert value(found, "samza_job_checkpoints_time_seconds") == (checkpoints_ms / 1_000 if is_split else None)
    assert value(found, "samza_task_key_hash_time_seconds_total", task="3") == hash_ms / 1_000
    assert value(found, "samza_task_store_share_time_seconds_total", task="3") == own_ms / 1_000
    assert value(found, "samza_task_read_time_seconds_total", task="3") == read_ms / 1_000


@given(durations, durations, counts, counts)
def test_what_a_container_that_is_gone_has_counted_stays_with_the_one_in_its_place(gone, living, before, now):
    def part(tasks, commits, times):
        container = ContainerMetrics(
            container="0",
            tasks=tasks,
            settled=bool(tasks),
            commits=commits,
            rebalances=1,
            histograms=(histogram("commit", "", times),),
        )
        return RunMetrics(containers=(container, ContainerMetrics(container="1")))

    first, second = combined([part((), before, gone), part((3,), now, living)]).containers
    assert (first.tasks, first.settled, first.commits, first.rebalances) == ((3,), True, before + now, 2)
    (told,) = first.histograms
    assert told.counts == histogram("commit", "", [*gone, *living]).counts
    assert second.container == "1"
