"""A container that is stopped is told in the log, on the page, in the numbers and by health, and then goes on."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing, contextmanager

import pytest

from operators.core.base import Batch
from runtime.ports.streams import Append, StreamConfig
from runtime.systems.log.environment import LogEnvironment
from samza_dsl.data.records import records_from
from tests.cli.test_rebalances import containers_of, is_whole
from tests.faults.processes import wait_until
from tests.kafka.brokers import free_ports
from tests.source import ROOT
from tests.watching.spans import numbers

pytestmark = pytest.mark.ci

HUNG = """
    import logging
    import sys

    import runtime.containers.crew_numbers
    import runtime.watching.watcher
    import samza_dsl.room.look
    from samza_dsl import App, Metrics, Options

    app = App("hung", Options(commit_interval_ms=50))
    app.input("numbers", value=int).send_to(app.output("out", value=int))

    if __name__ == "__main__":
        logging.basicConfig()
        runtime.containers.crew_numbers.SILENT_MS = samza_dsl.room.look.SILENT_MS = 5_000.0
        runtime.watching.watcher.STUCK_MS = 7_000.0
        is_watched = len(sys.argv) > 1
        app.run(containers=2, metrics=Metrics(address=sys.argv[1], ui=True) if is_watched else None)
"""


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def silences(port):
    """Return for how long each container has said nothing, in seconds."""
    found = numbers(port).get("samza_container_silence_seconds", {})
    return {dict(labels)["container"]: seconds for labels, seconds in found.items()}


def on_page(port):
    """Return the containers that the page shows in red, with its words, and its alerts."""
    look = json.loads(asked(port, "/api/run?run=0/hung")[1])["look"]
    return {one["name"]: one["words"] for one in look["containers"] if not one["well"]}, look["alerts"]


@contextmanager
def hung(folder, write, *address):
    """Run the application, and yield its process and what tells what it has said."""
    write("hung.py", HUNG)
    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        log.create_stream("numbers", StreamConfig(partitions=2))
        log.append([Append("numbers", partition, Batch([b"1"])) for partition in range(2)])
    with (folder / "said").open("w") as said:
        how = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": said, "stderr": said}
        run = subprocess.Popen([sys.executable, "hung.py", *address], **how)
    try:
        yield run, (folder / "said").read_text
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0, (folder / "said").read_text()
    finally:
        run.kill()
        run.wait()


@contextmanager
def stopped(process):
    """Stop a process for a block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_container_that_is_stopped_is_told_everywhere_and_the_others_are_not(folder, write):
    (port,) = free_ports(1)
    with hung(folder, write, f"127.0.0.1:{port}") as (run, said):
        wait_until(lambda: run.poll() is not None or is_whole(numbers(port)))
        assert asked(port, "/livez") == (200, "alive\n")
        doomed, _ = containers_of(run)
        with stopped(doomed):
            wait_until(lambda: f"(process {doomed}) has said nothing for" in said())
            slow = max((seconds, one) for one, seconds in silences(port).items())[1]
            wait_until(lambda: slow in on_page(port)[0])
            red, alerts = on_page(port)
            assert any("silent for" in word for word in red[slow])
            assert any(f"container {slow} has said nothing for" in one for one in alerts)
            # It has not committed meanwhile either, whatever it last said.
            assert numbers(port)["samza_commit_age_seconds"][frozenset({("container", slow)})] > 3
            heard, (other,) = [], {"0", "1"} - {slow}
            while asked(port, "/livez")[0] == 200:
                heard.append(silences(port)[other])
            # None on a machine that is so busy that the look above took as long.
            assert not heard or sorted(heard)[len(heard) // 2] < 3, "the other one is asked all the same"
            assert f"container {slow} has said nothing" in asked(port, "/livez")[1]
        wait_until(lambda: asked(port, "/livez")[0] == 200 and not on_page(port)[0])
        wait_until(lambda: f"(process {doomed}) goes on, after" in said())
        assert said().count(f"(process {doomed}) has said nothing") == 1


def test_where_nobody_looks_the_log_tells_of_it_once(folder, write):
    with hung(folder, write) as (run, said):
        wait_until(lambda: run.poll() is not None or len(written(folder)) == 2)
        doomed, _ = containers_of(run)
        with stopped(doomed):
            wait_until(lambda: f"(process {doomed}) has said nothing for" in said())
        wait_until(lambda: "goes on, after" in said())
        assert said().count(f"(process {doomed}) has said nothing") == 1


def written(folder):
    """Return the partitions of the output that have a record."""
    with closing(LogEnvironment(folder / ".samza-dsl")) as log:
        number = log.streams()["out"].partitions if "out" in log.streams() else 0
        return [one for one in range(number) if [*records_from(log, "out", one, 0)]]
