"""A run on a real broker is watched: the context of traces goes across it, and restores and rebalances are told."""

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer

from runtime.model.metrics import Metrics
from runtime.systems.kafka.state import changelog
from samza_dsl import App, Options, String
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.kafka.test_independent import read
from tests.kafka.topics import create, produce
from tests.source import ROOT
from tests.watching.spans import TRACED, id_of, links_of, numbers, parent_of, spans, total

SENT = 12
CALLING = """
from samza_dsl import App, Options

app = App("{name}", Options(commit_interval_ms=50))


async def look_up(number):
    return [number]


found = app.input("{name}-in", value=int, headers=True).async_flat_map(look_up, op_id="first")
found = found.partition_by(lambda number: number % 3, partitions=2, op_id="by-three")
found.async_flat_map(look_up, op_id="second").send_to(app.output("{name}-out", value=int))
"""
HANDING = """
from samza_dsl import App, Options, String

app = App("{name}", Options(commit_interval_ms=50, metrics_to="{name}-how"))
words = app.input("{name}-words", value=String()).partition_by(lambda word: word, partitions=2, op_id="by-word")
words.scan(lambda total, _: total + 1, init=int, op_id="count").send_to(app.output("{name}-counts", value=int))
"""


def start(broker, folder: Path, *options: str) -> "subprocess.Popen[str]":
    where = "--environment", f"kafka://{broker.bootstrap}", "--opentelemetry", *options
    command = [sys.executable, "-m", "samza_dsl", "run", "app.py", *where]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def written(broker, topic: str) -> dict[int, tuple[str, str]]:
    """Write numbers by another client, each in a trace of its own; return these with their spans, by number."""
    producer, traces = Producer({"bootstrap.servers": broker.bootstrap}), {}
    for number in range(SENT):
        trace, span = traces[number] = secrets.token_hex(16), secrets.token_hex(8)
        headers = [("traceparent", f"00-{trace}-{span}-01".encode()), ("own", b"%d" % number)]
        producer.produce(topic, b"%d" % number, partition=number % 2, headers=headers)
    assert producer.flush(60) == 0
    return traces


@pytest.mark.parametrize("containers", [1, 2])
def test_the_context_of_a_record_goes_through_a_run_to_what_it_writes(broker, topics, tmp_path, containers):
    """A call's parent is the producer's span, the next call's that one, over a topic between stages, and so on."""
    create(broker, f"{topics}-in", 2)
    traces = written(broker, f"{topics}-in")
    (tmp_path / "app.py").write_text(TRACED + CALLING.format(name=topics))
    run = start(broker, tmp_path, "--containers", str(containers), "--until-now")
    said = run.communicate(timeout=300)
    assert run.returncode == 0, said

    by_id = {id_of(one): one for one in spans(tmp_path)}
    rows = [message for found in read(broker, f"{topics}-out", SENT).values() for message in found]
    assert sorted(int(one.value()) for one in rows) == [*range(SENT)]
    firsts, seconds = set(), set()
    for row in rows:
        number, headers = int(row.value()), dict(row.headers())
        assert headers["own"] == b"%d" % number
        trace, span = headers["traceparent"].decode().split("-")[1:3]
        second = by_id[span]
        first = by_id[parent_of(second)]
        assert (first["name"], second["name"]) == ("call first", "call second")
        assert traces[number] == (trace, parent_of(first))
        assert {one["context"]["trace_id"].removeprefix("0x") for one in (first, second)} == {trace}
        firsts.add(id_of(first))
        seconds.add(id_of(second))
    produced = {span for _, span in traces.values()}
    linked = {
        name: set().union(*(links_of(one) for one in by_id.values() if one["name"] == name))
        for name in ("process", "commit")
    }
    assert linked["process"] == produced | firsts, "each step is linked to what it takes in"
    assert linked["commit"] == firsts | seconds, "and each commit to what it writes, between stages as well"


def counting(name: str) -> App:
    app = App(name, Options(commit_interval_ms=50))
    words = app.input(f"{name}-words", value=String()).partition_by(lambda word: word, partitions=2, op_id="by-word")
    words.scan(lambda total, _: total + 1, init=int, op_id="count").send_to(app.output(f"{name}-counts", value=int))
    return app


def test_state_that_comes_back_is_told_at_the_port_of_metrics(broker, topics, tmp_path, monkeypatch):
    create(broker, f"{topics}-words")
    produce(broker, f"{topics}-words", *((0, None, b"w%d" % number) for number in range(50)))
    app, address, (port,) = counting(topics), f"kafka://{broker.bootstrap}", free_ports(1)
    app.run(tmp_path / "here", environment=address, until_now=True)
    seen, ready, entries_in = [], [], changelog.entries_in

    def look(*given):
        seen.append(numbers(port)["samza_state_restoring"])
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")
        except OSError as error:
            ready.append(error.read().decode())
        return entries_in(*given)

    monkeypatch.setattr(changelog, "entries_in", look)
    how = {"environment": address, "until_now": True, "metrics": Metrics(address=f"127.0.0.1:{port}")}
    run = app.run(tmp_path / "elsewhere", **how)
    assert {dict(labels)["operator"] for one in seen for labels in one} == {"count"}
    left = [sum(one.values()) for one in seen]
    assert left[0] >= 50 and left == sorted(left, reverse=True)
    assert all("brings the state of 'count'" in one for one in ready) and len(ready) == len(seen)
    assert run.metrics().containers[0].restored >= 50


def is_whole(found) -> bool:
    """Whether two containers have all tasks that they shall have."""
    return total(found, "samza_container_settled") == 2 and total(found, "samza_task_assigned") >= 2


def test_containers_that_come_and_go_are_told_in_numbers_spans_and_a_stream(broker, topics, tmp_path):
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", *((number % 2, None, b"w%d" % number) for number in range(50)))
    (tmp_path / "app.py").write_text(TRACED + HANDING.format(name=topics))
    (port,) = free_ports(1)
    run = start(broker, tmp_path, "--containers", "2", "--metrics", f":{port}")
    wait_until(lambda: run.poll() is not None or is_whole(numbers(port)))
    before = numbers(port)
    assert {dict(labels)["container"] for labels in before["samza_rebalances_total"]} == {"0", "1"}
    assert all(before["samza_rebalances_total"].values()) and total(before, "samza_rebalance_duration_seconds_count")

    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    doomed = next(one for one in children if (tmp_path / f"spans-{one}.jsonl").exists())
    os.kill(int(doomed), signal.SIGKILL)
    wait_until(lambda: total(numbers(port), "samza_container_restarts_total") == 1 and is_whole(numbers(port)))
    after = numbers(port)
    assert total(after, "samza_container_deaths_total") == 1 <= total(after, "samza_task_take_overs_total")
    assert total(after, "samza_rebalances_total") > total(before, "samza_rebalances_total")
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    found = [one for one in spans(tmp_path) if one["name"] == "rebalance"]
    assert {one["attributes"]["samza.container"] for one in found} == {"0", "1"}

    # Another pipeline reads the numbers of each.
    app = App(f"{topics}-watching")
    told = app.input(f"{topics}-how", value=dict, key=str, timestamp=lambda told: told["at_ms"])
    told.map(lambda told: [told["container"], told["app"]], op_id="whose").send_to(app.output(f"{topics}-told"))
    app.run(tmp_path / "watching", environment=f"kafka://{broker.bootstrap}", until_now=True)
    rows = [json.loads(row.value()) for rows in read(broker, f"{topics}-told", 2).values() for row in rows]
    # A name has the machine's in front, the place among its containers, and how many were there.
    assert {name.split(".")[-2] for name, _ in rows} == {"0", "1"} and {app for _, app in rows} == {topics}
