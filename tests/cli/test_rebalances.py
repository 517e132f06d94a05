"""Containers come and go, and a real run tells of it: by its endpoint, by spans, and in its stream of metrics."""

import json
import os
import signal
from contextlib import closing

import msgspec
import pytest

from operators.core.base import Batch
from runtime.model.metrics import RunMetrics
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl import App
from samza_dsl.data.records import records_from
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.watching.spans import TRACED, numbers, points, spans, total

pytestmark = pytest.mark.ci

PROGRAM = """
from samza_dsl import App, Options

app = App("handing", Options(commit_interval_ms=50, metrics_to="how-it-goes"))


async def look_up(number):
    return [number]


looked = app.input("numbers", value=int).async_flat_map(look_up, op_id="look-up")
looked.send_to(app.output("out", value=int))
"""


def append(log):
    for partition in range(2):
        log.append([Append("numbers", partition, Batch([b"%d" % n for n in range(10)]))])


def containers_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        return [int(one) for one in children.read().split()]


def is_whole(found):
    """Whether two containers have all tasks that they shall have."""
    return total(found, "samza_container_settled") == 2 == total(found, "samza_task_assigned")


def test_containers_that_come_and_go_are_told_in_numbers_spans_and_a_stream(program, folder, write):
    write("handing.py", TRACED + PROGRAM)
    data, (port,) = folder / ".samza-dsl", free_ports(1)
    with closing(LogEnvironment(data)) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
        append(log)
    options = "--containers", "2", "--metrics", f":{port}", "--opentelemetry", "--replica", str(folder / "copy")
    run = program("run", "handing.py", *options)
    wait_until(lambda: run.poll() is not None or is_whole(numbers(port)))
    before = numbers(port)
    assert {dict(labels)["container"] for labels in before["samza_rebalances_total"]} == {"0", "1"}
    assert all(before["samza_rebalances_total"].values()), "each has taken its task"
    assert total(before, "samza_rebalance_duration_seconds_count") >= 2
    assert total(before, "samza_container_deaths_total") == 0 and "samza_replica_age_seconds" in before

    doomed = next(one for one in containers_of(run) if (folder / f"spans-{one}.jsonl").exists())
    os.kill(doomed, signal.SIGKILL)
    wait_until(lambda: total(numbers(port), "samza_container_restarts_total") == 1 and is_whole(numbers(port)))
    after = numbers(port)
    assert total(after, "samza_container_deaths_total") == 1 == total(after, "samza_task_take_overs_total")
    # The other one takes the task over, and hands one to the new one, unless that was there first.
    assert total(after, "samza_rebalances_total") > total(before, "samza_rebalances_total")
    told = total(after, "samza_rebalance_duration_seconds_count")
    assert told > total(before, "samza_rebalance_duration_seconds_count")

    with closing(LogEnvironment(data)) as log:
        append(log)
    wait_until(lambda: total(numbers(port), "samza_input_offset") == 40)
    # What copies the directory is a process of the run, too.
    living = [one for one in containers_of(run) if (folder / f"metrics-{one}.jsonl").exists()]
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    found = [one for one in spans(folder) if one["name"] == "rebalance"]
    assert {one["attributes"]["samza.container"] for one in found} == {"0", "1"}
    assert len(found) >= told, "each was a span"

    check_meters(folder, run.pid, living)
    check_stream(data)


def check_meters(folder, starter, living):
    """The starter tells what is counted of all containers, and each of these its own durations."""
    whole = points(folder, starter)
    received = [one["value"] for one in whole["samza.operator.received"] if of(one, "operator") == "look-up"]
    assert max(received) >= 40 and "samza.commit.duration" not in whole
    places = {place for one in living for place in places_of(points(folder, one))}
    assert places <= {"0", "1"} and places
    assert not any("samza.operator.received" in points(folder, one) for one in living)


def places_of(found):
    """Return the containers of which durations are told."""
    durations = [one for name in ("samza.commit.duration", "samza.rebalance.duration") for one in found.get(name, ())]
    return {of(one, "container") for one in durations}


def of(point, label):
    return point["attributes"].get(f"samza.{label}")


def check_stream(data):
    """A pipeline reads the stream of metrics: it has numbers of each container, and what each has done."""
    app = App("watching")
    numbers = app.input("how-it-goes", value=dict, key=str, timestamp=lambda told: told["at_ms"])
    numbers.map(lambda told: [told["container"], told["metrics"]], op_id="numbers").send_to(app.output("told"))
    app.run(data, until_now=True)
    with closing(LogEnvironment(data)) as log:
        told = [json.loads(row.value) for row in records_from(log, "told", 0, 0)]
    last = {container: msgspec.convert(found, RunMetrics) for container, found in told}
    assert {name.partition(".")[0] for name in last} == {"0", "1"}
    received = sum(one.received for found in last.values() for one in found.operators if one.operator == "look-up")
    assert received >= 20, "what came behind the kill is told by those that live"
